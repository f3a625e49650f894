"""The steps of several numbers of hosts as lines of text."""

from __future__ import annotations


def scaling_sections(scaling: dict) -> dict[str, list[tuple[str, str]]]:
    """Returns {title: lines} of a plan's `scaling`, a line (hosts, step) each."""
    return {
        f"Hosts, each with its {scaling['replicas_per_host']:,} replicas and their batch": [
            ("assumed", _assumed(scaling)),
            *((_hosts(row), _step(row["same_share"])) for row in scaling["hosts"]),
        ],
        "Hosts that share the batch of the run": _shared(scaling),
    }


def _shared(scaling: dict) -> list[tuple[str, str]]:
    """Returns a line for each number of hosts that can share the batch, and one for all that cannot."""
    steps = [(row, row["same_batch"]) for row in scaling["hosts"]]
    lines = [
        (
            _hosts(row),
            f"{_step(step)}; {step['num_accumulation_steps']:,} x {step['micro_batch_size']:,} rows a"
            " replica",
        )
        for row, step in steps
        if step
    ]
    uneven = [row["hosts"] for row, step in steps if not step]
    if uneven:
        can = scaling["sharing"]
        lines.append(("not evenly", f"{_numbers(uneven)} hosts. These can share it: {_numbers(can)}"))
    return lines


def _numbers(counts: list[int]) -> str:
    """Returns rising numbers, the middle of many left out."""
    shown = [f"{count:,}" for count in counts]
    return ", ".join(shown if len(shown) <= 12 else [*shown[:9], "...", *shown[-2:]])


def _assumed(scaling: dict) -> str:
    how = scaling["all_reduce"] or "the fastest of ring, tree and hierarchical"
    parts = [
        f"{scaling['gbps']:g} GB/s a host",
        f"{scaling['local_gbps']:g} GB/s inside one",
        f"{scaling['latency_usecs']:g} us a message",
        how,
        f"overlap {scaling['overlap']:.0%}",
    ]
    if scaling["rows_per_sec"]:
        parts.append(f"{scaling['rows_per_sec']:g} rows/s a host read")
    return ", ".join(parts)


def _hosts(row: dict) -> str:
    return f"{row['hosts']:,} host{'s' * (row['hosts'] > 1)}"


def _step(step: dict) -> str:
    """Returns a step: its time, what of it is all-reduce, sequences a second, efficiency."""
    waited = step["all_reduce_secs"] - step["hidden_secs"]
    waits = (
        f"all-reduce {waited:.3g} s ({step['all_reduce']})" if step["all_reduce_secs"] else "no all-reduce"
    )
    if step["input_secs"] >= step["step_secs"]:
        waits += ", waits for its input"
    rate = step["sequences_per_sec"]
    speed = f"{rate:,.0f}" if rate >= 1000 else f"{rate:.4g}"
    return f"{step['step_secs']:.4g} s, {waits}, {speed} sequences/s, {step['efficiency']:.1%}"
