"""Positions of the vectors that a model's heads read, where not all: the last block needs no others.

The vectors that are read stand as in a row whose predicted tokens are its first: those of the P predicted
tokens, then one of each sequence's [CLS]. R is the number of both.
"""

from __future__ import annotations

from typing import NamedTuple

import tensorflow as tf

from official.modeling.heads import predicted_first
from official.modeling.shapes import sizes


class Reads(NamedTuple):
    """Positions that heads read.

    Attributes:
      positions_BR: int32, in [0, L).
      predicted: P, of the first positions: a number, or int32 [] where it is known only when it runs.
    """

    positions_BR: tf.Tensor
    predicted: int | tf.Tensor


def of_pretraining(features: dict[str, tf.Tensor]) -> Reads:
    """Returns the positions that the masked-LM head and the pooler read; `features` as `BertPretrainer` takes
    them."""
    first = predicted_first(features)
    predicted_BP = _first(features, first) if first else features["masked_lm_positions"]
    return Reads(tf.concat([predicted_BP, _cls(features, first)], axis=1), sizes(predicted_BP)[1])


def of_sequences(features: dict[str, tf.Tensor]) -> Reads:
    """Returns the positions that the pooler alone reads."""
    return Reads(_cls(features, predicted_first(features)), 0)


def _cls(features: dict[str, tf.Tensor], slot: int) -> tf.Tensor:
    """Returns the position of each sequence's [CLS], int32 [B, S]."""
    positions_BS = features.get("cls_positions")
    return _first(features, 1) + slot if positions_BS is None else positions_BS


def _first(features: dict[str, tf.Tensor], count: int) -> tf.Tensor:
    """Returns the numbers 0, 1, .. count - 1 of each row, int32 [B, count]."""
    batch = sizes(features["input_ids"])[0]
    return tf.tile(tf.range(count)[None], [batch, 1])
