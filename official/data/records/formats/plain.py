"""Readers of records of one sequence: the plain format, and Graphcore's static mask.

`encoding` documents and writes these records."""

from __future__ import annotations

from collections.abc import Callable

import tensorflow as tf

from official.data.records.schema import Feature, describe_example, parse_examples, read_example, where_all

_WRONG_PLACES = "its slots do not hold each position of the text once"


class Plain:
    """Reader of tf.train.Examples with the features of `schema.pretraining_schema`. Readers of other formats
    override it.

    Attributes:
      rows_per_record: maximum number of rows in a record.
    """

    rows_per_record = 1

    def records_of(self, rows: int) -> int:
        """Returns the number of whole records that fit into `rows` rows, at least 1."""
        return max(rows // self.rows_per_record, 1)

    def count_rows(self, serialized_B: tf.Tensor) -> tf.Tensor:
        """Returns the number of rows of each record, int32 [B]. Fails as `unpack` does."""
        return tf.ones_like(serialized_B, tf.int32)

    def split(self, record: bytes) -> list[bytes]:
        """Splits a record into one record per row. Raises ValueError if it turns out to have another
        format."""
        return [record]

    def join(self, records: list[bytes]) -> list[bytes]:
        """Joins records into fewer ones with the same rows in the same order, each with as many rows as the
        format allows."""
        return records

    def unpack(self, serialized_B: tf.Tensor, schema: dict[str, Feature]) -> tf.Tensor:
        """Returns the rows of some records, [N] or [N, W], in the form that is cheapest to shuffle and join;
        here the records themselves.

        Args:
          serialized_B: string [B], records with any number of rows each.

        Fails with InvalidArgumentError if a record has another format or other lengths than the schema; for a
        format whose rows are its records, `parse_rows` fails instead.
        """
        return serialized_B

    def parse_rows(self, rows_N: tf.Tensor, schema: dict[str, Feature]) -> dict[str, tf.Tensor]:
        """Parses rows of `unpack` into {name: [N, length]}, the same for every format. Fails as `unpack`
        does."""
        return parse_examples(rows_N, schema)

    def describe_mismatch(self, record: bytes, schema: dict[str, Feature]) -> str | None:
        """Describes how a record violates the format or the schema, and in which row; None if it is valid.
        May raise ValueError with the description instead."""
        return describe_example(record, schema)

    def sizes_of(self, record: bytes) -> tuple[int, int]:
        """Returns max_seq_length and max_predictions_per_seq of a record; 0 for unknown ones."""
        features, names = read_example(record) or {}, ("input_ids", "masked_lm_ids")
        ids, labels = (len(features[name].int64_list.value) if name in features else 0 for name in names)
        return ids, labels


class Remask(Plain):
    """Reader of records with the predicted tokens first, which it moves back to their positions."""

    def parse_rows(self, rows_N: tf.Tensor, schema: dict[str, Feature]) -> dict[str, tf.Tensor]:
        found, put_back, mask_BS, _ = _parse_static(rows_N, schema)
        most = schema["masked_lm_ids"].length
        is_used_BP = tf.range(most) < found["mask_padding_index"]
        return {
            **{name: values for name, values in found.items() if name in schema},
            "input_ids": put_back(found["input_ids"]),
            "input_mask": mask_BS,
            "segment_ids": put_back(found["segment_ids"]),
            "masked_lm_positions": tf.where(is_used_BP, found["input_position"][:, :most], 0),
        }

    def describe_mismatch(self, record: bytes, schema: dict[str, Feature]) -> str | None:
        if problem := describe_example(record, _static_features(schema)):
            return problem
        try:
            _parse_static(tf.constant([record]), schema)
        except tf.errors.InvalidArgumentError:
            return f"feature input_position is wrong: {_WRONG_PLACES}"
        return None


class Static(Remask):
    """Reader of the same records that keeps their order, with [CLS] in slot M: the masked-LM head slices its
    tokens instead of gathering them. The features are those of `schema.static_schema`."""

    def parse_rows(self, rows_N: tf.Tensor, schema: dict[str, Feature]) -> dict[str, tf.Tensor]:
        found, _, _, is_used_BS = _parse_static(rows_N, schema)
        return {
            **{name: values for name, values in found.items() if name in schema},
            "input_mask": tf.cast(is_used_BS, tf.int32),
            # The position of padding may be out of range.
            "position_ids": tf.where(is_used_BS, found["input_position"], 0),
        }


def _static_features(schema: dict[str, Feature]) -> dict[str, Feature]:
    """Returns the fixed-length features of static-mask records, given those of the plain format."""
    ids, masks = schema["input_ids"], schema["masked_lm_ids"]
    same = ("masked_lm_ids", "masked_lm_weights", "next_sentence_labels", "segment_ids")
    return {
        "input_ids": ids,
        "input_position": Feature(ids.length, tf.int32),
        "mask_padding_index": Feature(1, tf.int32, masks.length + 1),
        "masked_labels": masks,
        **{name: schema[name] for name in same},
        "seq_padding_index": Feature(1, tf.int32, ids.length + 1),
    }


def _parse_static(
    serialized_B: tf.Tensor, schema: dict[str, Feature]
) -> tuple[dict[str, tf.Tensor], Callable[[tf.Tensor], tf.Tensor], tf.Tensor, tf.Tensor]:
    """Returns the features of records; a function that moves values [B, S] of slots to the positions of their
    tokens; the mask of these positions, int32 [B, S]; and whether a slot holds a token, bool [B, S].

    Fails with InvalidArgumentError unless each position of the text is that of one slot: of two tokens at one
    position, one would be lost.
    """
    found = parse_examples(serialized_B, _static_features(schema))
    length, most = schema["input_ids"].length, schema["masked_lm_ids"].length
    slot_S, count_B1, end_B1 = tf.range(length), found["mask_padding_index"], found["seq_padding_index"]
    is_used_BS = ((slot_S < count_B1) | (slot_S >= most)) & (slot_S < end_B1)
    # Unused slots, and positions that do not exist, go to a column that is dropped.
    place_BS = tf.where(is_used_BS, tf.minimum(found["input_position"], length), length)
    rows = tf.shape(place_BS)[0]
    where_BS2 = tf.stack([tf.broadcast_to(tf.range(rows)[:, None], [rows, length]), place_BS], axis=2)

    def put_back(values_BS: tf.Tensor) -> tf.Tensor:
        placed = tf.scatter_nd(where_BS2, values_BS, [rows, length + 1])
        return tf.ensure_shape(placed[:, :length], [None, length])

    mask_BS = tf.cast(slot_S < end_B1 - most + count_B1, tf.int32)
    found = where_all([put_back(tf.ones_like(place_BS)) == mask_BS], found, _WRONG_PLACES)
    return found, put_back, mask_BS, is_used_BS
