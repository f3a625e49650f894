"""Rows, table, verdicts and picture of the measured cases."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from official.cli.benchmark.inference import systems

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_PANEL = 4.6, 3.9  # inches
_MARKERS = "os^Dvph*X"


def verdicts(rows: Sequence[dict]) -> list[str]:
    """Returns a line for each case: our fastest back end, over the fastest of Hugging Face on PyTorch and of
    its exports, and its share of bare products."""
    lines = []
    for case in dict.fromkeys(row["case"] for row in rows):
        of_case = sorted((row for row in rows if row["case"] == case), key=_rate, reverse=True)
        ours = [row for row in of_case if row["backend"] not in systems.PEERS]
        peers = [row for row in of_case if row["backend"] in systems.PEERS]
        of_pytorch = [row for row in peers if systems.PEERS[row["backend"]].is_pytorch]
        exported = [row for row in peers if row not in of_pytorch]
        if not ours:
            continue
        parts = [f"{case}: {ours[0]['label']}, {_rate(ours[0]):.2f} seq/s"]
        for others in (of_pytorch, exported):
            parts += [f"{_rate(ours[0]) / _rate(row):.2f} x {row['label']}" for row in others[:1]]
        if ours[0]["share_of_products"]:
            parts.append(f"{ours[0]['share_of_products']:.0%} of bare products")
        lines.append("; ".join(parts))
    return lines


def _rate(row: dict) -> float:
    return row["sequences_per_sec"]


def table(rows: Sequence[dict]) -> str:
    """Returns a line a row."""
    width = max(len(row["name"]) for row in rows) + 2
    head = f"{'case':<{width}}{'seq/s':>9}{'+-':>7}{'tokens/s':>10}"
    head += "".join(f"{name + ' ms':>10}" for name in ("mean", "min", "p50", "p99", "p999", "max"))
    lines = [f"{head}{'products':>10}{'logits +-':>11}{'same':>7}"]
    for row in rows:
        values = row["latency_ms"]
        latencies = "".join(f"{values[key]:>10.1f}" for key in ("mean", "min", "p50", "p99", "p999", "max"))
        share = row["share_of_products"]
        lines.append(
            f"{row['name']:<{width}}{row['sequences_per_sec']:>9.2f}{row['spread']:>7.1%}"
            f"{row['tokens_per_sec']:>10.0f}{latencies}"
            f"{f'{share:.1%}' if share else '-':>10}"
            f"{row['largest_difference']:>11.1e}{row['same_answers']:>7.1%}"
        )
    return "\n".join(lines)


def draw(rows: Sequence[dict], title: str) -> bytes:
    """Returns the picture (PNG): throughput over latency, a panel for each type and length, a line for each
    system through its batch sizes."""
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
            _draw_panel(axes, [row for row in rows if (row["dtype"], row["max_seq_length"]) == panel], names)
        lines = {str(line.get_label()): line for axes in figure.axes for line in axes.lines}
        look = {"frameon": False, "fontsize": 8.5, "handlelength": 1.6}
        figure.legend(list(lines.values()), list(lines), loc="center right", **look)
        return plots.render(figure, "png")


def _draw_panel(axes: Axes, rows: Sequence[dict], names: Sequence[str]) -> None:
    """Draws the lines of a panel; those of peers are dashed."""
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
            linestyle="--" if own[0]["backend"] in systems.PEERS else "-",
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


def row_of(case: dict[str, Any], label: str, system: str, measured: dict[str, Any]) -> dict[str, Any]:
    """Returns a row.

    Args:
      case: values shared by all systems of the case: dtype, max_seq_length, batch and what else is kept.
      label: title of the system, with its way of padding where there are several.
      system: name of the system.
      measured: measurements of the system.
    """
    shape = f"{case['dtype']}, {case['max_seq_length']} tokens x {case['batch']}"
    return {
        "name": f"{shape}: {label}",
        "case": shape,
        "label": label,
        "backend": system,
        **case,
        **measured,
    }
