"""Training steps beside their bounds in one picture: a panel a case, whole steps at its top, groups below."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from official.reporting import palette, plots
from official.reporting.profiles import groups

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_COLORS = dict(
    zip(groups.SECTIONS, (palette.BLUE, palette.VERMILION, palette.GREEN, palette.PURPLE, "#b6bcc4"))
)
_BEFORE = "#c9ced6"
# In inches: a panel's bars, the names at the left, the numbers at the right of each, a bar, and what is above
# and below.
_BARS, _LEFT, _NUMBERS, _ROW, _TOP, _HEAD, _GAP, _BOTTOM = 3.5, 2.95, 1.75, 0.225, 0.8, 0.42, 0.3, 0.5
_LEAST = 0.002  # of a step: groups that take less in all cases, bound or before, are left out


def draw(
    cases: Sequence[dict], before: Mapping[str, dict], title: str, columns: int, image_format: str = "png"
) -> bytes:
    """Draws steps beside their bounds and returns the picture.

    Args:
      cases: as `bert benchmark bounds` writes them, row by row.
      before: {name of a case: the same case of an earlier result}; {} without one.
      title: of the picture.
      columns: panels beside each other.
      image_format: png, svg or pdf.
    """
    columns = min(columns, len(cases))
    names = _shown(cases, before)
    totals = 3 if before else 2
    lower, upper = _ROW * len(names), _ROW * totals
    panel = _HEAD + upper + _GAP + lower + _BOTTOM
    width = _LEFT + columns * (_BARS + _NUMBERS)
    height = _TOP + math.ceil(len(cases) / columns) * panel
    with plots.style():
        figure = plots.new_figure(width, height)
        _write_head(figure, title, bool(before))
        for number, case in enumerate(cases):
            row, column = divmod(number, columns)
            left = (_LEFT + column * (_BARS + _NUMBERS)) / width
            top = height - _TOP - row * panel - _HEAD
            first = figure.add_axes((left, (top - upper) / height, _BARS / width, upper / height))
            second = figure.add_axes(
                (left, (top - upper - _GAP - lower) / height, _BARS / width, lower / height)
            )
            _draw_totals(first, case, before.get(case["case"]), totals == 3)
            _draw_groups(second, case, before.get(case["case"]), names)
            for axes in (first, second):
                _finish(axes, with_names=column == 0)
            first.set_title(case["case"], loc="left", fontsize=10.5, fontweight="bold", color=palette.INK)
            second.set_xlabel("ms a step", fontsize=9)
        return plots.render(figure, image_format)


def _shown(cases: Sequence[dict], before: Mapping[str, dict]) -> list[str]:
    """Returns the groups that take a visible part of a step."""
    found = set()
    for case in (*cases, *(before[case["case"]] for case in cases if case["case"] in before)):
        for row in case["groups"]:
            if max(row["secs"], row.get("bound_secs", 0.0)) >= _LEAST * case["step_secs"]:
                found.add(row["name"])
    return [name for name in groups.GROUPS if name in found]


def _write_head(figure: Figure, title: str, has_before: bool) -> None:
    width, height = figure.get_size_inches()
    at = 1 - 0.24 / height
    figure.text(0.12 / width, at, title, fontsize=12, fontweight="bold", color=palette.INK, va="center")
    below = 1 - 0.55 / height
    words = [*_COLORS.items(), ("| bound", palette.INK)] + [("before", "#8c949e")] * has_before
    place = 0.12
    for name, color in words:
        mark = "" if name.startswith("|") else "\u25a0 "
        figure.text(place / width, below, mark + name, fontsize=9, color=color, va="center")
        place += 0.34 + 0.078 * len(name)


def _sections(case: dict, key: str) -> list[tuple[str, float]]:
    """Returns (section, ms) of a case."""
    rows = case["groups"]
    return [
        (name, 1e3 * sum(row.get(key, 0.0) for row in rows if row["section"] == name))
        for name in groups.SECTIONS
    ]


def _draw_totals(axes: Axes, case: dict, before: dict | None, has_before: bool) -> None:
    """Draws bars of whole steps, cut into sections."""
    bars: list[tuple[str, dict | None, str, float]] = [("bound", case, "bound_secs", case["bound_secs"])]
    bars.append(("step, now" if has_before else "step", case, "secs", case["step_secs"]))
    if has_before:
        bars.append(("step, before", before, "secs", before["step_secs"] if before else 0.0))
    for place, (_, source, key, secs) in enumerate(bars):
        start = 0.0
        for section, ms in _sections(source, key) if source else ():
            axes.barh(place, ms, left=start, height=0.72, color=_COLORS[section])
            start += ms
        over = _over(secs, source["bound_secs"]) if source and key == "secs" else ""
        _write_number(axes, place, f"{secs * 1e3:,.0f}{over}" if source else "-")
    _set_rows(axes, [name for name, *_ in bars])
    for label in axes.get_yticklabels():
        label.set_fontweight("bold")


def _draw_groups(axes: Axes, case: dict, before: dict | None, names: list[str]) -> None:
    """Draws a bar a group, its bound as a mark, and behind it what it was before."""
    now, was = ({row["name"]: row for row in each["groups"]} if each else {} for each in (case, before))
    for place, name in enumerate(names):
        row = now.get(name, {"secs": 0.0, "bound_secs": 0.0})
        ms, bound, old = 1e3 * row["secs"], 1e3 * row["bound_secs"], 1e3 * was.get(name, {"secs": 0})["secs"]
        if before:
            axes.barh(place, old, height=0.82, color=_BEFORE)
        axes.barh(place, ms, height=0.5, color=_COLORS[groups.GROUPS[name]])
        if bound:
            axes.plot([bound, bound], [place - 0.42, place + 0.42], color=palette.INK, linewidth=1.8)
        _write_number(axes, place, f"{ms:,.0f}{_over(ms, bound)}" + (f"  was {old:,.0f}" if before else ""))
    _set_rows(axes, names)


def _over(time: float, bound: float) -> str:
    """Returns how many times its own bound a time is."""
    if not time or not bound:
        return ""
    return f"  {time / bound:.{2 if time < 10 * bound else 0}f}x"


def _write_number(axes: Axes, place: int, text: str) -> None:
    axes.annotate(
        text,
        (1, place),
        xycoords=("axes fraction", "data"),
        xytext=(6, 0),
        textcoords="offset points",
        va="center",
        fontsize=9,
        color=palette.INK,
        annotation_clip=False,
    )


def _set_rows(axes: Axes, names: Sequence[str]) -> None:
    axes.set_yticks(range(len(names)), names, fontsize=9.5)
    axes.set_ylim(len(names) - 0.5, -0.5)


def _finish(axes: Axes, with_names: bool) -> None:
    settings: dict[str, Any] = {"axis": "x", "color": palette.GRID, "linewidth": 0.8}
    axes.grid(False, axis="y")
    axes.grid(True, **settings)
    axes.set_xlim(left=0)
    axes.spines["bottom"].set_visible(False)
    axes.tick_params(axis="both", length=0, labelcolor=palette.INK)
    axes.tick_params(axis="x", labelsize=8, labelcolor=palette.MUTED)
    if not with_names:
        axes.tick_params(axis="y", labelleft=False)
