"""The picture of a run: its loss, its metric, the learning rate and the throughput over the steps."""

from __future__ import annotations

import os
import statistics
from typing import TYPE_CHECKING

from official.io.writing import replace_file
from official.reporting import palette, plots
from official.reporting.metrics import read_metrics
from official.reporting.names import format_number, format_power, metric_title
from official.reporting.result import read_result
from official.reporting.verdict import Points, curve, finite_values, smoothed, split_at

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_TRAIN, _EVAL, _TARGET = palette.BLUE, palette.VERMILION, palette.GREEN
_MASKED_LM, _NEXT_SENTENCE = palette.SKY, palette.PURPLE
# In inches; the margin on the right of each plot holds the labels of its curves.
_WIDTH, _HEIGHT, _LEFT, _LABELS, _TOP, _BOTTOM, _TITLE = 12.0, 7.0, 0.65, 1.85, 0.62, 0.62, 0.42
_MOST_MARKS = 20


def plot_run(
    metrics: list[dict],
    target: float | None = None,
    baseline: float | None = None,
    title: str | None = None,
    metric: str = "mlm_accuracy",
    baseline_name: str = "most frequent",
    learning_rates: dict[int, float] | None = None,
) -> Figure:
    """Draws loss, the metric of the run, learning rate and throughput over its steps.

    Args:
      metrics: the lines of metrics.jsonl; any may be missing or hold None.
      target: value of the metric to reach, drawn as a line.
      baseline: value of always predicting the same, drawn as a line.
      title: stands above the four plots.
      metric: name of the metric that the run is judged by.
      baseline_name: what that is the same of: a token, a label.
      learning_rates: {step: rate} at the corners of the schedule; without it the rates that the metrics hold
        are drawn.

    Returns:
      A figure with four axes, on the Agg canvas.
    """
    last = max((record["step"] for record in metrics), default=0)
    with plots.style():
        figure = plots.new_figure(_WIDTH, _HEIGHT + (_TITLE if title else 0))
        loss, accuracy, rate, throughput = four = _four_axes(figure, title)
        _draw_loss(loss, metrics)
        _draw_metric(accuracy, metrics, metric, (target, "target"), (baseline, baseline_name))
        _draw_learning_rate(rate, metrics, learning_rates or {}, last)
        _draw_throughput(throughput, metrics)
        for axes in four:
            plots.finish_axes(axes, _step_label(metrics), last)
    return figure


def save_picture(model_dir: str, path: str) -> None:
    """Draws the run in `model_dir` into the file `path`, in the format of its ending (png, svg, pdf)."""
    result = read_result(model_dir)
    names = {}
    if "target_metric" in result:
        names["metric"] = result["target_metric"]
    if result.get("majority_prediction"):
        names["baseline_name"] = f"always \u201c{result['majority_prediction']}\u201d"
    figure = plot_run(
        read_metrics(model_dir),
        result.get("target"),
        result.get("majority_accuracy"),
        learning_rates=result.get("learning_rates"),
        **names,
    )
    replace_file(path, plots.render(figure, os.path.splitext(path)[1][1:]))


def _four_axes(figure: Figure, title: str | None) -> list[Axes]:
    """Returns two by two axes, by rows, with the same margins, whatever their labels, below the title."""
    height = figure.get_size_inches()[1]
    column = (_WIDTH - 2 * (_LEFT + _LABELS)) / 2
    row = (_HEIGHT - 2 * (_TOP + _BOTTOM)) / 2
    if title:
        at = _LEFT / _WIDTH, 1 - 0.38 / height
        figure.text(*at, title, fontsize=14, fontweight="bold", color=palette.INK)
    axes = figure.subplots(
        2,
        2,
        gridspec_kw=dict(
            left=_LEFT / _WIDTH,
            right=1 - _LABELS / _WIDTH,
            wspace=(_LABELS + _LEFT) / column,
            bottom=_BOTTOM / height,
            top=(_HEIGHT - _TOP) / height,
            hspace=(_TOP + _BOTTOM) / row,
        ),
    )
    return list(axes.flat)


def _step_label(metrics: list[dict]) -> str:
    """Returns the label of the horizontal axis, with the sequences of a step where all steps have as many."""
    known = [record for record in metrics if record.get("samples") and record.get("step")]
    sizes = {record["samples"] / record["step"] for record in known}
    size = sizes.pop() if len(sizes) == 1 else 0
    return f"step ({size:,.0f} sequences each)" if size >= 1 else "step"


# ------------------------------------------------------------------------------------------------------------
# The four plots


def _draw_loss(axes: Axes, metrics: list[dict]) -> None:
    plots.write_head(axes, "Loss", "nats")
    split = "train" if any(value is not None for _, value in curve(metrics, "train", "mlm_loss")) else "eval"
    labels = [
        *_draw_part(axes, curve(metrics, split, "nsp_loss"), _NEXT_SENTENCE, "next sentence"),
        *_draw_part(axes, curve(metrics, split, "mlm_loss"), _MASKED_LM, "masked LM"),
        *_draw_training(axes, curve(metrics, "train", "loss")),
        *_draw_evaluations(axes, curve(metrics, "eval", "loss")),
    ]
    axes.set_ylim(bottom=0)
    plots.label_ends(axes, labels)
    _mark_non_finite(axes, metrics)


def _draw_metric(axes: Axes, metrics: list[dict], metric: str, *levels: tuple[float | None, str]) -> None:
    plots.write_head(axes, *metric_title(metric))
    labels = [
        *_draw_training(axes, curve(metrics, "train", metric), digits=3),
        *_draw_evaluations(axes, curve(metrics, "eval", metric), digits=3),
    ]
    for (value, name), color in zip(levels, (_TARGET, palette.MUTED)):
        labels += plots.draw_level(axes, value, color, f"{name} {value or 0:.3f}")
    axes.set_ylim(bottom=min(axes.get_ylim()[0], 0))
    plots.label_ends(axes, labels)


def _draw_learning_rate(axes: Axes, metrics: list[dict], rates: dict[int, float], last: int) -> None:
    """Draws the schedule up to the last step, through its corners, and its peak."""
    plots.write_head(axes, "Learning rate", "at each step")
    corners = sorted((int(step), rate) for step, rate in rates.items())
    done = split_at(corners, last)[0] if corners else []
    points = done or curve(metrics, "train", "learning_rate")
    plots.draw_line(axes, points, most_dots=10, color=_TRAIN, linewidth=1.8, clip_on=False)
    axes.set_ylim(bottom=0)
    peak = max(finite_values(points), default=0)
    plots.label_ends(axes, [(peak, f"peak {format_power(peak)}", _TRAIN)] if peak > 0 else [])


def _draw_throughput(axes: Axes, metrics: list[dict]) -> None:
    plots.write_head(axes, "Throughput", "sequences per second")
    points = curve(metrics, "train", "sequences_per_sec")
    plots.draw_line(axes, points, most_dots=10, color=_MASKED_LM, linewidth=1.0, clip_on=False)
    speeds = finite_values(points)
    if speeds:
        median = statistics.median(speeds)
        axes.set_ylim(0, 1.15 * max(speeds) or 1)
        plots.label_ends(axes, plots.draw_level(axes, median, _TRAIN, f"median {format_number(median)}"))


# ------------------------------------------------------------------------------------------------------------
# Their curves


def _draw_training(axes: Axes, points: Points, digits: int = 2) -> list[plots.Label]:
    """Draws a metric of training, where there are many points as their mean in front of the faint values."""
    if len(points) >= plots.FEWEST_TO_SMOOTH:
        plots.draw_line(axes, points, color=_TRAIN, alpha=0.22, linewidth=0.8, clip_on=False)
        points = smoothed(points)
    plots.draw_line(axes, points, most_dots=10, color=_TRAIN, linewidth=1.8, zorder=3, clip_on=False)
    return plots.end_label(points, "train", _TRAIN, digits)


def _draw_evaluations(axes: Axes, points: Points, digits: int = 2) -> list[plots.Label]:
    plots.draw_line(axes, points, most_dots=40, color=_EVAL, linewidth=1.8, zorder=4, clip_on=False)
    return plots.end_label(points, "evaluation", _EVAL, digits)


def _draw_part(axes: Axes, points: Points, color: str, name: str) -> list[plots.Label]:
    """Draws a part of the loss, thinner."""
    points = smoothed(points) if len(points) >= plots.FEWEST_TO_SMOOTH else points
    plots.draw_line(axes, points, most_dots=10, color=color, linewidth=1.1, zorder=3, clip_on=False)
    return plots.end_label(points, name, color)


def _mark_non_finite(axes: Axes, metrics: list[dict]) -> None:
    """Marks the steps whose loss is not finite."""
    steps = [record["step"] for record in metrics if "loss" in record and record["loss"] is None]
    for step in steps[:_MOST_MARKS]:
        axes.axvline(step, color=palette.ALARM, linewidth=1, alpha=0.7, linestyle=":")
    if steps:
        axes.annotate(
            "loss not finite",
            (steps[0], 1),
            xycoords=("data", "axes fraction"),
            xytext=(-4, -8),
            textcoords="offset points",
            ha="right",
            va="top",
            color=palette.ALARM,
            fontsize=8.5,
        )
