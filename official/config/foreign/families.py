"""The kinds of files that Graphcore's programs read, and how one is told by what it holds."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from official.config.foreign import popart, pytorch, tf1, tf2
from official.config.foreign.older import with_older
from official.config.foreign.rows import Table
from official.config.table import FIELDS
from official.io.errors import ConfigError, suggest


@dataclasses.dataclass(frozen=True)
class Family:
    """A kind of files.

    Attributes:
      name: also of its folder in configs/graphcore/.
      label: for people.
      table: of its keys, in older spellings, too.
      defaults: {key: value} where a file says nothing.
      nested: keys whose values hold keys; {"a": {"b": 1}} is the key a.b.
    """

    name: str
    label: str
    table: Table
    defaults: Mapping[str, Any]
    nested: tuple[str, ...] = ()


_ROWS = (
    Family("pytorch", "PyTorch", with_older("pytorch", pytorch.ROWS), pytorch.DEFAULTS),
    Family("tf1", "TensorFlow 1", with_older("tf1", tf1.ROWS), tf1.DEFAULTS),
    Family("tf2", "TensorFlow 2", with_older("tf2", tf2.ROWS), tf2.DEFAULTS, tf2.NESTED),
    Family("popart", "PopART", with_older("popart", popart.ROWS), popart.DEFAULTS, popart.NESTED),
    Family(
        "packed",
        "packed PopART (MLPerf 2.0)",
        with_older("packed", popart.PACKED_ROWS),
        popart.DEFAULTS,
        popart.NESTED + popart.PACKED_NESTED,
    ),
)
# In the order in which a bare name is looked for: first the one of the Kubernetes tutorial.
FAMILIES = {row.name: row for row in _ROWS}
_LEAVES = ("packing_factor", "lr_schedule_by_step", "loss_scaling_by_step")  # objects that are values


def flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Returns nested keys with dots: {"a": {"b": 1}} is {"a.b": 1}."""
    found: dict[str, Any] = {}
    for key, value in values.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping) and key not in _LEAVES:
            found |= flat(value, name + ".")
        else:
            found[name] = value
    return found


def family_of(values: Mapping[str, Any]) -> Family | None:
    """Returns the kind of a file: the one that knows most of its keys; None where it is ours.

    Args:
      values: of the file.
    """
    keys = set(flat(values))
    ours = sum(key.split(".")[0] in FIELDS or key.startswith("model.") for key in keys)
    known = {name: len(keys & set(family.table)) for name, family in FAMILIES.items()}
    best = max(
        known, key=known.__getitem__
    )  # of several that know as many the first: packed knows all of popart
    if known[best] <= ours:
        return None
    return FAMILIES[best]


def check_known(values: Mapping[str, Any], family: Family, source: str) -> None:
    """Raises ConfigError that names all unknown keys, each with the nearest known one, and for a value where
    there have to be keys."""
    for key in family.nested:
        if key in values:
            raise ConfigError(f"{source}: {key}={values[key]!r}, expected an object of keys.")
    unknown = [key for key in values if key not in family.table]
    if unknown:
        named = ", ".join(f"{key!r}{suggest(key, family.table)}" for key in unknown)
        raise ConfigError(
            f"{source}: {named} {'is' if len(unknown) == 1 else 'are'} no key of Graphcore's {family.label}"
            " files.",
            {"unknown keys": unknown},
        )
