"""Benchmark files in the format of Graphcore's `examples_utils benchmark`: entries, and the numbers that they
extract from an output."""

from __future__ import annotations

import ast
import itertools
import math
import os
import re
import string
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, NamedTuple

from official.io.errors import ConfigError, suggest
from official.io.json_files import check_kind, kind_of, read_yaml

# -----------------------------------------------------------------------------------------------------------
# Arithmetic expressions of `derived` metrics
#
# The published runner passes any text to Python's `eval`. Here only numbers, operators, brackets and the
# functions of `_FUNCTIONS` are evaluated: a benchmark file runs the commands that it shows, and no other
# code.


_MAX_CHARACTERS = 1000
_FUNCTIONS: dict[str, Callable[..., float]] = {
    "abs": abs,
    "float": float,
    "int": lambda value: float(int(value)),
    "max": max,
    "min": min,
    "round": lambda value, digits=0.0: round(value, int(digits)),
}
_SYNTAX = (ast.Expression, ast.BinOp, ast.UnaryOp, ast.Call, ast.Load, ast.operator, ast.unaryop)


def evaluate(expression: str) -> float:
    """Returns the value of an expression; all numbers are floats, so that none grows without bound.

    Raises:
      ValueError: if it is not arithmetic, or its value is not a real number.
      ArithmeticError: such as for a division by zero.
    """
    try:
        if len(expression) > _MAX_CHARACTERS:
            raise TypeError(f"{len(expression)} characters, expected {_MAX_CHARACTERS} at most")
        tree = ast.parse(expression.strip(), mode="eval")
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, (int, float)):
                node.value = float(node.value)
            elif not isinstance(node, _SYNTAX) and getattr(node, "id", "") not in _FUNCTIONS:
                wanted = f"a number, an operation, nor one of {', '.join(_FUNCTIONS)}"
                raise TypeError(f"{ast.unparse(node)[:40]!r} is neither {wanted}")
        value = eval(compile(tree, "expr", "eval"), {"__builtins__": {}}, _FUNCTIONS)
        if not isinstance(value, float) or not math.isfinite(value):
            raise TypeError(f"its value {value} is no real number")
        return value
    except (TypeError, SyntaxError, RecursionError, MemoryError) as error:
        raise ValueError(f"{expression[:60]!r}: {getattr(error, 'msg', error)}") from None
    except ArithmeticError as error:
        raise ArithmeticError(f"{expression[:60]!r}: {error}") from None


# -----------------------------------------------------------------------------------------------------------
# Parameters: a run for each combination or row, and their {placeholders} in a text


_BRACES = "Braces that are no {parameter} are written twice."


def expand(values: Any, source: str) -> list[dict[str, str]]:
    """Returns {parameter: value} of every variant; [{}] without parameters.

    Args:
      values: {name: "1,2"}: every combination, the first parameter changing fastest, as published;
        [[names], [values], ...]: a variant per row; None.
      source: beginning of the messages.

    Raises:
      ConfigError: for rows whose length differs from their header's.
    """
    if isinstance(values, list):
        if len(values) < 2 or not all(isinstance(row, list) for row in values):
            raise ConfigError(f"{source}: parameters: expected a list of names, then lists of values.")
        names, *rows = values
        for number, row in enumerate(rows, start=1):
            if len(row) != len(names):
                wanted = f"{len(names)}: {', '.join(map(str, names))}"
                found = f"{source}: parameters: row {number} has {len(row)} values"
                raise ConfigError(f"{found}, expected {wanted}.")
    else:
        names = list(values or {})
        for name in names:
            if isinstance(values[name], (dict, list)) or values[name] is None:
                wanted = 'values with commas between them, such as "1,2"'
                raise ConfigError(f"{source}: parameters: {name} is {values[name]!s:.40}, expected {wanted}.")
        choices = [str(values[name]).split(",") for name in reversed(names)]
        rows = [row[::-1] for row in itertools.product(*choices)]
    return [{str(name): str(value) for name, value in zip(names, row)} for row in rows]


def check_placeholders(text: str, known: Collection[str], source: str) -> list[str]:
    """Returns the names in {braces} of a text. Raises ConfigError for an unknown one."""
    try:
        fields = [field for _, field, _, _ in string.Formatter().parse(text) if field is not None]
    except ValueError as error:
        raise ConfigError(f"{source}: {error}. {_BRACES}") from None
    for field in fields:
        if field not in known:
            names = ", ".join(sorted(known)) or "none"
            problem = f"{source}: unknown parameter {{{field}}}{suggest(field, known)}"
            raise ConfigError(f"{problem}. Known: {names}. {_BRACES}")
    return fields


def fill(text: str, values: Mapping[str, Any]) -> str:
    """Returns a text with values for its {names}. Raises ConfigError for a format that a value does not
    support."""
    try:
        return text.format(**values)
    except ValueError as error:
        raise ConfigError(f"{text[:60]!r}: {error}.") from None


# -----------------------------------------------------------------------------------------------------------
# Numbers of an output


# {metric: {how it was reduced: its value; None where there is none}}
Results = dict[str, dict[str, "float | None"]]
_REDUCTIONS: dict[str, Callable[[list[float]], float]] = {
    "mean": lambda numbers: sum(numbers) / len(numbers),
    "final": lambda numbers: numbers[-1],
    "min": min,
    "max": max,
    "value": lambda numbers: numbers[0],
}


class Number(NamedTuple):
    """A number extracted from an output, or computed from others.

    Attributes:
      name: name of the metric.
      reduction: reduction of several numbers, one of `_REDUCTIONS`; for a computed number a label.
      find: (lines of the output, {name: value of earlier numbers and of parameters}, processes) -> its value;
        raises ValueError or ArithmeticError without one.
    """

    name: str
    reduction: str
    find: Callable[[Collection[str], Mapping[str, Any], int], float]


def find_numbers(
    wanted: Iterable[Number],
    lines: Collection[str],
    values: Mapping[str, str],
    exitcode: int = 0,
    processes: int = 1,
) -> tuple[Results, list[str]]:
    """Returns (numbers of a run, reasons of the missing ones).

    Args:
      wanted: numbers to look for.
      lines: output lines of the run.
      values: {parameter: value}; a parameter takes precedence over a metric of the same name.
      exitcode: exit code of the run; a failed one has no numbers.
      processes: number of independent processes over which `throughput` is summed.
    """
    results: Results = {}
    problems = []
    for name, reduction, find in wanted:
        value, known = None, {each: number_of(results, each) for each in results}
        try:
            if exitcode:
                raise ValueError(f"exit code {exitcode}")
            value = find(lines, {**known, **values}, processes)
        except (ValueError, ArithmeticError) as error:
            problems.append(f"{name}: {error}")
        results[name] = {reduction: value}
    return results, problems


def number_of(results: Results, name: str) -> float | None:
    """Returns the value of a metric with any reduction; None if missing."""
    return next(iter(results.get(name, {}).values()), None)


# -----------------------------------------------------------------------------------------------------------
# Entries of a file


MAX_SECS = 10**8  # of a timeout: three years
# Key of an entry -> the kinds of its value; None: accepted but ignored, since the published runner reads it
# only on Slurm, in another of its commands, or not at all.
_KEYS: dict[str, Any] = {
    "description": str,
    "cmd": str,
    "parameters": (dict, list),
    "env": dict,
    "location": str,
    "reference_directory": str,
    "data": dict,
    "derived": dict,
    "output": list,
    "timeout": float,
    "allow_wandb": bool,
    "requirements_file": str,
    "generated": bool,
    "synthetic": bool,
    "pre_run_commands": None,
    "requirements_path": None,
    "required_apt_packages_path": None,
    "required_apt_packages": None,
    "repository": None,
}
_METRIC_KEYS = {"regexp": str, "skip": int, "reduction_type": str}
_DERIVED_KEYS = {"expr": (str, int, float), "reduction_type": str}


class Benchmark(NamedTuple):
    """An entry of a file.

    Attributes:
      name: name of the entry.
      path: path of its file.
      entry: its keys, checked.
      folder: working directory of its runs.
      variants: {parameter: value} of each run; [{}] without parameters.
      numbers: numbers to extract from the output, then those to compute from them.
      columns: (label, name of a number or a parameter) of its row in the tables.
    """

    name: str
    path: str
    entry: dict[str, Any]
    folder: str
    variants: list[dict[str, str]]
    numbers: tuple[Number, ...]
    columns: tuple[tuple[str, str], ...]


def read(
    paths: Iterable[str], choose: Callable[[Collection[str]], Iterable[str]] = iter
) -> dict[str, Benchmark]:
    """Returns {name: benchmark} of the chosen entries; others are not checked.

    Entries with shared settings are not benchmarks: those with `options` in their name, and those without a
    command whose keys another entry has, too.

    Args:
      paths: paths of files; of two entries with the same name the later one counts.
      choose: names of all entries -> those to read, in this order.

    Raises:
      ConfigError: for an invalid file or entry.
    """
    found: dict[str, tuple[Any, str]] = {}
    for path in paths:
        entries = read_yaml(path, "spec")
        found |= {
            str(name): (entry, path) for name, entry in entries.items() if not _is_shared(name, entries)
        }
    return {name: _read_entry(name, *found[name]) for name in choose(found)}


def _is_shared(name: Any, entries: dict[Any, Any]) -> bool:
    """Tells whether an entry holds settings shared by others."""
    entry = entries[name]
    if "options" in str(name):
        return True
    if not isinstance(entry, dict) or "cmd" in entry or "notebook" in entry:
        return False
    others = (other for key, other in entries.items() if key != name and isinstance(other, dict))
    return any(entry.keys() <= other.keys() and "cmd" in other for other in others)


def _read_entry(name: str, entry: Any, path: str) -> Benchmark:
    source = f"--spec={path}: {name}"
    if isinstance(entry, dict) and "notebook" in entry:
        raise ConfigError(f"{source}: notebooks are not supported. Give a cmd.")
    _check(entry, _KEYS, "cmd", source)
    variants = expand(entry.get("parameters"), source)
    numbers: list[Number] = []
    for key, value in entry.get("data", {}).items():
        numbers.append(_read_metric(str(key), value, f"{source}: data: {key}"))
    for key, value in entry.get("derived", {}).items():
        known = {*variants[0], *(each.name for each in numbers)}
        numbers.append(_read_derived(str(key), value, known, f"{source}: derived: {key}"))
    check_placeholders(entry["cmd"], variants[0], f"{source}: cmd")
    timeout = entry.get("timeout", 1)
    if not 0 < timeout < MAX_SECS:
        raise ConfigError(f"{source}: timeout={timeout}, expected seconds above 0, below {MAX_SECS:,}.")
    columns = entry.get("output", [])
    for row in columns:
        if not isinstance(row, list) or len(row) != 2:
            raise ConfigError(f"{source}: output: expected [label, metric], got {str(row)[:60]}.")
    base = os.path.expanduser(os.path.expandvars(entry.get("reference_directory", os.path.dirname(path))))
    return Benchmark(
        name,
        os.path.abspath(path),
        entry,
        os.path.abspath(os.path.join(base, entry.get("location", ""))),
        variants,
        tuple(numbers),
        tuple((str(label), str(column).strip("{}")) for label, column in columns),
    )


def _check(values: Any, known: Mapping[str, Any], required: str, source: str) -> None:
    """Raises ConfigError for keys that are unknown, of another kind, or missing."""
    if not isinstance(values, dict):
        raise ConfigError(f"{source} is {kind_of(values)}, expected keys such as {required}.")
    for key, value in values.items():
        if key not in known:
            meant = f"{str(key)[:60]!r}{suggest(str(key), known)}"
            raise ConfigError(f"{source}: unknown key {meant}. Allowed: {', '.join(known)}.")
        if known[key]:
            check_kind(value, known[key], f"{source}: {key}")
    if not str(values.get(required, "")).strip():
        raise ConfigError(f"{source} has no {required}.")


def _read_metric(name: str, value: Any, source: str) -> Number:
    """Returns a number to extract. As published, a mean leaves out the first values after sorting: the
    smallest, for `latency` the largest."""
    _check(value, _METRIC_KEYS, "regexp", source)
    regexp, skip, reduction = value["regexp"], value.get("skip", 0), value.get("reduction_type", "mean")
    try:
        pattern = re.compile(regexp)
    except (re.error, RecursionError, OverflowError) as error:
        raise ConfigError(f"{source}: regexp {regexp!r} is invalid: {error}.") from None
    if skip < 0:
        raise ConfigError(f"{source}: skip={skip}, expected a whole number of 0 or more.")
    if pattern.groups > 1:
        has = f"regexp {regexp!r} has {pattern.groups} groups"
        raise ConfigError(f"{source}: {has}, expected at most one; (?:...) does not count.")
    if reduction not in _REDUCTIONS:
        received = f"reduction_type={reduction!r}{suggest(reduction, _REDUCTIONS)}"
        raise ConfigError(f"{source}: {received}, expected one of {', '.join(_REDUCTIONS)}.")

    def find(lines: Collection[str], known: Mapping[str, Any], processes: int) -> float:
        try:
            numbers = [float(text) for line in lines for text in pattern.findall(line)]
        except ValueError:
            raise ValueError(f"{regexp!r} matches text that is not a number") from None
        if any(map(math.isnan, numbers)):
            raise ValueError("NaN")
        if len(numbers) <= skip:
            raise ValueError(f"{len(numbers)} matches of {regexp!r}, expected more than {skip}")
        if reduction == "mean":
            numbers = sorted(numbers, reverse=name == "latency")[skip:]
        return _REDUCTIONS[reduction](numbers) * (processes if name == "throughput" else 1)

    return Number(name, reduction, find)


def _read_derived(name: str, value: Any, known: Collection[str], source: str) -> Number:
    """Returns a number to compute: an expression with {names} of numbers and parameters."""
    _check(value, _DERIVED_KEYS, "expr", source)
    expression = str(value["expr"])
    fields = check_placeholders(expression, known, f"{source}: expr")

    def find(lines: Collection[str], known: Mapping[str, Any], processes: int) -> float:
        return evaluate(fill(expression, known))

    try:
        find((), dict.fromkeys(fields, "1"), 1)
    except ValueError as error:
        raise ConfigError(f"{source}: expr {error}.") from None
    except ArithmeticError:
        pass  # of ones alone
    return Number(name, value.get("reduction_type", "mean"), find)
