"""The fields of PopART's binaries, whose layouts `popart` describes, as rows of sequences.

Shapes: B records, S tokens of a row, K slots for predicted tokens, P sequences of a row at most.
"""

from __future__ import annotations

import tensorflow as tf

from official.data.records.formats import habana, row_reader
from official.data.records.formats.row_reader import Row, Shape

Sizes = dict[str, int | tf.Tensor]


def static_sizes(shape: Shape) -> Sizes:
    tokens = dict.fromkeys(("input_ids", "positions", "segment_ids"), shape.length)
    return {**tokens, "predicted": 1, "end": 1, "masked_lm_ids": shape.slots, "next_sentence_labels": 1}


def plain_sizes(shape: Shape) -> Sizes:
    tokens = dict.fromkeys(("input_ids", "input_mask", "segment_ids"), shape.length)
    slots = dict.fromkeys(("masked_lm_positions", "masked_lm_ids", "masked_lm_weights"), shape.slots)
    return {**tokens, **slots, "next_sentence_labels": 1}


def packed_sizes(shape: Shape) -> Sizes:
    tokens = dict.fromkeys(("input_ids", "input_mask", "segment_ids", "positions"), shape.length)
    slots = dict.fromkeys(("masked_lm_ids", "masked_lm_weights"), shape.slots)
    labels = dict.fromkeys(("next_sentence_labels", "next_sentence_weights"), shape.depth)
    return {**tokens, **slots, **labels}


def in_place_sizes(shape: Shape) -> Sizes:
    return {name: size for names, size in zip(habana.GROUPS, shape) for name in names}


def _fields(serialized_B: tf.Tensor, sizes: Sizes) -> dict[str, tf.Tensor]:
    """Returns int32 {name: [B, size]}; fails with InvalidArgumentError for records of another size."""
    words_BW = tf.io.decode_raw(serialized_B, tf.int32, little_endian=True)
    parts = tf.split(words_BW, tf.stack(list(sizes.values())), axis=1, num=len(sizes))
    return {
        name: tf.ensure_shape(part, [None, size if isinstance(size, int) else None])
        for (name, size), part in zip(sizes.items(), parts)
    }


# ------------------------------------------------------------------------------------------------------------
# Rows


def read_static(serialized_B: tf.Tensor, shape: Shape) -> Row:
    found = _fields(serialized_B, static_sizes(shape))
    column_S, column_M = tf.range(shape.length), tf.range(shape.slots)
    is_token_BS = ((column_S < found["predicted"]) | (column_S >= shape.slots)) & (column_S < found["end"])
    is_good_B1 = (found["predicted"] <= shape.slots) & (found["end"] <= shape.length)
    numbers_BS = tf.where(is_good_B1, tf.cast(is_token_BS, tf.int32), -1)
    is_head_BS = is_token_BS & (found["positions"] == 0)
    return row_reader.features(
        {
            "input_ids": found["input_ids"],
            "segment_ids": found["segment_ids"],
            "sequence_ids": numbers_BS,
            "position_ids": found["positions"] * numbers_BS,
            "masked_lm_positions": column_M + tf.zeros_like(found["masked_lm_ids"]),
            "masked_lm_ids": found["masked_lm_ids"],
            "masked_lm_sequences": tf.cast(column_M < found["predicted"], tf.int32)
            + tf.zeros_like(found["masked_lm_ids"]),
            "cls_positions": tf.argmax(is_head_BS, axis=1, output_type=tf.int32)[:, None],
            "next_sentence_labels": found["next_sentence_labels"],
            "example_weights": tf.ones_like(found["next_sentence_labels"]),
        }
    )


def read_plain(serialized_B: tf.Tensor, shape: Shape) -> Row:
    found = _fields(serialized_B, plain_sizes(shape))
    return row_reader.features(
        {
            "input_ids": found["input_ids"],
            "segment_ids": found["segment_ids"],
            "sequence_ids": found["input_mask"],
            "position_ids": tf.range(shape.length) * found["input_mask"],
            "masked_lm_positions": found["masked_lm_positions"],
            "masked_lm_ids": found["masked_lm_ids"],
            "masked_lm_sequences": found["masked_lm_weights"],
            "cls_positions": tf.zeros_like(found["next_sentence_labels"]),
            "next_sentence_labels": found["next_sentence_labels"],
            "example_weights": tf.ones_like(found["next_sentence_labels"]),
        }
    )


def read_packed(serialized_B: tf.Tensor, shape: Shape) -> Row:
    found = _fields(serialized_B, packed_sizes(shape))
    places_P = tf.range(shape.length - shape.depth, shape.length)
    weights_BP = found["next_sentence_weights"]
    owners_BP = tf.gather(found["input_mask"], places_P, axis=1) * tf.cast(weights_BP > 0, tf.int32)
    # For each sequence, by its number, the place of its [CLS] among the last ones.
    is_own_BPP = tf.cast(owners_BP[:, None] == tf.range(1, shape.depth + 1)[:, None], tf.int32)

    def of_sequences(values_BP: tf.Tensor) -> tf.Tensor:
        return tf.reduce_sum(is_own_BPP * values_BP[:, None], axis=2)

    slots_BK = found["masked_lm_weights"]
    return row_reader.features(
        {
            "input_ids": found["input_ids"],
            "segment_ids": found["segment_ids"],
            "sequence_ids": found["input_mask"],
            "position_ids": found["positions"],
            "masked_lm_positions": tf.range(shape.slots) * tf.cast(slots_BK > 0, tf.int32),
            "masked_lm_ids": found["masked_lm_ids"],
            "masked_lm_sequences": slots_BK,
            "cls_positions": of_sequences(places_P[None]),
            "next_sentence_labels": of_sequences(found["next_sentence_labels"]),
            "example_weights": of_sequences(weights_BP),
        }
    )


def read_in_place(serialized_B: tf.Tensor, shape: Shape) -> Row:
    return habana.row_of(_fields(serialized_B, in_place_sizes(shape)))
