"""Counts of the records and rows in files of each format, see `row_counts`.

Only records of formats that hold any number of rows are parsed.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable

import tensorflow as tf

from official.data.records import framing, record_formats, row_counts
from official.data.records.row_counts import RowCounts, count_records
from official.io.errors import ConfigError

_PARSED_RECORDS = 64  # at once


def count(paths: list[str], record_format: str, kept_path: str = "") -> list[RowCounts]:
    """Returns the counts of each file; see `row_counts.count`.

    Args:
      paths: TFRecord files.
      record_format: of all of them.
      kept_path: file of the counts of an earlier call, which is brought up to date; unset: none is kept.

    Raises:
      ConfigError: for a file that cannot be read, or is damaged.
    """
    has_one_row = record_formats.rows_per_record(record_format) == 1
    return row_counts.count(paths, kept_path, has_one_row, _counter(paths, record_format))


def _counter(paths: list[str], record_format: str) -> Callable[[str], RowCounts]:
    """Returns (path) -> the counts of a file of a format; `paths` may show how it is framed."""
    if not framing.has_none(record_format):
        return functools.partial(_count_file, record_format=record_format)
    num_bytes = functools.lru_cache(lambda: framing.bytes_of(paths, record_format))
    return lambda path: _count_unframed(record_format, num_bytes(), path)


def _count_file(path: str, record_format: str) -> RowCounts:
    if record_formats.rows_per_record(record_format) == 1:
        return RowCounts([(1, count_records(path))])
    return _count_rows(path, tf.data.TFRecordDataset(path), record_format)


def _count_unframed(record_format: str, num_bytes: int | None, path: str) -> RowCounts:
    if num_bytes is None:
        raise ConfigError(f"{path}: no record of the first files is a right {record_format} one.")
    records = framing.count_records(path, num_bytes)
    if record_formats.rows_per_record(record_format) == 1:
        return RowCounts([(1, records)])
    return _count_rows(path, tf.data.FixedLengthRecordDataset(path, num_bytes), record_format)


def _count_rows(path: str, records: tf.data.Dataset, record_format: str) -> RowCounts:
    try:
        batches = records.batch(_PARSED_RECORDS).map(
            lambda batch: record_formats.count_rows(batch, record_format)
        )
        rows = itertools.chain.from_iterable(batch.tolist() for batch in batches.as_numpy_iterator())
        return RowCounts([(number, len(list(run))) for number, run in itertools.groupby(rows)])
    except tf.errors.OpError as error:
        raise ConfigError(f"{path}: {error.message.splitlines()[0]}.") from None
