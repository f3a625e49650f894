"""Measured steps of two processes that train together, beside the scaling model's prediction from one process
and a bare all-reduce."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Sequence

from official.planning import scaling
from official.planning.scaling import Batch, Network, Work
from official.reporting import palette, plots
from official.reporting.measurement import Timing
from official.reporting.scaling_picture import Curve, Panel, plot_scaling
from official.training.step_benchmark import SMALL_SUM, SMALL_SUMS, SUM, step_name

ALONE, APART, JOINED = "alone", "apart", "joined"  # one process; two that do not talk; two that do
_HOSTS = tuple(2**power for power in range(13))
Timings = dict[int, Timing]  # {micro batches of a step: its timing}


def results(
    accumulations: Sequence[int],
    rows: int,
    steps: int,
    secs: dict[str, dict[str, list[float]]],
    gradient_bytes: int,
) -> dict:
    """Returns the measurements and the predictions for the joined processes, as a dict for JSON.

    Args:
      accumulations: numbers of micro batches per step.
      rows: rows of a micro batch of one process.
      steps: number of steps in one timing.
      secs: {group of processes: {workload: seconds of each round}}.
      gradient_bytes: bytes of the gradients that are summed.
    """

    def timing(group: str, work: str, repeats: int) -> Timing:
        return Timing(tuple(each / repeats for each in secs[group][work]))

    whole, small = timing(JOINED, SUM, 1), timing(JOINED, SMALL_SUM, SMALL_SUMS)
    network = network_of(gradient_bytes, whole.median, small.median)
    timings = {
        group: {count: timing(group, step_name(count), steps) for count in accumulations} for group in secs
    }
    works = {group: work_of(timings[group], rows, gradient_bytes) for group in (ALONE, APART)}
    return {
        "all_reduce": {
            "bytes": gradient_bytes,
            "secs": whole.median,
            "spread": whole.spread,
            "gbps": network.host_bytes_per_sec / 1e9,
            "latency_usecs": network.host_latency_secs * 1e6,
        },
        "cases": [case(count, rows, timings, works, network) for count in accumulations],
        "curves": [curve(count, rows, works[ALONE], network) for count in accumulations],
    }


def network_of(gradient_bytes: int, sum_secs: float, small_secs: float) -> Network:
    """Returns the network between two processes, with bandwidth and latency from bare all-reduces of the
    gradients and of one number: a ring of two sends all bytes once, in two rounds."""
    bytes_per_sec, latency_secs = gradient_bytes / max(sum_secs - small_secs, 1e-9), small_secs / 2
    return Network(1, bytes_per_sec, bytes_per_sec, latency_secs, latency_secs)


def work_of(timings: Timings, rows: int, gradient_bytes: int) -> Work:
    """Returns the work of a step without communication, whose time is fitted as a line over the micro
    batches."""
    counts, secs = list(timings), [timing.median for timing in timings.values()]
    slope, start = secs[0] / counts[0], 0.0
    if len(counts) > 1:
        slope, start = statistics.linear_regression(counts, secs)
    return Work(slope / rows, 0.0, max(start, 0.0), 2 / 3, gradient_bytes, small_sums=1)


def case(
    count: int, rows: int, timings: dict[str, Timings], works: dict[str, Work], network: Network
) -> dict:
    """Returns the row of one number of micro batches: seconds of a step in each group, and those of the
    joined processes predicted from the other two. Efficiency is the time of one process alone over that of
    the joined."""
    own = {group: each[count] for group, each in timings.items()}
    told = {
        f"predicted_from_{group}_secs": scaling.step_time(work, network, 2, Batch(count, rows))["step_secs"]
        for group, work in works.items()
    }
    joined = own[JOINED].median
    return {
        "num_accumulation_steps": count,
        **{f"{group}_secs": timing.median for group, timing in own.items()},
        **{f"{group}_spread": timing.spread for group, timing in own.items()},
        "efficiency": own[ALONE].median / joined,
        **told,
        **{name.replace("_secs", "_off"): secs / joined - 1 for name, secs in told.items()},
    }


def curve(count: int, rows: int, work: Work, network: Network) -> dict:
    """Returns the predicted efficiency of 1 to 4,096 such processes, each with its own link."""
    secs = [scaling.step_time(work, network, hosts, Batch(count, rows))["step_secs"] for hosts in _HOSTS]
    return {
        "num_accumulation_steps": count,
        "efficiency": {str(hosts): secs[0] / each for hosts, each in zip(_HOSTS, secs)},
    }


def table(record: dict) -> str:
    """Returns a line for each number of micro batches, and the bare all-reduce."""
    lines = [
        f"{'micro batches':<15}{'alone s':>9}{'apart s':>9}{'joined s':>10}{'+-':>7}{'efficiency':>12}"
        f"{'from alone':>12}{'off':>7}{'from apart':>12}{'off':>7}"
    ]
    for row in record["cases"]:
        lines.append(
            f"{row['num_accumulation_steps']:<15}{row['alone_secs']:>9.3f}{row['apart_secs']:>9.3f}"
            f"{row['joined_secs']:>10.3f}{row['joined_spread']:>7.1%}{row['efficiency']:>12.1%}"
            f"{row['predicted_from_alone_secs']:>12.3f}{row['predicted_from_alone_off']:>+7.0%}"
            f"{row['predicted_from_apart_secs']:>12.3f}{row['predicted_from_apart_off']:>+7.0%}"
        )
    bare = record["all_reduce"]
    lines.append(
        f"bare all-reduce of {bare['bytes'] / 1e6:.1f} MB: {bare['secs']:.3f} s, {bare['gbps']:.3g} GB/s,"
        f" {bare['latency_usecs']:.0f} us a message"
    )
    return "\n".join(lines)


def draw(record: dict) -> bytes:
    """Returns the picture (PNG): two processes over the micro batches, and many over their number."""
    title = f"{record['model']}, {record['dtype']}, {record['max_seq_length']} tokens"
    title += f" x {record['micro_batch_size']}"
    panels = [_pair(record, title), _many(record)]
    return plots.render(plot_scaling(panels), "png")


def _pair(record: dict, title: str) -> Panel:
    def curve_of(name: str, color: str, is_measured: bool, key: str) -> Curve:
        points = ((row["num_accumulation_steps"], row["alone_secs"] / row[key]) for row in record["cases"])
        return Curve(name, tuple(points), is_measured, color)

    curves = (
        curve_of("two processes that talk, measured", palette.BLUE, True, "joined_secs"),
        curve_of("predicted from one alone", palette.BLUE, False, "predicted_from_alone_secs"),
        curve_of("two that do not talk, measured", palette.VERMILION, True, "apart_secs"),
        curve_of("predicted from these", palette.VERMILION, False, "predicted_from_apart_secs"),
    )
    return Panel(
        f"Two processes: {title}", "speed of each, share of one alone", "micro batches a step", curves
    )


def _many(record: dict) -> Panel:
    curves = []
    for each, row, color in zip(record["curves"], record["cases"], palette.COLORS):
        count = each["num_accumulation_steps"]
        points = tuple((int(hosts), share) for hosts, share in each["efficiency"].items())
        curves.append(Curve(f"{count} micro batch{'es' * (count > 1)}, predicted", points, False, color))
        curves.append(Curve("", ((1, 1.0), (2, row["efficiency"])), True, color))
    curves[-1] = dataclasses.replace(curves[-1], name="measured, of one and two")
    title = "Many such hosts, each with a link of its own"
    return Panel(title, "speed of each, share of one alone", "hosts", tuple(curves), "upper right")
