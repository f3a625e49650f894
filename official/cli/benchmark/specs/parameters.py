"""The parameters of a benchmark: a run for each combination or row, and their {places} in a text."""

from __future__ import annotations

import itertools
import string
from collections.abc import Collection
from typing import Any

from official.io.errors import ConfigError, suggest


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
    return _rows(values, source) if isinstance(values, list) else _combinations(values, source)


def _combinations(values: dict[Any, Any], source: str) -> list[dict[str, str]]:
    for name, value in values.items():
        if isinstance(value, (dict, list)) or value is None:
            raise ConfigError(
                f"{source}: parameters: {name} is {value!s:.40}, expected values with commas between them,"
                ' such as "1,2".'
            )
    names = [str(name) for name in values]
    choices = [str(value).split(",") for value in values.values()]
    # As published: the parameter that is named first changes fastest.
    return [dict(zip(names, row[::-1])) for row in itertools.product(*choices[::-1])]


def _rows(rows: list[Any], source: str) -> list[dict[str, str]]:
    if len(rows) < 2 or not all(isinstance(row, list) for row in rows):
        raise ConfigError(f"{source}: parameters: expected a list of names, then lists of values.")
    names = [str(name) for name in rows[0]]
    for number, row in enumerate(rows[1:], start=1):
        if len(row) != len(names):
            raise ConfigError(
                f"{source}: parameters: row {number} has {len(row)} values, expected {len(names)}:"
                f" {', '.join(names)}."
            )
    return [dict(zip(names, map(str, row))) for row in rows[1:]]


def name_of(benchmark: str, values: dict[str, str]) -> str:
    """Returns the name of a variant: <benchmark>_<parameter>_<value>..., parameters sorted."""
    return benchmark + "".join(f"_{name}_{values[name]}" for name in sorted(values))


def check_placeholders(text: str, known: Collection[str], source: str) -> list[str]:
    """Returns the names in {braces} of a text. Raises ConfigError where one is not known."""
    try:
        fields = [field for _, field, _, _ in string.Formatter().parse(text) if field is not None]
    except ValueError as error:
        raise ConfigError(f"{source}: {error}. Braces that are no {{parameter}} are written twice.") from None
    for field in fields:
        if field not in known:
            names = ", ".join(sorted(known)) or "none"
            raise ConfigError(
                f"{source}: there is no parameter {{{field}}}{suggest(field, known)}. Known: {names}. Braces"
                " that are no parameter are written twice."
            )
    return fields


def fill(text: str, values: dict[str, Any]) -> str:
    """Returns a text with values for its {names}. Raises ConfigError for a format that one does not take."""
    try:
        return text.format(**values)
    except ValueError as error:
        raise ConfigError(f"{text[:60]!r}: {error}.") from None
