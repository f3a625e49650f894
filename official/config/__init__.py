"""The configuration of a run: every setting is defined once, and all are validated together. No TensorFlow.

A setting is one row of a class in `settings/`; its help is a line of that class's docstring. The row defines
its flag, type, default and range, its key in config.json, and the tasks, back ends and evaluations that
depend on it. `Config` has all settings as attributes.
"""

from __future__ import annotations

import dataclasses
import json
from typing import Any

from official.config.checks import check_schedule, validate
from official.config.derived import (
    BUDGET_PARTS,
    LOG_STYLES,
    MAX_STEPS,
    UNKNOWN_WORD,
    batch_stages,
    checkpoint_every_steps,
    compiles_first,
    decay_length,
    dynamic_loss_scale,
    encoder_options,
    first_step,
    follows_graphcore_log,
    initial_loss_scale,
    kernels_of,
    knows_steps,
    max_predictions,
    pack_depth,
    schedule_steps,
    slots_of,
    steps_per_call,
    steps_per_loop,
    synthetic_sequences_per_pack,
    train_steps,
    whole_batches,
    with_eval_rule,
    with_generated_data,
    with_gradient_scopes,
    with_init_folder,
    with_own_rate,
    with_steps,
    words_of_records,
)
from official.config.model import BertConfig, bert_config_from_dict, checked_sizes
from official.config.setting import OWN_DATA
from official.config.table import FIELDS, REMOVED, SECTIONS, Config, replaced, upgraded
from official.io.errors import ConfigError, nearest_multiples, suggest
from official.io.json_files import read_json
from official.io.model_folder import with_model_type


def read_settings(path: str) -> dict[str, Any]:
    """Reads the JSON file of --config: settings, or a --plan_file, which has them under `configuration`.
    Raises ConfigError."""
    values = read_json(path, "config", once=True)
    settings = values.get("configuration", values)
    if not isinstance(settings, dict):
        raise ConfigError(f"--config={path}: configuration={settings!r}, expected an object of settings.")
    return settings


def build_config(layers: list[tuple[str, dict]]) -> Config:
    """Builds and validates the configuration of a run.

    Args:
      layers: (source, {name: value}) pairs, applied in order over the defaults; later ones win. `source` is
        named in messages. The key `model` may hold the keys of a bert_config.json, as in a saved config.json
        does.

    Raises:
      ConfigError: for an unknown name, a value of the wrong type or range, or settings that exclude each
        other.
    """
    values: dict[str, Any] = {}
    of_run = False
    for source, given in layers:
        is_saved = len(given) > len(FIELDS) // 2  # the config.json of a run has all settings
        layer = upgraded(given) if is_saved else given
        of_run = of_run or is_saved
        for name, value in layer.items():
            if name == "model":
                if not isinstance(value, dict):
                    raise ConfigError(f"{source}: model={value!r}, expected the keys of a bert_config.json.")
                values["model"] = bert_config_from_dict(value, f"{source}: model")
            elif name in REMOVED:
                default, instead = REMOVED[name]
                if value not in (None, default):
                    raise ConfigError(f"{source}: {name}={value}: this setting was removed. {instead}.")
            elif name not in FIELDS:
                raise ConfigError(f"{source}: unknown setting {name!r}{suggest(name, FIELDS)}.")
            else:
                if name == "ipu_options" and value and values.get(name):
                    value = f"{values[name]} {value}"  # the last value of a name counts
                values[name] = FIELDS[name].checked(value, source)
                path = values[name]
                if name == "bert_config_file" and path and "model" not in layer:
                    content = with_model_type(read_json(path, name, any_number=True), path)
                    values["model"] = bert_config_from_dict(content, path)
    if values.get("task") in OWN_DATA:  # needs scores to select the best weights
        random = values.get("use_synthetic_data") or values.get("synthetic_input")
        values.setdefault("do_eval", not random)
    config = with_generated_data(Config(**values))
    if not of_run:  # not for a complete configuration, since its folder may have changed
        config = with_own_rate(with_init_folder(config, values), values)
    config = with_gradient_scopes(with_eval_rule(config))
    if config.task == "pretrain":
        config = with_steps(config)
    validate(config)
    return config


def with_data(config: Config, train_samples: int | None, sequences_per_row: float | None = None) -> Config:
    """Returns the configuration with the steps that follow from the number of sequences to train on.

    Args:
      config: a validated configuration.
      train_samples: sequences of the training set; None if the steps do not depend on it.
      sequences_per_row: sequences per row of that set if rows are packed; None: every row is a sequence.

    Raises:
      ConfigError: if the steps are still unknown, or --stop_steps exceeds them.
    """
    # Without training the schedule is not used.
    complete = (
        with_steps(config, train_samples, sequences_per_row) if config.do_train else with_steps(config, 1)
    )
    if not knows_steps(complete):
        raise ConfigError(
            "num_steps_per_epoch is not set, and cannot be derived without training data. Give"
            " --num_steps_per_epoch=N."
        )
    check_schedule(complete)
    return complete


def to_dict(config: Config) -> dict[str, Any]:
    """Returns the whole configuration, as in config.json."""
    return {**{name: config[name] for name in FIELDS}, "model": dataclasses.asdict(config.model)}


def to_json(config: Config) -> str:
    """Returns the whole configuration as JSON; `--config=FILE` reads it back."""
    return json.dumps(to_dict(config), indent=2) + "\n"
