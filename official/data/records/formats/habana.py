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

import tensorflow as tf

from official.data.records.formats import row_reader
from official.data.records.formats.row_reader import AsExamples, AsRows, Features
from official.io import json_files

MARK = "next_sentence_positions"  # no other format has this feature
_TOKENS = ("input_ids", "input_mask", "segment_ids", "positions")
_SLOTS = ("masked_lm_positions", "masked_lm_ids", "masked_lm_weights")
_LABELS = ("next_sentence_positions", "next_sentence_labels", "next_sentence_weights")
_FLOATS = ("masked_lm_weights", "next_sentence_weights")
GROUPS = (_TOKENS, _SLOTS, _LABELS)


def row_of(fields: dict[str, tf.Tensor]) -> row_reader.Row:
    """Returns the row of features with these names, numbers of any type."""
    return row_reader.features(
        {
            "input_ids": fields["input_ids"],
            "segment_ids": fields["segment_ids"],
            "sequence_ids": fields["input_mask"],
            "position_ids": fields["positions"],
            "masked_lm_positions": fields["masked_lm_positions"],
            "masked_lm_ids": fields["masked_lm_ids"],
            "masked_lm_sequences": fields["masked_lm_weights"],
            "cls_positions": fields["next_sentence_positions"],
            "next_sentence_labels": fields["next_sentence_labels"],
            "example_weights": fields["next_sentence_weights"],
        }
    )


_LAYOUT = Features(GROUPS, _FLOATS, row_of, "next_sentence_weights").layout(spare=0)
EXAMPLES, ROWS = AsExamples(_LAYOUT), AsRows(_LAYOUT)


def average_sequences(files: list[str]) -> float | None:
    """Returns how many sequences a row of some files holds on average, as the metadata beside their folders
    say; None where a folder has none, or it does not say.

    Args:
      files: packed TFRecords; the folders count by their files.
    """
    folders = [os.path.dirname(path) or os.getcwd() for path in files]
    told = {folder: _told(f"{folder}_metadata.json") for folder in set(folders)}
    numbers = [number for folder in folders if (number := told[folder])]
    return sum(numbers) / len(numbers) if numbers and len(numbers) == len(files) else None


def _told(path: str) -> float | None:
    number = json_files.read_json_or_empty(path).get("avg_seq_per_sample")
    if isinstance(number, bool) or not isinstance(number, (int, float)):
        return None
    return float(number) if 1 <= number < float("inf") else None
