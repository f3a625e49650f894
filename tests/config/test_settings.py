"""The table of settings: a row is all there is to a setting, and the configuration has its type."""

import dataclasses
import json
import shutil
import subprocess
import sys
import typing

import pytest

from official.config import FIELDS, REMOVED, SECTIONS, Config, ConfigError, build_config, replaced, to_json
from official.config.backends import BACKENDS
from official.config.checks import check_rows
from official.config.setting import Section, setting
from official.config.table import upgraded
from official.config.values import DEVICE_BYTES
from tests.conftest import ROOT

# Validation demands them, or fills them in: whoever reads a configuration need not ask.
KNOWN_THOUGH_UNSET = {
    "model_dir",
    "num_steps_per_epoch",
    "warmup_steps",
    "clip_scope",
    "loss_normalization",
}


def test_the_configuration_has_every_setting_once_with_its_type():
    types = typing.get_type_hints(Config)
    rows = [field for section in SECTIONS for field in section.fields]
    assert all(name in FIELDS["plan_device"].help for name in DEVICE_BYTES)
    assert len(rows) == len(FIELDS) and set(types) == {*FIELDS, "model"}
    for field in rows:
        may_be_unset = field.default is None and field.name not in KNOWN_THOUGH_UNSET
        assert types[field.name] == (field.type | None if may_be_unset else field.type), field.name
        assert field.default is None or type(field.default) is field.type, field.name
        assert field.help.endswith("."), field.name
        assert set(field.backends) <= set(BACKENDS) and set(field.tasks) <= set(FIELDS["task"].choices)


def test_settings_are_read_by_name_and_never_set():
    config = Config(seed=3)
    assert config["seed"] == config.seed == 3 and config["train_batch_size"] == 32
    with pytest.raises(KeyError):
        config["sed"]
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.seed = 4
    assert replaced(config, seed=4) == Config(seed=4) != config


# Uses a new setting in all ways: its flag, --help, a saved configuration, what it refuses, and resuming.
MADE_UP = """
import json
from official import config as config_lib
from official.cli import flags

def refused(*arguments):
    try:
        flags.parse([*good, *arguments])
    except config_lib.ConfigError as error:
        return str(error)

good = ["--model_dir=m", "--use_synthetic_data", "--bert_config_file=FILE"]
config = flags.parse([*good, "--made_up=0.25", "--distribution_strategy=one_device"])
saved = json.loads(config_lib.to_json(config))
assert config.made_up == saved["made_up"] == 0.25 and config_lib.build_config([("x", saved)]) == config
assert flags.parse(good).made_up == 0.5
assert "above the maximum of 1" in refused("--made_up=2")
assert "needs --distribution_strategy=one_device, received mirrored" in refused("--made_up=0.25")
assert "needs --task=pretrain" in refused("--made_up=0.25", "--task=squad")
assert config_lib.FIELDS["made_up"].changes_evaluation(config)
try:
    flags.parse(["--help"])
except flags.HelpRequested as text:
    assert "--made_up  (float; 0.5)" in str(text) and "Shows how it is done." in str(text)
"""
HELP = """      made_up: Shows how it is done.
      do_train:"""
ROW = """    made_up: float = setting(
        0.5,
        minimum=0,
        maximum=1,
        tasks=("pretrain",),
        backends=("one_device",),
        evaluation=True,
    )
    do_train: bool"""


def test_a_new_setting_is_one_row_in_one_file(tmp_path):
    (tmp_path / "official").mkdir()
    for path in (ROOT / "official").iterdir():
        if path.name != "config":
            (tmp_path / "official" / path.name).symlink_to(path)
    shutil.copytree(ROOT / "official" / "config", tmp_path / "official" / "config")
    path = tmp_path / "official" / "config" / "settings" / "run.py"
    path.write_text(path.read_text().replace("    do_train: bool", ROW, 1))
    path.write_text(path.read_text().replace("      do_train:", HELP, 1))
    code = MADE_UP.replace("FILE", str(ROOT / "configs/models/bert_tiny.json"))
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env={"PYTHONPATH": str(tmp_path)}, check=True)


def test_a_misspelled_trait_of_a_row_is_found_at_once():
    @dataclasses.dataclass(frozen=True)
    class Rows:
        one: "int" = setting(1, minimun=0)

    with pytest.raises(TypeError, match="minimun"):
        Section("Made up", Rows, evaluation=False)


def test_settings_of_earlier_versions_are_left_out_at_their_defaults_and_refused_else(make_config):
    saved = json.loads(to_json(make_config()))
    defaults = {name: default for name, (default, _) in REMOVED.items()}
    assert build_config([("saved", {**saved, **defaults})]) == build_config([("saved", saved)])
    for name, (default, now) in REMOVED.items():
        if "--kernels" in now:  # read, whatever it holds
            continue
        other = not default if isinstance(default, bool) else "x"
        with pytest.raises(ConfigError, match=f"{name}=.* is of earlier versions") as error:
            build_config([("flags", {name: other})])
        assert now in str(error.value)


def test_saved_settings_that_others_say_now_are_read_as_those(make_config):
    saved = json.loads(to_json(make_config(optimizer_type="lamb", num_steps_per_epoch=None)))
    saved |= {
        **dict.fromkeys(("learning_rate", "warmup_steps", "num_steps_per_epoch")),
        "wandb": True,
        "wandb_name": "n",
        "loss_normalization": "local",
    }
    rates = '{"0": 0.1}'
    failures = []
    for before, now in (
        ({"lr_schedule": "custom", "lr_schedule_by_step": rates}, {"lr_schedule": rates}),
        ({"wandb_project": "p"}, {"wandb_name": "p/n"}),
        ({"lamb_variant": "nvlamb", "clip_scope": "none"}, {"clip_scope": "global", "clip_norm": 1.0}),
        ({"lamb_variant": "mpclip", "clip_scope": "global"}, {"clip_scope": "replicas", "clip_norm": 1.0}),
        ({"gradient_reduction": "sum"}, {"loss_normalization": "local_sum"}),
        ({"count_records": True}, {"num_steps_per_epoch": 0}),
        (
            {"coordinator_address": "a:1", "distribution_strategy": "multi_worker_mirrored"},
            {"worker_hosts": "a:1"},
        ),
        ({"peer_stall_secs": 5, "narrow_last_block": False}, {}),
    ):
        layer = upgraded({**saved, **before})
        if any(layer[name] != value for name, value in now.items()) or set(layer) - {*FIELDS, "model"}:
            failures.append((before, now))
        if "coordinator_address" not in before:  # nobody says here how many processes there are
            build_config([("saved", {**saved, **before})])
    assert not failures, failures


def test_a_back_end_refuses_what_only_others_know():
    config = Config(distribution_strategy="one_device", tpu="x")
    with pytest.raises(ConfigError, match="tpu=x needs --distribution_strategy=tpu, received one_device."):
        check_rows(config)
