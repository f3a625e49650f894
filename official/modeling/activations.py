"""The activations of the feed-forward layers: what each computes and its slope.

A row's name is that of `official.config.model.ACTIVATIONS`, which has the names that other projects give it.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import NamedTuple

import tensorflow as tf


class Activation(NamedTuple):
    """An activation.

    Attributes:
      function: of a tensor of any float type, in whose type the result is.
      slope: its derivative, of a float32 tensor.
    """

    function: Callable
    slope: Callable


def _gelu(x: tf.Tensor, approximate: bool) -> tf.Tensor:
    """Returns GELU in the type of x, computed in float32: the cube of the tanh form overflows float16."""
    return tf.cast(tf.nn.gelu(tf.cast(x, tf.float32), approximate=approximate), x.dtype)


def _gelu_tanh_slope(x: tf.Tensor) -> tf.Tensor:
    """Derivative of 0.5 x (1 + tanh(c (x + 0.044715 x^3))), c = sqrt(2 / pi)."""
    c, cubic = 0.7978845608028654, 0.044715
    tanh = tf.tanh(c * x * (1 + cubic * x * x))
    return 0.5 * (1 + tanh) + 0.5 * c * x * (1 - tanh * tanh) * (1 + 3 * cubic * x * x)


def _gelu_erf_slope(x: tf.Tensor) -> tf.Tensor:
    """Derivative of x P(x), P the standard normal distribution function: P(x) + x p(x), p its density."""
    return 0.5 * (1 + tf.math.erf(x * 0.5**0.5)) + x * tf.exp(-0.5 * x * x) * (2 * math.pi) ** -0.5


# Source of both GELUs: Hendrycks and Gimpel 2016, "Gaussian Error Linear Units".
ACTIVATIONS = {
    "gelu_tanh": Activation(functools.partial(_gelu, approximate=True), _gelu_tanh_slope),  # Google's BERT
    "gelu_erf": Activation(functools.partial(_gelu, approximate=False), _gelu_erf_slope),  # Hugging Face's
    "relu": Activation(tf.nn.relu, lambda x: tf.cast(x > 0, x.dtype)),
}
