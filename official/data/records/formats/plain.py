"""Readers of records of one sequence: the plain format, and Graphcore's static mask.

`encoding` says what is in these records, and writes them."""

from __future__ import annotations

import tensorflow as tf

from official.data.records.schema import Feature, describe_example, in_range, parse_examples, read_example


class Plain:
    """Reader of tf.train.Examples with the features of `schema.pretraining_schema`. Readers of other formats
    say what differs; `record_formats` says what the methods do."""

    @property
    def rows_per_record(self) -> int:
        return 1

    def count_rows(self, serialized_B: tf.Tensor) -> tf.Tensor:
        return tf.ones_like(serialized_B, tf.int32)

    def split(self, record: bytes) -> list[bytes]:
        return [record]

    def join(self, records: list[bytes]) -> list[bytes]:
        return records

    def unpack(self, serialized_B: tf.Tensor, schema: dict[str, Feature]) -> tf.Tensor:
        """Returns the records as they are: handing on serialized ones costs less than handing on what they
        are parsed into."""
        return serialized_B

    def parse_rows(self, rows_N: tf.Tensor, schema: dict[str, Feature]) -> dict[str, tf.Tensor]:
        return parse_examples(rows_N, schema)

    def describe_mismatch(self, record: bytes, schema: dict[str, Feature]) -> str | None:
        return describe_example(record, schema)

    def sizes_of(self, record: bytes) -> tuple[int, int]:
        features = read_example(record) or {}
        ids, labels = (
            len(features[name].int64_list.value) if name in features else 0
            for name in ("input_ids", "masked_lm_ids")
        )
        return ids, labels


class Remask(Plain):
    """Reader of records whose predicted tokens stand first: they are put back into their places."""

    def parse_rows(self, rows_N: tf.Tensor, schema: dict[str, Feature]) -> dict[str, tf.Tensor]:
        length, most = schema["input_ids"].length, schema["masked_lm_ids"].length
        found = parse_examples(rows_N, _static_features(schema))
        count_B1 = found["mask_padding_index"]
        # What is not used goes to a column that is cut off.
        place_BS = tf.where(_used_slots(found, length, most), found["input_position"], length)
        row_BS = tf.broadcast_to(tf.range(tf.shape(place_BS)[0])[:, None], tf.shape(place_BS))
        shape = [tf.shape(place_BS)[0], length + 1]

        def put_back(values_BS: tf.Tensor) -> tf.Tensor:
            placed = tf.scatter_nd(tf.stack([row_BS, place_BS], axis=2), values_BS, shape)
            return tf.ensure_shape(placed[:, :length], [None, length])

        tokens_B1 = found["seq_padding_index"] - most + count_B1
        is_predicted_BM = tf.range(most) < count_B1
        return {
            "input_ids": put_back(found["input_ids"]),
            "input_mask": tf.cast(tf.range(length) < tokens_B1, tf.int32),
            "segment_ids": put_back(found["segment_ids"]),
            "masked_lm_positions": tf.where(is_predicted_BM, found["input_position"][:, :most], 0),
            **{name: found[name] for name in ("masked_lm_ids", "masked_lm_weights", "next_sentence_labels")},
        }

    def describe_mismatch(self, record: bytes, schema: dict[str, Feature]) -> str | None:
        return describe_example(record, _static_features(schema))


class Static(Remask):
    """Reader of the same records as they stand, [CLS] in slot M: the masked-LM head cuts its tokens off and
    gathers nothing. What comes out is `schema.static_schema`."""

    def parse_rows(self, rows_N: tf.Tensor, schema: dict[str, Feature]) -> dict[str, tf.Tensor]:
        length, most = schema["input_ids"].length, schema["masked_lm_ids"].length
        found = parse_examples(rows_N, _static_features(schema))
        is_used_BS = _used_slots(found, length, most)
        # The position of padding may be beyond the table.
        positions_BS = tf.where(is_used_BS, found["input_position"], 0)
        rows = {
            "input_mask": tf.cast(is_used_BS, tf.int32),
            "position_ids": positions_BS,
            **{name: found[name] for name in schema if name in found},
        }
        return in_range(rows, schema)


def _static_features(schema: dict[str, Feature]) -> dict[str, Feature]:
    """Returns the features of a fixed length of the static mask, for those of the plain format."""
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


def _used_slots(found: dict[str, tf.Tensor], length: int, most: int) -> tf.Tensor:
    """Returns whether each slot of parsed records holds a token, bool [B, S], of S = `length` slots, the
    first `most` of them for predicted tokens."""
    slot_S = tf.range(length)
    is_filled_BS = (slot_S < found["mask_padding_index"]) | (slot_S >= most)
    return is_filled_BS & (slot_S < found["seq_padding_index"])
