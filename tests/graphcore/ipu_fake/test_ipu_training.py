"""Training on the fake gives what plain TensorFlow gives: schedules, reductions, replicas, optimizers."""

import numpy as np
import pytest
import tensorflow as tf

from tests.graphcore import ipu_fake
from tests.graphcore.ipu_fake.two_stages import TwoStages, batches, configure, train_plainly

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


def test_the_replicas_optimizer_averages():
    small = TwoStages(configure(4))
    opt = small.ipu.cross_replica_optimizer.CrossReplicaOptimizer(SGD(0.1))
    small.run(small.program(4, optimizer_function=small.optimizer_function(opt)))
    same(small.values(), train_plainly(lambda: SGD(0.05), updates=1, count=4, replicas=2)[0])


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


@pytest.mark.parametrize("method", ["mean", "RUNNING_MEAN"])
def test_means_of_gradients(method):
    small = TwoStages(configure())
    function = small.optimizer_function(SGD(0.1))
    small.run(small.program(4, optimizer_function=function, reduction_method=method))
    same(small.values(), train_plainly(lambda: SGD(0.1), updates=1, count=4, replicas=1, mean=True)[0])


def test_serialized_batches_are_micro_batches():
    small = TwoStages(configure(1))
    given = dict(batch_serialization_iterations=2, optimizer_function=small.optimizer_function(SGD(0.1)))
    small.run(small.program(2, **given))
    same(small.values(), train_plainly(lambda: SGD(0.1), updates=1, count=4, replicas=1)[0])


def test_gradients_are_added_in_the_type_asked_for():
    small, seen = TwoStages(configure()), []

    class Looking(SGD):
        def apply_gradients(self, grads_and_vars, *args, **kwargs):
            seen.extend(g.dtype for g, _ in grads_and_vars)
            pairs = [(tf.cast(g, v.dtype), v) for g, v in grads_and_vars]
            return super().apply_gradients(pairs, *args, **kwargs)

    given = dict(gradient_accumulation_dtype=lambda v: tf.float16 if "w0" in v.name else tf.float32)
    small.run(small.program(4, optimizer_function=small.optimizer_function(Looking(0.1)), **given))
    assert seen == [tf.float16, tf.float32]


def test_optimizers_of_keras():
    legacy = getattr(tf.keras.optimizers, "legacy", tf.keras.optimizers)
    small = TwoStages(configure())
    with small.strategy.scope():
        opt = legacy.SGD(0.1)
        opt.iterations
    made = small.ipu.pipelining_ops.OptimizerFunctionOutput
    function = lambda loss: made(opt, loss, variables=small.weights)
    small.run(small.program(4, optimizer_function=function))
    same(small.values(), train_plainly(lambda: SGD(0.1), updates=1, count=4, replicas=1)[0])


def test_a_learning_rate_passes_through_the_stages():
    small = TwoStages(configure(4))
    made = small.ipu.pipelining_ops.OptimizerFunctionOutput
    var_list = {"var_list": small.weights}
    stages = [
        lambda rate, x, y: (rate, *small.first(x, y)),
        lambda rate, hidden, y: (rate, small.second(hidden, y)),
    ]
    function = lambda rate, loss: made(Summing(SGD(rate)), loss, compute_gradients_kwargs=var_list)
    queues = dict(infeed_queue=small.infeed, outfeed_queue=small.outfeed, outfeed_mask=[True, False])

    @tf.function(jit_compile=True)
    def program(rate):
        small.ipu.pipelining_ops.pipeline(stages, 4, inputs=[rate], optimizer_function=function, **queues)

    small.infeed.initializer
    small.strategy.run(program, [tf.constant(0.05)])
    same(small.values(), train_plainly(lambda: SGD(0.05), updates=1, count=4, replicas=2)[0])


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


def test_a_masked_output_needs_no_queue():
    small = TwoStages(configure())
    given = dict(
        optimizer_function=small.optimizer_function(SGD(0.1)), outfeed_mask=[True], outfeed_queue=None
    )
    small.run(small.program(4, **given))
    same(small.values(), train_plainly(lambda: SGD(0.1), updates=1, count=4, replicas=1)[0])


def test_sums_of_outputs_in_another_type():
    small = TwoStages(configure(4))
    small.run(small.program(4, accumulate_outfeed=True, accumulate_outfeed_dtype=tf.float16))
    out = small.outfeed.dequeue()
    assert (out[0] if isinstance(out, list) else out).shape == [1, 2]


def test_inference_keeps_the_structure_of_the_last_stage():
    small = TwoStages(configure())
    second = lambda hidden, y: {"loss": small.second(hidden, y), "hidden": hidden}
    small.run(small.program(4, computational_stages=[small.first, second]))
    out = small.outfeed.dequeue()
    assert {name: each.shape for name, each in out.items()} == {"loss": [4], "hidden": [4, 2, 4]}


def test_named_elements_are_named_arguments():
    small = TwoStages(configure())
    dataset = batches(8).map(lambda x, y: {"y": y, "x": x})
    small.infeed = small.ipu.ipu_infeed_queue.IPUInfeedQueue(dataset)
    small.run(small.program(4))
    positional = TwoStages(configure())
    positional.run(positional.program(4))
    same(small.outfeed.dequeue().numpy(), positional.outfeed.dequeue().numpy())


def test_parallel_stages_run():
    small = TwoStages(configure(2))
    stages = [
        [lambda x, y: x @ small.weights[0], lambda x, y: 2 * y],
        lambda hidden, y: tf.reduce_sum(hidden) - y,
    ]
    small.run(small.program(2, computational_stages=stages, device_mapping=[[0, 1], 1]))
    x, y = next(iter(batches(1)))
    wanted = tf.reduce_sum(x @ small.weights[0]) - 2 * y
    same(small.outfeed.dequeue().numpy()[:1], [wanted.numpy()])
