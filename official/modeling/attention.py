"""Multi-head self-attention, and which tokens see each other."""

from __future__ import annotations

import tensorflow as tf

from official.modeling import layers
from official.modeling.operations import Operations
from official.modeling.shapes import sizes

MASKED_SCORE = -10000.0  # Google's BERT; added to the scores of what a token does not see


def scores(features: dict[str, tf.Tensor]) -> tf.Tensor:
    """Returns what is added to attention scores, float32: 0 where a token sees another, else MASKED_SCORE.

    Args:
      features: of a batch. With `sequence_ids` (int32 [B, L]: 1, 2, ... for the sequences of a row, 0 for
        padding) a token sees its own sequence only; without, all that `input_mask` (int32 [B, L]) has not 0
        for.

    Returns:
      [B, 1, L, L] with `sequence_ids`, [B, 1, 1, L] without.
    """
    if "sequence_ids" in features:
        return sequence_scores(features["sequence_ids"])
    return padding_scores(features["input_mask"])


def padding_scores(input_mask_BM: tf.Tensor) -> tf.Tensor:
    """Returns the scores [B, 1, 1, M] of rows of one sequence: every token sees what is no padding."""
    return (1.0 - tf.cast(input_mask_BM, tf.float32))[:, None, None, :] * MASKED_SCORE


def sequence_scores(sequence_ids_BL: tf.Tensor) -> tf.Tensor:
    """Returns the scores [B, 1, L, L] of rows of several sequences: every token sees its own one."""
    seen_BLM = tf.equal(sequence_ids_BL[:, :, None], sequence_ids_BL[:, None, :])
    return (1.0 - tf.cast(seen_BLM, tf.float32))[:, None] * MASKED_SCORE


def self_attention(
    qkv: layers.Affine,
    x_BLD: tf.Tensor,
    scores_B1LM: tf.Tensor,
    heads: int,
    rate: float,
    seed: tf.Tensor | None,
    ops: Operations,
) -> tf.Tensor:
    """Query, key and value products and scaled dot-product attention; no output projection.

    Source: Vaswani et al. 2017, "Attention Is All You Need".

    Args:
      qkv: kernels of query, key and value side by side, [D, 3 x D], and their biases [3 x D].
      x_BLD: in the compute dtype.
      scores_B1LM: float32 [B, 1, L or 1, M], see `scores`.
      heads: number of heads, which divides D.
      rate, seed: of the dropout of attention weights, as in `dropout.dropout`.
      ops: set of operations.

    Returns:
      The heads' outputs side by side, [B, L, D] in the compute dtype.
    """
    _, length, hidden = sizes(x_BLD)
    products_BL3HK = tf.reshape(layers.dense(x_BLD, qkv), [-1, length, 3, heads, hidden // heads])
    # unstack, not products[i]: the gradient of three slices is three padded tensors and their sum.
    query, key, value = tf.unstack(tf.transpose(products_BL3HK, [2, 0, 3, 1, 4]), num=3)
    heads_BHLK = ops.attend(query, key, value, scores_B1LM, rate, seed)
    return tf.reshape(tf.transpose(heads_BHLK, [0, 2, 1, 3]), [-1, length, hidden])
