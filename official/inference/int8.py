"""Products of 8-bit numbers: weights by their output channel, activations by ranges found beforehand.

Channel k of x is about s_k (a - z) with a in 0..255, s_k x kernel column c about t_c w_c with w in -127..127.
On processors that add products of bytes in 16 bits w is in -63..63, lest they saturate. So

    x @ kernel = t_c (a @ w_c - z sum(w_c))

where a @ w_c is a product of integers, exact, and the rest follows from the ranges and the weights. A few
channels behind LayerNorm are far larger than the others: s_k shares that between activations and weights.
Vectors between products, LayerNorm, softmax and attention's own products stay float32.
Sources: Jacob et al. 2018, "Quantization and Training of Neural Networks for Efficient
Integer-Arithmetic-Only Inference", section 2; Xiao et al. 2023, "SmoothQuant", with alpha = 0.5.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from official.inference import onednn
from official.io.processor import processor, saturates_int8
from official.modeling.activations import ACTIVATIONS
from official.modeling.layers import Affine

_SMALLEST = 1e-9  # of what is divided by


class Quantised(NamedTuple):
    """A dense product in 8 bits.

    Attributes:
      kernel: qint8 [in, out].
      bias: qint32 [out], in units of `scale`, less what the zero point of activations adds.
      scale: float32 [out]: what one is worth of a product of integers.
      steps: float32 [in]: what one is worth of each channel of x.
      zero: float32: the integer that stands for 0.
    """

    kernel: tf.Tensor
    bias: tf.Tensor
    scale: tf.Tensor
    steps: tf.Tensor
    zero: tf.Tensor


def range_of(x: tf.Tensor) -> tf.Tensor:
    """Returns the least and the greatest of each channel of x [T, in], float32 [2, in]."""
    return tf.stack([tf.reduce_min(x, axis=0), tf.reduce_max(x, axis=0)])


def widest(ranges: Sequence[np.ndarray]) -> np.ndarray:
    """Returns the range [2, in] that holds those of all batches."""
    together = np.stack(ranges)
    return np.stack([together[:, 0].min(axis=0), together[:, 1].max(axis=0)])


def quantise(weights: Affine, ranges: np.ndarray) -> Quantised:
    """Returns a dense product in 8 bits, of its weights in float32 and the range [2, in] of its input."""
    kernel = np.asarray(weights.kernel).astype(np.float64)
    largest_K, weight_K = np.abs(ranges).max(axis=0), np.abs(kernel).max(axis=1)
    shared_K = np.sqrt(np.maximum(largest_K, _SMALLEST) / np.maximum(weight_K, _SMALLEST))
    low, high = min((ranges[0] / shared_K).min(), 0), max((ranges[1] / shared_K).max(), 0)
    step = max(high - low, _SMALLEST) / 255
    zero = round(-low / step)
    kernel *= shared_K[:, None]
    unit_C = np.maximum(np.abs(kernel).max(axis=0), _SMALLEST) / _largest_weight()
    kernel_8 = np.round(kernel / unit_C).astype(np.int8)
    scale_C = step * unit_C
    bias_C = np.round(np.asarray(weights.bias) / scale_C) - zero * kernel_8.sum(axis=0, dtype=np.int64)
    return Quantised(
        tf.bitcast(tf.constant(kernel_8), tf.qint8),
        tf.bitcast(tf.constant(np.clip(bias_C, -(2**31), 2**31 - 1).astype(np.int32)), tf.qint32),
        tf.constant(scale_C, tf.float32),
        tf.constant(shared_K * step, tf.float32),
        tf.constant(zero, tf.float32),
    )


@functools.cache  # of this machine: not read again for each of the products
def _largest_weight() -> int:
    return 63 if saturates_int8(processor()) else 127


def dense(x: tf.Tensor, weights: Quantised, activation: str | None, residual: tf.Tensor | None) -> tf.Tensor:
    """Does what `onednn.dense` does, in float32."""
    a = tf.clip_by_value(tf.round(x / weights.steps + weights.zero), 0, 255)
    product = onednn.integer_product(
        tf.bitcast(tf.cast(a, tf.uint8), tf.quint8), weights.kernel, weights.bias
    )
    y = product * weights.scale
    if activation is not None:
        return ACTIVATIONS[activation].function(y)
    return y if residual is None else y + residual
