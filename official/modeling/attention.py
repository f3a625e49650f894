"""Multi-head self-attention and its masks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from official.config import BertConfig
from official.modeling import layers, varlen
from official.modeling.layers import sizes, split_seed
from official.modeling.operations import Operations
from official.modeling.varlen import SequenceLayout

MASKED_SCORE = -10000.0  # Google's BERT; added to the scores of tokens that are masked


class Context(NamedTuple):
    """Inputs of a block in addition to the token vectors.

    Attributes:
      seen: attention mask, see `attention.seen`, or the result of the block type's `seen` and `sees`.
      sequence_ids_BL: int32, index of a token's sequence in its row, from 1; 0 for padding.
      slots: result of the block type's `slots`; None without it, and for rows of one sequence.
      reads_BR: int32, in [0, L): positions whose output vectors are read; None for all.
    """

    seen: Any  # tf.Tensor | SequenceLayout, unless the block type defines `seen`
    sequence_ids_BL: tf.Tensor
    slots: Any = None
    reads_BR: tf.Tensor | None = None


def seen(features: dict[str, tf.Tensor], config: BertConfig, by_sequence: bool) -> tf.Tensor | SequenceLayout:
    """Returns the attention mask of a batch, for `self_attention`.

    Args:
      features: the batch, as for `scores`. With `sequence_lengths` int32 [N], for sequences concatenated into
        one row, the result is their layout.
      config: configuration of the model.
      by_sequence: skip the scores between different sequences of a row, if the batch has `sequence_ids` and
        rows of `varlen.MIN_ROW_LENGTH` tokens or more. The shapes then depend on the lengths of the
        sequences, so the step cannot be compiled as a whole.

    Returns:
      The layout of the sequences, or the mask `scores`.
    """
    layout = layout_of(features, config.num_attention_heads, by_sequence)
    return scores(features) if layout is None else layout


def layout_of(features: dict[str, tf.Tensor], heads: int, by_sequence: bool) -> SequenceLayout | None:
    """Returns the layout of a batch's sequences if attention is computed per sequence, otherwise None;
    arguments as in `seen`."""
    if "sequence_lengths" in features:
        tokens = sizes(features["input_ids"])[1]
        return varlen.layout_end_to_end(features["sequence_lengths"], tokens, heads)
    ids_BL = features.get("sequence_ids")
    if by_sequence and ids_BL is not None and (ids_BL.shape[1] or 0) >= varlen.MIN_ROW_LENGTH:
        return varlen.layout_of_rows(ids_BL, heads)
    return None


def scores(features: dict[str, tf.Tensor]) -> tf.Tensor:
    """Returns the additive attention mask, float32: 0 where a token attends to another, otherwise
    MASKED_SCORE.

    Args:
      features: the batch. With `sequence_ids` (int32 [B, L]: 1, 2, ... for the sequences of a row, 0 for
        padding) a token attends only to its own sequence, otherwise to all tokens whose `input_mask` (int32
        [B, L]) is not 0.

    Returns:
      [B, 1, L, L] with `sequence_ids`, [B, 1, 1, L] without.
    """
    if "sequence_ids" in features:
        ids_BL = features["sequence_ids"]
        return masking(tf.equal(ids_BL[:, :, None], ids_BL[:, None, :]))
    return padding_scores(features["input_mask"])


def padding_scores(input_mask_BM: tf.Tensor) -> tf.Tensor:
    """Returns the additive mask [B, 1, 1, M] for rows of one sequence, which masks padding only."""
    # In this order of operations, which ONNX Runtime's fused attention looks for.
    return (1.0 - tf.cast(input_mask_BM, tf.float32))[:, None, None, :] * MASKED_SCORE


def masking(is_seen_BLM: tf.Tensor) -> tf.Tensor:
    """Returns the additive mask of scores, float32 [B, 1, L, M], from bool [B, L, M]."""
    return (1.0 - tf.cast(is_seen_BLM, tf.float32))[:, None] * MASKED_SCORE


def self_attention(
    qkv: Sequence[layers.Affine],
    x: tuple[tf.Tensor, tf.Tensor],
    context: Context,
    config: BertConfig,
    seed: tf.Tensor | None,
    ops: Operations,
) -> tf.Tensor:
    """Query, key and value products and scaled dot-product attention; no output projection.

    Source: Vaswani et al. 2017, "Attention Is All You Need".

    Args:
      qkv: projections of query, key and value, kernels [D, D] and biases [D].
      x: the vectors of the queries, [B, R, D] at the context's `reads_BR` or all, and those of keys and
        values, [B, L, D], in the compute dtype.
      context: the mask of the batch, see `seen`. With a layout instead of a mask, outputs of padding are
        zero, and the dropout masks differ.
      config: configuration of the model.
      seed: seed of the dropout of attention probabilities, as in `layers.dropout`.
      ops: set of operations.

    Returns:
      The concatenated outputs of the heads, [B, R, D] in the compute dtype.
    """
    asking, x_BLD = x
    heads, rate, reads_BR = config.num_attention_heads, config.attention_probs_dropout_prob, context.reads_BR
    if isinstance(context.seen, SequenceLayout):
        products_BLE = layers.dense(x_BLD, layers.side_by_side(qkv))

        def attend(query, key, value, is_token_NW, seed):
            return ops.attend(query, key, value, padding_scores(is_token_NW), rate, seed)

        outputs_BLD = by_sequence(products_BLE, context.seen, heads, attend, seed)
        return layers.picked(outputs_BLD, reads_BR)
    if reads_BR is None:
        query, key, value = _by_head(x_BLD, qkv, heads, ops)
    else:
        query, key, value = _by_head(asking, qkv[:1], heads, ops) + _by_head(x_BLD, qkv[1:], heads, ops)
    return ops.join_heads(ops.attend(query, key, value, _scores_at(context.seen, reads_BR), rate, seed))


def _by_head(
    x_BLD: tf.Tensor, parts: Sequence[layers.Affine], heads: int, ops: Operations
) -> list[tf.Tensor]:
    """Returns dense projections of vectors, split into heads, each [B, H, L, K]."""
    whole = layers.side_by_side(parts)
    return ops.split_heads(layers.matmul_2d(x_BLD, whole.kernel), whole.bias, len(parts), heads)


def _scores_at(scores_B1LM: tf.Tensor, positions_BR: tf.Tensor | None) -> tf.Tensor:
    """Returns the mask's rows for the tokens at some positions, [B, 1, R or 1, M], or for all."""
    if positions_BR is None or scores_B1LM.shape[2] == 1:  # the same for all tokens
        return scores_B1LM
    # A dynamic size may also be 1.
    positions_BR = tf.minimum(positions_BR, tf.shape(scores_B1LM)[2] - 1)
    return tf.gather(scores_B1LM[:, 0], positions_BR, batch_dims=1)[:, None]


def by_sequence(
    products_BLE: tf.Tensor,
    places: SequenceLayout,
    heads: int,
    attend: Callable[..., tf.Tensor],
    seed: tf.Tensor | None,
) -> tf.Tensor:
    """Returns the concatenated outputs of the heads for all tokens, [B, L, D], from the concatenated products
    of query, key and value, [B, L, 3 x D], computed with each sequence in a separate row.

    Args:
      products_BLE: products of query, key and value.
      places: layout of the sequences.
      heads: number of heads.
      attend: function (query, key, value [N, H, W, K], bool [N, W]: mask of tokens, seed) -> outputs
        [N, H, W, K].
      seed: seed of the dropout of attention probabilities.
    """
    _, length, columns = sizes(products_BLE)
    size = columns // (3 * heads)
    parts = varlen.split_sequences(tf.reshape(products_BLE, [-1, size]), places.products)
    outputs = []
    for part, is_token_NW, part_seed in zip(parts, places.is_token_NW, split_seed(seed, len(parts))):
        width = sizes(is_token_NW)[1]
        query, key, value = tf.unstack(tf.reshape(part, [3, -1, heads, width, size]), num=3)
        output_NHWK = attend(query, key, value, is_token_NW, part_seed)
        outputs.append(tf.reshape(output_NHWK, [-1, size]))
    together = varlen.join_sequences(outputs, places.heads)
    return tf.reshape(together, [-1, length, columns // 3])
