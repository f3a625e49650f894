"""The folder that a job writes its shards of records to, and what such jobs check first."""

from __future__ import annotations

import fnmatch
import os
from collections.abc import Mapping

from official.io import files, jobs
from official.io.errors import ConfigError
from official.io.files import store_of


def check_flags(random_seed: int, counts: Mapping[str, int | None]) -> None:
    """Raises ConfigError where a count, by the name of its flag, is below 1 (None: unset), or the seed is
    below 0."""
    for name, value in counts.items():
        if value is not None and value < 1:
            raise ConfigError(f"--{name}={value} is out of range. Allowed: 1 or more.")
    if random_seed < 0:
        raise ConfigError(f"--random_seed={random_seed} is out of range. Allowed: 0 or more.")


def remove_earlier(folder: str) -> None:
    """Removes the files of an earlier finished job, and the samples of them; the manifest last, which tells
    that there are any."""
    manifest = os.path.join(folder, jobs.MANIFEST)
    if store_of(folder).exists(manifest):
        for path in [*_shards_in(folder), *_found(folder, jobs.SAMPLES), manifest]:
            store_of(folder).remove(path)


def remove_temporary(folder: str) -> None:
    """Removes what an interrupted job had begun to write."""
    for path in _found(folder, f"*{files.TEMPORARY}*"):
        store_of(folder).remove(path)


def remove_all_but(folder: str, made: set[str]) -> None:
    """Removes the shards of a job that was thrown away: those that are not in `made`, paths in the folder."""
    for path in {*_shards_in(folder)} - made:
        store_of(folder).remove(path)


def _shards_in(folder: str) -> list[str]:
    return _found(folder, "part-*-of-*.tfrecord")


def _found(folder: str, pattern: str) -> list[str]:
    """Returns the files in a folder whose names fit a glob."""
    return [os.path.join(folder, name) for name in fnmatch.filter(store_of(folder).names_in(folder), pattern)]
