"""Time of a step: its operations by kind, by part of the step, and one by one."""

from __future__ import annotations

import collections
import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from official.reporting.profiles.places import DATA, OPTIMIZER, Place, Places, bare, split
from official.reporting.profiles.trace import Operation, Trace

PRODUCTS, ATTENTION, BLOCKS, UPDATE, NORM, CASTS, INPUT, EXCHANGE, REST = (
    "matrix products",
    "attention's products",
    "compiled blocks",
    "optimizer",
    "gradient norm",
    "casts",
    "data",
    "copies between devices",
    "everything else",
)
CALL = "PartitionedCall"
_EXCHANGE = re.compile(r"Collective|Nccl|^_?(Host)?(Send|Recv)$|MEMCPY|Memcpy")
_PRODUCT = re.compile(r"MatMul|gemm", re.IGNORECASE)
_LAYER = re.compile(r"layer_\d+")


class Key(NamedTuple):
    """Key that operations are added up by: those of one name in all layers share it.

    Attributes:
      part, passes: as in `Place`; all layers are layer_{}.
      name: in its graph, less the part's.
      type: of the operation.
      kind: one of the names above.
    """

    part: str
    passes: str
    name: str
    type: str
    kind: str


def kind_of(place: Place, kind: str) -> str:
    """Returns the kind of an operation.

    Args:
      place: where it is in a step.
      kind: its type, such as _MklMatMul.
    """
    if place.part == OPTIMIZER or kind.startswith("ResourceApply"):
        return UPDATE
    if place.part == DATA or kind.startswith("Iterator"):
        return INPUT
    for found, name in ((kind.endswith(CALL), BLOCKS), ("BatchMatMul" in kind, ATTENTION)):
        if found:
            return name
    if _PRODUCT.search(kind):
        return PRODUCTS
    if _EXCHANGE.search(kind):
        return EXCHANGE
    known = {"L2Loss": NORM, "BertGlobalNorm": NORM, "Cast": CASTS, "_MklCast": CASTS}
    return known.get(kind, BLOCKS if kind.startswith("Bert") else REST)  # operations of our own are blocks


def add_up(trace: Trace, places: Places, steps: int) -> dict[Key, tuple[float, float]]:
    """Returns {key: (milliseconds, number of operations)} of a step, the most time first.

    Where a GPU computed, its times are meant, and those of the CPU that the input pipeline took.
    """
    on_gpu = any(operation.on_gpu for operation in trace.operations)
    times: collections.Counter[Key] = collections.Counter()
    counts: collections.Counter[Key] = collections.Counter()
    for operation in filter(places.counts, trace.operations):
        place = places.of_operation(operation)
        if operation.on_gpu == on_gpu or place.part == DATA:
            key = _key(operation, place)
            times[key] += operation.picoseconds
            counts[key] += 1
    return {key: (time / 1e9 / steps, counts[key] / steps) for key, time in times.most_common()}


def _key(operation: Operation, place: Place) -> Key:
    part = "layer_{}" if _LAYER.fullmatch(place.part) else place.part
    name = split(bare(operation.node), {place.part})[1]
    return Key(part, place.passes, name, operation.kind, kind_of(place, operation.kind))


def by(
    table: Mapping[Key, tuple[float, float]], group: Callable[[Key], Any]
) -> dict[Any, tuple[float, float]]:
    """Returns the rows added up, {group: (milliseconds, number of operations)}, the most time first."""
    sums: dict[Any, tuple[float, float]] = {}
    for key, (time, count) in table.items():
        known = sums.get(group(key), (0.0, 0.0))
        sums[group(key)] = (known[0] + time, known[1] + count)
    return dict(sorted(sums.items(), key=lambda each: -each[1][0]))
