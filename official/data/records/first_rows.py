"""The first rows of a set, for an evaluation: so many sequences, in batches of one shape."""

from __future__ import annotations

import tensorflow as tf


def filled_up(batches: tf.data.Dataset, batch_size: int) -> tf.data.Dataset:
    """Returns batches of which the last one is filled up with rows of zeros."""

    def fill(features):
        missing = batch_size - tf.shape(features["input_ids"])[0]
        return {
            name: tf.ensure_shape(
                tf.pad(value, [[0, missing], *[[0, 0]] * (value.shape.rank - 1)]),
                [batch_size, *value.shape[1:]],
            )
            for name, value in features.items()
        }

    return batches.map(fill)


def take_sequences(blocks: tf.data.Dataset, sequences: int) -> tf.data.Dataset:
    """Returns blocks of packed rows up to their first `sequences` sequences; those behind them in the last
    row have weight 0."""

    def cut(left, block):
        weights_BP = block["example_weights"]
        counted_BP = tf.cumsum(tf.cast(tf.reshape(weights_BP, [-1]), tf.int64))
        kept_BP = weights_BP * tf.cast(tf.reshape(counted_BP, tf.shape(weights_BP)) <= left, tf.float32)
        kept_or_empty = tf.pad(kept_BP, [[0, 0], [1, 0]])  # an empty slot belongs to number 0
        kept_BK = tf.gather(kept_or_empty, block["masked_lm_sequences"], batch_dims=1)
        weights_BK = block["masked_lm_weights"] * kept_BK
        block = {**block, "example_weights": kept_BP, "masked_lm_weights": weights_BK}
        is_wanted_B = tf.reduce_any(kept_BP > 0, axis=1)
        rows = {name: tf.boolean_mask(value, is_wanted_B) for name, value in block.items()}
        return left - tf.cast(tf.reduce_sum(kept_BP), tf.int64), rows

    return blocks.scan(tf.constant(sequences, tf.int64), cut).take_while(
        lambda block: tf.shape(block["input_ids"])[0] > 0
    )


def take(blocks: tf.data.Dataset, rows: int) -> tf.data.Dataset:
    """Returns the blocks up to their first `rows` rows."""

    def cut(left, block):
        block = block[:left]
        return left - tf.shape(block, tf.int64)[0], block

    return blocks.scan(tf.constant(rows, tf.int64), cut).take_while(lambda block: tf.shape(block)[0] > 0)
