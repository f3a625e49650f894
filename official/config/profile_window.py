"""The steps that are profiled."""

from __future__ import annotations

from typing import TYPE_CHECKING

from official.io.errors import ConfigError

if TYPE_CHECKING:
    from official.config.table import Config


def read_steps(text: str) -> tuple[int, int]:
    """Returns (first, last) of --profile_steps: from `first` updates done to `last`. Raises ConfigError."""
    parts = [part.strip() for part in text.split(",")]
    if len(parts) == 2 and all(part.isdecimal() for part in parts):
        first, last = map(int, parts)
        if first < last:
            return first, last
    raise ConfigError(
        f"profile_steps={text[:100]}, expected two steps, the second one after the first, such as 10,20:"
        " the steps from 10 updates done to 20. Change --profile_steps."
    )


def window(config: Config, step: int, last_step: int) -> tuple[int, int] | None:
    """Returns (first, last) of the steps that a process profiles; None where there are none.

    Args:
      config: of the run.
      step: updates done where the process begins.
      last_step: the last update of the run.
    """
    if config.profile_steps:
        first, last = read_steps(config.profile_steps)
        return (first, last) if step <= first and last <= last_step else None
    if config.profile_memory and step < last_step:  # the first step of a process compiles
        first = min(step + 1, last_step - 1)
        return first, first + 1
    return None
