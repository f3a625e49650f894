"""Shares of several data sets of a kind, as of several seeds: their mean and spread, beside those of another
tool's."""

from __future__ import annotations

import glob
import math
import statistics
from collections.abc import Iterable
from typing import Any

from official.io.files import is_remote
from official.io.record_paths import find_files


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
    report: dict[str, Any] = {
        name: {"data_sets": sets, "spread": spread_of(list(sets.values()))} for name, sets in groups.items()
    }
    if len(groups) == 2:
        report["differences"] = _differences(*(list(sets.values()) for sets in groups.values()))
    return report


def _differences(ours: list[dict[str, float]], theirs: list[dict[str, float]]) -> dict[str, dict]:
    """Returns {share: {difference, standard_errors}} of the means. The second is the difference divided by
    its standard error (Welch's t): chance alone seldom makes it larger than 2; None where nothing spreads."""
    found = {}
    for name in ours[0]:
        means, squares = zip(*(_mean_and_square([each[name] for each in group]) for group in (ours, theirs)))
        difference, error = means[0] - means[1], math.sqrt(sum(squares))
        found[name] = {"difference": difference, "standard_errors": difference / error if error else None}
    return found


def _mean_and_square(values: list[float]) -> tuple[float, float]:
    """Returns a mean and the square of its standard error."""
    spread = _spread(values)
    return spread["mean"], spread["deviation"] ** 2 / len(values)


def table(report: dict[str, Any]) -> str:
    """Returns the spread as text, a line for each share: the mean, the standard deviation, the lowest and the
    highest of each group; then the differences of the means."""
    lines = []
    for name, group in report.items():
        if "spread" in group:
            lines.append(f"{name}: {len(group['data_sets'])} data sets, each by itself")
            lines.append(_row("", ("mean", "deviation", "lowest", "highest")))
            lines += [
                _row(share, [_shown(share, value) for value in values.values()])
                for share, values in group["spread"].items()
            ]
    differences = report.get("differences", {})
    if differences:
        lines.append("difference of the means, and how many of its standard errors it is")
    for share, values in differences.items():
        errors = values["standard_errors"]
        shown = "-" if errors is None else f"{errors:.1f}"
        lines.append(_row(share, (_shown(share, values["difference"]), shown)))
    return "\n".join(lines)


def _row(name: str, cells: Iterable[str]) -> str:
    return f"  {name:22}" + "".join(f"{cell:>12}" for cell in cells)


def _shown(share: str, value: float) -> str:
    return f"{value:.1f}" if share == "median_length" else f"{value:.3%}"
