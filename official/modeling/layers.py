"""Building blocks of every layer stack: dense product, LayerNorm, gather.

A class holds variables, a NamedTuple their tensors, and a function computes with the tensors. Layers create
their variables when they are made, under the name scope of the caller: shapes are known from the
configuration, and names do not depend on how a layer is used.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

import tensorflow as tf

from official.modeling import copies, products
from official.modeling.initializers import normal_initializer
from official.modeling.shapes import sizes

Bias = Literal["zeros", "normal", "frozen", "none"]


class Affine(NamedTuple):
    """Weights of a dense product: kernel [in, out] and bias [out], in the compute dtype; None for no bias."""

    kernel: tf.Tensor
    bias: tf.Tensor | None


class Norm(NamedTuple):
    """Weights of LayerNorm over D: gamma and beta [D], float32."""

    gamma: tf.Tensor
    beta: tf.Tensor


class Dense(tf.keras.layers.Layer):
    """The variables of x @ kernel + bias: `kernel` [in, out] and `bias` [out]. See `dense`."""

    def __init__(
        self,
        scope: str,
        in_size: int,
        out_size: int,
        stddev: float,
        bias: Bias = "zeros",
    ):
        """Makes the variables.

        Args:
          scope: of their names.
          in_size, out_size: of the vectors.
          stddev: of the kernel's first values.
          bias: its first values, zeros or normal like the kernel's; `frozen` stays zero and is not trained;
            with `none` there is no variable for it.
        """
        super().__init__(name=scope.replace("/", "_"))
        normal, self.bias = normal_initializer(stddev), None
        with tf.name_scope(scope):
            self.kernel = self.add_weight(name="kernel", shape=(in_size, out_size), initializer=normal)
            if bias != "none":
                self.bias = self.add_weight(
                    name="bias",
                    shape=(out_size,),
                    initializer=normal if bias == "normal" else "zeros",
                    trainable=bias != "frozen",
                )

    def tensors(self) -> Affine:
        bias = None if self.bias is None else read(self.bias, self.compute_dtype)
        return Affine(read(self.kernel, self.compute_dtype), bias)


class LayerNorm(tf.keras.layers.Layer):
    """The variables of LayerNorm: `gamma` and `beta` [size]. See `layer_norm`."""

    def __init__(self, size: int):
        super().__init__(name="LayerNorm", dtype="float32")
        with tf.name_scope("LayerNorm"):
            self.gamma = self.add_weight(name="gamma", shape=(size,), initializer="ones")
            self.beta = self.add_weight(name="beta", shape=(size,), initializer="zeros")

    def tensors(self) -> Norm:
        return Norm(tf.convert_to_tensor(self.gamma), tf.convert_to_tensor(self.beta))


def read(variable: tf.Variable, dtype: str, is_shared: bool = False) -> tf.Tensor:
    """Returns a variable's value in the type to compute in. `is_shared`: it is read a second time, and both
    gradients are added."""
    return copies.cast(variable, dtype, is_shared)


def dense(x: tf.Tensor, weights: Affine) -> tf.Tensor:
    """Returns x @ kernel + bias over the last axis, in the type of `x`."""
    product = matmul_2d(x, weights.kernel)
    return product if weights.bias is None else tf.nn.bias_add(product, tf.cast(weights.bias, x.dtype))


def bias_of(weights: Affine) -> tf.Tensor:
    """Returns the bias [out]; zeros where there is none."""
    return tf.zeros_like(weights.kernel[0]) if weights.bias is None else weights.bias


def side_by_side(parts: Sequence[Affine]) -> Affine:
    """Returns dense products of the same vectors as one; all of them have a bias, or none."""
    kernels, biases = zip(*parts)
    return Affine(tf.concat(kernels, axis=-1), None if biases[0] is None else tf.concat(biases, axis=-1))


def layer_norm(x: tf.Tensor, norm: Norm, epsilon: float) -> tf.Tensor:
    """Normalises float32 `x` [..., D] over its last axis, times gamma, plus beta.

    Statistics and output are float32 whatever the compute dtype; the caller casts. `epsilon` is added to the
    variance. Source: Ba et al. 2016, "Layer Normalization".
    """
    mean, variance = tf.nn.moments(x, axes=[-1], keepdims=True)
    return (x - mean) * tf.math.rsqrt(variance + epsilon) * norm.gamma + norm.beta


def matmul_2d(x: tf.Tensor, kernel: tf.Tensor) -> tf.Tensor:
    """x [B, ..., in] @ kernel [in, out] as one two-dimensional product, the fastest form for vendor
    libraries."""
    product = products.matmul(tf.reshape(x, [-1, kernel.shape[0]]), tf.cast(kernel, x.dtype))
    return tf.reshape(product, [-1, *sizes(x)[1:-1], kernel.shape[1]])


def exact_matmul_2d(x: tf.Tensor, kernel: tf.Tensor) -> tf.Tensor:
    """`matmul_2d` of float32 in full float32, for what is small: also where such products are rounded."""
    if not rounds_products():
        return matmul_2d(x, kernel)
    return tf.cast(matmul_2d(tf.cast(x, tf.float64), kernel), tf.float32)


def rounds_products() -> bool:
    """Tells whether the factors of float32 products are rounded to TensorFloat-32, whose fractions have 10
    bits: GPUs from Ampere on do so unless `--matmul_precision` forbids it."""
    enabled = tf.config.experimental.tensor_float_32_execution_enabled()
    return enabled and bool(tf.config.list_physical_devices("GPU"))


def gather_positions(x_BLD: tf.Tensor, positions_BP: tf.Tensor) -> tf.Tensor:
    """Returns the vectors at some positions of each row, [B, P, D]; positions int32, in [0, L)."""
    batch, length, hidden = sizes(x_BLD)
    flat_positions_BP = positions_BP + tf.range(batch)[:, None] * length
    return gather_rows(tf.reshape(x_BLD, [batch * length, hidden]), flat_positions_BP)


def picked(x_BLD: tf.Tensor, positions_BP: tf.Tensor | None) -> tf.Tensor:
    """Returns the vectors at some positions of each row, all of them for None."""
    return x_BLD if positions_BP is None else gather_positions(x_BLD, positions_BP)


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


def shared_function(function: Callable) -> Callable:
    """Makes of a function of tensors one that is traced and optimised once however often a graph calls it: it
    stays a call there."""
    shared = tf.function(
        function, autograph=False, reduce_retracing=True, experimental_attributes={"_noinline": True}
    )
    # Inside another function: what is a tf.function itself, Keras would save with the layer that has it.
    return lambda *arguments: shared(*arguments)
