"""Parts of plots: the style, axes and their titles, lines, horizontal levels, labels at the ends of lines."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from official.reporting import palette
from official.reporting.names import format_power
from official.reporting.verdict import Points, finite_values, thinned

if TYPE_CHECKING:  # matplotlib takes long to load: functions import it when they are called
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Label = tuple[float, str, str]  # (height in the units of the axis, text, colour)

FEWEST_TO_SMOOTH = 25
_MOST_POINTS = 1500
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


def write_head(axes: Axes, title: str, unit: str) -> None:
    """Writes the title and, smaller below it, the unit of the vertical axis."""
    axes.set_title(title, loc="left", fontsize=11, fontweight="bold", color=palette.INK, pad=24)
    axes.annotate(
        unit,
        (0, 1),
        xycoords="axes fraction",
        xytext=(0, 10),
        textcoords="offset points",
        color=palette.MUTED,
        fontsize=9,
    )


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
# Lines and their labels


def draw_line(axes: Axes, points: Points, most_dots: int = 0, **look: Any) -> None:
    """Draws points as a line; nothing where none of them is finite.

    Args:
      axes: where to draw.
      points: sorted; None interrupts the line.
      most_dots: up to this many points are marked with a dot each.
      **look: colour, width and the like, as `Axes.plot` takes them.
    """
    if not finite_values(points):
        return
    shown = thinned(points, _MOST_POINTS)
    dots: dict[str, Any] = {"marker": "o", "markersize": 3.4, "markeredgewidth": 0}
    axes.plot(
        [at for at, _ in shown],
        [math.nan if value is None else value for _, value in shown],
        **look,
        **(dots if len(points) <= most_dots else {}),
    )


def end_label(points: Points, name: str, color: str, digits: int = 2) -> list[Label]:
    """Returns the label for the end of a line, "name value"; none where no value is finite."""
    return [(value, f"{name} {value:.{digits}f}", color) for value in finite_values(points)[-1:]]


def draw_level(axes: Axes, value: float | None, color: str, label: str) -> list[Label]:
    """Draws a dashed horizontal line where there is a value; returns its label."""
    if value is None:
        return []
    axes.axhline(value, color=color, linewidth=1.2, linestyle=(0, (5, 3)), zorder=3.5)
    return [(value, label, color)]


def label_ends(axes: Axes, labels: Sequence[Label]) -> None:
    """Writes labels right of the axes, each at its height or as near as the others allow. More than fourteen
    are written smaller."""
    labels = sorted(labels)
    low, high = axes.get_ylim()
    gap = min(_LABEL_GAP, 1 / max(len(labels) - 1, 1))
    heights = spread_heights([(value - low) / (high - low) for value, _, _ in labels], gap)
    for height, (_, text, color) in zip(heights, labels):
        axes.annotate(
            text,
            (1, height),
            xycoords="axes fraction",
            xytext=(6, 0),
            textcoords="offset points",
            va="center",
            color=color,
            fontsize=9 * gap / _LABEL_GAP,
            annotation_clip=False,
        )


def spread_heights(heights: Sequence[float], gap: float) -> list[float]:
    """Moves sorted heights up where they are nearer than `gap`, then down where they stand above 1."""
    raised: list[float] = []
    for height in heights:
        raised.append(max(height, raised[-1] + gap if raised else 0.0))
    top = 1 - (len(raised) - 1) * gap
    return [min(height, top + index * gap) for index, height in enumerate(raised)]
