"""The table of settings: a row is all there is to a setting, and the configuration has its type."""

import dataclasses
import json
import typing

import pytest

from official.config import FIELDS, REMOVED, SECTIONS, Config, ConfigError, build_config, replaced, to_json
from official.config.backends import BACKENDS
from official.config.setting import Section, setting
from official.config.table import upgraded
from official.config.values import DEVICE_BYTES

# Validation demands them, or fills them in: whoever reads a configuration need not ask.
KNOWN_THOUGH_UNSET = set("model_dir num_steps_per_epoch warmup_steps clip_scope loss_normalization".split())


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


def test_a_truth_is_no_number():
    for name in ("num_accumulation_steps", "seed", "learning_rate"):
        with pytest.raises(ConfigError, match=f"^c.json: {name}=True, expected a value of type"):
            build_config([("c.json", {name: True})])


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
        with pytest.raises(ConfigError, match=f"{name}=.* this setting was removed") as error:
            build_config([("flags", {name: other})])
        assert now in str(error.value)


def test_saved_settings_that_others_say_now_are_read_as_those(make_config):
    saved = json.loads(to_json(make_config(optimizer_type="lamb", num_steps_per_epoch=None)))
    saved |= dict.fromkeys(("learning_rate", "warmup_steps", "num_steps_per_epoch"))
    saved |= {"wandb": True, "wandb_name": "n", "loss_normalization": "local"}
    rates, several = '{"0": 0.1}', {"distribution_strategy": "multi_worker_mirrored"}
    for before, now in (
        ({"lr_schedule": "custom", "lr_schedule_by_step": rates}, {"lr_schedule": rates}),
        ({"wandb_project": "p"}, {"wandb_name": "p/n"}),
        ({"lamb_variant": "nvlamb", "clip_scope": "none"}, {"clip_scope": "global", "clip_norm": 1.0}),
        ({"lamb_variant": "mpclip", "clip_scope": "global"}, {"clip_scope": "replicas", "clip_norm": 1.0}),
        ({"gradient_reduction": "sum"}, {"loss_normalization": "local_sum"}),
        ({"count_records": True}, {"num_steps_per_epoch": 0}),
        ({"coordinator_address": "a:1", **several}, {"worker_hosts": "a:1"}),
        ({"peer_stall_secs": 5, "narrow_last_block": False}, {}),
    ):
        layer = upgraded({**saved, **before})
        assert now.items() <= layer.items() and layer.keys() <= {*FIELDS, "model"}, before
        if "coordinator_address" not in before:  # nobody says here how many processes there are
            build_config([("saved", {**saved, **before})])
