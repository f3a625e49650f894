"""The files of a profile in the folder of a run: tables of times, as JSON and CSV, and of memory."""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Callable, Mapping, Sequence

from official.io.writing import replace_file
from official.reporting.profiles import times
from official.reporting.profiles.memory import Memory, PartMemory
from official.reporting.profiles.places import BACKWARD, FORWARD, Place
from official.reporting.profiles.times import Key

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
    groups = times.by(table, lambda key: tuple(names(key).items()))
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
