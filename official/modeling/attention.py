"""Multi-head self-attention, and which tokens see each other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from official.config import BertConfig
from official.modeling import layers, varlen
from official.modeling.layers import sizes, split_seed
from official.modeling.operations import Operations
from official.modeling.varlen import SequenceLayout

MASKED_SCORE = -10000.0  # Google's BERT; added to the scores of what a token does not see


class Context(NamedTuple):
    """Properties of a batch that blocks read beside its vectors.

    Attributes:
      seen: which tokens see each other, see `attention.seen`, or what the kind's `seen` and `sees` say.
      sequence_ids_BL: int32, the number of the sequence in its row that a token belongs to, from 1; 0 for
        padding.
      slots: what the kind's `slots` returns; None where it needs none, and for rows of one sequence.
      reads_BR: int32, in [0, L): which of the block's vectors anything reads; None for all.
    """

    seen: Any  # tf.Tensor | SequenceLayout, where the kind has no function of that name
    sequence_ids_BL: tf.Tensor
    slots: Any = None
    reads_BR: tf.Tensor | None = None


def seen(features: dict[str, tf.Tensor], config: BertConfig, by_sequence: bool) -> tf.Tensor | SequenceLayout:
    """Returns the mask of a batch, as `self_attention` reads it: which tokens see each other.

    Args:
      features: of a batch, as for `scores`. With `sequence_lengths` int32 [N], of sequences that lie end to
        end in one row, the result is their places.
      config: of the model.
      by_sequence: leaves out the scores of tokens in different sequences of a row, where the batch has
        `sequence_ids` of rows of `varlen.MIN_ROW_LENGTH` tokens or more. The number of sequences of a
        length is then a size that no compiled step can have.

    Returns:
      Their places, or `scores`.
    """
    layout = layout_of(features, config.num_attention_heads, by_sequence)
    return scores(features) if layout is None else layout


def layout_of(features: dict[str, tf.Tensor], heads: int, by_sequence: bool) -> SequenceLayout | None:
    """Returns the places of a batch's sequences where they are computed apart, else None; arguments as of
    `seen`."""
    if "sequence_lengths" in features:
        tokens = sizes(features["input_ids"])[1]
        return varlen.layout_end_to_end(features["sequence_lengths"], tokens, heads)
    ids_BL = features.get("sequence_ids")
    if by_sequence and ids_BL is not None and (ids_BL.shape[1] or 0) >= varlen.MIN_ROW_LENGTH:
        return varlen.layout_of_rows(ids_BL, heads)
    return None


def scores(features: dict[str, tf.Tensor]) -> tf.Tensor:
    """Returns the mask to add to attention scores, float32: 0 where a token sees another, else MASKED_SCORE.

    Args:
      features: of a batch. With `sequence_ids` (int32 [B, L]: 1, 2, ... for the sequences of a row, 0 for
        padding) a token sees its own sequence only; without, all that `input_mask` (int32 [B, L]) has not 0
        for.

    Returns:
      [B, 1, L, L] with `sequence_ids`, [B, 1, 1, L] without.
    """
    if "sequence_ids" in features:
        ids_BL = features["sequence_ids"]
        seen_BLM = tf.equal(ids_BL[:, :, None], ids_BL[:, None, :])
        return (1.0 - tf.cast(seen_BLM, tf.float32))[:, None] * MASKED_SCORE
    return padding_scores(features["input_mask"])


def padding_scores(input_mask_BM: tf.Tensor) -> tf.Tensor:
    """Returns the scores [B, 1, 1, M] of rows of one sequence: every token sees what is no padding."""
    return (1.0 - tf.cast(input_mask_BM, tf.float32))[:, None, None, :] * MASKED_SCORE


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
      qkv: of query, key and value, kernels [D, D] and biases [D].
      x: the vectors that ask, [B, R, D] at the context's `reads_BR` or all of them, and those that are seen,
        [B, L, D], in the compute dtype.
      context: of the batch: which tokens see each other, see `seen`. With places, padding gets zeros, and
        other weights than with scores are dropped.
      config: of the model.
      seed: of the dropout of attention weights, as in `layers.dropout`.
      ops: set of operations.

    Returns:
      The heads' outputs side by side, [B, R, D] in the compute dtype.
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
    """Returns the dense products of vectors, split into heads, each [B, H, L, K]."""
    whole = layers.side_by_side(parts)
    return ops.split_heads(layers.matmul_2d(x_BLD, whole.kernel), whole.bias, len(parts), heads)


def _scores_at(scores_B1LM: tf.Tensor, positions_BR: tf.Tensor | None) -> tf.Tensor:
    """Returns the mask's rows for the tokens at some positions, [B, 1, R or 1, M], or for all."""
    if positions_BR is None or scores_B1LM.shape[2] == 1:  # all tokens see the same
        return scores_B1LM
    # Of a size that is known only when it runs it may be 1 all the same.
    positions_BR = tf.minimum(positions_BR, tf.shape(scores_B1LM)[2] - 1)
    return tf.gather(scores_B1LM[:, 0], positions_BR, batch_dims=1)[:, None]


def by_sequence(
    products_BLE: tf.Tensor,
    places: SequenceLayout,
    heads: int,
    attend: Callable[..., tf.Tensor],
    seed: tf.Tensor | None,
) -> tf.Tensor:
    """Returns the heads' outputs side by side for all tokens, [B, L, D], from the products of query, key and
    value side by side, [B, L, 3 x D], where every sequence is a row of its own.

    Args:
      products_BLE: as above.
      places: of the sequences.
      heads: number of heads.
      attend: (query, key, value [N, H, W, K], bool [N, W]: what are tokens, seed) -> outputs [N, H, W, K].
      seed: of the dropout of attention weights.
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
