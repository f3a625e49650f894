"""The block of ModernBERT: self-attention with rotary positions, then a gated feed-forward layer.

Both are x + f(LayerNorm(x)); the first block's attention has no LayerNorm. There are no biases. Every n-th
block, beginning with the first, sees all tokens of a sequence; in the others a token sees its neighbours
within a window. No tensor grows with the square of the row length: windows are multiplied as a band of
blocks, and long rows a few queries at a time, with scores that the backward pass recomputes.

Sources: Warner et al. 2024, "Smarter, Better, Faster, Longer" (arXiv 2412.13663); Su et al. 2021, "RoFormer"
(arXiv 2104.09864); Shazeer 2020, "GLU Variants Improve Transformer" (arXiv 2002.05202). Shapes in addition to
those of the package: N blocks of a row, of W tokens each; E = 3 x D, query, key and value side by side.
"""

from __future__ import annotations

import functools
import math
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from official.config import BertConfig
from official.modeling import attention, layers
from official.modeling.attention import Context
from official.modeling.layers import sizes, split_seed
from official.modeling.operations import Operations
from official.modeling.varlen import SequenceLayout

IS_PRENORM = True
IS_NARROW = True


# -----------------------------------------------------------------------------------------------------------
# Views of a batch


class Angles(NamedTuple):
    """Cosines and sines of the angles by which a token's position rotates pairs of numbers, float32
    [B or 1, L, K / 2]."""

    cos: tf.Tensor
    sin: tf.Tensor


class Whole(NamedTuple):
    """View of a block that sees whole sequences; `layout` has their positions if they are computed
    separately, otherwise it is empty."""

    angles: Angles
    layout: SequenceLayout | tuple[()]


class Window(NamedTuple):
    """View of a block that sees a window."""

    angles: Angles


class Seen(NamedTuple):
    """Views of both kinds of blocks."""

    whole: Whole
    window: Window


def seen(features: dict[str, tf.Tensor], config: BertConfig, by_sequence: bool) -> Seen:
    """Returns the views of a batch; arguments as in `attention.seen`. Positions of tokens are `position_ids`
    int32 [B, L], by default the positions in the row."""
    places = tf.range(sizes(features["input_ids"])[1])[None]
    positions = features.get("position_ids", places)
    layout = attention.layout_of(features, config.num_attention_heads, by_sequence)
    whole = Whole(angles_of(positions, config, config.global_rope_theta), layout or ())
    return Seen(whole, Window(angles_of(positions, config, config.local_rope_theta)))


def angles_of(positions: tf.Tensor, config: BertConfig, theta: float) -> Angles:
    """Returns the angles of positions, int32 [B or 1, L]: position / theta^(2 i / K) for pair i of K / 2."""
    size = config.hidden_size // config.num_attention_heads
    # In float32 like other implementations, whose rounding would differ at large positions.
    powers = np.power(np.float32(theta), np.arange(0, size, 2, dtype=np.float32) / np.float32(size))
    angles = tf.cast(positions, tf.float32)[..., None] * (np.float32(1) / powers)
    return Angles(tf.cos(angles), tf.sin(angles))


# -----------------------------------------------------------------------------------------------------------
# Weights


class Weights(NamedTuple):
    """The weights of a block, as tensors. `intermediate` computes values, to which the activation is applied,
    and gates side by side. Without `attention_norm`, the attention's input is not normalized."""

    attention_norm: layers.Norm | None
    qkv: layers.Affine
    attention_output: layers.Affine
    norm: layers.Norm
    intermediate: layers.Affine
    output: layers.Affine


class Block(tf.keras.layers.Layer):
    """Variables of a block; `run` computes it."""

    def __init__(self, config: BertConfig, index: int):
        super().__init__(name=f"layer_{index}")
        self.sees_whole = config.sees_whole(index)
        stddev, hidden, inner = config.initializer_range, config.hidden_size, config.intermediate_size
        dense = functools.partial(layers.Dense, bias="none", stddev=stddev)
        # Smaller before the residuals, which add up. Source: Warner et al. 2024, section 2.
        dense_out = functools.partial(dense, stddev=stddev / math.sqrt(2 * config.num_hidden_layers))
        self.attention_norm = None
        with tf.name_scope(f"layer_{index}"):
            with tf.name_scope("attention"):
                if index > 0:
                    with tf.name_scope("prenorm"):
                        self.attention_norm = layers.LayerNorm(hidden, has_bias=False)
                self.qkv = dense("self/qkv", hidden, 3 * hidden)
                self.attention_output = dense_out("output/dense", hidden, hidden)
            with tf.name_scope("feed_forward/prenorm"):
                self.norm = layers.LayerNorm(hidden, has_bias=False)
            self.intermediate = dense("intermediate/dense", hidden, 2 * inner)
            self.output_dense = dense_out("output/dense", inner, hidden)

    def tensors(self) -> Weights:
        return Weights(
            None if self.attention_norm is None else self.attention_norm.tensors(),
            self.qkv.tensors(),
            self.attention_output.tensors(),
            self.norm.tensors(),
            self.intermediate.tensors(),
            self.output_dense.tensors(),
        )

    def sees(self, seen: Seen) -> Whole | Window:
        """Returns the view of this block."""
        return seen.whole if self.sees_whole else seen.window


# -----------------------------------------------------------------------------------------------------------
# Block


def run(
    weights: Weights,
    x_BLD: tf.Tensor,
    context: Context,
    seed: tf.Tensor | None,
    config: BertConfig,
    ops: Operations,
) -> tf.Tensor:
    """Runs a block; arguments as in `bert.run`, except that the context has the view of this block, see
    `Block.sees`.

    Returns:
      [B, L, D] in the compute dtype, or [B, R, D], not normalised.
    """
    attention_seed, attended_seed, inner_seed = split_seed(seed, 3)
    epsilon, rate = config.layer_norm_eps, config.attention_probs_dropout_prob
    if weights.attention_norm is None:
        products_BLE = layers.matmul_2d(x_BLD, weights.qkv.kernel)
    else:
        products_BLE = ops.norm_product(x_BLD, weights.attention_norm, epsilon, weights.qkv.kernel)
    attended_BLD = attend(products_BLE, context, config, attention_seed, ops)
    attended_BLD, x_BLD = (layers.picked(each, context.reads_BR) for each in (attended_BLD, x_BLD))
    attended_BLD = layers.matmul_2d(attended_BLD, weights.attention_output.kernel)
    residuals = x_BLD, weights.norm, epsilon, weights.intermediate.kernel, rate, attended_seed
    x_BLD, inner_BLE = ops.add_and_norm_product(attended_BLD, *residuals)
    inner = config.hidden_act, weights.output.kernel, config.hidden_dropout_prob, inner_seed
    return x_BLD + ops.gated_product(inner_BLE, *inner)


def attend(
    products_BLE: tf.Tensor, context: Context, config: BertConfig, seed: tf.Tensor | None, ops: Operations
) -> tf.Tensor:
    """Returns the concatenated outputs of the heads, [B, L, D], for the products of query, key and value. A
    token sees those with its number in `sequence_ids_BL`; padding, number 0, gets arbitrary finite values."""
    view = context.seen  # Whole or Window
    ids_BL = context.sequence_ids_BL
    heads, rate = config.num_attention_heads, config.attention_probs_dropout_prob
    reach = config.local_attention // 2 if isinstance(view, Window) else None
    if hasattr(ops, "rotary_attention"):
        outputs = ops.rotary_attention(products_BLE, *view.angles, ids_BL, heads, reach, rate, seed)
        if outputs is not None:
            return outputs
    products_BLE = ops.rotate(products_BLE, *view.angles, heads)
    if reach is not None:
        return in_window(products_BLE, ids_BL, heads, reach, rate, seed, ops)
    if isinstance(view.layout, SequenceLayout):

        def attend_apart(query, key, value, is_token_NW, seed):
            return in_chunks(query, key, value, tf.cast(is_token_NW, tf.int32), rate, seed, ops)

        return attention.by_sequence(products_BLE, view.layout, heads, attend_apart, seed)
    query, key, value = ops.split_heads(products_BLE, None, 3, heads)
    return ops.join_heads(in_chunks(query, key, value, ids_BL, rate, seed, ops))


# -----------------------------------------------------------------------------------------------------------
# Windows as a band of blocks


def in_window(
    products_BLE: tf.Tensor,
    ids_BL: tf.Tensor,
    heads: int,
    reach: int,
    rate: float,
    seed: tf.Tensor | None,
    ops: Operations,
) -> tf.Tensor:
    """Returns the concatenated outputs of the heads, [B, L, D]; a token sees those of its sequence at a
    distance of at most `reach`.

    A row is cut into blocks of twice the reach, which also see half of the adjacent block on either side:
    they are separate rows for `attend`.
    """
    batch, length, columns = sizes(products_BLE)
    width = max(2 * reach, 1)
    blocks = (length + width - 1) // width
    padding = [[0, 0], [0, blocks * width - length]]
    in_blocks = tf.reshape(tf.pad(products_BLE, [*padding, [0, 0]]), [-1, width, columns])
    query, key, value = ops.split_heads(in_blocks, None, 3, heads)  # [B x N, H, W, K]
    size = columns // (3 * heads)
    near = functools.partial(_with_sides, batch=batch, reach=reach)
    key, value = (near(tf.reshape(part, [-1, heads, width, size])) for part in (key, value))
    ids_NW = tf.reshape(tf.pad(ids_BL, padding), [-1, width])
    # No token has number -1, which is used outside of a row.
    ids_NM = near(ids_NW[:, None, :, None] + 1)[:, 0, :, 0] - 1
    distances = np.abs(np.arange(width + 2 * reach) - np.arange(width)[:, None] - reach)
    is_seen = tf.equal(ids_NW[:, :, None], ids_NM[:, None, :]) & (distances <= reach)
    outputs = ops.attend(query, key, value, attention.masking(is_seen), rate, seed, again=True)
    return tf.reshape(ops.join_heads(outputs), [batch, -1, columns // 3])[:, :length]


def _with_sides(parts: tf.Tensor, batch: int | tf.Tensor, reach: int) -> tf.Tensor:
    """Returns blocks [B x N, H, W, K] with the last tokens of the previous block and the first of the next
    one, [B x N, H, W + 2 x reach, K]; zeros outside of a row."""
    _, heads, width, size = sizes(parts)
    parts = tf.reshape(parts, [batch, -1, heads, width, size])
    none = [[0, 0], [0, 0], [0, 0]]
    before = tf.pad(parts[:, :-1, :, width - reach :], [[0, 0], [1, 0], *none])
    after = tf.pad(parts[:, 1:, :, :reach], [[0, 0], [0, 1], *none])
    return tf.reshape(tf.concat([before, parts, after], axis=3), [-1, heads, width + 2 * reach, size])


# -----------------------------------------------------------------------------------------------------------
# Whole sequences, a few queries at a time
#
# Source: Rabe and Staats 2021, "Self-attention Does Not Need O(n^2) Memory" (arXiv 2112.05682).


_SCORES = 2**24  # maximum per chunk: 64 MiB; smaller rows are computed at once


def in_chunks(
    query_BHLK: tf.Tensor,
    key_BHLK: tf.Tensor,
    value_BHLK: tf.Tensor,
    ids_BL: tf.Tensor,
    rate: float,
    seed: tf.Tensor | None,
    ops: Operations,
) -> tf.Tensor:
    """Returns the outputs of attention, [B, H, L, K], where a token sees those with its number."""
    batch, heads, length, size = sizes(query_BHLK)

    def attend_some(query, key, value, ids_BC, number):
        is_seen = tf.equal(ids_BC[:, :, None], ids_BL[:, None, :])
        own_seed = None if seed is None else split_seed(tf.concat([seed, [number]], 0), 1)[0]
        return ops.attend(query, key, value, attention.masking(is_seen), rate, own_seed)

    scores_of_query = batch * heads * length
    if isinstance(scores_of_query, int) and scores_of_query * length <= _SCORES:
        return attend_some(query_BHLK, key_BHLK, value_BHLK, ids_BL, 0)
    if isinstance(scores_of_query, int):
        width = min(max(_SCORES // scores_of_query, 1), length)
    else:
        width = tf.clip_by_value(_SCORES // tf.maximum(scores_of_query, 1), 1, tf.maximum(length, 1))
    count = (length + width - 1) // width

    def cut(x, axis):
        """Returns x as [chunks, ..], cut along an axis that is padded with zeros."""
        sides = [[0, 0]] * axis + [[0, count * width - length]] + [[0, 0]] * (len(x.shape) - axis - 1)
        shape = sizes(x)
        whole = tf.reshape(tf.pad(x, sides), [*shape[:axis], count, width, *shape[axis + 1 :]])
        return tf.transpose(whole, [axis, *range(axis), *range(axis + 1, len(shape) + 1)])

    def join(chunks):
        whole = tf.transpose(chunks, [1, 2, 0, 3, 4])
        return tf.reshape(whole, [batch, heads, -1, size])[:, :, :length]

    ids_NBC = cut(ids_BL, 1)

    def repeat(body, first, like):
        """Returns the joined outputs of all chunks, and the values that they pass on."""
        known = [each if isinstance(each, int) else None for each in (batch, heads, width, size)]
        array = tf.TensorArray(like.dtype, count, element_shape=known)

        def step(number, array, *carried):
            output, *carried = body(number, *carried)
            return number + 1, array.write(number, output), *carried

        _, array, *carried = tf.while_loop(
            lambda number, *_: number < count,
            step,
            (0, array, *first),
            parallel_iterations=1,
            maximum_iterations=count,
        )
        return join(array.stack()), *carried

    @tf.custom_gradient
    def attend_all(query, key, value):
        queries = cut(query, 2)

        def gradient(upstream):
            upstreams = cut(upstream, 2)

            def body(number, key_sum, value_sum):
                own = queries[number], tf.identity(key), tf.identity(value)
                with tf.GradientTape(watch_accessed_variables=False) as tape:
                    tape.watch(own)
                    output = attend_some(*own, ids_NBC[number], number)
                found = tape.gradient(output, own, upstreams[number])
                return found[0], key_sum + found[1], value_sum + found[2]

            return repeat(body, (tf.zeros_like(key), tf.zeros_like(value)), query)

        def body(number):
            return (attend_some(queries[number], key, value, ids_NBC[number], number),)

        return repeat(body, (), query)[0], gradient

    return attend_all(query_BHLK, key_BHLK, value_BHLK)
