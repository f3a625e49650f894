"""Keys of the configuration files of Graphcore's programs, and their meanings here; configuration_keys.yml
has the tables."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import re
from collections.abc import Callable, Mapping
from typing import Any

import yaml

from official.config.model import KINDS
from official.config.setting import IPU, PIPELINED
from official.config.table import FIELDS
from official.config.values import written_stages
from official.graphcore.rules import OPTIONS as IPU_OPTIONS
from official.io.errors import ConfigError

# -----------------------------------------------------------------------------------------------------------
# Rows, and readers of values


# Target of a value: one of this project's settings, `model.KEY` for a size of the model, or, with @, a term
# of `official.graphcore.configuration_terms`, which combines several terms into settings.
IPU_ONLY = "IPU only"
NOT_NEEDED, UNLIKE_THEIRS = "not needed", "unlike their program"


@dataclasses.dataclass(frozen=True)
class Row:
    """Meaning of a key of a Graphcore file.

    Attributes:
      to: a setting's name, one of the options of IPUs, `model.KEY`, `@TERM`, IPU_ONLY or NOT_NEEDED.
      read: function from their value to the one here; None: unchanged.
      why: explanation for NOT_NEEDED, for notes.
      same: for NOT_NEEDED, the values with which their program does the same as this one; (): any.
      backends: for a term, the values of --distribution_strategy that support it; empty: all. For others the
        key is IPU_ONLY. For a setting, its row in the table of settings decides.
    """

    to: str
    read: Callable[[Any], Any] | None = None
    why: str = ""
    same: tuple[Any, ...] = ()
    backends: tuple[str, ...] = ()

    def note(self, value: Any) -> str:
        """Returns the note on a value of a key that is NOT_NEEDED."""
        allowed = (None, "", *self.same)
        is_same = not self.same or value in allowed or str(value).lower() in map(str.lower, map(str, allowed))
        return f"{NOT_NEEDED if is_same else UNLIKE_THEIRS}: {self.why}"

    def is_known_to(self, backend: str) -> bool:
        """Returns whether a back end supports the key."""
        known = self.backends or (IPU if self.to in IPU_OPTIONS else ())
        known = known or (FIELDS[self.to].backends if self.to in FIELDS else ())
        return not known or backend in known


Table = dict[str, Row]


def may_lack_value(row: Row) -> bool:
    """Returns whether an option may have no value on a command line."""
    return row.read in (truth, truth_or_unsaid, inverse) or row.to in (IPU_ONLY, NOT_NEEDED)


# ------------------------------------------------------------------------------------------------------------
# Readers of values


def number(value: Any) -> float | int:
    """Returns a number, also from a string: YAML reads 5e-5 as a string.

    Raises:
      ConfigError: if it is not a number.
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
    if not 0 < found < 2**63:
        raise ConfigError("expected a whole number of 1 or more, below 2^63")
    return found


def text(value: Any) -> str:
    """Returns a string, such as a path. Raises ConfigError for another value."""
    if not isinstance(value, str):
        raise ConfigError("expected a text")
    return value


def truth(value: Any) -> bool:
    """Returns a boolean, also from a string. Raises ConfigError for another value."""
    word = str(value).lower()
    if word not in ("true", "false"):
        raise ConfigError("expected true or false")
    return word == "true"


def truth_or_unsaid(value: Any) -> bool | None:
    """Returns True; None for false."""
    return truth(value) or None


def inverse(value: Any) -> bool:
    """Returns the negated boolean."""
    return not truth(value)


def files(value: Any) -> str | None:
    """Returns paths, a list or a string, as a comma-separated list; None for none."""
    return ",".join(map(str, value)) if isinstance(value, list) else value or None


def as_json(value: Any) -> str | None:
    """Returns an object as the JSON of a setting; a string, such as a file's path, is unchanged."""
    return value if value is None or isinstance(value, str) else json.dumps(value)


def counts(value: Any) -> list[int]:
    """Returns whole numbers of 0 or more, from a list or a comma-separated string. Raises ConfigError for
    others."""
    parts = value.strip("[]").split(",") if isinstance(value, str) else value
    found = [whole(each) for each in parts] if isinstance(parts, list) else []
    if not found or min(found) < 0:
        raise ConfigError("expected whole numbers of 0 or more")
    return found


def devices(value: Any) -> str:
    """Returns the devices of stages, a list or a string, in the form of the setting: 0,1,2,3,0."""
    return ",".join(map(str, counts(value)))


def stages(value: Any) -> str:
    """Returns a list of lists of names, or a string, in the form of the setting: emb+pos / hid*12 /
    mlm+nsp."""
    if isinstance(value, str):
        return value
    if not isinstance(value, list) or not all(isinstance(stage, list) for stage in value):
        raise ConfigError("expected a list of lists of names")
    return written_stages([[text(name) for name in stage] for stage in value])


def placement(value: Any) -> list[tuple[int, int]]:
    """Returns (device, blocks) of each stage, from [[device, [blocks of attention, of feed-forward]], ...].

    Raises:
      ConfigError: for another value.
    """
    try:
        return [(whole(device), whole(attention)) for device, (attention, _) in value]
    except (TypeError, ValueError):
        raise ConfigError("expected [[stage, [attention layers, feed-forward layers]], ...]") from None


def powers(value: Any) -> list[float]:
    """Returns [power of the warm-up, power of the decay] from a list, or [power of both] from a number."""
    if isinstance(value, str):
        value = value.replace(",", " ").split()
    found = [number(each) for each in value] if isinstance(value, list) else [number(value)]
    if len(found) not in (1, 2):
        raise ConfigError("expected a number, or two: of the warm-up and of the decay")
    return found


def of(names: dict[str, Any]) -> Callable[[Any], Any]:
    """Returns a reader of one of several names, case-insensitively."""

    def read(value: Any) -> Any:
        found = {name.lower(): ours for name, ours in names.items()}
        if str(value).lower() not in found:
            raise ConfigError(f"expected one of {', '.join(names)}")
        return found[str(value).lower()]

    return read


def loss_scale(value: Any) -> str | None:
    """Returns a loss scale as the string of the setting."""
    return None if value is None else f"{number(value):g}"


def shares(value: Any) -> str:
    """Returns a number, a list, or a string of numbers in the form of the setting: 0.1,0.2."""
    if isinstance(value, str):
        value = value.replace(",", " ").split()
    found = value if isinstance(value, list) else [value]
    if not found:
        raise ConfigError("expected a number, or one for each stage")
    return ",".join(f"{number(each):g}" for each in found)


def half_or_float(value: Any) -> str:
    return "half" if truth(value) else "float"


def lower(value: Any) -> str | None:
    return str(value).lower() or None


with open(os.path.join(os.path.dirname(__file__), "configuration_keys.yml"), encoding="utf-8") as _file:
    _TABLES = yaml.load(_file, getattr(yaml, "CSafeLoader", yaml.SafeLoader))  # in C: ten times as fast
partials = of({"half": "half", "float": "float"})
scheduler = of({name: name for name in IPU_OPTIONS["scheduler"].choices})
schedule = of({name.capitalize(): name for name in ("grouped", "interleaved", "sequential")})
_READERS = {
    name: globals()[reader] for reader, names in _TABLES.pop("readers").items() for name in names.split()
}
_READERS_OF_TYPES: dict[Any, Callable[[Any], Any]] = {int: whole, float: number, bool: truth}
_BACKENDS = {
    "@recomputation": ("ipu",),
    **dict.fromkeys("@pipeline_schedule @layers_per_ipu @encoder_start @placement".split(), PIPELINED),
}


def _row(ours: str, read: Callable[[Any], Any] | None = None) -> Row:
    """Returns the row of a key by its meaning here. A value is converted by its reader, otherwise by that of
    the term or setting, or of its type; otherwise it is unchanged."""
    kind = KINDS[ours[len("model.") :]] if ours.startswith("model.") else None
    if ours in FIELDS or ours in IPU_OPTIONS:
        kind = {**IPU_OPTIONS, **FIELDS}[ours].type
    read = read or _READERS.get(ours) or _READERS_OF_TYPES.get(kind)
    return Row(ours, read, backends=_BACKENDS.get(ours, ()))


# -----------------------------------------------------------------------------------------------------------
# Kinds of files


@dataclasses.dataclass(frozen=True)
class Family:
    """A kind of files.

    Attributes:
      name: name of the kind, also of its folder in configs/graphcore/.
      label: display name.
      table: rows of its keys, including older spellings.
      defaults: {key: value} for missing keys.
      nested: keys whose values hold keys; {"a": {"b": 1}} is the key a.b.
      older: {key of an earlier version of its program: current key}.
    """

    name: str
    label: str
    table: Table
    defaults: Mapping[str, Any]
    nested: tuple[str, ...]
    older: Mapping[str, str]


def _table(rows: Mapping[str, Any]) -> Table:
    """Returns the rows of a kind of files from configuration_keys.yml; see there."""
    found: Table = {}
    for pair in rows["keys"].split():
        theirs, _, ours = pair.rpartition("=")
        ours, _, reader = ours.partition(":")
        found[theirs or ours] = _row(ours, globals()[reader] if reader else None)
    for key in rows.get("model", "").split():
        found[rows.get("prefix", "") + key] = _row(f"model.{key}")
    found |= {key: _row(ours, of(names)) for key, (ours, names) in rows.get("choices", {}).items()}
    for why, keys in rows.get("not_needed", {}).items():
        found |= {key: Row(NOT_NEEDED, why=why) for key in keys.split()}
    for why, values in rows.get("unlike", {}).items():
        found |= {key: Row(NOT_NEEDED, why=why, same=(value,)) for key, value in values.items()}
    for key, value in rows.get("only", {}).items():
        found[key] = dataclasses.replace(found[key], read=of({value: value}))
    return found | {key: Row(IPU_ONLY) for key in rows["ipu_only"].split()}


def _families(tables: Mapping[str, Any]) -> dict[str, Family]:
    found: dict[str, Family] = {}
    for name, rows in tables.items():
        table, defaults = _table(rows), rows.get("defaults", {})
        nested, older = tuple(rows.get("nested", ())), rows.get("older", {})
        if "like" in rows:
            base = found[rows["like"]]
            table, defaults, older = {**base.table, **table}, base.defaults, base.older
            nested = base.nested + nested
        table = {**{old: table[new] for old, new in older.items()}, **table}
        found[name] = Family(name, rows["label"], table, defaults, nested, older)
    return found


_UNREAD = _TABLES.pop("unread")
# {term: settings that it affects}
SHOWN = {term: fields.split() for fields, terms in _TABLES.pop("shown").items() for term in terms.split()}
# Command-line options of all their programs.
OPTIONS = _table(_TABLES.pop("options"))
FAMILIES = _families(_TABLES)


def check_program(values: Mapping[str, Any], source: str) -> None:
    """Raises ConfigError for a file of an unsupported program of Graphcore's.

    Args:
      values: values of the file, nested keys with dots.
      source: name of the file in messages.
    """
    for program, pattern, meant in _UNREAD:
        for key, value in values.items():
            if re.fullmatch(rf"(.*\.)?({pattern})", key) and (not meant or value in meant):
                raise ConfigError(
                    f"{source}: {key}={value!r} belongs to Graphcore's {program}, whose files are not"
                    " supported. Supported are those of TensorFlow 1, TensorFlow 2, PyTorch, MLPerf 2.0 and"
                    " PopART with pipelines."
                )
