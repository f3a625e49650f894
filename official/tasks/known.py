"""Optional values that are set by the time they are used."""

from __future__ import annotations

from typing import TypeVar

T = TypeVar("T")


def known(value: T | None) -> T:
    """Returns an optional value that the checks of the configuration, or `find_data`, have set.

    Raises:
      ValueError: where it is None.
    """
    if value is None:
        raise ValueError("asked for before find_data has found it, or though the configuration lacks it")
    return value
