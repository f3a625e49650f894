"""The picture of how speed grows with the number of hosts, or of whatever is counted: curves of shares."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from official.reporting import palette, plots

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_WIDTH, _HEIGHT = 6.4, 3.5  # inches, of a panel
_MAX_TICKS = 13


@dataclasses.dataclass(frozen=True)
class Curve:
    """A curve.

    Attributes:
      name: of it; empty: it is named with another one.
      points: (number of hosts, share from 0 to 1), rising numbers.
      is_measured: dots; else a line.
      color: of the palette.
    """

    name: str
    points: tuple[tuple[int, float], ...]
    is_measured: bool
    color: str


@dataclasses.dataclass(frozen=True)
class Panel:
    """A panel: its title, what its shares are of, what is counted along it, its curves, and where their names
    are written, as matplotlib calls it."""

    title: str
    unit: str
    counted: str
    curves: tuple[Curve, ...]
    legend: str = "lower left"


def plot_scaling(panels: Sequence[Panel]) -> Figure:
    """Returns a picture with the panels one below the other."""
    with plots.style():
        figure = plots.new_figure(_WIDTH, _HEIGHT * len(panels))
        total = _HEIGHT * len(panels)
        for place, panel in enumerate(panels, 1):
            bottom = (total - place * _HEIGHT + 0.55) / total
            axes = figure.add_axes((0.09, bottom, 0.88, (_HEIGHT - 1.25) / total))
            _draw(axes, panel)
    return figure


def _draw(axes: Axes, panel: Panel) -> None:
    for curve in panel.curves:
        counts, shares = zip(*curve.points)
        look: dict[str, Any] = (
            {"marker": "o", "linestyle": "none", "markersize": 5} if curve.is_measured else {}
        )
        axes.plot(
            counts, [100 * share for share in shares], color=curve.color, label=curve.name or None, **look
        )
    plots.write_head(axes, panel.title, panel.unit)
    every = sorted({count for curve in panel.curves for count, _ in curve.points})
    step = -(-len(every) // _MAX_TICKS)
    axes.set_xscale("log", base=2)
    axes.set_xticks(every[::step], [f"{count:,}" for count in every[::step]], fontsize=8)
    axes.minorticks_off()
    highest = max(share for curve in panel.curves for _, share in curve.points)
    axes.set_ylim(0, max(105.0, 105 * highest))
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g} %")
    axes.set_xlabel(panel.counted, color=palette.MUTED)
    axes.legend(loc=panel.legend, frameon=False, fontsize=8.5)
