"""Workloads that `bert benchmark scaling` times in each of its processes: steps of one model with more and
more micro batches, and the all-reduce alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import tensorflow as tf

from official.config import Config, replaced
from official.distribution import strategy as strategy_lib
from official.distribution.batch_plan import make_batch_plan
from official.optimization import gradients
from official.training import feeding, pipelined
from official.training import step as step_lib
from official.training.task import Task

SUM, SMALL_SUM = "all-reduce", "small all-reduce"
SMALL_SUMS = 20  # of a timing: one takes less than a millisecond


def step_name(accumulation: int) -> str:
    """Returns the workload name of a step with `accumulation` micro batches."""
    return f"step of {accumulation}"


def make_works(
    config: Config, make_task: Callable[[Config], Task], accumulations: Sequence[int], steps: int
) -> tuple[dict[str, Callable[[], object]], int]:
    """Returns ({name: workload, a function that returns when the devices are done}, bytes of the gradients).

    Args:
      config: configuration with one micro batch per step and process; its train_batch_size is their total
        rows.
      make_task: config -> task.
      accumulations: numbers of micro batches per step, a workload for each.
      steps: number of steps in one timing.
    """
    strategy = strategy_lib.make_strategy(config)
    state = pipelined.make_state(config, make_task(config), strategy)

    def make_step(accumulation: int) -> Callable[[], object]:
        rows = config.train_batch_size * accumulation
        own = replaced(config, num_accumulation_steps=accumulation, train_batch_size=rows)
        task, plan = make_task(own), make_batch_plan(own, strategy.num_replicas_in_sync)
        loop = step_lib.make_train_loop(own, task, state, strategy, plan)
        iterator = feeding.synthetic_batches(task, plan.replica_batch_size, strategy)
        count, nothing = tf.constant(steps), step_lib.no_totals(task, plan)
        return lambda: loop(iterator, count, nothing)["sums"].numpy()  # waits

    shapes = [variable.shape for variable in state.model.trainable_variables]
    works = {step_name(accumulation): make_step(accumulation) for accumulation in accumulations}
    works[SUM] = _make_sums(strategy, shapes, 1)
    works[SMALL_SUM] = _make_sums(strategy, [tf.TensorShape([1])], SMALL_SUMS)
    return works, 4 * sum(shape.num_elements() for shape in shapes)


def _make_sums(
    strategy: tf.distribute.Strategy, shapes: Sequence[tf.TensorShape], repeats: int
) -> Callable[[], object]:
    """Returns a function that all-reduces float32 tensors of the given shapes over all replicas, `repeats`
    times in sequence, and waits for the result."""

    def replica_sums() -> tf.Tensor:
        tensors = [tf.ones(shape) for shape in shapes]
        for _ in range(repeats):
            tensors = gradients.reduce_sum(tensors)
        return tf.add_n([tf.reshape(tensor, [-1])[0] for tensor in tensors])

    @tf.function(autograph=False)
    def sums():
        return strategy.experimental_local_results(strategy.run(replica_sums))

    return lambda: [tensor.numpy() for tensor in sums()]
