"""Products of 8-bit numbers: weights by their output channel, activations by ranges found beforehand.

x is about s (a - z) with a in 0..255, kernel column c about t_c w_c with w in -127..127. So

    x @ kernel = s t_c (a @ w_c - z sum(w_c))

where a @ w_c is a product of integers, exact, and the rest follows from the ranges and the weights. Vectors
between products, LayerNorm, softmax and attention's own products stay float32.
Source: Jacob et al. 2018, "Quantization and Training of Neural Networks for Efficient
Integer-Arithmetic-Only Inference", section 2.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from official.inference import onednn
from official.modeling.activations import ACTIVATIONS
from official.modeling.layers import Affine

_SAMPLE = 2**16  # numbers of a batch whose distribution is looked at
_SHARE = 1e-4  # of the numbers may lie outside a range, on either side


class Quantised(NamedTuple):
    """A dense product in 8 bits.

    Attributes:
      kernel: qint8 [in, out].
      bias: qint32 [out], in units of `scale`, less what the zero point of activations adds.
      scale: float32 [out]: what one is worth of a product of integers.
      low, high: the range of x, float32.
    """

    kernel: tf.Tensor
    bias: tf.Tensor
    scale: tf.Tensor
    low: tf.Tensor
    high: tf.Tensor


def range_of(x: tf.Tensor) -> tf.Tensor:
    """Returns the range [2] of nearly all numbers of x, which includes 0: a few far ones would cost the
    others their precision."""
    flat = tf.reshape(tf.cast(x, tf.float32), [-1])
    step = tf.maximum(tf.size(flat) // _SAMPLE, 1) | 1  # odd: all columns take part
    ordered = tf.sort(flat[::step])
    count = tf.size(ordered)
    outside = tf.cast(tf.cast(count, tf.float32) * _SHARE, tf.int32)
    return tf.stack([tf.minimum(ordered[outside], 0), tf.maximum(ordered[count - 1 - outside], 0)])


def widest(ranges: Sequence[np.ndarray]) -> np.ndarray:
    """Returns the ranges [products, 2] that hold those of all batches."""
    together = np.stack(ranges)
    return np.stack([together[..., 0].min(axis=0), together[..., 1].max(axis=0)], axis=-1)


def quantise(weights: Affine, low_high: np.ndarray) -> Quantised:
    """Returns a dense product in 8 bits, of its weights in float32 and the range [2] of its input."""
    kernel, bias = weights.kernel.numpy(), weights.bias.numpy().astype(np.float64)
    largest = np.maximum(np.abs(kernel).max(axis=0), 1e-12)
    kernel_8 = np.round(kernel * (127 / largest)).astype(np.int8)
    step = max(float(low_high[1] - low_high[0]), 1e-12) / 255
    zero = round(-float(low_high[0]) / step)
    scale = step * largest.astype(np.float64) / 127
    bias_32 = np.round(bias / scale) - zero * kernel_8.sum(axis=0, dtype=np.int64)
    bias_32 = np.clip(bias_32, -(2**31), 2**31 - 1).astype(np.int32)
    return Quantised(
        tf.bitcast(tf.constant(kernel_8), tf.qint8),
        tf.bitcast(tf.constant(bias_32), tf.qint32),
        tf.constant(scale, tf.float32),
        tf.constant(-zero * step, tf.float32),
        tf.constant((255 - zero) * step, tf.float32),
    )


def dense(x: tf.Tensor, weights: Quantised, activation: str | None, residual: tf.Tensor | None) -> tf.Tensor:
    """Does what `onednn.dense` does, in float32."""
    step = (weights.high - weights.low) / 255
    a = tf.clip_by_value(tf.round((x - weights.low) / step), 0, 255)
    product = onednn.integer_product(
        tf.bitcast(tf.cast(a, tf.uint8), tf.quint8), weights.kernel, weights.bias
    )
    y = product * weights.scale
    if activation is not None:
        return ACTIVATIONS[activation].function(y)
    return y if residual is None else y + residual
