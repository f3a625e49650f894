"""Rows of different lengths in memory -> batches, in an order that is a function of (seed, epoch).

A row holds one sequence. Callers count sequences; what is batched here are rows. Bucketed batches hold rows
of about one length, so that padding does not dominate; this changes the order only.

All is done by TensorFlow's own operations, so that it runs on the host of the devices, wherever that is.
"""

import dataclasses

import numpy as np
import tensorflow as tf

from official.data import pipeline
from official.data.rows import ragged

_SEQUENCES_PER_ROW = 1
_POOL_BATCHES = 50  # are sorted by length together: enough that lengths fit, few enough for a random order
_LENGTH_STEP = 8  # lengths of bucketed batches are multiples: every length has kernels of its own
_LONGEST = 1 << 20  # tokens; above any row


@dataclasses.dataclass(frozen=True)
class TokenRows:
    """N rows of T tokens altogether: row n is ids[starts[n]:starts[n] + lengths[n]].

    Tokens before `first_lengths` have segment id 0, the others 1. `columns` are what else a row has,
    {name: [N] array}.
    """

    ids: np.ndarray  # [T] any integer type
    lengths: np.ndarray  # [N] integers, from 1 on
    first_lengths: np.ndarray  # [N] integers
    columns: dict[str, np.ndarray]

    def __len__(self) -> int:
        return len(self.lengths)

    @property
    def starts(self) -> np.ndarray:
        return ragged.offsets(self.lengths)[:-1]


@dataclasses.dataclass(frozen=True)
class BatchShape:
    """How rows are batched.

    Attributes:
      batch_size: rows of a batch, all parts.
      part_size: rows of a part, which is what one replica gets; divides the batch.
      max_seq_length: tokens of a row where `bucketed` is false, and at most otherwise.
      bucketed: whether a batch holds rows of about one length and is as long as its longest.
    """

    batch_size: int
    part_size: int
    max_seq_length: int
    bucketed: bool

    def num_batches(self, rows: int) -> int:
        """Returns the batches of an epoch; the last one may be filled up."""
        return -(-rows // self.batch_size)


def training_dataset(rows: TokenRows, shape: BatchShape, order: pipeline.TrainingOrder) -> tf.data.Dataset:
    """Returns an endless dataset of parts of batches.

    Every epoch visits each row once. Its last batch is filled up with rows of weight 0. A batch is cut into
    parts, one a replica, all of one length; part p of a batch belongs to host p % num_hosts. What a batch
    holds does not depend on the parts.

    Args:
      rows: with one sequence each.
      shape: of the batches.
      order: the dataset goes on with the batch behind `sequences_done`, in which filling counts, too.

    Returns:
      Batches {input_ids, input_mask, segment_ids: int32 [part, L], example_weights: float32 [part], rows:
      int32 [part], and the columns}.
    """
    batches_done = order.sequences_done // (shape.batch_size * _SEQUENCES_PER_ROW)
    epoch, skipped = divmod(batches_done, shape.num_batches(len(rows)))
    lengths = tf.constant(rows.lengths, tf.int64)

    def epoch_dataset(number):
        return tf.data.Dataset.from_tensor_slices(_training_order(lengths, shape, order.seed, number))

    epochs = tf.data.Dataset.range(epoch, tf.int64.max).flat_map(epoch_dataset)
    return _features(rows, epochs.skip(skipped), shape, order.host, order.num_hosts)


def evaluation_dataset(
    rows: TokenRows, batch_size: int, max_seq_length: int, bucketed: bool
) -> tf.data.Dataset:
    """Returns all rows once, the longest first where `bucketed`; the last batch is filled up with rows of
    weight 0."""
    shape = BatchShape(batch_size, batch_size, max_seq_length, bucketed)
    order = np.argsort(-np.asarray(rows.lengths), kind="stable") if bucketed else np.arange(len(rows))
    filled = np.full(shape.num_batches(len(rows)) * batch_size, -1, np.int64)
    filled[: len(order)] = order
    batches = tf.data.Dataset.from_tensor_slices(filled.reshape(-1, batch_size))
    return _features(rows, batches, shape)


def _training_order(lengths_N: tf.Tensor, shape: BatchShape, seed: int, epoch: tf.Tensor) -> tf.Tensor:
    """Returns int64 [batches, batch_size]: the numbers of the rows of one epoch's batches; -1 is filling."""
    seeds = tf.random.split(
        tf.random.experimental.stateless_fold_in(tf.constant([seed, 0], tf.int64), epoch), 2
    )
    count = tf.size(lengths_N)
    order = tf.random.experimental.stateless_shuffle(tf.range(count, dtype=tf.int64), seeds[0])
    if shape.bucketed:
        pool = tf.range(count, dtype=tf.int64) // (_POOL_BATCHES * shape.batch_size)
        order = tf.gather(order, tf.argsort(pool * _LONGEST - tf.gather(lengths_N, order), stable=True))
    missing = -count % shape.batch_size
    batches = tf.reshape(tf.pad(order, [[0, missing]], constant_values=-1), [-1, shape.batch_size])
    return tf.random.experimental.stateless_shuffle(batches, seeds[1]) if shape.bucketed else batches


def _features(
    rows: TokenRows, batches: tf.data.Dataset, shape: BatchShape, host: int = 0, num_hosts: int = 1
) -> tf.data.Dataset:
    """Returns this host's parts of batches, given as numbers of rows."""
    with tf.device("CPU"):
        ids_T, starts_N = tf.constant(rows.ids), tf.constant(rows.starts)
        lengths_N, firsts_N = tf.constant(rows.lengths, tf.int32), tf.constant(rows.first_lengths, tf.int32)
        columns = {name: tf.constant(values) for name, values in rows.columns.items()}

    def cut(rows_B):
        length = tf.constant(shape.max_seq_length)
        if shape.bucketed:
            longest = tf.reduce_max(tf.gather(lengths_N, tf.boolean_mask(rows_B, rows_B >= 0)))
            length = tf.minimum(-(-longest // _LENGTH_STEP) * _LENGTH_STEP, shape.max_seq_length)
        parts = tf.reshape(rows_B, [-1, shape.part_size])[host::num_hosts]
        return tf.data.Dataset.from_tensor_slices((parts, tf.repeat(length, tf.shape(parts)[0])))

    def gather(rows_B, length):
        chosen_B = tf.maximum(rows_B, 0)
        column_L = tf.range(length)
        is_token_BL = column_L < tf.gather(lengths_N, chosen_B)[:, None]
        columns_BL = tf.cast(tf.where(is_token_BL, column_L, 0), tf.int64)
        ids_BL = tf.gather(ids_T, tf.gather(starts_N, chosen_B)[:, None] + columns_BL)
        is_second_BL = is_token_BL & (column_L >= tf.gather(firsts_N, chosen_B)[:, None])
        features = {
            "input_ids": tf.cast(ids_BL, tf.int32) * tf.cast(is_token_BL, tf.int32),
            "input_mask": tf.cast(is_token_BL, tf.int32),
            "segment_ids": tf.cast(is_second_BL, tf.int32),
        }
        static = [shape.part_size, None if shape.bucketed else shape.max_seq_length]
        features = {name: tf.ensure_shape(value, static) for name, value in features.items()}
        features |= {name: tf.gather(values, chosen_B) for name, values in columns.items()}
        return features | {
            "example_weights": tf.cast(rows_B >= 0, tf.float32),
            "rows": tf.cast(rows_B, tf.int32),
        }

    parts = batches.flat_map(cut).map(gather, num_parallel_calls=pipeline.CALLS)
    return pipeline.fixed(parts.prefetch(pipeline.CALLS))


def synthetic_rows(
    columns: dict[str, np.ndarray], count: int, length: int, vocab_size: int, seed: int
) -> TokenRows:
    """Returns `count` rows of `length` random words each, in two segments, with columns of `count`
    values."""
    ids = (
        np.random.default_rng(seed)
        .integers(min(5, vocab_size - 1), vocab_size, count * length)
        .astype(np.int32)
    )
    return TokenRows(ids, np.full(count, length, np.int32), np.full(count, length // 2, np.int32), columns)
