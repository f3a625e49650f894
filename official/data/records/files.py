"""Files of records: finding them, their format, reading every record, and saying which one is bad.

Records lie in the frames of a TFRecord, or, PopART's, one after the other, all of one size. Files of the
second kind say nothing of themselves: format and size of their records are found by trying which make most
records of a sample right. A row of few sequences may be read in several shapes, one of many in one.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import itertools
import os
import shutil
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import tensorflow as tf
from absl import logging

from official.data.records import record_formats
from official.data.records.formats.row_reader import Shape
from official.data.records.schema import Feature
from official.data.records.shard_files import FRAME_BYTES
from official.io import files as io_files
from official.io import writing
from official.io.errors import ConfigError, counted
from official.io.record_paths import find_files

__all__ = [
    "Wanted",
    "bytes_of",
    "check_first_record",
    "count_unframed",
    "detect_format",
    "find_bad_record",
    "find_files",
    "has_frames",
    "opener",
    "read_batches",
    "read_rows",
    "row_sizes",
    "sizes_of",
]

_COPIED_BYTES = 1 << 20
_CHECKED_ROWS = 1024  # are read at once, about
_FILES_CHECKED_FIRST = 16
_MAX_UNFRAMED, _MIN_UNFRAMED = (
    1 << 17,
    64,
)  # bytes of a record that is looked for: 8,192 tokens of packed rows
_SAMPLED_RECORDS = 16  # of a file without frames

# -----------------------------------------------------------------------------------------------------------
# Formats and sizes


class Wanted(NamedTuple):
    """Sizes of records that flags give: max_seq_length, max_predictions_per_seq, and max_sequences_per_pack
    where it is given."""

    length: int
    most: int
    depth: int | None


def detect_format(files: list[str]) -> str:
    """Returns the format of the first record; "plain" where there is none that is known, whose reader then
    says what is wrong."""
    for path in files:
        try:
            with _readable(path) as local:
                record = next(tf.data.TFRecordDataset(local).take(1).as_numpy_iterator())
        except StopIteration:
            continue
        except tf.errors.OpError:
            found = next(filter(None, map(_find_unframed, files[:_FILES_CHECKED_FIRST])), None)
            return found.record_format if found else "plain"
        return record_formats.detect_format(record) or "plain"
    return "plain"


def row_sizes(files: list[str], wanted: Wanted | None = None) -> tuple[int, int] | None:
    """Returns the places of packed rows for predicted tokens and for sequences, by the first record, or, of
    files that do not say it, by what flags say and by several records; None where files hold no packed
    rows."""
    record_format = detect_format(files)
    if record_format not in record_formats.AS_ROWS:
        return None
    unframed = _unframed_of(files, record_format, wanted)
    if unframed:
        return unframed.shape.slots, unframed.shape.depth
    first = next(
        record for path in files for batch in read_batches(path, record_format, 1) for record in batch
    )
    return record_formats.row_sizes(first, record_format)


def sizes_of(path: str, record_format: str, record: bytes) -> tuple[int, int]:
    """Returns max_seq_length and max_predictions_per_seq of a file by its first record; 0 where that does not
    say."""
    unframed = _unframed_of([path], record_format)
    if unframed is None:
        return record_formats.sizes_of(record, record_format)
    return _popart().EXAMPLES[record_format].layout.sizes(unframed.shape)


# -----------------------------------------------------------------------------------------------------------
# Files without frames


def _popart() -> Any:
    return importlib.import_module(record_formats.POPART)


class _Unframed(NamedTuple):
    """Records of a file without frames: their format and size."""

    record_format: str
    num_bytes: int  # of a record
    shape: Shape

    def fits(self, wanted: Wanted) -> bool:
        sizes = self.num_bytes, wanted.length, wanted.most
        is_shape = _popart().shape_of_sizes(self.record_format, *sizes) == self.shape
        return is_shape and wanted.depth in (None, self.shape.depth)


def has_frames(record_format: str) -> bool:
    """Tells whether records of a format lie in the frames of TFRecord files."""
    return not record_format.startswith("popart_")


def bytes_of(paths: list[str], record_format: str) -> int | None:
    """Returns the bytes of a record of files without frames; None of others, and where the first ones show no
    layout. Raises ConfigError where one cannot be read."""
    found = _unframed_of(paths, record_format)
    return found.num_bytes if found else None


def opener(paths: list[str], record_format: str) -> Callable[[tf.Tensor | str | list[str]], tf.data.Dataset]:
    """Returns a function from some of these files, of one format, to a dataset of their records, string."""
    if has_frames(record_format):
        return tf.data.TFRecordDataset
    # Where it is not known, reading fails, and the reason is looked for.
    num_bytes = bytes_of(paths, record_format) or _MAX_UNFRAMED
    return lambda some: tf.data.FixedLengthRecordDataset(some, num_bytes)


def count_unframed(path: str, num_bytes: int) -> int:
    """Returns the number of records of a file. Raises ConfigError where it is cut off inside of one."""
    size = io_files.sizes([path])[0]
    if size % num_bytes:
        raise ConfigError(
            f"{path} is truncated or damaged after record {size // num_bytes}: its {size:,} bytes are no"
            f" multiple of the {num_bytes:,} of a record."
        )
    return size // num_bytes


def _unframed_of(paths: list[str], record_format: str, wanted: Wanted | None = None) -> _Unframed | None:
    """Returns the layout of files of a format, by the first of them that shows it; None for a format that has
    frames."""
    if has_frames(record_format):
        return None
    found = (_find_unframed(path, wanted) for path in paths[:_FILES_CHECKED_FIRST])
    return next(filter(None, found), None)


def _find_unframed(path: str, wanted: Wanted | None = None) -> _Unframed | None:
    """Returns the layout of a file: the one that flags give, where its records may be that; else the one that
    most of its records may be, of those that are looked at. None where it has frames, is empty, or neither
    its first nor its last record is right. Raises ConfigError where it cannot be read."""
    with io_files.naming(path):
        found = _layouts(path, io_files.version(path))
    told = [each for each in found if wanted and each.fits(wanted)]
    return next(iter([*told, *found]), None)


@functools.lru_cache(maxsize=4096)
def _layouts(path: str, version: tuple[int, int]) -> tuple[_Unframed, ...]:
    """Returns the layouts that fit a file, the one that most of its records may be first."""
    size = version[0]
    sizes = np.arange(_MIN_UNFRAMED, min(_MAX_UNFRAMED, size) + 1, 4)
    found: list[tuple[int, _Unframed]] = []
    with io_files.open_binary(path) as file:
        first = file.read(_MAX_UNFRAMED)
        file.seek(max(size - _MAX_UNFRAMED, 0))
        last = file.read(_MAX_UNFRAMED)
        for num_bytes in sizes[size % sizes == 0].tolist() if size else ():
            ends = first[:num_bytes], last[-num_bytes:]
            for name in _popart().EXAMPLES:
                if any(next(_popart().shapes(record, name), None) is not None for record in ends):
                    sample = _sample(file, size // num_bytes, num_bytes)
                    shapes = _popart().shapes_by_fit(sample, name)
                    found += [(count, _Unframed(name, num_bytes, shape)) for count, shape in shapes]
    return tuple(each for _, each in sorted(found, key=lambda pair: -pair[0]))


def _sample(file: BinaryIO, records: int, num_bytes: int) -> list[bytes]:
    """Returns records from all of a file, its first and its last one among them."""
    sample = []
    for number in np.linspace(0, records - 1, min(records, _SAMPLED_RECORDS)).astype(int).tolist():
        file.seek(number * num_bytes)
        sample.append(file.read(num_bytes))
    return sample


def _describe_unframed(path: str, length: int, most: int) -> str:
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


# -----------------------------------------------------------------------------------------------------------
# Every record


def read_batches(
    path: str, record_format: str, limit: int | None = None, num_bytes: int | None = None
) -> Iterator[list[bytes]]:
    """Yields the records of a file, or the first `limit` ones, so many at a time that they hold about a
    thousand rows.

    Args:
      path: of the file.
      record_format: of its records.
      limit: None: all.
      num_bytes: of a record of a format without frames, as `bytes_of` returns them; None: it is found out.

    Raises:
      ConfigError: where the file is cut off or damaged, after the records before that place, or cannot be
        read.
    """
    at_once = record_formats.records_of(_CHECKED_ROWS, record_format)
    if not has_frames(record_format):
        yield from _read_unframed(path, record_format, limit, num_bytes, at_once)
        return
    with _readable(path) as local:
        yield from _read_framed(path, tf.data.TFRecordDataset(local), limit, at_once)


def read_rows(path: str, record_format: str) -> Iterator[bytes]:
    """Yields a record for each row of a file, whatever number of them its records hold. Raises ConfigError
    as `read_batches` does."""
    for number, record in enumerate(itertools.chain.from_iterable(read_batches(path, record_format)), 1):
        try:
            yield from record_formats.split(record, record_format)
        except ValueError as error:
            raise ConfigError(f"{path}, record {number}: {error}.") from None


@contextlib.contextmanager
def _readable(path: str) -> Iterator[str]:
    """Yields a name under which TensorFlow reads a file: one of a store that it does not reach is copied for
    the block. Raises ConfigError."""
    if io_files.tensorflow_reads(path):
        yield path
        return
    with writing.new_folder() as folder:
        local = os.path.join(folder, "copy")
        with io_files.naming(path), io_files.open_binary(path) as file, open(local, "wb") as copy:
            shutil.copyfileobj(file, copy, _COPIED_BYTES)
        yield local


def _read_framed(
    path: str, records: tf.data.Dataset, limit: int | None, at_once: int
) -> Iterator[list[bytes]]:
    number, size = 0, 0
    try:
        some = records.take(-1 if limit is None else limit)
        for batch in some.batch(at_once).as_numpy_iterator():
            number, size = number + len(batch), size + sum(map(len, batch)) + FRAME_BYTES * len(batch)
            yield batch.tolist()
        # TensorFlow takes a last record that is cut off within its length for the end of the file.
        is_whole = number == limit or [size] == io_files.sizes([path])
    except tf.errors.DataLossError:
        is_whole = False
        before_damage = list(_whole_ones(records.skip(number)))
        number += len(before_damage)
        if before_damage:
            yield before_damage
    except tf.errors.OpError as error:
        raise ConfigError(f"{path}: {error.message}.") from None
    if not is_whole:
        raise ConfigError(
            f"{path} is truncated or damaged after record {number}: record {number + 1} cannot be read."
        )


def _whole_ones(records: tf.data.Dataset) -> Iterator[bytes]:
    """Yields the records before the damage."""
    try:
        yield from records.as_numpy_iterator()
    except tf.errors.DataLossError:
        return


def _read_unframed(
    path: str, record_format: str, limit: int | None, num_bytes: int | None, at_once: int
) -> Iterator[list[bytes]]:
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
    count_unframed(path, num_bytes)


# -----------------------------------------------------------------------------------------------------------
# Bad records


def check_first_record(files: list[str], schema: dict[str, Feature], flag: str) -> None:
    """Compares the first record of the first files with the schema, before anything is compiled. Raises
    ConfigError."""
    problem = next(_problems(files, schema, _FILES_CHECKED_FIRST, 1), None)
    if problem:
        raise ConfigError(f"--{flag}: {problem}.")


def find_bad_record(files: list[str], schema: dict[str, Feature]) -> str | None:
    """Reads files until one breaks; returns a line that names the file, the record and what is wrong, or
    None."""
    logging.warning("Looking for the bad record in %s.", counted(len(files), "file"))
    return next(_problems(files, schema), None)


def _problems(
    files: list[str], schema: dict[str, Feature], most: int | None = None, records: int | None = None
) -> Iterator[str]:
    """Yields what is wrong with each of the first files, of which the first records are looked at."""
    record_format = detect_format(files)
    num_bytes = bytes_of(files, record_format)
    for path in files[:most]:
        batches = read_batches(path, record_format, records, num_bytes)
        problem = _first_problem(path, schema, batches, record_format)
        if problem:
            yield problem


def _first_problem(
    path: str, schema: dict[str, Feature], batches: Iterator[list[bytes]], record_format: str
) -> str | None:
    number = 0
    try:
        for number, record in enumerate(itertools.chain.from_iterable(batches), 1):
            mismatch = record_formats.describe_mismatch(record, schema, record_format)
            if mismatch:
                return (
                    f"{path}, record {number}: {mismatch} (by --max_seq_length, --max_predictions_per_seq"
                    " and the model's vocab_size)"
                )
    except ConfigError as error:
        problem = str(error).rstrip(".")
        if number or record_format != "plain" or "input_ids" not in schema:
            return problem
        lengths = schema["input_ids"].length, schema["masked_lm_ids"].length
        return f"{problem}; {_describe_unframed(path, *lengths)}"
    return f"{path} has no records" if number == 0 else None
