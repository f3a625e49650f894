"""The plain format: Google's and MLPerf's tf.train.Examples, with the features of
`schema.pretraining_schema`."""

from __future__ import annotations

import functools

import numpy as np

from official.data.pretraining.examples import Examples
from official.data.records.encoding import wire

ROWS_PER_RECORD = 1
VOCABULARY_LIMIT = wire.LIMIT


def encode(examples: Examples) -> list[bytes]:
    """Returns a record for each example."""
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
            wire.chosen(_weights(predictions), examples.predictions),
            wire.chosen(_relations(), examples.is_random),
            wire.integers("segment_ids", is_second_NL),
        ]
    )


@functools.lru_cache
def _first_ones(name: str, length: int) -> wire.Column:
    return wire.integers(name, np.tri(length + 1, length, -1, np.uint8))


@functools.lru_cache
def _weights(predictions: int) -> wire.Column:
    """Returns `masked_lm_weights` of 0 to `predictions` predicted tokens."""
    return wire.floats("masked_lm_weights", np.tri(predictions + 1, predictions, -1))


@functools.lru_cache
def _relations() -> wire.Column:
    """Returns `next_sentence_labels` of a next and of a random segment."""
    return wire.integers("next_sentence_labels", np.array([[0], [1]]))
