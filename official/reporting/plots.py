"""The picture of a run, and the parts that pictures of runs are made of."""

import io
import os

from official.io.writing import replace_file
from official.reporting import palette
from official.reporting.curves import split_at
from official.reporting.metrics import read_metrics
from official.reporting.names import format_number, format_power, metric_title
from official.reporting.result import read_result

_TRAIN, _EVAL, _TARGET, _MASKED_LM, _NEXT_SENTENCE = (
    palette.BLUE,
    palette.VERMILION,
    palette.GREEN,
    palette.SKY,
    palette.PURPLE,
)

_STYLE = {
    "font.size": 9.5,
    "axes.edgecolor": "#b6bcc4",
    "xtick.color": "#8c949e",
    "xtick.labelcolor": palette.MUTED,
    "ytick.labelcolor": palette.MUTED,
    "axes.labelcolor": palette.MUTED,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.spines.left": False,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "grid.color": palette.GRID,
    "grid.linewidth": 0.8,
    "axes.axisbelow": True,
    "ytick.major.size": 0,
    "lines.solid_capstyle": "round",
    "figure.facecolor": "white",
    "axes.facecolor": "white",
}
# In inches; the margin on the right of each plot holds the labels of its curves.
_WIDTH, _HEIGHT, _LEFT, _LABELS, _TOP, _BOTTOM, _TITLE = 12.0, 7.0, 0.65, 1.85, 0.62, 0.62, 0.42
_LABEL_GAP = 0.075  # of the height of the axes
_MOST_POINTS = 1500
FEWEST_TO_SMOOTH = 25


def plot_run(
    metrics: list[dict],
    target: float | None = None,
    majority: float | None = None,
    title: str | None = None,
    metric: str = "mlm_accuracy",
    majority_name: str = "most frequent",
    learning_rates: dict[int, float] | None = None,
):
    """Draws loss, the metric of the run, learning rate and throughput over its steps.

    Args:
      metrics: the lines of metrics.jsonl; any may be missing or hold None.
      target: value of the metric to reach, drawn as a line.
      majority: value of always predicting the same, drawn as a line.
      title: stands above the four plots.
      metric: name of the metric that the run is judged by.
      majority_name: what that is the same of: a token, a label.
      learning_rates: {step: rate} at the corners of the schedule; without it the rates that the metrics hold
        are drawn.

    Returns:
      A matplotlib Figure with four axes, on the Agg canvas.
    """
    with style():
        figure = new_figure(_WIDTH, _HEIGHT + (_TITLE if title else 0))
        ((loss, accuracy), (rate, throughput)) = _four_axes(figure, title)
        _draw_loss(loss, metrics)
        _draw_metric(accuracy, metrics, metric, (target, "target"), (majority, majority_name))
        _draw_learning_rate(rate, metrics, learning_rates or {})
        _draw_throughput(throughput, metrics)
        for axes in (loss, accuracy, rate, throughput):
            finish_axes(axes, _step_label(metrics), max((record["step"] for record in metrics), default=0))
    return figure


def save_picture(model_dir: str, path: str) -> None:
    """Draws the run in `model_dir` into the file `path`, in the format of its ending (png, svg, pdf)."""
    result = read_result(model_dir)
    metric = {"metric": result["target_metric"]} if "target_metric" in result else {}
    name = (
        {"majority_name": f"always \u201c{result['majority_prediction']}\u201d"}
        if result.get("majority_prediction")
        else {}
    )
    figure = plot_run(
        read_metrics(model_dir),
        result.get("target"),
        result.get("majority_accuracy"),
        **metric,
        **name,
        learning_rates=result.get("learning_rates"),
    )
    replace_file(path, render(figure, os.path.splitext(path)[1][1:]))


def style():
    """Returns a context in which figures are made and drawn in the style of all pictures."""
    import matplotlib  # late, here and below: it takes long to load

    return matplotlib.rc_context(_STYLE)


def new_figure(width: float, height: float):
    """Returns an empty matplotlib Figure, in inches, on the Agg canvas: it needs no screen and no global
    state."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height))
    FigureCanvasAgg(figure)
    return figure


def _four_axes(figure, title: str | None):
    """Returns two by two axes with the same margins, whatever their labels, below the title."""
    height = figure.get_size_inches()[1]
    column = (_WIDTH - 2 * (_LEFT + _LABELS)) / 2
    row = (_HEIGHT - 2 * (_TOP + _BOTTOM)) / 2
    if title:
        figure.text(
            _LEFT / _WIDTH, 1 - 0.38 / height, title, fontsize=14, fontweight="bold", color=palette.INK
        )
    return figure.subplots(
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


def write_head(axes, title: str, unit: str) -> None:
    """Writes the title and, smaller below it, the unit of the vertical axis."""
    axes.set_title(title, loc="left", fontsize=11, fontweight="bold", color=palette.INK, pad=24)
    axes.annotate(
        unit,
        (0, 1),
        xycoords="axes fraction",
        xytext=(0, 10),
        textcoords="offset points",
        color=palette.MUTED,
        fontsize=9,
    )


def render(figure, image_format: str) -> bytes:
    """Returns the figure as a file of the format: png, svg or pdf."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format=image_format, dpi=170)
    return buffer.getvalue()


def _draw_loss(axes, metrics: list[dict]) -> None:
    write_head(axes, "Loss", "nats")
    parts = "train" if _has(metrics, "train", "mlm_loss") else "eval"
    labels = [
        _draw_curve(axes, metrics, parts, "nsp_loss", _NEXT_SENTENCE, "next sentence", width=1.1),
        _draw_curve(axes, metrics, parts, "mlm_loss", _MASKED_LM, "masked LM", width=1.1),
        _draw_curve(axes, metrics, "train", "loss", _TRAIN, "train"),
        _draw_curve(axes, metrics, "eval", "loss", _EVAL, "evaluation"),
    ]
    axes.set_ylim(bottom=0)
    label_ends(axes, labels)
    _mark_non_finite(axes, metrics)


def _draw_metric(axes, metrics: list[dict], metric: str, *levels: tuple[float | None, str]) -> None:
    write_head(axes, *metric_title(metric))
    labels = [
        _draw_curve(axes, metrics, "train", metric, _TRAIN, "train", digits=3),
        _draw_curve(axes, metrics, "eval", metric, _EVAL, "evaluation", digits=3),
        *(
            draw_level(axes, value, color, f"{name} {value or 0:.3f}")
            for (value, name), color in zip(levels, (_TARGET, palette.MUTED))
        ),
    ]
    axes.set_ylim(bottom=min(axes.get_ylim()[0], 0))
    label_ends(axes, labels)


def _draw_learning_rate(axes, metrics: list[dict], rates: dict[int, float]) -> None:
    """Draws the schedule up to the last step, through its corners, and its peak."""
    write_head(axes, "Learning rate", "at each step")
    last = max((record["step"] for record in metrics), default=0)
    corners = sorted((int(step), rate) for step, rate in rates.items())
    done = split_at(corners, last)[0] if corners else []
    lines = [{"split": "train", "step": step, "learning_rate": rate} for step, rate in done] or metrics
    _draw_curve(axes, lines, "train", "learning_rate", _TRAIN, "", smooth=False)
    axes.set_ylim(bottom=0)
    steps, values = series(lines, "train", "learning_rate")
    label_ends(
        axes,
        [
            (peak, f"peak {format_power(peak)}", _TRAIN)
            for peak in finite(values[steps <= last]).max(initial=0, keepdims=True)
            if peak > 0
        ],
    )


def _draw_throughput(axes, metrics: list[dict]) -> None:
    import numpy as np

    write_head(axes, "Throughput", "sequences per second")
    _draw_curve(axes, metrics, "train", "sequences_per_sec", _MASKED_LM, "", width=1.0, smooth=False)
    speeds = finite(series(metrics, "train", "sequences_per_sec")[1])
    if speeds.size:
        median = float(np.median(speeds))
        axes.set_ylim(0, 1.15 * max(median, speeds.max()) or 1)
        label_ends(axes, [draw_level(axes, median, _TRAIN, f"median {format_number(median)}")])


def _has(metrics: list[dict], split: str, name: str) -> bool:
    return any(record.get("split") == split and record.get(name) is not None for record in metrics)


def series(metrics: list[dict], split: str, name: str, over: str = "step"):
    """Returns one metric of one split over `over` (step or samples): two float64 arrays, sorted; null is
    NaN."""
    import numpy as np

    points = [
        (record[over], np.nan if record[name] is None else record[name])
        for record in metrics
        if record.get("split") == split and name in record and record.get(over) is not None
    ]
    array = np.array(sorted(points, key=lambda point: point[0]), dtype=float).reshape(-1, 2)
    return array[:, 0], array[:, 1]


def finite(values):
    """Returns the finite ones of an array's values."""
    import numpy as np

    return values[np.isfinite(values)]


def smoothed(values):
    """Returns the mean over a window of a fiftieth of the points on either side, NaN left out.

    The window narrows towards the start, so that it stays centred and the steep first part is not flattened.
    At the end it keeps its length to the left, so that the last value is a mean and not a noisy point.
    """
    import numpy as np

    finite = np.isfinite(values)
    sums = np.concatenate([[0.0], np.cumsum(np.where(finite, values, 0.0))])
    counts = np.concatenate([[0], np.cumsum(finite)])
    at = np.arange(len(values))
    left = np.minimum(at, max(1, len(values) // 50))
    right = np.minimum(left, at[::-1])
    total, count = sums[at + right + 1] - sums[at - left], counts[at + right + 1] - counts[at - left]
    return np.where(count > 0, total / np.maximum(count, 1), np.nan)


def thinned(*arrays):
    """Returns the arrays with at most _MOST_POINTS evenly spaced elements, the first and the last among
    them."""
    import numpy as np

    if len(arrays[0]) <= _MOST_POINTS:
        return arrays
    kept = np.linspace(0, len(arrays[0]) - 1, _MOST_POINTS).round().astype(int)
    return tuple(array[kept] for array in arrays)


def _draw_curve(
    axes,
    metrics: list[dict],
    split: str,
    name: str,
    color: str,
    label: str,
    width: float = 1.8,
    smooth: bool = True,
    digits: int = 2,
):
    """Draws one metric of one split: smoothed over its faint raw values where there are many points, dots
    where few.

    Returns:
      (value, text, colour) of the label for the end of the curve, or None where there is nothing to draw.
    """
    import numpy as np

    steps, values = series(metrics, split, name)
    if not np.isfinite(values).any():
        return None
    smooth = smooth and split == "train" and len(values) >= FEWEST_TO_SMOOTH
    steps, raw, line = thinned(steps, values, smoothed(values) if smooth else values)
    if smooth and width > 1.5:
        axes.plot(steps, raw, color=color, alpha=0.22, linewidth=0.8)
    few = len(line) <= (40 if split == "eval" else 10)
    dots = {"marker": "o", "markersize": 3.6, "markeredgewidth": 0, "clip_on": False} if few else {}
    axes.plot(steps, line, color=color, linewidth=width, zorder=4 if split == "eval" else 3, **dots)
    last = float(line[np.isfinite(line)][-1])
    return last, f"{label} {last:.{digits}f}", color


def draw_level(axes, value: float | None, color: str, label: str):
    """Draws a dashed horizontal line where there is a value; returns its label as _draw_curve does."""
    if value is None:
        return None
    axes.axhline(value, color=color, linewidth=1.2, linestyle=(0, (5, 3)), zorder=3.5)
    return value, label, color


def label_ends(axes, labels: list) -> None:
    """Writes labels right of the axes, each at the height of its value or as near as the others allow.

    Args:
      labels: (value, text, colour); None is left out. More than fourteen are written smaller.
    """
    labels = sorted(label for label in labels if label)
    low, high = axes.get_ylim()
    gap = min(_LABEL_GAP, 1 / max(len(labels) - 1, 1))
    heights = spread_heights([(value - low) / (high - low) for value, _, _ in labels], gap)
    for height, (_, text, color) in zip(heights, labels):
        axes.annotate(
            text,
            (1, height),
            xycoords="axes fraction",
            xytext=(6, 0),
            textcoords="offset points",
            va="center",
            color=color,
            fontsize=9 * gap / _LABEL_GAP,
            annotation_clip=False,
        )


def spread_heights(heights: list[float], gap: float) -> list[float]:
    """Moves sorted heights as little as makes them `gap` apart and keeps them within 0 to 1.

    Least squares under an order: isotonic regression, by pooling neighbours, of the heights less their share
      of gaps.
    """
    pools = []
    for index, height in enumerate(heights):
        pools.append([height - index * gap, 1])
        while len(pools) > 1 and pools[-2][0] > pools[-1][0]:
            (first, first_size), (second, second_size) = pools[-2:]
            pools[-2:] = [
                [
                    (first * first_size + second * second_size) / (first_size + second_size),
                    first_size + second_size,
                ]
            ]
    top = 1 - (len(heights) - 1) * gap
    bases = [min(max(base, 0.0), top) for base, size in pools for _ in range(size)]
    return [base + index * gap for index, base in enumerate(bases)]


def _mark_non_finite(axes, metrics: list[dict]) -> None:
    """Marks the steps whose loss is not finite."""
    steps = [record["step"] for record in metrics if "loss" in record and record["loss"] is None]
    for step in steps[:20]:
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


def finish_axes(axes, label: str, last: float) -> None:
    """Sets the ticks, and the horizontal axis from 0 to `last` under its label."""
    from matplotlib.ticker import MaxNLocator

    axes.set_xlim(0, max(1, last))
    axes.xaxis.set_major_locator(MaxNLocator(nbins=5, integer=True, steps=[1, 2, 5, 10]))
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.set_xlabel(label)
    axes.yaxis.set_major_locator(MaxNLocator(nbins=7, steps=[1, 2, 2.5, 5, 10]))
    axes.yaxis.set_major_formatter(
        lambda value, _: format_power(value) if 0 < value < 0.005 else f"{value:,.10g}"
    )
    if not axes.lines:
        axes.text(
            0.5, 0.5, "no data", transform=axes.transAxes, ha="center", va="center", color=palette.MUTED
        )
        axes.set_yticks([])


def _step_label(metrics: list[dict]) -> str:
    """Returns the label of the horizontal axis, with the sequences of a step where they are the same all
    along."""
    sizes = {
        record["samples"] / record["step"]
        for record in metrics
        if record.get("samples") and record.get("step")
    }
    size = sizes.pop() if len(sizes) == 1 else 0
    return f"step ({size:,.0f} sequences each)" if size >= 1 else "step"
