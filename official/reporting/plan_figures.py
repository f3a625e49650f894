"""Figures of plans: schedules of pipelines, and how speed grows with the number of hosts."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from official.reporting import palette, plots

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# -----------------------------------------------------------------------------------------------------------
# Schedules
#
# Time to the right, a row a device, passes in two colours.


_WIDTH, _ROW, _ABOVE, _LEGEND = 4.6, 0.17, 0.5, 0.35  # inches: as wide as a phone, where it is still readable
_FORWARD, _BACKWARD = palette.BLUE, palette.ORANGE
_LATER = 0.45  # how strong the colours of a device's later stages are
_NUMBER, _SMALL = 6.2, 7.2  # points
_NARROWEST = 0.0205  # of the picture's width: of a bar that has room for a digit
_NAMED = 0.14  # of the width: of a gap that has room for its name


@dataclasses.dataclass(frozen=True)
class Bar:
    """A pass of a micro batch.

    Attributes:
      device: whose row it is in.
      start, end: in any unit of time.
      number: of the micro batch.
      is_backward: else it is a forward pass.
      is_later: whether the device has an earlier stage, too, from which this one is told by a paler colour.
    """

    device: int
    start: float
    end: float
    number: int
    is_backward: bool
    is_later: bool = False


@dataclasses.dataclass(frozen=True)
class Schedule:
    """A schedule to draw.

    Attributes:
      title: name of the schedule.
      note: below the title, smaller.
      rows: names of the devices.
      bars: of all devices.
    """

    title: str
    note: str
    rows: tuple[str, ...]
    bars: tuple[Bar, ...]

    @property
    def length(self) -> float:
        """Returns when the last pass ends."""
        return max(bar.end for bar in self.bars)


def plot_schedules(schedules: Sequence[Schedule], until: float | None = None) -> Figure:
    """Returns a picture with a panel a schedule, one below the other.

    Args:
      schedules: to draw, all in one unit of time.
      until: where panels end; what takes longer is cut off, and says so. None: the longest of them.
    """
    until = until or max(schedule.length for schedule in schedules)
    heights = [_ABOVE + _ROW * len(schedule.rows) for schedule in schedules]
    total = sum(heights) + _LEGEND
    with plots.style():
        figure = plots.new_figure(_WIDTH, total)
        top = total
        for schedule, height in zip(schedules, heights):
            bottom = top - height + 0.08
            box = (0.13, bottom / total, 0.85, _ROW * len(schedule.rows) / total)
            _draw(figure.add_axes(box), schedule, until)
            top -= height
        _draw_legend(figure, any(bar.is_later for schedule in schedules for bar in schedule.bars))
    return figure


def _draw(axes: Axes, schedule: Schedule, until: float) -> None:
    count = len(schedule.rows)
    axes.set_xlim(0, until)
    axes.set_ylim(count - 0.5, -0.5)
    axes.grid(False)
    axes.set_xticks([])
    axes.set_yticks(range(count), schedule.rows, fontsize=_SMALL)
    axes.spines["bottom"].set_visible(False)
    plots.write(axes, schedule.title, (0, 1), (-28, 14), fontweight="bold", color=palette.INK)
    plots.write(axes, schedule.note, (0, 1), (-28, 4), fontsize=_SMALL)
    for bar in schedule.bars:
        if bar.start < until:
            _draw_bar(axes, bar, until)
    _name_gaps(axes, schedule, until)
    if schedule.length > until * 1.001:
        text = f"cut off: ends at {schedule.length:g}"
        plots.write(axes, text, (1, 1), (0, 4), ha="right", fontsize=_SMALL)


def _draw_bar(axes: Axes, bar: Bar, until: float) -> None:
    width = min(bar.end, until) - bar.start
    color, alpha = _BACKWARD if bar.is_backward else _FORWARD, _LATER if bar.is_later else 1
    axes.barh(bar.device, width, left=bar.start, height=0.84, linewidth=0.4, edgecolor="white",
              color=color, alpha=alpha)  # fmt: skip
    digits = str(bar.number)
    if width / until >= _NARROWEST * len(digits):
        dark = bar.is_backward or bar.is_later
        axes.text(bar.start + width / 2, bar.device, digits, ha="center", va="center_baseline",
                  fontsize=_NUMBER, color=palette.INK if dark else "white")  # fmt: skip


def _name_gaps(axes: Axes, schedule: Schedule, until: float) -> None:
    """Writes "bubble" into the longest time that a device waits, and into the longest of another device."""
    gaps = sorted(_gaps(schedule, until), key=lambda gap: gap[1] - gap[2])
    named: list[int] = []
    for device, start, end in gaps:
        if device not in named and len(named) < 2 and end - start > _NAMED * until:
            named.append(device)
            axes.text((start + end) / 2, device, "bubble", ha="center", va="center_baseline",
                      fontsize=_SMALL, color=palette.MUTED, style="italic")  # fmt: skip


def _gaps(schedule: Schedule, until: float) -> list[tuple[int, float, float]]:
    """Returns (device, start, end) of all times in which a device waits."""
    found = []
    for device in range(len(schedule.rows)):
        now = 0.0
        bars = sorted((bar.start, bar.end) for bar in schedule.bars if bar.device == device)
        for start, end in [*bars, (min(schedule.length, until), until)]:
            if min(start, until) > now:
                found.append((device, now, min(start, until)))
            now = max(now, end)
    return found


def _draw_legend(figure: Figure, has_later: bool) -> None:
    from matplotlib.patches import Patch

    handles = [Patch(color=_FORWARD, label="forward"), Patch(color=_BACKWARD, label="backward"),
               Patch(facecolor="white", edgecolor="#b6bcc4", label="bubble: waits")]  # fmt: skip
    if has_later:
        handles.append(Patch(color=_FORWARD, alpha=_LATER, label="later stage"))
    figure.legend(handles=handles, loc="lower center", ncols=4, frameon=False, fontsize=_SMALL,
                  handlelength=1, columnspacing=1, handletextpad=0.4)  # fmt: skip


# -----------------------------------------------------------------------------------------------------------
# Scaling


_MAX_TICKS = 13


def plot_scaling(
    title: str, unit: str, counted: str, curves: Mapping[str, tuple[str, Sequence[tuple[int, float]]]]
) -> Figure:
    """Returns a picture of the share of their speed that hosts keep.

    Args:
      title: of the picture.
      unit: what the shares are of.
      counted: what is counted along it.
      curves: {name: (colour, [(number of hosts, share from 0 to 1)])}, rising numbers.
    """
    with plots.style():
        figure = plots.new_figure(6.4, 3.5)
        axes = figure.add_axes((0.09, 0.55 / 3.5, 0.88, 2.25 / 3.5))
        for name, (color, points) in curves.items():
            counts, shares = zip(*points)
            axes.plot(counts, [100 * share for share in shares], color=color, label=name)
        plots.write_head(axes, title, unit)
        every = sorted({count for _, points in curves.values() for count, _ in points})
        ticks = every[:: -(-len(every) // _MAX_TICKS)]
        axes.set_xscale("log", base=2)
        axes.set_xticks(ticks, [f"{count:,}" for count in ticks], fontsize=8)
        axes.minorticks_off()
        highest = max(share for _, points in curves.values() for _, share in points)
        axes.set_ylim(0, max(105.0, 105 * highest))
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:g} %")
        axes.set_xlabel(counted, color=palette.MUTED)
        axes.legend(loc="lower left", frameon=False, fontsize=8.5)
    return figure
