"""Runs side by side in one picture: the curves of all of them over the sequences they have seen."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from official.reporting import palette, plots
from official.reporting.comparison import Run, differing_settings, metric_of, run_target, setting
from official.reporting.comparison_table import short_values
from official.reporting.curves import curve, smoothed
from official.reporting.names import metric_title

if TYPE_CHECKING:
    import numpy as np
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_TRAINING_ONLY = " train"  # after the value of a run without evaluations
_LABEL_WIDTH, _CAPTION_WIDTH = 26, 150
# In inches. An inch of a label holds about thirteen characters.
_PANEL, _HEIGHT, _LEFT, _TOP, _BOTTOM, _CHARACTER, _LINE = 4.6, 3.9, 0.65, 0.7, 0.62, 0.075, 0.2
# Runs beyond the number of colours have them again, dashed.
_DASHES = ("-", (0, (4, 2)), (0, (1, 1.5)))


class _Look(NamedTuple):
    color: str
    dashes: str | tuple


def plot_comparison(runs: list[Run], target: float | None = None) -> Figure:
    """Draws loss and the metric that counts of all runs over sequences: evaluations strong, training faint, a
    colour for each run.

    Args:
      runs: of `comparison.read_runs`.
      target: of the metric, drawn as a line; None for the runs' stop_threshold where it is the same.

    Returns:
      A figure with two axes.
    """
    looks = [_look(number) for number in range(len(runs))]
    captions = _captions(runs)
    margin = _CHARACTER * (8 + len(_TRAINING_ONLY) + max(len(_label(run)) for run in runs))
    below = _LINE * (len(captions) + 1) if captions else 0
    width, height = 2 * (_LEFT + _PANEL + margin), _TOP + _HEIGHT + _BOTTOM + below
    last = max((line.get("samples") or 0 for run in runs for line in run.metrics), default=0)
    with plots.style():
        figure = plots.new_figure(width, height)
        loss, score = _two_axes(figure, margin, below)
        _draw_loss(loss, runs, looks)
        _draw_score(score, runs, looks, target)
        for axes in (loss, score):
            plots.finish_axes(axes, "sequences", last)
        for number, (look, (name, text)) in enumerate(zip(looks, captions)):
            at = 1 - (_TOP + _HEIGHT + _BOTTOM + _LINE * (number + 0.5)) / height
            figure.text(_LEFT / width, at, name, color=look.color, fontsize=9, fontweight="bold", va="center")
            figure.text((_LEFT + margin) / width, at, text, color=palette.INK, fontsize=9, va="center")
    return figure


def _two_axes(figure: Figure, margin: float, below: float) -> tuple[Axes, Axes]:
    """Returns two axes side by side, each with `margin` inches for labels at its right, `below` for
    captions."""
    width, height = figure.get_size_inches()
    grid = dict(
        left=_LEFT / width,
        right=1 - margin / width,
        wspace=(margin + _LEFT) / _PANEL,
        bottom=(below + _BOTTOM) / height,
        top=1 - _TOP / height,
    )
    left, right = figure.subplots(1, 2, gridspec_kw=grid)
    return left, right


def _look(number: int) -> _Look:
    lap, color = divmod(number, len(palette.COLORS))
    return _Look(palette.COLORS[color], _DASHES[lap % len(_DASHES)])


def _label(run: Run) -> str:
    return run.name if len(run.name) <= _LABEL_WIDTH else "\u2026" + run.name[1 - _LABEL_WIDTH :]


def _captions(runs: list[Run]) -> list[tuple[str, str]]:
    """Returns (name, the settings in which it differs from the others) for each run; none where only the seed
    differs."""
    names = differing_settings(runs)
    if not set(names) - {"seed"}:
        return []
    values = [short_values([setting(run, name) for run in runs]) for name in names]
    captions = []
    for number, run in enumerate(runs):
        text = ", ".join(f"{name} {column[number]}" for name, column in zip(names, values))
        captions.append((_label(run), text if len(text) <= _CAPTION_WIDTH else _cut(text)))
    return captions


def _cut(text: str) -> str:
    return text[: _CAPTION_WIDTH - 1] + "\u2026"


def _draw_loss(axes: Axes, runs: list[Run], looks: list[_Look]) -> None:
    import numpy as np

    plots.write_head(axes, "Loss", "nats; evaluation strong, training faint")
    labels = [label for run, look in zip(runs, looks) for label in _draw_run(axes, run, "loss", look)]
    values = _drawn_values(axes)
    if values.size:
        low, high = values.min(), np.quantile(values, 0.97)  # the first steps would take half of the height
        margin = 0.06 * (high - low) + 1e-6
        axes.set_ylim(low - margin, high + margin)
    plots.label_ends(axes, labels)


def _drawn_values(axes: Axes) -> np.ndarray:
    """Returns all heights of the curves that are finite."""
    import numpy as np

    values = np.array([value for line in axes.lines for value in np.asarray(line.get_ydata(), float)])
    return values[np.isfinite(values)]


def _draw_score(axes: Axes, runs: list[Run], looks: list[_Look], target: float | None) -> None:
    metrics = [metric_of(run) for run in runs]
    plots.write_head(axes, *(metric_title(metrics[0]) if len({*metrics}) == 1 else ("Score", "of each task")))
    labels = [
        label
        for run, metric, look in zip(runs, metrics, looks)
        for label in _draw_run(axes, run, metric, look)
    ]
    targets = {run_target(run, target) for run in runs}
    if len(targets) == 1:
        level = targets.pop()
        labels += plots.draw_level(axes, level, palette.MUTED, f"target {level or 0:g}")
    if (_drawn_values(axes) >= 0).all():  # a correlation may be below
        axes.set_ylim(bottom=0)
    plots.label_ends(axes, labels)


def _draw_run(axes: Axes, run: Run, name: str, look: _Look) -> list[plots.Label]:
    """Draws a metric of a run; returns the label for the end of its strongest curve."""
    training, evaluations = (curve(run.metrics, split, name, "samples") for split in ("train", "eval"))
    if len(training) >= plots.FEWEST_TO_SMOOTH:
        training = smoothed(training)
    colors = {"color": look.color, "linestyle": look.dashes}
    plots.draw_line(axes, training, most_dots=2, linewidth=1.1, alpha=0.35, zorder=3, **colors)
    plots.draw_line(axes, evaluations, most_dots=40, linewidth=1.9, zorder=4, **colors)
    if label := plots.end_label(evaluations, _label(run), look.color, 3):
        return label
    return [
        (value, text + _TRAINING_ONLY, color)
        for value, text, color in plots.end_label(training, _label(run), look.color, 3)
    ]
