"""A regression of two stages on the fake, and in plain TensorFlow: what the tests of the fake share."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

INPUTS, HIDDEN, BATCH = 3, 4, 2


def rows(count: int) -> Any:
    """Returns float32 inputs [count, INPUTS] and targets [count, 1]."""
    draw = np.random.RandomState(7)
    x = draw.randn(count, INPUTS).astype(np.float32)
    return x, np.sin(x.sum(1, keepdims=True)).astype(np.float32)


def batches(count: int) -> tf.data.Dataset:
    """Returns a dataset of `count` batches."""
    return tf.data.Dataset.from_tensor_slices(rows(count * BATCH)).batch(BATCH, drop_remainder=True)


def start_values() -> list[np.ndarray]:
    """Returns the first values of the two weights."""
    draw = np.random.RandomState(8)
    return [draw.randn(INPUTS, HIDDEN).astype(np.float32), draw.randn(HIDDEN, 1).astype(np.float32)]


def configure(ipus: int = 2, **options: Any) -> Any:
    """Configures the machine; options: attributes, with two underscores for a dot. Returns the strategy."""
    from tensorflow.python import ipu

    made = ipu.config.IPUConfig()
    made.auto_select_ipus = ipus
    for name, value in options.items():
        *parents, last = name.split("__")
        category = made
        for each in parents:
            category = getattr(category, each)
        setattr(category, last, value)
    made.configure_ipu_system()
    return ipu.ipu_strategy.IPUStrategyV1()


class TwoStages:
    """Weights, queues and stages on the fake.

    Args:
      strategy: of the fake.
      num_batches: batches in the infeed.
      outfeed_mode: of the outfeed, or None.
    """

    def __init__(self, strategy: Any, num_batches: int = 64, outfeed_mode: Any = None):
        from tensorflow.python import ipu

        self.ipu, self.strategy, self.started = ipu, strategy, False
        with strategy.scope():
            self.weights = [tf.Variable(each, name=f"w{index}") for index, each in enumerate(start_values())]
        self.infeed = ipu.ipu_infeed_queue.IPUInfeedQueue(batches(num_batches))
        self.outfeed = ipu.ipu_outfeed_queue.IPUOutfeedQueue(outfeed_mode)

    def first(self, x: tf.Tensor, y: tf.Tensor) -> Any:
        return tf.nn.tanh(x @ self.weights[0]), y

    def second(self, hidden: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        return tf.reduce_mean((hidden @ self.weights[1] - y) ** 2)

    def optimizer_function(self, opt: Any) -> Any:
        """Returns an optimizer function with a TF1 optimizer."""
        made = self.ipu.pipelining_ops.OptimizerFunctionOutput
        return lambda loss: made(opt, loss, compute_gradients_kwargs={"var_list": self.weights})

    def program(self, count: int = 4, **arguments: Any) -> Any:
        """Returns the program with the pipeline; arguments are those of pipeline()."""
        given = {
            "computational_stages": [self.first, self.second],
            "gradient_accumulation_count": count,
            "infeed_queue": self.infeed,
            "outfeed_queue": self.outfeed,
            **arguments,
        }

        @tf.function(jit_compile=True)
        def program() -> None:
            self.ipu.pipelining_ops.pipeline(**given)

        return program

    def run(self, program: Any, times: int = 1) -> None:
        """Runs a program, after the infeed's start."""
        if not self.started:
            self.infeed.initializer
        self.started = True
        for _ in range(times):
            self.strategy.run(program)

    def values(self) -> list[np.ndarray]:
        return [each.numpy() for each in self.weights]


def train_plainly(make_optimizer: Any, updates: int, count: int, replicas: int, mean: bool = False) -> Any:
    """Trains the same in plain TensorFlow.

    Args:
      make_optimizer: returns a TF1 optimizer.
      updates: number of updates.
      count: batches of an update on one replica.
      replicas: how many replicas' gradients are added up.
      mean: whether gradients are averaged over the batches of a replica.

    Returns:
      The weights, and the losses of all batches in order.
    """
    weights, losses = [tf.Variable(each) for each in start_values()], []
    optimizer = make_optimizer()
    data = iter(batches(updates * count * replicas))
    for _ in range(updates):
        total = [tf.zeros_like(each) for each in weights]
        for _ in range(count * replicas):
            x, y = next(data)
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((tf.nn.tanh(x @ weights[0]) @ weights[1] - y) ** 2)
            losses.append(loss.numpy())
            total = [old + new for old, new in zip(total, tape.gradient(loss, weights))]
        scale = 1 / count if mean else 1.0
        optimizer.apply_gradients([(scale * gradient, weight) for gradient, weight in zip(total, weights)])
    return [each.numpy() for each in weights], np.array(losses)
