"""A chart of benchmarks: a bar for each run, and a panel for each unit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from official.cli.benchmark.specs.spec import Benchmark
from official.cli.benchmark.specs.tables import format_number, shown
from official.reporting import palette, plots

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_BAR, _HEAD, _FOOT = 0.32, 0.5, 0.12  # inches
_WIDTH = 9.0
Panels = dict[str, list[tuple[str, float]]]


def panels(results: list[dict[str, Any]], benchmarks: dict[str, Benchmark]) -> Panels:
    """Returns {unit: (variant, number)} of the first column of every benchmark's `output`; runs without a
    number are left out."""
    found: Panels = {}
    for each in results:
        for label, name in benchmarks[each["benchmark_name"]].columns[:1]:
            number = shown(each, name)
            if number is not None:
                found.setdefault(label, []).append((each["variant_name"], number))
    return found


def draw(found: Panels) -> bytes:
    """Draws the panels below each other, and returns a PNG."""
    height = sum(_HEAD + _FOOT + _BAR * len(rows) for rows in found.values()) or 1.0
    longest = max((len(name) for rows in found.values() for name, _ in rows), default=0)
    left = min(0.55, 0.03 + 0.0082 * longest)  # room for the names
    with plots.style():
        figure = plots.new_figure(_WIDTH, height)
        top = height
        for (unit, rows), color in zip(found.items(), palette.COLORS * len(found)):
            place = top - _HEAD - _BAR * len(rows)
            box = (left, place / height, 0.9 - left, _BAR * len(rows) / height)
            _draw_panel(figure.add_axes(box), unit, rows, color)
            top = place - _FOOT
        return plots.render(figure, "png")


def _draw_panel(axes: Axes, unit: str, rows: list[tuple[str, float]], color: str) -> None:
    """Draws bars of one unit."""
    places = range(len(rows))[::-1]
    axes.barh(places, [value for _, value in rows], height=0.62, color=color)
    for at, (_, value) in zip(places, rows):
        offset: dict[str, Any] = {"xytext": (5, 0), "textcoords": "offset points", "va": "center"}
        axes.annotate(format_number(value), (value, at), fontsize=9, color=palette.INK, **offset)
    axes.set_yticks(list(places), [name for name, _ in rows], fontsize=9)
    axes.set_ylim(-0.6, len(rows) - 0.4)
    axes.tick_params(axis="y", length=0, labelcolor=palette.INK)
    axes.grid(visible=False)
    axes.set_xticks([])
    axes.spines["bottom"].set_visible(False)
    axes.set_title(unit, loc="left", fontsize=11, fontweight="bold", color=palette.INK)
