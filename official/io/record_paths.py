"""Finds record files, by names, globs, folders or a manifest, and the vocabulary next to them."""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Iterable

from absl import logging

from official.io import files as io_files
from official.io import json_files, vocabulary_files, writing
from official.io.errors import ConfigError
from official.io.files import is_remote
from official.io.jobs import MANIFEST

_NO_RECORDS = (MANIFEST, *vocabulary_files.KEPT)  # names of the other files of a job
_SHARD = re.compile(r"(.*-)(\d{5})-of-(\d{5})(.*)", re.DOTALL)


def find_files(patterns: str, flag: str = "") -> list[str]:
    """Returns the files that comma-separated names, globs or folders of records stand for; see
    `files.find_files`.

    The manifest and the vocabulary among our own records are left out. A manifest that a flag names stands
    for the files that it lists; its folder is not listed.
    """
    parts = [part.strip() for part in patterns.split(",")]
    manifests = [part for part in parts if flag and os.path.basename(part) == MANIFEST]
    others = [part for part in parts if part and part not in manifests]
    found = []
    for manifest in manifests:
        counts = json_files.expect(json_files.read_json(manifest, flag), "files", dict, manifest, {})
        if outside := [name for name in counts if os.path.basename(name) != name]:
            told = f"lists {outside[0][:60]!r}, which is not in its folder. Name that file, or move it there"
            raise ConfigError(f"--{flag}={manifest} {told}.")
        found += [os.path.join(os.path.dirname(manifest), name) for name in counts]
    if others or not found:
        found += io_files.find_files(",".join(others) if found else patterns, flag, in_folders="*.tfrecord")
    found = sorted(set(found))
    records = [path for path in found if os.path.basename(path) not in _NO_RECORDS]
    if not records:
        source, names = f"--{flag}={patterns}" if flag else patterns, sorted({*map(os.path.basename, found)})
        raise ConfigError(f"{source} holds no records, only {', '.join(names)}. Give TFRecord files.")
    for path in records:
        if not is_remote(path) and os.path.lexists(path):  # TensorFlow is to open it
            with io_files.naming(path):
                io_files.check_readable(path)
    _check_jobs(records)
    _check_shards(records)
    return records


def _check_jobs(paths: Iterable[str]) -> None:
    """Warns of files in the folder of a job that its manifest does not list: added files, such as an
    evaluation set, would be trained on."""
    found: dict[str, list[str]] = {}
    for path in paths:
        folder, name = os.path.split(path)
        found.setdefault(folder, []).append(name)
    for folder, names in found.items():
        manifest = os.path.join(folder, MANIFEST)
        own = json_files.read_json_or_empty(manifest).get("files")
        others = [name for name in names if isinstance(own, dict) and name not in own]
        if 0 < len(others) < len(names):
            _warn_once(f"{os.path.join(folder, others[0])} is read, although {manifest} does not list it")


def _check_shards(paths: Iterable[str]) -> None:
    """Warns of files NAME-00000-of-00003, NAME-00001-of-00003, .. with a missing one, and of sets of two
    sizes under one name, as an earlier job may leave them. Leaving out existing files of a set is no reason
    to warn."""
    sets: dict[tuple[str, str], dict[int, set[int]]] = {}
    for found in filter(None, map(_SHARD.fullmatch, paths)):
        sets.setdefault((found[1], found[4]), {}).setdefault(int(found[3]), set()).add(int(found[2]))
    for (start, end), numbers in sets.items():
        if len(numbers) > 1:
            counts = " and of ".join(map(str, sorted(numbers)))
            _warn_once(f"{start}*{end} match sets of {counts} files: some may be left from an earlier job")
        for count, own in numbers.items():
            first = next((number for number in range(count) if number not in own), count)
            missing = f"{start}{first:05d}-of-{count:05d}{end}"
            with io_files.naming(missing):
                is_there = first == count or io_files.is_file(missing)
            if not is_there:
                _warn_once(f"{missing} does not exist: only {len(own)} of {count} files of this set are read")


@functools.lru_cache(maxsize=None)  # noqa: UP033  # functools.cache is not in Python 3.8
def _warn_once(told: str) -> None:
    logging.warning("%s.", told)


def first_of_folders(records: Iterable[str]) -> list[str]:
    """Returns the first file of each folder, in the order of the folders."""
    first = {os.path.dirname(path): path for path in sorted(records, reverse=True)}
    return [first[folder] for folder in sorted(first)]


def find_vocabularies(records: Iterable[str]) -> list[str]:
    """Returns the vocabularies next to files of records, at most one per folder."""
    folders = map(os.path.dirname, first_of_folders(records))
    return [path for path in map(vocabulary_files.find, folders) if path]


def find_vocabulary(records: Iterable[str]) -> str | None:
    """Returns the vocabulary next to files of records; None if there is none. Raises ConfigError if several
    folders have different ones."""
    found = find_vocabularies(records)
    for other in found[1:]:
        if vocabulary_files.read(other).words != vocabulary_files.read(found[0]).words:
            raise ConfigError(
                f"{found[0]} and {other}, next to the records, are different vocabularies. Give"
                " records of one vocabulary."
            )
    return found[0] if found else None


def check_vocabulary(folder: str, vocabulary: str | None, overwrite: bool) -> None:
    """Raises ConfigError if another vocabulary is at the destination. See
    `put_vocabulary`."""
    target = vocabulary_files.find(folder)
    if vocabulary is None or overwrite or target is None:
        return
    if vocabulary_files.read(target).words != vocabulary_files.read(vocabulary).words:
        raise ConfigError(
            f"{target} exists and is not {vocabulary}, the vocabulary of the records, which is copied next to"
            " them. Give another folder, or --overwrite."
        )


def put_vocabulary(folder: str, vocabulary: str | None) -> None:
    """Copies a vocabulary next to records, as vocab.txt, or as tokenizer.json with its tokenizer_config.json.

    Args:
      vocabulary: path of it, as of --vocab_file; None: there is none.
    """
    if vocabulary is not None:
        for name, content in vocabulary_files.contents_of(vocabulary_files.read(vocabulary)).items():
            writing.replace_file(os.path.join(folder, name), content)
