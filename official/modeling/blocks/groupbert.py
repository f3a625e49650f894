"""The block of GroupBERT: convolution, feed-forward, attention, feed-forward.

Each of these parts is x + dropout(f(LayerNorm(x))).

Source: Chelombiev et al. 2021, "GroupBERT: Enhanced Transformer Architecture with Efficient Grouped
Structures" (arXiv 2106.05822); names, sizes and first values of Graphcore's code.

The bias of the keys is a variable, for the sake of checkpoints, and stays zero: it adds the same to all
scores of a query, and the softmax takes it out.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import tensorflow as tf

from official.config import BertConfig
from official.modeling import attention, grouped_conv, layers
from official.modeling.blocks import Context
from official.modeling.layers import glorot_initializer, split_seed
from official.modeling.operations import Operations

IS_PRENORM = True
IS_NARROW = True


class ConvolutionWeights(NamedTuple):
    """The weights of the convolution: `weight` [K, G, D] of K taps and groups of G channels."""

    prenorm: layers.Norm
    values: layers.Affine
    gates: layers.Affine
    weight: tf.Tensor
    norm: layers.Norm
    post: layers.Affine


class FeedForwardWeights(NamedTuple):
    """The weights of a feed-forward layer: `output` has a kernel [F / groups, D]. One group: no `mixer`."""

    prenorm: layers.Norm
    intermediate: layers.Affine
    output: layers.Affine
    mixer: layers.Affine | None


class AttentionWeights(NamedTuple):
    """The weights of attention."""

    prenorm: layers.Norm
    query: layers.Affine
    key: layers.Affine
    value: layers.Affine
    projection: layers.Affine


class Weights(NamedTuple):
    """The weights of a block, as tensors."""

    convolution: ConvolutionWeights
    feed_forward_1: FeedForwardWeights
    attention: AttentionWeights
    feed_forward_2: FeedForwardWeights


class Block(tf.keras.layers.Layer):
    """The variables of a block; `run` is what it does."""

    def __init__(self, config: BertConfig, index: int):
        super().__init__(name=f"layer_{index}")
        with tf.name_scope(f"layer_{index}"):
            self.convolution = Convolution(config)
            self.feed_forward_1 = FeedForward(config, 1)
            self.attention = Attention(config)
            self.feed_forward_2 = FeedForward(config, 2)

    def tensors(self) -> Weights:
        return Weights(
            self.convolution.tensors(),
            self.feed_forward_1.tensors(),
            self.attention.tensors(),
            self.feed_forward_2.tensors(),
        )


class Convolution(tf.keras.layers.Layer):
    """The variables of `_convolve`."""

    def __init__(self, config: BertConfig):
        super().__init__(name="convolution")
        hidden, taps, size = (
            config.hidden_size,
            config.groupbert_conv_kernel_size,
            config.groupbert_conv_group_size,
        )
        dense = functools.partial(_dense, config, hidden, hidden)
        with tf.name_scope("convolution"):
            self.prenorm = _prenorm(config)
            self.values_dense = dense("pre/glu/values/dense")
            self.gates_dense = dense("pre/glu/gates/dense")
            with tf.name_scope("dwconv"):
                self.dwconv = self.add_weight(
                    name="weight", shape=(taps, size, hidden), initializer=glorot_initializer
                )
                self.norm = layers.LayerNorm(hidden)
            self.post = dense("post/dense")

    def tensors(self) -> ConvolutionWeights:
        return ConvolutionWeights(
            self.prenorm.tensors(),
            self.values_dense.tensors(),
            self.gates_dense.tensors(),
            layers.read(self.dwconv, self.compute_dtype),
            self.norm.tensors(),
            self.post.tensors(),
        )


class FeedForward(tf.keras.layers.Layer):
    """The variables of `_feed_forward`; `number` is that in the block."""

    def __init__(self, config: BertConfig, number: int):
        super().__init__(name=f"feed_forward_{number}")
        hidden, inner, groups = (
            config.hidden_size,
            config.intermediate_size,
            config.groupbert_ffn_output_groups,
        )
        with tf.name_scope(f"feed_forward_{number}"):
            self.prenorm = _prenorm(config)
            self.intermediate = _dense(config, hidden, inner, "intermediate/dense")
            self.output_dense = _dense(config, inner // groups, hidden, "output/dense", "normal")
            self.mixer = _dense(config, hidden, hidden, "output/mixer/dense") if groups > 1 else None

    def tensors(self) -> FeedForwardWeights:
        return FeedForwardWeights(
            self.prenorm.tensors(),
            self.intermediate.tensors(),
            self.output_dense.tensors(),
            None if self.mixer is None else self.mixer.tensors(),
        )


class Attention(tf.keras.layers.Layer):
    """The variables of `_attend`."""

    def __init__(self, config: BertConfig):
        super().__init__(name="attention")
        dense = functools.partial(_dense, config, config.hidden_size, config.hidden_size)
        with_bias = config.use_qkv_bias
        with tf.name_scope("attention"):
            self.prenorm = _prenorm(config)
            self.query = dense("self/query", "zeros" if with_bias else "none")
            self.key = dense("self/key", "frozen" if with_bias else "none")
            self.value = dense("self/value", "zeros" if with_bias else "none")
            with_bias = config.use_attention_projection_bias
            self.projection = dense("projection/dense", "zeros" if with_bias else "none")

    def tensors(self) -> AttentionWeights:
        return AttentionWeights(
            self.prenorm.tensors(),
            self.query.tensors(),
            self.key.tensors(),
            self.value.tensors(),
            self.projection.tensors(),
        )


def _dense(
    config: BertConfig,
    in_size: int,
    out_size: int,
    scope: str,
    bias: layers.Bias = "zeros",
) -> layers.Dense:
    return layers.Dense(scope, in_size, out_size, config.initializer_range, bias)


def _prenorm(config: BertConfig) -> layers.LayerNorm:
    with tf.name_scope("prenorm"):
        return layers.LayerNorm(config.hidden_size)


def slots(features: dict[str, tf.Tensor], config: BertConfig) -> grouped_conv.Slots | None:
    """Returns the slots that keep sequences of a row as far apart as the convolution reaches."""
    return grouped_conv.find_slots(features, config.groupbert_conv_kernel_size // 2)


def run(
    weights: Weights,
    x_BLD: tf.Tensor,
    context: Context,
    seed: tf.Tensor | None,
    config: BertConfig,
    ops: Operations,
) -> tf.Tensor:
    """Runs a block; arguments as those of `bert.run`.

    Returns:
      [B, L, D] in the compute dtype, or [B, R, D], not normalised.
    """
    *seeds, weights_seed = split_seed(seed, 5)
    make: dict[str, Any] = {"config": config, "ops": ops}
    parts: tuple = (
        (weights.convolution, functools.partial(_convolve, context=context, **make)),
        (weights.feed_forward_1, functools.partial(_feed_forward, **make)),
        (weights.attention, functools.partial(_attend, context=context, seed=weights_seed, **make)),
        (weights.feed_forward_2, functools.partial(_feed_forward, **make)),
    )
    for (own, function), part_seed in zip(parts, seeds):
        normal_BLD = ops.norm(x_BLD, own.prenorm, config.layer_norm_eps, swish=False)
        y_BLD, last = function(own, normal_BLD)
        if own is weights.attention:  # behind it no vector needs another one
            x_BLD = layers.picked(x_BLD, context.reads_BR)
        product_BLD = layers.matmul_2d(y_BLD, last.kernel)
        x_BLD = ops.residual(product_BLD, layers.bias_of(last), x_BLD, config.hidden_dropout_prob, part_seed)
    return x_BLD


# Each returns vectors and the dense product that makes its result of them.
def _convolve(
    weights: ConvolutionWeights, x_BLD: tf.Tensor, context: Context, config: BertConfig, ops: Operations
) -> tuple[tf.Tensor, layers.Affine]:
    """Gated unit, convolution in groups, LayerNorm, swish. Padding and other sequences count as zeros."""
    both = layers.side_by_side((weights.values, weights.gates))
    y_BLD = ops.gate(layers.matmul_2d(x_BLD, both.kernel), layers.bias_of(both))
    if context.slots is None:
        y_BLD = y_BLD * tf.cast(context.sequence_ids_BL > 0, y_BLD.dtype)[:, :, None]
        y_BLD = grouped_conv.convolution(y_BLD, weights.weight)
    else:
        spread = grouped_conv.spread(y_BLD, context.slots)
        y_BLD = grouped_conv.collect(grouped_conv.convolution(spread, weights.weight), context.slots)
    return ops.norm(y_BLD, weights.norm, config.layer_norm_eps, swish=True), weights.post


def _feed_forward(
    weights: FeedForwardWeights, x_BLD: tf.Tensor, config: BertConfig, ops: Operations
) -> tuple[tf.Tensor, layers.Affine]:
    """Dense product, activation, and projection in groups, whose parts the last product mixes."""
    groups = config.groupbert_ffn_output_groups
    pairs = zip(
        grouped_conv.columns(weights.intermediate.kernel, groups),
        tf.split(layers.bias_of(weights.intermediate), groups),
    )
    parts = [
        ops.bias_activation(layers.matmul_2d(x_BLD, kernel), bias, config.hidden_act)
        for kernel, bias in pairs
    ]
    if weights.mixer is None:
        return parts[0], weights.output
    return grouped_conv.projection(parts, weights.output), weights.mixer


def _attend(
    weights: AttentionWeights,
    x_BLD: tf.Tensor,
    context: Context,
    seed: tf.Tensor | None,
    config: BertConfig,
    ops: Operations,
) -> tuple[tf.Tensor, layers.Affine]:
    """Multi-head self-attention."""
    qkv, read_BLD = (weights.query, weights.key, weights.value), layers.picked(x_BLD, context.reads_BR)
    heads_BLD = attention.self_attention(qkv, (read_BLD, x_BLD), context, config, seed, ops)
    return heads_BLD, weights.projection
