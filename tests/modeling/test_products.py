"""Products of vectors with weights: the forms that are faster on CPUs are the same products."""

import pytest
import tensorflow as tf

from official.io.processor import Processor
from official.modeling import products


@pytest.mark.parametrize("shape", [(6, 24), (6, 18), (24, 6), (6, 6)])
def test_values_and_gradients_are_those_of_the_plain_product(shape):
    x, kernel = tf.random.stateless_normal([5, shape[0]], [1, 2]), tf.random.stateless_normal(shape, [3, 4])
    weights = tf.random.stateless_normal([5, shape[1]], [5, 6])
    found = []
    for product in (products.matmul, tf.matmul):
        with tf.GradientTape() as tape:
            tape.watch([x, kernel])
            y = product(x, kernel)
            loss = tf.reduce_sum(y * weights)
        found.append([y, *tape.gradient(loss, [x, kernel])])
    for ours, plain in zip(*found):
        tf.debugging.assert_near(ours, plain, atol=1e-6)


def test_kernels_that_are_wide_and_not_long_are_transposed_first():
    wide = {(768, 3072), (768, 2304), (256, 1024)}
    for shape in wide | {(768, 768), (3072, 768), (1024, 4096)}:
        assert products.is_wide(tf.zeros(shape)) == (shape in wide)


def test_bf16_products_are_widened_on_intels_cpus_that_hide_amx():
    hidden = ("avx2", "avx512_bf16", "avx512_fp16")
    assert products.multiplies_bf16_slowly(Processor("Intel(R) Xeon(R)", 2, hidden))
    assert not products.multiplies_bf16_slowly(Processor("Intel(R) Xeon(R)", 2, (*hidden, "amx_bf16")))
    assert not products.multiplies_bf16_slowly(Processor("AMD EPYC", 2, hidden))


def test_a_product_of_widened_bf16_numbers_is_rounded_once():
    x = tf.cast(tf.random.stateless_normal([4, 64], [1, 2]), tf.bfloat16)
    kernel = tf.cast(tf.random.stateless_normal([64, 8], [3, 4]), tf.bfloat16)
    exact = tf.matmul(tf.cast(x, tf.float64), tf.cast(kernel, tf.float64))
    widened = products._widened(x, kernel)
    assert widened.dtype == tf.bfloat16
    tf.debugging.assert_near(tf.cast(widened, tf.float64), exact, rtol=2**-8, atol=1e-5)
