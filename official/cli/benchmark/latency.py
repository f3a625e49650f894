"""Timed calls of inference: throughput and latency, as lines of a log, and as a chart."""

from __future__ import annotations

import statistics
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from official.reporting import popart_lines

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_PANEL = 4.6, 3.9  # inches
_MARKERS = "os^Dvph*X"
_PERCENTILES = {"p50": 50.0, "p99": 99.0, "p999": 99.9}


class Block(NamedTuple):
    """Calls that were timed together, of all instances.

    Attributes:
      secs: of each call.
      sequences_per_sec, tokens_per_sec: of the instances together: each one's own rate, summed.
    """

    secs: tuple[float, ...]
    sequences_per_sec: float
    tokens_per_sec: float


def block_of(answers: Sequence[dict]) -> Block:
    """Returns the block of the instances' answers, see `answering.measure`."""
    return Block(
        tuple(secs for answer in answers for secs in answer["secs"]),
        sum(answer["sequences"] / answer["total_secs"] for answer in answers),
        sum(answer["tokens"] / answer["total_secs"] for answer in answers),
    )


def latency_ms(secs: Sequence[float]) -> dict[str, float]:
    """Returns {mean, min, max, p50, p99, p999} of calls in milliseconds. Between two calls, percentiles are
    interpolated linearly, as NumPy does it."""
    values = np.asarray(secs, np.float64) * 1000
    percentiles = {name: float(np.percentile(values, share)) for name, share in _PERCENTILES.items()}
    extremes = {"min": float(values.min()), "max": float(values.max())}
    return {"mean": float(values.mean()), **extremes, **percentiles}


def summary(blocks: Sequence[Block]) -> dict:
    """Returns the statistics of a case's blocks.

    Returns:
      sequences_per_sec, tokens_per_sec: medians over the blocks; spread: half the distance between the
      quartiles of the first, over it; latency_ms of all calls; calls: their number.
    """
    rates = [block.sequences_per_sec for block in blocks]
    median = statistics.median(rates)
    first, _, third = statistics.quantiles(rates, n=4, method="inclusive") if len(rates) > 1 else (0, 0, 0)
    secs = [secs for block in blocks for secs in block.secs]
    return {
        "sequences_per_sec": median,
        "tokens_per_sec": statistics.median(block.tokens_per_sec for block in blocks),
        "spread": (third - first) / 2 / median,
        "latency_ms": latency_ms(secs),
        "calls": len(secs),
    }


def plain_line(case: str, block: Block) -> str:
    """Returns the line of a case in the words of the published benchmarks' regular expressions.

    Source: Graphcore's examples v3.4.1, run_squad_runtime.py and benchmarks.yml.
    """
    latency = latency_ms(block.secs)
    shown = {"avg": "mean", "min": "min", "max": "max", "99p": "p99", "99p9": "p999"}
    latencies = [f"latency {name}: {latency[key]:.3f} ms" for name, key in shown.items()]
    return ", ".join([f"{case}: throughput: {block.sequences_per_sec:.3f} samples/sec", *latencies])


def popart_line(number: int, block: Block) -> str:
    """Returns the line of PopART's inference; `number` counts blocks from 0."""
    duration = sum(block.secs) / len(block.secs)
    return popart_lines.inference_line(number, duration, block.sequences_per_sec, block.secs)


def draw(rows: Sequence[dict], title: str, ours: Collection[str]) -> bytes:
    """Returns the picture (PNG): throughput over latency, a panel for each type and length, a line for each
    system through its batch sizes; `ours` names the back ends of this project, the others are dashed."""
    from official.reporting import palette, plots

    panels = list(dict.fromkeys((row["dtype"], row["max_seq_length"]) for row in rows))
    names = list(dict.fromkeys(row["label"] for row in rows))
    width, height = _PANEL[0] * len(panels) + 2.6, _PANEL[1] + 0.5
    with plots.style():
        figure = plots.new_figure(width, height)
        figure.text(0.02, 1 - 0.25 / height, title, fontsize=12, fontweight="bold", color=palette.INK)
        for number, panel in enumerate(panels):
            left = (0.65 + number * _PANEL[0]) / width
            axes = figure.add_axes((left, 0.6 / height, (_PANEL[0] - 0.85) / width, 1 - 1.7 / height))
            plots.write_head(axes, f"{panel[0]}, {panel[1]} tokens", "sequences per second")
            _draw_panel(
                axes, [row for row in rows if (row["dtype"], row["max_seq_length"]) == panel], names, ours
            )
        lines = {str(line.get_label()): line for axes in figure.axes for line in axes.lines}
        look = {"frameon": False, "fontsize": 8.5, "handlelength": 1.6}
        figure.legend(list(lines.values()), list(lines), loc="center right", **look)
        return plots.render(figure, "png")


def _draw_panel(axes: Axes, rows: Sequence[dict], names: Sequence[str], ours: Collection[str]) -> None:
    """Draws the lines of a panel."""
    from matplotlib import ticker

    from official.reporting import palette

    for number, name in enumerate(names):
        own = sorted((row for row in rows if row["label"] == name), key=lambda row: row["batch"])
        if not own:
            continue
        axes.plot(
            [row["latency_ms"]["p50"] for row in own],
            [row["sequences_per_sec"] for row in own],
            color=palette.COLORS[number % len(palette.COLORS)],
            linestyle="-" if own[0]["backend"] in ours else "--",
            marker=_MARKERS[number % len(_MARKERS)],
            markersize=4,
            label=name,
        )
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(ticker.LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.xaxis.set_major_formatter(ticker.FuncFormatter(lambda value, _: f"{value:,.4g}"))
    axes.xaxis.set_minor_formatter(ticker.NullFormatter())
    axes.set_ylim(bottom=0)
    axes.set_xlabel("median latency of a batch, ms")
