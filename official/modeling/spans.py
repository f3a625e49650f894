"""Logits of every token as the start or the end of a span: of rows of one sequence, and of several.

Shapes: B rows, L tokens of a row, S sequences of a row. Rows of several sequences are those with
`cls_positions` int32 [B, S], where each begins; their `sequence_ids` int32 [B, L] have 1.. and 0 for padding.
"""

from __future__ import annotations

import tensorflow as tf


def of_sequences(logits_BL: tf.Tensor, features: dict[str, tf.Tensor]) -> tf.Tensor:
    """Returns the logits of each sequence, with the lowest number for all that is no token of it.

    Args:
      logits_BL: float32.
      features: of the batch; `input_mask` int32 [B, L], 0 for padding.

    Returns:
      float32 [B, L], or [B, S, L]: a token stands where it has its place in the row.
    """
    if "cls_positions" in features:
        return tf.where(_is_own(features), logits_BL[:, None], logits_BL.dtype.min)
    return tf.where(features["input_mask"] > 0, logits_BL, logits_BL.dtype.min)


def in_row(positions: tf.Tensor, features: dict[str, tf.Tensor]) -> tf.Tensor:
    """Returns where in their rows tokens stand that are counted from the start of their sequences; int32 [B],
    or [B, S]."""
    return positions + features.get("cls_positions", 0)


def cut_out(logits_BL: tf.Tensor, features: dict[str, tf.Tensor]) -> tf.Tensor:
    """Returns the logits of each sequence of rows of several, from its first token on and 0 beyond its last
    one: float32 [B, S, L]."""
    length = logits_BL.shape[1]
    places_BSL = features["cls_positions"][:, :, None] + tf.range(length)
    own_BSL = tf.where(_is_own(features), logits_BL[:, None], 0.0)
    shifted_BSL = tf.gather(own_BSL, tf.minimum(places_BSL, length - 1), batch_dims=2)
    return tf.where(places_BSL < length, shifted_BSL, 0.0)


def _is_own(features: dict[str, tf.Tensor]) -> tf.Tensor:
    """Returns bool [B, S, L]: whether a token of the row is one of the sequence."""
    numbers_S = 1 + tf.range(features["cls_positions"].shape[1])
    return tf.equal(features["sequence_ids"][:, None, :], numbers_S[:, None])
