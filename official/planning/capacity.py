"""Whether a run fits the memory of its devices, and the smallest change with which it does."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from official.config import FIELDS, Config, ConfigError, replaced
from official.config.backends import BACKENDS
from official.config.device_memory import device_bytes

_RECOMPUTE = FIELDS["recompute"].choices  # each keeps less than those before it


def capacity(config: Config, rows: int, needed: list[int], bytes_with: Callable[[Config], list[int]]) -> dict:
    """Returns what a plan says of the devices' memory.

    Args:
      config: of the run.
      rows: of a replica's step.
      needed: the most bytes at once on each device of a replica.
      bytes_with: config -> the same with another --recompute and --num_accumulation_steps.

    Returns:
      `bytes_per_device`; `device_bytes`, what one holds, `fits`, and `fits_with`, the flags of the smallest
      change with which it does: None where the device is not said, where nothing is to change, and where
      nothing of these helps.
    """
    found = {"bytes_per_device": needed, "device_bytes": None, "fits": None, "fits_with": None}
    if config.plan_device is None:
        return found
    limit = device_bytes(config.plan_device)
    fits = max(needed) <= limit
    change = None if fits or not config.do_train else _smallest_change(config, rows, limit, bytes_with)
    return found | {"device_bytes": limit, "fits": fits, "fits_with": change}


def _smallest_change(config: Config, rows: int, limit: int, bytes_with: Callable) -> str | None:
    for flags in _changes(config, rows):
        changed = replaced(config, **flags)
        try:
            BACKENDS[config.distribution_strategy].check(changed)
            fits = max(bytes_with(changed)) <= limit
        except ConfigError:  # the devices, or the schedule of their pipeline, do not take this change
            continue
        if fits:
            return " ".join(f"--{name}={value}" for name, value in flags.items())
    return None


def _changes(config: Config, rows: int) -> Iterator[dict]:
    """Yields what keeps less and less: more is computed again, then micro batches are smaller."""
    later = _RECOMPUTE[_RECOMPUTE.index(config.recompute) + 1 :]
    for recompute in later:
        yield {"recompute": recompute}
    for count in range(config.num_accumulation_steps + 1, rows + 1):
        if rows % count == 0:
            yield {**({"recompute": later[-1]} if later else {}), "num_accumulation_steps": count}
