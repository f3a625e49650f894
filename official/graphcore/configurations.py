"""Configurations of Graphcore's BERT programs, and options of their commands, as settings of this project.

A file is recognised by its keys, which are translated one by one (`configuration_keys`); combinations of keys
become settings (`configuration_terms`). No TensorFlow, no flags.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from typing import Any

from official.config.table import FIELDS
from official.graphcore import configuration_terms, rules
from official.graphcore.configuration_keys import (
    FAMILIES,
    IPU_ONLY,
    NOT_NEEDED,
    OPTIONS,
    SHOWN,
    Family,
    Row,
    Table,
)
from official.io.errors import ConfigError, suggest
from official.reporting.page import flat

# -----------------------------------------------------------------------------------------------------------
# Keys


LEAVES = ("packing_factor", "lr_schedule_by_step", "loss_scaling_by_step")  # objects that are values


def family_of(values: Mapping[str, Any]) -> Family | None:
    """Returns the family of a file, the one with most of its keys; None for one of this project.

    Args:
      values: content of the file.
    """
    keys = set(flat(values, LEAVES))
    ours = sum(key.split(".")[0] in FIELDS or key.startswith("model.") for key in keys)
    known = {name: len(keys & set(family.table)) for name, family in FAMILIES.items()}
    best = max(known, key=known.__getitem__)  # ties: the first one, since packed has all keys of popart
    return FAMILIES[best] if known[best] > ours else None


def check_known(values: Mapping[str, Any], family: Family, source: str) -> None:
    """Raises ConfigError for unknown keys, each with the nearest known one, and for a value in place of
    nested keys."""
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


def table_for(family: str | None) -> Table:
    """Returns all options for a configuration of a family; None: for one of this project."""
    return {**(FAMILIES[family].table if family else {}), **OPTIONS}


# -----------------------------------------------------------------------------------------------------------
# Translation


@dataclasses.dataclass(frozen=True)
class Line:
    """Translation of one key.

    Attributes:
      key: their key; with -- in front for an option of the command line.
      value: their value.
      fields: settings here that it affects; empty for none.
      note: IPU_ONLY, or the reason for no fields.
    """

    key: str
    value: Any
    fields: tuple[str, ...]
    note: str = ""


@dataclasses.dataclass(frozen=True)
class Translation:
    """A translated configuration.

    Attributes:
      settings: {setting: value}, including `model`.
      ipu_options: {name: value} of the options in the setting of this name.
      lines: the translation of each key, in order.
      added: names of the settings that do not follow from single keys.
      notes: lines about values that differ from theirs.
    """

    settings: dict[str, Any]
    ipu_options: dict[str, Any]
    lines: list[Line]
    added: list[str]
    notes: list[str]

    @property
    def ipu_only(self) -> list[str]:
        """The keys that only apply to IPUs."""
        return [line.key for line in self.lines if line.note == IPU_ONLY]


def translate(
    values: Mapping[str, Any],
    family: Family | None,
    source: str,
    options: Mapping[str, Any],
    base: Mapping[str, Any],
) -> Translation:
    """Translates a configuration, and options that override it.

    Args:
      values: content of the file, nested or flat; empty without one.
      family: kind of the file.
      source: name of the file in messages.
      options: {name: value} of command-line options that are not settings here.
      base: current values of all settings, including those of the command line; `name` is the name of the
        configuration, for the run's folder, `half` the value of --dtype for their 16-bit numbers.

    Raises:
      ConfigError: for unknown keys, each named with the nearest known one, and values of another type.
    """
    read: dict[str, Any] = {}
    lines: list[Line] = []
    table, backend = table_for(family.name if family else None), base["distribution_strategy"]
    if family:
        keys = flat(values, LEAVES)
        check_known(keys, family, source)
        read = _read(family.defaults, family.table, backend, source, [])
        read |= _read(keys, family.table, backend, source, lines)
        stages = keys.get("ipu_config.pipeline_stages") or keys.get("pipeline_stages")
        if isinstance(stages, list) and stages and isinstance(stages[-1], list):
            read["@stages"] = stages[-1]  # names of the last stage: a head identifies the task
    over = _read(options, table, backend, "command line", lines, prefix="--")
    lengths = {"@steps", "@epochs", "@samples"}
    if {"@steps", "@epochs"} <= set(over):
        both = [name for name in options if table[name].to in ("@steps", "@epochs")]
        raise ConfigError(f"--{' and --'.join(both)} both set the length of the run. Drop one of the two.")
    replaced: set[str] = {"@global"} if "@accumulation" in over else set()
    replaced |= lengths if lengths & set(over) else set()
    merged = {name: value for name, value in read.items() if name not in replaced} | over
    settings = {name: value for name, value in merged.items() if not name.startswith("@")}
    terms = {name[1:]: value for name, value in merged.items() if name.startswith("@")}
    terms["name"] = base.get("name")
    base = {**base, **dataclasses.asdict(rules.read(base["ipu_options"]))}
    result = configuration_terms.settle(settings, terms, base, family.name if family else None)
    ipu_options = {name: result.pop(name) for name in rules.OPTIONS if name in result}
    if ipu_options:
        result["ipu_options"] = rules.written(ipu_options)
    shown = {name for line in lines for name in line.fields}
    added = [name for name in result if name not in shown and name not in ("model", "ipu_options")]
    added += [name for name in ipu_options if name not in shown]
    return Translation(result, ipu_options, lines, added, terms.get("notes", []))


def _read(
    values: Mapping[str, Any],
    table: Mapping[str, Row],
    backend: str,
    source: str,
    lines: list[Line],
    prefix: str = "",
) -> dict[str, Any]:
    """Returns {target: value}, and adds a line per key. Null and empty values count as unset.

    Raises:
      ConfigError: for an invalid value, and for two keys with the same meaning and different values.
    """
    found: dict[str, Any] = {}
    said_by: dict[str, str] = {}
    for key, value in values.items():
        row = table[key]
        is_setting = row.to not in (IPU_ONLY, NOT_NEEDED) and row.is_known_to(backend)
        fields: list[str] = []
        if is_setting:
            fields = SHOWN[row.to[1:]] if row.to.startswith("@") else [row.to]
        note = "" if is_setting else row.note(value) if row.to == NOT_NEEDED else IPU_ONLY
        lines.append(Line(prefix + key, value, tuple(fields), note))
        if value is None or value == "" or note == IPU_ONLY:
            continue
        received, converted = f"{source}: {key}={value!r}", _expanded(value)
        try:
            converted = row.read(converted) if row.read else converted
        except ConfigError as error:
            raise ConfigError(f"{received}, {error}.") from None
        if not is_setting:
            continue
        other = said_by.setdefault(row.to, key)
        if found.setdefault(row.to, converted) != converted:
            raise ConfigError(f"{received}, but {other}={values[other]!r} means the same. Drop one of them.")
    return found


def _expanded(value: Any) -> Any:
    """Expands environment variables in the strings of a value, if they are set."""
    if isinstance(value, list):
        return [_expanded(each) for each in value]
    return os.path.expandvars(value) if isinstance(value, str) else value
