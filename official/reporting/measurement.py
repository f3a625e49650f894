"""Times several cases in turns on a noisy machine, reports medians with their spread, and draws a chart."""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Callable, Iterable

from official.reporting import palette, plots


@dataclasses.dataclass(frozen=True)
class Timing:
    """Seconds of one case, one value per round."""

    secs: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.secs)

    @property
    def spread(self) -> float:
        """Half the interquartile range over the median: 0.02 is plus or minus 2 %."""
        if len(self.secs) < 2:
            return 0.0
        first, _, third = statistics.quantiles(self.secs, n=4, method="inclusive")
        return (third - first) / 2 / self.median

    def rate(self, amount: float) -> float:
        """Returns the amount per second at the median."""
        return amount / self.median


def measure_in_turns(
    cases: dict[str, Callable[[], None]],
    rounds: int,
    warmup_rounds: int = 1,
    after_round: Callable[[int], None] = lambda _: None,
) -> dict[str, Timing]:
    """Runs every case once per round, so that a slow phase of the machine affects all of them.

    Args:
      cases: {name: function to time}; it returns when its work is done.
      rounds: number of timed runs per case.
      warmup_rounds: untimed rounds before, for compilation.
      after_round: called with the number of rounds done, for progress.
    """
    secs: dict[str, list[float]] = {name: [] for name in cases}
    for number in range(warmup_rounds + rounds):
        for name, work in cases.items():
            started = time.perf_counter()
            work()
            if number >= warmup_rounds:
                secs[name].append(time.perf_counter() - started)
        after_round(number + 1)
    return {name: Timing(tuple(values)) for name, values in secs.items()}


def draw_bars(
    bars: Iterable[tuple[str, float, float, str, str]],
    title: str,
    unit: str,
    limit: float | None = None,
    limit_text: str = "",
) -> bytes:
    """Draws horizontal bars with their spread, one colour per group, and returns a PNG.

    Args:
      bars: from top to bottom: (name, value, relative spread, text at its end, group, which determines the
        colour).
      title: title of the chart.
      unit: unit of the values.
      limit: value to compare with, drawn as a line.
      limit_text: label above that line.
    """
    names, values, spreads, texts, groups = zip(*bars)
    errors = [value * spread for value, spread in zip(values, spreads)]
    height = 0.42 * len(names) + 1.5
    left = min(0.45, max(0.24, 0.02 + 0.0085 * max(map(len, names))))  # space for the names
    color_of, ink = dict(zip(dict.fromkeys(groups), palette.COLORS)), palette.INK
    colors, rows = [color_of[group] for group in groups], list(range(len(names)))[::-1]
    look = {"ecolor": ink, "elinewidth": 1.1, "capsize": 2.5}
    with plots.style():
        figure = plots.new_figure(9.0, height)
        axes = figure.add_axes((left, 0.62 / height, 0.79 - left, 1 - 1.5 / height))
        axes.barh(rows, values, height=0.62, color=colors, xerr=errors, error_kw=look)
        for row, text in zip(rows, texts):
            plots.write(axes, text, (1, row), (8, 0), ("axes fraction", "data"), va="center", color=ink)
        axes.set_yticks(rows, names, color=ink)
        if limit is not None:
            axes.axvline(limit, color=palette.MUTED, linewidth=1.2, linestyle=(0, (5, 3)))
            frame = ("data", "axes fraction")
            plots.write(axes, limit_text, (limit, 1), (0, 4), frame, ha="center", fontsize=8.5)
        axes.set_xlim(0, 1.02 * max([limit or 0, *map(sum, zip(values, errors))]))
        axes.set_xlabel(unit)
        axes.grid(axis="x")
        axes.grid(False, axis="y")
        axes.spines["bottom"].set_visible(False)
        figure.text(0.02, 1 - 0.3 / height, title, color=ink, fontsize=12, fontweight="bold", va="center")
        return plots.render(figure, "png")
