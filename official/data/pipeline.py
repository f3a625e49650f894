"""Common parts of the tf.data pipelines: the position in the order of the data, and the number of parallel
calls."""

from __future__ import annotations

import dataclasses

import tensorflow as tf

from official.config.derived import MOST_STREAMS as MOST_STREAMS

CALLS = 2  # parallel calls of functions of a whole batch or window, which are multithreaded themselves


@dataclasses.dataclass(frozen=True)
class TrainingOrder:
    """The order of a run's training data, the position in it, and the host that reads.

    Attributes:
      seed: seed of the order.
      sequences_done: sequences that all hosts together have trained on before.
      host: number of this host.
      num_hosts: number of hosts.
      rows_done: rows that all hosts together have trained on before; unset: as many as sequences.
      stream_sequences: number of the sequences done in each stream of packed rows, up to MOST_STREAMS; empty:
        the same number in each.
      reader: number of this process in the names of its cache files, if it reads the share of another host;
        unset: the number of the host.
    """

    seed: int
    sequences_done: int = 0
    host: int = 0
    num_hosts: int = 1
    rows_done: int | None = None
    stream_sequences: tuple[int, ...] = ()
    reader: int | None = None


def fixed(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """Returns the dataset without autotuning; the number of parallel calls is fixed, CALLS.

    Autotuning's bookkeeping per element costs more than it saves. And its thread may miss the deletion of the
    dataset's iterator, which waits for it: evaluations hung for minutes (TensorFlow 2.15.1,
    Model::OptimizeLoop).
    """
    options = tf.data.Options()
    if hasattr(options, "autotune"):
        options.autotune.enabled = False
    else:  # TensorFlow 2.6
        options.experimental_optimization.autotune = False
    return dataset.with_options(options)


def rebatched(dataset: tf.data.Dataset, size: int, drop_remainder: bool = False) -> tf.data.Dataset:
    """Returns a dataset with the same elements in batches of another size."""
    if hasattr(dataset, "rebatch"):
        return dataset.rebatch(size, drop_remainder=drop_remainder)
    return dataset.unbatch().batch(size, drop_remainder)  # TensorFlow 2.6, element by element


def shuffled(values: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
    """Returns values shuffled along their first axis by a seed, int64 [2]. TensorFlow 2.6, which lacks the
    operation, gets another order."""
    if hasattr(tf.random.experimental, "stateless_shuffle"):
        return tf.random.experimental.stateless_shuffle(values, seed)
    # TensorFlow 2.6
    numbers = tf.random.stateless_uniform(tf.shape(values)[:1], seed, None, None, tf.int32)
    return tf.gather(values, tf.argsort(numbers, stable=True))


def seeds_of(seed: tf.Tensor, count: int) -> tf.Tensor:
    """Returns seeds [count, 2] drawn from a seed [2]. TensorFlow 2.6, which lacks the operation, gets other
    seeds."""
    if hasattr(tf.random, "split"):
        return tf.random.split(seed, count)
    numbers = tf.range(count, dtype=seed.dtype)
    return tf.stack([tf.random.experimental.stateless_fold_in(seed, numbers[at]) for at in range(count)])


def without_done(rows_RX: tf.Tensor, sequences_R: tf.Tensor, sequences_done: tf.Tensor) -> tf.Tensor:
    """Drops the first rows, which together hold `sequences_done` sequences; a row that is only partly done
    stays.

    Args:
      rows_RX: rows of any dtype.
      sequences_R: int64, number of sequences in each row.
      sequences_done: int64, 0 or more.
    """
    return rows_RX[tf.math.count_nonzero(tf.cumsum(sequences_R) <= sequences_done) :]
