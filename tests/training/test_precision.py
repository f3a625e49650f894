"""The native update, whose copies of the weights are never out of date, and --allreduce_dtype: the same to
rounding as float32; overflows are seen."""

import numpy as np
import pytest
import tensorflow as tf

from official.config import ConfigError, replaced
from official.distribution import strategy as strategy_lib
from official.optimization import replica_step
from official.optimization.optimizers import NativeOptimizer
from official.optimization.train_state import LossScale
from official.training import resume, run_lock
from tests.fixtures import slow
from tests.run_folders import assert_same_state, state_of
from tests.training.test_training import DROPOUT, LOCAL, make_loop, replicas, run_steps, train, values


def copies_of(loop) -> dict[str, tf.Variable]:
    optimizer = loop.state.optimizer
    assert isinstance(optimizer, NativeOptimizer)
    return optimizer.make_copies([], tf.bfloat16)


def assert_copies(loop) -> None:
    copies = copies_of(loop)
    by_name = {variable.name: variable for variable in loop.state.model.trainable_variables}
    assert len(copies) > 15 and "bert/embeddings/word_embeddings:0" in copies
    assert not [name for name in copies if "LayerNorm" in name]
    for name, copy in copies.items():
        for own, master in zip(*map(loop.strategy.experimental_local_results, (copy, by_name[name]))):
            expected = tf.cast(master.read_value(), own.dtype).numpy()
            np.testing.assert_array_equal(own.numpy(), expected, err_msg=name)


BF16 = dict(dtype="bf16")
STEPS = [BF16 | replicas(2), dict(BF16, num_accumulation_steps=2, **LOCAL), dict(dtype="fp16")]
STEPS += [dict(BF16, recompute="block", optimizer_type="adamw"), dict(dtype="fp32", **replicas(2))]


@pytest.mark.slow
@pytest.mark.parametrize("settings", STEPS, ids=str)
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


@pytest.mark.slow
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


# Of two replicas that send the sums of their micro batches in two bytes. Three tests share its graph.
NARROW = dict(dtype="bf16", kernels="native", allreduce_dtype="float16", loss_scale="dynamic", **LOCAL)
NARROW |= dict(num_accumulation_steps=2, learning_rate=1e-3, **replicas(2))


def test_copies_follow_the_weights_and_an_update_that_is_skipped_changes_nothing_but_the_scale(make_config):
    loop = make_loop(make_config(**NARROW))
    iterator = loop._train_iterator()
    run_steps(loop, iterator, 1)
    for variable in loop.state.model.trainable_variables:
        variable.assign(variable * 0.5)
    run_steps(loop, iterator, 0)
    assert_copies(loop)
    loop.state.loss_scale.scale.assign(3e38)  # the loss overflows
    before = values(loop.state)
    totals = run_steps(loop, iterator, 1)
    after = values(loop.state)
    assert (totals["skipped"], totals["bad_step"]) == (1, -1)
    assert (after["global_step"], after["samples"]) == (2, 16)
    assert after["loss_scale/scale"] == before["loss_scale/scale"] / 2
    changed = {"global_step", "samples", "loss_scale/scale", "loss_scale/good_steps"}
    assert_same_state(after, {name: value for name, value in before.items() if name not in changed})
    assert_copies(loop)


@pytest.mark.parametrize("kernels", [("native", "fused"), slow(("fused", "native"))])
def test_a_checkpoint_of_one_is_a_checkpoint_of_the_other(make_config, kernels, tmp_path):
    first, second = kernels
    ours = make_loop(make_config(**{**NARROW, "kernels": first}))
    run_steps(ours, ours._train_iterator(), 2)
    ours.manager.save(2)
    config = make_config(**{**NARROW, "kernels": second})
    loop = make_loop(config)
    resume.restore(config, loop.manager, loop.state, run_lock.PreviousRun(config.model_dir), loop.task, list)
    saved = state_of(config.model_dir, 2)
    assert loop.state.step == 2 and not [name for name in saved if "copy" in name]
    assert_same_state(values(loop.state), {name: saved[name] for name in values(loop.state)})


# ------------------------------------------------------------------------------------------------------------
# Sums over replicas in two bytes


DTYPES = ("bfloat16", "float16")
EPSILON = {"float32": 2.0**-24, "bfloat16": 2.0**-8, "float16": 2.0**-11}  # of rounding once


def sums_of(config, given: list[np.ndarray], scale: float = 1.0, divisor: float = 1.0):
    """Returns the gradient, true and reduced, of replicas that have those ones times `divisor`."""
    strategy = strategy_lib.make_strategy(config)
    with strategy.scope():
        loss_scale = LossScale(scale, dynamic=False)

    @tf.function(autograph=False)
    def add_up():
        def own():
            number = tf.distribute.get_replica_context().replica_id_in_sync_group
            own = replica_step.Gradients([tf.gather(np.stack(given), number) * divisor], divisor)
            narrow = replica_step.narrow(config, own, loss_scale)
            reduced, sums = replica_step.reduce_across_replicas(config, narrow, tf.ones([2]))
            return reduced.tensors[0] / reduced.divisor, sums

        return strategy.run(own)

    found, sums = add_up()
    assert strategy.experimental_local_results(sums)[0].numpy().tolist() == [2.0, 2.0]
    return [each.numpy() for each in strategy.experimental_local_results(found)]


@pytest.mark.parametrize("explicit", [False, True], ids=["", "packs"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_two_replicas_add_up_what_the_type_can_hold(make_config, dtype, explicit):
    given = [np.random.default_rng(rank).normal(size=1000).astype(np.float32) for rank in range(2)]
    config = make_config(**replicas(2), allreduce_dtype=dtype, loss_scale="8", explicit_allreduce=explicit)
    ours, theirs = sums_of(config, given, scale=8.0)
    narrow = tf.as_dtype(dtype)
    expected = tf.cast(tf.add(*[tf.cast(each, narrow) for each in given]), tf.float32)
    np.testing.assert_array_equal(ours, expected)
    np.testing.assert_array_equal(ours, theirs)
    assert np.abs(ours - sum(given)).max() > 0


def test_float16_sends_the_gradient_times_the_loss_scale_and_nothing_larger(make_config):
    """16 micro batches and replicas more would be infinite, and a loss scale less would be 0."""
    config = make_config(**replicas(2), allreduce_dtype="float16", loss_scale="1024")
    given = [np.full([3], value, np.float32) for value in (20.0, 40.0)]
    for found in sums_of(config, given, scale=1024.0, divisor=1024.0 * 16):
        np.testing.assert_array_equal(found, [60.0] * 3)
    for found in sums_of(config, [np.full([3], 1e-8, np.float32)] * 2, scale=1024.0, divisor=1.0):
        np.testing.assert_allclose(found, [2e-8] * 3, rtol=1e-2)
    for found in sums_of(config, given, scale=2048.0, divisor=1.0):
        assert np.isinf(found).all()


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [
        dict(allreduce_dtype="bfloat16", dtype="bf16"),
        NARROW,
        dict(allreduce_dtype="float16", loss_scale="dynamic", num_accumulation_steps=2, **LOCAL),
        dict(allreduce_dtype="float16", dtype="fp16"),
        dict(allreduce_dtype="bfloat16", explicit_allreduce=True, allreduce_bytes_per_pack=5000),
    ],
    ids=str,
)
def test_weights_are_those_of_float32_sums_to_rounding(make_config, settings):
    shared = {**replicas(2), **settings, "learning_rate": 1e-3}
    ours = train(make_config(**shared), 3)
    theirs = train(make_config(**{**shared, "allreduce_dtype": "float32"}), 3)
    moments = [name for name in ours if name.endswith("lamb_m") and "key/bias" not in name]
    assert moments
    for name in moments:  # what is linear in the gradients
        error = np.linalg.norm(ours[name] - theirs[name]) / max(np.linalg.norm(theirs[name]), 1e-30)
        assert error < 8 * EPSILON[settings["allreduce_dtype"]], name
    assert any(np.any(ours[name] != theirs[name]) for name in moments)


@pytest.mark.slow
def test_an_overflow_of_the_sum_skips_the_step(make_config):
    """The gradients themselves are float32, in which nothing overflows."""
    config = make_config(**replicas(2), allreduce_dtype="float16", loss_scale="dynamic")
    loop = make_loop(config)
    iterator = loop._train_iterator()
    loop.state.loss_scale.scale.assign(2.0**30)
    before = values(loop.state)
    totals = run_steps(loop, iterator, 1)
    after = values(loop.state)
    assert int(totals["skipped"]) == 1 and after["loss_scale/scale"] == 2.0**29
    for name, variable in loop.state.model_variables().items():
        np.testing.assert_array_equal(after[name], before[name], err_msg=name)
        assert np.isfinite(variable.numpy()).all()
    wide = make_loop(replaced(config, allreduce_dtype="float32"))
    wide.state.loss_scale.scale.assign(2.0**30)
    assert int(run_steps(wide, wide._train_iterator(), 1)["skipped"]) == 0


def test_nccl_does_not_add_up_bfloat16(make_config):
    hosts = dict(worker_hosts="a:1,b:1", task_index=0)
    for strategy, other, more in (
        ("mirrored", "hierarchical_copy", {}),
        ("multi_worker_mirrored", "ring", hosts),
    ):
        config = make_config(distribution_strategy=strategy, allreduce_dtype="bfloat16", **more)
        with pytest.raises(ConfigError, match=f"can reduce with NCCL.*--all_reduce_alg={other}"):
            strategy_lib.check_all_reduce(config, on_gpus=True)
        strategy_lib.check_all_reduce(config, on_gpus=False)
        strategy_lib.check_all_reduce(replaced(config, all_reduce_alg=other), on_gpus=True)
