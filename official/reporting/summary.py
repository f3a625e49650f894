"""The table of a model's parameters, with repeated layers folded into one row."""

import itertools
import math
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple


class ParameterRow(NamedTuple):
    """Tensors of one shape whose names differ in a few places only.

    Attributes:
      name: the names with braces as in a shell, e.g. layer_{0..23}/attention/self/{query,key,value}/kernel.
      shape: shape of each tensor.
      tensors: number of tensors.
      parameters: number of parameters in all of them.
      bytes: size of all of them.
    """

    name: str
    shape: tuple[int, ...]
    tensors: int
    parameters: int
    bytes: int


def parameter_table(variables: Iterable[Any]) -> list[ParameterRow]:
    """Groups variables into rows: first over numbers in the names, then over words, if the rest is equal.

    Args:
      variables: objects with `.name` (`bert/encoder/layer_0/output/dense/kernel:0`) and `.shape`; those
        without a `.dtype` count as float32.

    Returns:
      Rows in the order of their first variables.
    """
    # {(shape, bytes per parameter, the alternatives of each part of the name): number of tensors}
    groups: dict[tuple, int] = {}
    for variable in variables:
        parts = tuple((part,) for part in variable.name.split(":")[0].split("/"))
        shape, dtype = tuple(int(size) for size in variable.shape), getattr(variable, "dtype", None)
        group = (shape, getattr(dtype, "size", 4), parts)
        groups[group] = groups.get(group, 0) + 1
    depth = max((len(parts) for _, _, parts in groups), default=0)
    # First parts merge that differ only in their last number, layer_0 and layer_1; then any others.
    by_number = lambda alternatives: _split_number(alternatives[0])[0]
    by_word = lambda alternatives: alternatives if len(alternatives) > 1 else None
    for same_place in (by_number, by_word):
        for place in range(depth):
            groups = _merge(groups, place, same_place)
    rows = []
    for (shape, item_bytes, parts), tensors in groups.items():
        parameters = tensors * math.prod(shape)
        name = "/".join(map(_format_part, parts))
        rows.append(ParameterRow(name, shape, tensors, parameters, parameters * item_bytes))
    return rows


def format_parameter_table(rows: Sequence[ParameterRow]) -> str:
    """Returns the rows and their totals as aligned lines of text."""
    cells = [(row.name, str(list(row.shape)), f"x{row.tensors}", f"{row.parameters:,}") for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells)]
    aligned = (str.ljust, str.ljust, str.rjust, str.rjust)
    lines = ["  ".join(align(*each) for align, each in zip(aligned, zip(line, widths))) for line in cells]
    return "\n".join([*lines, format_total(rows)])


def format_total(rows: Sequence[ParameterRow]) -> str:
    """Returns e.g. '398 tensors, 336,226,108 parameters, 1,344.9 MB'."""
    tensors, parameters, size = (
        sum(getattr(row, name) for row in rows) for name in ("tensors", "parameters", "bytes")
    )
    return f"{tensors:,} tensors, {parameters:,} parameters, {size / 1e6:,.1f} MB"


def _merge(groups: dict[tuple, int], place: int, same_place: Callable[[tuple[str, ...]], Any]) -> dict:
    """Merges groups that differ only in their part at `place`, if `same_place` of these parts is equal."""
    merged: dict[tuple, tuple] = {}
    for (shape, item_bytes, parts), tensors in groups.items():
        here = parts[place : place + 1]
        key = (shape, item_bytes, parts[:place], parts[place + 1 :], *map(same_place, here))
        first, known = merged.get(key, (parts, 0))
        both = tuple(tuple(dict.fromkeys(old + new)) for old, new in zip(first[place : place + 1], here))
        merged[key] = (*first[:place], *both, *first[place + 1 :]), known + tensors
    return {(*key[:2], parts): tensors for key, (parts, tensors) in merged.items()}


def _split_number(part: str) -> tuple[str, int | None]:
    """Returns the part with its last number blanked, and the number: layer_12 -> (layer_{}, 12)."""
    match = re.fullmatch(r"(.*?)(\d+)(\D*)", part)
    return (f"{match[1]}{{}}{match[3]}", int(match[2])) if match else (part, None)


def _format_part(alternatives: tuple[str, ...]) -> str:
    if len(alternatives) == 1:
        return alternatives[0]
    stems, numbers = zip(*map(_split_number, alternatives))
    if len(set(stems)) == 1 and None not in numbers:
        return stems[0].replace("{}", "{" + _format_numbers(sorted(numbers)) + "}")
    return "{" + ",".join(alternatives) + "}"


def _format_numbers(numbers: list[int]) -> str:
    """Returns ranges of sorted numbers: [0, 1, 2, 5] -> 0..2,5."""
    runs = itertools.groupby(enumerate(numbers), lambda pair: pair[1] - pair[0])
    ranges = [[number for _, number in run] for _, run in runs]
    return ",".join(f"{each[0]}..{each[-1]}" if len(each) > 1 else str(each[0]) for each in ranges)
