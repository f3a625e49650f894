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
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from absl import logging

from official.data.records import record_formats
from official.data.records.formats.row_reader import Shape
from official.data.records.record_formats import READERS
from official.data.records.schema import Feature
from official.data.records.shard_files import FRAME_BYTES
from official.io import files as io_files
from official.io import writing
from official.io.errors import ConfigError, counted
from official.io.record_paths import find_files as find_files

_COPIED_BYTES = 1 << 20
_CHECKED_ROWS = 1024  # are read at once, about
_FILES_CHECKED_FIRST = 16
_MIN_UNFRAMED, _MAX_UNFRAMED = (
    64,
    1 << 17,
)  # bytes of a record that is looked for: packed rows of 8,192 tokens
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
    records = itertools.chain.from_iterable(read_batches(path, record_format, 1) for path in files)
    return READERS[record_format].row_sizes(next(records)[0])


def sizes_of(path: str, record_format: str, record: bytes) -> tuple[int, int]:
    """Returns max_seq_length and max_predictions_per_seq of a file by its first record; 0 where that does not
    say."""
    reader, unframed = READERS[record_format], _unframed_of([path], record_format)
    return reader.layout.sizes(unframed.shape) if unframed else reader.sizes_of(record)


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
    return next((each for each in found if wanted and each.fits(wanted)), next(iter(found), None))


@functools.lru_cache(maxsize=4096)
def _layouts(path: str, version: tuple[int, int]) -> list[_Unframed]:
    """Returns the layouts that fit a file, the one that most of its records may be first."""
    size, popart = version[0], _popart()
    sizes = np.arange(_MIN_UNFRAMED, min(_MAX_UNFRAMED, size) + 1, 4)
    found: list[tuple[int, _Unframed]] = []
    with io_files.open_binary(path) as file:

        def read(start: int, count: int) -> bytes:
            file.seek(start)
            return file.read(count)

        first, last = read(0, _MAX_UNFRAMED), read(max(size - _MAX_UNFRAMED, 0), _MAX_UNFRAMED)
        for num_bytes in sizes[size % sizes == 0].tolist() if size else ():
            ends, records = (first[:num_bytes], last[-num_bytes:]), size // num_bytes
            for name in popart.EXAMPLES:
                if any(next(popart.shapes(record, name), None) is not None for record in ends):
                    numbers = np.linspace(0, records - 1, min(records, _SAMPLED_RECORDS)).astype(int).tolist()
                    sample = [read(number * num_bytes, num_bytes) for number in numbers]
                    shapes = popart.shapes_by_fit(sample, name)
                    found += [(count, _Unframed(name, num_bytes, shape)) for count, shape in shapes]
    return [each for _, each in sorted(found, key=lambda pair: -pair[0])]


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
    at_once = READERS[record_format].records_of(_CHECKED_ROWS)
    if has_frames(record_format):
        with _readable(path) as local:
            yield from _read_framed(path, tf.data.TFRecordDataset(local), limit, at_once)
        return
    num_bytes = num_bytes or bytes_of([path], record_format)
    if num_bytes is None:
        raise ConfigError(
            f"{path}, record 1: neither it nor the last one is a right {record_format} record of any size."
        )
    left = io_files.sizes([path])[0] // num_bytes if limit is None else limit
    with io_files.naming(path), io_files.open_binary(path) as file:
        while whole := len(block := file.read(min(at_once, left) * num_bytes)) // num_bytes:
            yield [block[start : start + num_bytes] for start in range(0, whole * num_bytes, num_bytes)]
            left -= whole
    count_unframed(path, num_bytes)


def read_rows(path: str, record_format: str) -> Iterator[bytes]:
    """Yields a record for each row of a file, whatever number of them its records hold. Raises ConfigError
    as `read_batches` does."""
    for number, record in enumerate(itertools.chain.from_iterable(read_batches(path, record_format)), 1):
        try:
            yield from READERS[record_format].split(record)
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
        for batch in records.take(-1 if limit is None else limit).batch(at_once).as_numpy_iterator():
            number, size = number + len(batch), size + sum(map(len, batch)) + FRAME_BYTES * len(batch)
            yield batch.tolist()
        # TensorFlow takes a last record that is cut off within its length for the end of the file.
        if number == limit or [size] == io_files.sizes([path]):
            return
    except tf.errors.DataLossError:
        before_damage: list[bytes] = []
        with contextlib.suppress(tf.errors.DataLossError):
            for record in records.skip(number).as_numpy_iterator():
                before_damage.append(record)
        number += len(before_damage)
        if before_damage:
            yield before_damage
    except tf.errors.OpError as error:
        raise ConfigError(f"{path}: {error.message}.") from None
    raise ConfigError(
        f"{path} is truncated or damaged after record {number}: record {number + 1} cannot be read."
    )


# -----------------------------------------------------------------------------------------------------------
# Bad records


def check_first_record(files: list[str], schema: dict[str, Feature], flag: str) -> None:
    """Compares the first record of the first files with the schema, before anything is compiled. Raises
    ConfigError."""
    problem = next(_problems(files, schema, files[:_FILES_CHECKED_FIRST], 1), None)
    if problem:
        raise ConfigError(f"--{flag}: {problem}.")


def find_bad_record(files: list[str], schema: dict[str, Feature]) -> str | None:
    """Reads files until one breaks; returns a line that names the file, the record and what is wrong, or
    None."""
    logging.warning("Looking for the bad record in %s.", counted(len(files), "file"))
    return next(_problems(files, schema, files), None)


def _problems(
    files: list[str], schema: dict[str, Feature], chosen: list[str], limit: int | None = None
) -> Iterator[str]:
    """Yields what is wrong with each of some files, of which the first records are looked at."""
    record_format = detect_format(files)
    num_bytes = bytes_of(files, record_format)
    for path in chosen:
        number = 0
        try:
            batches = read_batches(path, record_format, limit, num_bytes)
            for number, record in enumerate(itertools.chain.from_iterable(batches), 1):
                mismatch = record_formats.describe_mismatch(record, schema, record_format)
                if mismatch:
                    flags = "by --max_seq_length, --max_predictions_per_seq and the model's vocab_size"
                    yield f"{path}, record {number}: {mismatch} ({flags})"
                    break
            if not number:
                yield f"{path} has no records"
        except ConfigError as error:
            problem = str(error).rstrip(".")
            if not number and record_format == "plain" and "input_ids" in schema:
                sizes = schema["input_ids"].length, schema["masked_lm_ids"].length
                problem += f"; {_describe_unframed(path, *sizes)}"
            yield problem


def _describe_unframed(path: str, length: int, most: int) -> str:
    """Returns, for a message, what a file would have to be like to hold records without frames.

    Args:
      path: of the file.
      length, most: tokens and predicted tokens of an example.
    """
    popart = _popart()
    depths = {name: 3 if name in popart.ROWS else 1 for name in popart.EXAMPLES}  # as published
    allowed = [
        f"{popart.record_bytes(name, length, most, depth):,} ({name})" for name, depth in depths.items()
    ]
    return (
        f"it has {io_files.sizes([path])[0]:,} bytes. Allowed: TFRecord files, and PopART's binaries, whose"
        f" records of {length} tokens, {most} predicted ones and, where they are packed, 3 sequences have"
        f" {', '.join(allowed)} bytes"
    )
