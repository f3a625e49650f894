"""Products in the form that is the fastest: where each is taken, and that they are the same."""

import numpy as np
import pytest
import tensorflow as tf

from official.io.native_library import Processor
from official.modeling import layers

SAPPHIRE = ("avx2", "avx512f", "avx512_bf16", "avx512_fp16")


def test_which_processors_multiply_bfloat16_slowly():
    for name, instructions, slow in (
        ("Intel(R) Xeon(R) Processor", SAPPHIRE, True),
        ("Intel(R) Xeon(R) Processor", (*SAPPHIRE, "amx_bf16"), False),
        ("Intel(R) Xeon(R) Platinum 8380H", SAPPHIRE[:3], False),  # Cooper Lake: full speed, no AMX
        ("AMD EPYC", SAPPHIRE, False),
        ("Intel(R) Xeon(R) Gold 6226R", SAPPHIRE[:2], False),
    ):
        assert layers.multiplies_bf16_slowly(Processor(name, 2, instructions)) == slow, name


def product_and_gradients(x, kernel, weights):
    """Returns a product and the gradients of its weighted sum, and the operations that compute them."""

    @tf.function(autograph=False)
    def compute(x, kernel):
        with tf.GradientTape() as tape:
            tape.watch([x, kernel])
            y = layers.matmul(x, kernel)
            loss = tf.reduce_sum(tf.cast(y * weights, tf.float32))
        return [y, *tape.gradient(loss, [x, kernel])]

    return compute(x, kernel), compute.get_concrete_function(x, kernel).graph.get_operations()


def drawn(dtype, *shapes) -> list[tf.Tensor]:
    generator = np.random.default_rng(0)
    return [tf.cast(generator.normal(size=shape), dtype) for shape in shapes]


def run(widens: bool, monkeypatch, dtype=tf.bfloat16):
    monkeypatch.setattr(layers, "widens", lambda: widens)
    given = drawn(dtype, (17, 33), (33, 9), (17, 9))
    found, operations = product_and_gradients(*given)
    types = {each.outputs[0].dtype for each in operations if each.type == "MatMul"}
    wide = [np.asarray(tf.cast(each, tf.float64)) for each in given]
    exact = [wide[0] @ wide[1], wide[2] @ wide[1].T, wide[0].T @ wide[2]]
    return found, exact, types


@pytest.mark.parametrize("widens", [True, False])
def test_products_are_those_of_numpy(widens, monkeypatch):
    found, exact, types = run(widens, monkeypatch)
    assert types == {tf.float32 if widens else tf.bfloat16}
    for ours, other in zip(found, exact, strict=True):
        assert ours.dtype == tf.bfloat16
        # Widened ones are rounded once, at the end; of narrow ones some CPUs round sums in between, too.
        tolerance = 2**-8 if widens else 2**-6
        np.testing.assert_allclose(np.asarray(tf.cast(ours, tf.float64)), other, tolerance, tolerance)


def test_other_types_and_what_is_not_finite_are_left_alone(monkeypatch):
    for dtype in (tf.float32, tf.float16):
        assert run(True, monkeypatch, dtype)[2] == {dtype}
    x = tf.constant([[1.0, np.nan], [np.inf, 1.0]], tf.bfloat16)
    y = layers.matmul(x, tf.ones([2, 1], tf.bfloat16))
    assert not np.isfinite(np.asarray(tf.cast(y, tf.float32))).any()


def test_products_whose_kernel_is_transposed_first_are_the_same(monkeypatch):
    def compute(is_wide):
        monkeypatch.setattr(layers, "is_wide", lambda kernel: is_wide)
        found, operations = product_and_gradients(*drawn(tf.float32, (17, 128), (128, 384), (17, 384)))
        return found, [each.type for each in operations].count("Transpose")

    (found, transposes), (expected, none) = compute(True), compute(False)
    assert (transposes, none) == (1, 0)
    for ours, other in zip(found, expected):
        np.testing.assert_allclose(ours, other, rtol=1e-4, atol=1e-4)
