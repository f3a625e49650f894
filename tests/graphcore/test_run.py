"""A whole run on IPUs, on a fake of their API: configure, build, compile, train, save, go on."""

import json
import os
import pathlib
import signal
import time
from unittest import mock

import numpy as np
import pytest

from official import config as config_lib
from official.cli import train
from official.graphcore import __main__ as command
from official.graphcore import devices, program
from official.graphcore import run as ipu_run
from official.io.errors import ConfigError
from official.reporting.metrics import read_metrics
from official.reporting.result import read_result
from official.tasks import TASKS, pretraining
from official.training import run as runner
from tests.graphcore import ipu_fake
from tests.graphcore.conftest import REFUSED
from tests.refusals import assert_refused

pytestmark = pytest.mark.nightly

STAGES = dict(distribution_strategy="ipu", num_accumulation_steps=8, train_batch_size=16)
STAGES |= dict(pipeline_stages="emb+pos / hid / hid / mlm+nsp", device_mapping="0,1,2,0")
FEWER_STAGES = dict(distribution_strategy="ipu", num_accumulation_steps=6, train_batch_size=12)
FEWER_STAGES |= dict(pipeline_stages="emb+pos / hid*2 / mlm+nsp", device_mapping="0,1,0")
LOSSES = ("loss", "mlm_loss", "nsp_loss", "mlm_accuracy", "nsp_accuracy")
DROPOUT = dict(hidden_dropout_prob=0.2, attention_probs_dropout_prob=0.1)


@pytest.fixture(name="configured")
def fixture_configured(make_config, tmp_path):
    """Returns a function that builds the configuration of a run in a folder of its own."""

    def configured(name: str = "ipu", model: dict | None = None, **settings):
        defaults = dict(stop_steps=4, steps_per_loop=2, checkpoint_every_steps=2, **STAGES)
        return make_config(model, model_dir=str(tmp_path / name), **{**defaults, **settings})

    return configured


def run_on_fake(config, ipus: int = 8, **machine):
    with ipu_fake.installed(ipus=ipus, **machine) as fake:
        return ipu_run.run(config, ["train.py"]), fake


def test_an_epoch_is_once_through_the_records(configured, record_files):
    files = record_files(files=2, records=20)
    counted = dict(num_steps_per_epoch=0, stop_steps=None, num_train_epochs=2)
    config = configured(input_files=files, use_synthetic_data=False, **counted)
    assert run_on_fake(config)[0] == 0
    assert read_result(config.model_dir)["step"] == 2 * (40 // 16)


def on_one_device(config, **settings):
    values = json.loads(config_lib.to_json(config))
    values |= {name: field.default for name, field in config_lib.FIELDS.items() if "ipu" in field.backends}
    own = dict(distribution_strategy="one_device", model_dir=config.model_dir + "-cpu")
    config = config_lib.build_config([("test", {**values, **own, **settings})])
    with mock.patch.object(pretraining, "encoder_options", whole_last_block):
        return runner.run(config, TASKS[config.task]), config


def whole_last_block(config) -> dict:
    """Returns the options of an encoder whose last block is as IPUs compute it, masks of dropout too."""
    return {**config_lib.encoder_options(config), "narrow": False}


def interrupted_after(calls: int):
    """Returns a context in which runs get SIGTERM behind so many calls of the IPUs."""
    make_training, left = program.make_training, iter(range(calls - 1, -100, -1))

    def making(*arguments):
        call = make_training(*arguments)

        def interrupted():
            sums = call()
            if next(left) == 0:
                os.kill(os.getpid(), signal.SIGTERM)
                time.sleep(0.3)
            return sums

        return interrupted

    return mock.patch.object(program, "make_training", making)


def lines(config) -> list[dict]:
    return read_metrics(config.model_dir)


def assert_same_lines(found, expected):
    for name in ("step", "samples"):
        assert [line[name] for line in found] == [line[name] for line in expected]
    for one, other in zip(found, expected):
        np.testing.assert_allclose(
            [one[name] for name in LOSSES], [other[name] for name in LOSSES], rtol=2e-5, atol=1e-6
        )


# ------------------------------------------------------------------------------------------------------------
# Equal to one device


@pytest.mark.parametrize(
    ("model", "settings"),
    [
        ({}, dict(replicas=2, device_iterations=2, replicated_tensor_sharding=True)),
        (DROPOUT, dict(optimizer_type="adamw", clip_scope="none", pipeline_schedule="sequential")),
        pytest.param(
            dict(block_type="groupbert", hidden_act="gelu"),
            dict(loss_scale="128", loss_normalization="local", recompute="block", **FEWER_STAGES),
            marks=pytest.mark.slow,
        ),
    ],
    ids=["replicas", "dropout", "groupbert"],
)
def test_it_trains_as_one_device(configured, model, settings):
    config = configured(model=model, **settings)
    code, fake = run_on_fake(config)
    assert code == 0 and fake.compiled[-1].replicas == config.ipu.replicas
    _, own = on_one_device(config)
    assert_same_lines(lines(config), lines(own))
    found = read_result(config.model_dir)
    samples = 4 * config.train_batch_size
    assert (found["status"], found["step"], found["samples"]) == ("finished", 4, samples)
    assert found["checkpoint"] == os.path.join(config.model_dir, "ckpt-4")
    assert found["sequences_per_sec"] > 0 and found["wall_secs"] > 0


def test_packed_rows_are_counted_in_sequences_and_read_on(configured, packed_files):
    config = configured(input_files=packed_files, replicas=2)
    assert run_on_fake(config)[0] == 0
    _, own = on_one_device(config)
    assert_same_lines(lines(config), lines(own))
    assert lines(config)[-1]["samples"] > 4 * config.train_batch_size


# ------------------------------------------------------------------------------------------------------------
# Going on


@pytest.mark.slow
def test_it_goes_on_after_a_signal_and_on_another_device(configured, record_files):
    files = record_files(records=30)
    config, whole = configured(input_files=files), configured("whole", input_files=files)
    assert run_on_fake(whole)[0] == 0
    with interrupted_after(1):
        assert run_on_fake(config)[0] == 128 + signal.SIGTERM
    found = read_result(config.model_dir)
    assert (found["status"], found["step"]) == ("interrupted", 1) and found["checkpoint"].endswith("ckpt-1")
    assert run_on_fake(config)[0] == 0
    assert_same_lines(lines(config), lines(whole))

    longer = {"stop_steps": 6, "model_dir": whole.model_dir}
    found, own = on_one_device(whole, **longer)
    assert found.step == 6 and [line["step"] for line in lines(own)] == [2, 4, 6]
    uninterrupted = configured("longer", input_files=files, stop_steps=6)
    assert run_on_fake(uninterrupted)[0] == 0
    assert_same_lines(lines(own), lines(uninterrupted))


@pytest.mark.slow
def test_a_run_that_is_over_is_a_record(configured, record_files):
    files = record_files(records=30)
    config = configured(input_files=files)
    assert run_on_fake(config)[0] == 0
    names = ("config.json", "command.txt", "result.json", "metrics.jsonl")
    before = [open(f"{config.model_dir}/{name}", "rb").read() for name in names]
    assert run_on_fake(config)[0] == 0
    with pytest.raises(ConfigError, match="^learning_rate .* does not fit the run"):
        run_on_fake(configured(input_files=files, learning_rate=0.5))
    assert [open(f"{config.model_dir}/{name}", "rb").read() for name in names] == before
    assert run_on_fake(configured(input_files=files, learning_rate=0.5, overwrite=True))[0] == 0
    assert open(f"{config.model_dir}.1/result.json", "rb").read() == before[2]


def test_initial_weights_come_from_a_checkpoint_by_names(configured):
    first = configured("first", stop_steps=2)
    assert run_on_fake(first)[0] == 0
    second = configured("second", stop_steps=2, init_checkpoint=os.path.join(first.model_dir, "ckpt-2"))
    assert run_on_fake(second)[0] == 0
    assert lines(second)[0]["loss"] < lines(first)[0]["loss"]
    other = configured("other", model=dict(hidden_size=16), init_checkpoint=second.init_checkpoint)
    with pytest.raises(ConfigError, match=r"ckpt-2 does not fit the model\. of another shape"):
        run_on_fake(other)
    with pytest.raises(ConfigError, match="not a name-based checkpoint"):
        run_on_fake(configured("none", init_checkpoint=first.model_dir + "/nothing"))


def test_a_loss_that_is_not_finite_ends_the_run(configured, monkeypatch):
    make_training = program.make_training

    def diverging(*arguments):
        call = make_training(*arguments)
        return lambda: call() * np.nan

    monkeypatch.setattr(program, "make_training", diverging)
    config = configured(checkpoint_every_steps=4)
    assert run_on_fake(config)[0] == 3
    found = read_result(config.model_dir)
    assert found["status"] == "failed" and "not finite" in found["reason"] and found["checkpoint"] is None


# ------------------------------------------------------------------------------------------------------------
# Only compiling, and what is refused


def test_compiling_for_ipus_that_are_not_here_trains_nothing(configured, tmp_path, capsys, monkeypatch):
    config = configured(compile_only=True, executable_cache_path=str(tmp_path / "cache"))
    monkeypatch.setenv(devices.FLAGS, "--executable_cache_path=" + config.ipu.executable_cache_path)
    code, fake = run_on_fake(config)
    assert code == 0 and len(fake.compiled) == 1
    assert fake.config.device_connection.version == "ipu2"
    assert "compiled in" in capsys.readouterr().out
    assert not os.path.exists(config.model_dir)


def test_settings_that_do_not_go_together_are_one_line(configured):
    """Those that the configuration refuses, and those that do not fit the model, the data or the IPUs."""
    assert_refused(lambda settings: run_on_fake(configured(**settings)), REFUSED["pre-training"])
    with pytest.raises(ConfigError, match="does not fit into its IPUs .*--recompute=block"):
        run_on_fake(configured(), bytes_per_ipu=20_000)


# ------------------------------------------------------------------------------------------------------------
# Commands


def test_a_planned_configuration_is_what_the_other_command_takes(configured, tmp_path):
    config = configured(stop_steps=2)
    values, path = json.loads(config_lib.to_json(config)), tmp_path / "asked.json"
    path.write_text(json.dumps(values), encoding="utf-8")
    planned = tmp_path / "planned.json"
    assert train.main([f"--config={path}", "--plan", "--plan_device=ipu-mk2", f"--plan_file={planned}"]) == 0
    with ipu_fake.installed(ipus=4):
        assert command.main([str(planned)]) == 0
    assert read_result(config.model_dir)["step"] == 2
    assert json.loads((pathlib.Path(config.model_dir) / "config.json").read_text(encoding="utf-8")) == values
    command_line = (pathlib.Path(config.model_dir) / "command.txt").read_text(encoding="utf-8")
    assert command_line == f"python -m official.graphcore {planned}\n"
