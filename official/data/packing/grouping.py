"""Grouping of sequences into rows: a plan, and the sequence in each place. No files, no TensorFlow."""

from __future__ import annotations

import numpy as np

from official.data.packing.first_fit import longest_pack_first
from official.data.packing.plan import Histogram


def group(
    lengths_N: np.ndarray, predictions_N: np.ndarray, row_length: int, slots: int, depth: int
) -> np.ndarray:
    """Groups sequences into rows, the longest first.

    Args:
      lengths_N: tokens of the sequences, 1 to `row_length`.
      predictions_N: their predicted tokens, up to `slots`.
      row_length: tokens of a row.
      slots: predicted tokens of a row, at most. The last sequences of rows that would have more are packed
        again, among themselves.
      depth: sequences of a row, P, at most.

    Returns:
      int32 [R, P], the numbers of the sequences of each row; -1 behind the last one.
    """
    plan = longest_pack_first(Histogram.of_lengths(lengths_N, row_length), depth)
    lengths_RP = plan.lengths_of_rows()
    members_RP = np.full((len(lengths_RP), depth), -1, np.int32)
    row_N, slot_N = np.nonzero(lengths_RP)
    by_length = np.argsort(lengths_RP[row_N, slot_N], kind="stable")
    members_RP[row_N[by_length], slot_N[by_length]] = np.argsort(lengths_N, kind="stable")
    predictions_RP = np.where(members_RP >= 0, predictions_N[members_RP], 0)
    is_left_RP = np.cumsum(predictions_RP, axis=1) > slots
    left_N = members_RP[is_left_RP & (members_RP >= 0)]
    if not len(left_N):
        return members_RP
    again_RP = group(lengths_N[left_N], predictions_N[left_N], row_length, slots, depth)
    again_RP = np.where(again_RP >= 0, left_N[again_RP], -1).astype(np.int32)
    return np.concatenate([np.where(is_left_RP, -1, members_RP), again_RP])
