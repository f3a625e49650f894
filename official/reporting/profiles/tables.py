"""Tables of a profile: times by kind and part, and the memory of a step."""

from __future__ import annotations

import collections
import csv
import dataclasses
import io
import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from official.io.writing import replace_file
from official.reporting.profiles.trace import (
    BACKWARD,
    DATA,
    FORWARD,
    OPTIMIZER,
    Allocation,
    Operation,
    Place,
    Places,
    Trace,
    bare,
    split,
)

# -----------------------------------------------------------------------------------------------------------
# Memory


@dataclasses.dataclass
class PartMemory:
    """Memory of one part of a step.

    Attributes:
      held: bytes that it has taken and that were in use at the peak.
      most_held: most of them at any time.
      peak: most bytes in use, by all, when it took some.
    """

    held: int = 0
    most_held: int = 0
    peak: int = 0


@dataclasses.dataclass
class Memory:
    """The memory of one allocator while the profiler looked.

    Attributes:
      allocator: its name; GPU_0_bfc is that of the first GPU.
      peak: most bytes in use at once.
      resident: of these, bytes that were taken before: weights, slots, batches.
      running: what took memory at the peak.
      parts: what was taken meanwhile, by place.
    """

    allocator: str
    peak: int
    resident: int
    running: Place
    parts: dict[Place, PartMemory]


def memories(trace: Trace, places: Places) -> list[Memory]:
    """Returns the memory of each allocator, the largest first; none where nothing was told."""
    by_allocator: dict[str, list[Allocation]] = collections.defaultdict(list)
    for each in trace.allocations:
        by_allocator[each.allocator].append(each)
    found = [_memory(name, events, places) for name, events in by_allocator.items()]
    return sorted((each for each in found if each.peak), key=lambda each: -each.peak)


def _memory(allocator: str, events: list[Allocation], places: Places) -> Memory:
    """Goes through the events twice: the first time finds the peak."""
    top = max(range(len(events)), key=lambda number: events[number].in_use)
    parts: dict[Place, PartMemory] = collections.defaultdict(PartMemory)
    holding: collections.Counter[Place] = collections.Counter()
    live: dict[int, tuple[Place, int]] = {}  # by address
    resident = 0
    for number, event in enumerate(events):
        place = places.of(event.node, event.run)
        _follow(event, place, live, holding)
        if not event.is_freed:
            part = parts[place]
            part.most_held = max(part.most_held, holding[place])
            part.peak = max(part.peak, event.in_use)
        if number == top:
            resident = _note_held(event, holding, parts)
    running = places.of(events[top].node, events[top].run)
    return Memory(allocator, events[top].in_use, resident, running, dict(parts))


def _follow(
    event: Allocation, place: Place, live: dict[int, tuple[Place, int]], holding: collections.Counter[Place]
) -> None:
    """Adds what was taken to its place, and takes away what was given back. What was taken before the
    profiler looked is nobody's."""
    if not event.is_freed:
        live[event.address] = (place, event.bytes)
        holding[place] += event.bytes
    elif event.address in live:
        owner, size = live.pop(event.address)
        holding[owner] -= size


def _note_held(event: Allocation, holding: collections.Counter[Place], parts: dict[Place, PartMemory]) -> int:
    """Notes what each part holds at the peak, and returns the bytes that none of them does."""
    for place, size in holding.items():
        parts[place].held = size
    return max(0, event.in_use - sum(holding.values()))


# -----------------------------------------------------------------------------------------------------------
# Times


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


# -----------------------------------------------------------------------------------------------------------
# Tables


TIMES, OPERATIONS, MEMORY = "profile.json", "profile_operations.csv", "profile_memory.json"
_MOST_OPERATIONS = 100  # of profile.json; the other file has all

Table = Mapping[Key, tuple[float, float]]


def write_times(model_dir: str, head: dict, table: Table) -> None:
    """Writes the tables of times. Args: head: what stands before them in profile.json; table: of
    `times.add_up`."""
    total = sum(time for time, _ in table.values())
    rows = [_row(key, time, count, total) for key, (time, count) in table.items()]
    found = {
        **head,
        "busy_ms_per_step": total,
        "kinds": _grouped(table, lambda key: {"kind": key.kind}, total),
        "parts": _grouped(table, lambda key: {"part": key.part, "pass": key.passes}, total),
        "types": _grouped(table, lambda key: {"type": key.type}, total),
        "operations": rows[:_MOST_OPERATIONS],
    }
    replace_file(os.path.join(model_dir, OPERATIONS), _csv(rows))
    replace_file(os.path.join(model_dir, TIMES), json.dumps(found, indent=2) + "\n")


def _row(key: Key, time: float, count: float, total: float) -> dict:
    names = {"kind": key.kind, "part": key.part, "pass": key.passes, "name": key.name, "type": key.type}
    return names | _numbers(time, count, total)


def _numbers(time: float, count: float, total: float) -> dict:
    return {"ms_per_step": time, "count_per_step": count, "share": time / total if total else 0.0}


def _grouped(table: Table, names: Callable[[Key], dict], total: float) -> list[dict]:
    groups = by(table, lambda key: tuple(names(key).items()))
    return [{**dict(group), **_numbers(time, count, total)} for group, (time, count) in groups.items()]


def _csv(rows: Sequence[dict]) -> str:
    text = io.StringIO()
    if rows:
        writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    return text.getvalue()


def write_memory(
    model_dir: str, head: dict, found: Sequence[Memory], variables: Mapping[str, tuple[int, int]]
) -> None:
    """Writes the table of memory.

    Args:
      model_dir: folder of the run.
      head: what stands before it.
      found: memory of each allocator, the largest first.
      variables: {stage: (bytes of its weights, bytes of what the optimizer keeps of them)}, in order.
    """
    record = {
        **head,
        "variables": [
            {"part": part, "weights_bytes": weights, "slots_bytes": slots}
            for part, (weights, slots) in variables.items()
        ],
        "allocators": [_allocator(memory, list(variables)) for memory in found],
    }
    replace_file(os.path.join(model_dir, MEMORY), json.dumps(record, indent=2) + "\n")


def _allocator(memory: Memory, stages: Sequence[str]) -> dict:
    order = [Place(stage, passes) for stage in stages for passes in (FORWARD, BACKWARD)]
    others = sorted(place for place in memory.parts if place not in order)
    return {
        "allocator": memory.allocator,
        "peak_bytes": memory.peak,
        "running_at_peak": {"part": memory.running.part, "pass": memory.running.passes},
        "resident_bytes": memory.resident,
        "parts": [_part(place, memory.parts[place]) for place in [*order, *others] if place in memory.parts],
    }


def _part(place: Place, part: PartMemory) -> dict:
    return {
        "part": place.part,
        "pass": place.passes,
        "held_at_peak_bytes": part.held,
        "most_held_bytes": part.most_held,
        "peak_while_running_bytes": part.peak,
    }
