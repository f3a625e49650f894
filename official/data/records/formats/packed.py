"""Packed rows: several examples in one tf.train.Example. First Graphcore's format for PyTorch, which
`bert pack` writes; then Habana's.

Features, S = tokens of a row, P = maximum number of examples in a row, M = maximum number of predicted tokens
in an example, K = M + P - 1. Example k = 1, 2, .. P of a row:
  packed_input_ids, packed_segment_ids [S]  its tokens except [CLS] follow those of example k - 1, from 0 on
    for the first one; its [CLS] is at S - k. The rest is 0.
  packed_input_mask [S]  k for the tokens of example k; 0 for padding
  packed_position_ids [S]  0 for its [CLS], then 1, 2, ..
  packed_masked_lm_positions, packed_masked_lm_ids [K]  positions in the row, and the tokens before masking;
    the slots of example k follow those of example k - 1
  packed_masked_lm_mask [K]  float: k for the slots of example k; 0 for empty slots
  packed_next_sentence_labels [P]  its label is at P - k, as its [CLS] is at S - k; 1 for a random
    second segment
  packed_next_sentence_mask [P]  float: 1 at P - k if the row has an example k

Reason for K = M + P - 1: the lengths of a row add up to at most S, with M predicted tokens, and rounding adds
less than 1 for each of P examples, so at most P - 1 in all. For S = 512, M = 76 (0.15 x 512 = 76.8, rounded
down) and P = 3 that is 78. It is not always enough: three examples that all round up can have 79. Graphcore
drops such a row; Habana has M + P = 79 slots under other names. Here `encode_rows` refuses it, and the packer
moves the last example to another row, so that none is lost. A reader takes K and P from the record: with 79
slots, M = 77.

Source: the packed records of Graphcore's examples for PyTorch; Krell et al. 2021, arXiv 2107.02027.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import tensorflow as tf

from official.data.pretraining.examples import Examples
from official.data.records import encoding
from official.data.records.formats import row_reader
from official.data.records.formats.row_reader import AsExamples, AsRows, Features
from official.data.rows import ragged
from official.io import json_files

IDS = "packed_input_ids"  # no other format has this feature
_FLOATS = ("packed_masked_lm_mask", "packed_next_sentence_mask")
_GROUPS = (
    ("packed_input_ids", "packed_input_mask", "packed_segment_ids", "packed_position_ids"),
    ("packed_masked_lm_positions", "packed_masked_lm_ids", "packed_masked_lm_mask"),
    ("packed_next_sentence_labels", "packed_next_sentence_mask"),
)

# -----------------------------------------------------------------------------------------------------------
# Reading


def _row_of(fields: dict[str, tf.Tensor]) -> row_reader.Row:
    row = {name.replace("packed_", ""): values for name, values in fields.items()}
    for name in ("next_sentence_labels", "next_sentence_mask"):
        row[name] = tf.reverse(row[name], [1])
    number_BP = tf.range(tf.shape(row["next_sentence_mask"])[1]) + tf.zeros_like(row["next_sentence_mask"])
    return habana_row_of({**row, "cls_positions": row["input_ids"].shape[1] - 1 - number_BP})


_LAYOUT = Features(_GROUPS, _FLOATS, _row_of, "packed_next_sentence_mask").layout(spare=-1)


class PackedExamples(AsExamples):
    """Reader of the examples of rows; splits these into rows of the same format."""

    def split(self, record: bytes) -> list[bytes]:
        """Returns a row for each example, with the same number of slots. Raises ValueError for an invalid
        record."""
        examples = self.examples_of(record)
        depth = self.layout.shape_of(record, None, None).depth
        members_NP = np.full((len(examples), depth), -1)
        members_NP[:, 0] = np.arange(len(examples))
        return encode_rows(examples, members_NP)


EXAMPLES, ROWS = PackedExamples(_LAYOUT), AsRows(_LAYOUT)


# -----------------------------------------------------------------------------------------------------------
# Habana's packed TFRecords: rows of up to three sequences, end to end.
#
# Features of a tf.train.Example, S = tokens of a row, P = maximum number of sequences in a row, M = maximum
# number of predicted tokens in a sequence, K = M + P:
#   input_ids, segment_ids [S]  the sequences end to end, each with its [CLS] first; then zeros
#   input_mask [S]  the number of the sequence, 1 to P; 0 for padding
#   positions [S]  position in the sequence, from 0
#   masked_lm_positions, masked_lm_ids [K]  positions in the row, and the tokens before masking
#   masked_lm_weights [K]  float: the number of the sequence; 0 for empty slots
#   next_sentence_positions, next_sentence_labels [P]  position of the [CLS] of sequence k, and 1 if its
#     second segment is random, at k - 1
#   next_sentence_weights [P]  float: 1 for a sequence, 0 for an empty slot
#
# Differences from the packed records above: [CLS] stays first, instead of k-th from the end of the row;
# labels are in ascending, not descending order; there are M + P slots, not M + P - 1, so 76 predictions and
# three sequences make 79 slots instead of 78; the weights of slots and labels are named `_weights`, not
# `_mask`.
#
# Files are named `strategy_<l1>_<l2>[_<l3>]_part_<n>`, by the lengths in a row. `<folder>_metadata.json`,
# next to their folder, has statistics of the whole set.
# Source: the packed pre-training data of Habana's BERT for TensorFlow.


HABANA_MARK = "next_sentence_positions"  # no other format has this feature
_HABANA_FLOATS = ("masked_lm_weights", "next_sentence_weights")
HABANA_GROUPS = (
    ("input_ids", "input_mask", "segment_ids", "positions"),
    ("masked_lm_positions", "masked_lm_ids", "masked_lm_weights"),
    ("next_sentence_positions", "next_sentence_labels", "next_sentence_weights"),
)
_RENAMED = {
    "input_mask": "sequence_ids",
    "positions": "position_ids",
    "masked_lm_weights": "masked_lm_sequences",
    "masked_lm_mask": "masked_lm_sequences",  # name in the packed records above
    "next_sentence_positions": "cls_positions",
    "next_sentence_weights": "example_weights",
    "next_sentence_mask": "example_weights",
}


def habana_row_of(fields: dict[str, tf.Tensor]) -> row_reader.Row:
    """Returns a row from features with these names and numeric values of any type."""
    return row_reader.features({_RENAMED.get(name, name): values for name, values in fields.items()})


_HABANA = Features(HABANA_GROUPS, _HABANA_FLOATS, habana_row_of, "next_sentence_weights").layout(spare=0)
HABANA_EXAMPLES, HABANA_ROWS = AsExamples(_HABANA), AsRows(_HABANA)


def average_sequences(files: list[str]) -> float | None:
    """Returns the average number of sequences in a row, from the metadata next to the folders; None if it is
    missing for a folder.

    Args:
      files: Habana's files; the folders are weighted by their number of files.
    """
    folders = [os.path.dirname(path) or os.getcwd() for path in files]
    metadata = {folder: json_files.read_json_or_empty(f"{folder}_metadata.json") for folder in set(folders)}
    averages: list[Any] = [metadata[folder].get("avg_seq_per_sample") for folder in folders]
    are_right = all(json_files.is_of_kind(each, float) and 1 <= each < float("inf") for each in averages)
    return sum(averages) / len(averages) if are_right else None


# -----------------------------------------------------------------------------------------------------------
# Writing
#
# Shapes: R rows, N examples, in the order of their rows, T tokens or slots of all examples.


def encode_rows(examples: Examples, members_RP: np.ndarray) -> list[bytes]:
    """Returns R records.

    Args:
      examples: N examples of at most S tokens and M predicted tokens.
      members_RP: int [R, P], the numbers of the examples of each row, padded with -1.

    Raises:
      ValueError: if the examples of a row have more than S tokens, or more than K predicted tokens.
    """
    (rows, depth), length = members_RP.shape, examples.input_ids.shape[1]
    slots = examples.positions.shape[1] + depth - 1
    row_N, number_N = np.nonzero(members_RP >= 0)
    examples_N = members_RP[row_N, number_N]
    lengths_N, predictions_N = examples.lengths[examples_N], examples.predictions[examples_N]
    for counts_N, most, what in ((lengths_N, length, "tokens"), (predictions_N, slots, "predicted tokens")):
        found = np.bincount(row_N, counts_N, minlength=rows)
        if (found > most).any():
            raise ValueError(f"row {found.argmax()} has {found.max():.0f} {what}, expected at most {most}")
    packed = {
        name: np.zeros((rows, size), np.float32 if name in _FLOATS else np.int32)
        for names, size in zip(_GROUPS, (length, slots, depth))
        for name in names
    }

    heads_N = length - 1 - number_N  # positions of [CLS]
    packed[IDS][row_N, heads_N] = examples.input_ids[examples_N, 0]
    packed["packed_input_mask"][row_N, heads_N] = number_N + 1
    starts_N = _starts(lengths_N - 1, row_N)  # positions of the second tokens
    member_T, index_T = _parts(lengths_N - 1)
    at_T, example_T = (row_N[member_T], starts_N[member_T] + index_T), examples_N[member_T]
    packed[IDS][at_T] = examples.input_ids[example_T, index_T + 1]
    packed["packed_input_mask"][at_T] = number_N[member_T] + 1
    packed["packed_segment_ids"][at_T] = index_T + 1 >= examples.first_lengths[example_T]
    packed["packed_position_ids"][at_T] = index_T + 1

    member_T, index_T = _parts(predictions_N)
    at_T = row_N[member_T], _starts(predictions_N, row_N)[member_T] + index_T
    example_T = examples_N[member_T]
    position_T = examples.positions[example_T, index_T].astype(np.int64)
    start_T, head_T = starts_N[member_T] - 1, heads_N[member_T]
    packed["packed_masked_lm_positions"][at_T] = np.where(position_T > 0, start_T + position_T, head_T)
    packed["packed_masked_lm_ids"][at_T] = examples.labels[example_T, index_T]
    packed["packed_masked_lm_mask"][at_T] = number_N[member_T] + 1

    packed["packed_next_sentence_labels"][row_N, depth - 1 - number_N] = examples.is_random[examples_N]
    packed["packed_next_sentence_mask"][row_N, depth - 1 - number_N] = 1
    return encoding.tf_examples(packed)


def _starts(counts_N: np.ndarray, rows_N: np.ndarray) -> np.ndarray:
    """Returns the start of each example in its row, for examples laid end to end; those of a row are
    consecutive."""
    begins_N = np.cumsum(counts_N) - counts_N
    is_first_N = np.diff(rows_N, prepend=-1) > 0
    return begins_N - np.maximum.accumulate(np.where(is_first_N, begins_N, 0))


def _parts(counts_N: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the example of each of T parts, and the number of the part in its example, int [T]."""
    return np.repeat(np.arange(len(counts_N)), counts_N), ragged.ranges(np.zeros_like(counts_N), counts_N)
