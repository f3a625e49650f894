"""Pipeline parallelism: the model's stages on several devices, with the micro batches in flight one after
another.

The graph of a step has a piece for each work item of the schedule: the forward or backward pass of a micro
batch through one part, on the part's device. A piece waits for its inputs, and for the piece before it on its
device; so the devices work in parallel, in the schedule's order, and hold no more activations than the
schedule says.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf
from absl import logging

from official.config import Config
from official.distribution.backends.pipeline import PipelineStrategy, as_pipeline
from official.distribution.pipelining import plan as plan_lib
from official.distribution.pipelining.plan import PipelinePlan
from official.modeling import stages as stages_lib
from official.modeling.stages import Tensors
from official.optimization import gradients as gradients_lib
from official.optimization import optimizers as state_lib
from official.optimization.device_placement import device_of
from official.optimization.optimizers import TrainState
from official.optimization.replica_step import Accumulate, Batch, Objective, Shared
from official.training import pipeline_round
from official.training.pipeline_round import Part, PipelineRound
from official.training.task import Task


def make_state(config: Config, task: Task, strategy: tf.distribute.Strategy) -> TrainState:
    """Builds the state of a run; in a pipeline, each variable is on the device of its stage.

    Raises:
      ConfigError: where the stages asked for do not fit the model.
    """
    pipeline = as_pipeline(strategy)
    if pipeline is None:
        return state_lib.make_state(config, task.build_model, strategy)
    stages = stages_lib.symbolic_model(task.build_model).stages()
    pipeline.plan = plan = plan_lib.make_plan(config, [stage.name for stage in stages])
    _tell(plan, pipeline)
    device_of_name: dict[str, int] = {}
    for stage in stages:
        for variable in stage.variables:  # the first one of two stages that share it has it
            device_of_name.setdefault(variable.name.split(":")[0], plan.device_of(stage.name))

    def build_model() -> tf.keras.Model:
        with pipeline.placing(device_of_name):
            return task.build_model()

    return state_lib.make_state(config, build_model, strategy)


def _tell(plan: PipelinePlan, strategy: PipelineStrategy) -> None:
    """Logs the device of each stage, and the share of time that devices idle if all stages take equally
    long."""
    bubble = plan_lib.make_timeline(plan).bubble
    where = ", ".join(
        f"{stage} on {'+'.join(strategy.names_of(device))}"
        for stage, device in zip(plan.notation.split(" / "), plan.devices)
    )
    equal = "if all stages take the same time"
    logging.info("Pipeline (%s, bubble %.1f %% %s): %s", plan.schedule, 100 * bubble, equal, where)


def description(strategy: tf.distribute.Strategy) -> dict | None:
    """Returns the entry of a pipeline in result.json: stages in Graphcore's notation, devices, schedule and
    micro batches; None without a pipeline."""
    pipeline = as_pipeline(strategy)
    if pipeline is None or pipeline.plan is None:
        return None
    return pipeline.plan.description()


def on_devices(model: Any, strategy: tf.distribute.Strategy) -> Callable:
    """Returns a function with the model's call signature that runs each stage on its pipeline device; the
    model itself without a pipeline."""
    if as_pipeline(strategy) is None:
        return model

    def call(features: Batch, dropout_seed: tf.Tensor | None = None) -> Any:
        carried: Tensors = {}
        for stage, seed in zip(model.stages(), model.seeds(dropout_seed)):
            with tf.device(device_of(stage.variables[0])):
                stages_lib.run_one(stage, carried, features, seed)
        return model.outputs_of(carried)

    return call


def make_accumulate(
    config: Config, objective: Objective, model: Any, strategy: tf.distribute.Strategy
) -> Accumulate | None:
    """Returns the function that accumulates gradients and terms over a replica's micro batches in a pipeline;
    None without a pipeline."""
    pipeline = as_pipeline(strategy)
    if pipeline is None or pipeline.plan is None:
        return None
    plan, size = pipeline.plan, pipeline.plan.round_size
    orders = plan_lib.orders_of(len(plan.stages), plan.devices, plan.schedule, size)

    def accumulate(batch: Batch, shared: Shared) -> tuple[list[tf.Tensor], tf.Tensor]:
        parts = pipeline_round.make_parts(model, plan)
        copied = [pipeline_round.copies(part) for part in parts]

        def one_round(number: tf.Tensor, rows: Batch) -> tuple[list[list[tf.Tensor]], tf.Tensor]:
            batches = {name: gradients_lib.cut(value, size) for name, value in rows.items()}
            own = PipelineRound(config, objective, model, parts, copied, batches, shared, number * size)
            return own.run(orders)

        totals, sums = _in_rounds(batch, plan.micro_batches // size, one_round, parts)
        return _in_order(model.trainable_variables, parts, totals), sums

    return accumulate


def _in_rounds(batch: Batch, rounds: int, one_round: Callable, parts: list[Part]) -> tuple:
    """Returns the sums of `one_round` over the rounds of a replica's batch, each part's on its device."""
    if rounds == 1:
        return one_round(tf.constant(0), batch)
    slices = {name: gradients_lib.cut(value, rounds) for name, value in batch.items()}
    first = one_round(tf.constant(0), {name: value[0] for name, value in slices.items()})

    def body(index: tf.Tensor, total: tuple) -> tuple:
        gradients, sums = one_round(index, {name: value[index] for name, value in slices.items()})
        added = [_added(part, old, new) for part, old, new in zip(parts, total[0], gradients)]
        return index + 1, (added, total[1] + sums)

    _, total = tf.while_loop(
        lambda index, _: index < rounds,
        body,
        (tf.constant(1), first),
        parallel_iterations=1,
        maximum_iterations=rounds - 1,
    )
    return total


def _added(part: Part, totals: list[tf.Tensor], gradients: list[tf.Tensor]) -> list[tf.Tensor]:
    """Returns the gradients of a part added to its totals, on its device."""
    with tf.device(part.device):
        return [gradients_lib.add(total, gradient) for total, gradient in zip(totals, gradients)]


def _in_order(
    variables: list[tf.Variable], parts: list[Part], totals: list[list[tf.Tensor]]
) -> list[tf.Tensor]:
    """Returns the gradient of each variable, on its device; for a tied variable summed over its parts."""
    found: dict[str, tf.Tensor] = {}
    for part, gradients in zip(parts, totals):
        for variable, gradient in zip([*part.variables, *part.tied], gradients):
            known = found.get(variable.name)
            with tf.device(device_of(variable)):
                found[variable.name] = tf.identity(gradient) if known is None else known + gradient
    return [found[variable.name] for variable in variables]
