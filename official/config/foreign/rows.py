"""Rows of the tables of other people's keys: the meaning of each key here."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable
from typing import Any

from official.config.model import KINDS
from official.config.table import FIELDS
from official.config.values import written_stages
from official.io.errors import ConfigError

# Where a value goes: a setting of ours, `model.KEY` of the model's sizes, or, with @, a term of
# `official.config.foreign.settle`, which makes settings of several terms.
IPU_ONLY = "IPU only"
NOT_NEEDED = "not needed"
_LARGEST = 2**63
# Name of a schedule of theirs -> ours, on IPUs.
SCHEDULES = {"Grouped": "grouped", "Interleaved": "interleaved", "Sequential": "sequential"}


@dataclasses.dataclass(frozen=True)
class Row:
    """Meaning of a foreign key.

    Attributes:
      to: a setting's name, `model.KEY`, `@TERM`, IPU_ONLY or NOT_NEEDED.
      read: their value -> ours; None: as it is.
      why: of NOT_NEEDED, for people.
      backends: of a term, the values of --distribution_strategy that know it; empty: all. Elsewhere the key
        is IPU_ONLY. Of a setting its own row in the table of settings says so.
    """

    to: str
    read: Callable[[Any], Any] | None = None
    why: str = ""
    backends: tuple[str, ...] = ()

    def is_known_to(self, backend: str) -> bool:
        """Tells whether a back end knows what the key means."""
        known = self.backends or (FIELDS[self.to].backends if self.to in FIELDS else ())
        return not known or backend in known


Table = dict[str, Row]


def ipu_only(keys: str) -> Table:
    """Returns rows of keys that place work and memory on IPUs, and mean nothing elsewhere."""
    return {key: Row(IPU_ONLY) for key in keys.split()}


def not_needed(why: str, keys: str) -> Table:
    """Returns rows of keys that need no setting here, for the same reason."""
    return {key: Row(NOT_NEEDED, why=why) for key in keys.split()}


def same(keys: str) -> Table:
    """Returns rows of keys that are settings of ours, too."""
    return {key: Row(key) for key in keys.split()}


def of_model(keys: str, prefix: str = "") -> Table:
    """Returns rows of keys of a model's sizes, that are ours, too; in their files behind a prefix."""
    readers: dict[Any, Callable[[Any], Any]] = {int: whole, float: number, bool: truth}
    return {f"{prefix}{key}": Row(f"model.{key}", readers.get(KINDS[key])) for key in keys.split()}


def may_lack_value(row: Row) -> bool:
    """Tells whether an option may stand on a command line without a value."""
    return row.read in (truth, truth_or_unsaid, inverse) or row.to in (IPU_ONLY, NOT_NEEDED)


# ------------------------------------------------------------------------------------------------------------
# Readers of values


def number(value: Any) -> float | int:
    """Returns a number that may be a text: YAML reads 5e-5 as one.

    Raises:
      ConfigError: for what is no number.
    """
    if isinstance(value, str):
        try:
            value = float(value)
        except ValueError:
            value = None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) < math.inf:
        raise ConfigError("expected a number")
    return value


def whole(value: Any) -> int:
    """Returns a whole number. Raises ConfigError for another value."""
    found = number(value)
    if found != int(found):
        raise ConfigError("expected a whole number")
    return int(found)


def count(value: Any) -> int:
    """Returns a whole number above 0. Raises ConfigError for another value."""
    found = whole(value)
    if not 0 < found < _LARGEST:
        raise ConfigError("expected a whole number of 1 or more, below 2^63")
    return found


def text(value: Any) -> str:
    """Returns a text, such as a path. Raises ConfigError for another value."""
    if not isinstance(value, str):
        raise ConfigError("expected a text")
    return value


def truth(value: Any) -> bool:
    """Returns a truth that may be a text. Raises ConfigError for another value."""
    word = str(value).lower()
    if word not in ("true", "false"):
        raise ConfigError("expected true or false")
    return word == "true"


def truth_or_unsaid(value: Any) -> bool | None:
    """Returns True, or None for what is off."""
    return truth(value) or None


def inverse(value: Any) -> bool:
    """Returns the opposite of a truth."""
    return not truth(value)


def files(value: Any) -> str | None:
    """Returns paths, a list or a text, as our comma-separated list; None for none."""
    return ",".join(map(str, value)) if isinstance(value, list) else value or None


def as_json(value: Any) -> str | None:
    """Returns an object as the JSON of a setting; a text, such as a file's path, stays."""
    return value if value is None or isinstance(value, str) else json.dumps(value)


def counts(value: Any) -> list[int]:
    """Returns whole numbers of 0 or more, of a list or a text with commas. Raises ConfigError for others."""
    parts = value.strip("[]").split(",") if isinstance(value, str) else value
    found = [whole(each) for each in parts] if isinstance(parts, list) else []
    if not found or min(found) < 0:
        raise ConfigError("expected whole numbers of 0 or more")
    return found


def devices(value: Any) -> str:
    """Returns the devices of stages, a list or a text, as our setting has them: 0,1,2,3,0."""
    return ",".join(map(str, counts(value)))


def stages(value: Any) -> str:
    """Returns a list of lists of names, or a text, as our setting has it: emb+pos / hid*12 / mlm+nsp."""
    if isinstance(value, str):
        return value
    if not isinstance(value, list) or not all(isinstance(stage, list) for stage in value):
        raise ConfigError("expected a list of lists of names")
    return written_stages([[text(name) for name in stage] for stage in value])


def placement(value: Any) -> list[tuple[int, int]]:
    """Returns (device, blocks) of each stage, of [[device, [blocks of attention, of feed-forward]], ...].

    Raises:
      ConfigError: for another value.
    """
    try:
        return [(whole(device), whole(attention)) for device, (attention, _) in value]
    except (TypeError, ValueError):
        raise ConfigError("expected [[stage, [attention layers, feed-forward layers]], ...]") from None


def powers(value: Any) -> list[float]:
    """Returns [power of the warm-up, power of the decay] of a list, or [power of both] of a number."""
    if isinstance(value, str):
        value = value.replace(",", " ").split()
    found = [number(each) for each in value] if isinstance(value, list) else [number(value)]
    if len(found) not in (1, 2):
        raise ConfigError("expected a number, or two: of the warm-up and of the decay")
    return found


def of(names: dict[str, Any]) -> Callable[[Any], Any]:
    """Returns a reader of one of several names, in any case."""

    def read(value: Any) -> Any:
        found = {name.lower(): ours for name, ours in names.items()}
        if str(value).lower() not in found:
            raise ConfigError(f"expected one of {', '.join(names)}")
        return found[str(value).lower()]

    return read


def loss_scale(value: Any) -> str | None:
    """Returns a loss scale as our setting has it, a text."""
    return None if value is None else f"{number(value):g}"
