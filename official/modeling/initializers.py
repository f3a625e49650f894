"""The numbers that a weight starts with."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import tensorflow as tf

from official.io import quiet
from official.modeling.dropout import RANDOM_WORDS, random_words


def normal_initializer(stddev: float) -> Callable:
    """Returns BERT's initializer: normal, redrawn beyond two standard deviations. Its numbers follow from the
    seed of the run."""

    def draw(shape, dtype=tf.float32):
        if tf.executing_eagerly():
            # In commands without a strategy, a first weight is the first that is compiled.
            quiet.silence_compiler()
        seed = tf.random.uniform([2], tf.int32.min, tf.int32.max, tf.int32)
        numbers = _truncated_normal(tf.TensorShape(shape).num_elements())(seed, tf.constant(stddev))
        return tf.cast(tf.reshape(numbers, shape), dtype)

    return draw


def glorot_initializer(shape: tuple[int, ...], dtype=tf.float32, **_) -> tf.Tensor:
    """Returns uniform numbers of variance 2 / (sum of both fans), the fans as Keras reads them from the shape
    [..., in, out]. Source: Glorot and Bengio 2010."""
    taps = math.prod(shape[:-2])
    limit = math.sqrt(6 / (taps * (shape[-2] + shape[-1])))
    seed = tf.random.uniform([2], tf.int32.min, tf.int32.max, tf.int32)
    words = random_words(seed, taps * shape[-2], shape[-1])
    return tf.cast(tf.reshape(limit * (tf.cast(words, tf.float32) * (2 / RANDOM_WORDS) - 1), shape), dtype)


@functools.lru_cache(maxsize=None)  # noqa: UP033  # functools.cache is not in Python 3.8
def _truncated_normal(count: int) -> Callable:
    """Returns (seed, stddev) -> `count` numbers, float32, compiled: TensorFlow's own takes four times as
    long, seconds for BERT-base.

    It is the inverse of the distribution function, of uniform numbers, which comes to the same as redrawing.
    """

    columns = math.gcd(count, 1024)  # threads share rows

    @tf.function(jit_compile=True, autograph=False)
    def draw(seed, stddev):
        uniform = tf.cast(random_words(seed, count // columns, columns), tf.float32) * (2 / RANDOM_WORDS) - 1
        return stddev * math.sqrt(2) * tf.math.erfinv(math.erf(math.sqrt(2)) * uniform)

    return draw
