"""Profile sections of the report of a run: bars of time by kind and of memory by layer, and tables."""

from __future__ import annotations

import os
from typing import Any

from official.io import json_files
from official.io.errors import ConfigError
from official.reporting import page, palette
from official.reporting.charts import Bar, Part, bars
from official.reporting.profiles.tables import MEMORY, TIMES

_MOST_OPERATIONS = 20
_WEIGHTS, _SLOTS, _FORWARD, _BACKWARD = "weights", "optimizer's state", "forward", "backward"
_COLORS = {
    _WEIGHTS: palette.BLUE,
    _SLOTS: palette.SKY,
    _FORWARD: palette.GREEN,
    _BACKWARD: palette.ORANGE,
    "": palette.MUTED,
}


def sections(model_dir: str) -> str:
    """Returns the profile of a run as HTML, from its files in `model_dir`; an empty text where there are
    none."""
    return _part(model_dir, TIMES, _times) + _part(model_dir, MEMORY, _memory)


def _part(model_dir: str, name: str, draw) -> str:
    """Returns the section of one file as HTML; an empty text where the file is missing or damaged."""
    try:
        return draw(json_files.read_json(os.path.join(model_dir, name)))
    except (ConfigError, KeyError, TypeError, ValueError, IndexError):
        return ""


def _steps(record: dict) -> str:
    first, last = record["steps"]
    return f"From step {first:,} to step {last:,}, on {', '.join(record['devices'])}."


# ------------------------------------------------------------------------------------------------------------
# Time


def _times(record: dict) -> str:
    drawn = bars(
        [
            Bar(
                each["kind"],
                [Part("", each["ms_per_step"], palette.BLUE)],
                f"{each['ms_per_step']:,.1f} ms, {each['share']:.1%}",
            )
            for each in record["kinds"]
        ]
    )
    note = (
        f"{_steps(record)} A step took {1000 * record['secs_per_step']:,.1f} ms. Times are those of the"
        f" operations of a step, {record['busy_ms_per_step']:,.1f} ms, added up over all threads."
    )
    operations = page.table(
        ("Operation", "Part", "ms a step", "Times", "Share"),
        [
            (
                f"{each['type']} {each['name']}",
                _place(each),
                f"{each['ms_per_step']:,.2f}",
                f"{each['count_per_step']:,.0f}",
                f"{each['share']:.1%}",
            )
            for each in record["operations"][:_MOST_OPERATIONS]
        ],
    )
    parts = page.table(
        ("Part", "ms a step", "Share"),
        [(_place(each), f"{each['ms_per_step']:,.2f}", f"{each['share']:.1%}") for each in record["parts"]],
    )
    folded = page.folded("Time by part of the step", parts) + page.folded("Longest operations", operations)
    return page.section("Where the time goes", drawn + folded, note)


def _place(row: dict) -> str:
    part = row["part"].replace("layer_{}", "all layers")
    return f"{part}, {row['pass']}" if row["pass"] else part


# ------------------------------------------------------------------------------------------------------------
# Memory


def _memory(record: dict) -> str:
    memory = record["allocators"][0]
    drawn = bars(_bars(record["variables"], memory), list(_COLORS)[:-1], _COLORS)
    variables = sum(each["weights_bytes"] + each["slots_bytes"] for each in record["variables"])
    note = (
        f"{_steps(record)} At most {_size(memory['peak_bytes'])} were in use, while"
        f" {_place(memory['running_at_peak'])} ran. What a part of the step had taken then is measured;"
        f" weights and the optimizer's state of one replica, {_size(variables)} together, are computed from"
        " their shapes."
    )
    table = page.table(
        ("Part", "Held at the peak", "Held at most", "All in use while it ran"),
        [
            (
                _place(each),
                _size(each["held_at_peak_bytes"]),
                _size(each["most_held_bytes"]),
                _size(each["peak_while_running_bytes"]),
            )
            for each in memory["parts"]
        ],
    )
    return page.section("Memory at the peak", drawn + page.folded("Memory by part of the step", table), note)


def _bars(variables: list[dict], memory: dict) -> list[Bar]:
    """Returns a bar of the memory at the peak for each stage of the model, and for all that is of none."""
    held: dict[str, dict[str, Any]] = {each["part"]: {} for each in variables}
    for each in variables:
        held[each["part"]] = {_WEIGHTS: each["weights_bytes"], _SLOTS: each["slots_bytes"]}
    for each in memory["parts"]:
        held.setdefault(each["part"], {})[each["pass"]] = each["held_at_peak_bytes"]
    return [
        Bar(
            part,
            [Part(name, size, _COLORS[name]) for name, size in parts.items()],
            _size(sum(parts.values())),
        )
        for part, parts in held.items()
        if sum(parts.values())
    ]


def _size(count: int) -> str:
    return f"{count / 1e9:,.2f} GB" if count >= 1e9 else f"{count / 1e6:,.1f} MB"
