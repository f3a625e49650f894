"""Metrics of a run: extracted from its output, reduced to one number each, and derived from one another."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable

from official.cli.benchmark.specs import arithmetic, parameters
from official.cli.benchmark.specs.spec import Derived, Metric
from official.io.errors import ConfigError

# {metric: {how it was reduced: its value; None where there is none}}
Results = dict[str, dict[str, float | None]]
COMPILING = "total_compiling_time"
_COMPILED = re.compile(r"Compiled/Loaded model in (\d+(?:\.\d+)?) secs")


def extract(
    metrics: Iterable[Metric], stdout: str, stderr: str, exitcode: int, processes: int = 1
) -> tuple[Results, list[str]]:
    """Returns (metrics of a run, reasons of the missing ones).

    Args:
      metrics: to look for, in all lines of stdout, then in those of stderr.
      stdout, stderr: what the run printed.
      exitcode: of the run; one that failed has no numbers.
      processes: independent ones that `throughput` is the sum of.
    """
    lines = [*stdout.splitlines(), *stderr.splitlines()]
    results: Results = {}
    problems = []
    for metric in metrics:
        value, problem = _value(metric, lines, exitcode)
        if value is not None and metric.name == "throughput":
            value *= processes
        results[metric.name] = {metric.reduction: value}
        problems += [f"{metric.name}: {problem}"] if problem else []
    return results, problems


def _value(metric: Metric, lines: list[str], exitcode: int) -> tuple[float | None, str]:
    """Returns (value of a metric, reason where it is None)."""
    if exitcode:
        return None, f"exit code {exitcode}"
    found = [text for line in lines for text in metric.regexp.findall(line)]
    try:
        numbers = [float(text) for text in found]
    except ValueError:
        return None, f"{metric.regexp.pattern!r} matches what is no number"
    if any(map(math.isnan, numbers)):
        return None, "NaN"
    if len(numbers) <= metric.skip:
        return None, f"{len(numbers)} matches of {metric.regexp.pattern!r}, expected more than {metric.skip}"
    return _reduced(metric, numbers), ""


def _reduced(metric: Metric, numbers: list[float]) -> float:
    """Returns one number for all. As published, a mean leaves out the first ones after sorting: the smallest,
    of `latency` the largest."""
    if metric.reduction == "final":
        return numbers[-1]
    if metric.reduction in ("min", "max"):
        return min(numbers) if metric.reduction == "min" else max(numbers)
    if metric.reduction == "value":
        return numbers[0]
    kept = sorted(numbers, reverse=metric.name == "latency")[metric.skip :]
    return sum(kept) / len(kept)


def derive(
    derived: Iterable[Derived], results: Results, values: dict[str, str], exitcode: int
) -> tuple[Results, list[str]]:
    """Returns (metrics with the derived ones, reasons of the missing ones).

    Args:
      derived: expressions of metrics, of derived ones before them, and of parameters.
      results: of `extract`.
      values: {parameter: value}; a parameter counts before a metric of the same name.
      exitcode: of the run.
    """
    results, problems = dict(results), []
    for each in derived:
        value, problem = None, f"exit code {exitcode}"
        if not exitcode:
            known = {name: number_of(results, name) for name in results}
            value, problem = _computed(each.expression, {**known, **values})
        results[each.name] = {each.reduction: value}
        problems += [f"{each.name}: {problem}"] if problem else []
    return results, problems


def _computed(expression: str, values: dict[str, float | str | None]) -> tuple[float | None, str]:
    try:
        filled = parameters.fill(expression, values)
        value = arithmetic.evaluate(filled)
    except (ValueError, ConfigError, ArithmeticError) as error:
        return None, f"{expression!r}: {error}"
    return (value, "") if math.isfinite(value) else (None, f"{expression!r} is {value}")


def number_of(results: Results, name: str) -> float | None:
    """Returns the value of a metric, whatever it was reduced by; None where there is none."""
    return next(iter(results.get(name, {}).values()), None)


def compiling_secs(stdout: str, stderr: str) -> float | None:
    """Returns the seconds that a run of ours says it compiled, of several processes the most; else None."""
    found = _COMPILED.findall(stdout) + _COMPILED.findall(stderr)
    return max(map(float, found), default=None)
