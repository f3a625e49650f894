"""The plain format: Google's and MLPerf's tf.train.Examples, with the features of
`schema.pretraining_schema`.
"""

from __future__ import annotations

import functools

import numpy as np
import tensorflow as tf

from official.data.pretraining.examples import Examples
from official.data.records.formats import wire
from official.data.records.schema import Feature, describe_example, parse_examples, read_example

ROWS_PER_RECORD = 1
VOCABULARY_LIMIT = wire.LIMIT


def encode(examples: Examples) -> list[bytes]:
    length, predictions = examples.input_ids.shape[1], examples.positions.shape[1]
    column_L = np.arange(length, dtype=np.int32)
    begin_N, end_N = (lengths.astype(np.int32) for lengths in (examples.first_lengths, examples.lengths))
    is_second_NL = (column_L >= begin_N[:, None]) & (column_L < end_N[:, None])
    return wire.examples(
        [
            wire.integers("input_ids", examples.input_ids),
            wire.chosen(_first_ones("input_mask", length), examples.lengths),
            wire.integers("masked_lm_ids", examples.labels),
            wire.integers("masked_lm_positions", examples.positions),
            wire.chosen(weights(predictions), examples.predictions),
            wire.chosen(relations(), examples.is_random),
            wire.integers("segment_ids", is_second_NL),
        ]
    )


@functools.lru_cache
def _first_ones(name: str, length: int) -> wire.Column:
    return wire.integers(name, np.tri(length + 1, length, -1, np.uint8))


@functools.lru_cache
def weights(predictions: int) -> wire.Column:
    """Returns `masked_lm_weights` of 0 to `predictions` predicted tokens."""
    return wire.floats("masked_lm_weights", np.tri(predictions + 1, predictions, -1))


@functools.lru_cache
def relations() -> wire.Column:
    """Returns `next_sentence_labels` of a next and of a random segment."""
    return wire.integers("next_sentence_labels", np.array([[0], [1]]))


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
