"""Pictures of results, drawn with matplotlib: the style, and charts with their legends."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from official.reporting import charts, palette
from official.reporting.charts import Chart
from official.reporting.formats import format_power
from official.reporting.verdict import finite_values, thinned

if TYPE_CHECKING:  # matplotlib takes long to load: imported in functions
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_MAX_POINTS = 1500
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
    "axes.axisbelow": True,
    "ytick.major.size": 0,
    "legend.frameon": False,
    "text.parse_math": False,  # names may have two dollar signs
}


def style() -> AbstractContextManager:
    """Returns a context that sets the style of all pictures, for making and drawing figures."""
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


def write(
    axes: Axes,
    text: str,
    at: tuple[float, float],
    offset: tuple[float, float],
    frame: Any = "axes fraction",
    **look: Any,
) -> None:
    """Writes a text at an offset, in points, from a position in the units of `frame`."""
    look = {"color": palette.MUTED, "fontsize": 9, **look}
    axes.annotate(text, at, xycoords=frame, xytext=offset, textcoords="offset points", **look)


def write_head(axes: Axes, title: str, unit: str) -> None:
    """Writes the title and, smaller below it, the unit of the vertical axis."""
    axes.set_title(title, loc="left", fontsize=11, fontweight="bold", color=palette.INK, pad=24)
    write(axes, unit, (0, 1), (0, 10))


# ------------------------------------------------------------------------------------------------------------
# Charts


# {kind of a curve: its style}, and the maximum number of points that are marked with dots.
_LOOKS: dict[str, dict[str, Any]] = {
    "line": {"linewidth": 1.8, "zorder": 3},
    "dots": {"linewidth": 1.9, "zorder": 4},
    "faint": {"linewidth": 0.9, "alpha": 0.3},
    "dashed": {"linewidth": 1.2, "zorder": 3.5},
}
_DOTTED = {"line": 10, "dots": 40, "faint": 2, "dashed": 0}
_DASHED = (0, (5, 3))
_WIDTH, _HEIGHT, _LINE = 13.0, 3.9, 0.2  # inches: width of two panels; height of one, of a caption line
_FULL_SIZE = 14  # entries of a legend; longer legends are smaller


def draw_chart(axes: Axes, chart: Chart) -> None:
    """Draws a chart, with its legend at the right."""
    from matplotlib.ticker import MaxNLocator

    write_head(axes, chart.title, chart.unit)
    for each in chart.curves:
        shown = thinned(each.points, _MAX_POINTS)
        if finite_values(shown):
            axes.plot(
                [at for at, _ in shown],
                [math.nan if value is None else value for _, value in shown],
                color=each.color,
                linestyle=_DASHED if each.kind == "dashed" else each.dashes,
                marker="o" if len(each.points) <= _DOTTED[each.kind] else None,
                markersize=3.4,
                clip_on=False,
                label=f"{each.name} {each.value}".strip() if each.name else None,
                **_LOOKS[each.kind],
            )
    for name, value, color in chart.levels:
        axes.axhline(value, color=color, linestyle=_DASHED, label=f"{name} {value:.3f}", **_LOOKS["dashed"])
    for name, at, color in chart.marks:
        axes.axvline(at, color=color, linewidth=1, alpha=0.7, linestyle=":", label=name or None)
    axes.set_xlim(0, max(1, chart.last))
    axes.set_xlabel(chart.x_name)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=5, integer=True, steps=[1, 2, 5, 10]))
    axes.xaxis.set_major_formatter("{x:,.0f}")
    if not chart.values:
        axes.text(0.5, 0.5, "no data", transform=axes.transAxes, ha="center", color=palette.MUTED)
        axes.set_yticks([])
        return
    levels = [value for _, value, _ in chart.levels]
    low, high, cut = charts.vertical_range(chart.values, levels, chart.may_cut)
    axes.set_ylim(low, high)
    for line in axes.lines if cut else ():
        line.set_clip_on(True)
    axes.yaxis.set_major_locator(MaxNLocator(nbins=7, steps=[1, 2, 2.5, 5, 10]))
    axes.yaxis.set_major_formatter(lambda y, _: format_power(y) if 0 < y < 0.005 else f"{y:,.10g}")
    labels = axes.get_legend_handles_labels()[1]
    if labels:
        size = 9 * min(1, _FULL_SIZE / len(labels))
        axes.legend(loc="upper left", bbox_to_anchor=(1, 1), fontsize=size, labelcolor="linecolor")


def plot_charts(found: Sequence[Chart], captions: Sequence[tuple] = ()) -> Figure:
    """Returns a figure of charts, two per row.

    Args:
      found: the charts.
      captions: lines below them, (name, text, colour of the name).
    """
    rows, below = -(-len(found) // 2), _LINE * (len(captions) + 1) if captions else 0
    height = rows * _HEIGHT + below
    with style():
        figure = new_figure(_WIDTH, height)
        figure.set_layout_engine("constrained", rect=(0, below / height, 1, 1 - below / height))
        for number, chart in enumerate(found):
            draw_chart(figure.add_subplot(rows, 2, number + 1), chart)
        for number, (name, text, color) in enumerate(captions):
            at = (below - _LINE * (number + 0.5)) / height
            figure.text(0.05, at, name, color=color, fontsize=9, fontweight="bold", va="center")
            figure.text(0.2, at, text, color=palette.INK, fontsize=9, va="center")
    return figure
