"""Graphcore's --remask records -> examples; `encoding.remask` writes them, and says what they are."""

from __future__ import annotations

import tensorflow as tf

from official.data.records.formats import plain
from official.data.records.schema import Feature, describe_example, parse_examples

ROWS_PER_RECORD = 1
count_rows, split, join, unpack, sizes_of = (
    plain.count_rows,
    plain.split,
    plain.join,
    plain.unpack,
    plain.sizes_of,
)


def features(schema: dict[str, Feature]) -> dict[str, Feature]:
    """Returns the features of this format that have a fixed length, for those of the plain one."""
    ids, masks = schema["input_ids"], schema["masked_lm_ids"]
    return {
        "input_ids": ids,
        "input_position": Feature(ids.length, tf.int32),
        "mask_padding_index": Feature(1, tf.int32, masks.length + 1),
        "masked_labels": masks,
        "masked_lm_ids": masks,
        "masked_lm_weights": schema["masked_lm_weights"],
        "next_sentence_labels": schema["next_sentence_labels"],
        "segment_ids": schema["segment_ids"],
        "seq_padding_index": Feature(1, tf.int32, ids.length + 1),
    }


def used_slots(found: dict[str, tf.Tensor], length: int, most: int) -> tf.Tensor:
    """Returns whether each slot of parsed records holds a token, bool [B, S], of S = `length` slots, the
    first `most` of them for predicted tokens."""
    slot_S = tf.range(length)
    is_filled_BS = (slot_S < found["mask_padding_index"]) | (slot_S >= most)
    return is_filled_BS & (slot_S < found["seq_padding_index"])


def parse_rows(serialized_B: tf.Tensor, schema: dict[str, Feature]) -> dict[str, tf.Tensor]:
    """Puts the tokens back into their places."""
    length, most = schema["input_ids"].length, schema["masked_lm_ids"].length
    found = parse_examples(serialized_B, features(schema))
    slot_S, count_B1 = tf.range(length), found["mask_padding_index"]
    is_used_BS = used_slots(found, length, most)
    tokens_B1 = found["seq_padding_index"] - most + count_B1
    place_BS = tf.where(
        is_used_BS, found["input_position"], length
    )  # what is not used goes to a column that is cut off
    row_BS = tf.broadcast_to(tf.range(tf.shape(place_BS)[0])[:, None], tf.shape(place_BS))
    shape = [tf.shape(place_BS)[0], length + 1]

    def put_back(values_BS):
        return tf.ensure_shape(
            tf.scatter_nd(tf.stack([row_BS, place_BS], axis=2), values_BS, shape)[:, :length], [None, length]
        )

    is_predicted_BM = tf.range(most) < count_B1
    return {
        "input_ids": put_back(found["input_ids"]),
        "input_mask": tf.cast(slot_S < tokens_B1, tf.int32),
        "segment_ids": put_back(found["segment_ids"]),
        "masked_lm_positions": tf.where(is_predicted_BM, found["input_position"][:, :most], 0),
        **{name: found[name] for name in ("masked_lm_ids", "masked_lm_weights", "next_sentence_labels")},
    }


def describe_mismatch(record: bytes, schema: dict[str, Feature]) -> str | None:
    return describe_example(record, features(schema))
