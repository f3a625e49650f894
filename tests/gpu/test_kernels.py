"""Without a GPU, too: every operation of a step has a kernel for GPUs."""

import pytest
import tensorflow as tf

from tests.gpu.devices import small_config
from tests.gpu.kernels import without_kernel
from tests.gpu.steps import make_step

KINDS = {
    "fused": {},
    "plain": dict(kernels="plain", dtype="fp16"),
    "packed": dict(pack_on_the_fly=True, max_sequences_per_pack=3, num_accumulation_steps=2),
    "groupbert": dict(model=dict(block_type="groupbert"), optimizer_type="adamw"),
    "recompute": dict(recompute="block", dtype="bf16"),
    "xla": dict(enable_xla=True, dtype="fp16"),
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
    step = make_step(small_config(**{"kernels": "fused", **settings, "model": model}))
    function = step.loop().get_concrete_function(step.batches(), tf.constant(1), step.nothing())
    assert not without_kernel(function.graph.as_graph_def())


def test_what_has_no_kernel_is_seen():
    @tf.function
    def inner(words):
        return tf.unstack(words, num=2)[0]

    graph = tf.function(lambda x: inner(tf.bitcast(x, tf.uint32))).get_concrete_function(
        tf.TensorSpec([2], tf.int32)
    )
    assert without_kernel(graph.graph.as_graph_def()) == {("Unpack", "uint32"): 1}
