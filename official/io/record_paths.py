"""Finds files of records, by names, globs, folders, or a manifest that names them."""

from __future__ import annotations

import os

from official.io import files as io_files
from official.io import json_files
from official.io.errors import ConfigError
from official.io.finished_jobs import MANIFEST
from official.io.stores import is_remote


def find_files(patterns: str, flag: str = "") -> list[str]:
    """Returns the files that comma-separated names, globs or folders of records stand for; see
    `files.find_files`.

    The manifest that lies among records of our own is left out; given by its name, with a flag, it stands for
    the files that it names, and nobody lists its folder.
    """
    parts = [part.strip() for part in patterns.split(",")]
    manifests = [part for part in parts if flag and os.path.basename(part) == MANIFEST]
    others = [part for part in parts if part and part not in manifests]
    found = [path for manifest in manifests for path in _named_in(manifest, flag)]
    if others or not found:
        found += io_files.find_files(",".join(others) if found else patterns, flag, in_folders="*.tfrecord")
    found = sorted(set(found))
    records = [path for path in found if os.path.basename(path) != MANIFEST]
    if not records:
        raise ConfigError(
            f"{f'--{flag}=' if flag else ''}{patterns} holds no records, only {MANIFEST}. Give"
            " TFRecord files."
        )
    for path in records:
        if not is_remote(path) and os.path.lexists(path):  # TensorFlow is to open it
            with io_files.naming(path):
                io_files.check_readable(path)
    return records


def _named_in(manifest: str, flag: str) -> list[str]:
    """Returns the files that a manifest names. Raises ConfigError where it is none, or names none."""
    counts = json_files.expect(json_files.read_json(manifest, flag), "files", dict, manifest, {})
    return [os.path.join(os.path.dirname(manifest), name) for name in counts]
