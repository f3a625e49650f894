"""The BERT encoder: embeddings, a stack of post-LayerNorm blocks, and the pooler.

Source: Devlin et al. 2018, "BERT: Pre-training of Deep Bidirectional Transformers"; names and sizes of Google's code.
"""

import tensorflow as tf

from official.config import BertConfig
from official.modeling import attention
from official.modeling import fused as fused_ops
from official.modeling import layers
from official.modeling import plain as plain_ops
from official.modeling.embeddings import Embeddings

DROPOUT_SITES_PER_BLOCK = 3  # dropout places of one block: attention weights, attention output, feed-forward output


class ResidualOutput(tf.keras.layers.Layer):
    """LayerNorm(residual + dropout(dense(x))): how both halves of a block end. Scope `output`."""

    def __init__(self, config: BertConfig, in_size: int, dropout_site: int, ops):
        super().__init__(name="output")
        self._ops = ops
        self._dropout_rate, self._dropout_site = config.hidden_dropout_prob, dropout_site
        with tf.name_scope("output"):
            self.dense = layers.Dense("dense", in_size, config.hidden_size, config.initializer_range)
            self.layer_norm = layers.LayerNorm(config.hidden_size)

    def call(self, x, residual, dropout_seed=None):
        return self._ops.residual_norm(
            self.dense.product(x), self.dense.bias, residual, self.layer_norm.gamma, self.layer_norm.beta,
            self._dropout_rate, layers.site_seed(dropout_seed, self._dropout_site))


class EncoderBlock(tf.keras.layers.Layer):
    """Self-attention and feed-forward, each followed by residual and LayerNorm (post-LN)."""

    def __init__(self, config: BertConfig, index: int, ops):
        super().__init__(name=f"layer_{index}")
        site = 1 + index * DROPOUT_SITES_PER_BLOCK
        self._ops, self._activation = ops, config.hidden_act
        with tf.name_scope(f"layer_{index}"):
            with tf.name_scope("attention"):
                self.self_attention = attention.SelfAttention(config, site, ops)
                self.attention_output = ResidualOutput(config, config.hidden_size, site + 1, ops)
            self.intermediate = layers.Dense("intermediate/dense", config.hidden_size, config.intermediate_size, config.initializer_range)
            self.feed_forward_output = ResidualOutput(config, config.intermediate_size, site + 2, ops)

    def call(self, x_BLD, scores_B11M, dropout_seed=None):
        attended_BLD = self.self_attention(x_BLD, scores_B11M, dropout_seed=dropout_seed)
        x_BLD = self.attention_output(attended_BLD, x_BLD, dropout_seed=dropout_seed)
        inner_BLF = self._ops.bias_activation(self.intermediate.product(x_BLD), self.intermediate.bias, self._activation)
        return self.feed_forward_output(inner_BLF, x_BLD, dropout_seed=dropout_seed)


class BertEncoder(tf.keras.layers.Layer):
    """Token ids to one vector per token and one per sequence. All variables live under the scope `bert`."""

    def __init__(self, config: BertConfig, fused: bool = False):
        """Makes the encoder; `fused` takes the blocks of `official.modeling.fused`, equal to rounding."""
        super().__init__(name="bert")
        ops = fused_ops if fused else plain_ops
        with tf.name_scope("bert"):
            self.embeddings = Embeddings(config)
            with tf.name_scope("encoder"):
                self.blocks = [EncoderBlock(config, index, ops) for index in range(config.num_hidden_layers)]
            self.pooler = layers.Dense("pooler/dense", config.hidden_size, config.hidden_size, config.initializer_range)

    @property
    def word_embeddings(self):
        """The table [V, D] that the masked-LM head shares."""
        return self.embeddings.word_embeddings

    def call(self, input_ids_BL, input_mask_BL, segment_ids_BL, dropout_seed=None):
        """Encodes a batch.

        Args:
          input_ids_BL: int32 token ids.
          input_mask_BL: int32, 1 for tokens and 0 for padding.
          segment_ids_BL: int32, 0 for the first and 1 for the second segment.
          dropout_seed: int32 [2], or None to switch dropout off.

        Returns:
          (sequence [B, L, D] in the compute dtype, pooled [B, D] in float32).
        """
        scores_B11M = attention.padding_scores(input_mask_BL)
        x_BLD = self.embeddings(input_ids_BL, segment_ids_BL, dropout_seed=dropout_seed)
        x_BLD = tf.cast(x_BLD, self.compute_dtype)
        for block in self.blocks:
            x_BLD = block(x_BLD, scores_B11M, dropout_seed=dropout_seed)
        pooled_BD = tf.tanh(tf.cast(self.pooler(x_BLD[:, 0]), tf.float32))
        return x_BLD, pooled_BD
