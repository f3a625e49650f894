"""Memory of a step: the parts that hold it at the peak, and its height while each part of the step runs."""

from __future__ import annotations

import collections
import dataclasses

from official.reporting.profiles.places import Place, Places
from official.reporting.profiles.trace import Allocation, Trace


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
