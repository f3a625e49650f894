"""One model, however it is computed: the outputs and gradients of plain operations on whole rows; what is
left out of its last block, and kept and computed again in the backward pass."""

import functools

import numpy as np
import pytest
import tensorflow as tf

from official.config import BertConfig, encoder_options
from official.modeling import varlen
from official.modeling.layers import after
from official.modeling.models import BertPretrainer, SequenceModel, SpanModel
from official.planning import graph_cost
from official.planning.graph import FlatGraph, execution_order, peak_bytes
from tests import fixtures
from tests.fixtures import TINY
from tests.modeling import models

GROUPS = dict(groupbert_ffn_output_groups=2, groupbert_conv_group_size=8)
MODELS = dict(pretrainer=BertPretrainer, sequence=functools.partial(SequenceModel, outputs=3), span=SpanModel)
INTEGERS = {name: value for name, value in models.features().items() if value.dtype == np.int32}
BATCHES = {
    "rows": INTEGERS,
    "packed": models.packed(),
    "predicted first": {name: value for name, value in INTEGERS.items() if name != "masked_lm_positions"},
}
SEED = (3, 4)
EXACT, ROUNDED = (0.0, 0.0), (1e-5, 1e-4)  # of outputs, of gradients
POLICIES = {"mixed_bfloat16": 0.15, "mixed_float16": 0.02}


def any_size(shape):
    return [None, None]


def any_rows(shape):
    return [None, shape[1]]


@pytest.fixture(autouse=True)
def _short_rows(monkeypatch):
    monkeypatch.setattr(varlen, "MIN_ROW_LENGTH", 8)


@functools.cache
def reference(name: str, batch: str, seed, options: tuple, **sizes):
    """Returns the configuration of a model, the model of plain operations, its outputs and gradients."""
    rates = models.RATES if seed else {}
    config = BertConfig(**{**TINY, **GROUPS, **rates, **sizes})
    model = models.randomised(MODELS[name](config, **dict(options)))
    return config, model, models.outputs_and_gradients(model, BATCHES[batch], seed and tf.constant(seed))


def slow(*cases: dict) -> list:
    return list(map(fixtures.slow, cases))


AGAIN = [dict(recompute=again, seed=SEED) for again in ("attention", "block")]
GROUPBERT = dict(block_type="groupbert")
OPERATIONS = dict(seed=SEED, shared=True, hidden_act="gelu_erf")
NARROW = dict(narrow=True, kernels="fused")
ONE = dict(num_hidden_layers=1)  # where the order of layers is not the matter
CASES = [
    # Operations.
    *slow(dict(kernels="fused")),
    dict(kernels="native"),
    *slow(*(dict(OPERATIONS, kernels=kernels) for kernels in ("fused", "native"))),
    *slow(dict(kernels="fused", seed=SEED, batch="packed", jit_compile=True)),  # --enable_xla: the same masks
    # Types.
    *slow(*(dict(policy=policy) for policy in POLICIES)),
    *slow(*(dict(kernels="fused", seed=SEED, shared=True, policy=policy) for policy in POLICIES)),
    *slow(*(dict(kernels="native", seed=SEED, shared=True, policy=policy) for policy in POLICIES)),
    *slow(dict(GROUPBERT, batch="packed", kernels="fused", policy="mixed_float16")),
    *slow(dict(kernels="fused", batch="packed", by_sequence=True, policy="mixed_bfloat16")),
    dict(kernels="fused", shared=True, policy="mixed_bfloat16"),
    # Sequence by sequence.
    *slow(dict(kernels="fused", seed=SEED, batch="packed", by_sequence=True)),
    # Only the vectors that heads read, in the last block.
    dict(ONE, narrow=True, kernels="fused", name="sequence"),
    *slow(dict(narrow=True), dict(NARROW, **GROUPBERT)),
    *slow(*(dict(NARROW, shared=True, batch="packed", name=name) for name in MODELS)),
    # Spans read padding, which is zero sequence by sequence.
    dict(ONE, narrow=True, kernels="fused", batch="packed", by_sequence=True, sizes=any_rows),
    *slow(
        *(dict(NARROW, batch="packed", by_sequence=True, name=name) for name in ("pretrainer", "sequence"))
    ),
    dict(ONE, narrow=True, batch="predicted first"),
    dict(NARROW, recompute="attention", shared=True),
    *slow(dict(NARROW, recompute="block")),
    *slow(*(dict(GROUPBERT, narrow=True, kernels="fused", batch="packed", name=name) for name in MODELS)),
    # Without padding.
    dict(unpad=True, kernels="fused", narrow=True),
    *slow(dict(unpad=True, kernels="fused"), dict(unpad=True, kernels="fused", narrow=True, name="sequence")),
    *slow(*(dict(GROUPBERT, unpad=True, kernels="fused", narrow=narrow) for narrow in (False, True))),
    # What is computed again in the backward pass.
    *(dict(ONE, **each, shared=True, tolerance=EXACT) for each in AGAIN),
    *slow(
        *(dict(each, shared=True, tolerance=EXACT) for each in AGAIN),
        *(dict(each, kernels="fused", num_hidden_layers=1) for each in AGAIN),
        dict(AGAIN[1], kernels="fused", jit_compile=True, num_hidden_layers=1),
        *(dict(each, tolerance=EXACT, **more) for each in AGAIN for more in (GROUPBERT, dict(name="span"))),
        *(dict(each, kernels="fused", shared=True, batch="packed", by_sequence=True) for each in AGAIN),
        *(dict(each, kernels="fused", policy="mixed_bfloat16") for each in AGAIN),
        *(dict(each, kernels="fused", batch="packed", **GROUPBERT) for each in AGAIN),
    ),
    # A graph need not know the sizes of a batch.
    dict(ONE, **OPERATIONS, kernels="native", sizes=any_size, name="span"),
    *slow(
        dict(kernels="fused", seed=SEED, shared=True, batch="packed", sizes=any_size),
        dict(kernels="fused", seed=SEED, batch="packed", sizes=any_size, name="sequence"),
        dict(GROUPBERT, kernels="fused", seed=SEED, shared=True, batch="packed", sizes=any_size),
        dict(kernels="fused", seed=SEED, shared=True, batch="packed", by_sequence=True, sizes=any_rows),
    ),
]
OF_SIZES = ("block_type", "hidden_act", "num_hidden_layers")


def check(
    name="pretrainer",
    batch="rows",
    seed=None,
    policy=None,
    tolerance=ROUNDED,
    sizes=None,
    jit_compile=False,
    **options,
):
    """Compares a model with that of plain operations.

    Args:
      name, batch: of `MODELS` and `BATCHES`.
      seed: of dropout, whose masks are others sequence by sequence: in both models, then.
      policy: of mixed precision.
      tolerance: of outputs and gradients.
      sizes: what of a shape is known to the graph.
      jit_compile: whether the step is compiled as a whole.
      **options: of the model; those of `OF_SIZES` are of its configuration.
    """
    of_sizes = {key: options.pop(key) for key in OF_SIZES if key in options}
    own = ("shared",) if tolerance == EXACT else ("by_sequence",) if seed else ()
    both = tuple((key, options[key]) for key in own if key in options)
    config, whole, expected = reference(name, batch, seed, both, **of_sizes)
    if policy:
        tf.keras.mixed_precision.set_global_policy(policy)
    model = models.copy_weights(whole, MODELS[name](config, **options))
    of_graph = {"jit_compile": jit_compile}
    if sizes:
        specs = {key: tf.TensorSpec(sizes(value.shape), tf.int32) for key, value in BATCHES[batch].items()}
        of_graph["input_signature"] = [specs]
    found = models.outputs_and_gradients(model, BATCHES[batch], seed and tf.constant(seed), **of_graph)
    if policy:
        models.assert_near(found, expected, POLICIES[policy])
    else:
        models.assert_same(found, expected, *tolerance)


@pytest.mark.parametrize("case", CASES)
def test_a_model_is_the_plain_one(case):
    check(**case)


@pytest.mark.parametrize(
    "block_type,kernels",
    [("bert", "fused"), fixtures.slow("bert", "plain"), fixtures.slow("groupbert", "fused")],
)
def test_packed_sequences_are_the_separate_ones(block_type, kernels):
    config = BertConfig(**{**TINY, **ONE}, **GROUPS, block_type=block_type)
    model = models.randomised(BertPretrainer(config, kernels, shared=kernels == "fused"))
    (masked, relation), gradients = models.outputs_and_gradients(model, models.packed())
    (masked_alone, relation_alone), expected = models.outputs_and_gradients(model, models.separate())
    found = [tf.reshape(masked, masked_alone.shape), relation[0]]
    models.assert_same((found, gradients), ([masked_alone, relation_alone], expected), 1e-5)


@pytest.mark.parametrize("options", [dict(narrow=True), dict(by_sequence=True)], ids=str)
def test_dropout_is_a_function_of_the_seed(options):
    model = models.randomised(BertPretrainer(BertConfig(**{**TINY, **models.RATES}), **options))
    batch = BATCHES["packed" if "by_sequence" in options else "rows"]
    runs = [model(batch, dropout_seed=tf.constant(seed))[0].numpy() for seed in ([1, 2], [1, 2], [1, 3])]
    assert (runs[0] == runs[1]).all() and not np.allclose(runs[0], runs[2], atol=1e-3)
    assert not np.allclose(runs[0], model(batch)[0], atol=1e-3)


def test_the_products_that_a_narrow_last_block_leaves_out(make_config):
    batch, rows = models.features(), 3
    spec = {name: tf.TensorSpec([None, *value.shape[1:]], value.dtype) for name, value in batch.items()}

    def flops(narrow: bool) -> int:
        make = functools.partial(BertPretrainer, BertConfig(**TINY), narrow=narrow)
        return graph_cost.forward_cost(make, lambda model: model(graph_cost.symbolic_batch(spec, rows))).flops

    length, reads = batch["input_ids"].shape[1], 1 + batch["masked_lm_positions"].shape[1]
    hidden, inner = TINY["hidden_size"], TINY["intermediate_size"]
    of_a_vector = 2 * (2 * hidden * hidden + 2 * hidden * inner + 2 * length * hidden)
    assert flops(False) - flops(True) == rows * (length - reads) * of_a_vector
    assert encoder_options(make_config())["narrow"]
    assert not encoder_options(make_config(distribution_strategy="ipu"))["narrow"]


# ------------------------------------------------------------------------------------------------------------
# What is computed again in the backward pass


ROWS, LENGTH = 4, 128
SIZES = {**TINY, **models.RATES, "max_position_embeddings": LENGTH}


def test_it_works_outside_of_graphs_and_without_dropout():
    config, batch = BertConfig(**{**SIZES, "num_hidden_layers": 1}), models.features()
    whole = models.randomised(BertPretrainer(config))
    expected = models.outputs_and_gradients(whole, batch)
    tf.config.run_functions_eagerly(True)
    try:
        for again in ("attention", "block"):
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
        flat = FlatGraph()
        flat.add(graph, graph.get_operations())
    kept = [flat.numbers[tensor.name] for tensor in results]
    return flat, execution_order(flat, kept), kept


@pytest.mark.slow
@pytest.mark.parametrize("kernels,shared", [("plain", True), ("fused", True), ("fused", False)])
@pytest.mark.parametrize("block_type", ["bert", "groupbert"])
def test_less_is_kept(block_type, shared, kernels):
    peaks = {}
    for again in ("none", "attention", "block"):
        flat, order, kept = graph_of([3, 4], block_type, 6, recompute=again, kernels=kernels, shared=shared)
        peaks[again] = peak_bytes(flat, order, kept)
    assert peaks["block"] < 0.7 * peaks["attention"] and peaks["attention"] < 0.85 * peaks["none"]


@pytest.mark.slow
@models.OPERATIONS
def test_a_step_computes_again_what_was_asked_and_an_evaluation_nothing(kernels):
    def flops(again, seed):
        flat, order, _ = graph_of(seed, recompute=again, kernels=kernels, shared=True)
        return sum(flat.nodes[index].flops for index in order)

    hidden, inner, layers = SIZES["hidden_size"], SIZES["intermediate_size"], 2
    product = 2 * ROWS * LENGTH * LENGTH * hidden  # of query and key; that with the values has as many
    dense = 2 * ROWS * LENGTH * (4 * hidden * hidden + 2 * hidden * inner)
    none, attention, block = (flops(again, [3, 4]) for again in ("none", "attention", "block"))
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
