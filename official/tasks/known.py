"""Values that are there by the time that they are asked for."""

from __future__ import annotations

from typing import TypeVar

T = TypeVar("T")


def known(value: T | None) -> T:
    """Returns a value that the checks of the configuration, or `find_data`, have made sure of."""
    if value is None:
        raise ValueError("asked for before find_data has found it, or though the configuration lacks it")
    return value
