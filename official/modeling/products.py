"""Products of vectors with weights, in the form that is the fastest where they run."""

from __future__ import annotations

import functools

import tensorflow as tf

from official.io.processor import Processor, processor

_WIDE, _FEWEST_ROWS, _MOST_ROWS = 3, 128, 1024  # see `is_wide`


def matmul(x_NI: tf.Tensor, kernel_IO: tf.Tensor) -> tf.Tensor:
    """Returns x @ kernel, of one type and in it."""
    if x_NI.dtype == tf.bfloat16 and widens():
        return _widened(x_NI, kernel_IO)
    if x_NI.dtype == tf.float32 and is_wide(kernel_IO) and not _has_accelerators():
        return _transposed_first(x_NI, kernel_IO)
    return tf.matmul(x_NI, kernel_IO)


def is_wide(kernel_IO: tf.Tensor) -> bool:
    """Tells whether CPUs are faster when they transpose a float32 kernel before they multiply with its
    transpose, as the gradient does.

    Products with the transpose of such a kernel are 8 to 20 % slower than those with a copy of it that is
    transposed already, which takes 3 to 7 % of the product. Of other shapes nothing is gained.
    """
    rows, columns = kernel_IO.shape
    return _FEWEST_ROWS <= rows < _MOST_ROWS and columns >= _WIDE * rows


def _has_accelerators() -> bool:
    return any(tf.config.list_physical_devices(kind) for kind in ("GPU", "TPU", "IPU"))


@functools.lru_cache(maxsize=None)  # noqa: UP033  # functools.cache is not in Python 3.8
def widens() -> bool:
    """Tells whether bfloat16 products are made as float32 ones of the same numbers: these are faster then."""
    return not _has_accelerators() and multiplies_bf16_slowly(processor())


def multiplies_bf16_slowly(cpu: Processor) -> bool:
    """Tells whether a processor has instructions for bfloat16 that are slower than those for float32.

    Intel's processors that have AMX are made to multiply bfloat16 with it. Their AVX-512 instructions for it,
    which are what is left where a virtual machine hides AMX, are no faster than those for float32, and the
    products made with them slower. AVX512-FP16 came with the same processors.
    """
    has = set(cpu.instructions)
    return "Intel" in cpu.name and {"avx512_bf16", "avx512_fp16"} <= has and "amx_bf16" not in has


@tf.custom_gradient
def _transposed_first(x_NI, kernel_IO):
    """Returns the product; see `is_wide`."""

    def gradient(upstream):
        return tf.matmul(upstream, tf.transpose(kernel_IO)), tf.matmul(x_NI, upstream, transpose_a=True)

    return tf.matmul(x_NI, kernel_IO), gradient


@tf.custom_gradient
def _widened(x_NI, kernel_IO):
    """Returns the product in bfloat16. Products of two such numbers are exact in float32, where they are
    summed up."""

    def gradient(upstream):
        wide = tf.cast(upstream, tf.float32)
        x_gradient = tf.matmul(wide, tf.cast(kernel_IO, tf.float32), transpose_b=True)
        kernel_gradient = tf.matmul(tf.cast(x_NI, tf.float32), wide, transpose_a=True)
        return tf.cast(x_gradient, x_NI.dtype), tf.cast(kernel_gradient, kernel_IO.dtype)

    product = tf.matmul(tf.cast(x_NI, tf.float32), tf.cast(kernel_IO, tf.float32))
    return tf.cast(product, x_NI.dtype), gradient
