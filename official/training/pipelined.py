"""The model as a pipeline: its stages on several devices, micro batches one behind the other.

The graph of a step has a piece for each work of the schedule: a stage's forward or backward pass of a micro
batch, on the stage's device. A piece waits for what it reads, and for the piece before it on its device; so
devices work side by side, in the schedule's order, and as much is kept as the schedule says.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from official.config import Config
from official.distribution.backends.pipeline import PipelineStrategy
from official.distribution.pipelining import schedules
from official.distribution.pipelining import plan as plan_lib
from official.distribution.pipelining.plan import PipelinePlan
from official.distribution.pipelining.work import Work
from official.modeling import stages as stages_lib
from official.modeling.stages import Stage, Staged, Tensors
from official.optimization import gradients as gradients_lib
from official.optimization import replica_step, state as state_lib
from official.optimization.replica_step import Accumulate, Batch, Objective, Shared
from official.optimization.spread import device_of
from official.optimization.state import TrainState
from official.planning import graph_cost
from official.training.task import Task

# Micro batches that one graph has a piece for each of; more go through it in several rounds.
MOST_IN_FLIGHT = 32


def make_state(config: Config, task: Task, strategy: tf.distribute.Strategy) -> TrainState:
    """Builds the state of a run, in a pipeline each variable on its stage's device.

    Raises:
      ConfigError: where the stages that are asked for do not fit the model.
    """
    if not isinstance(strategy, PipelineStrategy):
        return state_lib.make_state(config, task.build_model, strategy)
    stages = graph_cost.symbolic_model(task.build_model).stages()
    plan = strategy.plan = plan_lib.make_plan(config, [stage.name for stage in stages])
    device_of_name: dict[str, int] = {}
    for stage in stages:
        for variable in stage.variables:  # the first of two stages that share one has it
            device_of_name.setdefault(variable.name.split(":")[0], plan.device_of(stage.name))

    def build_model() -> tf.keras.Model:
        with strategy.placing(device_of_name):
            return task.build_model()

    return state_lib.make_state(config, build_model, strategy)


def on_devices(model: tf.keras.Model, strategy: tf.distribute.Strategy) -> Callable:
    """Returns what is called as the model is: of a pipeline, with each stage on its device."""
    if not isinstance(strategy, PipelineStrategy):
        return model

    def call(features: Batch, dropout_seed: tf.Tensor | None = None) -> Any:
        carried: Tensors = {}
        for stage, seed in zip(model.stages(), model.seeds(dropout_seed)):
            with tf.device(device_of(stage.variables[0])):
                carried.update(stage.run(stage.weights(), carried, features, seed))
        return model.outputs_of(carried)

    return call


def make_accumulate(
    config: Config, objective: Objective, model: Any, strategy: tf.distribute.Strategy, num_micro_batches: int
) -> Accumulate | None:
    """Returns what adds up the micro batches of a replica in a pipeline; None without one."""
    if not isinstance(strategy, PipelineStrategy) or strategy.plan is None:
        return None
    plan = strategy.plan
    size = round_size(num_micro_batches)
    orders = schedules.orders(dataclasses.replace(plan, micro_batches=size))

    def accumulate(batch: Batch, shared: Shared) -> tuple[list[tf.Tensor], tf.Tensor]:
        parts = make_parts(model, plan)
        tables = [part.copied() for part in parts]

        def one_round(number: tf.Tensor, rows: Batch) -> tuple:
            flight = _Flight(config, objective, model, parts, tables, shared, number * size)
            return flight.run(_cut(rows, size), orders)

        zeros = [_zeros(part) for part in parts], tf.zeros([2 * len(objective.metrics)])
        totals, sums = gradients_lib.accumulate(batch, num_micro_batches // size, one_round, zeros)
        return _in_order(model.trainable_variables, parts, totals), sums

    return accumulate


def round_size(num_micro_batches: int) -> int:
    """Returns how many micro batches are in a pipeline before it runs empty: all, or their largest divisor up
    to MOST_IN_FLIGHT."""
    sizes = range(min(num_micro_batches, MOST_IN_FLIGHT), 0, -1)
    return next(size for size in sizes if num_micro_batches % size == 0)
