"""Training on the fake gives what plain TensorFlow gives: schedules, reductions, replicas, optimizers."""

import numpy as np
import pytest
import tensorflow as tf

from tests.graphcore import ipu_fake
from tests.graphcore.ipu_fake.two_stages import TwoStages, configure, train_plainly

pytestmark = pytest.mark.nightly

SGD = tf.compat.v1.train.GradientDescentOptimizer


@pytest.fixture(autouse=True)
def machine(monkeypatch):
    monkeypatch.delenv("TF_POPLAR_FLAGS", raising=False)
    with ipu_fake.installed(ipus=8) as made:
        yield made


class Summing(tf.compat.v1.train.Optimizer):
    """Adds gradients up over the replicas, then lets another optimizer apply them."""

    def __init__(self, opt):
        super().__init__(False, "Summing")
        self.opt = opt

    def apply_gradients(self, grads_and_vars, *args, **kwargs):
        from tensorflow.python.ipu.ops import cross_replica_ops

        # Scaled before and after, so that what lies between gradients and sum is not nothing.
        pairs = [(cross_replica_ops.cross_replica_sum(2.0 * g) / 2.0, v) for g, v in grads_and_vars]
        return self.opt.apply_gradients(pairs, *args, **kwargs)


def same(found, wanted):
    for a, b in zip(found, wanted):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("schedule", ["Grouped", "Interleaved", "Sequential"])
@pytest.mark.parametrize(
    "make", [lambda: SGD(0.05), lambda: tf.compat.v1.train.AdamOptimizer(0.05)], ids=["sgd", "adam"]
)
def test_two_stages_train_like_one_model(schedule, make):
    small = TwoStages(configure())
    schedules = small.ipu.pipelining_ops.PipelineSchedule
    function = small.optimizer_function(make())
    program = small.program(
        4, optimizer_function=function, pipeline_schedule=schedules[schedule], repeat_count=2
    )
    small.run(program, times=2)
    weights, losses = train_plainly(make, updates=4, count=4, replicas=1)
    same(small.values(), weights)
    same(small.outfeed.dequeue()[0].numpy(), losses)


@pytest.mark.parametrize("ipus, replicas", [(4, 2), (8, 4)])
def test_replicas_take_turns_at_the_infeed_and_add_up(ipus, replicas, machine):
    make = lambda: tf.compat.v1.train.MomentumOptimizer(0.02, 0.9)
    small = TwoStages(configure(ipus))
    small.run(small.program(4, optimizer_function=small.optimizer_function(Summing(make()))), times=2)
    weights, losses = train_plainly(make, updates=2, count=4, replicas=replicas)
    same(small.values(), weights)
    same(small.outfeed.dequeue()[0].numpy(), losses.reshape(8, replicas))
    assert (machine.compiled[-1].replicas, machine.compiled[-1].ipus_per_replica) == (replicas, 2)


def test_replicas_that_would_differ_are_refused():
    small = TwoStages(configure(4))
    with pytest.raises(RuntimeError, match="differ between the 2 replicas"):
        small.run(small.program(4, optimizer_function=small.optimizer_function(SGD(0.1))))


def test_a_sum_over_replicas_is_not_summed_again():
    small = TwoStages(configure(4))

    class Twice(SGD):
        def apply_gradients(self, grads_and_vars, *args, **kwargs):
            add = small.ipu.cross_replica_ops.cross_replica_sum
            return super().apply_gradients([(add(add(g)), v) for g, v in grads_and_vars], *args, **kwargs)

    with pytest.raises(RuntimeError, match="summed over the replicas already"):
        small.run(small.program(4, optimizer_function=small.optimizer_function(Twice(0.1))))


def test_reductions_belong_to_a_program():
    configure()
    from tensorflow.python.ipu.ops import cross_replica_ops

    with pytest.raises(RuntimeError, match="runs on the IPU"):
        cross_replica_ops.cross_replica_sum(tf.constant(1.0))


def test_outfeeds_of_training():
    _, losses = train_plainly(lambda: SGD(0.1), updates=2, count=4, replicas=1)
    for given, found in (
        ({"outfeed_loss": True}, lambda out: out),
        ({"outfeed_mask": [False]}, lambda out: out[0]),
    ):
        small = TwoStages(configure())
        function = small.optimizer_function(SGD(0.1))
        small.run(small.program(4, optimizer_function=function, repeat_count=2, **given))
        same(found(small.outfeed.dequeue()).numpy(), losses)
    small = TwoStages(configure())
    function = small.optimizer_function(SGD(0.1))
    program = small.program(4, optimizer_function=function, repeat_count=2, accumulate_outfeed=True)
    small.run(program)
    same(small.outfeed.dequeue()[0].numpy(), losses.reshape(2, 4).sum(1))


def test_inference_keeps_the_structure_of_the_last_stage():
    small = TwoStages(configure())
    second = lambda hidden, y: {"loss": small.second(hidden, y), "hidden": hidden}
    small.run(small.program(4, computational_stages=[small.first, second]))
    out = small.outfeed.dequeue()
    assert {name: each.shape for name, each in out.items()} == {"loss": [4], "hidden": [4, 2, 4]}
