"""A whole run on IPUs, on a fake of their API: configure, build, compile, train, save, go on, export."""

import json
import os
import signal

import numpy as np
import pytest
import tensorflow as tf

from official import config as config_lib
from official.config import ConfigError
from official.reporting.metrics import read_metrics
from official.training import runner
from official.training.ipu import run as ipu_run
from official.tasks import TASKS
from tests import ipu_fake

FOUR_STAGES = dict(
    distribution_strategy="ipu",
    pipeline_stages="emb+pos / hid / hid / mlm+nsp",
    device_mapping="0,1,2,0",
    num_accumulation_steps=8,
    train_batch_size=32,
)
LOSSES = ("loss", "mlm_loss", "nsp_loss", "mlm_accuracy", "nsp_accuracy")


@pytest.fixture(name="configured")
def fixture_configured(make_config, tmp_path):
    """Returns a function that builds the configuration of a run in a folder of its own."""

    def configured(name: str, model: dict | None = None, **settings):
        defaults = dict(stop_steps=4, steps_per_loop=2, use_synthetic_data=True, checkpoint_every_steps=2)
        return make_config(model, model_dir=str(tmp_path / name), **{**defaults, **settings})

    return configured


def run_on_fake(config, ipus: int = 8, **machine):
    with ipu_fake.installed(ipus=ipus, **machine) as fake:
        return ipu_run.run(config, ["train.py"]), fake


def lines(config) -> list[dict]:
    return [{name: line[name] for name in ("step", "samples", *LOSSES)} for line in read_metrics(config.model_dir)]


def assert_same_lines(found, expected):
    assert [line["step"] for line in found] == [line["step"] for line in expected]
    assert [line["samples"] for line in found] == [line["samples"] for line in expected]
    for one, other in zip(found, expected):
        np.testing.assert_allclose([one[name] for name in LOSSES], [other[name] for name in LOSSES], rtol=1e-4)


def on_one_device(config):
    values = json.loads(config_lib.to_json(config))
    default = {name: field.default for name, field in config_lib.FIELDS.items() if "ipu" in field.backends}
    own = {**values, **default, "distribution_strategy": "one_device", "fused_ops": False}
    own["model_dir"] = values["model_dir"] + "-one-device"
    return config_lib.build_config([("test", own)])


@pytest.mark.parametrize(
    "settings",
    [
        dict(ipu_replicas=2, device_iterations=2),
        dict(ipu_replicas=1, optimizer_type="adamw", weight_decay_rate=0.01, clip_scope="none"),
        dict(pipeline_schedule="sequential", loss_scale="128", loss_normalization="local", scale_loss=True),
    ],
    ids=["replicas", "adamw", "local"],
)
def test_it_trains_as_one_device(configured, settings):
    config = configured("ipu", **FOUR_STAGES, **settings)
    code, fake = run_on_fake(config)
    assert code == 0
    assert fake.compiled[-1].replicas == config.ipu_replicas
    own = on_one_device(config)
    runner.run(own, TASKS[own.task])
    assert_same_lines(lines(config), lines(own))
    result = json.loads(open(os.path.join(config.model_dir, "result.json"), encoding="utf-8").read())
    assert (result["status"], result["step"], result["samples"]) == ("finished", 4, 128)
    assert result["checkpoint"].endswith("ckpt-4")
