"""Charts as data: curves, horizontal and vertical lines, and bars of one or several runs.

The page's template draws what `draw` returns, in an SVG that stretches to its width; `plots.draw_chart` draws
a `Chart` with matplotlib.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from official.reporting import palette, verdict
from official.reporting.formats import (
    fixed,
    format_count,
    format_number,
    format_power,
    metric_title,
    tick_text,
)
from official.reporting.verdict import Points, curve, finite_values, is_finite, smoothed, split_at, thinned

if TYPE_CHECKING:
    from official.reporting.result import TrainResult


def bars(rows: Sequence[tuple], legend: Mapping[str, str] | None = None) -> dict | None:
    """Returns bars for the page, from top to bottom, the longest at full width; None if all are empty.

    Args:
      rows: (name, parts from left to right, label with the number); a part is (name, value >= 0, CSS colour).
      legend: {name of a part: its colour}, shown above the bars.
    """
    longest = max((sum(value for _, value, _ in parts) for _, parts, _ in rows), default=0)
    keys = [("", color, name, "") for name, color in (legend or {}).items()]
    return {"bars": rows, "longest": longest, "legend": keys} if longest else None


@dataclasses.dataclass(frozen=True)
class Curve:
    """A line of a chart.

    Attributes:
      name: name in the legend; empty to leave it out.
      points: (x, y), sorted; None and non-finite values interrupt the line.
      color: CSS colour.
      value: text after the name in the legend.
      kind: line, faint (raw values behind a line), dots (a line with its points) or dashed.
      dashes: matplotlib's dash pattern, if there are more runs than colours; not used by the page.
    """

    name: str
    points: Points
    color: str
    value: str = ""
    kind: str = "line"
    dashes: Any = "-"


@dataclasses.dataclass(frozen=True)
class Chart:
    """Curves of one chart. `levels` are its horizontal lines, (name, value, colour); `marks` are its
    vertical ones, (name, x, colour)."""

    title: str
    unit: str
    curves: list[Curve]
    levels: list[tuple[str, float, str]] = dataclasses.field(default_factory=list)
    marks: Sequence[tuple[str, float, str]] = dataclasses.field(default_factory=list)
    x_name: str = "step"
    x_last: float | None = None  # None: x of the last point
    may_cut: bool = False  # whether a few huge values may exceed the axis

    @property
    def values(self) -> list[float]:
        """Returns the finite values of all curves."""
        return [value for curve in self.curves for value in finite_values(curve.points)]

    @property
    def last(self) -> float:
        """Returns the end of the horizontal axis."""
        return self.x_last or max((x for curve in self.curves for x, _ in curve.points), default=1) or 1

    @property
    def legend(self) -> list[tuple[str, str, str, str]]:
        """Returns (dashed or nothing, colour, name, value) of curves, levels and marks that have a name."""
        found = [
            ("dashed" if each.kind == "dashed" else "", each.color, each.name, each.value)
            for each in self.curves
        ]
        found += [("dashed", color, name, f"{value:.3f}") for name, value, color in self.levels]
        found += [("dashed", color, name, "") for name, _, color in self.marks]
        return [entry for entry in found if entry[2]]


# -----------------------------------------------------------------------------------------------------------
# Axes


_CUT = 3.0  # the vertical axis ends at this multiple of the range of most values


def vertical_range(
    values: Sequence[float], levels: Sequence[float] = (), may_cut: bool = False
) -> tuple[float, float, bool]:
    """Returns the range of the vertical axis, and whether some values exceed it, so that a few huge ones do
    not flatten the rest.

    The axis includes 0 if that takes less than 60 % of the height.
    """
    ordered = sorted(values)
    most = ordered[int(0.9 * (len(ordered) - 1))]
    low, high = min([ordered[0], *levels]), max([ordered[-1], *levels])
    cut = may_cut and 0 < _CUT * most < ordered[-1] and len(values) > 5
    if cut:
        high = max([_CUT * most, *levels])
    if 0 < low < 0.6 * high:
        low = 0.0
    if high == low:
        low, high = (0.0, high * 1.25) if high > 0 else (low - 1, low + 1)
    margin = 0.04 * (high - low)
    return (low if low == 0 else low - margin), high + margin, cut


def nice_ticks(low: float, high: float, count: int, whole: bool = False) -> list[float]:
    """Returns about `count` round numbers from low to high."""
    rough = (high - low) / count
    size = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * size for factor in (1, 2, 2.5, 5, 10) if factor * size >= 0.9 * rough)
    if whole:
        step = max(1.0, math.ceil(step))
    first = math.ceil(low / step - 1e-9)
    return [number * step for number in range(first, math.floor(high / step + 1e-9) + 1)]


# -----------------------------------------------------------------------------------------------------------
# SVG


_WIDTH, _HEIGHT = 1000, 400  # in SVG user units
_MAX_POINTS = 240  # per line; twice as many for a faint line


def draw(chart: Chart) -> dict | None:
    """Returns the chart as data for the page's template; None without finite values.

    Lines keep their width when the drawing is stretched: `vector-effect` in the page's style.
    """
    values, last = chart.values, chart.last
    if not values:
        return None
    low, high, cut = vertical_range(values, [value for _, value, _ in chart.levels], chart.may_cut)
    ticks, steps = nice_ticks(low, high, 4), nice_ticks(0, last, 4, whole=True)

    def down(y: float) -> float:
        return _HEIGHT * (high - y) / (high - low)

    def at(x: float, y: float) -> str:
        return f"{_WIDTH * x / last:.1f} {max(down(y), -2):.1f}".replace(".0", "")

    paths = [("grid", "", "".join(f"M0 {down(tick):.1f}H{_WIDTH}" for tick in ticks))]
    paths += [("dashed", color, f"M0 {down(value):.1f}H{_WIDTH}") for _, value, color in chart.levels]
    paths += [("dashed", color, f"M{_WIDTH * x / last:.1f} 0V{_HEIGHT}") for _, x, color in chart.marks]
    for each in chart.curves:
        points = thinned(each.points, 2 * _MAX_POINTS if each.kind == "faint" else _MAX_POINTS)
        line = "".join(("M" if starts else "L") + at(x, y) for x, y, starts, _ in _strokes(points))
        paths.append(("line" if each.kind == "dots" else each.kind, each.color, line))
        if each.kind != "faint":
            is_dot = each.kind == "dots"
            dots = "".join(f"M{at(x, y)}h.01" for x, y, _, alone in _strokes(points) if is_dot or alone)
            paths.append(("dots", each.color, dots))
    cut_off = f"cut at {tick_text(high, ticks)}, highest {_short(max(values))}" if cut else ""
    ends = ", ".join(f"{name} {value}".strip() for _, _, name, value in chart.legend)
    return {
        "title": chart.title,
        "unit": " \u00b7 ".join(filter(None, [chart.unit, cut_off])),
        "legend": chart.legend,
        "label": f"{chart.title} over the {chart.x_name}: {ends}",  # for screen readers
        "width": _WIDTH,
        "height": _HEIGHT,
        "paths": [path for path in paths if path[2]],
        "rows": [(f"{down(tick) / _HEIGHT:.2%}", tick_text(tick, ticks)) for tick in ticks],
        "columns": [(f"{step / last:.2%}", format_count(step)) for step in steps],
        "x_name": chart.x_name,
    }


def _short(value: float) -> str:
    return format_power(value) if value and not 0.001 <= abs(value) < 1e6 else f"{value:.4g}"


def _strokes(points: Points) -> Iterator[tuple[float, float, bool, bool]]:
    """Yields (x, y, whether a line starts here, whether it also ends here) for the finite points; an isolated
    point is drawn as a dot."""
    finite = [is_finite(y) for _, y in points]
    for (x, y), before, after in zip(points, [False, *finite], [*finite[1:], False]):
        if is_finite(y):
            yield x, y, not before, not (before or after)


# -----------------------------------------------------------------------------------------------------------
# Charts of a run


_TRAIN, _EVAL, _TARGET, _CONSTANT = palette.BLUE, palette.VERMILION, palette.GREEN, palette.MUTED
_PARTS = {
    "mlm_loss": ("masked LM", palette.SKY),
    "nsp_loss": ("next sentence", palette.PURPLE),
    "rtd_loss": ("replaced tokens", palette.ORANGE),
}
MIN_SMOOTHED = 25  # points
_MAX_DOTS = 60
_MAX_MARKS = 20


def run_charts(metrics: list[dict], result: TrainResult) -> list[Chart]:
    """Returns the charts of a run; charts without numbers are empty or left out.

    Args:
      metrics: lines of metrics.jsonl; any value may be missing or None.
      result: the `TrainResult`.
    """
    last = max((line["step"] for line in metrics), default=0)
    rates = _learning_rate(result, last)
    charts = [_loss(metrics), _metric(metrics, result), *([rates] if rates else []), *_other_charts(metrics)]
    # All end at the last step, except the chart with future learning rates.
    ends = ([x for each in chart.curves for x, _ in each.points[-1:]] for chart in charts)
    return [dataclasses.replace(chart, x_last=max([last, *own])) for chart, own in zip(charts, ends)]


def _curves(points: Points, name: str, color: str, digits: int) -> list[Curve]:
    """Returns a line; with many points, a moving mean in front of the faint raw values."""
    if not points:
        return []
    if len(points) < MIN_SMOOTHED:
        return [Curve(name, points, color, last_value(points, digits))]
    smooth = smoothed(points)
    return [Curve("", points, color, kind="faint"), Curve(name, smooth, color, last_value(smooth, digits))]


def last_value(points: Points, digits: int) -> str:
    """Returns the last finite value of a curve as text; empty without one."""
    return next((fixed(value, digits) for value in finite_values(points)[-1:]), "")


def _evaluations(points: Points, digits: int) -> list[Curve]:
    kind = "dots" if len(points) <= _MAX_DOTS else "line"
    return [Curve("evaluation", points, _EVAL, last_value(points, digits), kind)] if points else []


def _loss(metrics: list[dict]) -> Chart:
    train, evaluation = (curve(metrics, split, "loss") for split in ("train", "eval"))
    split = "train" if any("mlm_loss" in line for line in metrics if line["split"] == "train") else "eval"
    known = [(curve(metrics, split, part), *look) for part, look in _PARTS.items()]
    parts = [_curves(points, name, color, 2)[-1] for points, name, color in known if points]
    parts = parts if len(parts) > 1 else []  # one part is the whole
    curves = [*parts, *_curves(train, "train", _TRAIN, 2), *_evaluations(evaluation, 2)]
    bad = [step for step, value in train + evaluation if value is None][:_MAX_MARKS]
    marks = [("not finite" if number == 0 else "", step, palette.ALARM) for number, step in enumerate(bad)]
    sizes = {line["samples"] / line["step"] for line in metrics if line.get("samples") and line.get("step")}
    size = sizes.pop() if len(sizes) == 1 else 0
    x_name = f"step of {size:,.0f} sequences" if size >= 1 else "step"
    return Chart("Loss", "nats", curves, marks=marks, x_name=x_name, may_cut=True)


def _metric(metrics: list[dict], result: TrainResult) -> Chart:
    name = result.target_metric
    train, evaluation = (curve(metrics, split, name) for split in ("train", "eval"))
    always = f"always {verdict.constant_name(result)}"
    known = (("target", result.target, _TARGET), (always, result.baseline_score, _CONSTANT))
    levels = [(label, value, color) for label, value, color in known if value is not None]
    curves = [*_curves(train, "train", _TRAIN, 3), *_evaluations(evaluation, 3)]
    return Chart(*metric_title(name), curves, levels)


def _learning_rate(result: TrainResult, last: int) -> Chart | None:
    """Returns the learning rates of the schedule, those after the step `last` dashed; None for an evaluation
    or an old result without them."""
    known = sorted((int(step), rate) for step, rate in result.learning_rates.items())
    if not known:
        return None
    done, ahead = split_at(known, last)
    peak_step, peak = max(known, key=lambda point: (point[1], -point[0]))
    if ahead and done:
        curves = [Curve("done", done, _TRAIN, f"to step {last:,}")]
        curves.append(Curve("still to come", ahead, _CONSTANT, kind="dashed"))
    else:
        curves = [Curve("", done or ahead, _TRAIN)]
    text = f"{format_power(peak)} at step {peak_step:,}"
    curves.append(Curve("peak", [(peak_step, peak)], _EVAL, text, "dots"))
    return Chart("Learning rate", "the schedule", curves)


def _other_charts(metrics: list[dict]) -> list[Chart]:
    """Returns the charts that only some runs have, such as the loss scale."""
    names = ("gradient_norm", "sequences_per_sec", "loss_scale", "skipped_steps")
    norms, speeds, scales, skips = (curve(metrics, "train", name) for name in names)
    found = []
    if norms:
        curves = _curves(norms, "norm", palette.PURPLE, 2)
        found.append(Chart("Gradient norm", "mean over steps", curves, may_cut=True))
    if known := verdict.known(speeds):
        median = sorted(finite_values(known))[len(known) // 2]
        level = [(0, median), (known[-1][0], median)]
        middle = Curve("median", level, _TRAIN, format_number(median), "dashed")
        found.append(Chart("Throughput", "sequences per second", [Curve("", known, palette.SKY), middle]))
    if any(value not in (None, 1.0) for _, value in scales):
        curves = [Curve("scale", scales, palette.GREEN, f"{scales[-1][1] or 0:,.0f}")]
        found.append(Chart("Loss scale", "keeps small gradients from becoming 0", curves))
    totals = list(itertools.accumulate(count or 0 for _, count in skips))
    if totals and totals[-1]:
        points = [(0, 0.0), *((step, total) for (step, _), total in zip(skips, totals))]
        curves = [Curve("skipped", points, palette.ORANGE, f"{totals[-1]:,.0f}")]
        found.append(Chart("Skipped steps", "so far: a scaled gradient overflowed", curves))
    return found


# -----------------------------------------------------------------------------------------------------------
# Charts of several runs


# Runs beyond the number of colours reuse them, dashed.
_DASHES = ("-", (0, (4, 2)), (0, (1, 1.5)))


def look(number: int) -> tuple[str, Any]:
    """Returns (colour, dashes) for the run with this number."""
    lap, color = divmod(number, len(palette.COLORS))
    return palette.COLORS[color], _DASHES[lap % len(_DASHES)]


def compared_charts(
    runs: Mapping[str, list[dict]],
    metrics: Sequence[str],
    target: float | None = None,
    over: str = "step",
    with_training: bool = False,
) -> list[Chart]:
    """Returns the charts of the loss and the score of several runs.

    Args:
      runs: {name: lines of metrics.jsonl}.
      metrics: the score of each run.
      target: target score, drawn as a horizontal line; None for no line.
      over: step or samples.
      with_training: whether the training curves are also drawn, faint.
    """
    title, unit = metric_title(metrics[0]) if len(set(metrics)) == 1 else ("Score", "of each task")
    both = "nats; evaluation strong, training faint"
    charts = [
        Chart("Loss", both, [], may_cut=True) if with_training else Chart("Evaluation loss", "nats", []),
        Chart(title, unit, [], levels=[] if target is None else [("target", target, palette.MUTED)]),
    ]
    x_name = "sequences" if over == "samples" else over
    for number, ((run, lines), score) in enumerate(zip(runs.items(), metrics)):
        color, dashes = look(number)
        for chart, name in zip(charts, ("loss", score)):
            training, found = (curve(lines, split, name, over) for split in ("train", "eval"))
            if with_training:
                training = smoothed(training) if len(training) >= MIN_SMOOTHED else training
                text = "" if finite_values(found) else f"{last_value(training, 3)} train"
                label = "" if finite_values(found) or not finite_values(training) else run
                chart.curves.append(Curve(label, training, color, text, "faint", dashes))
            if found:
                chart.curves.append(Curve(run, found, color, last_value(found, 3), "dots", dashes))
    last = max((line.get(over) or 0 for lines in runs.values() for line in lines), default=0)
    return [dataclasses.replace(chart, x_name=x_name, x_last=last) for chart in charts]
