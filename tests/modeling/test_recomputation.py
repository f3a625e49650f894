"""Blocks and attention that are computed again in the backward pass: the same bits, and less that is kept."""

import numpy as np
import pytest
import tensorflow as tf

from official.config import BertConfig
from official.modeling.layers import after
from official.modeling.models import BertPretrainer, SequenceModel, SpanModel
from official.planning.graph import FlatGraph, execution_order, peak_bytes
from tests.conftest import TINY
from tests.modeling.models import randomised

AGAIN = ("attention", "block")
SIZES = {
    **TINY,
    "hidden_dropout_prob": 0.2,
    "attention_probs_dropout_prob": 0.3,
    "max_position_embeddings": 128,
}
LENGTH = 128  # the shortest rows whose sequences are taken apart


def batch_of(packed=False, rows=2, length=LENGTH):
    generator = np.random.default_rng(0)
    features = {
        "input_ids": generator.integers(0, SIZES["vocab_size"], [rows, length]),
        "input_mask": np.ones([rows, length]),
        "segment_ids": generator.integers(0, 2, [rows, length]),
        "masked_lm_positions": generator.integers(0, length, [rows, 3]),
    }
    if packed:
        features["sequence_ids"] = np.tile(np.minimum(1 + np.arange(length) // 50, 2), [rows, 1])
    return {name: tf.constant(value, tf.int32) for name, value in features.items()}


def models(make, **options):
    """Returns models of the same weights with each value of `recompute`."""
    first = randomised(make(recompute="none", **options))
    found = {"none": first}
    for again in AGAIN:
        found[again] = make(recompute=again, **options)
        for variable, other in zip(found[again].variables, first.variables):
            variable.assign(other)
    return found


def pretrainer(block_type="bert", **changes):
    config = BertConfig(**{**SIZES, "block_type": block_type, **changes})
    return lambda **options: BertPretrainer(config, **options)


def make_step(model, batch, compiled=False):
    """Returns (seed) -> the outputs, then the gradients of all weights."""

    @tf.function(jit_compile=compiled)
    def run(seed):
        with tf.GradientTape() as tape:
            outputs = model(batch, dropout_seed=seed)
            objective = tf.add_n([tf.reduce_sum(tf.sin(output)) for output in tf.nest.flatten(outputs)])
        weights = model.trainable_variables
        return [*tf.nest.flatten(outputs), *map(tf.convert_to_tensor, tape.gradient(objective, weights))]

    return lambda seed: [value.numpy() for value in run(tf.constant(seed))]


def assert_same_bits(found, expected):
    for value, other in zip(found, expected):
        np.testing.assert_array_equal(value, other)


def assert_close(found, expected, rounding=1e-4):
    largest = max(np.abs(other).max() for other in expected)
    for value, other in zip(found, expected):
        # The true gradient of a key's bias is zero: rounding is all that is there.
        scale = max(np.abs(other).max(), 1e-2 * largest)
        np.testing.assert_allclose(value, other, atol=rounding * scale, rtol=0)


@pytest.mark.parametrize("block_type", ["bert", pytest.param("groupbert", marks=pytest.mark.slow)])
def test_plain_operations_have_the_same_bits(block_type):
    made = models(pretrainer(block_type), shared=True)
    steps = {again: make_step(model, batch_of()) for again, model in made.items()}
    for seed in ([3, 4], [5, 6], [-7, 8]):
        expected = steps["none"](seed)
        for again in AGAIN:
            assert_same_bits(steps[again](seed), expected)
    assert not np.array_equal(steps["block"]([3, 4])[0], expected[0])  # the masks follow from the seed


@pytest.mark.parametrize(
    "block_type,shared,packed,dtype",
    [
        ("bert", False, False, "float32"),
        pytest.param("bert", "fused", True, "float32", marks=pytest.mark.slow),
        pytest.param("bert", "fused", False, "mixed_bfloat16", marks=pytest.mark.slow),
        pytest.param("groupbert", "fused", False, "float32", marks=pytest.mark.slow),
        pytest.param("groupbert", "fused", True, "mixed_bfloat16", marks=pytest.mark.slow),
    ],
)
def test_fused_operations_give_the_same_to_rounding(block_type, shared, packed, dtype):
    tf.keras.mixed_precision.set_global_policy(dtype)
    make = pretrainer(block_type, num_hidden_layers=1)
    made = models(make, kernels="fused", shared=shared, by_sequence=packed)
    expected = make_step(made["none"], batch_of(packed))([3, 4])
    for again in AGAIN:
        found = make_step(made[again], batch_of(packed))([3, 4])
        assert_close(found, expected, 1e-4 if dtype == "float32" else 0.05)


@pytest.mark.parametrize("kernels", [pytest.param("plain", marks=pytest.mark.slow), "fused"])
def test_a_step_compiled_as_a_whole_gives_the_same(kernels):
    made = models(pretrainer(num_hidden_layers=1), kernels=kernels)
    batch = batch_of(length=16)
    expected = make_step(made["none"], batch, compiled=True)([3, 4])
    for again in AGAIN:
        assert_close(make_step(made[again], batch, compiled=True)([3, 4]), expected)


@pytest.mark.slow
@pytest.mark.parametrize("make", [SpanModel, lambda *given, **options: SequenceModel(*given, 2, **options)])
def test_models_for_fine_tuning_give_the_same(make):
    made = models(lambda **options: make(BertConfig(**SIZES), **options), shared=True)
    expected = make_step(made["none"], batch_of())([3, 4])
    for again in AGAIN:
        assert_same_bits(make_step(made[again], batch_of())([3, 4]), expected)


def test_it_works_outside_of_graphs_and_without_dropout():
    found = {}
    for again, model in models(pretrainer(num_hidden_layers=1)).items():
        with tf.GradientTape() as tape:
            masked, _ = model(batch_of(), dropout_seed=None)
            objective = tf.reduce_sum(tf.sin(masked))
        gradients = tape.gradient(objective, model.trainable_variables, unconnected_gradients="zero")
        found[again] = [np.array(tf.convert_to_tensor(each)) for each in (masked, *gradients)]
    for again in AGAIN:
        assert_close(found[again], found["none"])


def graph_of(seed, block_type="bert", layers=2, **options):
    """Returns the graph of a step, or of an evaluation where the seed is None, its order, and its results."""
    with tf.Graph().as_default() as graph:
        model = pretrainer(block_type, num_hidden_layers=layers)(**options)
        outputs = model(batch_of(rows=4), dropout_seed=None if seed is None else tf.constant(seed))
        results = list(outputs)
        if seed is not None:
            objective = tf.add_n([tf.reduce_sum(output) for output in outputs])
            results = tf.gradients(objective, [weight.handle for weight in model.trainable_variables])
        flat, numbers = FlatGraph(), {}
        flat.add(graph, graph.get_operations(), numbers)
    kept = [numbers[tensor.name] for tensor in results]
    return flat, execution_order(flat, kept), kept


@pytest.mark.slow
@pytest.mark.parametrize("kernels,shared", [("plain", True), ("fused", True), ("fused", False)])
@pytest.mark.parametrize("block_type", ["bert", "groupbert"])
def test_less_is_kept(block_type, shared, kernels):
    peaks = {}
    for again in ("none", *AGAIN):
        flat, order, kept = graph_of([3, 4], block_type, 6, recompute=again, kernels=kernels, shared=shared)
        peaks[again] = peak_bytes(flat, order, kept)
    assert peaks["block"] < 0.7 * peaks["attention"] and peaks["attention"] < 0.85 * peaks["none"]


@pytest.mark.parametrize("kernels", [pytest.param("plain", marks=pytest.mark.slow), "fused"])
def test_a_step_computes_again_what_was_asked_and_an_evaluation_nothing(kernels):
    def flops(again, seed):
        flat, order, _ = graph_of(seed, recompute=again, kernels=kernels, shared=True)
        return sum(flat.nodes[index].flops for index in order)

    rows, hidden, inner, layers = 4, SIZES["hidden_size"], SIZES["intermediate_size"], 2
    product = 2 * rows * LENGTH * LENGTH * hidden  # of query and key; that with the values has as many
    dense = 2 * rows * LENGTH * (4 * hidden * hidden + 2 * hidden * inner)
    none, attention, block = (flops(again, [3, 4]) for again in ("none", *AGAIN))
    assert attention - none == layers * product  # the values' product has no reader there
    assert block - none == layers * (dense + 2 * product)
    assert flops("none", None) == flops("attention", None) == flops("block", None) > 0


def test_after_waits_for_the_gradient_and_changes_nothing():
    values = tf.constant([-0.0, 1.5, float("inf")]), tf.constant([3, -4])
    for upstream in (tf.constant([1.0, float("nan")]), tf.constant([float("-inf")]), tf.zeros([0, 4])):
        for value, other in zip(after(upstream, values), values):
            assert value.numpy().tobytes() == other.numpy().tobytes()

    with tf.Graph().as_default():
        upstream, value = (tf.compat.v1.placeholder(tf.float32, [2]) for _ in range(2))
        (waiting,) = after(upstream, [value])
        with tf.compat.v1.Session() as session, pytest.raises(tf.errors.InvalidArgumentError, match="feed"):
            session.run(waiting, {value: [1.0, 2.0]})
