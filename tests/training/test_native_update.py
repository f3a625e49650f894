"""Runs with the native update and without: the same to rounding, one checkpoint, copies never out of date."""

import numpy as np
import pytest
import tensorflow as tf

from official.optimization.optimizers import NativeOptimizer
from official.training import resume, run_lock
from tests.run_folders import assert_same_state, run, state_of
from tests.training.test_training import DROPOUT, LOCAL, make_loop, replicas, run_steps, slow, train, values


def copies_of(loop) -> dict[str, tf.Variable]:
    optimizer = loop.state.optimizer
    assert isinstance(optimizer, NativeOptimizer)
    return optimizer.make_copies([], tf.bfloat16)


def assert_copies(loop) -> None:
    copies = copies_of(loop)
    by_name = {variable.name: variable for variable in loop.state.model.trainable_variables}
    assert len(copies) > 20 and "bert/embeddings/word_embeddings:0" in copies
    assert not [name for name in copies if "LayerNorm" in name]
    for name, copy in copies.items():
        for own, master in zip(*map(loop.strategy.experimental_local_results, (copy, by_name[name]))):
            expected = tf.cast(master.read_value(), own.dtype).numpy()
            np.testing.assert_array_equal(own.numpy(), expected, err_msg=name)


@pytest.mark.parametrize(
    "settings",
    [
        dict(dtype="bf16", **replicas(2)),
        slow(dict(dtype="bf16", num_accumulation_steps=2, **LOCAL)),
        slow(dict(dtype="bf16", recompute="block", optimizer_type="adamw")),
        slow(dict(dtype="fp16")),
        slow(dict(dtype="fp32", **replicas(2))),
    ],
    ids=str,
)
def test_steps_are_those_of_tensorflow(make_config, settings):
    shared = dict(model=DROPOUT, learning_rate=1e-3) | settings
    loop = make_loop(make_config(**shared, kernels="native"))
    run_steps(loop, loop._train_iterator(), 3)
    ours, theirs = values(loop.state), train(make_config(**shared, kernels="fused"), 3)
    assert ours.keys() == theirs.keys()
    for name, value in theirs.items():
        # A weight is a bf16 number in a product: where rounding differs, so does all behind it, slightly.
        tolerance = 2e-6 if settings["dtype"] == "fp32" else 1e-3
        np.testing.assert_allclose(ours[name], value, rtol=1e-3, atol=tolerance, err_msg=name)
    if settings["dtype"] != "fp32":
        assert_copies(loop)
    else:
        assert not copies_of(loop)


def test_a_step_casts_no_kernel_and_no_gradient_of_one(make_config):
    def casts(kernel: str) -> int:
        loop = make_loop(make_config(dict(num_hidden_layers=2), dtype="bf16", kernels=kernel))
        arguments = loop._train_iterator(), tf.constant(1), loop.nothing
        graph = loop.train_loop.get_concrete_function(*arguments).graph.as_graph_def()
        nodes = [node for function in graph.library.function for node in function.node_def]
        return sum(node.op == "Cast" for node in [*graph.node, *nodes])

    before, after = casts("fused"), casts("native")
    # Two a weight less, forward and back, but for the start of a call, and the table's gradient.
    assert after < before - 20


def test_copies_follow_what_changes_the_weights_from_outside(make_config):
    loop = make_loop(make_config(dtype="bf16"))
    iterator = loop._train_iterator()
    run_steps(loop, iterator, 1)
    for variable in loop.state.model.trainable_variables:
        variable.assign(variable * 0.5)
    run_steps(loop, iterator, 0)
    assert_copies(loop)


def test_an_update_that_is_skipped_changes_nothing(make_config):
    loop = make_loop(make_config(dtype="bf16", loss_scale="dynamic"))
    iterator = loop._train_iterator()
    run_steps(loop, iterator, 1)
    loop.state.loss_scale.scale.assign(3e38)  # the loss overflows
    before = values(loop.state)
    totals = run_steps(loop, iterator, 1)
    after = values(loop.state)
    assert int(totals["skipped"]) == 1 and after["global_step"] == before["global_step"] + 1
    changed = {"global_step", "samples", "loss_scale/scale", "loss_scale/good_steps"}
    assert_same_state(after, {name: value for name, value in before.items() if name not in changed})
    assert_copies(loop)


@pytest.mark.parametrize("kernels", [("native", "fused"), ("fused", "native")])
def test_a_checkpoint_of_one_is_a_checkpoint_of_the_other(make_config, kernels, tmp_path):
    first, second = kernels
    shared = dict(dtype="bf16", num_steps_per_epoch=8, steps_per_loop=2, stop_steps=2)
    run(make_config(**shared, kernels=first))
    config = make_config(**shared, kernels=second)
    loop = make_loop(config)
    resume.restore(config, loop.manager, loop.state, run_lock.PreviousRun(config.model_dir), loop.task, list)
    saved = state_of(config.model_dir, 2)
    assert loop.state.step == 2 and not [name for name in saved if "copy" in name]
    assert_same_state(values(loop.state), {name: saved[name] for name in values(loop.state)})
