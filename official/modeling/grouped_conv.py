"""Grouped convolution and projection, in which channels see their own group only."""

from __future__ import annotations

from typing import NamedTuple

import tensorflow as tf

from official.modeling.layers import Affine, matmul_2d, sizes

# -----------------------------------------------------------------------------------------------------------
# Sequences of packed rows, set apart by empty slots
#
# A row of L tokens becomes one of W slots. Each sequence stands there in the order of its tokens, whatever
# their places in the row: some records have every [CLS] at the end of the row, and `position_ids` tell that
# it is the first token of its sequence. Between two sequences, and behind them, slots are empty. So tokens
# have the same neighbours as in a row of their own.


class Slots(NamedTuple):
    """Assignment of tokens to slots.

    Attributes:
      tokens_BW: int32, the place in its row of the token in a slot; L for an empty slot.
      slots_BL: int32, the slot of a token; W for padding, which has none.
    """

    tokens_BW: tf.Tensor
    slots_BL: tf.Tensor


def find_slots(features: dict[str, tf.Tensor], gap: int) -> Slots | None:
    """Returns the slots of a batch, with `gap` empty ones between sequences.

    Args:
      features: of a batch. `sequence_ids` int32 [B, L] are 1, 2, .. S for the sequences of a row and 0 for
        padding; `position_ids` int32 [B, L], in [0, L), tell the order in each, else the place in the row
        does. S is the number of `cls_positions` [B, S] or, without, the largest of `sequence_ids`.
      gap: slots.

    Returns:
      W = L + gap x (S - 1) slots a row; None without `sequence_ids`: a row is one sequence.
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
    """Returns int32 [B, width]: each value at its place, and `empty` where none is."""
    batch, _ = sizes(places_BL)
    flat = tf.reshape(places_BL + tf.range(batch)[:, None] * width, [-1, 1])
    # Zero is what stays where nothing is scattered to. Padding has one place for all; nobody reads it.
    put = tf.scatter_nd(flat, tf.reshape(values_BL - empty, [-1]), [batch * width])
    return tf.reshape(put, [batch, width]) + empty


def spread(x_BLD: tf.Tensor, slots: Slots) -> tf.Tensor:
    """Returns the vectors in their slots, [B, W, D]; zeros in empty ones."""
    return _move(x_BLD, slots.tokens_BW, slots.slots_BL)


def collect(x_BWD: tf.Tensor, slots: Slots) -> tf.Tensor:
    """Returns the vectors of the tokens, [B, L, D]; zeros for padding."""
    return _move(x_BWD, slots.slots_BL, slots.tokens_BW)


def _move(x: tf.Tensor, places: tf.Tensor, back: tf.Tensor) -> tf.Tensor:
    """Returns the vectors of each row at `places`, zeros for what lies behind its end. `back` is the way
    back, which the gradient goes."""

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
# Products in groups
#
# Both are batches of dense products. TensorFlow has a grouped convolution, but on CPUs no gradient of it
# unless oneDNN is on. One product for each tap, of a group's few channels, is slow everywhere; here a
# product makes a block of tokens at once, which takes 1.4 times the multiplications and an eighth of the
# time.


_BLOCK = 4  # tokens that a product makes; 2 and 8 take 1.7 times as long with 7 taps of 16 channels


def projection(parts_BLI: list[tf.Tensor], weights: Affine) -> tf.Tensor:
    """Returns the projection of one part of the channels a group, side by side.

    Args:
      parts_BLI: [B, L, in / groups], one a group.
      weights: kernel [in / groups, out]: each group has its own out / groups columns. Bias [out].

    Returns:
      [B, L, out], in the type of the parts.
    """
    kernels = columns(weights.kernel, len(parts_BLI))
    joined = tf.concat([matmul_2d(part, kernel) for part, kernel in zip(parts_BLI, kernels)], axis=-1)
    return joined if weights.bias is None else tf.nn.bias_add(joined, tf.cast(weights.bias, joined.dtype))


def columns(kernel: tf.Tensor, groups: int) -> list[tf.Tensor]:
    """Returns the columns [in, out / groups] of each group of a kernel [in, out]."""
    parts = tf.reshape(kernel, [kernel.shape[0], groups, -1])
    # Not tf.split, which takes five times as long along the last axis.
    return tf.unstack(tf.transpose(parts, [1, 0, 2]), num=groups)


def convolution(x_BLD: tf.Tensor, weight_KGD: tf.Tensor) -> tf.Tensor:
    """Convolves along a row, which zeros go on from on both sides.

    Args:
      x_BLD: in the compute dtype.
      weight_KGD: K taps, an odd number, the middle one a token's own; G channels of a group, which divides D.

    Returns:
      y [B, L, D]: y[l, c] = sum over k, g of x[l + k - K // 2, first channel of the group of c, + g] x
      weight[k, g, c].
    """
    weight_KGD = tf.cast(weight_KGD, x_BLD.dtype)

    @tf.custom_gradient
    def convolve(x, weight):
        def gradient(upstream):
            # The blocks are made again: kept, they are 2.5 times as large as x.
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
    """Returns the tokens of a block: a token's neighbours are in its own block or the next on either side."""
    return max(_BLOCK, taps // 2)


def _in_blocks(x: tf.Tensor, taps: int, size: int) -> tf.Tensor:
    """Returns x as [groups, B, blocks, tokens of a block, channels of a group], with zeros at the end."""
    batch, length, hidden = sizes(x)
    block = _block_of(taps)
    # Not -length % block: ONNX, as tf2onnx writes it, has another remainder of negative numbers.
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
    """Returns the gradient of the weight: that of the block matrix, summed where it holds the same number."""
    taps, size, hidden = shape
    block, groups = _block_of(taps), hidden // size
    given = tf.reshape(_in_blocks(upstream, taps, size), [groups, -1, block * size])
    of_matrix = tf.matmul(_windows(x, taps, size), given, transpose_a=True)
    of_matrix = tf.reshape(of_matrix, [groups, -1, size, block, size])
    total = tf.add_n([of_matrix[:, first : first + taps, :, first] for first in range(block)])
    return tf.reshape(tf.transpose(total, [1, 2, 0, 3]), [taps, size, hidden])
