"""Multi-head self-attention."""

import tensorflow as tf

from official.modeling import layers

MASKED_SCORE = -10000.0  # Google's BERT; added to the scores of padding


def padding_scores(input_mask_BM) -> tf.Tensor:
    """Returns what is added to attention scores, float32 [B, 1, 1, M]: 0 for tokens, MASKED_SCORE for
    padding."""
    return (1.0 - tf.cast(input_mask_BM, tf.float32))[:, None, None, :] * MASKED_SCORE


def self_attention(qkv: layers.Affine, x_BLD, scores_B11M, heads: int, rate: float, seed, ops):
    """Query, key and value products and scaled dot-product attention; no output projection.

    Source: Vaswani et al. 2017, "Attention Is All You Need".

    Args:
      qkv: kernels of query, key and value side by side, [D, 3 x D], and their biases [3 x D].
      x_BLD: in the compute dtype.
      scores_B11M: `padding_scores`.
      heads: number of heads, which divides D.
      rate, seed: of the dropout of attention weights, as in `layers.dropout`.
      ops: `official.modeling.plain` or `.fused`.

    Returns:
      The heads' outputs side by side, [B, L, D] in the compute dtype.
    """
    _, length, hidden = layers.sizes(x_BLD)
    products_BL3D = tf.nn.bias_add(layers.matmul_2d(x_BLD, qkv.kernel), tf.cast(qkv.bias, x_BLD.dtype))
    products_BL3HK = tf.reshape(products_BL3D, [-1, length, 3, heads, hidden // heads])
    # unstack, not products[i]: the gradient of three slices is three padded tensors and their sum.
    parts = tf.unstack(tf.transpose(products_BL3HK, [2, 0, 3, 1, 4]), num=3)
    heads_BHLK = ops.attend(*parts, scores_B11M, rate, seed)
    return tf.reshape(tf.transpose(heads_BHLK, [0, 2, 1, 3]), [-1, length, hidden])
