"""Files of benchmarks, in the format of Graphcore's `examples_utils benchmark`, and their checks."""

from __future__ import annotations

import ast
import dataclasses
import itertools
import json
import os
import re
import string
from collections.abc import Callable, Collection, Iterable
from typing import Any

from official.io.errors import ConfigError, suggest
from official.io.json_files import is_of_kind, kind_of, read_yaml

# -----------------------------------------------------------------------------------------------------------
# Expressions of numbers, as `derived` metrics have them
#
# The published runner gives the text to Python's `eval`. Here it is parsed with `ast`, and only numbers, +
# - * / // % **, brackets and the functions of `_FUNCTIONS` are computed: a file of benchmarks runs the
# commands that it shows, and no other code.


_MAX_CHARACTERS = 1000
_NODES = (ast.Expression, ast.Constant, ast.BinOp, ast.UnaryOp, ast.Call, ast.Name, ast.Load)
_OPERATORS = (ast.Add, ast.Sub, ast.Mult, ast.Div, ast.FloorDiv, ast.Mod, ast.Pow, ast.UAdd, ast.USub)
_FUNCTIONS: dict[str, Any] = {
    "abs": abs,
    "float": float,
    "int": lambda value: float(int(value)),
    "max": max,
    "min": min,
    "round": lambda value, digits=0.0: round(value, int(digits)),
}


def evaluate(expression: str) -> float:
    """Returns the value of an expression; all numbers are floats, so that none grows without bound.

    Raises:
      ValueError: where it is no arithmetic, or its value is no real number.
      ArithmeticError: for a division by zero and the like.
    """
    if len(expression) > _MAX_CHARACTERS:
        raise ValueError(f"it has {len(expression)} characters, expected {_MAX_CHARACTERS} at most")
    try:
        tree = ast.parse(expression.strip(), mode="eval")
        for node in ast.walk(tree):
            is_other_name = isinstance(node, ast.Name) and node.id not in _FUNCTIONS
            is_text = isinstance(node, ast.Constant) and not isinstance(node.value, (int, float))
            if not isinstance(node, _NODES + _OPERATORS) or is_other_name or is_text:
                raise ValueError(
                    f"{ast.unparse(node)[:40]!r} is neither a number, an operation, nor one of"
                    f" {', '.join(_FUNCTIONS)}"
                )
            if isinstance(node, ast.Constant):
                node.value = float(node.value)  # type: ignore[arg-type]
        value = eval(compile(tree, "expression", "eval"), {"__builtins__": {}, **_FUNCTIONS})
    except (SyntaxError, RecursionError, MemoryError):
        raise ValueError("it is no arithmetic") from None
    except TypeError as error:
        raise ValueError(str(error)) from None
    if not isinstance(value, float):
        raise ValueError(f"its value {value} is no real number")
    return value


# -----------------------------------------------------------------------------------------------------------
# Parameters: a run for each combination or row, and their {places} in a text


_BRACES = "Braces that are no {parameter} are written twice."


def expand(values: Any, source: str) -> list[dict[str, str]]:
    """Returns {parameter: value} of every variant; [{}] without parameters.

    Args:
      values: {name: "1,2"}: every combination, the first parameter changing fastest;
        [[names], [values], ...]: a variant a row; None.
      source: begins the messages.

    Raises:
      ConfigError: for rows of other lengths than their head.
    """
    if values is None:
        return [{}]
    if isinstance(values, dict):
        for name, value in values.items():
            if isinstance(value, (dict, list)) or value is None:
                wanted = 'values with commas between them, such as "1,2"'
                raise ConfigError(f"{source}: parameters: {name} is {value!s:.40}, expected {wanted}.")
        names = [str(name) for name in values]
        choices = [str(value).split(",") for value in values.values()]
        # As published: the parameter that is named first changes fastest.
        return [dict(zip(names, row[::-1])) for row in itertools.product(*choices[::-1])]
    if len(values) < 2 or not all(isinstance(row, list) for row in values):
        raise ConfigError(f"{source}: parameters: expected a list of names, then lists of values.")
    names = [str(name) for name in values[0]]
    for number, row in enumerate(values[1:], start=1):
        if len(row) != len(names):
            wanted = f"{len(names)}: {', '.join(names)}"
            raise ConfigError(f"{source}: parameters: row {number} has {len(row)} values, expected {wanted}.")
    return [dict(zip(names, map(str, row))) for row in values[1:]]


def name_of(benchmark: str, values: dict[str, str]) -> str:
    """Returns the name of a variant: <benchmark>_<parameter>_<value>..., parameters sorted."""
    return benchmark + "".join(f"_{name}_{values[name]}" for name in sorted(values))


def check_placeholders(text: str, known: Collection[str], source: str) -> list[str]:
    """Returns the names in {braces} of a text. Raises ConfigError where one is not known."""
    try:
        fields = [field for _, field, _, _ in string.Formatter().parse(text) if field is not None]
    except ValueError as error:
        raise ConfigError(f"{source}: {error}. {_BRACES}") from None
    for field in fields:
        if field not in known:
            names = ", ".join(sorted(known)) or "none"
            problem = f"{source}: there is no parameter {{{field}}}{suggest(field, known)}"
            raise ConfigError(f"{problem}. Known: {names}. {_BRACES}")
    return fields


def fill(text: str, values: dict[str, Any]) -> str:
    """Returns a text with values for its {names}. Raises ConfigError for a format that one does not take."""
    try:
        return text.format(**values)
    except ValueError as error:
        raise ConfigError(f"{text[:60]!r}: {error}.") from None


# -----------------------------------------------------------------------------------------------------------
# Entries of a file


LONGEST_SECS = 10**8  # of a timeout: three years
REDUCTIONS = ("mean", "final", "min", "max", "value")
# Key of an entry -> the kinds of its value. Those of `_NOT_READ` are accepted, as published files have them.
_KEYS: dict[str, type | tuple[type, ...]] = {
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
}
# Read by the published runner on Slurm, by another of its commands, or by nothing.
_NOT_READ = (
    "pre_run_commands",
    "requirements_path",
    "required_apt_packages_path",
    "required_apt_packages",
    "repository",
)
_WORDS = {
    str: "a text",
    dict: "names with values",
    list: "a list",
    float: "a number",
    bool: "true or false",
    (dict, list): "names with values, or a list of rows",
}
_DATA_KEYS = ("regexp", "skip", "reduction_type")
_DERIVED_KEYS = ("expr", "reduction_type")
_NEEDS_NO_DATA = ("gen", "synth")  # in the name


@dataclasses.dataclass(frozen=True)
class Metric:
    """A number to extract from the output of a benchmark.

    Attributes:
      name: of the metric.
      regexp: its group, or all of what it matches, is the number.
      skip: with "mean": so many of the sorted numbers are left out.
      reduction: what becomes of several numbers, one of `REDUCTIONS`.
    """

    name: str
    regexp: re.Pattern[str]
    skip: int
    reduction: str


@dataclasses.dataclass(frozen=True)
class Derived:
    """A number computed from others: an expression with {names} of metrics and parameters."""

    name: str
    expression: str
    reduction: str


@dataclasses.dataclass(frozen=True)
class Benchmark:
    """An entry of a file.

    Attributes:
      name: of the entry.
      path: of its file.
      command: what is run, with {parameters}.
      variants: {parameter: value} of each run; [{}] without parameters.
      folder: where it runs.
      env: variables of its environment.
      metrics: numbers that it prints.
      derived: numbers to compute of those.
      columns: (label, name of a metric or a parameter) of its row in the tables.
      timeout: seconds, or None.
      allows_wandb: whether its arguments for W&B stay.
      requirements: file for pip, or None.
      needs_data: whether it reads DATASETS_DIR.
    """

    name: str
    path: str
    command: str
    variants: list[dict[str, str]]
    folder: str
    env: dict[str, str]
    metrics: tuple[Metric, ...]
    derived: tuple[Derived, ...]
    columns: tuple[tuple[str, str], ...]
    timeout: float | None
    allows_wandb: bool
    requirements: str | None
    needs_data: bool


def read(
    paths: Iterable[str], choose: Callable[[Collection[str]], Iterable[str]] = iter
) -> dict[str, Benchmark]:
    """Returns {name: benchmark} of the chosen entries; others are not checked.

    Entries that hold what others share are none: those with `options` in their name, and those without a
    command whose keys another one has, too.

    Args:
      paths: of files; of two entries with one name the later one counts.
      choose: names of all entries -> those to read, in this order.

    Raises:
      ConfigError: for a file or an entry that is not as the format has it.
    """
    found: dict[str, tuple[Any, str]] = {}
    for path in paths:
        entries = read_yaml(path, "spec")
        found |= {
            str(name): (entry, path) for name, entry in entries.items() if not _is_shared(name, entries)
        }
    benchmarks = {}
    for name in choose(found):
        entry, path = found[name]
        source = f"--spec={path}: {name}"
        if not isinstance(entry, dict):
            raise ConfigError(f"{source} is {_kind(entry)}, expected keys such as cmd.")
        benchmarks[name] = _read_entry(name, entry, path, source)
    return benchmarks


def _is_shared(name: Any, entries: dict[Any, Any]) -> bool:
    """Tells whether an entry holds settings shared by others."""
    entry = entries[name]
    if "options" in str(name):
        return True
    if not isinstance(entry, dict) or "cmd" in entry or "notebook" in entry:
        return False
    others = (other for key, other in entries.items() if key != name and isinstance(other, dict))
    return any(entry.keys() <= other.keys() and "cmd" in other for other in others)


def _read_entry(name: str, entry: dict[str, Any], path: str, source: str) -> Benchmark:
    if "notebook" in entry:
        raise ConfigError(f"{source}: notebooks are not run here. Give a cmd.")
    _check_names(entry, (*_KEYS, *_NOT_READ), source)
    for key in filter(entry.__contains__, _KEYS):
        if entry[key] is None:
            raise ConfigError(f"{source}: {key} is empty. Give a value, or leave the key out.")
        if not is_of_kind(entry[key], _KEYS[key]):
            raise ConfigError(f"{source}: {key} is {_kind(entry[key])}, expected {_WORDS[_KEYS[key]]}.")
    if not entry.get("cmd", "").strip():
        raise ConfigError(f"{source} has no cmd: the command to run.")
    variants = expand(entry.get("parameters"), source)
    metrics = tuple(_read_metric(key, value, source) for key, value in entry.get("data", {}).items())
    named = {*variants[0], *(metric.name for metric in metrics)}
    derived = []
    for key, value in entry.get("derived", {}).items():
        derived.append(_read_derived(str(key), value, named, source))
        named.add(str(key))
    check_placeholders(entry["cmd"], variants[0], f"{source}: cmd")
    timeout = entry.get("timeout")
    if timeout is not None and not 0 < timeout < LONGEST_SECS:
        raise ConfigError(f"{source}: timeout={timeout}, expected seconds above 0, below {LONGEST_SECS:,}.")
    for row in entry.get("output", []):
        if not isinstance(row, list) or len(row) != 2:
            raise ConfigError(f"{source}: output: expected [label, metric], got {str(row)[:60]}.")
    base = os.path.expanduser(os.path.expandvars(entry.get("reference_directory", os.path.dirname(path))))
    is_generated = any(word in name for word in _NEEDS_NO_DATA)
    return Benchmark(
        name=name,
        path=os.path.abspath(path),
        command=entry["cmd"],
        variants=variants,
        folder=os.path.abspath(os.path.join(base, entry.get("location", ""))),
        env={str(key): str(value) for key, value in entry.get("env", {}).items()},
        metrics=metrics,
        derived=tuple(derived),
        columns=tuple((str(label), str(name).strip("{}")) for label, name in entry.get("output", [])),
        timeout=timeout,
        allows_wandb=entry.get("allow_wandb", False),
        requirements=entry.get("requirements_file"),
        needs_data=not (is_generated or entry.get("generated") or entry.get("synthetic")),
    )


def _check_names(values: dict[Any, Any], known: Iterable[str], source: str) -> None:
    for key in values:
        if key not in known:
            meant = f"{str(key)[:60]!r}{suggest(str(key), known)}"
            raise ConfigError(f"{source}: unknown key {meant}. Allowed: {', '.join(known)}.")


def _read_metric(name: Any, value: Any, source: str) -> Metric:
    source = f"{source}: data: {name}"
    _check_object(value, "regexp", _DATA_KEYS, source)
    skip = value.get("skip", 0)
    if type(skip) is not int or skip < 0:
        raise ConfigError(f"{source}: skip={skip!r}, expected a whole number of 0 or more.")
    try:
        pattern = re.compile(value["regexp"])
    except (re.error, RecursionError, OverflowError) as error:
        raise ConfigError(f"{source}: regexp {value['regexp']!r} is none: {error}.") from None
    if pattern.groups > 1:
        found = f"{source}: regexp {value['regexp']!r} has {pattern.groups} groups"
        raise ConfigError(f"{found}, expected one at most: (?:...) is none.")
    reduction = value.get("reduction_type", REDUCTIONS[0])
    if reduction not in REDUCTIONS:
        given = f"{source}: reduction_type={reduction!r}{suggest(str(reduction), REDUCTIONS)}"
        raise ConfigError(f"{given}, expected one of {', '.join(REDUCTIONS)}.")
    return Metric(str(name), pattern, skip, reduction)


def _read_derived(name: str, value: Any, named: set[str], source: str) -> Derived:
    source = f"{source}: derived: {name}"
    _check_object(value, "expr", _DERIVED_KEYS, source)
    expression = str(value["expr"])
    fields = check_placeholders(expression, named, f"{source}: expr")
    try:
        evaluate(fill(expression, dict.fromkeys(fields, "1")))
    except ValueError as error:
        raise ConfigError(f"{source}: expr {expression!r}: {error}.") from None
    except ArithmeticError:
        pass  # of ones alone
    reduction = value.get("reduction_type", REDUCTIONS[0])  # a label: there is one number
    if not isinstance(reduction, str):
        raise ConfigError(f"{source}: reduction_type={reduction!r}, expected a text.")
    return Derived(name, expression, reduction)


def _check_object(value: Any, required: str, known: tuple[str, ...], source: str) -> None:
    if not isinstance(value, dict):
        raise ConfigError(f"{source} is {_kind(value)}, expected the keys {', '.join(known)}.")
    _check_names(value, known, source)
    if not isinstance(value.get(required), (str, int, float) if required == "expr" else str):
        raise ConfigError(f"{source} has no {required}, a text.")


def _kind(value: Any) -> str:
    """Returns the kind of a value; of one that JSON does not have, such as a date, the value."""
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError):
        return f"{value!s:.40}"
    return kind_of(value)
