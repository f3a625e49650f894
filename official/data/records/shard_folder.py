"""The folder that a job writes its shards of records to, and what such jobs check first."""

from __future__ import annotations

import glob
import os
from collections.abc import Mapping

from official.io import finished_jobs
from official.io.errors import ConfigError


def check_flags(random_seed: int, counts: Mapping[str, int | None]) -> None:
    """Raises ConfigError where a count, by the name of its flag, is below 1 (None: unset), or the seed is
    below 0."""
    for name, value in counts.items():
        if value is not None and value < 1:
            raise ConfigError(f"--{name}={value} is out of range. Allowed: 1 or more.")
    if random_seed < 0:
        raise ConfigError(f"--random_seed={random_seed} is out of range. Allowed: 0 or more.")


def remove_earlier(folder: str) -> None:
    """Removes the files of an earlier finished job; the manifest last, which tells that there are any."""
    manifest = os.path.join(folder, finished_jobs.MANIFEST)
    if os.path.exists(manifest):
        for path in [*_shards_in(folder), manifest]:
            os.remove(path)


def remove_temporary(folder: str) -> None:
    """Removes what an interrupted job had begun to write."""
    for path in glob.glob(os.path.join(glob.escape(folder), "*.tmp-*")):
        os.remove(path)


def remove_all_but(folder: str, made: set[str]) -> None:
    """Removes the shards of a job that was thrown away: those that are not in `made`, paths in the folder."""
    for path in {*_shards_in(folder)} - made:
        os.remove(path)


def _shards_in(folder: str) -> list[str]:
    return glob.glob(os.path.join(glob.escape(folder), "part-*-of-*.tfrecord"))
