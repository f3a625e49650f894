"""The block of GroupBERT: convolution, feed-forward, attention, feed-forward.

Each of these parts is x + dropout(f(LayerNorm(x))).

Source: Chelombiev et al. 2021, "GroupBERT: Enhanced Transformer Architecture with Efficient Grouped
Structures" (arXiv 2106.05822); names, sizes and initial values as in Graphcore's code.

The bias of the keys is a variable, for compatible checkpoints, and stays zero: it adds the same to all scores
of a query, and the softmax cancels it.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import tensorflow as tf

from official.config import BertConfig
from official.modeling import attention, layers
from official.modeling.layers import Affine, glorot_initializer, matmul_2d, sizes, split_seed
from official.modeling.operations import Operations

# -----------------------------------------------------------------------------------------------------------
# Sequences of packed rows, separated by empty slots
#
# A row of L tokens becomes one of W slots. Each sequence has consecutive slots in the order of its tokens,
# independently of their positions in the row: some records have every [CLS] at the end of the row, with
# `position_ids` that mark it as the first token of its sequence. Between two sequences, and after the last,
# slots are empty. So tokens have the same neighbours as in a separate row.


class Slots(NamedTuple):
    """Assignment of tokens to slots.

    Attributes:
      tokens_BW: int32, position in the row of the token in a slot; L for an empty slot.
      slots_BL: int32, slot of a token; W for padding, which has none.
    """

    tokens_BW: tf.Tensor
    slots_BL: tf.Tensor


def find_slots(features: dict[str, tf.Tensor], gap: int) -> Slots | None:
    """Returns the slots of a batch, with `gap` empty ones between sequences.

    Args:
      features: the batch. `sequence_ids` int32 [B, L] are 1, 2, .. S for the sequences of a row and 0 for
        padding; `position_ids` int32 [B, L], in [0, L), determine the order in each, by default the position
        in the row. S is the number of `cls_positions` [B, S] or, without these, the maximum of
        `sequence_ids`.
      gap: number of empty slots.

    Returns:
      W = L + gap x (S - 1) slots per row; None without `sequence_ids`, for rows of one sequence.
    """
    if "sequence_ids" not in features:
        return None
    ids_BL = features["sequence_ids"]
    batch, length = sizes(ids_BL)
    if "cls_positions" in features:
        most = sizes(features["cls_positions"])[1]
    else:
        most = tf.maximum(tf.reduce_max(ids_BL), 1)
    width = length + gap * (most - 1)
    positions = features.get("position_ids", tf.range(length)[None])
    keys_BL = tf.where(ids_BL > 0, ids_BL, most + 1) * length + positions
    order_BL = tf.argsort(keys_BL, stable=True)
    sorted_BL = tf.gather(ids_BL, order_BL, batch_dims=1)
    slots_BL = tf.where(sorted_BL > 0, tf.range(length) + gap * (sorted_BL - 1), width)
    return Slots(
        _put(slots_BL, order_BL, width + 1, empty=length)[:, :-1],
        _put(order_BL, slots_BL, length, empty=width),
    )


def _put(places_BL: tf.Tensor, values_BL: tf.Tensor, width: int | tf.Tensor, empty: int | tf.Tensor):
    """Returns int32 [B, width]: each value at its position, and `empty` elsewhere."""
    batch, _ = sizes(places_BL)
    flat = tf.reshape(places_BL + tf.range(batch)[:, None] * width, [-1, 1])
    # Positions without a value are 0. All padding shares one position, which is never read.
    put = tf.scatter_nd(flat, tf.reshape(values_BL - empty, [-1]), [batch * width])
    return tf.reshape(put, [batch, width]) + empty


def _move(x: tf.Tensor, places: tf.Tensor, back: tf.Tensor) -> tf.Tensor:
    """Returns the vectors of each row at `places`, zeros for places after its end. `back` is the inverse,
    used by the gradient."""

    @tf.custom_gradient
    def move(x):
        return _pick(x, places), lambda upstream: _pick(upstream, back)

    return move(x)


def _pick(x: tf.Tensor, places: tf.Tensor) -> tf.Tensor:
    batch, count, size = sizes(x)
    flat = tf.minimum(places, count - 1) + tf.range(batch)[:, None] * count
    picked = tf.gather(tf.reshape(x, [-1, size]), flat)
    return tf.where((places < count)[..., None], picked, tf.zeros([], x.dtype))


# -----------------------------------------------------------------------------------------------------------
# Grouped products
#
# Both are batches of dense products. TensorFlow has a grouped convolution, but on CPUs without oneDNN no
# gradient for it. One product per tap, with a group's few channels, is slow everywhere; here one product
# computes a block of tokens, which takes 1.4 times the multiplications and an eighth of the time.


_BLOCK = 4  # tokens per product; 2 and 8 take 1.7 times as long with 7 taps of 16 channels


def projection(parts_BLI: list[tf.Tensor], weights: Affine) -> tf.Tensor:
    """Returns the concatenated projections of the groups, each of one part of the channels.

    Args:
      parts_BLI: [B, L, in / groups], one per group.
      weights: kernel [in / groups, out]: each group has separate out / groups columns. Bias [out].

    Returns:
      [B, L, out], in the type of the parts.
    """
    kernels = columns(weights.kernel, len(parts_BLI))
    joined = tf.concat([matmul_2d(part, kernel) for part, kernel in zip(parts_BLI, kernels)], axis=-1)
    return joined if weights.bias is None else tf.nn.bias_add(joined, tf.cast(weights.bias, joined.dtype))


def columns(kernel: tf.Tensor, groups: int) -> list[tf.Tensor]:
    """Returns the columns [in, out / groups] of each group of a kernel [in, out]."""
    parts = tf.reshape(kernel, [kernel.shape[0], groups, -1])
    # tf.split takes five times as long along the last axis.
    return tf.unstack(tf.transpose(parts, [1, 0, 2]), num=groups)


def convolution(x_BLD: tf.Tensor, weight_KGD: tf.Tensor) -> tf.Tensor:
    """Convolves along a row, padded with zeros on both sides.

    Args:
      x_BLD: input in the compute dtype.
      weight_KGD: K taps, an odd number, the middle one for the token itself; G channels per group, a divisor
        of D.

    Returns:
      y [B, L, D]: y[l, c] = sum over k, g of x[l + k - K // 2, first channel of the group of c, + g] x
      weight[k, g, c].
    """
    weight_KGD = tf.cast(weight_KGD, x_BLD.dtype)

    @tf.custom_gradient
    def convolve(x, weight):
        def gradient(upstream):
            # The blocks are recomputed, since they are 2.5 times as large as x.
            return _convolve(upstream, _backward(weight)), _weight_gradient(x, upstream, weight.shape)

        return _convolve(x, weight), gradient

    return convolve(x_BLD, weight_KGD)


def _convolve(x: tf.Tensor, weight: tf.Tensor) -> tf.Tensor:
    taps, size, hidden = weight.shape
    products = tf.matmul(_windows(x, taps, size), _block_matrix(weight))
    batch, length, _ = sizes(x)
    block = _block_of(taps)
    y = tf.reshape(products, [hidden // size, batch, -1, block, size])
    y = tf.reshape(tf.transpose(y, [1, 2, 3, 0, 4]), [batch, -1, hidden])[:, :length]
    return tf.reshape(y, [batch, length, hidden])


def _block_of(taps: int) -> int:
    """Returns the tokens per block: a token's neighbours are in its block or the adjacent ones."""
    return max(_BLOCK, taps // 2)


def _in_blocks(x: tf.Tensor, taps: int, size: int) -> tf.Tensor:
    """Returns x as [groups, B, blocks, tokens of a block, channels of a group], with zeros at the end."""
    batch, length, hidden = sizes(x)
    block = _block_of(taps)
    # Not -length % block: tf2onnx translates it with another remainder for negative numbers.
    x = tf.pad(x, [[0, 0], [0, block - 1 - (length - 1) % block], [0, 0]])
    return tf.transpose(tf.reshape(x, [batch, -1, block, hidden // size, size]), [3, 0, 1, 2, 4])


def _windows(x: tf.Tensor, taps: int, size: int) -> tf.Tensor:
    """Returns the window of each block: itself and `taps // 2` tokens on either side, as [groups, B x blocks,
    tokens x channels]."""
    block, reach = _block_of(taps), taps // 2
    blocks = _in_blocks(x, taps, size)
    before, after = blocks[:, :, :-1, block - reach :], blocks[:, :, 1:, :reach]
    sides = [[0, 0], [0, 0], [1, 0], [0, 0], [0, 0]], [[0, 0], [0, 0], [0, 1], [0, 0], [0, 0]]
    seen = tf.concat([tf.pad(before, sides[0]), blocks, tf.pad(after, sides[1])], axis=3)
    return tf.reshape(seen, [seen.shape[0], -1, (block + 2 * reach) * size])


def _block_matrix(weight: tf.Tensor) -> tf.Tensor:
    """Returns the weight as a product of a block's window: [groups, window x channels, block x channels]."""
    taps, size, hidden = weight.shape
    block = _block_of(taps)
    shifted = [tf.pad(weight, [[first, block - 1 - first], [0, 0], [0, 0]]) for first in range(block)]
    matrix = tf.reshape(tf.stack(shifted), [block, -1, size, hidden // size, size])
    matrix = tf.transpose(matrix, [3, 1, 2, 0, 4])  # [groups, window, in, block, out]
    return tf.reshape(matrix, [hidden // size, -1, block * size])


def _backward(weight: tf.Tensor) -> tf.Tensor:
    """Returns the weight of the backward pass: taps in reverse, input and output channels swapped."""
    taps, size, hidden = weight.shape
    parts = tf.reshape(tf.reverse(weight, [0]), [taps, size, hidden // size, size])
    return tf.reshape(tf.transpose(parts, [0, 3, 2, 1]), [taps, size, hidden])


def _weight_gradient(x: tf.Tensor, upstream: tf.Tensor, shape: tf.TensorShape) -> tf.Tensor:
    """Returns the gradient of the weight: that of the block matrix, summed over its repetitions of a
    number."""
    taps, size, hidden = shape
    block, groups = _block_of(taps), hidden // size
    given = tf.reshape(_in_blocks(upstream, taps, size), [groups, -1, block * size])
    of_matrix = tf.matmul(_windows(x, taps, size), given, transpose_a=True)
    of_matrix = tf.reshape(of_matrix, [groups, -1, size, block, size])
    total = tf.add_n([of_matrix[:, first : first + taps, :, first] for first in range(block)])
    return tf.reshape(tf.transpose(total, [1, 2, 0, 3]), [taps, size, hidden])


# -----------------------------------------------------------------------------------------------------------
# Block
#
# Each of these parts is x + dropout(f(LayerNorm(x))).
#
# Source: Chelombiev et al. 2021, "GroupBERT: Enhanced Transformer Architecture with Efficient Grouped
# Structures" (arXiv 2106.05822); names, sizes and initial values as in Graphcore's code.
#
# The bias of the keys is a variable, for compatible checkpoints, and stays zero: it adds the same to all
# scores of a query, and the softmax cancels it.


IS_PRENORM = True
IS_NARROW = True


class ConvolutionWeights(NamedTuple):
    """The weights of the convolution: `weight` [K, G, D] with K taps and groups of G channels."""

    prenorm: layers.Norm
    values: layers.Affine
    gates: layers.Affine
    weight: tf.Tensor
    norm: layers.Norm
    post: layers.Affine


class FeedForwardWeights(NamedTuple):
    """The weights of a feed-forward layer: `output` has a kernel [F / groups, D]; with one group there is no
    `mixer`."""

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
    """Variables of a block; `run` computes it."""

    def __init__(self, config: BertConfig, index: int):
        super().__init__(name=f"layer_{index}")
        with tf.name_scope(f"layer_{index}"):
            self.convolution = Convolution(config)
            self.feed_forward_1 = FeedForward(config, 1)
            self.attention = Attention(config)
            self.feed_forward_2 = FeedForward(config, 2)

    def tensors(self) -> Weights:
        parts = self.convolution, self.feed_forward_1, self.attention, self.feed_forward_2
        return Weights._make(part.tensors() for part in parts)


class Convolution(tf.keras.layers.Layer):
    """The variables of `_gated_convolution`."""

    def __init__(self, config: BertConfig):
        super().__init__(name="convolution")
        hidden, taps = config.hidden_size, config.groupbert_conv_kernel_size
        dense = functools.partial(_dense, config, hidden, hidden)
        with tf.name_scope("convolution"):
            self.prenorm = _prenorm(config)
            self.values_dense = dense("pre/glu/values/dense")
            self.gates_dense = dense("pre/glu/gates/dense")
            with tf.name_scope("dwconv"):
                self.dwconv = self.add_weight(
                    name="weight",
                    shape=(taps, config.groupbert_conv_group_size, hidden),
                    initializer=glorot_initializer,
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
    """The variables of `_feed_forward`; `number` is its number in the block."""

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
        parts = self.prenorm, self.query, self.key, self.value, self.projection
        return AttentionWeights._make(part.tensors() for part in parts)


def _dense(
    config: BertConfig, in_size: int, out_size: int, scope: str, bias: layers.Bias = "zeros"
) -> layers.Dense:
    return layers.Dense(scope, in_size, out_size, config.initializer_range, bias)


def _prenorm(config: BertConfig) -> layers.LayerNorm:
    with tf.name_scope("prenorm"):
        return layers.LayerNorm(config.hidden_size)


def slots(features: dict[str, tf.Tensor], config: BertConfig) -> Slots | None:
    """Returns the slots that separate the sequences of a row by the reach of the convolution."""
    return find_slots(features, config.groupbert_conv_kernel_size // 2)


def run(
    weights: Weights,
    x_BLD: tf.Tensor,
    context: attention.Context,
    seed: tf.Tensor | None,
    config: BertConfig,
    ops: Operations,
) -> tf.Tensor:
    """Runs a block; arguments as in `bert.run`.

    Returns:
      [B, L, D] in the compute dtype, or [B, R, D], not normalised.
    """
    *seeds, weights_seed = split_seed(seed, 5)
    make: dict[str, Any] = {"config": config, "ops": ops}
    parts: tuple = (
        (weights.convolution, functools.partial(_gated_convolution, context=context, **make)),
        (weights.feed_forward_1, functools.partial(_feed_forward, **make)),
        (weights.attention, functools.partial(_attend, context=context, seed=weights_seed, **make)),
        (weights.feed_forward_2, functools.partial(_feed_forward, **make)),
    )
    for (own, function), part_seed in zip(parts, seeds):
        normal_BLD = ops.norm(x_BLD, own.prenorm, config.layer_norm_eps, swish=False)
        y_BLD, last = function(own, normal_BLD)
        if own is weights.attention:  # after it vectors are independent of each other
            x_BLD = layers.picked(x_BLD, context.reads_BR)
        product_BLD = layers.matmul_2d(y_BLD, last.kernel)
        x_BLD = ops.residual(product_BLD, layers.bias_of(last), x_BLD, config.hidden_dropout_prob, part_seed)
    return x_BLD


# Each returns vectors, and the weights of the dense product that turns them into its result.
def _gated_convolution(
    weights: ConvolutionWeights,
    x_BLD: tf.Tensor,
    context: attention.Context,
    config: BertConfig,
    ops: Operations,
) -> tuple[tf.Tensor, layers.Affine]:
    """Gated unit, grouped convolution, LayerNorm, swish. Padding and other sequences count as zeros."""
    both = layers.side_by_side((weights.values, weights.gates))
    y_BLD = ops.gate(layers.matmul_2d(x_BLD, both.kernel), layers.bias_of(both))
    if context.slots is None:
        y_BLD = y_BLD * tf.cast(context.sequence_ids_BL > 0, y_BLD.dtype)[:, :, None]
        y_BLD = convolution(y_BLD, weights.weight)
    else:
        tokens_BW, slots_BL = context.slots.tokens_BW, context.slots.slots_BL
        y_BWD = convolution(_move(y_BLD, tokens_BW, slots_BL), weights.weight)  # zeros in empty slots
        y_BLD = _move(y_BWD, slots_BL, tokens_BW)
    return ops.norm(y_BLD, weights.norm, config.layer_norm_eps, swish=True), weights.post


def _feed_forward(
    weights: FeedForwardWeights, x_BLD: tf.Tensor, config: BertConfig, ops: Operations
) -> tuple[tf.Tensor, layers.Affine]:
    """Dense product, activation, and grouped projection, whose groups the last product mixes."""
    groups = config.groupbert_ffn_output_groups
    pairs = zip(
        columns(weights.intermediate.kernel, groups), tf.split(layers.bias_of(weights.intermediate), groups)
    )
    parts = [
        ops.bias_activation(layers.matmul_2d(x_BLD, kernel), bias, config.hidden_act)
        for kernel, bias in pairs
    ]
    if weights.mixer is None:
        return parts[0], weights.output
    return projection(parts, weights.output), weights.mixer


def _attend(
    weights: AttentionWeights,
    x_BLD: tf.Tensor,
    context: attention.Context,
    seed: tf.Tensor | None,
    config: BertConfig,
    ops: Operations,
) -> tuple[tf.Tensor, layers.Affine]:
    """Multi-head self-attention."""
    qkv, read_BLD = (weights.query, weights.key, weights.value), layers.picked(x_BLD, context.reads_BR)
    heads_BLD = attention.self_attention(qkv, (read_BLD, x_BLD), context, config, seed, ops)
    return heads_BLD, weights.projection
