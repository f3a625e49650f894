"""Charts as HTML: curves in an SVG that stretches to its width, and bars."""

from __future__ import annotations

import dataclasses
import html
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from official.reporting import palette, verdict
from official.reporting.names import format_count, format_number, format_power, metric_title
from official.reporting.verdict import Points, curve, is_finite, smoothed, split_at, thinned

if TYPE_CHECKING:
    from official.reporting.result import TrainResult


# -----------------------------------------------------------------------------------------------------------
# Bars


@dataclasses.dataclass(frozen=True)
class Part:
    """A piece of a bar: its name, its value, at least 0, and its colour as CSS takes it."""

    name: str
    value: float
    color: str


@dataclasses.dataclass(frozen=True)
class Bar:
    """A bar: its name, its parts from left to right, and the text of its number."""

    name: str
    parts: Sequence[Part]
    text: str


def bars(rows: Sequence[Bar], legend: Sequence[str] = (), colors: Mapping[str, str] | None = None) -> str:
    """Returns bars from top to bottom, the longest as wide as the page; nothing where all are empty.

    Args:
      rows: the bars.
      legend: names of parts, explained above them.
      colors: of these.
    """
    longest = max((sum(part.value for part in bar.parts) for bar in rows), default=0)
    if not longest:
        return ""
    keys = "".join(
        f'<span><i class="key" style="border-color:{(colors or {})[name]}"></i>{html.escape(name)}</span>'
        for name in legend
    )
    top = f'<div class="legend">{keys}</div>' if keys else ""
    return f'<div class="bars">{top}{"".join(_bar(bar, longest) for bar in rows)}</div>'


def _bar(bar: Bar, longest: float) -> str:
    pieces = "".join(
        f'<i title="{html.escape(part.name)}"'
        f' style="width:{part.value / longest:.2%};background:{part.color}"></i>'
        for part in bar.parts
        if part.value
    )
    name, text = html.escape(bar.name), html.escape(bar.text)
    return f'<div class="bar"><span>{name}</span><b>{text}</b><div class="track">{pieces}</div></div>'


# -----------------------------------------------------------------------------------------------------------
# A chart
#
# The drawing has no text: stretched text is too small on a phone and too wide on a screen. Numbers at the
# axes and the names of the curves are HTML, put in place in percent.


_WIDTH, _HEIGHT = 1000, 400  # of the drawing's own units
_MOST_POINTS = 240  # of a line; a faint line has twice as many
_CUT = 3.0  # a vertical axis ends at this times what most of the values reach


@dataclasses.dataclass(frozen=True)
class Curve:
    """A line of a chart.

    Attributes:
      name: in the legend; empty for none.
      points: (x, y), sorted; None and what is not finite interrupt the line.
      color: as CSS takes it.
      value: what the legend says behind the name.
      kind: line, faint (raw values behind a line), dots (a line with its points) or dashed.
    """

    name: str
    points: Points
    color: str
    value: str = ""
    kind: str = "line"


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
    x_last: float | None = None  # unset: that of the last point
    digits: int = 3  # of the levels
    may_cut: bool = False  # whether a few huge values may lie above the axis


def draw(chart: Chart) -> str:
    """Returns the chart as HTML; an empty text where it has no finite value."""
    values = [y for curve in chart.curves for _, y in curve.points if is_finite(y)]
    if not values:
        return ""
    last = chart.x_last or max((x for curve in chart.curves for x, _ in curve.points), default=1) or 1
    low, high, cut = vertical_range(values, [value for _, value, _ in chart.levels], chart.may_cut)
    drawing = _Drawing(last, low, high)
    ticks, steps = nice_ticks(low, high, 4), nice_ticks(0, last, 4, whole=True)
    body = "".join(
        [
            drawing.grid(ticks),
            *(drawing.level(value, color) for _, value, color in chart.levels),
            *(drawing.mark(x, color) for _, x, color in chart.marks),
            *map(drawing.curve, chart.curves),
        ]
    )
    unit = " \u00b7 ".join(
        filter(
            None,
            [chart.unit, f"cut at {tick_text(high, ticks)}, highest {_short(max(values))}" if cut else ""],
        )
    )
    return (
        f'<figure class="chart"><figcaption><b>{html.escape(chart.title)}</b> '
        f'<span>{html.escape(unit)}</span></figcaption>{_legend(chart)}<div class="plot">'
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" width="100%" preserveAspectRatio="none" role="img" '
        f'aria-label="{html.escape(_describe(chart))}">{body}</svg>{_labels(drawing, ticks, steps)}'
        f'<span class="x-name">{html.escape(chart.x_name)}</span></div></figure>'
    )


def _short(value: float) -> str:
    return format_power(value) if value and not 0.001 <= abs(value) < 1e6 else f"{value:.4g}"


# ------------------------------------------------------------------------------------------------------------
# Axes


def vertical_range(
    values: Sequence[float], levels: Sequence[float] = (), may_cut: bool = False
) -> tuple[float, float, bool]:
    """Returns the ends of the vertical axis, and whether some values lie above it: a few huge ones may
    flatten all others.

    0 belongs to the axis where it costs less than 60 % of the height.
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


def tick_text(value: float, ticks: Sequence[float]) -> str:
    """Returns a number of the vertical axis, with as many digits as tell the ticks apart."""
    step = ticks[1] - ticks[0] if len(ticks) > 1 else abs(value) or 1
    if step < 0.001 or abs(value) >= 1e6:
        return format_power(value) if value else "0"
    if step >= 1 and abs(value) >= 1e4:
        return format_count(value)
    digits = max(0, -math.floor(math.log10(step) + 1e-9))
    if round(step * 10**digits, 6) % 1:  # 2.5 and the like
        digits += 1
    return f"{value:,.{digits}f}"


def _labels(drawing: _Drawing, ticks: list[float], steps: list[float]) -> str:
    rows = [
        f'<span class="y" style="top:{drawing.down(tick) / _HEIGHT:.2%}">{tick_text(tick, ticks)}</span>'
        for tick in ticks
    ]
    columns = [
        f'<span class="x" style="left:{drawing.right(step) / _WIDTH:.2%}">{format_count(step)}</span>'
        for step in steps
    ]
    return "".join(rows + columns)


# ------------------------------------------------------------------------------------------------------------
# Lines


class _Drawing:
    """Turns numbers into SVG. Lines keep their width however the drawing is stretched: `vector-effect`, in
    the page's style."""

    def __init__(self, last: float, low: float, high: float):
        self._last, self._low, self._high = last, low, high

    def right(self, x: float) -> float:
        return _WIDTH * x / self._last

    def down(self, y: float) -> float:
        return _HEIGHT * (self._high - y) / (self._high - self._low)

    def _at(self, x: float, y: float) -> str:
        return f"{self.right(x):.1f} {max(self.down(y), -2):.1f}".replace(".0", "")

    def grid(self, ticks: list[float]) -> str:
        return f'<path class="grid" d="{"".join(f"M0 {self.down(tick):.1f}H{_WIDTH}" for tick in ticks)}"/>'

    def level(self, value: float, color: str) -> str:
        return f'<path class="dashed" stroke="{color}" d="M0 {self.down(value):.1f}H{_WIDTH}"/>'

    def mark(self, x: float, color: str) -> str:
        return f'<path class="dashed" stroke="{color}" d="M{self.right(x):.1f} 0V{_HEIGHT}"/>'

    def curve(self, curve: Curve) -> str:
        points = thinned(curve.points, 2 * _MOST_POINTS if curve.kind == "faint" else _MOST_POINTS)
        path = "".join(("M" if start else "L") + self._at(x, y) for x, y, start in _strokes(points))
        kind = "line" if curve.kind == "dots" else curve.kind
        line = f'<path class="{kind}" stroke="{curve.color}" d="{path}"/>' if path else ""
        lone = [
            (x, y)
            for (x, y), after, before in _neighbours(points)
            if is_finite(y) and (curve.kind == "dots" or not (after or before))
        ]
        dots = "".join(f"M{self._at(x, y)}h.01" for x, y in lone)
        return line + (
            f'<path class="dots" stroke="{curve.color}" d="{dots}"/>'
            if dots and curve.kind != "faint"
            else ""
        )


def _strokes(points: Points) -> Iterator[tuple[float, float, bool]]:
    """Yields (x, y, whether a line starts there) of the finite points."""
    starts = True
    for x, y in points:
        if is_finite(y):
            yield x, y, starts
        starts = not is_finite(y)


def _neighbours(points: Points) -> Iterator[tuple[tuple[int, float | None], bool, bool]]:
    """Yields (point, whether the next one is finite, whether the one before is): one alone is no line and
    needs a dot."""
    finite = [is_finite(y) for _, y in points]
    yield from zip(points, finite[1:] + [False], [False] + finite[:-1])


# ------------------------------------------------------------------------------------------------------------
# Words


def legend_value(value: float, digits: int) -> str:
    """Returns a value of a curve, huge ones as powers of ten."""
    return f"{value:.{digits}f}" if abs(value) < 1e4 else format_power(value)


def _legend(chart: Chart) -> str:
    entries = [
        ("dashed" if curve.kind == "dashed" else "", curve.color, curve.name, curve.value)
        for curve in chart.curves
        if curve.name
    ]
    entries += [("dashed", color, name, f"{value:.{chart.digits}f}") for name, value, color in chart.levels]
    entries += [("dashed", color, name, "") for name, _, color in chart.marks if name]
    shown = [
        f'<span><i class="key {kind}" style="border-color:{color}"></i>{html.escape(name)} '
        f"<b>{html.escape(value)}</b></span>"
        for kind, color, name, value in entries
    ]
    return f'<div class="legend">{"".join(shown)}</div>'


def _describe(chart: Chart) -> str:
    """Returns the chart in words, for those who do not see it."""
    ends = [f"{curve.name} {curve.value}".strip() for curve in chart.curves if curve.name]
    ends += [f"{name} {value:.{chart.digits}f}" for name, value, _ in chart.levels] + [
        name for name, _, _ in chart.marks if name
    ]
    return f"{chart.title} over the {chart.x_name}: {', '.join(ends)}"


# -----------------------------------------------------------------------------------------------------------
# Charts of a run


_TRAIN, _EVAL, _TARGET, _CONSTANT = palette.BLUE, palette.VERMILION, palette.GREEN, palette.MUTED
_PARTS = {"mlm_loss": ("masked LM", palette.SKY), "nsp_loss": ("next sentence", palette.PURPLE)}
_FEWEST_TO_SMOOTH = 25
_MOST_DOTS = 60
_MOST_MARKS = 20
_MOST_RUNS = len(palette.COLORS)


def run_charts(metrics: list[dict], result: TrainResult) -> list[str]:
    """Returns the charts of a run as HTML; what it has no numbers of is left out.

    Args:
      metrics: lines of metrics.jsonl.
      result: the `TrainResult`.
    """
    last = max((line["step"] for line in metrics), default=0)
    charts = [
        _loss(metrics),
        _metric(metrics, result),
        _learning_rate(result, last),
        _gradient_norm(metrics),
        _throughput(metrics),
        _loss_scale(metrics),
        _skipped_steps(metrics),
    ]
    return list(
        filter(
            None, (draw(dataclasses.replace(chart, x_last=_end(chart, last))) for chart in charts if chart)
        )
    )


def _end(chart: Chart, last: int) -> int:
    """Returns the end of the horizontal axis: the last step in all charts of a run, but for those that look
    ahead."""
    return max([last, *(line.points[-1][0] for line in chart.curves if line.points)])


def compared_charts(runs: dict[str, list[dict]], metric: str) -> list[str]:
    """Returns evaluation loss and metric of several runs as HTML, {name: lines of metrics.jsonl}; of many
    runs the first ones."""
    charts = []
    for title, unit, name in (("Evaluation loss", "nats", "loss"), (*metric_title(metric), metric)):
        curves = [
            Curve(run, points, color, _last(points, 3), "dots")
            for (run, metrics), color in zip(list(runs.items())[:_MOST_RUNS], palette.COLORS)
            if (points := curve(metrics, "eval", name))
        ]
        charts.append(draw(Chart(title, unit, curves)))
    return list(filter(None, charts))


def _curves(points: Points, name: str, color: str, digits: int) -> list[Curve]:
    """A line; where there are many points, their mean over a few, in front of the faint raw ones."""
    if len(points) < _FEWEST_TO_SMOOTH:
        return [Curve(name, points, color, _last(points, digits))]
    smooth = smoothed(points)
    return [Curve("", points, color, kind="faint"), Curve(name, smooth, color, _last(smooth, digits))]


def _last(points: Points, digits: int) -> str:
    values = [value for _, value in points if value is not None]
    return legend_value(values[-1], digits) if values else ""


def _evaluations(points: Points, digits: int) -> list[Curve]:
    return (
        [
            Curve(
                "evaluation",
                points,
                _EVAL,
                _last(points, digits),
                "dots" if len(points) <= _MOST_DOTS else "line",
            )
        ]
        if points
        else []
    )


def _loss(metrics: list[dict]) -> Chart:
    train, evaluation = (curve(metrics, split, "loss") for split in ("train", "eval"))
    split = "train" if any("mlm_loss" in line for line in metrics if line["split"] == "train") else "eval"
    parts = [
        _curves(points, name, color, 2)[-1]
        for part, (name, color) in _PARTS.items()
        if (points := curve(metrics, split, part))
    ]
    curves = [*parts, *(_curves(train, "train", _TRAIN, 2) if train else []), *_evaluations(evaluation, 2)]
    bad = [step for step, value in train + evaluation if value is None][:_MOST_MARKS]
    marks = [("not finite" if number == 0 else "", step, palette.ALARM) for number, step in enumerate(bad)]
    return Chart("Loss", "nats", curves, marks=marks, x_name=_step_name(metrics), may_cut=True)


def _metric(metrics: list[dict], result: TrainResult) -> Chart:
    name = result.target_metric
    train, evaluation = (curve(metrics, split, name) for split in ("train", "eval"))
    levels = [
        (label, value, color)
        for label, value, color in (
            ("target", result.target, _TARGET),
            (f"always {verdict.constant_name(result)}", result.baseline_score, _CONSTANT),
        )
        if value is not None
    ]
    return Chart(
        *metric_title(name),
        [*(_curves(train, "train", _TRAIN, 3) if train else []), *_evaluations(evaluation, 3)],
        levels,
    )


def _learning_rate(result: TrainResult, last: int) -> Chart | None:
    """The schedule through its corners, what is still to come dashed; none for an evaluation, or a result
    from before it was kept."""
    known = sorted((int(step), rate) for step, rate in result.learning_rates.items())
    if not known:
        return None
    peak_step, peak = max(known, key=lambda point: (point[1], -point[0]))
    done, ahead = split_at(known, last)
    curves = (
        [Curve("done", done, _TRAIN, f"to step {last:,}")]
        if ahead and done
        else [Curve("", done or ahead, _TRAIN)]
    )
    curves += [Curve("still to come", ahead, _CONSTANT, kind="dashed")] if ahead and done else []
    curves.append(
        Curve("peak", [(peak_step, peak)], _EVAL, f"{format_power(peak)} at step {peak_step:,}", "dots")
    )
    return Chart("Learning rate", "the schedule", curves)


def _gradient_norm(metrics: list[dict]) -> Chart | None:
    points = curve(metrics, "train", "gradient_norm")
    return (
        Chart("Gradient norm", "mean over steps", _curves(points, "norm", palette.PURPLE, 2), may_cut=True)
        if points
        else None
    )


def _throughput(metrics: list[dict]) -> Chart | None:
    points = [
        (step, value) for step, value in curve(metrics, "train", "sequences_per_sec") if value is not None
    ]
    if not points:
        return None
    median = sorted(value for _, value in points)[len(points) // 2]
    curves = [
        Curve("", points, palette.SKY),
        Curve("median", [(0, median), (points[-1][0], median)], _TRAIN, format_number(median), "dashed"),
    ]
    return Chart("Throughput", "sequences per second", curves)


def _loss_scale(metrics: list[dict]) -> Chart | None:
    """Only where losses are scaled."""
    points = curve(metrics, "train", "loss_scale")
    if all(value in (None, 1.0) for _, value in points):
        return None
    return Chart(
        "Loss scale",
        "keeps small gradients from becoming 0",
        [Curve("scale", points, palette.GREEN, f"{points[-1][1] or 0:,.0f}")],
    )


def _skipped_steps(metrics: list[dict]) -> Chart | None:
    """Only where there are any."""
    points, total = [(0, 0.0)], 0.0
    for step, count in curve(metrics, "train", "skipped_steps"):
        total += count or 0
        points.append((step, total))
    return (
        Chart(
            "Skipped steps",
            "so far: a scaled gradient overflowed",
            [Curve("skipped", points, palette.ORANGE, f"{total:,.0f}")],
        )
        if total
        else None
    )


def _step_name(metrics: list[dict]) -> str:
    sizes = {line["samples"] / line["step"] for line in metrics if line.get("samples") and line.get("step")}
    size = sizes.pop() if len(sizes) == 1 else 0
    return f"step of {size:,.0f} sequences" if size >= 1 else "step"
