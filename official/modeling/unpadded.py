"""A model's forward pass without padding: its cost follows the tokens of a batch, not its longest sequence.

The sequences of a batch are laid end to end in one row. Dense layers, LayerNorm and heads see tokens only,
and attention takes sequences of nearly one length together (`sequence_rows.find_ragged_places`). Outputs
stand where those of the padded batch do. All of it has gradients. How many tokens there are is known only
when it runs, so that this is nothing for functions that are compiled as a whole.

Shapes: T tokens of a batch; as everywhere B rows, L slots of a row, P predictions.
"""

from __future__ import annotations

from typing import NamedTuple

import tensorflow as tf

from official.config import BertConfig
from official.modeling import sequence_rows, stages
from official.modeling.shapes import sizes
from official.modeling.stages import Staged, Tensors

_BY_TOKEN = ("sequence", "start_logits", "end_logits")
_BY_SEQUENCE = ("pooled", "logits", "next_sentence_logits")
_BY_PREDICTION = ("masked_lm_logits",)


class Laid(NamedTuple):
    """A batch end to end.

    Attributes:
      features: of one row, [1, T], [1, B] and [1, B x P], as `BertEncoder.stages` reads them.
      slots_T: int32, in [0, B x L): where each token stood.
      shape: B and L.
    """

    features: Tensors
    slots_T: tf.Tensor
    shape: list


def run(
    model: Staged, features: Tensors, config: BertConfig, dropout_seed: tf.Tensor | None = None
) -> Tensors:
    """Runs all stages of a model on the tokens of a batch.

    Args:
      model: list of stages.
      features: `input_ids`, `input_mask` and `segment_ids` int32 [B, L], one sequence a row; where the model
        predicts masked tokens, `masked_lm_positions` int32 [B, P]. A row without tokens counts as one token.
      config: sizes of the model.
      dropout_seed: int32 [N], or None to switch dropout off. Other numbers are dropped than with padding.

    Returns:
      What the stages gave, in the shapes that the padded batch has it; zeros at padding.
    """
    laid = lay_end_to_end(features, config.num_attention_heads)
    carried = stages.run(model, laid.features, dropout_seed)
    return {
        name: _as_padded(name, value, laid, features) for name, value in carried.items() if name != "seen"
    }


def lay_end_to_end(features: Tensors, heads: int) -> Laid:
    """Returns a batch of one sequence a row as one row without padding; arguments as of `run`."""
    mask_BL = features["input_mask"] > 0
    batch, length = sizes(mask_BL)
    is_first = tf.range(length) == 0
    mask_BL = mask_BL | (~tf.reduce_any(mask_BL, axis=1, keepdims=True) & is_first)
    slots_T = tf.cast(tf.where(tf.reshape(mask_BL, [-1]))[:, 0], tf.int32)
    lengths_B = tf.reduce_sum(tf.cast(mask_BL, tf.int32), axis=1)
    firsts_B = tf.cumsum(lengths_B) - lengths_B
    row = {
        name: tf.gather(tf.reshape(features[name], [-1]), slots_T)[None]
        for name in ("input_ids", "segment_ids")
    }
    row |= {
        "input_mask": tf.ones_like(row["input_ids"]),
        "position_ids": (slots_T % length)[None],
        "sequence_ids": (slots_T // length + 1)[None],
        "cls_positions": firsts_B[None],
        "places": sequence_rows.find_ragged_places(lengths_B, heads),
    }
    if "masked_lm_positions" in features:
        # A token's place among all: how many come before its slot.
        places_BL = tf.cumsum(tf.cast(tf.reshape(mask_BL, [-1]), tf.int32), exclusive=True)
        slots_BP = features["masked_lm_positions"] + tf.range(batch)[:, None] * length
        # What fills up a row's positions may be padding.
        places_BP = tf.minimum(tf.gather(places_BL, slots_BP), sizes(slots_T)[0] - 1)
        row["masked_lm_positions"] = tf.reshape(places_BP, [1, -1])
    return Laid(row, slots_T, [batch, length])


def _as_padded(name: str, value: tf.Tensor, laid: Laid, features: Tensors) -> tf.Tensor:
    batch, length = laid.shape
    if name in _BY_SEQUENCE:
        return value[0]
    if name in _BY_PREDICTION:
        return tf.reshape(value, [batch, -1, value.shape[-1]])
    if name not in _BY_TOKEN:
        raise ValueError(f"{name} is by token, by sequence or by prediction?")
    rows = tf.scatter_nd(laid.slots_T[:, None], value[0], [batch * length, *value.shape[2:]])
    return tf.reshape(rows, [batch, length, *value.shape[2:]])
