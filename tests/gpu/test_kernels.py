"""Without a GPU, too: every operation of a step has a kernel for GPUs, and XLA lowers what it compiles."""

import pytest
import tensorflow as tf

from official.tasks import TASKS
from tests.gpu.devices import small_config
from tests.gpu.kernels import can_lower, lowered, recorded_functions, without_kernel
from tests.gpu.steps import make_step

MODERNBERT = dict(family="modernbert", block_type="modernbert", local_attention=16)
HEADS = dict(model=dict(family="roberta", max_position_embeddings=66), max_predictions_per_seq=20)
KINDS = {
    "fused": {},
    "plain": dict(kernels="plain", dtype="fp16"),
    "packed": dict(pack_on_the_fly=True, max_sequences_per_pack=3, num_accumulation_steps=2),
    "groupbert": dict(model=dict(block_type="groupbert"), optimizer_type="adamw"),
    "recompute": dict(recompute="block", dtype="bf16"),
    "xla": dict(enable_xla=True, dtype="fp16"),
    "unpad": dict(unpad=True, dtype="bf16"),
    "unpad plain": dict(unpad=True, kernels="plain"),
    "electra": dict(model=dict(family="electra", embedding_size=64), objective="mlm"),
    "modernbert": dict(model=MODERNBERT, objective="mlm", unpad=True, dtype="bf16"),
    "squad": dict(HEADS, task="squad", optimizer_type="adamw", unpad=True, dtype="fp16"),
    "classes": dict(HEADS, task="glue", glue_task="mnli", optimizer_type="adam"),
    "numbers": dict(HEADS, task="glue", glue_task="stsb", model=MODERNBERT),
}
FAST = "fused"


@pytest.mark.skipif(not tf.test.is_built_with_cuda(), reason="this TensorFlow has no kernels for GPUs")
@pytest.mark.parametrize(
    "settings",
    [
        pytest.param(kind, id=name, marks=() if name == FAST else pytest.mark.slow)
        for name, kind in KINDS.items()
    ],
)
def test_every_operation_of_a_step_has_a_kernel_for_gpus(settings):
    model = {"num_hidden_layers": 1, **settings.get("model", {})}
    # As on a GPU: our own update is for CPUs.
    config = small_config(**{"kernels": "fused", **settings, "model": model})
    step = make_step(config, make_task=TASKS[config.task])
    with recorded_functions(step.strategy.run) as compiled:
        function = step.loop().get_concrete_function(step.batches(), tf.constant(1), step.nothing())
    assert not without_kernel(function.graph.as_graph_def())
    assert compiled or config.kernels == "plain"
    failures = {}
    for name, concrete in compiled.items():
        function = concrete()
        missing = without_kernel(function.graph.as_graph_def(), compiled=True)
        if missing:
            failures[name] = missing
        elif can_lower() and not function.captured_inputs:  # variables, which take a device that is there
            assert "ENTRY" in lowered(function), name
    assert not failures


@pytest.mark.skipif(not can_lower(), reason="this TensorFlow lowers for devices that are there alone")
def test_what_xla_does_not_lower_is_seen():
    function = tf.function(
        lambda x: tf.raw_ops.Where(condition=tf.py_function(lambda y: y > 0, [x], tf.bool))
    )
    with pytest.raises(ValueError, match="EagerPyFunc"):
        lowered(function.get_concrete_function(tf.TensorSpec([2])))


def test_what_has_no_kernel_is_seen():
    @tf.function
    def inner(words):
        return tf.unstack(words, num=2)[0]

    graph = tf.function(lambda x: inner(tf.bitcast(x, tf.uint32))).get_concrete_function(
        tf.TensorSpec([2], tf.int32)
    )
    graph = graph.graph.as_graph_def()
    assert without_kernel(graph) == {("Unpack", "uint32"): 1} and not without_kernel(graph, compiled=True)
    graph = tf.function(lambda x: tf.py_function(abs, [x], tf.float32)).get_concrete_function(
        tf.TensorSpec([2])
    )
    assert without_kernel(graph.graph.as_graph_def(), compiled=True) == {("EagerPyFunc", ""): 1}
