"""Plain and packed records -> batches, through few modules: the reader of runs that import little.

The batches are those of `record_batches`, in the same order, which is a function of (seed, epoch).
"""

from __future__ import annotations

import functools
from typing import Any

import tensorflow as tf

from official.data import pipeline
from official.data.records import first_rows, row_counts
from official.data.records import schema as schema_lib
from official.data.records.formats import packed_record, packed_whole, plain
from official.data.records.row_counts import RowCounts
from official.data.records.schema import Feature
from official.data.records.streams import Reading, Streams, own_streams
from official.io.errors import ConfigError

_FILES_CHECKED_FIRST = 16


def find_schema(files: list[str], example: dict[str, Feature], flag: str) -> dict[str, Feature]:
    """Returns the features of the rows of some files, after a look at the first record of the first files.

    Args:
      files: of plain records, or of packed rows.
      example: features of a sequence, see `schema.pretraining_schema`.
      flag: that gave the files, for messages.

    Raises:
      ConfigError: for a file that cannot be read, or a record of another format or other lengths.
    """
    records = {path: _first_record(path, flag) for path in files[:_FILES_CHECKED_FIRST]}
    is_packed = packed_record.IDS in (schema_lib.read_example(next(iter(records.values()))) or {})
    reader: Any = packed_whole if is_packed else plain
    for path, record in records.items():
        mismatch = reader.describe_mismatch(record, example)
        if mismatch:
            raise ConfigError(
                f"--{flag}: {path}, record 1: {mismatch} (by --max_seq_length, --max_predictions_per_seq and"
                " the model's vocab_size). This run reads packed records and plain ones, which `bert data"
                " --record_format=plain` writes."
            )
    if not is_packed:
        return example
    slots, depth = packed_whole.row_sizes(next(iter(records.values())))
    ids = example["input_ids"]
    return schema_lib.packed_schema(ids.length, slots, depth, ids.limit)


def _first_record(path: str, flag: str) -> bytes:
    try:
        return next(tf.data.TFRecordDataset(path).take(1).as_numpy_iterator())
    except StopIteration:
        raise ConfigError(f"--{flag}: {path} has no records.") from None
    except tf.errors.OpError as error:
        raise ConfigError(f"--{flag}: {path}: {error.message}.") from None


def training_dataset(
    files: list[str],
    schema: dict[str, Feature],
    batch_size: int,
    order: pipeline.TrainingOrder,
    num_streams: int = 1,
    counts_path: str = "",
) -> tf.data.Dataset:
    """Returns an endless dataset of batches {name: [batch_size, length]}, with `example_weights` [batch_size]
    of ones; of packed rows these are [batch_size, P].

    Args:
      files: all files of the job, in the same order on every host.
      schema: of `find_schema`.
      batch_size: rows of a batch.
      order: the dataset goes on behind what is done of it.
      num_streams: see `streams.num_streams`.
      counts_path: file in which a run that goes on keeps how many records the files of this host hold; unset:
        it counts each time.

    Raises:
      ConfigError: where the streams cannot be shared out among the hosts, or a file is empty or cut off.
    """
    reader: Any = packed_whole if schema_lib.is_packed(schema) else plain
    unpack = functools.partial(reader.unpack, schema=schema)
    reading = Reading(tf.data.TFRecordDataset, unpack, reader.ROWS_PER_RECORD, _count)
    done = order.sequences_done if order.rows_done is None else order.rows_done
    rows = Streams(files, num_streams, reading, order.seed).rows(
        own_streams(files, num_streams, order, batch_size), done // num_streams, batch_size, counts_path
    )

    def parse(rows: tf.Tensor) -> dict[str, tf.Tensor]:
        rows = tf.ensure_shape(rows, [batch_size])
        return {"example_weights": tf.ones([batch_size]), **reader.parse_rows(rows, schema)}

    return pipeline.fixed(rows.map(parse, num_parallel_calls=pipeline.CALLS).prefetch(pipeline.CALLS))


def evaluation_dataset(
    files: list[str], schema: dict[str, Feature], batch_size: int, num_sequences: int
) -> tf.data.Dataset:
    """Returns batches of the first `num_sequences` sequences in file order, the last one filled up with rows
    of zeros; arguments as of `training_dataset`. Raises ConfigError where a file is cut off."""
    row_counts.check_ends(files)
    reader: Any = packed_whole if schema_lib.is_packed(schema) else plain
    records = tf.data.TFRecordDataset(files).batch(max(1, batch_size // reader.ROWS_PER_RECORD))
    blocks = records.map(functools.partial(reader.unpack, schema=schema))

    def parse(rows: tf.Tensor) -> dict[str, tf.Tensor]:
        weights = tf.ones(tf.shape(rows)[:1])
        return {"example_weights": weights, **reader.parse_rows(rows, schema)}

    if schema_lib.is_packed(schema):
        taken = first_rows.take_sequences(blocks.map(parse), num_sequences)
        batches = pipeline.rebatched(taken, batch_size)
    else:
        batches = pipeline.rebatched(first_rows.take(blocks, num_sequences), batch_size).map(parse)
    return pipeline.fixed(first_rows.filled_up(batches, batch_size).prefetch(pipeline.CALLS))


def num_rows(files: list[str]) -> int:
    """Returns the rows of files, plain or packed. Raises ConfigError for one that is damaged."""
    return sum(each.rows for each in _count(files, ""))


def _count(paths: list[str], kept_path: str) -> list[RowCounts]:
    return row_counts.count(
        paths, kept_path, True, lambda path: RowCounts([(1, row_counts.count_records(path))])
    )
