"""Pictures of results, drawn with matplotlib: the style, charts with labels at the ends of lines, a run."""

from __future__ import annotations

import io
import math
import os
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from official.reporting import charts, palette
from official.reporting.charts import Chart
from official.reporting.formats import format_power
from official.reporting.verdict import finite_values, thinned

if TYPE_CHECKING:  # matplotlib takes long to load: functions import it when they are called
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Label = tuple[float, str, str]  # (height in the units of the axis, text, colour)

_MAX_POINTS = 1500
_LABEL_GAP = 0.075  # of the height of the axes
_STYLE: dict[Any, Any] = {
    "font.size": 9.5,
    "axes.edgecolor": "#b6bcc4",
    "xtick.color": "#8c949e",
    "xtick.labelcolor": palette.MUTED,
    "ytick.labelcolor": palette.MUTED,
    "axes.labelcolor": palette.MUTED,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.spines.left": False,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "grid.color": palette.GRID,
    "grid.linewidth": 0.8,
    "axes.axisbelow": True,
    "ytick.major.size": 0,
    "lines.solid_capstyle": "round",
    "figure.facecolor": "white",
    "axes.facecolor": "white",
}


# ------------------------------------------------------------------------------------------------------------
# Figures


def style() -> AbstractContextManager:
    """Returns a context in which figures are made and drawn in the style of all pictures."""
    import matplotlib

    return matplotlib.rc_context(_STYLE)


def new_figure(width: float, height: float) -> Figure:
    """Returns an empty figure, in inches, on the Agg canvas: it needs no screen and no global state."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height))
    FigureCanvasAgg(figure)
    return figure


def render(figure: Figure, image_format: str) -> bytes:
    """Returns the figure as a file of the format: png, svg or pdf."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format=image_format, dpi=170)
    return buffer.getvalue()


# ------------------------------------------------------------------------------------------------------------
# Axes


def write(
    axes: Axes,
    text: str,
    at: tuple[float, float],
    offset: tuple[float, float],
    frame: Any = "axes fraction",
    **look: Any,
) -> None:
    """Writes a text beside a place, which the frame says the units of; the offset is in points."""
    look = {"color": palette.MUTED, "fontsize": 9, **look}
    axes.annotate(text, at, xycoords=frame, xytext=offset, textcoords="offset points", **look)


def write_head(axes: Axes, title: str, unit: str) -> None:
    """Writes the title and, smaller below it, the unit of the vertical axis."""
    axes.set_title(title, loc="left", fontsize=11, fontweight="bold", color=palette.INK, pad=24)
    write(axes, unit, (0, 1), (0, 10))


def finish_axes(axes: Axes, label: str, last: float) -> None:
    """Sets the ticks, and the horizontal axis from 0 to `last` under its label."""
    from matplotlib.ticker import MaxNLocator

    axes.set_xlim(0, max(1, last))
    axes.xaxis.set_major_locator(MaxNLocator(nbins=5, integer=True, steps=[1, 2, 5, 10]))
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.set_xlabel(label)
    axes.yaxis.set_major_locator(MaxNLocator(nbins=7, steps=[1, 2, 2.5, 5, 10]))
    axes.yaxis.set_major_formatter(
        lambda value, _: format_power(value) if 0 < value < 0.005 else f"{value:,.10g}"
    )
    if not axes.lines:
        axes.text(
            0.5, 0.5, "no data", transform=axes.transAxes, ha="center", va="center", color=palette.MUTED
        )
        axes.set_yticks([])


# ------------------------------------------------------------------------------------------------------------
# Labels of lines


def label_ends(axes: Axes, labels: Sequence[Label]) -> None:
    """Writes labels right of the axes, each at its height or as near as the others allow. More than fourteen
    are written smaller."""
    labels = sorted(labels)
    low, high = axes.get_ylim()
    gap = min(_LABEL_GAP, 1 / max(len(labels) - 1, 1))
    heights = spread_heights([(value - low) / (high - low) for value, _, _ in labels], gap)
    for height, (_, text, color) in zip(heights, labels):
        write(axes, text, (1, height), (6, 0), va="center", color=color, fontsize=9 * gap / _LABEL_GAP)


def spread_heights(heights: Sequence[float], gap: float) -> list[float]:
    """Moves sorted heights up where they are nearer than `gap`, then down where they stand above 1."""
    raised: list[float] = []
    for height in heights:
        raised.append(max(height, raised[-1] + gap if raised else 0.0))
    top = 1 - (len(raised) - 1) * gap
    return [min(height, top + index * gap) for index, height in enumerate(raised)]


# ------------------------------------------------------------------------------------------------------------
# Charts


# {kind of a curve: its look}, and up to how many points each is marked with a dot.
_LOOKS: dict[str, dict[str, Any]] = {
    "line": {"linewidth": 1.8, "zorder": 3},
    "dots": {"linewidth": 1.9, "zorder": 4},
    "faint": {"linewidth": 0.9, "alpha": 0.3},
    "dashed": {"linewidth": 1.2, "zorder": 3.5},
}
_DOTTED = {"line": 10, "dots": 40, "faint": 2, "dashed": 0}
_DOT: dict[str, Any] = {"marker": "o", "markersize": 3.4, "markeredgewidth": 0}
# In inches. The margin right of a panel holds the labels; an inch of a label holds about thirteen characters.
_PANEL, _HEIGHT, _LEFT, _TOP, _BOTTOM, _CHARACTER, _LINE = 4.3, 2.7, 0.65, 0.75, 0.62, 0.08, 0.2


def draw_chart(axes: Axes, chart: Chart) -> None:
    """Draws a chart, with the names and last values of its curves and levels at the right."""
    write_head(axes, chart.title, chart.unit)
    labels: list[Label] = []
    for each in chart.curves:
        finite, shown = finite_values(each.points), thinned(each.points, _MAX_POINTS)
        if not finite:
            continue
        axes.plot(
            [at for at, _ in shown],
            [math.nan if value is None else value for _, value in shown],
            color=each.color,
            linestyle=(0, (5, 3)) if each.kind == "dashed" else each.dashes,
            clip_on=False,
            **_LOOKS[each.kind],
            **(_DOT if len(each.points) <= _DOTTED[each.kind] else {}),
        )
        if each.name:
            labels.append((finite[-1], f"{each.name} {each.value}".strip(), each.color))
    for name, value, color in chart.levels:
        axes.axhline(value, color=color, linewidth=1.2, linestyle=(0, (5, 3)), zorder=3.5)
        labels.append((value, f"{name} {value:.3f}", color))
    for name, at, color in chart.marks:
        axes.axvline(at, color=color, linewidth=1, alpha=0.7, linestyle=":")
        frame, look = ("data", "axes fraction"), {"ha": "right", "va": "top", "fontsize": 8.5}
        write(axes, name, (at, 1), (-4, -8), frame, color=color, **look)
    if chart.values:
        low, high, cut = charts.vertical_range(
            chart.values, [value for _, value, _ in chart.levels], chart.may_cut
        )
        axes.set_ylim(low, high)
        for line in axes.lines if cut else ():
            line.set_clip_on(True)
    finish_axes(axes, chart.x_name, chart.last)
    label_ends(axes, labels)


def plot_charts(found: Sequence[Chart], captions: Sequence[tuple] = ()) -> Figure:
    """Returns a figure of charts, two side by side.

    Args:
      found: the charts.
      captions: lines below them, (name, text, colour of the name).
    """
    columns, rows = 2, -(-len(found) // 2)
    names = [f"{name} {value}" for chart in found for _, _, name, value in chart.legend]
    margin = max(1.85, _CHARACTER * max(map(len, names), default=0))
    below = _LINE * (len(captions) + 1) if captions else 0
    width, high = columns * (_LEFT + _PANEL + margin), _TOP + _HEIGHT + _BOTTOM
    height = rows * high + below
    with style():
        figure = new_figure(width, height)
        for number, chart in enumerate(found):
            row, column = divmod(number, columns)
            left = (_LEFT + column * (_LEFT + _PANEL + margin)) / width
            bottom = (below + (rows - row - 1) * high + _BOTTOM) / height
            draw_chart(figure.add_axes((left, bottom, _PANEL / width, _HEIGHT / height)), chart)
        for number, (name, text, color) in enumerate(captions):
            at = (below - _LINE * (number + 0.5)) / height
            figure.text(_LEFT / width, at, name, color=color, fontsize=9, fontweight="bold", va="center")
            figure.text((_LEFT + margin) / width, at, text, color=palette.INK, fontsize=9, va="center")
    return figure


_PICTURED = ("Loss", "Learning rate", "Throughput")  # and the metric of the run


def save_run(model_dir: str, path: str) -> None:
    """Draws loss, metric, learning rate and throughput of the run in `model_dir` into the file `path`, in the
    format of its ending (png, svg, pdf)."""
    from official.io.writing import replace_file  # late: these load TensorFlow
    from official.reporting.metrics import read_metrics
    from official.reporting.result import from_dict, read_result

    values = {"status": "interrupted", "reason": "", "step": 0, "samples": 0, **read_result(model_dir)}
    result, metrics = from_dict(values), read_metrics(model_dir)
    found = charts.run_charts(metrics, result, looks_ahead=False)
    found = [chart for chart in found if chart.title in (*_PICTURED, found[1].title)]
    replace_file(path, render(plot_charts(found), os.path.splitext(path)[1][1:]))
