"""The block of BERT: self-attention and feed-forward, each followed by residual and LayerNorm (post-LN).

Source: Devlin et al. 2018, "BERT: Pre-training of Deep Bidirectional Transformers"; names and sizes of
Google's code.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import tensorflow as tf

from official.config import BertConfig
from official.modeling import attention, layers
from official.modeling.layers import split_seed
from official.modeling.operations import Operations

IS_NARROW = True


class Weights(NamedTuple):
    """The weights of a block, as tensors."""

    query: layers.Affine
    key: layers.Affine
    value: layers.Affine
    attention_output: layers.Affine
    attention_norm: layers.Norm
    intermediate: layers.Affine
    output: layers.Affine
    output_norm: layers.Norm


class Block(tf.keras.layers.Layer):
    """Variables of a block; `run` computes it."""

    def __init__(self, config: BertConfig, index: int):
        super().__init__(name=f"layer_{index}")
        dense = functools.partial(layers.Dense, stddev=config.initializer_range)
        hidden, inner = config.hidden_size, config.intermediate_size
        with tf.name_scope(f"layer_{index}"):
            with tf.name_scope("attention"):
                with tf.name_scope("self"):
                    bias: layers.Bias = "zeros" if config.use_qkv_bias else "none"
                    self.query = dense("query", hidden, hidden, bias=bias)
                    self.key = dense("key", hidden, hidden, bias=bias)
                    self.value = dense("value", hidden, hidden, bias=bias)
                with tf.name_scope("output"):
                    bias = "zeros" if config.use_attention_projection_bias else "none"
                    self.attention_output = dense("dense", hidden, hidden, bias=bias)
                    self.attention_norm = layers.LayerNorm(hidden)
            self.intermediate = dense("intermediate/dense", hidden, inner)
            with tf.name_scope("output"):
                self.output_dense = dense("dense", inner, hidden)
                self.output_norm = layers.LayerNorm(hidden)

    def tensors(self) -> Weights:
        attention_layers = self.query, self.key, self.value, self.attention_output, self.attention_norm
        parts = *attention_layers, self.intermediate, self.output_dense, self.output_norm
        return Weights._make(part.tensors() for part in parts)


def run(
    weights: Weights,
    x_BLD: tf.Tensor,
    context: attention.Context,
    seed: tf.Tensor | None,
    config: BertConfig,
    ops: Operations,
) -> tf.Tensor:
    """Runs a block.

    Args:
      weights: weights of the block.
      x_BLD: input vectors, in the compute dtype.
      context: masks and positions of the batch.
      seed: dropout seed of this block, int32 [2], or None.
      config: configuration of the model.
      ops: set of operations.

    Returns:
      [B, L, D] in the compute dtype, or [B, R, D] at the positions `context.reads_BR`.
    """
    attention_seed, attended_seed, inner_seed = split_seed(seed, 3)
    end = functools.partial(_add_and_norm, config=config, ops=ops)
    read_BLD = layers.picked(x_BLD, context.reads_BR)
    # Their variables are separate: LAMB has one trust ratio per variable, and the published recipe three.
    qkv = (weights.query, weights.key, weights.value)
    attended_BLD = attention.self_attention(qkv, (read_BLD, x_BLD), context, config, attention_seed, ops)
    x_BLD = end(weights.attention_output, weights.attention_norm, attended_BLD, read_BLD, seed=attended_seed)
    inner_BLF = layers.matmul_2d(x_BLD, weights.intermediate.kernel)
    inner_BLF = ops.bias_activation(inner_BLF, weights.intermediate.bias, config.hidden_act)
    return end(weights.output, weights.output_norm, inner_BLF, x_BLD, seed=inner_seed)


def _add_and_norm(
    dense: layers.Affine,
    norm: layers.Norm,
    x: tf.Tensor,
    residual: tf.Tensor,
    seed: tf.Tensor | None,
    config: BertConfig,
    ops: Operations,
) -> tf.Tensor:
    """Returns LayerNorm(residual + dropout(dense(x))), the end of both halves of a block."""
    product = layers.matmul_2d(x, dense.kernel)
    rate, epsilon = config.hidden_dropout_prob, config.layer_norm_eps
    return ops.residual_norm(product, layers.bias_of(dense), residual, norm, epsilon, rate, seed)
