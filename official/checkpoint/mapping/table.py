"""Tables of names: literal {canonical name: name in a format} with a `{layer}` slot, used both ways.

The canonical names are Google's TF1 names, which are this project's variable names, and for GroupBERT
Graphcore's. A value in a table is
  a name                    the same tensor under that name,
  Transposed(name)          the matrix with its axes swapped,
  None                      knowingly dropped: the format has no such tensor.
What is in no table is an error, on either side.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence

from official.checkpoint.mapping import tensors as tensors_lib
from official.checkpoint.mapping.tensors import Tensors


@dataclasses.dataclass(frozen=True)
class Transposed:
    """A matrix that the format stores with its axes swapped."""

    name: str


@dataclasses.dataclass
class Mapped:
    """Tensors under new names, and what did not get one.

    Attributes:
      tensors: {new name: tensor}.
      dropped: {old name: reason}, knowingly left out.
      unmatched: old names that no rule knows.
      added: {new name: reason}, made up because the source has no such tensor, e.g. a bias of zeros.
    """

    tensors: Tensors = dataclasses.field(default_factory=dict)
    dropped: dict[str, str] = dataclasses.field(default_factory=dict)
    unmatched: list[str] = dataclasses.field(default_factory=list)
    added: dict[str, str] = dataclasses.field(default_factory=dict)


Table = Mapping[str, str | Transposed | None]
_Rule = tuple[str | None, bool]  # the new name, None for none, and whether the axes are swapped


def from_canonical(table: Table, source: Tensors, reason: str) -> Mapped:
    """Renames canonical tensors. `reason` says why those with None are dropped."""
    return _rename([(canonical, _rule(value)) for canonical, value in table.items()], source, reason)


def to_canonical(table: Table, source: Tensors, dropped: dict[str, str]) -> Mapped:
    """Renames a format's tensors to canonical names. `dropped` is {pattern: reason} of names that only this
    format has."""
    rules = [(_rule(value), canonical) for canonical, value in table.items()]
    back = [(name, (canonical, transpose)) for (name, transpose), canonical in rules if name is not None]
    mapped = _rename(back, source, "")
    for name in list(mapped.unmatched):
        why = next((why for pattern, why in dropped.items() if re.fullmatch(pattern, name)), None)
        if why:
            mapped.unmatched.remove(name)
            mapped.dropped[name] = why
    return mapped


def _rule(value: str | Transposed | None) -> _Rule:
    return (value.name, True) if isinstance(value, Transposed) else (value, False)


def _rename(rules: Sequence[tuple[str, _Rule]], source: Tensors, reason: str) -> Mapped:
    exact = {pattern: rule for pattern, rule in rules if "{layer}" not in pattern}
    layered = {pattern.replace("{layer}", "*"): rule for pattern, rule in rules if "{layer}" in pattern}
    mapped = Mapped()
    for name, tensor in source.items():
        rule, layer = (exact[name], None) if name in exact else _find_layered(layered, name)
        if rule is None:
            mapped.unmatched.append(name)
        elif rule[0] is None:
            mapped.dropped[name] = reason
        else:
            new_name = rule[0] if layer is None else rule[0].replace("{layer}", layer)
            mapped.tensors[new_name] = tensors_lib.transposed(tensor) if rule[1] else tensor
    return mapped


def _find_layered(layered: dict[str, _Rule], name: str) -> tuple[_Rule | None, str | None]:
    """Returns the rule and the number of the layer: the first number in the name that makes it fit."""
    for match in re.finditer(r"\d+", name):
        rule = layered.get(name[: match.start()] + "*" + name[match.end() :])
        if rule is not None:
            return rule, match.group()
    return None, None


def with_slots(table: Table, slots: Mapping[str, str | None]) -> Table:
    """Adds the optimizer slots of every weight of a table, e.g. {"adam_m": "adam_m"}; the slots have the
    weights' shapes.

    Args:
      table: of weights.
      slots: {canonical suffix: suffix in the format or None}.
    """
    extended = dict(table)
    for canonical, value in table.items():
        for ours, theirs in slots.items():
            name, transpose = _rule(value)
            new = None if name is None or theirs is None else f"{name}/{theirs}"
            extended[f"{canonical}/{ours}"] = Transposed(new) if new and transpose else new
    return extended


def layers_of(tensors: Tensors) -> int:
    """Returns one more than the highest layer number in canonical names."""
    numbers = [
        int(match.group(1)) for name in tensors if (match := re.match(r"bert/encoder/layer_(\d+)/", name))
    ]
    return max(numbers, default=-1) + 1


def common_names(source: Tensors, common_name: Callable[[str], str]) -> tuple[dict[str, str], list[str]]:
    """Returns {name in a table: name in the file} for a format with several spellings, and names whose place
    another has taken.

    Args:
      source: {name in the file: tensor}; of two spellings, the first counts.
      common_name: gives the spelling of the table.
    """
    names, doubled = {}, []
    for name in source:
        common = common_name(name)
        if common in names:
            doubled.append(name)
        else:
            names[common] = name
    return names, doubled


def restore_names(mapped: Mapped, names: dict[str, str], doubled: list[str]) -> None:
    """Names what found no place as the file does, with what `common_names` gave."""
    mapped.dropped = {names[common]: reason for common, reason in mapped.dropped.items()}
    mapped.unmatched = [names[common] for common in mapped.unmatched] + doubled


def without(tensors: Tensors, rules: dict[str, str]) -> tuple[Tensors, dict[str, str]]:
    """Returns the tensors that no pattern of {pattern: reason} matches, and {name: reason} of the others."""
    dropped = {
        name: reason for name in tensors for pattern, reason in rules.items() if re.fullmatch(pattern, name)
    }
    return {name: tensor for name, tensor in tensors.items() if name not in dropped}, dropped
