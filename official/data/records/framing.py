"""Framing of the records in a file: in the frames of a TFRecord, or one after the other, all of one size.

Files of the second kind say nothing of themselves: format and size of their records are found by trying which
make most records of a sample right. A row of few sequences may be read in several shapes, one of many in one.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import tensorflow as tf

from official.data.records.formats.sequences_in_rows import Shape
from official.data.records.record_formats import POPART
from official.io import files as io_files
from official.io.errors import ConfigError

_LONGEST = 1 << 17  # bytes of a record that is looked for: 8,192 tokens of packed rows
_SHORTEST = 64
_TRIED_FILES = 16
_SAMPLED = 16  # records of a file


def _popart() -> Any:
    return importlib.import_module(POPART)


class Unframed(NamedTuple):
    """Records of a file without frames: their format and size."""

    record_format: str
    num_bytes: int  # of a record
    shape: Shape

    def sizes(self) -> tuple[int, int]:
        """Returns max_seq_length and max_predictions_per_seq."""
        return _popart().EXAMPLES[self.record_format].layout.sizes(self.shape)


class Wanted(NamedTuple):
    """Sizes of records that flags give: max_seq_length, max_predictions_per_seq, and max_sequences_per_pack
    where it is given."""

    length: int
    most: int
    depth: int | None

    def fits(self, found: Unframed) -> bool:
        sizes = found.num_bytes, self.length, self.most
        is_shape = _popart().shape_of_sizes(found.record_format, *sizes) == found.shape
        return is_shape and self.depth in (None, found.shape.depth)


def find(path: str, wanted: Wanted | None = None) -> Unframed | None:
    """Returns the layout of a file: the one that flags give, where its records may be that; else the one that
    most of its records may be, of those that are looked at. None where it has frames, is empty, or neither
    its first nor its last record is right. Raises ConfigError where it cannot be read."""
    with io_files.naming(path):
        found = _find(path, io_files.version(path))
    told = [each for each in found if wanted and wanted.fits(each)]
    return next(iter([*told, *found]), None)


@functools.lru_cache(maxsize=4096)
def _find(path: str, version: tuple[int, int]) -> tuple[Unframed, ...]:
    """Returns the layouts that fit a file, the one that most of its records may be first."""
    size = version[0]
    sizes = np.arange(_SHORTEST, min(_LONGEST, size) + 1, 4)
    found: list[tuple[int, Unframed]] = []
    with io_files.open_binary(path) as file:
        first = file.read(_LONGEST)
        file.seek(max(size - _LONGEST, 0))
        last = file.read(_LONGEST)
        for num_bytes in sizes[size % sizes == 0].tolist() if size else ():
            for name in _popart().EXAMPLES:
                if not _may_be(first[:num_bytes], last[-num_bytes:], name):
                    continue
                shapes = _popart().shapes_by_fit(_sample(file, size // num_bytes, num_bytes), name)
                found += [(count, Unframed(name, num_bytes, shape)) for count, shape in shapes]
    return tuple(each for _, each in sorted(found, key=lambda pair: -pair[0]))


def _may_be(first: bytes, last: bytes, name: str) -> bool:
    return any(next(_popart().shapes(record, name), None) is not None for record in (first, last))


def _sample(file: BinaryIO, records: int, num_bytes: int) -> list[bytes]:
    """Returns records from all of a file, its first and its last one among them."""
    sample = []
    for number in np.linspace(0, records - 1, min(records, _SAMPLED)).astype(int).tolist():
        file.seek(number * num_bytes)
        sample.append(file.read(num_bytes))
    return sample


def detect_format(paths: list[str]) -> str | None:
    """Returns the format of files without frames; None where the first ones have some or show nothing."""
    found = next(filter(None, map(find, paths[:_TRIED_FILES])), None)
    return found.record_format if found else None


def has_none(record_format: str) -> bool:
    """Tells whether records of a format have no frames."""
    return record_format.startswith("popart_")


def find_in(paths: list[str], record_format: str, wanted: Wanted | None = None) -> Unframed | None:
    """Returns the layout of files of a format, by the first of them that shows it; None for a format that has
    frames. See `find`. Raises ConfigError where a file cannot be read."""
    if not has_none(record_format):
        return None
    found = (find(path, wanted) for path in paths[:_TRIED_FILES])
    return next(filter(None, found), None)


def bytes_of(paths: list[str], record_format: str) -> int | None:
    """Returns the bytes of a record of some files; None where `find_in` finds no layout."""
    found = find_in(paths, record_format)
    return found.num_bytes if found else None


def opener(paths: list[str], record_format: str) -> Callable[[tf.Tensor | str | list[str]], tf.data.Dataset]:
    """Returns a function from some of these files, of one format, to a dataset of their records, string."""
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
    depths = {name: 3 if name in _popart().ROWS else 1 for name in _popart().EXAMPLES}  # as published
    sizes = ", ".join(
        f"{_popart().record_bytes(name, length, most, depth):,} ({name})" for name, depth in depths.items()
    )
    return (
        f"it has {io_files.sizes([path])[0]:,} bytes. Allowed: TFRecord files, and PopART's binaries, whose"
        f" records of {length} tokens, {most} predicted ones and, where they are packed, 3 sequences have"
        f" {sizes} bytes"
    )
