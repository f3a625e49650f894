"""Packed rows: several examples in one tf.train.Example, as Graphcore's for PyTorch; `bert pack` makes them.

Features, S = tokens of a row, P = examples of a row at most, M = predicted tokens of an example at most,
K = M + P - 1. Example k = 1, 2, .. P of a row:
  packed_input_ids, packed_segment_ids [S]  its tokens but [CLS] follow those of example k - 1, the first
    one's begin at 0; its [CLS] stands at S - k. The rest is 0.
  packed_input_mask [S]  k where a token is its own; 0 is padding
  packed_position_ids [S]  0 for its [CLS], then 1, 2, ..
  packed_masked_lm_positions, packed_masked_lm_ids [K]  places in the row, and the tokens before masking; the
    slots of example k follow those of example k - 1
  packed_masked_lm_mask [K]  float: k where a slot is its own; 0 is an empty slot
  packed_next_sentence_labels [P]  its label is at P - k, as its [CLS] is at S - k; 1 for a random
    second segment
  packed_next_sentence_mask [P]  float: 1 at P - k where there is an example k

Why K = M + P - 1: lengths of a row add up to S at most, whose share of predicted tokens is M, and rounding
adds less than 1 for each of P examples: at most P - 1 more. For S = 512, M = 76 (0.15 x 512 = 76.8, cut) and
P = 3 that is 78. It does not always do: three examples that all round up can have 79. Graphcore drops such a
row, Habana has M + P = 79 slots under other names. Here `encode_rows` refuses it and the packer gives the
last example a row of its own, so that none is lost. A reader takes K and P from the record: 79 slots are
M = 77.

Source: the packed records of Graphcore's examples for PyTorch; Krell et al. 2021, arXiv 2107.02027.
"""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from official.data.pretraining.examples import Examples
from official.data.records import wire
from official.data.records.formats import row_reader
from official.data.records.formats.row_reader import AsExamples, AsRows, Features
from official.data.rows import ragged

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
    length, weights_BP = fields[IDS].shape[1], tf.reverse(fields["packed_next_sentence_mask"], [1])
    return row_reader.features(
        {
            "input_ids": fields[IDS],
            "segment_ids": fields["packed_segment_ids"],
            "sequence_ids": fields["packed_input_mask"],
            "position_ids": fields["packed_position_ids"],
            "masked_lm_positions": fields["packed_masked_lm_positions"],
            "masked_lm_ids": fields["packed_masked_lm_ids"],
            "masked_lm_sequences": fields["packed_masked_lm_mask"],
            "cls_positions": length - 1 - tf.range(tf.shape(weights_BP)[1]) + tf.zeros_like(weights_BP),
            "next_sentence_labels": tf.reverse(fields["packed_next_sentence_labels"], [1]),
            "example_weights": weights_BP,
        }
    )


_LAYOUT = Features(_GROUPS, _FLOATS, _row_of, "packed_next_sentence_mask").layout(spare=-1)


class PackedExamples(AsExamples):
    """Reader of the examples of rows; splits these into rows of the same format."""

    def split(self, record: bytes) -> list[bytes]:
        """Returns a row for each example, with as many slots. Raises ValueError for a wrong record."""
        examples = self.examples_of(record)
        depth = self.layout.shape_of(record, None, None).depth
        members_NP = np.full((len(examples), depth), -1)
        members_NP[:, 0] = np.arange(len(examples))
        return encode_rows(examples, members_NP)


EXAMPLES, ROWS = PackedExamples(_LAYOUT), AsRows(_LAYOUT)


# -----------------------------------------------------------------------------------------------------------
# Writing
#
# Shapes: R rows, N examples, in the order of their rows, T tokens or slots of all.


def encode_rows(examples: Examples, members_RP: np.ndarray) -> list[bytes]:
    """Returns R records.

    Args:
      examples: N of them, of S tokens and M predicted ones at most.
      members_RP: int [R, P], the examples of a row, -1 behind the last one.

    Raises:
      ValueError: where the examples of a row have more tokens than S, or more predicted ones than K.
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

    heads_N = length - 1 - number_N  # the places of [CLS]
    packed[IDS][row_N, heads_N] = examples.input_ids[examples_N, 0]
    packed["packed_input_mask"][row_N, heads_N] = number_N + 1
    starts_N = _starts(lengths_N - 1, row_N)  # the places of the second tokens
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
    packed["packed_masked_lm_positions"][at_T] = np.where(
        position_T > 0, starts_N[member_T] + position_T - 1, heads_N[member_T]
    )
    packed["packed_masked_lm_ids"][at_T] = examples.labels[example_T, index_T]
    packed["packed_masked_lm_mask"][at_T] = number_N[member_T] + 1

    packed["packed_next_sentence_labels"][row_N, depth - 1 - number_N] = examples.is_random[examples_N]
    packed["packed_next_sentence_mask"][row_N, depth - 1 - number_N] = 1
    return wire.examples(packed)


def _starts(counts_N: np.ndarray, rows_N: np.ndarray) -> np.ndarray:
    """Returns the place in its row where each example begins, if they stand end to end; those of a row follow
    each other."""
    begins_N = np.cumsum(counts_N) - counts_N
    is_first_N = np.diff(rows_N, prepend=-1) > 0
    return begins_N - np.maximum.accumulate(np.where(is_first_N, begins_N, 0))


def _parts(counts_N: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns of each of T parts its example, and its number among the parts of that, int [T]."""
    return np.repeat(np.arange(len(counts_N)), counts_N), ragged.ranges(np.zeros_like(counts_N), counts_N)
