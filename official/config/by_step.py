"""Values that change at given steps, as a setting holds them: JSON such as {"0": 1e-4, "1000": 1e-5}."""

from __future__ import annotations

import json
import math
from typing import Any

from official.io.errors import ConfigError

_EXPECTED = 'expected JSON of step and value with a step 0, such as {"0": 1e-4, "1000": 1e-5}'


def read(text: str, name: str) -> dict[int, float]:
    """Returns {step: value}, in the order of the steps; a value holds from its step on.

    Args:
      text: of the setting.
      name: of the setting, for messages.

    Raises:
      ConfigError: for what is no such JSON, a step below 0 or twice, a value that is negative or not finite,
        or where nothing is said of step 0.
    """
    try:
        pairs = json.loads(text, object_pairs_hook=list)
        found = {int(step): _number(value) for step, value in pairs}
    except (ValueError, TypeError, RecursionError):
        raise ConfigError(f"{name}={text[:100]}, {_EXPECTED}.") from None
    if len(found) < len(pairs):
        raise ConfigError(f"{name}={text[:100]} has a step twice. Drop one of the two.")
    if min(found, default=1) != 0:
        raise ConfigError(
            f"{name}={text[:100]} must say the value of step 0 and of no step before: {_EXPECTED}."
        )
    return dict(sorted(found.items()))


def at(values: dict[int, float], step: int) -> float:
    """Returns the value of the greatest step that is `step` or before it."""
    return values[max(start for start in values if start <= step)]


def _number(value: Any) -> float:
    if isinstance(value, bool) or not 0 <= float(value) < math.inf:
        raise ValueError(value)
    return float(value)
