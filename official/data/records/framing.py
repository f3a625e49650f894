"""How records lie in a file: in the frames of a TFRecord, or one after the other, all of one size.

Files of the second kind say nothing of themselves: format and size of their records are found by trying which
make the first record right, or the last one.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from official.data.records.formats import popart
from official.data.records.formats.sequences_in_rows import Shape
from official.io import files as io_files
from official.io.errors import ConfigError

_LONGEST = 1 << 17  # bytes of a record that is looked for: 8,192 tokens of packed rows
_SHORTEST = 64
_TRIED_FILES = 16


class Unframed(NamedTuple):
    """What a file without frames holds."""

    record_format: str
    num_bytes: int  # of a record
    shape: Shape

    def sizes(self) -> tuple[int, int]:
        """Returns max_seq_length and max_predictions_per_seq."""
        return popart.EXAMPLES[self.record_format].layout.sizes(self.shape)


def find(path: str) -> Unframed | None:
    """Returns what a file holds; None where it has frames, is empty, or neither its first nor its last record
    is right. Raises ConfigError where it cannot be read."""
    with io_files.naming(path):
        return _find(path, io_files.version(path))


@functools.lru_cache(maxsize=4096)
def _find(path: str, version: tuple[int, int]) -> Unframed | None:
    size = version[0]
    with io_files.open_binary(path) as file:
        first = file.read(_LONGEST)
        file.seek(max(size - _LONGEST, 0))
        last = file.read(_LONGEST)
    sizes = np.arange(_SHORTEST, min(_LONGEST, size) + 1, 4)
    ends = [(first[:one], last[-one:]) for one in sizes[size % sizes == 0].tolist()]
    in_doubt = None
    for begin, end in ends:
        for found in _right_ones(begin):
            if _is_right(end, found):
                return found
            in_doubt = in_doubt or found
    return in_doubt or next((found for _, end in ends for found in _right_ones(end)), None)


def _right_ones(record: bytes):
    for name in popart.EXAMPLES:
        for shape in popart.shapes(record, name):
            yield Unframed(name, len(record), shape)


def _is_right(record: bytes, found: Unframed) -> bool:
    return popart.describe(record, found.record_format, found.shape) is None


def detect_format(paths: list[str]) -> str | None:
    """Returns the format of files without frames; None where the first ones have some or show nothing."""
    found = next(filter(None, map(find, paths[:_TRIED_FILES])), None)
    return found.record_format if found else None


def has_none(record_format: str) -> bool:
    """Tells whether records of a format have no frames."""
    return popart.is_name(record_format)


def find_in(paths: list[str], record_format: str) -> Unframed | None:
    """Returns what files of a format hold, by the first of them that shows it; None for a format that has
    frames. Raises ConfigError where a file cannot be read."""
    if not has_none(record_format):
        return None
    return next(filter(None, map(find, paths[:_TRIED_FILES])), None)


def bytes_of(paths: list[str], record_format: str) -> int | None:
    """Returns the bytes of a record of some files, as `find_in` does."""
    found = find_in(paths, record_format)
    return found.num_bytes if found else None


def opener(paths: list[str], record_format: str) -> Callable[[tf.Tensor | str | list[str]], tf.data.Dataset]:
    """Returns what opens some of these files, of one format, as a dataset of their records, string."""
    if not has_none(record_format):
        return tf.data.TFRecordDataset
    num_bytes = bytes_of(paths, record_format) or _LONGEST  # which fails, and the reason is looked for
    return lambda some: tf.data.FixedLengthRecordDataset(some, num_bytes)


def count_records(path: str, num_bytes: int) -> int:
    """Returns the number of a file's records. Raises ConfigError where it is cut off inside of one."""
    size = io_files.sizes([path])[0]
    if size % num_bytes:
        raise ConfigError(
            f"{path} is truncated or damaged after record {size // num_bytes}: its {size:,} bytes are no"
            f" multiple of the {num_bytes:,} of a record."
        )
    return size // num_bytes


def read_batches(
    path: str, record_format: str, limit: int | None, num_bytes: int | None, at_once: int
) -> Iterator[list[bytes]]:
    """Yields records of a file without frames, `at_once` at a time.

    Args: as of `record_files.read_batches`.

    Raises:
      ConfigError: where the file is cut off, after the whole records, or cannot be read.
    """
    num_bytes = num_bytes or bytes_of([path], record_format)
    if num_bytes is None:
        raise ConfigError(
            f"{path}, record 1: neither it nor the last one is a right {record_format} record of any size."
        )
    left = io_files.sizes([path])[0] // num_bytes if limit is None else limit
    with io_files.naming(path), io_files.open_binary(path) as file:
        while left > 0:
            block = file.read(min(at_once, left) * num_bytes)
            whole = len(block) // num_bytes
            if not whole:
                break
            yield [block[start : start + num_bytes] for start in range(0, whole * num_bytes, num_bytes)]
            left -= whole
    count_records(path, num_bytes)


def describe_sizes(path: str, length: int, most: int) -> str:
    """Returns, for a message, what a file would have to be like to hold records without frames.

    Args:
      path: of the file.
      length, most: tokens and predicted tokens of an example.
    """
    depths = {name: 3 if name in popart.ROWS else 1 for name in popart.EXAMPLES}  # as published
    sizes = ", ".join(
        f"{popart.record_bytes(name, length, most, depth):,} ({name})" for name, depth in depths.items()
    )
    return (
        f"it has {io_files.sizes([path])[0]:,} bytes. Allowed: TFRecord files, and PopART's binaries, whose"
        f" records of {length} tokens, {most} predicted ones and, where they are packed, 3 sequences have"
        f" {sizes} bytes"
    )
