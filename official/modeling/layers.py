"""Building blocks shared by every layer stack: dense product, LayerNorm, gather, dropout, activations.

Layers create their variables when they are made, under the name scope of the caller: shapes are known from the
configuration, and names do not depend on how a layer is called.
"""

import functools
import math
from typing import NamedTuple

import tensorflow as tf

from official.io import quiet


def _gelu(x, approximate: bool):
    """Returns GELU in the type of x, computed in float32: the cube of the tanh form overflows float16."""
    return tf.cast(tf.nn.gelu(tf.cast(x, tf.float32), approximate=approximate), x.dtype)


# By the names of `config.model.ACTIVATIONS`. Source: Hendrycks and Gimpel 2016, "Gaussian Error Linear
# Units".
ACTIVATIONS = {
    "gelu_tanh": functools.partial(_gelu, approximate=True),  # Google's BERT
    "gelu_erf": functools.partial(_gelu, approximate=False),  # Hugging Face's BERT
    "relu": tf.nn.relu,
}
_WORDS = 2**32  # values that a random word can have


def normal_initializer(stddev: float):
    """Returns BERT's initializer: normal, redrawn beyond two standard deviations. Its numbers follow from the
    seed of the run."""

    def draw(shape, dtype=tf.float32):
        if tf.executing_eagerly():
            quiet.silence_compiler()  # in commands without a strategy, a first weight is the first that is compiled
        seed = tf.random.uniform([2], tf.int32.min, tf.int32.max, tf.int32)
        numbers = _truncated_normal(tf.TensorShape(shape).num_elements())(seed, tf.constant(stddev))
        return tf.cast(tf.reshape(numbers, shape), dtype)

    return draw


@functools.cache
def _truncated_normal(count: int):
    """Returns (seed, stddev) -> `count` numbers, float32, compiled: TensorFlow's own takes four times as
    long, seconds for BERT-base.

    It is the inverse of the distribution function, of uniform numbers, which comes to the same as redrawing.
    """

    columns = math.gcd(count, 1024)  # threads share rows

    @tf.function(jit_compile=True, autograph=False)
    def draw(seed, stddev):
        uniform = tf.cast(_random_words(seed, count // columns, columns), tf.float32) * (2 / _WORDS) - 1
        return stddev * math.sqrt(2) * tf.math.erfinv(math.erf(math.sqrt(2)) * uniform)

    return draw


class Affine(NamedTuple):
    """What a dense product takes: kernel [in, out] and bias [out]."""

    kernel: tf.Tensor
    bias: tf.Tensor


class Norm(NamedTuple):
    """What LayerNorm over D takes: gamma and beta [D], float32, and the number that is added to the
    variance."""

    gamma: tf.Tensor
    beta: tf.Tensor
    epsilon: float


def shared_function(function):
    """Makes of a function of tensors one that is traced and optimised once however often a graph calls it: it
    stays a call there."""
    return tf.function(
        function, autograph=False, reduce_retracing=True, experimental_attributes={"_noinline": True}
    )


class Dense(tf.keras.layers.Layer):
    """x @ kernel + bias over the last axis, in the compute dtype. Variables `kernel` [in, out] and `bias`
    [out]."""

    def __init__(self, scope: str, in_size: int, out_size: int, stddev: float):
        super().__init__(name=scope.replace("/", "_"))
        with tf.name_scope(scope):
            self.kernel = self.add_weight(
                name="kernel", shape=(in_size, out_size), initializer=normal_initializer(stddev)
            )
            self.bias = self.add_weight(name="bias", shape=(out_size,), initializer="zeros")

    def call(self, x):
        return tf.nn.bias_add(matmul_2d(x, self.kernel), tf.cast(self.bias, x.dtype))

    def tensors(self) -> Affine:
        return Affine(tf.convert_to_tensor(self.kernel), tf.convert_to_tensor(self.bias))


class LayerNorm(tf.keras.layers.Layer):
    """LayerNorm over the last axis. Statistics and output are float32 whatever the compute dtype; the caller
    casts.

    Source: Ba et al. 2016, "Layer Normalization".
    """

    def __init__(self, size: int, epsilon: float):
        super().__init__(name="LayerNorm", dtype="float32")
        self._epsilon = epsilon
        with tf.name_scope("LayerNorm"):
            self.gamma = self.add_weight(name="gamma", shape=(size,), initializer="ones")
            self.beta = self.add_weight(name="beta", shape=(size,), initializer="zeros")

    def call(self, x):
        return layer_norm(x, Norm(self.gamma, self.beta, self._epsilon))

    def tensors(self) -> Norm:
        return Norm(tf.convert_to_tensor(self.gamma), tf.convert_to_tensor(self.beta), self._epsilon)


def layer_norm(x, norm: Norm):
    """Normalises float32 `x` [..., D] over its last axis, times gamma [D], plus beta [D]."""
    mean, variance = tf.nn.moments(x, axes=[-1], keepdims=True)
    return (x - mean) * tf.math.rsqrt(variance + norm.epsilon) * norm.gamma + norm.beta


def matmul_2d(x, kernel):
    """x [B, ..., in] @ kernel [in, out] as one two-dimensional product, the fastest form for vendor
    libraries."""
    product = tf.matmul(tf.reshape(x, [-1, kernel.shape[0]]), tf.cast(kernel, x.dtype))
    return tf.reshape(product, [-1, *sizes(x)[1:-1], kernel.shape[1]])


def sizes(x) -> list:
    """Returns the sizes of a tensor: numbers where they are known, scalar tensors elsewhere (batches of one
    length each have no fixed L)."""
    return [
        dynamic if static is None else static for static, dynamic in zip(x.shape, tf.unstack(tf.shape(x)))
    ]


@tf.custom_gradient
def gather_rows(table, indices):
    """Rows of `table` [N, D] at `indices`, with a dense gradient.

    tf.gather's gradient is an IndexedSlices, which next to the dense gradient of a tied output layer is
    turned into N more slices; one segment sum is both smaller and faster.
    """

    def gradient(upstream):
        flat = tf.reshape(upstream, [-1, table.shape[1]])
        return tf.math.unsorted_segment_sum(flat, tf.reshape(indices, [-1]), tf.shape(table)[0]), None

    return tf.gather(table, indices), gradient


def dropout(x, rate: float, seed):
    """Zeroes a share `rate` of `x` and scales the rest, as a pure function of the seed.

    Args:
      x: any float tensor.
      rate: probability in [0, 1) of zeroing an element.
      seed: int32 [2] of this place in this (run, step, micro batch, replica): see `split_seed`; or None to
        switch dropout off.
    """
    if seed is None or rate == 0:
        return x
    return tf.where(keep_mask(x, rate, seed), x * (1 / (1 - rate)), tf.zeros([], x.dtype))


def split_seed(seed, count: int) -> list:
    """Returns `count` seeds, int32 [2], drawn from one, int32 [N]; of None, as many None.

    A hash like `keep_mask`'s, for its reasons; TensorFlow's own `fold_in` gives other numbers in compiled
    functions.
    """
    if seed is None:
        return [None] * count
    state = tf.constant(
        [[0x9E3779B9, 0x85EBCA6B]], tf.uint32
    )  # two numbers that differ: each half is a hash of its own
    for word in (*tf.unstack(tf.bitcast(seed, tf.uint32)), tf.cast(tf.range(count), tf.uint32)[:, None]):
        state = _mixed(tf.bitwise.bitwise_xor(state, word))
    return tf.unstack(tf.bitcast(state, tf.int32), num=count)


def keep_mask(x, rate: float, seed) -> tf.Tensor:
    """Returns bool of the shape of `x`: which elements dropout keeps, each with probability 1 - rate, to
    2^-32.

    A hash of the seed and the element's number: in a compiled function it costs next to nothing, so that a
    backward pass draws the mask again instead of keeping it, and it is the same in every function, compiled
    or not, on every device.
    """
    *rows, columns = sizes(x)
    dropped = tf.constant(min(round(rate * _WORDS), _WORDS - 1), tf.uint32)
    return tf.reshape(_random_words(seed, tf.reduce_prod(rows), columns) >= dropped, tf.shape(x))


def _random_words(seed, rows, columns) -> tf.Tensor:
    """Returns uint32 [rows, columns], at most 2^32 of them: hashes of the seed, int32 [2], and the element's
    number.

    One half of the seed is where the hash's counter begins, the other its stride, so that none is another one
    shifted.
    """
    first, stride = tf.unstack(tf.bitcast(seed, tf.uint32))
    stride = tf.bitwise.bitwise_or(stride, tf.constant(1, tf.uint32))
    # Two short ranges: one of all elements would be made on the host.
    row = tf.cast(tf.range(rows), tf.uint32)[:, None] * (tf.cast(columns, tf.uint32) * stride) + first
    return _mixed(row + tf.cast(tf.range(columns), tf.uint32) * stride)


def _mixed(word):
    """Returns the hash of uint32 numbers. Source: the 32-bit integer hash "lowbias32" (C. Wellons, Hash
    Prospector, 2018)."""
    word = _xor_shifted(word, 16) * tf.constant(0x21F0AAAD, tf.uint32)
    word = _xor_shifted(word, 15) * tf.constant(0x735A2D97, tf.uint32)
    return _xor_shifted(word, 15)


def _xor_shifted(word, bits: int):
    return tf.bitwise.bitwise_xor(word, tf.bitwise.right_shift(word, tf.constant(bits, tf.uint32)))
