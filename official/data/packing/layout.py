"""Sequences laid end to end in rows."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import tensorflow as tf

from official.data.packing import plan

# -----------------------------------------------------------------------------------------------------------
# Rows
#
# Shapes: B rows, L tokens of a row, P sequences of a row at most.


class Layout(NamedTuple):
    """Layout of sequences in rows: the place of each token.

    Attributes:
      slots_BL: int32 [B, L], the number of the token's sequence in the row, from 0; P or more for padding.
      places_BL: int32 [B, L], the number of the token in its sequence, from 0; 0 for padding.
      is_token_BL: bool [B, L], false for padding.
      starts_BP: int32 [B, P], the first token of each sequence in the row; 0 for an empty slot.
    """

    slots_BL: tf.Tensor
    places_BL: tf.Tensor
    is_token_BL: tf.Tensor
    starts_BP: tf.Tensor

    def spread(self, values_BP: tf.Tensor) -> tf.Tensor:
        """Returns the value of each token's sequence, [B, L]; for padding, the last value."""
        return tf.gather(values_BP, tf.minimum(self.slots_BL, values_BP.shape[1] - 1), batch_dims=1)

    def features(self) -> dict[str, tf.Tensor]:
        """Returns the layout as features of the model: `input_mask`, `sequence_ids`, `position_ids` [B, L]
        and `cls_positions` [B, P], int32."""
        is_token_BL = tf.cast(self.is_token_BL, tf.int32)
        return {
            "input_mask": is_token_BL,
            "sequence_ids": (self.slots_BL + 1) * is_token_BL,
            "position_ids": self.places_BL,
            "cls_positions": self.starts_BP,
        }


def lay_out(lengths_BP: tf.Tensor, length: int) -> Layout:
    """Lays sequences end to end.

    Args:
      lengths_BP: int32, lengths of the sequences of each row in order, padded with 0; their sum is at most
        `length`.
      length: L, tokens of a row.
    """
    ends_BP = tf.cumsum(lengths_BP, axis=1)
    starts_BP = tf.where(lengths_BP > 0, ends_BP - lengths_BP, 0)
    columns_BL = tf.tile(tf.range(length)[None], [tf.shape(lengths_BP)[0], 1])
    slots_BL = tf.searchsorted(ends_BP, columns_BL, side="right")
    is_token_BL = columns_BL < ends_BP[:, -1:]
    slots_BL = tf.where(is_token_BL, slots_BL, lengths_BP.shape[1])
    layout = Layout(slots_BL, columns_BL, is_token_BL, starts_BP)  # places are still relative to the row
    places_BL = tf.where(is_token_BL, columns_BL - layout.spread(starts_BP), 0)
    return layout._replace(places_BL=places_BL)


# -----------------------------------------------------------------------------------------------------------
# Groups of sequences


def group(lengths_N: np.ndarray, predictions_N: np.ndarray, row_length: int, slots: int, depth: int):
    """Groups sequences into rows, the longest first.

    Args:
      lengths_N: tokens of each sequence, 1 to `row_length`.
      predictions_N: predicted tokens of each sequence, up to `slots`.
      row_length: tokens of a row.
      slots: maximum number of predicted tokens in a row. The last sequences of rows that would have more are
        packed again, among themselves.
      depth: P, maximum number of sequences in a row.

    Returns:
      int32 [R, P], the numbers of the sequences of each row, padded with -1.
    """
    ranks_RP = plan.ranks(plan.plan_of(lengths_N, row_length, depth).lengths_of_rows(depth))
    by_length_N = np.argsort(lengths_N, kind="stable")
    members_RP = np.where(ranks_RP >= 0, by_length_N[ranks_RP], -1).astype(np.int32)
    predictions_RP = np.where(members_RP >= 0, predictions_N[members_RP], 0)
    is_left_RP = np.cumsum(predictions_RP, axis=1) > slots
    left_N = members_RP[is_left_RP & (members_RP >= 0)]
    if not len(left_N):
        return members_RP
    again_RP = group(lengths_N[left_N], predictions_N[left_N], row_length, slots, depth)
    again_RP = np.where(again_RP >= 0, left_N[again_RP], -1).astype(np.int32)
    return np.concatenate([np.where(is_left_RP, -1, members_RP), again_RP])
