"""Habana's packed TFRecords: rows of up to three sequences, end to end.

Features of a tf.train.Example, S = tokens of a row, P = sequences of a row at most, M = predicted tokens of a
sequence at most, K = M + P:
  input_ids, segment_ids [S]  the sequences one after the other, each with its [CLS] first; then zeros
  input_mask [S]  the number of the sequence, 1 to P; 0 is padding
  positions [S]  from 0 in each sequence
  masked_lm_positions, masked_lm_ids [K]  places in the row, and the tokens before masking
  masked_lm_weights [K]  float: the number of the sequence; 0 is an empty slot
  next_sentence_positions, next_sentence_labels [P]  where the [CLS] of sequence k stands, and whether its
    second segment is a random one, at k - 1
  next_sentence_weights [P]  float: 1 where there is a sequence

Against the packed records of `packed`: [CLS] stays first, where those have it k-th from the end of
the row; labels go forwards, not backwards; there are M + P slots, not M + P - 1, so that 76 predictions and
three sequences make 79 slots here and 78 there; the weights of slots and of labels have those records'
`_mask` for a name.

Files are named `strategy_<l1>_<l2>[_<l3>]_part_<n>`, by the lengths in a row. Beside their folder lies
`<folder>_metadata.json` with numbers of the whole set.
Source: the packed pre-training data of Habana's BERT for TensorFlow.
"""

from __future__ import annotations

import os
from typing import Any

import tensorflow as tf

from official.data.records.formats import row_reader
from official.data.records.formats.row_reader import AsExamples, AsRows, Features
from official.io import json_files

MARK = "next_sentence_positions"  # no other format has this feature
_FLOATS = ("masked_lm_weights", "next_sentence_weights")
GROUPS = (
    ("input_ids", "input_mask", "segment_ids", "positions"),
    ("masked_lm_positions", "masked_lm_ids", "masked_lm_weights"),
    ("next_sentence_positions", "next_sentence_labels", "next_sentence_weights"),
)
_RENAMED = {
    "input_mask": "sequence_ids",
    "positions": "position_ids",
    "masked_lm_weights": "masked_lm_sequences",
    "next_sentence_positions": "cls_positions",
    "next_sentence_weights": "example_weights",
}


def row_of(fields: dict[str, tf.Tensor]) -> row_reader.Row:
    """Returns the row of features with these names, numbers of any type."""
    return row_reader.features({_RENAMED.get(name, name): values for name, values in fields.items()})


_LAYOUT = Features(GROUPS, _FLOATS, row_of, "next_sentence_weights").layout(spare=0)
EXAMPLES, ROWS = AsExamples(_LAYOUT), AsRows(_LAYOUT)


def average_sequences(files: list[str]) -> float | None:
    """Returns how many sequences a row of some files holds on average, as the metadata beside their folders
    say; None where a folder has none, or it does not say.

    Args:
      files: packed TFRecords; the folders count by their files.
    """
    folders = [os.path.dirname(path) or os.getcwd() for path in files]
    metadata = {folder: json_files.read_json_or_empty(f"{folder}_metadata.json") for folder in set(folders)}
    told: list[Any] = [metadata[folder].get("avg_seq_per_sample") for folder in folders]
    are_right = all(json_files.is_of_kind(each, float) and 1 <= each < float("inf") for each in told)
    return sum(told) / len(told) if are_right else None
