"""Rows of the table of settings, and validation of single values."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping
from typing import Any

from official.config.values import read_by_step
from official.io.errors import ConfigError, attribute_texts, check_arguments, suggest
from official.io.files import expanded, is_remote

PRETRAIN, SQUAD, GLUE, CLASSIFY, TAG = ("pretrain",), ("squad",), ("glue",), ("classify",), ("tag",)
EMBED = ("embed",)
LABELLED = (*CLASSIFY, *TAG)
OWN_DATA = (*LABELLED, *EMBED)
PREDICTING = (*SQUAD, *GLUE, *LABELLED)
FINE_TUNING = (*SQUAD, *GLUE, *OWN_DATA)
# Groups of back ends for the rows of settings.
WORKERS, TPU, IPU = ("multi_worker_mirrored",), ("tpu",), ("ipu",)
PIPELINED = ("pipeline", *IPU)
REPLICATED = ("one_device", "mirrored", *WORKERS)
TRACED = (*REPLICATED, "pipeline")  # their devices are those of this machine, with TensorFlow's profiler
TENSORFLOWS = (*TRACED, *TPU)
ALONE = ("one_device", "mirrored", "pipeline", *TPU, *IPU)  # one process
WHOLE = (*REPLICATED, *TPU, *IPU)  # a replica's gradients are on one device
# Effects of settings on training, see `Field.training`.
IDENTITY, RECIPE, LENGTH = "identity", "recipe", "length"
_TYPES: dict[str, type] = {"bool": bool, "int": int, "float": float, "str": str}


@dataclasses.dataclass(frozen=True)
class Field:
    """One setting.

    Attributes:
      name: name of the flag.
      type: bool, int, float or str.
      default: default value; None for unset.
      help: text for --help.
      choices: the allowed values of a string; empty: any.
      by_step: whether numbers by step are allowed, too, see `values.read_by_step`.
      minimum, maximum: range of a number.
      tasks: the tasks that use it; empty: all. Others refuse a value that is not the default.
      backends: the values of --distribution_strategy that use it; empty: all. Others refuse it likewise.
      needs: names of settings that must all be set; otherwise this one must be at its default.
      excludes: {name of an incompatible setting, or NAME=VALUE: reason}.
      only_with: (name of a setting, its values for which this one is used). With others, this one must be at
        its default, or off.
      evaluation: whether the result of an evaluation of the same weights depends on it, or a function of the
        configuration. A change invalidates earlier evaluations. None: the section's value.
      training: its effect on the weights, or a function of the configuration. IDENTITY: another value is
        another run, and a run that has begun refuses it. RECIPE: it may change until the run has ended.
        LENGTH: the length of the run, which a finished run may increase, but not decrease. None: no effect on
        the weights. Default: the section's value.
      files: whether it is a path of input files or folders, so that two spellings of one path are equal.
    """

    name: str
    type: type
    default: Any
    help: str
    choices: tuple[str, ...] = ()
    by_step: bool = False
    minimum: float | None = None
    maximum: float | None = None
    tasks: tuple[str, ...] = ()
    backends: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    excludes: Mapping[str, str] = dataclasses.field(default_factory=dict)
    only_with: tuple[str, tuple[str, ...]] | None = None
    evaluation: bool | Callable[[Any], bool] | None = None
    training: str | Callable[[Any], str | None] | None = None
    files: bool = False

    def part_in_training(self, config: Any) -> str | None:
        """Returns IDENTITY, RECIPE, LENGTH or None, for a run of this configuration."""
        return self.training(config) if callable(self.training) else self.training

    def is_same(self, one: Any, other: Any, folder: str = "") -> bool:
        """Returns whether two values are equivalent.

        Args:
          one: the earlier value.
          other: the current value.
          folder: the earlier working directory, for paths; unset: the current one.
        """
        if one == other or not self.files or one is None or other is None:
            return one == other
        paths = _resolved(other)
        return paths in (_resolved(one), _resolved(one, folder))

    def changes_evaluation(self, config: Any) -> bool:
        """Returns whether an evaluation of this configuration depends on the setting."""
        return self.evaluation(config) if callable(self.evaluation) else bool(self.evaluation)

    def checked(self, value: Any, source: str) -> Any:
        """Converts and checks a value; None, and "" for a setting that may be unset, become the default.

        Args:
          value: value from a flag or JSON.
          source: its source, for messages.

        Raises:
          ConfigError: for a value of the wrong type or range, or none of the choices.
        """
        if value is None or value == "" and self.default is None:
            return self.default
        shown = repr(str(value)[:100]) if isinstance(value, str) else value
        received = f"{source}: {self.name}={shown}"
        value = self._converted(value, received)
        if isinstance(value, str):
            check_arguments([value])  # JSON can contain surrogates
            value = expanded(value)
        if not isinstance(value, self.type) or isinstance(value, bool) and self.type is not bool:
            raise ConfigError(f"{received}, expected a value of type {self.type.__name__}.")
        self._check_range(value, received)
        return value

    def _converted(self, value: Any, received: str) -> Any:
        """Returns numbers in the type of the setting: 3.0 for an integer is 3, 5 for a string is "5"."""
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            return value
        if self.type is str:
            return str(value)
        if self.type not in (int, float):
            return value
        if not -(2**63) < value < 2**63:  # also false for NaN
            raise ConfigError(f"{received}, expected a finite number.")
        if self.type is int and value != int(value):
            raise ConfigError(f"{received}, expected an integer.")
        return self.type(value)

    def _check_range(self, value: Any, received: str) -> None:
        if self.by_step and read_by_step(value, self.name):
            return
        if self.choices and value not in self.choices:
            allowed = ", ".join(self.choices)
            allowed += ', and no values by step such as {"0": 1e-4}' if self.by_step else ""
            raise ConfigError(f"{received} is not one of {allowed}{suggest(value, self.choices)}.")
        if self.minimum is not None and value < self.minimum:
            raise ConfigError(f"{received} is below the minimum of {self.minimum}.")
        if self.maximum is not None and value > self.maximum:
            percent = ""
            if self.maximum == 1 and value <= 100:
                percent = f" Shares are fractions: {value / 100:g} for {value:g} percent."
            raise ConfigError(f"{received} is above the maximum of {self.maximum}.{percent}")


def setting(default: Any, **traits: Any) -> Any:
    """Returns a row of a section: the default value of an attribute of its dataclass.

    The attribute's name is the setting's, and its text in the dataclass's docstring is the help. Its
    annotation is the type in a validated configuration: `| None` where it may still be unset there, plain
    if validation requires it (model_dir) or fills it in (num_steps_per_epoch).

    Args:
      default: default value; None for unset.
      **traits: attributes of `Field`, from choices on.
    """
    return dataclasses.field(default=default, metadata=traits)


class Section:
    """A group of settings.

    Args:
      title: title in --help.
      rows: a dataclass whose attributes are `setting`s.
      evaluation: default of its rows. Sections on data and predictions use True, so that a forgotten trait
        costs an evaluation instead of a wrong result.
      training: likewise. Sections on data and updates use RECIPE, so that a changed setting is refused after
        the run.
    """

    def __init__(self, title: str, rows: type, evaluation: bool, training: str | None = None):
        self.title = title
        self.evaluation = evaluation
        own, texts = {"evaluation": evaluation, "training": training}, attribute_texts(rows.__doc__)
        # Annotations are strings in every version of Python, since all files of settings postpone them. Under
        # python -OO there is no help; commands, which show it, refuse that.
        self.fields = tuple(
            Field(
                row.name,
                _TYPES[str(row.type).partition(" | ")[0]],
                row.default,
                texts.get(row.name, ""),
                **{**own, **row.metadata},
            )
            for row in dataclasses.fields(rows)
        )


def _resolved(paths: str, folder: str = "") -> list[str]:
    """Returns the absolute paths of a comma-separated list, with links resolved."""
    parts = [part.strip() for part in paths.split(",")]
    return [part if is_remote(part) else os.path.realpath(os.path.join(folder, part)) for part in parts]
