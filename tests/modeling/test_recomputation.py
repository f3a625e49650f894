"""Blocks and attention that are computed again in the backward pass: what is kept, and what is computed."""

import numpy as np
import pytest
import tensorflow as tf

from official.config import BertConfig
from official.modeling.layers import after
from official.modeling.models import BertPretrainer
from official.planning.graph import FlatGraph, execution_order, peak_bytes
from tests.conftest import TINY
from tests.modeling import models

AGAIN = ("attention", "block")
ROWS, LENGTH = 4, 128
SIZES = {**TINY, **models.RATES, "max_position_embeddings": LENGTH}


def test_it_works_outside_of_graphs_and_without_dropout():
    config, batch = BertConfig(**{**SIZES, "num_hidden_layers": 1}), models.features()
    whole = models.randomised(BertPretrainer(config))
    expected = models.outputs_and_gradients(whole, batch)
    tf.config.run_functions_eagerly(True)
    try:
        for again in AGAIN:
            model = models.copy_weights(whole, BertPretrainer(config, recompute=again))
            models.assert_same(models.outputs_and_gradients(model, batch), expected, 1e-5, 1e-4)
    finally:
        tf.config.run_functions_eagerly(False)


def graph_of(seed, block_type="bert", layers=2, **options):
    """Returns the graph of a step, or of an evaluation where the seed is None, its order, and its results."""
    config = BertConfig(**{**SIZES, "block_type": block_type, "num_hidden_layers": layers})
    batch = {name: np.ones([ROWS, LENGTH], np.int32) for name in ("input_ids", "input_mask", "segment_ids")}
    batch["masked_lm_positions"] = np.arange(3 * ROWS, dtype=np.int32).reshape([ROWS, 3])
    with tf.Graph().as_default() as graph:
        model = BertPretrainer(config, **options)
        outputs = model(batch, dropout_seed=None if seed is None else tf.constant(seed))
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

    hidden, inner, layers = SIZES["hidden_size"], SIZES["intermediate_size"], 2
    product = 2 * ROWS * LENGTH * LENGTH * hidden  # of query and key; that with the values has as many
    dense = 2 * ROWS * LENGTH * (4 * hidden * hidden + 2 * hidden * inner)
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
