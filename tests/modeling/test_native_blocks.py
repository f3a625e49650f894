"""The operations of blocks in C++: against float64 in all shapes and types, and what is not finite."""

import functools

import numpy as np
import pytest
import tensorflow as tf

from official.modeling.layers import Norm, dropout
from official.modeling.operations import fused, native, plain
from official.native import operations as loaded

SEED = [3, 4]
# One number, less than a vector, odd, several jobs with the last one ragged, none.
SHAPES = [(1, 1), (2, 7, 5), (3, 7, 33), (5, 40, 771), (0, 7, 33)]
FUSED_TOO = (3, 7, 33)  # each shape is compiled there
TYPES = {"fp32": tf.float32, "bf16": tf.bfloat16}
PRECISION = {tf.float32: 1e-5, tf.bfloat16: 2e-2}


def draw(*shape, seed=0, dtype=tf.float32):
    """Returns normal numbers that are the same in every type, up to bfloat16's rounding."""
    numbers = tf.constant(np.random.default_rng([seed, *shape]).normal(size=shape), tf.float32)
    return tf.cast(tf.cast(numbers, tf.bfloat16), dtype)


def with_gradients(function, *tensors):
    """Returns the result of a function and its gradients, as float64; the upstream gradient is random."""
    with tf.GradientTape() as tape:
        tape.watch(tensors)
        result = function(*tensors)
    upstream = draw(*result.shape, seed=9, dtype=result.dtype)
    gradients = tape.gradient(result, tensors, output_gradients=upstream)
    return [tf.cast(value, tf.float64).numpy() for value in (result, *gradients)]


def assert_close(found, expected, precision):
    for place, (ours, other) in enumerate(zip(found, expected)):
        assert ours.shape == other.shape
        scale = max(np.abs(other).max(initial=0), 1e-30)
        np.testing.assert_allclose(ours, other, atol=precision * scale, rtol=precision, err_msg=str(place))


def check(call, exact, tensors, precision, slack=None):
    """Compares call(native, *tensors) and its gradients with exact(*tensors) in float64; with `slack`, its
    error with that of the fused operations, too."""
    expected = with_gradients(exact, *(tf.cast(each, tf.float64) for each in tensors))
    found = with_gradients(lambda *x: call(native, *x), *tensors)
    assert_close(found, expected, precision)
    if slack is None:
        return
    others = with_gradients(lambda *x: call(fused, *x), *tensors)
    for ours, other, truth in zip(found, others, expected):
        least = 1e-5 * np.linalg.norm(truth)
        assert np.linalg.norm(ours - truth) <= slack * np.linalg.norm(other - truth) + least


def float64_gelu(x, approximate):
    if approximate:
        return 0.5 * x * (1 + tf.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))
    return 0.5 * x * (1 + tf.math.erf(x / np.sqrt(2)))


FUNCTIONS = {"gelu_tanh": functools.partial(float64_gelu, approximate=True), "relu": tf.nn.relu}
FUNCTIONS["gelu_erf"] = functools.partial(float64_gelu, approximate=False)


@pytest.mark.parametrize("dtype", TYPES.values(), ids=TYPES)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("activation", FUNCTIONS)
def test_bias_and_activation(activation, shape, dtype):
    call = lambda ops, x, bias: ops.bias_activation(x, bias, activation)
    exact = lambda x, bias: FUNCTIONS[activation](x + bias)
    tensors = [2 * draw(*shape, dtype=dtype), draw(shape[-1], seed=1, dtype=dtype)]
    slack = 1.05 if shape == FUSED_TOO and dtype == tf.bfloat16 else None
    check(call, exact, tensors, PRECISION[dtype], slack)


@pytest.mark.parametrize("dtype", TYPES.values(), ids=TYPES)
@pytest.mark.parametrize("activation", FUNCTIONS)
def test_gated_activation_takes_the_memory_of_an_input_that_nobody_else_reads(activation, dtype):
    """Results are the same in place; several jobs then wait for each other."""
    gate = functools.partial(loaded().bert_gated_activation, activation=activation)

    @tf.function(reduce_retracing=True)
    def alone(half):
        return gate(x=half * 2)  # computed in the graph: a sum with 0 would be x itself, which the caller has

    @tf.function(reduce_retracing=True)
    def read_twice(half):
        x = half * 2
        return gate(x=x), tf.reduce_all(x == half + half)

    for rows, columns in ((0, 6), (1, 6), (7, 34), (300, 2304), (40000, 10)):
        half = draw(1, rows, columns, dtype=dtype)
        x = 2 * half
        values, gates = tf.split(tf.cast(x, tf.float64), 2, axis=-1)
        expected = gate(x=x)  # which x outlives
        exact = FUNCTIONS[activation](values) * gates
        assert_close([tf.cast(expected, tf.float64)], [exact.numpy()], PRECISION[dtype])
        np.testing.assert_array_equal(alone(half), expected)
        found, is_intact = read_twice(half)
        np.testing.assert_array_equal(found, expected)
        assert is_intact


@pytest.mark.parametrize("activation", FUNCTIONS)
def test_activations_are_exact_at_every_size(activation):
    x = tf.constant(np.concatenate([np.linspace(-12, 12, 20001), [-100, 100, -1e4, 1e4, 0]]), tf.float32)
    zeros = tf.zeros([x.shape[0]])
    exact = with_gradients(FUNCTIONS[activation], tf.cast(x, tf.float64))
    ours = with_gradients(lambda x: native.bias_activation(x[None], zeros, activation)[0], x)
    for found, expected in zip(ours, exact):
        np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1.5e-6)


@pytest.mark.parametrize("dtype", TYPES.values(), ids=TYPES)
@pytest.mark.parametrize("shape", SHAPES[1:], ids=str)
@pytest.mark.parametrize("rate", [0.0, 0.3])
def test_residual_and_norm(shape, dtype, rate):
    seed, columns = tf.constant(SEED), shape[-1]

    def call(ops, x, bias, residual, gamma, beta):
        return ops.residual_norm(x, bias, residual, Norm(gamma, beta), 1e-12, rate, seed)

    def exact(x, bias, residual, gamma, beta):
        x = dropout(x + bias, rate, seed) + residual
        mean, variance = tf.nn.moments(x, axes=[-1], keepdims=True)
        return (x - mean) / tf.sqrt(variance + 1e-12) * gamma + beta

    vectors = [draw(*shape, dtype=dtype), draw(columns, seed=1, dtype=dtype)]
    vectors += [draw(*shape, seed=2, dtype=dtype)]
    weights = [1 + 0.3 * draw(columns, seed=3), draw(columns, seed=4)]
    slack = 1.05 if shape == FUSED_TOO and dtype == tf.bfloat16 else None
    check(call, exact, [*vectors, *weights], PRECISION[dtype], slack)


@pytest.mark.parametrize("dtype", TYPES.values(), ids=TYPES)
@pytest.mark.parametrize("rows,columns", [(7, 7), (3, 40), (33, 5)])
@pytest.mark.parametrize("again,mask", [(False, "row"), (False, "pairs"), (True, "row")])
def test_attention(again, mask, rows, columns, dtype):
    lengths, size = (rows, columns, columns), 8
    tensors = [draw(3, 4, length, size, seed=place, dtype=dtype) for place, length in enumerate(lengths)]
    seen = np.random.default_rng(5).random([3, 1, rows if mask == "pairs" else 1, columns]) < 0.7
    seen[..., 0] = True
    seed, scores = tf.constant(SEED), tf.constant(np.where(seen, 0, -10000), tf.float32)

    def exact(query, key, value):
        products = tf.matmul(query, key, transpose_b=True) * size**-0.5
        return tf.matmul(dropout(tf.nn.softmax(products + tf.cast(scores, tf.float64)), 0.3, seed), value)

    slack = 1.1 if rows == columns and mask == "row" and dtype == tf.bfloat16 else None
    precision = {tf.float32: 1e-5, tf.bfloat16: 5e-2}[dtype]
    check(lambda ops, *x: ops.attend(*x, scores, 0.3, seed, again=again), exact, tensors, precision, slack)


@pytest.mark.parametrize("dtype", TYPES.values(), ids=TYPES)
@pytest.mark.parametrize("parts", [1, 3])
@pytest.mark.parametrize("batch,length", [(3, 7), (2, 80), (0, 7)])
def test_heads(batch, length, parts, dtype):
    heads, size = 4, 5
    columns = parts * heads * size
    products, bias = draw(batch, length, columns, dtype=dtype), draw(columns, seed=1, dtype=dtype)

    def call(ops, products, bias):
        return tf.stack(ops.split_heads(products, bias, parts, heads))

    def together(ops, *inputs):
        return ops.join_heads(tf.reshape(call(ops, *inputs), [-1, heads, length, size]))

    for function in (call, together):
        exact = functools.partial(function, plain)
        check(function, exact, [products, bias], PRECISION[dtype])
    without = native.split_heads(products, None, parts, heads)
    np.testing.assert_array_equal(without, plain.split_heads(products, None, parts, heads))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dtype", TYPES.values(), ids=TYPES)
def test_what_is_not_finite_is_seen(dtype, bad):
    """The loss scale must find every overflow in the gradients."""
    spoiled = np.zeros([2, 40], np.float32)
    spoiled[1, 17] = bad
    x, zeros, ones = tf.cast(spoiled, dtype), tf.zeros([40], dtype), tf.ones([40])
    good = draw(2, 40, dtype=dtype)
    norm = Norm(ones, tf.zeros([40]))

    def gradient_of(function, tensor):
        with tf.GradientTape() as tape:
            tape.watch(tensor)
            result = function(tensor)
        return tape.gradient(result, tensor, output_gradients=x)

    for spoil in (
        lambda t: native.residual_norm(t, zeros, good, norm, 1e-12, 0.0, None),
        lambda t: native.residual_norm(good, zeros, t, norm, 1e-12, 0.0, None),
    ):
        rows = tf.cast(spoil(x), tf.float32)
        assert np.isnan(rows[1]).all() and np.isfinite(rows[0]).all()
        assert not np.isfinite(tf.cast(gradient_of(spoil, good)[1], tf.float32)).any()
    for activation in FUNCTIONS:
        activate = functools.partial(native.bias_activation, bias=zeros, activation=activation)
        result = tf.cast(activate(x), tf.float32).numpy()
        assert bad == -np.inf or not np.isfinite(result[1, 17])
        assert np.isfinite(np.delete(result, 17, axis=1)).all()
        found = tf.cast(gradient_of(activate, tf.ones_like(good))[1, 17], tf.float32)
        assert not np.isfinite(found)
    four = tf.reshape(x, [1, 2, 5, 8])
    mask = tf.zeros([1, 1, 1, 5])
    fine = draw(1, 2, 5, 8, dtype=dtype)
    for tensors in ((four, fine, fine), (fine, four, fine), (fine, fine, four)):
        assert not np.isfinite(tf.cast(native.attend(*tensors, mask, 0.0, None), tf.float32)).all()
    losses = native.cross_entropy(tf.constant(spoiled), tf.constant([1, 2]))
    assert np.isfinite(losses[0]) and (not np.isfinite(losses[1]) or bad == -np.inf)


@pytest.mark.parametrize("scale", [1.0, 30.0, 1e4])
@pytest.mark.parametrize("ops", [fused, native], ids=["fused", "native"])
def test_cross_entropy_is_the_plain_one(ops, scale):
    generator = np.random.default_rng(0)
    logits = tf.constant(scale * generator.normal(size=[3, 4, 50]), tf.float32)
    labels = tf.constant(generator.integers(0, 50, [3, 4]), tf.int32)
    ours, theirs = (
        with_gradients(lambda x, kind=kind: kind.cross_entropy(x, labels), logits) for kind in (ops, plain)
    )
    np.testing.assert_allclose(ours[0], theirs[0], rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(ours[1], theirs[1], atol=1e-6)


def test_labels_that_do_not_exist_are_refused():
    for label in (-1, 5):
        with pytest.raises(tf.errors.InvalidArgumentError, match="a label is negative or not less"):
            native.cross_entropy(tf.zeros([1, 5]), tf.constant([label]))


def test_rotary_attention_is_that_of_plain_operations_in_all_types():
    """Rows of several sequences and padding, longer and shorter than a block; heads of several widths."""
    problems = []
    cases = ((200, 2, 20, None), (260, 1, 64, 64), (97, 1, 64, 30), (5, 3, 6, 1), (1, 1, 2, None))
    for length, heads, size, reach in cases:
        rows = np.minimum(np.arange(length) // 40 + 1, 3), np.arange(length) < 60
        ids = tf.constant(np.stack(rows), tf.int32)
        angles = draw(1, length, size // 2)
        places = np.arange(length)
        near = np.abs(places[:, None] - places) <= (length if reach is None else reach)

        def exact(products, ids=ids, angles=angles, near=near, heads=heads):
            turned = plain.rotate(products, tf.cos(angles), tf.sin(angles), heads)
            is_seen = tf.equal(ids[:, :, None], ids[:, None]) & near
            scores = (1.0 - tf.cast(is_seen, tf.float32))[:, None] * -10000.0
            outputs = plain.attend(*plain.split_heads(turned, None, 3, heads), scores, 0.0, None)
            return plain.join_heads(outputs) * tf.cast(ids > 0, products.dtype)[..., None]

        def attend(products, ids=ids, angles=angles, heads=heads, reach=reach):
            turns = tf.cos(angles), tf.sin(angles)
            return native.rotary_attention(products, *turns, ids, heads, reach, 0.0, None)

        for dtype in TYPES.values():
            products = draw(2, length, 3 * heads * size, dtype=dtype)
            expected = with_gradients(exact, tf.cast(products, tf.float32))
            found = with_gradients(attend, products)
            errors = [np.abs(x - y).max() / np.abs(y).max() for x, y in zip(found, expected)]
            limit = 1e-5 if dtype == tf.float32 else 3e-2
            problems += [f"{length}, {dtype.name}: {errors}"] if max(errors) > limit else []
    assert not problems


def test_rotary_attention_drops_the_same_weights_forward_and_backward():
    products, values = draw(1, 100, 3 * 32), draw(1, 100, 32, seed=1)
    angles, ids = tf.ones([1, 100, 8]), tf.ones([1, 100], tf.int32)

    def attend(products):
        return native.rotary_attention(products, angles, 0 * angles, ids, 2, None, 0.4, tf.constant(SEED))

    outputs, gradient = with_gradients(attend, products)
    # It is linear in the values: a difference of any length is the derivative.
    moved = tf.concat([products[..., :64], products[..., 64:] + values], axis=-1)
    difference = np.sum((attend(moved).numpy() - outputs) * draw(*outputs.shape, seed=9))
    np.testing.assert_allclose(np.sum(gradient[..., 64:] * values), difference, rtol=1e-4)
    whole = native.rotary_attention(products, angles, 0 * angles, ids, 2, None, 0.0, None)
    assert np.abs(outputs - whole).max() > 0.01
    np.testing.assert_allclose(outputs.mean(), whole.numpy().mean(), atol=0.02)
