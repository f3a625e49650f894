"""Analysis of training curves: the step from which a loss diverges, whether it still falls, the step from
which a model over-fits. No TensorFlow.

A curve is a list of (step, value), sorted; None is a value that is not finite.
"""

import dataclasses
import itertools
import math
from collections.abc import Sequence
from typing import Any, TypeGuard

_LAST_PART = 0.2  # of the steps
_FEWEST_POINTS = 4  # to speak of a trend
_TREND = 0.01  # relative change of the loss that counts
_SURE = 3.0  # standard errors
_OVER_FITTED = 0.02  # relative rise of the evaluation loss
_WORSE = 0.01  # fall of the score
_BY_FAR = 5  # times that much, in one evaluation

Points = Sequence[tuple[int, float | None]]


@dataclasses.dataclass(frozen=True)
class Trend:
    """The change of the training loss over the last part of a run.

    Attributes:
      change: relative, negative where the loss fell; 0 where no change is clear.
      over: that part, in words.
      first, last: the loss at its ends, on the straight line through it.
    """

    change: float
    over: str
    first: float
    last: float

    def describe(self) -> str:
        if self.change == 0:
            return f"The training loss shows no clear change over {self.over}: it is {self.last:.3f}."
        from_to = f"from {self.first:.3f} to {self.last:.3f}, over {self.over}"
        if abs(self.change) < _TREND:
            return f"The training loss has levelled off: it changed by {100 * self.change:+.1f} %, {from_to}."
        kind = "was still falling: by" if self.change < 0 else "was rising: by"
        return f"The training loss {kind} {100 * abs(self.change):.1f} %, {from_to}."

    @property
    def falls(self) -> bool:
        return self.change <= -_TREND


def curve(metrics: list[dict], split: str, name: str, over: str = "step") -> list[tuple[int, float | None]]:
    """Returns a metric of a split over steps, from lines of metrics.jsonl; a resumed run's later line of a
    step counts.

    Args:
      metrics: the lines.
      split: train or eval.
      name: of the metric.
      over: step or samples.
    """
    lines = [line for line in metrics if line.get("split") == split and name in line]
    points = {line[over]: _finite(line[name]) for line in lines if line.get(over) is not None}
    return [(at, points[at]) for at in sorted(points)]


def finite_values(points: Points) -> list[float]:
    """Returns the values of the points that are finite, in their order."""
    return [value for _, value in points if is_finite(value)]


def is_finite(value: float | None) -> TypeGuard[float]:
    """Tells whether a value is a finite number; None is not."""
    return value is not None and math.isfinite(value)


def _finite(value: Any) -> float | None:
    return float(value) if isinstance(value, (int, float)) and math.isfinite(value) else None


def divergence(losses: Points) -> int | None:
    """Returns the step from which the loss was lost: it is not finite to the end, or rose far above its
    minimum and did not come back.

    Far is more than half of the way back up that it had come down, and more than six times its usual change
    from line to line.
    """
    tail = list(itertools.takewhile(lambda point: point[1] is None, reversed(losses)))
    bad = tail[-1][0] if tail else None
    points = [(step, value) for step, value in losses if value is not None]
    if len(points) < 5:
        return bad
    smooth = _medians([value for _, value in points])
    lowest = min(range(len(smooth)), key=smooth.__getitem__)
    end, fallen = smooth[-1], smooth[0] - smooth[lowest]
    jumps = sorted(abs(after - before) for (_, before), (_, after) in zip(points, points[1:]))
    rise, noise = end - smooth[lowest], jumps[len(jumps) // 2]
    if rise <= max(0.5 * fallen, 6 * noise, 0.1 * abs(smooth[lowest])):
        return bad
    half = smooth[lowest] + rise / 2
    return next(step for (step, _), value in zip(points[lowest:], smooth[lowest:]) if value >= half)


def _medians(values: list[float]) -> list[float]:
    """Returns the median of each value and its neighbours, at the ends the lower of two: single spikes do not
    count."""
    windows = (sorted(values[max(0, at - 1) : at + 2]) for at in range(len(values)))
    return [window[(len(window) - 1) // 2] for window in windows]


def trend(losses: Points) -> Trend | None:
    """Returns the change over the last fifth of the steps, or the last few points, by a straight line; None
    where there are too few.

    A change of less than _SURE standard errors is none: noise is not taken for progress.
    """
    points = [(step, value) for step, value in losses if value is not None]
    if len(points) <= _FEWEST_POINTS:
        return None
    last = points[-1][0]
    part = [point for point in points if point[0] > (1 - _LAST_PART) * last]
    over = "the last fifth of the steps"
    if len(part) < _FEWEST_POINTS:
        part = points[-_FEWEST_POINTS:]
        over = f"the last {last - part[0][0]:,} steps"
    slope, error, mean_step, mean = _line(part)
    if abs(slope) < _SURE * error:
        return Trend(0.0, over, mean, mean)
    start, end = (mean + slope * (step - mean_step) for step in (part[0][0], last))
    return Trend((end - start) / start, over, start, end) if start > 0 else None


def _line(points: list[tuple[int, float]]) -> tuple[float, float, float, float]:
    """Returns slope, its standard error, mean step and mean value of the least-squares line."""
    count = len(points)
    mean_step, mean = (sum(point[axis] for point in points) / count for axis in (0, 1))
    spread = sum((step - mean_step) ** 2 for step, _ in points)
    slope = sum((step - mean_step) * (value - mean) for step, value in points) / spread
    residual = sum((value - mean - slope * (step - mean_step)) ** 2 for step, value in points)
    return slope, math.sqrt(residual / (count - 2) / spread), mean_step, mean


def over_fitting(evaluations: Points, losses: Points, rises: bool = False) -> tuple[int, float, float] | None:
    """Returns (step of the best evaluation, its value, the last value) where evaluations got worse while
    training went on to fall.

    One evaluation that is a little worse may be chance: there are two behind the best one, or it is worse by
      far.

    Args:
      evaluations: losses, or scores.
      losses: of training.
      rises: whether more is better in `evaluations`: scores. Otherwise less is.
    """
    points = [(step, value) for step, value in evaluations if value is not None]
    train = [(step, value) for step, value in losses if value is not None]
    if len(points) < 3 or len(train) < 2:
        return None
    step, best = min(points, key=lambda point: -point[1] if rises else point[1])
    after = [value for at, value in points if at > step]
    allowed = _WORSE if rises else _OVER_FITTED * abs(best)
    worse = [(best - value if rises else value - best) / allowed for value in after[-2:]] if allowed else []
    sure = len(worse) == 2 and min(worse) > 1 or bool(worse) and worse[-1] > _BY_FAR
    if not sure or _mean_after(train, step) >= _mean_until(train, step):
        return None
    return step, best, after[-1]


def _mean_until(points: list[tuple[int, float]], step: int) -> float:
    values = [value for at, value in points if at <= step][-5:] or [points[0][1]]
    return sum(values) / len(values)


def _mean_after(points: list[tuple[int, float]], step: int) -> float:
    values = [value for at, value in points if at > step][-5:] or [math.inf]
    return sum(values) / len(values)


def smoothed(points: Points) -> list[tuple[int, float | None]]:
    """Returns the mean over a fiftieth of the points on either side; values that are not finite stay.

    At the start the window narrows on both sides, so that the steep first part is not flattened; at the end
    it narrows on the right.
    """
    sums = [0.0, *itertools.accumulate(value or 0.0 for _, value in points)]
    counts = [0, *itertools.accumulate(value is not None for _, value in points)]
    reach = max(1, len(points) // 50)
    means: list[tuple[int, float | None]] = []
    for at, (step, value) in enumerate(points):
        left = min(at, reach)
        first, behind = at - left, min(at + left + 1, len(points))
        if value is not None:
            value = (sums[behind] - sums[first]) / (counts[behind] - counts[first])
        means.append((step, value))
    return means


def thinned(points: Points, most: int) -> Points:
    """Returns at most about `most` points: of each stretch the lowest and the highest, so that no spike is
    lost; gaps stay."""
    if len(points) <= most:
        return points
    size = math.ceil(2 * len(points) / most)
    kept: list[tuple[int, float | None]] = []
    for first in range(0, len(points), size):
        stretch = points[first : first + size]
        known = {at: value for at, (_, value) in enumerate(stretch) if is_finite(value)}
        gap = [at for at in range(len(stretch)) if at not in known][:1]
        ends = [min(known, key=known.__getitem__), max(known, key=known.__getitem__)] if known else []
        kept += [stretch[at] for at in sorted({*ends, *gap})]
    return kept if kept[-1] == points[-1] else [*kept, points[-1]]


def split_at(points: list[tuple[int, float]], last: int) -> tuple[list, list]:
    """Cuts a line at a step, between two points of it where none is there; nothing is ahead behind the last
    point."""
    if last >= points[-1][0]:
        return points, []
    done = [point for point in points if point[0] <= last]
    ahead = [point for point in points if point[0] > last]
    if not done:
        return [], points
    (before, low), (after, high) = done[-1], ahead[0]
    cut = (last, low + (high - low) * (last - before) / (after - before))
    return [*done, cut], [cut, *ahead]
