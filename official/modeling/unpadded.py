"""A model's forward pass without padding: its cost follows the tokens of a batch, not its longest sequence.

The sequences of a batch are laid end to end in one row. Dense layers, LayerNorm and heads see tokens only,
and attention takes sequences of nearly one length together (`sequence_rows.find_ragged_places`). Outputs
stand where those of the padded batch do. All of it has gradients. How many tokens there are is known only
when it runs, so that this is nothing for functions that are compiled as a whole. For what is compiled in
parts, once a size, there are few sizes: the row is filled up to one of them (`counted.size_for`).

Shapes: T tokens of a batch with what fills them up; as everywhere B rows, L slots of a row, P predictions.
"""

from __future__ import annotations

from typing import NamedTuple

import tensorflow as tf

from official.config import BertConfig
from official.modeling import counted, sequence_rows, stages
from official.modeling.heads import predicted_first
from official.modeling.shapes import sizes
from official.modeling.stages import Staged, Tensors

_BY_TOKEN = ("sequence", "start_logits", "end_logits")
_BY_SEQUENCE = ("pooled", "logits", "next_sentence_logits")
_BY_PREDICTION = ("masked_lm_logits",)


class Laid(NamedTuple):
    """A batch end to end.

    Attributes:
      features: of one row, [1, T], [1, B] and [1, B x P or Q], as `BertEncoder.stages` reads them.
      slots: int32, in [0, B x L): where each token stood, without what fills them up.
      shape: B and L.
    """

    features: Tensors
    slots: tf.Tensor
    shape: list


def run(
    model: Staged,
    features: Tensors,
    config: BertConfig,
    dropout_seed: tf.Tensor | None = None,
    left_out: tuple[str, ...] = ("seen",),
) -> Tensors:
    """Runs all stages of a model on the tokens of a batch.

    Args:
      model: list of stages.
      features: `input_ids`, `input_mask` and `segment_ids` int32 [B, L], one sequence a row, and, where it
        has them, `position_ids` [B, L]; where the model predicts masked tokens, `masked_lm_positions` int32
        [B, P], or what `heads.predicted_first` reads. A row without tokens, or of 0 in `example_weights`
        float32 [B], counts as one token.
      config: sizes of the model.
      dropout_seed: int32 [N], or None to switch dropout off. Other numbers are dropped than with padding.
      left_out: names of tensors that are not returned.

    Returns:
      What the stages gave, in the shapes that the padded batch has it; zeros at padding. Where the batch has
      `masked_lm_weights` float32 [B, P], `masked_lm_logits` are those of the predictions that
      `counted.find` finds, [Q, V].
    """
    laid = lay_end_to_end(features, config.num_attention_heads)
    carried = stages.run(model, laid.features, dropout_seed)
    return {
        name: _as_padded(name, value, laid, features)
        for name, value in carried.items()
        if name not in left_out
    }


def lay_end_to_end(features: Tensors, heads: int) -> Laid:
    """Returns a batch of one sequence a row as one row without padding; arguments as of `run`."""
    mask_BL = _is_token(features)
    batch, length = sizes(mask_BL)
    is_token, lengths_B = tf.reshape(mask_BL, [-1]), tf.reduce_sum(tf.cast(mask_BL, tf.int32), axis=1)
    slots = tf.cast(tf.where(is_token)[:, 0], tf.int32)
    tokens = tf.size(slots)
    size = counted.size_for(tokens, batch * length)

    def filled(values):
        return tf.pad(values, [[0, size - tokens]])[None]

    def of_tokens(name):
        return filled(tf.gather(tf.reshape(features[name], [-1]), slots))

    def places_of(slots_BX):
        """Returns tokens' places among all. What fills up a row's slots may be padding."""
        before = tf.cumsum(tf.cast(is_token, tf.int32), exclusive=True)
        return tf.minimum(tf.gather(before, slots_BX + tf.range(batch)[:, None] * length), tokens - 1)

    row = {
        "input_ids": of_tokens("input_ids"),
        "segment_ids": of_tokens("segment_ids"),
        "input_mask": filled(tf.ones_like(slots)),
        "position_ids": of_tokens("position_ids") if "position_ids" in features else filled(slots % length),
        "sequence_ids": filled(slots // length + 1),
        "cls_positions": tf.reshape(places_of([[predicted_first(features)]]), [1, -1]),
        "places": sequence_rows.find_ragged_places(lengths_B, size, heads),
    }
    slots_BP = _predicted(features)
    if slots_BP is not None:
        row["masked_lm_positions"] = _counted(places_of(slots_BP), features)[None]
    return Laid(row, slots, [batch, length])


def _is_token(features: Tensors) -> tf.Tensor:
    """Returns bool [B, L]: what is computed. Of a row that has nothing to compute it is the first slot."""
    mask_BL = features["input_mask"] > 0
    weights_B = features.get("example_weights")
    if weights_B is not None:
        mask_BL &= weights_B[:, None] > 0
    is_first = tf.range(sizes(mask_BL)[1]) == 0
    return mask_BL | (~tf.reduce_any(mask_BL, axis=1, keepdims=True) & is_first)


def _predicted(features: Tensors) -> tf.Tensor | None:
    """Returns the slots of the predicted tokens, int32 [B or 1, P]; None where there are none."""
    first = predicted_first(features)
    return tf.range(first)[None] if first else features.get("masked_lm_positions")


def _counted(places_BP: tf.Tensor, features: Tensors) -> tf.Tensor:
    """Returns the places of the predictions that are made, flat."""
    if "masked_lm_weights" not in features:
        return tf.reshape(places_BP, [-1])
    return counted.pick(places_BP, counted.find(features["masked_lm_weights"]))


def _as_padded(name: str, value: tf.Tensor, laid: Laid, features: Tensors) -> tf.Tensor:
    batch, length = laid.shape
    if name in _BY_SEQUENCE:
        return value[0]
    if name in _BY_PREDICTION:
        is_all = "masked_lm_weights" not in features
        return tf.reshape(value, [batch, -1, value.shape[-1]]) if is_all else value[0]
    if name not in _BY_TOKEN:
        raise ValueError(f"{name} is by token, by sequence or by prediction?")
    of_tokens = value[0, : tf.size(laid.slots)]
    rows = tf.scatter_nd(laid.slots[:, None], of_tokens, [batch * length, *value.shape[2:]])
    return tf.reshape(rows, [batch, length, *value.shape[2:]])
