"""Sequences of different lengths in memory -> batches, in an order that is a function of (seed, epoch).
 Bucketed batches hold sequences of about one length, so that padding does not dominate; this changes the
order only. All is done by TensorFlow's own operations, so that it runs on the host of the devices, wherever
that is.
"""

import dataclasses

import numpy as np
import tensorflow as tf

from official.data.records import parallelism
from official.data.rows import ragged

_POOL_BATCHES = 50  # are sorted by length together: long enough that lengths fit, short enough that the order stays random
_LENGTH_STEP = 8  # lengths of bucketed batches are multiples: every length has kernels of its own
_LONGEST = 1 << 20  # tokens; above any sequence


@dataclasses.dataclass(frozen=True)
class TokenRows:
    """N sequences of T tokens altogether: sequence n is ids[starts[n]:starts[n] + lengths[n]].

    Tokens before `first_lengths` have segment id 0, the others 1. `columns` are what else a sequence has,
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


def num_batches(rows: int, batch_size: int) -> int:
    """Returns the batches of an epoch; the last one may be filled up."""
    return -(-rows // batch_size)


def training_dataset(
    rows: TokenRows,
    batch_size: int,
    part_size: int,
    max_seq_length: int,
    bucketed: bool,
    seed: int,
    batches_done: int = 0,
    host: int = 0,
    num_hosts: int = 1,
) -> tf.data.Dataset:
    """Returns an endless dataset of parts of batches.

    Every epoch visits each sequence once. Its last batch is filled up with sequences of weight 0. A batch is
    cut into parts, one a replica, all of one length; part p of a batch belongs to host p % num_hosts. What a
    batch holds does not depend on the parts.

    Args:
      rows: the sequences.
      batch_size: sequences of a batch, all parts.
      part_size: sequences of a part; divides the batch.
      max_seq_length: tokens of a part where `bucketed` is false, and at most otherwise.
      bucketed: whether a batch holds sequences of about one length and is as long as its longest.
      seed: of the order.
      batches_done: batches that were trained on before; the dataset goes on with the next.
      host, num_hosts: this host's number and how many there are.

    Returns:
      Batches {input_ids, input_mask, segment_ids: int32 [part, L], example_weights: float32 [part], rows:
      int32 [part], and the columns}.
    """
    epoch, skipped = divmod(batches_done, num_batches(len(rows), batch_size))
    lengths = tf.constant(rows.lengths, tf.int64)

    def epoch_dataset(number):
        order = _training_order(lengths, batch_size, bucketed, seed, number)
        return tf.data.Dataset.from_tensor_slices(order)

    epochs = tf.data.Dataset.range(epoch, tf.int64.max).flat_map(epoch_dataset)
    return _features(rows, epochs.skip(skipped), part_size, max_seq_length, bucketed, host, num_hosts)


def evaluation_dataset(
    rows: TokenRows, batch_size: int, max_seq_length: int, bucketed: bool
) -> tf.data.Dataset:
    """Returns all sequences once, the longest first where `bucketed`; the last batch is filled up with
    sequences of weight 0."""
    order = np.argsort(-np.asarray(rows.lengths), kind="stable") if bucketed else np.arange(len(rows))
    filled = np.full(num_batches(len(rows), batch_size) * batch_size, -1, np.int64)
    filled[: len(order)] = order
    batches = tf.data.Dataset.from_tensor_slices(filled.reshape(-1, batch_size))
    return _features(rows, batches, batch_size, max_seq_length, bucketed)


def _training_order(
    lengths_N: tf.Tensor, batch_size: int, bucketed: bool, seed: int, epoch: tf.Tensor
) -> tf.Tensor:
    """Returns int64 [batches, batch_size]: the numbers of the sequences of one epoch's batches; -1 is
    filling."""
    seeds = tf.random.split(
        tf.random.experimental.stateless_fold_in(tf.constant([seed, 0], tf.int64), epoch), 2
    )
    count = tf.size(lengths_N)
    order = tf.random.experimental.stateless_shuffle(tf.range(count, dtype=tf.int64), seeds[0])
    if bucketed:
        pool = tf.range(count, dtype=tf.int64) // (_POOL_BATCHES * batch_size)
        order = tf.gather(order, tf.argsort(pool * _LONGEST - tf.gather(lengths_N, order), stable=True))
    missing = -count % batch_size
    batches = tf.reshape(tf.pad(order, [[0, missing]], constant_values=-1), [-1, batch_size])
    return tf.random.experimental.stateless_shuffle(batches, seeds[1]) if bucketed else batches


def _features(
    rows: TokenRows,
    batches: tf.data.Dataset,
    part_size: int,
    max_seq_length: int,
    bucketed: bool,
    host: int = 0,
    num_hosts: int = 1,
) -> tf.data.Dataset:
    """Returns this host's parts of batches, given as numbers of sequences."""
    with tf.device("CPU"):
        ids_T, starts_N = tf.constant(rows.ids), tf.constant(rows.starts)
        lengths_N, firsts_N = tf.constant(rows.lengths, tf.int32), tf.constant(rows.first_lengths, tf.int32)
        columns = {name: tf.constant(values) for name, values in rows.columns.items()}

    def cut(rows_B):
        longest = tf.reduce_max(tf.gather(lengths_N, tf.boolean_mask(rows_B, rows_B >= 0)))
        length = (
            tf.minimum(-(-longest // _LENGTH_STEP) * _LENGTH_STEP, max_seq_length)
            if bucketed
            else tf.constant(max_seq_length)
        )
        parts = tf.reshape(rows_B, [-1, part_size])[host::num_hosts]
        return tf.data.Dataset.from_tensor_slices((parts, tf.repeat(length, tf.shape(parts)[0])))

    def gather(rows_B, length):
        chosen_B = tf.maximum(rows_B, 0)
        column_L = tf.range(length)
        is_token_BL = column_L < tf.gather(lengths_N, chosen_B)[:, None]
        places_BL = tf.gather(starts_N, chosen_B)[:, None] + tf.cast(
            tf.where(is_token_BL, column_L, 0), tf.int64
        )
        is_second_BL = is_token_BL & (column_L >= tf.gather(firsts_N, chosen_B)[:, None])
        features = {
            "input_ids": tf.cast(tf.gather(ids_T, places_BL), tf.int32) * tf.cast(is_token_BL, tf.int32),
            "input_mask": tf.cast(is_token_BL, tf.int32),
            "segment_ids": tf.cast(is_second_BL, tf.int32),
        }
        features = {
            name: tf.ensure_shape(value, [part_size, None if bucketed else max_seq_length])
            for name, value in features.items()
        }
        features |= {name: tf.gather(values, chosen_B) for name, values in columns.items()}
        return features | {
            "example_weights": tf.cast(rows_B >= 0, tf.float32),
            "rows": tf.cast(rows_B, tf.int32),
        }

    return parallelism.fixed(
        batches.flat_map(cut).map(gather, num_parallel_calls=parallelism.CALLS).prefetch(parallelism.CALLS)
    )


def synthetic_rows(
    columns: dict[str, np.ndarray], count: int, length: int, vocab_size: int, seed: int
) -> TokenRows:
    """Returns `count` sequences of `length` random words each, in two segments, with columns of `count`
    values."""
    ids = (
        np.random.default_rng(seed)
        .integers(min(5, vocab_size - 1), vocab_size, count * length)
        .astype(np.int32)
    )
    return TokenRows(ids, np.full(count, length, np.int32), np.full(count, length // 2, np.int32), columns)
