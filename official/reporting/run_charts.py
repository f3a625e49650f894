"""The charts of a run: which of its numbers are drawn, each over the steps in a chart of its own."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from official.reporting import palette, verdict
from official.reporting.charts import Chart, Curve, draw, legend_value
from official.reporting.curves import Points, curve, smoothed, split_at
from official.reporting.names import format_number, format_power, metric_title

if TYPE_CHECKING:
    from official.reporting.result import TrainResult

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
