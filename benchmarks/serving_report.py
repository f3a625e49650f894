"""Table, verdicts and picture of the measured servers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from official.cli import outputs

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_LATENCIES = ("mean", "p50", "p99", "max")
_PANEL = 5.4, 3.7  # inches


def table(measured: dict[str, Any]) -> str:
    """Returns the table, a line for each case of the turns."""
    rows = [
        {
            **row,
            **{name: row["latency_ms"][name] for name in _LATENCIES},
            "mb": row["peak_memory_bytes"] and row["peak_memory_bytes"] / 1e6,
        }
        for row in measured["cases"]
    ]
    columns = [
        ("case", "name", ""),
        ("questions/s", "sequences_per_sec", ".2f"),
        ("+-", "spread", ".1%"),
        *((f"{name} ms", name, ".1f") for name in _LATENCIES),
        ("errors", "errors", ""),
        ("same", "same_answers", ".1%"),
        ("load s", "client_cpu_secs", ".1f"),
        ("server s", "server_cpu_secs", ".1f"),
        ("memory MB", "mb", ".0f"),
    ]
    return outputs.table(columns, rows)


def _shown(value: float | None, style: str, unit: float = 1) -> str:
    return "-" if value is None else format(value / unit, style)


def verdicts(measured: dict[str, Any]) -> list[str]:
    """Returns a line on the long load, one on the new version, and one on the turns."""
    lines = [_load_line(measured["load"])]
    if measured["reload"]:
        lines.append(_reload_line(measured["reload"]))
    return [*lines, _turns_line(measured["cases"], measured["load"]["clients"])]


def _load_line(load: dict[str, Any]) -> str:
    latency, peak, size = load["latency_ms"], load["peak_memory"], load["batches"]["mean_size"]
    window = f"{peak['window_secs']:g} s"
    return (
        f"{load['secs']:g} s, {load['clients']} clients: {load['errors']} of {load['requests']:,} requests"
        f" lost; {load['requests_per_sec']:.2f} a second; p50 {latency['p50']:.1f} ms,"
        f" p99 {latency['p99']:.1f} ms;"
        f" {_shown(size, '.1f')} questions a batch; memory {peak['last_bytes'] / 1e6:.0f} MB in the last"
        f" {window}, {_shown(peak['growth'], '+.1%')} to the {window} before"
    )


def _reload_line(reload: dict[str, Any]) -> str:
    took = reload["swapped_secs"] - reload["appeared_secs"]
    parts = [
        f"{reload[name]['latency_ms']['p99']:.1f} ms {name} it" if reload[name]["latency_ms"] else ""
        for name in ("before", "loading", "after")
    ]
    return (
        f"a new version: served {took:.1f} s after it appeared, {reload['errors']} of"
        f" {reload['requests']:,} requests lost; p99 {', '.join(filter(None, parts))}"
    )


def _turns_line(rows: Sequence[dict[str, Any]], most: int) -> str:
    """Returns the ratios of our rate with most clients to those of the bare model, fewer clients, and each
    peer."""
    ours = {row["clients"]: row for row in rows if row["system"] == "bert serve"}
    own = ours.pop(most)
    others = [row for row in rows if row["system"] == "bare"]
    others += ours.values()
    others += [row for row in rows if row["system"] not in ("bert serve", "bare") and row["clients"] == most]
    ratios = [f"{own['sequences_per_sec'] / row['sequences_per_sec']:.2f} x {row['name']}" for row in others]
    return f"{own['name']}: {own['sequences_per_sec']:.2f} questions a second; {'; '.join(ratios)}"


def draw(measured: dict[str, Any], title: str) -> bytes:
    """Returns the picture (PNG): rates, latencies, memory over time, and requests around a new version."""
    from official.reporting import palette, plots

    panels: list[tuple[str, str, Callable[[Axes, dict[str, Any]], None]]] = [
        ("Throughput", "questions per second", _draw_rates),
        ("Latency", "median, and the 99th percentile as a line, ms", _draw_latencies),
        ("Memory of the server", "MB, resident", _draw_memory),
    ]
    if measured["reload"]:
        panels.append(("A new version under load", "latency of each request, ms", _draw_reload))
    rows = (len(panels) + 1) // 2
    width, height = 2 * _PANEL[0], rows * _PANEL[1] + 0.5
    with plots.style():
        figure = plots.new_figure(width, height)
        figure.text(0.02, 1 - 0.25 / height, title, fontsize=12, fontweight="bold", color=palette.INK)
        for number, (name, unit, draw_panel) in enumerate(panels):
            row, column = divmod(number, 2)
            left, bottom = (
                column * _PANEL[0] + (1.75 if row == 0 else 0.75),
                (rows - 1 - row) * _PANEL[1] + 0.6,
            )
            right = (column + 1) * _PANEL[0] - 0.35
            place = (left / width, bottom / height, (right - left) / width, (_PANEL[1] - 1.5) / height)
            axes = figure.add_axes(place)
            plots.write_head(axes, name, unit)
            draw_panel(axes, measured)
        return plots.render(figure, "png")


def _colors(rows: Sequence[dict[str, Any]]) -> dict[str, str]:
    from official.reporting import palette

    return dict(zip(dict.fromkeys(row["label"] for row in rows), palette.COLORS))


def _named(row: dict[str, Any]) -> str:
    """Returns the name of a row in two lines: system, then clients or batch."""
    return "\n".join(reversed(row["name"].partition(", ")[2].split(": ", 1)))


def _draw_bars(axes: Axes, rows: Sequence[dict[str, Any]], values: Sequence[float]) -> None:
    """Draws a bar for each row, its value at its end."""
    from official.reporting import palette

    colors = _colors(rows)
    places = list(range(len(rows)))[::-1]
    axes.barh(places, values, height=0.66, color=[colors[row["label"]] for row in rows])
    for place, value in zip(places, values):
        axes.annotate(f"{value:.3g}", (value, place), xytext=(4, 0), textcoords="offset points", va="center")
    axes.set_yticks(places, [_named(row) for row in rows], fontsize=8)
    axes.tick_params(length=0, labelcolor=palette.INK)
    axes.grid(axis="y", visible=False)
    axes.grid(axis="x")


def _draw_rates(axes: Axes, measured: dict[str, Any]) -> None:
    rows = measured["cases"]
    _draw_bars(axes, rows, [row["sequences_per_sec"] for row in rows])
    axes.set_xlim(0, 1.15 * max(row["sequences_per_sec"] for row in rows))


def _draw_latencies(axes: Axes, measured: dict[str, Any]) -> None:
    """Draws the medians of requests, with lines up to the 99th percentiles."""
    from official.reporting import palette

    rows = [row for row in measured["cases"] if row["clients"]]
    medians, slow = ([row["latency_ms"][name] for row in rows] for name in ("p50", "p99"))
    _draw_bars(axes, rows, medians)
    for place, median, high in zip(range(len(rows))[::-1], medians, slow):
        axes.plot([median, high], [place - 0.24] * 2, color=palette.INK, linewidth=1.2, marker="|")
    axes.set_xlim(0, 1.1 * max(slow))


def _draw_memory(axes: Axes, measured: dict[str, Any]) -> None:
    """Draws memory over the long load, and the peaks of its last two windows, which are compared."""
    from official.reporting import palette

    load = measured["load"]
    times, values = zip(*load["memory_over_time"])
    axes.plot(times, [value / 1e6 for value in values], color=palette.BLUE)
    peaks = load["peak_memory"]
    window, end = peaks["window_secs"], load["secs"]
    for first, peak in ((end - 2 * window, peaks["before_bytes"]), (end - window, peaks["last_bytes"])):
        axes.plot([first, first + window], [peak / 1e6] * 2, color=palette.VERMILION, linestyle="--")
        axes.annotate(
            f"{peak / 1e6:.0f}", (first + window / 2, peak / 1e6), xytext=(0, 5), textcoords="offset points"
        )
    axes.set_ylim(0, 1.2 * max(values) / 1e6)
    axes.set_xlabel(f"seconds of {load['clients']} clients")


def _draw_reload(axes: Axes, measured: dict[str, Any]) -> None:
    """Draws the latency of every request over time, and the period in which the new version was loaded."""
    from official.reporting import palette

    reload = measured["reload"]
    times, values = zip(*reload["requests_over_time"])
    axes.axvspan(reload["appeared_secs"], reload["swapped_secs"], color=palette.GRID)
    axes.plot(times, values, ".", color=palette.BLUE, markersize=3)
    axes.set_ylim(0, 1.1 * max(values))
    axes.annotate(
        "version 2 is served",
        (reload["swapped_secs"], 1),
        xycoords=("data", "axes fraction"),
        xytext=(4, -10),
        textcoords="offset points",
        color=palette.MUTED,
        fontsize=8.5,
    )
    axes.set_xlabel("seconds")
