"""Multi-head self-attention."""

import tensorflow as tf

from official.config import BertConfig
from official.modeling import layers

MASKED_SCORE = -10000.0  # Google's BERT; added to the scores of padding


def padding_scores(input_mask_BM) -> tf.Tensor:
    """Returns what is added to attention scores, float32 [B, 1, 1, M]: 0 for tokens, MASKED_SCORE for padding."""
    return (1.0 - tf.cast(input_mask_BM, tf.float32))[:, None, None, :] * MASKED_SCORE


class SelfAttention(tf.keras.layers.Layer):
    """Query, key and value products, scaled dot-product attention; no output projection.

    The three kernels are variables of their own (LAMB takes one trust ratio per variable, and the published recipe has
    three) but are multiplied in one product. Source: Vaswani et al. 2017, "Attention Is All You Need".
    """

    def __init__(self, config: BertConfig, dropout_site: int, ops):
        super().__init__(name="self")
        self._ops = ops
        self._heads, self._head_size = config.num_attention_heads, config.head_size
        self._dropout_rate, self._dropout_site = config.attention_probs_dropout_prob, dropout_site
        hidden = config.hidden_size
        with tf.name_scope("self"):
            self.query = layers.Dense("query", hidden, hidden, config.initializer_range)
            self.key = layers.Dense("key", hidden, hidden, config.initializer_range)
            self.value = layers.Dense("value", hidden, hidden, config.initializer_range)

    def call(self, x_BLD, scores_B11M, dropout_seed=None):
        """Returns the heads' outputs side by side, [B, L, D] in the compute dtype."""
        heads_BHLK = self._ops.attend(
            *self._project(x_BLD), scores_B11M, self._dropout_rate, layers.site_seed(dropout_seed, self._dropout_site))
        return tf.reshape(tf.transpose(heads_BHLK, [0, 2, 1, 3]), [-1, *layers.sizes(x_BLD)[1:]])

    def _project(self, x_BLD):
        parts = (self.query, self.key, self.value)
        kernel = tf.concat([tf.cast(part.kernel, x_BLD.dtype) for part in parts], axis=1)
        bias = tf.concat([tf.cast(part.bias, x_BLD.dtype) for part in parts], axis=0)
        length = layers.sizes(x_BLD)[1]
        qkv_BL3HK = tf.reshape(tf.nn.bias_add(layers.matmul_2d(x_BLD, kernel), bias), [-1, length, 3, self._heads, self._head_size])
        # unstack, not qkv[i]: the gradient of three slices is three padded tensors and their sum.
        return tf.unstack(tf.transpose(qkv_BL3HK, [2, 0, 3, 1, 4]), num=3)
