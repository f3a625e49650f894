"""Sequences of packed rows, set apart by empty slots: a convolution does not reach from one to the next.

A row of L tokens becomes one of W slots. Each sequence stands there in the order of its tokens, whatever
their places in the row: some records have every [CLS] at the end of the row, and `position_ids` tell that it
is the first token of its sequence. Between two sequences, and behind them, slots are empty. So tokens have
the same neighbours as in a row of their own.
"""

from __future__ import annotations

from typing import NamedTuple

import tensorflow as tf

from official.modeling.shapes import sizes


class Slots(NamedTuple):
    """Assignment of tokens to slots.

    Attributes:
      tokens_BW: int32, the place in its row of the token in a slot; L for an empty slot.
      slots_BL: int32, the slot of a token; W for padding, which has none.
    """

    tokens_BW: tf.Tensor
    slots_BL: tf.Tensor


def find_slots(features: dict[str, tf.Tensor], gap: int) -> Slots | None:
    """Returns the slots of a batch, with `gap` empty ones between sequences.

    Args:
      features: of a batch. `sequence_ids` int32 [B, L] are 1, 2, .. S for the sequences of a row and 0 for
        padding; `position_ids` int32 [B, L], in [0, L), tell the order in each, else the place in the row
        does. S is the number of `cls_positions` [B, S] or, without, the largest of `sequence_ids`.
      gap: slots.

    Returns:
      W = L + gap x (S - 1) slots a row; None without `sequence_ids`: a row is one sequence.
    """
    if "sequence_ids" not in features:
        return None
    ids_BL = features["sequence_ids"]
    batch, length = sizes(ids_BL)
    if "cls_positions" in features:
        most = sizes(features["cls_positions"])[1]
    else:
        most = tf.maximum(tf.reduce_max(ids_BL), 1)
    width = length + gap * (most - 1)
    positions = features.get("position_ids", tf.range(length)[None])
    keys_BL = tf.where(ids_BL > 0, ids_BL, most + 1) * length + positions
    order_BL = tf.argsort(keys_BL, stable=True)
    sorted_BL = tf.gather(ids_BL, order_BL, batch_dims=1)
    slots_BL = tf.where(sorted_BL > 0, tf.range(length) + gap * (sorted_BL - 1), width)
    return Slots(
        _put(slots_BL, order_BL, width + 1, empty=length)[:, :-1],
        _put(order_BL, slots_BL, length, empty=width),
    )


def _put(places_BL: tf.Tensor, values_BL: tf.Tensor, width: int | tf.Tensor, empty: int | tf.Tensor):
    """Returns int32 [B, width]: each value at its place, and `empty` where none is."""
    batch, _ = sizes(places_BL)
    flat = tf.reshape(places_BL + tf.range(batch)[:, None] * width, [-1, 1])
    # Zero is what stays where nothing is scattered to. Padding has one place for all; nobody reads it.
    put = tf.scatter_nd(flat, tf.reshape(values_BL - empty, [-1]), [batch * width])
    return tf.reshape(put, [batch, width]) + empty


def spread(x_BLD: tf.Tensor, slots: Slots) -> tf.Tensor:
    """Returns the vectors in their slots, [B, W, D]; zeros in empty ones."""
    return _move(x_BLD, slots.tokens_BW, slots.slots_BL)


def collect(x_BWD: tf.Tensor, slots: Slots) -> tf.Tensor:
    """Returns the vectors of the tokens, [B, L, D]; zeros for padding."""
    return _move(x_BWD, slots.slots_BL, slots.tokens_BW)


def _move(x: tf.Tensor, places: tf.Tensor, back: tf.Tensor) -> tf.Tensor:
    """Returns the vectors of each row at `places`, zeros for what lies behind its end. `back` is the way
    back, which the gradient goes."""

    @tf.custom_gradient
    def move(x):
        return _pick(x, places), lambda upstream: _pick(upstream, back)

    return move(x)


def _pick(x: tf.Tensor, places: tf.Tensor) -> tf.Tensor:
    batch, count, size = sizes(x)
    flat = tf.minimum(places, count - 1) + tf.range(batch)[:, None] * count
    picked = tf.gather(tf.reshape(x, [-1, size]), flat)
    return tf.where((places < count)[..., None], picked, tf.zeros([], x.dtype))
