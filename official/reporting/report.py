"""The picture of a run, and the page around it: report.html, one file that opens without a network."""

import base64
import html
import io
import json
import os

import tensorflow as tf

from official import config as config_lib
from official.reporting.metrics import plain_value, read_metrics, replace_file
from official.reporting.progress import format_secs
from official.reporting.result import FILE_NAME as RESULT_FILE_NAME
from official.reporting.result import TrainResult, result_dict
from official.reporting.summary import ParameterRow, format_total

FILE_NAME = "report.html"

# Okabe and Ito's colours, which colour-blind readers can tell apart.
_TRAIN, _EVAL, _TARGET, _MASKED_LM, _NEXT_SENTENCE = "#0072B2", "#D55E00", "#00865F", "#56A5DC", "#B184C0"
_INK, _MUTED, _GRID = "#24292f", "#6e7781", "#e6e8eb"

_STYLE = {
    "font.size": 9.5, "axes.edgecolor": "#b6bcc4", "xtick.color": "#8c949e", "xtick.labelcolor": _MUTED, "ytick.labelcolor": _MUTED,
    "axes.labelcolor": _MUTED, "axes.spines.top": False, "axes.spines.right": False, "axes.spines.left": False, "axes.grid": True,
    "axes.grid.axis": "y", "grid.color": _GRID, "grid.linewidth": 0.8, "axes.axisbelow": True, "ytick.major.size": 0,
    "lines.solid_capstyle": "round", "figure.facecolor": "white", "axes.facecolor": "white",
}
# In inches; the margin on the right of each plot holds the labels of its curves.
_WIDTH, _HEIGHT, _LEFT, _LABELS, _TOP, _BOTTOM, _TITLE = 12.0, 7.0, 0.65, 1.85, 0.62, 0.62, 0.42
_MOST_POINTS = 1500
_FEWEST_TO_SMOOTH = 25


# ---------------------------------------------------------------------------------------------------------------------
# The picture.


def plot_run(metrics: list[dict], target: float | None = None, majority: float | None = None, title: str | None = None):
    """Draws loss, masked-LM accuracy, learning rate and throughput of a run over its steps.

    Args:
      metrics: the lines of metrics.jsonl; any may be missing or hold None.
      target: masked-LM accuracy to reach, drawn as a line.
      majority: masked-LM accuracy of always predicting the most frequent token, drawn as a line.
      title: stands above the four plots.

    Returns:
      A matplotlib Figure with four axes, on the Agg canvas.
    """
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=(_WIDTH, _HEIGHT + (_TITLE if title else 0)))
        FigureCanvasAgg(figure)
        ((loss, accuracy), (rate, throughput)) = _four_axes(figure, title)
        _draw_loss(loss, metrics)
        _draw_accuracy(accuracy, metrics, target, majority)
        _draw_learning_rate(rate, metrics)
        _draw_throughput(throughput, metrics)
        for axes in (loss, accuracy, rate, throughput):
            _finish_axes(axes, metrics)
    return figure


def save_picture(model_dir: str, path: str, title: str | None = None) -> None:
    """Draws the run in `model_dir` into the file `path`, in the format of its ending (png, svg, pdf)."""
    result = _read_json(os.path.join(model_dir, RESULT_FILE_NAME))
    figure = plot_run(read_metrics(model_dir), result.get("target"), result.get("majority_accuracy"), title)
    replace_file(path, _render(figure, os.path.splitext(path)[1][1:] or "png"))


def _four_axes(figure, title: str | None):
    """Returns two by two axes with the same margins, whatever their labels, below the title."""
    height = figure.get_size_inches()[1]
    column = (_WIDTH - 2 * (_LEFT + _LABELS)) / 2
    row = (_HEIGHT - 2 * (_TOP + _BOTTOM)) / 2
    if title:
        figure.text(_LEFT / _WIDTH, 1 - 0.38 / height, title, fontsize=14, fontweight="bold", color=_INK)
    return figure.subplots(2, 2, gridspec_kw=dict(
        left=_LEFT / _WIDTH, right=1 - _LABELS / _WIDTH, wspace=(_LABELS + _LEFT) / column, bottom=_BOTTOM / height,
        top=(_HEIGHT - _TOP) / height, hspace=(_TOP + _BOTTOM) / row))


def _head(axes, title: str, unit: str) -> None:
    """Writes the title and, smaller below it, the unit of the vertical axis."""
    axes.set_title(title, loc="left", fontsize=11, fontweight="bold", color=_INK, pad=24)
    axes.annotate(unit, (0, 1), xycoords="axes fraction", xytext=(0, 10), textcoords="offset points", color=_MUTED, fontsize=9)


def _render(figure, image_format: str) -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, format=image_format, dpi=170)
    return buffer.getvalue()


def _draw_loss(axes, metrics: list[dict]) -> None:
    _head(axes, "Loss", "nats")
    parts = "train" if _has(metrics, "train", "mlm_loss") else "eval"
    labels = [
        _draw_curve(axes, metrics, parts, "nsp_loss", _NEXT_SENTENCE, "next sentence", width=1.1),
        _draw_curve(axes, metrics, parts, "mlm_loss", _MASKED_LM, "masked LM", width=1.1),
        _draw_curve(axes, metrics, "train", "loss", _TRAIN, "train"),
        _draw_curve(axes, metrics, "eval", "loss", _EVAL, "evaluation"),
    ]
    axes.set_ylim(bottom=0)
    _label_ends(axes, labels)
    _mark_non_finite(axes, metrics)


def _draw_accuracy(axes, metrics: list[dict], target: float | None, majority: float | None) -> None:
    _head(axes, "Masked-LM accuracy", "fraction of masked tokens predicted right")
    labels = [
        _draw_curve(axes, metrics, "train", "mlm_accuracy", _TRAIN, "train", digits=3),
        _draw_curve(axes, metrics, "eval", "mlm_accuracy", _EVAL, "evaluation", digits=3),
        _draw_level(axes, target, _TARGET, f"target {target or 0:.3f}"),
        _draw_level(axes, majority, _MUTED, f"most frequent token {majority or 0:.3f}"),
    ]
    axes.set_ylim(bottom=0)
    _label_ends(axes, labels)


def _draw_learning_rate(axes, metrics: list[dict]) -> None:
    _head(axes, "Learning rate", "at each step")
    _draw_curve(axes, metrics, "train", "learning_rate", _TRAIN, "", smooth=False)
    axes.set_ylim(bottom=0)
    _, rates = _series(metrics, "train", "learning_rate")
    _label_ends(axes, [(peak, f"peak {_power(peak)}", _TRAIN) for peak in _finite(rates).max(initial=0, keepdims=True) if peak > 0])


def _draw_throughput(axes, metrics: list[dict]) -> None:
    import numpy as np

    _head(axes, "Throughput", "sequences per second")
    _draw_curve(axes, metrics, "train", "sequences_per_sec", _MASKED_LM, "", width=1.0, smooth=False)
    speeds = _finite(_series(metrics, "train", "sequences_per_sec")[1])
    if speeds.size:
        median = float(np.median(speeds))
        axes.set_ylim(0, 1.15 * max(median, speeds.max()) or 1)
        _label_ends(axes, [_draw_level(axes, median, _TRAIN, f"median {_number(median)}")])


def _has(metrics: list[dict], split: str, name: str) -> bool:
    return any(record.get("split") == split and record.get(name) is not None for record in metrics)


def _series(metrics: list[dict], split: str, name: str):
    """Returns steps and values as float64 arrays, sorted by step; null is NaN."""
    import numpy as np

    points = [(record["step"], np.nan if record[name] is None else record[name]) for record in metrics
              if record.get("split") == split and name in record]
    array = np.array(sorted(points, key=lambda point: point[0]), dtype=float).reshape(-1, 2)
    return array[:, 0], array[:, 1]


def _finite(values):
    import numpy as np

    return values[np.isfinite(values)]


def _smooth(values):
    """Returns the mean over a window of a fiftieth of the points on either side, NaN left out.

    The window narrows towards the start, so that it stays centred and the steep first part is not flattened. At the
    end it keeps its length to the left, so that the last value is a mean and not a noisy point.
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


def _thin(*arrays):
    """Returns the arrays with at most _MOST_POINTS evenly spaced elements, the first and the last among them."""
    import numpy as np

    if len(arrays[0]) <= _MOST_POINTS:
        return arrays
    kept = np.linspace(0, len(arrays[0]) - 1, _MOST_POINTS).round().astype(int)
    return tuple(array[kept] for array in arrays)


def _draw_curve(axes, metrics: list[dict], split: str, name: str, color: str, label: str, width: float = 1.8, smooth: bool = True,
                digits: int = 2):
    """Draws one metric of one split: smoothed over its faint raw values where there are many points, dots where few.

    Returns:
      (value, text, colour) of the label for the end of the curve, or None where there is nothing to draw.
    """
    import numpy as np

    steps, values = _series(metrics, split, name)
    if not np.isfinite(values).any():
        return None
    smooth = smooth and split == "train" and len(values) >= _FEWEST_TO_SMOOTH
    steps, raw, line = _thin(steps, values, _smooth(values) if smooth else values)
    if smooth and width > 1.5:
        axes.plot(steps, raw, color=color, alpha=0.22, linewidth=0.8)
    few = len(line) <= (40 if split == "eval" else 10)
    dots = {"marker": "o", "markersize": 3.6, "markeredgewidth": 0, "clip_on": False} if few else {}
    axes.plot(steps, line, color=color, linewidth=width, zorder=4 if split == "eval" else 3, **dots)
    last = float(line[np.isfinite(line)][-1])
    return last, f"{label} {last:.{digits}f}", color


def _draw_level(axes, value: float | None, color: str, label: str):
    """Draws a dashed horizontal line where there is a value; returns its label as _draw_curve does."""
    if value is None:
        return None
    axes.axhline(value, color=color, linewidth=1.2, linestyle=(0, (5, 3)), zorder=3.5)
    return value, label, color


def _label_ends(axes, labels: list) -> None:
    """Writes labels right of the axes, each at the height of its value or as near as the others allow."""
    labels = sorted(label for label in labels if label)
    low, high = axes.get_ylim()
    heights = _spread([(value - low) / (high - low) for value, _, _ in labels], gap=0.075)
    for height, (_, text, color) in zip(heights, labels):
        axes.annotate(text, (1, height), xycoords="axes fraction", xytext=(6, 0), textcoords="offset points", va="center",
                      color=color, fontsize=9, annotation_clip=False)


def _spread(heights: list[float], gap: float) -> list[float]:
    """Moves sorted heights as little as makes them `gap` apart and keeps them within 0 to 1.

    Least squares under an order: isotonic regression, by pooling neighbours, of the heights less their share of gaps.
    """
    pools = []
    for index, height in enumerate(heights):
        pools.append([height - index * gap, 1])
        while len(pools) > 1 and pools[-2][0] > pools[-1][0]:
            (first, first_size), (second, second_size) = pools[-2:]
            pools[-2:] = [[(first * first_size + second * second_size) / (first_size + second_size), first_size + second_size]]
    top = 1 - (len(heights) - 1) * gap
    bases = [min(max(base, 0.0), top) for base, size in pools for _ in range(size)]
    return [base + index * gap for index, base in enumerate(bases)]


def _mark_non_finite(axes, metrics: list[dict]) -> None:
    """Marks the steps whose loss is not finite."""
    steps = [record["step"] for record in metrics if "loss" in record and record["loss"] is None]
    for step in steps[:20]:
        axes.axvline(step, color="#c0392b", linewidth=1, alpha=0.7, linestyle=":")
    if steps:
        axes.annotate("loss not finite", (steps[0], 1), xycoords=("data", "axes fraction"), xytext=(-4, -8), textcoords="offset points",
                      ha="right", va="top", color="#c0392b", fontsize=8.5)


def _finish_axes(axes, metrics: list[dict]) -> None:
    from matplotlib.ticker import MaxNLocator

    last = max((record["step"] for record in metrics), default=0)
    axes.set_xlim(0, max(1, last))
    axes.xaxis.set_major_locator(MaxNLocator(nbins=5, integer=True, steps=[1, 2, 5, 10]))
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.set_xlabel(_step_label(metrics))
    axes.yaxis.set_major_locator(MaxNLocator(nbins=7, steps=[1, 2, 2.5, 5, 10]))
    axes.yaxis.set_major_formatter(lambda value, _: _power(value) if 0 < value < 0.005 else f"{value:,.10g}")
    if not axes.lines:
        axes.text(0.5, 0.5, "no data", transform=axes.transAxes, ha="center", va="center", color=_MUTED)
        axes.set_yticks([])


def _step_label(metrics: list[dict]) -> str:
    """Returns the label of the horizontal axis, with the sequences of a step where they are the same all along."""
    sizes = {record["samples"] / record["step"] for record in metrics if record.get("samples") and record.get("step")}
    size = sizes.pop() if len(sizes) == 1 else 0
    return f"step ({size:,.0f} sequences each)" if size >= 1 else "step"


def _power(value: float) -> str:
    """Returns e.g. 4e-4 or 3.52e-4."""
    digits, exponent = f"{value:.2e}".split("e")
    return f"{float(digits):g}e{int(exponent)}"


def _number(value: float) -> str:
    """Returns three digits or more, with thousands separators: 0.52, 7.3, 41.2, 412, 5,120."""
    digits = max(0, 2 - len(str(int(abs(value))))) if abs(value) >= 10 else 2 if value else 0
    return f"{value:,.{digits}f}"


# ---------------------------------------------------------------------------------------------------------------------
# The page.

_HEADLINES = {
    "success": ("Target reached", "#1a7f4b"),
    "finished": ("All steps done", "#0b63a5"),
    "aborted": ("Target not reached", "#b35c00"),
    "interrupted": ("Interrupted and saved", "#6e5494"),
    "failed": ("Failed", "#b3261e"),
}
_CSS = """
:root { color-scheme: light; }
* { box-sizing: border-box; }
body { margin: 0; background: #f5f6f8; color: #24292f; font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; }
main { max-width: 1120px; margin: 0 auto; padding: 36px 24px 64px; }
header { border-left: 6px solid var(--status); padding: 2px 0 2px 18px; margin-bottom: 24px; }
header p { margin: 0; color: #57606a; }
h1 { margin: 2px 0; font-size: 30px; line-height: 1.2; color: var(--status); }
h2 { font-size: 17px; margin: 36px 0 10px; }
.cards { display: grid; grid-template-columns: repeat(auto-fit, minmax(130px, 1fr)); gap: 12px; margin: 0 0 20px; }
.card { background: #fff; border: 1px solid #e3e6ea; border-radius: 8px; padding: 12px 14px; }
.card b { display: block; font-size: 22px; font-variant-numeric: tabular-nums; line-height: 1.25; }
.card span { color: #57606a; font-size: 13px; }
.picture { background: #fff; border: 1px solid #e3e6ea; border-radius: 8px; padding: 16px; }
.picture img { display: block; width: 100%; height: auto; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; background: #fff; border: 1px solid #e3e6ea; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: 6px 14px; border-top: 1px solid #eceef1; vertical-align: top; overflow-wrap: anywhere; }
th { color: #57606a; font-weight: 600; font-size: 13px; background: #fafbfc; }
td.number, th.number { text-align: right; white-space: nowrap; }
td.name { font-family: ui-monospace, Menlo, Consolas, monospace; font-size: 13px; }
pre { background: #fff; border: 1px solid #e3e6ea; border-radius: 8px; padding: 12px 14px; margin: 0; font-size: 13px; overflow-x: auto;
  white-space: pre-wrap; overflow-wrap: anywhere; }
summary { cursor: pointer; font-weight: 600; font-size: 17px; margin: 36px 0 10px; }
td.key { white-space: nowrap; }
"""


def write_report(model_dir: str, title: str, config_json: str | dict, result: TrainResult,
                 parameter_rows: list[ParameterRow] = ()) -> str:
    """Writes model_dir/report.html from model_dir/metrics.jsonl, command.txt and what is given.

    Args:
      model_dir: folder of the run.
      title: stands above the headline, e.g. the model and the flagfile.
      config_json: the saved configuration, as text or as a dict.
      result: the end of the run.
      parameter_rows: the table of `summary.parameter_table`.

    Returns:
      Path of the report.
    """
    values = json.loads(config_json) if isinstance(config_json, str) else dict(config_json)
    figure = plot_run(read_metrics(model_dir), result.target, result.majority_accuracy)
    sections = [
        _cards(result),
        _picture(_render(figure, "png")),
        _section("Result", _pairs_table(_flat({name: value for name, value in result_dict(result).items() if name != "config"}))),
        _command(os.path.join(model_dir, "command.txt")),
        _section("Settings other than the defaults", _pairs_table(changed_settings(values))),
        _parameters(parameter_rows),
    ]
    path = os.path.join(model_dir, FILE_NAME)
    replace_file(path, _page(title, result, "\n".join(sections)))
    return path


def changed_settings(values: dict) -> dict:
    """Returns the settings of a saved configuration that differ from the defaults, and the sizes of its model."""
    changed = {}
    for name, value in values.items():
        if name == "model":
            changed.update({f"model.{key}": size for key, size in (value or {}).items()})
        elif name not in config_lib.FIELDS or config_lib.FIELDS[name].default != value:
            changed[name] = value
    return changed


def _page(title: str, result: TrainResult, body: str) -> str:
    headline, color = _HEADLINES[result.status]
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{html.escape(title)}: {headline.lower()}</title>
<style>{_CSS}:root {{ --status: {color}; }}</style>
</head>
<body>
<main>
<header>
<p>{html.escape(title)}</p>
<h1>{headline}</h1>
<p>{html.escape(result.reason)}</p>
</header>
{body}
</main>
</body>
</html>
"""


def _cards(result: TrainResult) -> str:
    """The numbers a reader looks for first. Those that the run does not have are left out."""
    cards = [
        (_fixed(result.eval_accuracy, 4), "masked-LM accuracy, last evaluation"),
        (_fixed(result.target, 4), "target"),
        (_fixed(result.majority_accuracy, 4), "always the most frequent token"),
        (_fixed(result.eval_loss, 3), "loss, last evaluation (nats)"),
        (f"{result.step:,}", f"steps, {result.samples:,} sequences"),
        (_number(result.sequences_per_sec) if result.sequences_per_sec else None, "sequences per second"),
        (format_secs(result.wall_secs) if result.wall_secs else None, "wall time"),
    ] + [(_fixed(value, 2), name) for name, value in result.scores.items()]
    shown = [f'<div class="card"><b>{html.escape(value)}</b><span>{html.escape(name)}</span></div>' for value, name in cards if value]
    return f'<div class="cards">{"".join(shown)}</div>'


def _fixed(value, digits: int) -> str | None:
    value = plain_value(value)
    return None if value is None else f"{value:.{digits}f}" if isinstance(value, float) else str(value)


def _picture(png: bytes) -> str:
    data = base64.b64encode(png).decode()
    alt = "Loss, masked-LM accuracy, learning rate and throughput over the steps of the run"
    return f'<div class="picture"><img alt="{alt}" src="data:image/png;base64,{data}"></div>'


def _section(title: str, body: str) -> str:
    return f"<section><h2>{title}</h2>{body}</section>" if body else ""


def _flat(values: dict, prefix: str = "") -> dict:
    """Returns nested values under dotted names."""
    flat = {}
    for name, value in values.items():
        flat |= _flat(value, f"{prefix}{name}.") if isinstance(value, dict) else {prefix + name: value}
    return flat


def _pairs_table(values: dict) -> str:
    rows = [f'<tr><td class="name key">{html.escape(name)}</td><td>{html.escape(_cell(value))}</td></tr>' for name, value in values.items()]
    return f'<div class="scroll"><table><tbody>{"".join(rows)}</tbody></table></div>' if rows else ""


def _cell(value) -> str:
    if value is None or value == []:
        return "\u2013"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:.6g}"
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def _command(path: str) -> str:
    if not tf.io.gfile.exists(path):
        return ""
    with tf.io.gfile.GFile(path) as file:
        return _section("Command", f"<pre>{html.escape(file.read().strip())}</pre>")


def _parameters(rows: list[ParameterRow]) -> str:
    if not rows:
        return ""
    head = _row("th", ("Name", "Shape", "Tensors", "Parameters", "MB"))
    body = [_row("td", (html.escape(row.name), " \u00d7 ".join(map(str, row.shape)) or "scalar", f"{row.tensors:,}", f"{row.parameters:,}",
                        f"{row.megabytes:,.2f}")) for row in rows]
    return (f"<details><summary>Parameters: {format_total(rows)}</summary>"
            f'<div class="scroll"><table><thead>{head}</thead><tbody>{"".join(body)}</tbody></table></div></details>')


def _row(tag: str, cells) -> str:
    """Returns a table row: the first cell a name, the others numbers."""
    kinds = ["name"] + ["number"] * (len(cells) - 1)
    return "<tr>" + "".join(f'<{tag} class="{kind}">{cell}</{tag}>' for kind, cell in zip(kinds, cells)) + "</tr>"


def _read_json(path: str) -> dict:
    if not tf.io.gfile.exists(path):
        return {}
    with tf.io.gfile.GFile(path) as file:
        return json.loads(file.read())
