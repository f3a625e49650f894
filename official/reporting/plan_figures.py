"""Figures of plans: pipeline schedules, and speed over the number of hosts."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from official.reporting import palette, plots

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# -----------------------------------------------------------------------------------------------------------
# Schedules
#
# Time to the right, one row per device, passes in two colours.


_WIDTH, _ROW, _ABOVE, _LEGEND = 4.6, 0.17, 0.5, 0.35  # inches: readable at the width of a phone
_FORWARD, _BACKWARD = palette.BLUE, palette.ORANGE
_LATER = 0.45  # opacity of a device's later stages
_NUMBER, _SMALL = 6.2, 7.2  # points
_NARROWEST = 0.0205  # minimum width of a bar with a number, as a share of the picture's


class Bar(NamedTuple):
    """A pass of a micro batch.

    Attributes:
      device: index of its row.
      start, end: in any unit of time.
      number: number of the micro batch.
      is_backward: False for a forward pass.
      is_later: whether the device also has an earlier stage; then this pass is drawn paler.
    """

    device: int
    start: float
    end: float
    number: int
    is_backward: bool
    is_later: bool


@dataclasses.dataclass(frozen=True)
class Schedule:
    """A schedule to draw: its name, a note below it, the names of the devices, and all bars."""

    title: str
    note: str
    rows: tuple[str, ...]
    bars: tuple[Bar, ...]

    @property
    def length(self) -> float:
        """Returns the end of the last pass."""
        return max(bar.end for bar in self.bars)


def plot_schedules(schedules: Sequence[Schedule], until: float | None = None) -> Figure:
    """Returns a picture with one panel per schedule, one below the other.

    Args:
      schedules: the schedules, all in the same unit of time.
      until: end of the panels; longer schedules are cut off, with a note. None: the longest of them.
    """
    from matplotlib.patches import Patch

    until = until or max(schedule.length for schedule in schedules)
    heights = [_ABOVE + _ROW * len(schedule.rows) for schedule in schedules]
    top = total = sum(heights) + _LEGEND
    handles = [Patch(color=_FORWARD, label="forward"), Patch(color=_BACKWARD, label="backward")]
    handles.append(Patch(facecolor="white", edgecolor="#b6bcc4", label="bubble: waits"))
    if any(bar.is_later for schedule in schedules for bar in schedule.bars):
        handles.append(Patch(color=_FORWARD, alpha=_LATER, label="later stage"))
    with plots.style():
        figure = plots.new_figure(_WIDTH, total)
        for schedule, height in zip(schedules, heights):
            top -= height
            box = (0.13, (top + 0.08) / total, 0.85, _ROW * len(schedule.rows) / total)
            _draw(figure.add_axes(box), schedule, until)
        figure.legend(handles=handles, loc="lower center", ncols=4, fontsize=_SMALL, handlelength=1)
    return figure


def _draw(axes: Axes, schedule: Schedule, until: float) -> None:
    count = len(schedule.rows)
    axes.set(xlim=(0, until), ylim=(count - 0.5, -0.5), xticks=[])
    axes.grid(False)
    axes.set_yticks(range(count), schedule.rows, fontsize=_SMALL)
    axes.spines["bottom"].set_visible(False)
    plots.write(axes, schedule.title, (0, 1), (-28, 14), fontweight="bold", color=palette.INK)
    plots.write(axes, schedule.note, (0, 1), (-28, 4), fontsize=_SMALL)
    for bar in schedule.bars:
        width = min(bar.end, until) - bar.start
        if width <= 0:
            continue
        color, alpha = _BACKWARD if bar.is_backward else _FORWARD, _LATER if bar.is_later else 1
        look: dict[str, Any] = {"color": color, "alpha": alpha, "edgecolor": "white", "linewidth": 0.4}
        axes.barh(bar.device, width, left=bar.start, height=0.84, **look)
        digits = str(bar.number)
        if width / until >= _NARROWEST * len(digits):
            color = palette.INK if bar.is_backward or bar.is_later else "white"
            look = {"ha": "center", "va": "center_baseline", "fontsize": _NUMBER, "color": color}
            axes.text(bar.start + width / 2, bar.device, digits, **look)
    if schedule.length > until * 1.001:
        text = f"cut off: ends at {schedule.length:g}"
        plots.write(axes, text, (1, 1), (0, 4), ha="right", fontsize=_SMALL)


# -----------------------------------------------------------------------------------------------------------
# Scaling


_MAX_TICKS = 13


def plot_scaling(
    title: str, unit: str, counted: str, curves: Mapping[str, tuple[str, Sequence[tuple[int, float]]]]
) -> Figure:
    """Returns a picture of scaling efficiency over the number of hosts.

    Args:
      title: title of the picture.
      unit: label of the vertical axis, the meaning of the shares.
      counted: label of the horizontal axis.
      curves: {name: (colour, [(number of hosts, share from 0 to 1)])}, sorted by the number of hosts.
    """
    with plots.style():
        figure = plots.new_figure(6.4, 3.5)
        axes = figure.add_axes((0.09, 0.55 / 3.5, 0.88, 2.25 / 3.5))
        for name, (color, points) in curves.items():
            axes.plot(*zip(*points), color=color, label=name)
        plots.write_head(axes, title, unit)
        every = sorted({count for _, points in curves.values() for count, _ in points})
        ticks = every[:: -(-len(every) // _MAX_TICKS)]
        axes.set_xscale("log", base=2)
        axes.set_xticks(ticks, [f"{count:,}" for count in ticks], fontsize=8)
        axes.minorticks_off()
        highest = max(share for _, points in curves.values() for _, share in points)
        axes.set_ylim(0, max(1.05, 1.05 * highest))
        axes.yaxis.set_major_formatter(lambda share, _: f"{100 * share:g} %")
        axes.set_xlabel(counted)
        axes.legend(loc="lower left", fontsize=8.5)
    return figure
