"""Shares of several data sets of a kind, as of several seeds: their mean and spread, beside those of another
tool's."""

from __future__ import annotations

import glob
import statistics
from typing import Any

from official.io.record_paths import find_files
from official.io.stores import is_remote


def data_sets(patterns: list[str], flag: str = "") -> dict[str, list[str]]:
    """Returns {name: files} of the data sets that patterns stand for: every folder, and every file that is
    named or matched by a glob, is one."""
    parts = [part.strip() for pattern in patterns for part in pattern.split(",") if part.strip()]
    names = [name for part in parts for name in (not is_remote(part) and sorted(glob.glob(part))) or [part]]
    return {name: find_files(name, flag) for name in names}


def spread_of(shares: list[dict[str, float]]) -> dict[str, dict[str, float]]:
    """Returns {share: {mean, deviation, lowest, highest}}; the standard deviation of one data set is 0."""
    return {name: _spread([each[name] for each in shares]) for name in shares[0]}


def _spread(values: list[float]) -> dict[str, float]:
    return {
        "mean": statistics.fmean(values),
        "deviation": statistics.stdev(values) if len(values) > 1 else 0.0,
        "lowest": min(values),
        "highest": max(values),
    }


def report_of(groups: dict[str, dict[str, dict[str, float]]]) -> dict[str, Any]:
    """Returns the numbers for --report.

    Args:
      groups: {group: {data set: {share: value}}}, of these records and, where there are any, of those that
        they are compared with.
    """
    return {
        name: {"data_sets": sets, "spread": spread_of(list(sets.values()))} for name, sets in groups.items()
    }


def table(report: dict[str, Any]) -> str:
    """Returns the spread as text, a line for each share: the mean, the standard deviation, the lowest and the
    highest of each group."""
    lines = []
    for name, group in report.items():
        lines.append(f"{name}: {len(group['data_sets'])} data sets, each by itself")
        lines.append(f"  {'':22}{'mean':>12}{'deviation':>12}{'lowest':>12}{'highest':>12}")
        for share, values in group["spread"].items():
            numbers = "".join(f"{_shown(share, value):>12}" for value in values.values())
            lines.append(f"  {share:22}{numbers}")
    lines += _differences(*(group["spread"] for group in report.values()))
    return "\n".join(lines)


def _shown(share: str, value: float) -> str:
    return f"{value:.1f}" if share == "median_length" else f"{value:.3%}"


def _differences(ours: dict, theirs: dict | None = None) -> list[str]:
    """Returns lines that say which means of ours lie outside of the lowest and the highest of theirs."""
    if theirs is None:
        return []
    outside = [
        f"  {share}: mean {_shown(share, ours[share]['mean'])},"
        f" theirs {_shown(share, theirs[share]['lowest'])} to {_shown(share, theirs[share]['highest'])}"
        for share in ours
        if not theirs[share]["lowest"] <= ours[share]["mean"] <= theirs[share]["highest"]
    ]
    return ["means outside of the other group's range:" + " none" * (not outside), *outside]
