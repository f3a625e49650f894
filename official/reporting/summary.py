"""The table of a model's parameters, with repeated layers folded into one row."""

import math
import re
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

_LAYER = re.compile(r"(?<=/layer_)\d+")


class ParameterRow(NamedTuple):
    """Tensors of one shape whose names differ only in the number of the layer.

    Attributes:
      name: the names with braces as in a shell, e.g. layer_{0..23}/attention/self/query/kernel.
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
    """Groups variables of one shape and type whose names differ only in the number of the layer.

    Args:
      variables: objects with `.name` (`bert/encoder/layer_0/output/dense/kernel:0`) and `.shape`; those
        without a `.dtype` count as float32.

    Returns:
      Rows in the order of their first variables.
    """
    groups: dict[tuple, list[str]] = {}  # {(name without the layer, shape, bytes per parameter): layers}
    for variable in variables:
        name, dtype = variable.name.split(":")[0], getattr(variable, "dtype", None)
        shape = tuple(int(size) for size in variable.shape)
        key = (_LAYER.sub("{}", name), shape, getattr(dtype, "size", 4))
        groups.setdefault(key, []).extend(_LAYER.findall(name))
    rows = []
    for (name, shape, item_bytes), layers in groups.items():
        tensors = max(1, len(layers))
        parameters = tensors * math.prod(shape)
        name = name.replace("{}", _numbers(layers))
        rows.append(ParameterRow(name, shape, tensors, parameters, parameters * item_bytes))
    return rows


def _numbers(layers: list[str]) -> str:
    """Returns the numbers of layers in braces, those of a range as {0..23}; a single one alone."""
    if len(layers) < 2:
        return "".join(layers)
    first, last = int(layers[0]), int(layers[-1])
    return f"{{{first}..{last}}}" if last - first == len(layers) - 1 else f"{{{','.join(layers)}}}"


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
