"""The BERT encoder: embeddings, a stack of post-LayerNorm blocks, and the pooler.

Source: Devlin et al. 2018, "BERT: Pre-training of Deep Bidirectional Transformers"; names and sizes of Google's code.
"""

import functools
from typing import NamedTuple

import tensorflow as tf

from official.config import BertConfig
from official.modeling import attention, layers
from official.modeling import fused as fused_ops
from official.modeling import plain as plain_ops
from official.modeling.embeddings import Embeddings


class BlockWeights(NamedTuple):
    """The weights of a block, as tensors."""

    query: layers.Affine
    key: layers.Affine
    value: layers.Affine
    attention_output: layers.Affine
    attention_norm: layers.Norm
    intermediate: layers.Affine
    output: layers.Affine
    output_norm: layers.Norm


class EncoderBlock(tf.keras.layers.Layer):
    """The variables of a block; `run_block` is what it does."""

    def __init__(self, config: BertConfig, index: int):
        super().__init__(name=f"layer_{index}")
        dense = functools.partial(layers.Dense, stddev=config.initializer_range)
        hidden, inner = config.hidden_size, config.intermediate_size
        norm = functools.partial(layers.LayerNorm, hidden, config.layer_norm_eps)
        with tf.name_scope(f"layer_{index}"):
            with tf.name_scope("attention"):
                with tf.name_scope("self"):
                    self.query, self.key, self.value = (
                        dense(name, hidden, hidden) for name in ("query", "key", "value")
                    )
                with tf.name_scope("output"):
                    self.attention_output, self.attention_norm = dense("dense", hidden, hidden), norm()
            self.intermediate = dense("intermediate/dense", hidden, inner)
            with tf.name_scope("output"):
                self.output_dense, self.output_norm = dense("dense", inner, hidden), norm()

    def tensors(self) -> BlockWeights:
        parts = (
            self.query,
            self.key,
            self.value,
            self.attention_output,
            self.attention_norm,
            self.intermediate,
            self.output_dense,
            self.output_norm,
        )
        return BlockWeights(*(part.tensors() for part in parts))


def run_block(weights: BlockWeights, x_BLD, scores_B11M, dropout_seed, config: BertConfig, ops):
    """Self-attention and feed-forward, each followed by residual and LayerNorm (post-LN).

    Args:
      weights: of the block.
      x_BLD: in the compute dtype.
      scores_B11M: float32, `attention.padding_scores`.
      dropout_seed: int32 [2] of this block, or None.
      config: of the model.
      ops: `official.modeling.plain` or `.fused`.

    Returns:
      [B, L, D] in the compute dtype.
    """
    attention_seed, attended_seed, inner_seed = layers.split_seed(dropout_seed, 3)
    end = functools.partial(_add_and_norm, rate=config.hidden_dropout_prob, ops=ops)
    # Variables of their own (LAMB takes one trust ratio per variable, and the published recipe has three),
    # but one product.
    qkv = layers.Affine(
        *(tf.concat(parts, axis=-1) for parts in zip(weights.query, weights.key, weights.value))
    )
    attended_BLD = attention.self_attention(
        qkv,
        x_BLD,
        scores_B11M,
        config.num_attention_heads,
        config.attention_probs_dropout_prob,
        attention_seed,
        ops,
    )
    x_BLD = end(weights.attention_output, weights.attention_norm, attended_BLD, x_BLD, seed=attended_seed)
    inner_BLF = ops.bias_activation(
        layers.matmul_2d(x_BLD, weights.intermediate.kernel), weights.intermediate.bias, config.hidden_act
    )
    return end(weights.output, weights.output_norm, inner_BLF, x_BLD, seed=inner_seed)


def _add_and_norm(dense: layers.Affine, norm: layers.Norm, x, residual, rate: float, seed, ops):
    """Returns LayerNorm(residual + dropout(dense(x))): how both halves of a block end."""
    return ops.residual_norm(layers.matmul_2d(x, dense.kernel), dense.bias, residual, norm, rate, seed)


class BertEncoder(tf.keras.layers.Layer):
    """Token ids to one vector per token and one per sequence. All variables live under the scope `bert`."""

    def __init__(self, config: BertConfig, fused: bool = False, shared: bool = False):
        """Makes the encoder.

        Args:
          config: sizes and rates.
          fused: takes the operations of `official.modeling.fused`, equal to rounding.
          shared: makes the blocks one function that a graph calls with the weights of each. It is traced and
            optimised once, where BERT-large has 24 blocks. Not for functions with jit_compile: the shapes
            that the backward pass takes from the forward pass must be constants there.
        """
        super().__init__(name="bert")
        with tf.name_scope("bert"):
            self.embeddings = Embeddings(config)
            with tf.name_scope("encoder"):
                self.blocks = [EncoderBlock(config, index) for index in range(config.num_hidden_layers)]
            self.pooler = layers.Dense(
                "pooler/dense", config.hidden_size, config.hidden_size, config.initializer_range
            )
        block = functools.partial(run_block, config=config, ops=fused_ops if fused else plain_ops)
        self._run_block = layers.shared_function(block) if shared else block

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
          dropout_seed: int32 [N], or None to switch dropout off.

        Returns:
          (sequence [B, L, D] in the compute dtype, pooled [B, D] in float32).
        """
        embeddings_seed, *block_seeds = layers.split_seed(dropout_seed, 1 + len(self.blocks))
        scores_B11M = attention.padding_scores(input_mask_BL)
        x_BLD = tf.cast(
            self.embeddings(input_ids_BL, segment_ids_BL, dropout_seed=embeddings_seed), self.compute_dtype
        )
        for block, seed in zip(self.blocks, block_seeds):
            x_BLD = self._run_block(block.tensors(), x_BLD, scores_B11M, seed)
        pooled_BD = tf.tanh(tf.cast(self.pooler(x_BLD[:, 0]), tf.float32))
        return x_BLD, pooled_BD
