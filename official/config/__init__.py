"""The configuration of a run: every setting defined once, validated as a whole, no TensorFlow.

`fields` is the only table of settings; the command-line flags (`official.cli.flags`), the defaults, the types, the help
text and the saved `config.json` all come from it.
"""

import dataclasses
import json

import ml_collections

from official.config.checks import check_schedule, validate
from official.config.derived import (
    checkpoint_every_steps,
    dynamic_loss_scale,
    encoder_options,
    fill_in_steps,
    initial_loss_scale,
    schedule_steps,
    train_steps,
)
from official.config.eval_rules import apply_eval_rule
from official.config.fields import FIELDS, SECTIONS, Field, Section
from official.config.model import BertConfig, bert_config_from_dict, checked_sizes
from official.io.errors import ConfigError, check_arguments, nearest_multiples, suggest
from official.io.json_files import read_json

__all__ = [
    "BertConfig",
    "ConfigError",
    "FIELDS",
    "Field",
    "SECTIONS",
    "Section",
    "bert_config_from_dict",
    "build_config",
    "check_settings",
    "checked_sizes",
    "checkpoint_every_steps",
    "default_config",
    "dynamic_loss_scale",
    "initial_loss_scale",
    "nearest_multiples",
    "read_json",
    "replaced",
    "schedule_steps",
    "suggest",
    "to_json",
    "train_steps",
    "validate",
    "with_data",
]


def default_config() -> ml_collections.ConfigDict:
    """Returns the configuration with every default, locked against unknown names."""
    config = ml_collections.ConfigDict(
        {name: field.default for name, field in FIELDS.items()}, convert_dict=False
    )
    config.model = None
    return config.lock()


def build_config(layers: list[tuple[str, dict]]) -> ml_collections.FrozenConfigDict:
    """Builds, validates and freezes the configuration of a run.

    Args:
      layers: (source, {name: value}) pairs, applied in order over the defaults; later ones win. `source` is
        named in messages. The key `model` may hold the keys of a bert_config.json, as a saved config.json
        does.

    Raises:
      ConfigError: for an unknown name, a value of the wrong type or range, or settings that exclude each
        other.
    """
    config = default_config()
    for source, values in layers:
        for name, value in values.items():
            if name == "model":
                if not isinstance(value, dict):
                    raise ConfigError(f"{source}: model={value!r}, expected the keys of a bert_config.json.")
                config.model = bert_config_from_dict(value, f"{source}: model")
            elif name not in FIELDS:
                raise ConfigError(f"{source}: unknown setting {name!r}{suggest(name, FIELDS)}.")
            else:
                config[name] = _checked_value(FIELDS[name], value, source)
                if name == "bert_config_file" and value and "model" not in values:
                    config.model = bert_config_from_dict(read_json(value, name), value)
    apply_eval_rule(config)
    if config.task == "pretrain":
        fill_in_steps(config)
    validate(config)
    return ml_collections.FrozenConfigDict(config)


def replaced(config, **values) -> ml_collections.FrozenConfigDict:
    """Returns a frozen configuration with some other values, which are not checked."""
    return ml_collections.FrozenConfigDict({**config, **values})


def with_data(config, train_samples: int | None) -> ml_collections.FrozenConfigDict:
    """Returns the configuration with the steps that follow from the number of sequences to train on.

    Args:
      config: a frozen configuration.
      train_samples: sequences of the training set; None where that says nothing about the steps.

    Raises:
      ConfigError: where the steps stay unknown, or --stop_steps is beyond them.
    """
    complete = ml_collections.ConfigDict(config)
    fill_in_steps(
        complete, train_samples if config.do_train else 1
    )  # without training the schedule is never asked
    if complete.num_steps_per_epoch is None:
        raise ConfigError(
            "num_steps_per_epoch is not set, and no training data says how many there are. Give"
            " --num_steps_per_epoch=N."
        )
    check_schedule(complete)
    return ml_collections.FrozenConfigDict(complete)


def check_settings(values: dict, source: str) -> None:
    """Checks values by themselves: types, ranges, choices. Names that are not known, of another version,
    pass. Raises ConfigError."""
    for name, value in values.items():
        if name in FIELDS:
            _checked_value(FIELDS[name], value, source)


def _checked_value(field: Field, value, source: str):
    if value is None or value == "" and field.default is None:
        return field.default
    received = (
        f"{source}: {field.name}={str(value)[:100]!r}"
        if isinstance(value, str)
        else f"{source}: {field.name}={value}"
    )
    if field.type in (int, float) and isinstance(value, (int, float)) and not isinstance(value, bool):
        if not -(2**63) < value < 2**63:  # false for NaN, too
            raise ConfigError(f"{received}, expected a finite number.")
        if field.type is int and value != int(value):
            raise ConfigError(f"{received}, expected an integer.")
        value = field.type(value)
    elif field.type is str and isinstance(value, (int, float)) and not isinstance(value, bool):
        value = str(value)
    if isinstance(value, str):
        check_arguments([value])  # JSON can spell half characters
    if not isinstance(value, field.type):
        raise ConfigError(f"{received}, expected a value of type {field.type.__name__}.")
    if field.choices and value not in field.choices:
        raise ConfigError(
            f"{received} is not one of {', '.join(field.choices)}{suggest(value, field.choices)}."
        )
    if field.minimum is not None and value < field.minimum:
        raise ConfigError(f"{received} is below the minimum of {field.minimum}.")
    if field.maximum is not None and value > field.maximum:
        percent = (
            f" Shares are fractions: {value / 100:g} for {value:g} percent."
            if field.maximum == 1 and value <= 100
            else ""
        )
        raise ConfigError(f"{received} is above the maximum of {field.maximum}.{percent}")
    return value


def to_json(config) -> str:
    """Returns the whole configuration as JSON; `--config=FILE` reads it back."""
    values = {name: config[name] for name in FIELDS}
    values["model"] = dataclasses.asdict(config.model)
    return json.dumps(values, indent=2) + "\n"
