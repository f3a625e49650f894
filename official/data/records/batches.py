"""Reads files of records as batches of features, in an order that is a function of (seed, epoch).

A file holds records, a record holds rows, and a row holds one sequence, or several if it is packed, in the
files or during reading. Shuffling and batching work on rows.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import tensorflow as tf

from official.data import pipeline
from official.data.records import files as record_files
from official.data.records import on_the_fly, record_formats
from official.data.records import schema as schema_lib
from official.data.records.formats import compact, packed
from official.data.records.formats.plain import Plain
from official.data.records.masks import Masks
from official.data.records.on_the_fly import Packer
from official.data.records.record_formats import READERS
from official.data.records.schema import Feature
from official.data.records.streams import Streams, own_streams


def training_dataset(
    files: list[str],
    schema: dict[str, Feature],
    batch_size: int,
    order: pipeline.TrainingOrder,
    streams: int = 1,
    counts_path: str = "",
    packer: Packer | None = None,
    masks: Masks | None = None,
) -> tf.data.Dataset:
    """Returns an endless dataset of batches {name: [batch_size, length]}, with `example_weights` [batch_size]
    of ones, or [batch_size, P] for packed rows.

    File f belongs to stream f % streams, stream s to host s % num_hosts. Every epoch of a stream visits each
    of its rows once, files and rows in an order drawn from (seed, stream, epoch); rows are taken from the
    streams in turn. A stream is shuffled in consecutive windows, which end with the epoch; the windows of all
    streams hold 8,192 rows.

    Args:
      files: all files of the job, in the same order on every host.
      schema: features of a row; with `packer`, of a sequence.
      batch_size: rows of a batch.
      order: the dataset starts after the position of the order.
      streams: see `derived.num_streams`.
      counts_path: file that caches the record counts of this host's files for a resumed run; unset: they are
        counted each time.
      packer: packs the sequences of each stream into rows. Batches then have a feature `streams`
        [batch_size], the stream of each row.
      masks: draws masks for each epoch of a stream; None: the files hold them.

    Raises:
      ConfigError: if the hosts cannot share the streams evenly, or a file is empty or truncated.
    """
    record_format = _format_of(files, schema)
    own = own_streams(files, streams, order, batch_size, record_files.has_frames(record_format))
    all_streams = Streams(files, streams, order.seed, record_format, schema, masks)
    parse = _row_parser(schema, record_format, packer, masks)

    def parse_batch(rows, streams=None):
        features = parse(tf.ensure_shape(rows, [batch_size, *rows.shape[1:]]))
        if streams is not None:
            features["streams"] = tf.ensure_shape(streams, [batch_size])
        return features

    if packer is None:
        done = order.sequences_done if order.rows_done is None else order.rows_done
        own_done = [done // streams] * len(own)
    else:
        done_S = order.stream_sequences  # a run with other streams: the same number in each
        if sum(done_S) != order.sequences_done or sum(done_S[:streams]) != order.sequences_done:
            done_S = (order.sequences_done // streams,) * streams
        own_done = [done_S[number] if number < len(done_S) else 0 for number in own]
    batches = all_streams.rows(own, own_done, batch_size, counts_path, packer)
    batches = batches.map(parse_batch, num_parallel_calls=pipeline.CALLS)
    return pipeline.fixed(batches.prefetch(pipeline.CALLS))


def sequences_per_row(
    files: list[str], schema: dict[str, Feature], packer: Packer | None, masks: Masks | None = None
) -> float:
    """Returns the average number of sequences in a packed row, from the files' metadata or a sample of their
    rows.

    Args: as of `training_dataset`.
    """
    record_format = _format_of(files, schema)
    is_habana = not packer and record_format == record_formats.AS_ROWS["habana"]
    if is_habana and (average := packed.average_sequences(files)):
        return average
    chosen = files[:: -(-len(files) // pipeline.MOST_STREAMS)]
    reader = READERS[record_format]
    size = reader.records_of(-(-8192 // len(chosen)))
    records = record_files.opener(files, record_format)
    rows = (
        tf.data.Dataset.from_tensor_slices(chosen)
        .flat_map(lambda path: records(path).take(size).batch(size))
        .map(lambda some: _unpacked(some, reader, schema, masks))
    )
    if packer:
        rows = on_the_fly.packed_once(rows, packer, reader)
    parse = _row_parser(schema, record_format, packer, masks)
    counts = [parse(some)["example_weights"].numpy().sum(axis=1) for some in pipeline.fixed(rows)]
    return float(np.concatenate(counts).mean())


def num_rows(files: list[str], schema: dict[str, Feature]) -> int:
    """Returns the number of rows in files, before packing here. Raises ConfigError for a damaged file."""
    return sum(each.rows for each in record_files.count(files, _format_of(files, schema)))


def _unpacked(
    records: tf.Tensor, reader: Plain, schema: dict[str, Feature], masks: Masks | None
) -> tf.Tensor:
    """Returns the rows of records; drawn masks are those of epoch 0."""
    rows = reader.unpack(records, schema)
    return masks.draw(rows, reader, schema, 0) if masks else rows


def _row_parser(
    schema: dict[str, Feature], record_format: str, packer: Packer | None, masks: Masks | None
) -> Callable:
    """Returns a function (rows) -> {name: tensor}, their features, including `example_weights`."""
    if packer is not None:
        return packer.parse
    reader = READERS[record_format]
    if masks:  # rows with drawn masks are words of compact records
        reader, schema = compact.READER, masks.schema(schema)

    def parse(rows):
        return {"example_weights": tf.ones(tf.shape(rows)[:1]), **reader.parse_rows(rows, schema)}

    return parse


def _format_of(files: list[str], schema: dict[str, Feature]) -> str:
    """Returns the name of the reader that gives rows of the schema."""
    record_format = record_files.detect_format(files)
    if schema_lib.is_static(schema):
        return record_formats.AS_STATIC[record_format]
    return record_formats.AS_ROWS[record_format] if schema_lib.is_packed(schema) else record_format


def evaluation_dataset(
    files: list[str],
    schema: dict[str, Feature],
    batch_size: int,
    num_sequences: int,
    packer: Packer | None = None,
    masks: Masks | None = None,
) -> tf.data.Dataset:
    """Returns batches of the first `num_sequences` sequences in file order, packed if there is a `packer`,
    masked if there are `masks`, in the same way every time.

    The last batch is padded with rows of zeros. `example_weights`, [batch_size], or [batch_size, P] for
    packed rows, is 1 for sequences of the files and 0 for padding, so that sums over the set are exact and
    all batches have the same shape.

    Raises:
      ConfigError: for a truncated file.
    """
    record_format = _format_of(files, schema)
    if record_files.has_frames(record_format):
        record_files.check_ends(files)
    reader, parse = READERS[record_format], _row_parser(schema, record_format, packer, masks)
    records = record_files.opener(files, record_format)(files).batch(reader.records_of(batch_size))
    blocks = records.map(lambda batch: _unpacked(batch, reader, schema, masks))
    if schema_lib.is_packed(schema):
        features = pipeline.rebatched(_take_sequences(blocks.map(parse), num_sequences), batch_size)
    else:
        rows = blocks.unbatch().take(num_sequences).batch(batch_size)
        if packer:
            rows = pipeline.rebatched(on_the_fly.packed_once(rows, packer, reader), batch_size)
        features = rows.map(parse, num_parallel_calls=pipeline.CALLS)

    def fill_up(features):
        missing = batch_size - tf.shape(features["input_ids"])[0]
        filled = {}
        for name, value in features.items():
            padded = tf.pad(value, [[0, missing], *[[0, 0]] * (value.shape.rank - 1)])
            filled[name] = tf.ensure_shape(padded, [batch_size, *value.shape[1:]])
        return filled

    return pipeline.fixed(features.map(fill_up).prefetch(pipeline.CALLS))


def _take_sequences(blocks: tf.data.Dataset, sequences: int) -> tf.data.Dataset:
    """Returns blocks of packed rows up to the first `sequences` sequences; further ones in the last row get
    weight 0."""

    def cut(left, block):
        weights_BP = block["example_weights"]
        counted_BP = tf.cumsum(tf.cast(tf.reshape(weights_BP, [-1]), tf.int64))
        kept_BP = weights_BP * tf.cast(tf.reshape(counted_BP, tf.shape(weights_BP)) <= left, tf.float32)
        kept_or_empty = tf.pad(kept_BP, [[0, 0], [1, 0]])  # empty slots have number 0
        kept_BK = tf.gather(kept_or_empty, block["masked_lm_sequences"], batch_dims=1)
        weights_BK = block["masked_lm_weights"] * kept_BK
        block = {**block, "example_weights": kept_BP, "masked_lm_weights": weights_BK}
        is_wanted_B = tf.reduce_any(kept_BP > 0, axis=1)
        rows = {name: tf.boolean_mask(value, is_wanted_B) for name, value in block.items()}
        return left - tf.cast(tf.reduce_sum(kept_BP), tf.int64), rows

    taken = blocks.scan(tf.constant(sequences, tf.int64), cut)
    return taken.take_while(lambda block: tf.shape(block["input_ids"])[0] > 0)
