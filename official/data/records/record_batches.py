"""Files of records -> batches of features. All order is a function of (seed, epoch).

A file holds records, a record holds rows, and a row holds sequences: today one. Callers count sequences, as
people do; what is skipped, shuffled and batched here are rows. `rows_of` is the one place that goes from one
to the other.
"""

import tensorflow as tf

from official.config import ConfigError
from official.data import pipeline
from official.data.records import record_files, record_formats
from official.data.records.schema import Feature
from official.data.records.streams import Streams
from official.io import files as io_files

_MOST_STREAMS = 32
_SEQUENCES_PER_ROW = 1


def rows_of(sequences: int) -> int:
    """Returns how many rows hold so many sequences."""
    return sequences // _SEQUENCES_PER_ROW


def num_streams(num_files: int, train_batch_size: int) -> int:
    """Returns how many streams the training files are dealt out to: the most, up to 32, that divides both
    numbers.

    A step takes the same number of rows from every stream, and a host reads whole streams. What a step
    trains on is thus the same however many hosts there are.
    """
    return max(
        count
        for count in range(1, _MOST_STREAMS + 1)
        if train_batch_size % count == 0 and num_files % count == 0
    )


def training_dataset(
    files: list[str],
    schema: dict[str, Feature],
    batch_size: int,
    order: pipeline.TrainingOrder,
    streams: int = 1,
    counts_path: str = "",
) -> tf.data.Dataset:
    """Returns an endless dataset of batches {name: [batch_size, length]}, with `example_weights` [batch_size]
    of ones.

    File f belongs to stream f % streams, stream s to host s % num_hosts. Every epoch of a stream visits each
    of its rows once, files and rows in an order drawn from (seed, stream, epoch); rows are taken from the
    streams in turn. A stream is shuffled in windows that follow each other and end with the epoch; those of
    all streams hold 8,192 rows.

    Args:
      files: all files of the job, in the same order on every host.
      schema: features of a row.
      batch_size: rows of a batch.
      order: the dataset goes on behind `sequences_done`.
      streams: see `num_streams`.
      counts_path: file in which a run that goes on keeps how many records the files of this host hold; unset:
        it counts each time.

    Raises:
      ConfigError: where the streams cannot be shared out among the hosts, or a file is empty.
    """
    if streams % order.num_hosts:
        raise ConfigError(
            f"input_files: {len(files)} files make {streams} streams, which {order.num_hosts} hosts cannot"
            " share evenly. Write a number of shards that is a multiple of"
            f" {order.num_hosts}, with a --train_batch_size that is one too."
        )
    record_format = record_files.detect_format(files)
    _check_sizes(files)

    def parse(rows):
        features = record_formats.parse_rows(
            tf.ensure_shape(rows, [batch_size, *rows.shape[1:]]), schema, record_format
        )
        return {**features, "example_weights": tf.ones([batch_size])}

    all_streams = Streams(files, streams, schema, record_format, order.seed)
    rows = all_streams.rows(
        range(order.host, streams, order.num_hosts),
        rows_of(order.sequences_done) // streams,
        batch_size,
        counts_path,
    )
    return pipeline.fixed(rows.map(parse, num_parallel_calls=pipeline.CALLS).prefetch(pipeline.CALLS))


def _check_sizes(files: list[str]) -> None:
    """Raises ConfigError for a file without a record: TensorFlow reads one that is cut off within its first
    bytes as an empty one, and a stream of those would never yield."""
    for path, size in zip(files, io_files.sizes(files)):
        if size < record_files.FRAME_BYTES:
            raise ConfigError(f"--input_files: {path} has no records.")


def evaluation_dataset(
    files: list[str], schema: dict[str, Feature], batch_size: int, num_sequences: int
) -> tf.data.Dataset:
    """Returns batches of the first `num_sequences` sequences in file order.

    The last batch is filled up with rows of zeros. `example_weights` [batch_size] is 1 for rows of the files
    and 0 for filling, so that sums over the set are exact and every batch has one shape.
    """
    record_format = record_files.detect_format(files)

    def parse_and_fill(rows):
        features = record_formats.parse_rows(rows, schema, record_format)
        missing = batch_size - tf.shape(rows)[0]
        features = {
            name: tf.ensure_shape(tf.pad(value, [[0, missing], [0, 0]]), [batch_size, schema[name].length])
            for name, value in features.items()
        }
        features["example_weights"] = tf.cast(tf.range(batch_size) < batch_size - missing, tf.float32)
        return features

    records = tf.data.TFRecordDataset(files).batch(record_formats.records_of(batch_size, record_format))
    blocks = records.map(lambda batch: record_formats.unpack(batch, schema, record_format))
    rows = _take(blocks, rows_of(num_sequences)).rebatch(batch_size)
    return pipeline.fixed(
        rows.map(parse_and_fill, num_parallel_calls=pipeline.CALLS).prefetch(pipeline.CALLS)
    )


def _take(blocks: tf.data.Dataset, rows: int) -> tf.data.Dataset:
    """Returns the blocks up to their first `rows` rows."""

    def cut(left, block):
        block = block[:left]
        return left - tf.shape(block, tf.int64)[0], block

    return blocks.scan(tf.constant(rows, tf.int64), cut).take_while(lambda block: tf.shape(block)[0] > 0)
