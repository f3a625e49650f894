"""Files of records: finding them, reading every record, and saying which one is bad."""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
from collections.abc import Iterator

import tensorflow as tf
from absl import logging

from official.data.records import framing, record_formats
from official.data.records.row_counts import FRAME_BYTES
from official.data.records.schema import Feature
from official.io import files as files_lib
from official.io import writing
from official.io.errors import ConfigError, counted
from official.io.record_paths import find_files

__all__ = [
    "check_first_record",
    "detect_format",
    "find_bad_record",
    "find_files",
    "read_batches",
    "row_sizes",
    "sizes_of",
]

_COPIED_BYTES = 1 << 20
_CHECKED_ROWS = 1024  # are read at once, about
_FILES_CHECKED_FIRST = 16


def detect_format(files: list[str]) -> str:
    """Returns the format of the first record; "plain" where there is none that is known, whose reader then
    says what is wrong."""
    for path in files:
        try:
            with readable(path) as local:
                record = next(tf.data.TFRecordDataset(local).take(1).as_numpy_iterator())
        except StopIteration:
            continue
        except tf.errors.OpError:
            return framing.detect_format(files) or "plain"
        return record_formats.detect_format(record) or "plain"
    return "plain"


def row_sizes(files: list[str], wanted: framing.Wanted | None = None) -> tuple[int, int] | None:
    """Returns the places of packed rows for predicted tokens and for sequences, by the first record, or, of
    files that do not say it, by what flags say and by several records; None where files hold no packed
    rows."""
    record_format = detect_format(files)
    if record_format not in record_formats.AS_ROWS:
        return None
    unframed = framing.find_in(files, record_format, wanted)
    if unframed:
        return unframed.shape.slots, unframed.shape.depth
    first = next(
        record for path in files for batch in read_batches(path, record_format, 1) for record in batch
    )
    return record_formats.row_sizes(first, record_format)


def sizes_of(path: str, record_format: str, record: bytes) -> tuple[int, int]:
    """Returns max_seq_length and max_predictions_per_seq of a file by its first record; 0 where that does not
    say."""
    unframed = framing.find_in([path], record_format)
    return unframed.sizes() if unframed else record_formats.sizes_of(record, record_format)


def check_first_record(files: list[str], schema: dict[str, Feature], flag: str) -> None:
    """Compares the first record of the first files with the schema, before anything is compiled. Raises
    ConfigError."""
    record_format = detect_format(files)
    num_bytes = framing.bytes_of(files, record_format)
    for path in files[:_FILES_CHECKED_FIRST]:
        problem = _first_problem(path, schema, read_batches(path, record_format, 1, num_bytes), record_format)
        if problem:
            raise ConfigError(f"--{flag}: {problem}.")


def find_bad_record(files: list[str], schema: dict[str, Feature]) -> str | None:
    """Reads files until one breaks; returns a line that names the file, the record and what is wrong, or
    None."""
    logging.warning("Looking for the bad record in %s.", counted(len(files), "file"))
    record_format = detect_format(files)
    num_bytes = framing.bytes_of(files, record_format)
    problems = (
        _first_problem(path, schema, read_batches(path, record_format, None, num_bytes), record_format)
        for path in files
    )
    return next(filter(None, problems), None)


def _first_problem(
    path: str, schema: dict[str, Feature], batches: Iterator[list[bytes]], record_format: str
) -> str | None:
    number = 0
    try:
        for number, record in enumerate((record for batch in batches for record in batch), 1):
            mismatch = record_formats.describe_mismatch(record, schema, record_format)
            if mismatch:
                return (
                    f"{path}, record {number}: {mismatch} (by --max_seq_length, --max_predictions_per_seq"
                    " and the model's vocab_size)"
                )
    except ConfigError as error:
        problem = str(error).removesuffix(".")
        if number or record_format != "plain" or "input_ids" not in schema:
            return problem
        lengths = schema["input_ids"].length, schema["masked_lm_ids"].length
        return f"{problem}; {framing.describe_sizes(path, *lengths)}"
    return f"{path} has no records" if number == 0 else None


def read_batches(
    path: str, record_format: str, limit: int | None = None, num_bytes: int | None = None
) -> Iterator[list[bytes]]:
    """Yields the records of a file, or the first `limit` ones, so many at a time that they hold about a
    thousand rows.

    Args:
      path: of the file.
      record_format: of its records.
      limit: None: all.
      num_bytes: of a record of a format without frames, as `framing.bytes_of` returns them; None: it is found
        out.

    Raises:
      ConfigError: where the file is cut off or damaged, after the records before that place, or cannot be
        read.
    """
    at_once = record_formats.records_of(_CHECKED_ROWS, record_format)
    if framing.has_none(record_format):
        yield from framing.read_batches(path, record_format, limit, num_bytes, at_once)
        return
    with readable(path) as local:
        yield from _read_framed(path, tf.data.TFRecordDataset(local), limit, at_once)


@contextlib.contextmanager
def readable(path: str) -> Iterator[str]:
    """Yields a name under which TensorFlow reads a file: one of a store that it does not reach is copied for
    the block. Raises ConfigError."""
    if files_lib.tensorflow_reads(path):
        yield path
        return
    with writing.new_folder() as folder:
        local = os.path.join(folder, "copy")
        with files_lib.naming(path), files_lib.open_binary(path) as file, open(local, "wb") as copy:
            shutil.copyfileobj(file, copy, _COPIED_BYTES)
        yield local


def _read_framed(
    path: str, records: tf.data.Dataset, limit: int | None, at_once: int
) -> Iterator[list[bytes]]:
    """Yields the records of a file as `read_batches` does."""
    number, size = 0, 0
    try:
        some = records.take(-1 if limit is None else limit)
        for batch in some.batch(at_once).as_numpy_iterator():
            number, size = number + len(batch), size + sum(map(len, batch)) + FRAME_BYTES * len(batch)
            yield batch.tolist()
        # TensorFlow takes a last record that is cut off within its length for the end of the file.
        is_whole = number == limit or [size] == files_lib.sizes([path])
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


def read_rows(path: str, record_format: str) -> Iterator[bytes]:
    """Yields a record for each row of a file, whatever number of them its records hold. Raises ConfigError
    as `read_batches` does."""
    for number, record in enumerate(itertools.chain.from_iterable(read_batches(path, record_format)), 1):
        try:
            yield from record_formats.split(record, record_format)
        except ValueError as error:
            raise ConfigError(f"{path}, record {number}: {error}.") from None


def _whole_ones(records: tf.data.Dataset) -> Iterator[bytes]:
    """Yields the records before the damage."""
    try:
        yield from records.as_numpy_iterator()
    except tf.errors.DataLossError:
        return
