"""Building blocks shared by every layer stack: dense product, LayerNorm, gather, dropout, activations.

Layers create their variables when they are made, under the name scope of the caller: shapes are known from the
configuration, and names do not depend on how a layer is called.
"""

import tensorflow as tf

LAYER_NORM_EPSILON = 1e-12  # Google's BERT

ACTIVATIONS = {
    # Google's BERT uses the tanh form. In float32: its cube overflows float16.
    "gelu": lambda x: tf.cast(tf.nn.gelu(tf.cast(x, tf.float32), approximate=True), x.dtype),
    "relu": tf.nn.relu,
}


def normal_initializer(stddev: float) -> tf.keras.initializers.Initializer:
    """Returns BERT's initializer: normal, redrawn beyond two standard deviations. One instance fills one variable."""
    return tf.keras.initializers.TruncatedNormal(stddev=stddev)


class Dense(tf.keras.layers.Layer):
    """x @ kernel + bias over the last axis, in the compute dtype. Variables `kernel` [in, out] and `bias` [out]."""

    def __init__(self, scope: str, in_size: int, out_size: int, stddev: float):
        super().__init__(name=scope.replace("/", "_"))
        with tf.name_scope(scope):
            self.kernel = self.add_weight(name="kernel", shape=(in_size, out_size), initializer=normal_initializer(stddev))
            self.bias = self.add_weight(name="bias", shape=(out_size,), initializer="zeros")

    def call(self, x):
        return matmul_2d(x, self.kernel) + tf.cast(self.bias, x.dtype)


class LayerNorm(tf.keras.layers.Layer):
    """LayerNorm over the last axis. Statistics and output are float32 whatever the compute dtype; the caller casts.

    Source: Ba et al. 2016, "Layer Normalization"; epsilon of Google's BERT.
    """

    def __init__(self, size: int):
        super().__init__(name="LayerNorm", dtype="float32")
        with tf.name_scope("LayerNorm"):
            self.gamma = self.add_weight(name="gamma", shape=(size,), initializer="ones")
            self.beta = self.add_weight(name="beta", shape=(size,), initializer="zeros")

    def call(self, x):
        mean, variance = tf.nn.moments(x, axes=[-1], keepdims=True)
        return (x - mean) * tf.math.rsqrt(variance + LAYER_NORM_EPSILON) * self.gamma + self.beta


def matmul_2d(x, kernel):
    """x [B, ..., in] @ kernel [in, out] as one two-dimensional product, the fastest form for vendor libraries."""
    product = tf.matmul(tf.reshape(x, [-1, kernel.shape[0]]), tf.cast(kernel, x.dtype))
    return tf.reshape(product, [-1, *sizes(x)[1:-1], kernel.shape[1]])


def sizes(x) -> list:
    """Returns the sizes of a tensor: numbers where they are known, scalar tensors elsewhere (batches of one length each have no fixed L)."""
    return [dynamic if static is None else static for static, dynamic in zip(x.shape, tf.unstack(tf.shape(x)))]


@tf.custom_gradient
def gather_rows(table, indices):
    """Rows of `table` [N, D] at `indices`, with a dense gradient.

    tf.gather's gradient is an IndexedSlices, which next to the dense gradient of a tied output layer is turned into
    N more slices; one segment sum is both smaller and faster.
    """

    def gradient(upstream):
        flat = tf.reshape(upstream, [-1, table.shape[1]])
        return tf.math.unsorted_segment_sum(flat, tf.reshape(indices, [-1]), tf.shape(table)[0]), None

    return tf.gather(table, indices), gradient


def dropout(x, rate: float, seed, site: int):
    """Zeroes a share `rate` of `x` and scales the rest, as a pure function of the seed.

    Args:
      x: any float tensor.
      rate: probability in [0, 1) of zeroing an element.
      seed: int32 [2] of this (run, step, micro batch, replica), or None to switch dropout off.
      site: number of this place in the model; places draw independently.
    """
    if seed is None or rate == 0:
        return x
    return tf.nn.experimental.stateless_dropout(x, rate=rate, seed=tf.random.experimental.stateless_fold_in(seed, site))
