"""The fake of Graphcore's API trains as plain TensorFlow does, and refuses what IPUs do not run."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.graphcore import ipu_fake

pytestmark = pytest.mark.nightly

INPUTS, HIDDEN, BATCH = 3, 4, 2
SGD = tf.compat.v1.train.GradientDescentOptimizer


def batches(count: int) -> tf.data.Dataset:
    draw = np.random.RandomState(7)
    x = draw.randn(count * BATCH, INPUTS).astype(np.float32)
    y = np.sin(x.sum(1, keepdims=True)).astype(np.float32)
    return tf.data.Dataset.from_tensor_slices((x, y)).batch(BATCH, drop_remainder=True)


def start_values() -> list[np.ndarray]:
    draw = np.random.RandomState(8)
    return [draw.randn(INPUTS, HIDDEN).astype(np.float32), draw.randn(HIDDEN, 1).astype(np.float32)]


class TwoStages:
    """A regression of two stages: weights, queues and stages on so many IPUs; `connection` is set in the
    configuration of the devices."""

    def __init__(self, ipus: int = 2, allow_recompute: bool = False, **connection: Any):
        from tensorflow.python import ipu

        config = ipu.config.IPUConfig()
        config.auto_select_ipus, config.allow_recompute = ipus, allow_recompute
        for name, value in connection.items():
            setattr(config.device_connection, name, value)
        config.configure_ipu_system()
        self.ipu, self.started = ipu, False
        self.strategy = ipu.ipu_strategy.IPUStrategyV1(enable_keras_extensions=False)
        with self.strategy.scope():
            self.weights = [tf.Variable(each, name=f"w{index}") for index, each in enumerate(start_values())]
        self.infeed = ipu.ipu_infeed_queue.IPUInfeedQueue(batches(64))
        self.outfeed = ipu.ipu_outfeed_queue.IPUOutfeedQueue()

    def first(self, x: tf.Tensor, y: tf.Tensor) -> Any:
        return tf.nn.tanh(x @ self.weights[0]), y

    def second(self, hidden: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        return tf.reduce_mean((hidden @ self.weights[1] - y) ** 2)

    def trained_by(self, opt: Any) -> dict[str, Any]:
        """Returns the argument of `run` that trains with an optimizer of TensorFlow 1."""
        made = self.ipu.pipelining_ops.OptimizerFunctionOutput
        return {"optimizer_function": lambda loss: made(opt, loss, {"var_list": self.weights})}

    def run(self, count: Any = 4, times: int = 1, **arguments: Any) -> None:
        """Runs the pipeline, whose arguments may be others."""
        given = {
            "computational_stages": [self.first, self.second],
            "gradient_accumulation_count": count,
            "device_mapping": [0, 1],
            "infeed_queue": self.infeed,
            "outfeed_queue": self.outfeed,
            **arguments,
        }

        @tf.function(jit_compile=True)
        def program() -> None:
            self.ipu.pipelining_ops.pipeline(**given)

        if not self.started:
            self.infeed.initializer
        self.started = True
        for _ in range(times):
            self.strategy.run(program)


def train_plainly(optimizer: Any, updates: int, count: int) -> Any:
    """Returns the weights, and the losses of all batches, of training in plain TensorFlow."""
    weights, losses = [tf.Variable(each) for each in start_values()], []
    data = iter(batches(updates * count))
    for _ in range(updates):
        total = [tf.zeros_like(each) for each in weights]
        for _ in range(count):
            x, y = next(data)
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((tf.nn.tanh(x @ weights[0]) @ weights[1] - y) ** 2)
            losses.append(loss.numpy())
            total = [old + new for old, new in zip(total, tape.gradient(loss, weights))]
        optimizer.apply_gradients(list(zip(total, weights)))
    return weights, np.array(losses)


@pytest.fixture(name="machine", autouse=True)
def fixture_machine(monkeypatch):
    monkeypatch.delenv("TF_POPLAR_FLAGS", raising=False)
    with ipu_fake.installed(ipus=8) as made:
        yield made


def assert_same(small: TwoStages, losses: Any, plain: Any) -> None:
    for found, expected in zip([*small.weights, losses], [*plain[0], plain[1]]):
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_two_stages_train_like_one_model():
    schedules, adam = ("Grouped", "Interleaved", "Sequential"), tf.compat.v1.train.AdamOptimizer
    for schedule, make in itertools.product(schedules, (SGD, adam)):
        small = TwoStages()
        chosen = small.ipu.pipelining_ops.PipelineSchedule[schedule]
        small.run(times=2, pipeline_schedule=chosen, repeat_count=2, **small.trained_by(make(0.05)))
        assert_same(small, small.outfeed.dequeue()[0], train_plainly(make(0.05), updates=4, count=4))


class Summing(tf.compat.v1.train.MomentumOptimizer):
    """Adds gradients up over the replicas, as often as `times` says."""

    times = 1

    def apply_gradients(self, grads_and_vars, *args, **kwargs):
        from tensorflow.python import ipu

        pairs = list(grads_and_vars)
        for _ in range(self.times):
            # Scaled before and after, so that what lies between gradients and sum is not nothing.
            pairs = [(ipu.cross_replica_ops.cross_replica_sum(2.0 * g) / 2.0, v) for g, v in pairs]
        return super().apply_gradients(pairs, *args, **kwargs)


class SummingTwice(SGD):
    def apply_gradients(self, grads_and_vars, *args, **kwargs):
        from tensorflow.python import ipu

        add = ipu.cross_replica_ops.cross_replica_sum
        return super().apply_gradients([(add(add(g)), v) for g, v in grads_and_vars], *args, **kwargs)


def test_replicas_take_turns_at_the_infeed_and_add_up(machine):
    for replicas in (2, 4):
        small = TwoStages(2 * replicas)
        small.run(times=2, **small.trained_by(Summing(0.02, 0.9)))
        momentum = tf.compat.v1.train.MomentumOptimizer(0.02, 0.9)
        plain = train_plainly(momentum, updates=2, count=4 * replicas)
        assert_same(small, tf.reshape(small.outfeed.dequeue()[0], [-1]), plain)
        assert (machine.compiled[-1].replicas, machine.compiled[-1].ipus_per_replica) == (replicas, 2)


def test_outfeeds():
    _, losses = train_plainly(SGD(0.1), updates=2, count=4)
    small = TwoStages()
    small.run(repeat_count=2, accumulate_outfeed=True, outfeed_mask=[False], **small.trained_by(SGD(0.1)))
    np.testing.assert_allclose(small.outfeed.dequeue()[0], losses.reshape(2, 4).sum(1), rtol=1e-5)
    small = TwoStages()
    small.run(computational_stages=[small.first, lambda hidden, y: [small.second(hidden, y), hidden]])
    assert [each.shape for each in small.outfeed.dequeue()] == [[4], [4, 2, 4]]


def test_arguments_and_limits_are_checked():
    small = TwoStages(4, allow_recompute=True)
    operations = small.ipu.pipelining_ops
    grouped, interleaved, sequential = operations.PipelineSchedule
    many = tf.ones([200])  # TensorFlow makes constants of fewer

    def refusing(first, second=None):
        return dict(computational_stages=[first, second or small.second])

    def training(opt=None, **arguments):
        return {**small.trained_by(opt or Summing(0.1, 0.9)), **arguments}

    precondition, options = tf.errors.FailedPreconditionError, "forward_propagation_stages_poplar_options"
    compiles = tf.errors.InvalidArgumentError
    refused = [
        (dict(count=None), TypeError, "gradient_accumulation_count"),
        (dict(repeat_count=0), ValueError, "repeat_count"),
        (dict(unknown=1), TypeError, "unknown"),
        (dict(computational_stages=[abs]), ValueError, "at least two"),
        (dict(computational_stages=[abs, 1]), TypeError, "not a function"),
        (dict(device_mapping=[0]), ValueError, "1 mappings != 2 stages"),
        (dict(device_mapping=[0, -1]), TypeError, "ints from 0"),
        (dict(device_mapping=[0, 7]), compiles, "needs 8 IPUs, but 4"),
        (dict(pipeline_schedule=1), TypeError, "pipeline_schedule"),
        (dict(recomputation_mode="Auto"), TypeError, "recomputation_mode"),
        (dict(outfeed_queue=None), TypeError, "outfeed_queue"),
        (dict(outfeed_mask=[True]), ValueError, "optimizer_function"),
        ({options: []}, ValueError, "length 2"),
        ({options: [{}, {}]}, TypeError, "PipelineStageOptions"),
        (training(outfeed_mask=[True, False]), ValueError, "match in size"),
        (training(pipeline_schedule=interleaved, device_mapping=[0, 0]), NotImplementedError, "one device"),
        (dict(optimizer_function=lambda loss: loss), TypeError, "OptimizerFunctionOutput"),
        *((training(count=count), precondition, "multiple of 4") for count in (0, 2, 6)),
        *((dict(count=count), precondition, "multiple of 2") for count in (0, 1, 3)),
        (training(count=3, pipeline_schedule=interleaved), precondition, "multiple of 2"),
        (training(count=0, pipeline_schedule=sequential), precondition, "multiple of 1"),
        *(
            (training(pipeline_schedule=schedule, recomputation_mode=mode), precondition, "not supported by")
            for schedule, mode in (
                (sequential, operations.RecomputationMode.RecomputeThenBackpropagate),
                (interleaved, operations.RecomputationMode.RecomputeAndBackpropagateInterleaved),
            )
        ),
        (
            refusing(small.first, lambda x, y: small.second(x + tf.reduce_sum(small.weights[0]), y)),
            tf.errors.UnimplementedError,
            "same IPU",
        ),
        (refusing(lambda x, y: (tf.reduce_sum(many) + x, y)), ValueError, "Trying to capture"),
        (refusing(lambda x, y: (x @ tf.Variable(tf.ones([3, 4])), y)), ValueError, "creates the variable"),
        (refusing(lambda x, y: (x, (y, y))), TypeError, "flat list"),
        (refusing(lambda x, y: (tf.py_function(tf.abs, [x], tf.float32), y)), compiles, "Python on the host"),
        (refusing(lambda x, y: (tf.cast(x, tf.float64), y)), compiles, "float64"),
        (refusing(lambda x, y: (tf.strings.as_string(x), y)), compiles, "string"),
        (refusing(lambda x, y: (tf.boolean_mask(x, x > 0), y)), compiles, "depends on values"),
        (
            refusing(
                lambda x, y: (tf.cond(y[0, 0] > 0, lambda: tf.where(x > 0), lambda: tf.where(x < 0)), y)
            ),
            compiles,
            "depends on values",
        ),
        (training(SGD(0.1)), RuntimeError, "differ between the 2 replicas"),
        (training(SummingTwice(0.1)), RuntimeError, "summed over the replicas already"),
    ]
    wrong = []
    for arguments, error, message in refused:
        try:
            small.run(**arguments)
            wrong.append((arguments, "not refused"))
        except error as found:
            if message not in str(found):
                wrong.append((arguments, str(found)))
    assert not wrong
    with pytest.raises(RuntimeError, match="runs on the IPU"):
        small.ipu.cross_replica_ops.cross_replica_sum(tf.constant(1.0))


def test_memory_of_each_ipu_and_what_does_not_fit(machine):
    def run(offload):
        small = TwoStages()
        adam = small.trained_by(tf.compat.v1.train.AdamOptimizer(0.1))
        small.run(offload_weight_update_variables=offload, **adam)
        return machine.compiled[-1].bytes_per_ipu

    weights = {0: 3 * 4 * 4, 1: 4 * 4}
    powers = 2 * 4  # of Adam: one number each, on the first IPU
    assert run(True) == {0: 2 * weights[0], 1: 2 * weights[1]}
    assert run(False) == {0: 4 * weights[0] + powers, 1: 4 * weights[1]}
    machine.bytes_per_ipu = 150
    run(True)
    with pytest.raises(tf.errors.ResourceExhaustedError, match="Out of memory on IPU 0: 200 bytes"):
        run(False)


def test_offloading_needs_remote_buffers():
    from tensorflow.python import ipu

    small = TwoStages(type=ipu.config.DeviceConnectionType.ON_DEMAND)
    with pytest.raises(tf.errors.FailedPreconditionError, match="enable_remote_buffers"):
        small.run(**small.trained_by(SGD(0.1)))
    small = TwoStages(type=ipu.config.DeviceConnectionType.ON_DEMAND, enable_remote_buffers=True)
    small.run(**small.trained_by(SGD(0.1)))
