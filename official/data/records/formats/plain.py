"""Records of the plain format -> examples; `encoding.plain` writes them."""

from __future__ import annotations

import tensorflow as tf

from official.data.records.schema import Feature, describe_example, parse_examples, read_example

ROWS_PER_RECORD = 1


def count_rows(serialized_B: tf.Tensor) -> tf.Tensor:
    return tf.ones_like(serialized_B, tf.int32)


def split(record: bytes) -> list[bytes]:
    return [record]


def join(records: list[bytes]) -> list[bytes]:
    return records


def unpack(serialized_B: tf.Tensor, schema: dict[str, Feature]) -> tf.Tensor:  # pylint: disable=unused-argument
    """Returns the records as they are: handing on serialized ones costs less than handing on what they are
    parsed into."""
    return serialized_B


def parse_rows(serialized_N: tf.Tensor, schema: dict[str, Feature]) -> dict[str, tf.Tensor]:
    return parse_examples(serialized_N, schema)


def describe_mismatch(record: bytes, schema: dict[str, Feature]) -> str | None:
    return describe_example(record, schema)


def sizes_of(record: bytes) -> tuple[int, int]:
    features = read_example(record) or {}
    ids, labels = (
        len(features[name].int64_list.value) if name in features else 0
        for name in ("input_ids", "masked_lm_ids")
    )
    return ids, labels
