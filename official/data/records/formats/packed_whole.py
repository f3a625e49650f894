"""Packed records read as rows: the features of `schema.packed_schema`, in the layout of `formats.packed`.

The module has what the reader of a format has; it only reads.
"""

from __future__ import annotations

import tensorflow as tf

from official.data.packing.layout import lay_out
from official.data.records.formats import packed_record, packed_rows, plain
from official.data.records.schema import Feature, in_range, parse_examples

ROWS_PER_RECORD = 1
count_rows, unpack = plain.count_rows, plain.unpack
describe_mismatch, sizes_of = packed_record.describe_mismatch, packed_record.sizes_of


def row_sizes(record: bytes) -> tuple[int, int]:
    """Returns the places of a record for predicted tokens, K, and for sequences, P. Raises ValueError where
    it is no packed row."""
    row = packed_record.read(record)
    return row["packed_masked_lm_ids"].shape[-1], row["packed_next_sentence_labels"].shape[-1]


def parse_rows(serialized_B: tf.Tensor, schema: dict[str, Feature]) -> dict[str, tf.Tensor]:
    """Fails with InvalidArgumentError where a record has other lengths than the schema, or its examples are
    not where they belong: see `packed_rows.members_of`, which says what is wrong."""
    found = parse_examples(serialized_B, _disk_schema(schema))
    values = {name[len("packed_") :]: tf.cast(value, tf.int32) for name, value in found.items()}
    depth, length = schema["cls_positions"].length, schema["input_ids"].length
    is_there_BP = tf.reverse(values["next_sentence_mask"], [1])
    slots_BK = values["masked_lm_mask"]
    features = {
        "input_ids": values["input_ids"],
        "input_mask": tf.cast(values["input_mask"] > 0, tf.int32),
        "segment_ids": values["segment_ids"],
        "sequence_ids": values["input_mask"],
        "position_ids": values["position_ids"],
        "masked_lm_positions": values["masked_lm_positions"],
        "masked_lm_ids": values["masked_lm_ids"],
        "masked_lm_weights": tf.cast(slots_BK > 0, tf.float32),
        "masked_lm_sequences": slots_BK,
        "cls_positions": tf.tile(length - 1 - tf.range(depth)[None], [tf.shape(slots_BK)[0], 1]),
        "next_sentence_labels": tf.reverse(values["next_sentence_labels"], [1]),
        "example_weights": tf.cast(is_there_BP, tf.float32),
    }
    with tf.control_dependencies([tf.debugging.Assert(_is_in_order(features), ["not all rows are packed"])]):
        return in_range(features, schema)


def _disk_schema(schema: dict[str, Feature]) -> dict[str, Feature]:
    """Returns the features of a record for those of a row."""
    like = {"tokens": "input_ids", "slots": "masked_lm_ids", "labels": "cls_positions"}
    return {
        name: Feature(schema[like[what]].length, tf.float32 if name in packed_rows.FLOATS else tf.int32)
        for what, names in packed_rows.GROUPS.items()
        for name in names
    }


def _is_in_order(features: dict[str, tf.Tensor]) -> tf.Tensor:
    """Tells whether all examples are whole and where they belong, and nothing of one is in another."""
    sequences_BL, depth = features["sequence_ids"], features["cls_positions"].shape[1]
    length = sequences_BL.shape[1]
    lengths_BP = tf.reduce_sum(tf.one_hot(sequences_BL - 1, depth, dtype=tf.int32), axis=1)
    is_there_BP = lengths_BP > 0
    heads_BL = tf.range(length) >= length - tf.reduce_sum(tf.cast(is_there_BP, tf.int32), axis=1)[:, None]
    body = lay_out(tf.maximum(lengths_BP - 1, 0), length)
    numbers_BL = tf.where(
        heads_BL, length - tf.range(length), (body.slots_BL + 1) * tf.cast(body.is_token_BL, tf.int32)
    )
    places_BL = tf.where(heads_BL | ~body.is_token_BL, 0, body.places_BL + 1)
    slots_BK = features["masked_lm_sequences"]
    owners_BK = tf.gather(
        sequences_BL, tf.clip_by_value(features["masked_lm_positions"], 0, length - 1), batch_dims=1
    )
    counts_BP = tf.reduce_sum(tf.one_hot(slots_BK - 1, depth, dtype=tf.int32), axis=1)
    filled = lay_out(counts_BP, slots_BK.shape[1])
    expected_BK = (filled.slots_BL + 1) * tf.cast(filled.is_token_BL, tf.int32)
    return tf.reduce_all(
        [
            tf.reduce_all(sequences_BL == numbers_BL),
            tf.reduce_all(features["position_ids"] == places_BL),
            tf.reduce_all(is_there_BP[:, 0]),
            tf.reduce_all(tf.cast(is_there_BP, tf.float32) == features["example_weights"]),
            tf.reduce_all(slots_BK == expected_BK),
            _are_segments_whole(features["segment_ids"], numbers_BL, heads_BL),
            tf.reduce_all((owners_BK == slots_BK) | (slots_BK == 0)),
        ]
    )


def _are_segments_whole(segments_BL: tf.Tensor, sequences_BL: tf.Tensor, heads_BL: tf.Tensor) -> tf.Tensor:
    """Tells whether the second segment of each example is behind its first one, and [CLS] and padding are in
    the first."""
    first_BL = heads_BL | (sequences_BL == 0)
    goes_on = (sequences_BL[:, 1:] == sequences_BL[:, :-1]) & ~heads_BL[:, 1:]
    falls = (segments_BL[:, 1:] < segments_BL[:, :-1]) & goes_on
    return ~tf.reduce_any(falls) & ~tf.reduce_any(first_BL & (segments_BL != 0))
