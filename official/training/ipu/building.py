"""Devices, state and compiled programs of a run on IPUs."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
from absl import logging

from official.config import Config, ConfigError, train_steps
from official.data.pipeline import TrainingOrder
from official.distribution.batch_plan import BatchPlan, check_training
from official.distribution.ipu import api as api_lib
from official.distribution.ipu import instances as instances_lib
from official.distribution.ipu import options
from official.distribution.ipu import pipeline as pipeline_lib
from official.distribution.pipeline_plan import PipelinePlan, make_plan
from official.optimization import plain_optimizers
from official.optimization.train_state import TrainState, build_state
from official.training.ipu import feeding, stages
from official.training.ipu.optimizer import PipelineOptimizer, make_update, objective_scale
from official.training.task import Dataset, Task

POLICIES = {"fp32": "float32", "fp16": "mixed_float16"}


@dataclasses.dataclass(frozen=True)
class Devices:
    """Devices and programs of a process.

    Attributes:
      api: `tensorflow.python.ipu`.
      instances: the replicas of the run, and those of this process.
      strategy: the strategy in whose scope variables are made.
      pipeline: stages and IPUs of a replica.
      evaluation: the pipeline without a backward pass, with its own number of micro batches.
      batches: batches of all replicas.
    """

    api: Any
    instances: instances_lib.Instances
    strategy: Any
    pipeline: PipelinePlan
    evaluation: PipelinePlan
    batches: BatchPlan


def set_numbers(config: Config) -> None:
    """Sets precision and seed. Called before anything is drawn, generated data included."""
    tf.keras.mixed_precision.set_global_policy(POLICIES[config.dtype])
    tf.random.set_seed(config.seed)


def take_devices(config: Config) -> Devices:
    """Configures the IPUs of this process.

    Raises:
      ConfigError: without the SDK, and where stages, batches or poprun's numbers do not fit the settings.
    """
    plan = make_plan(config, stages.names_of(config))
    pipeline_lib.check_plan(config, plan)
    check_training(config, config.ipu_replicas)
    batches = BatchPlan(
        config.ipu_replicas, config.num_accumulation_steps, config.train_batch_size, config.eval_batch_size
    )
    evaluation = plan
    if config.do_eval or config.do_predict:
        evaluation, batches = pipeline_lib.evaluation_plan(config, plan, batches)
        told = "eval_batch_size %d = %d replicas x %d micro batches x %d rows"
        rows = batches.eval_batch_size // (batches.num_replicas * evaluation.micro_batches)
        logging.info(told, batches.eval_batch_size, batches.num_replicas, evaluation.micro_batches, rows)
    api = api_lib.load()
    instances = instances_lib.find(config, plan.num_devices, api_lib.load_popdist())
    options.configure(config, api, instances)
    api.utils.reset_ipu_seed(config.seed)  # of stochastic rounding
    logging.info("%s; %s on %d IPUs a replica", batches.describe(), plan.schedule, instances.ipus_per_replica)
    return Devices(api, instances, options.make_strategy(api, instances), plan, evaluation, batches)


@dataclasses.dataclass(frozen=True)
class PipelineState(TrainState):
    """The state of a run on IPUs. Its counters are on the host: reading one from the devices would copy the
    whole state.

    Attributes:
      steps: number of updates done, saved in checkpoints; the optimizer's own count is set from it.
    """

    steps: tf.Variable

    @property
    def step(self) -> int:
        return int(self.steps.numpy())

    def variables(self) -> dict[str, tf.Variable]:
        return {**super().variables(), "global_step": self.steps}


def make_state(config: Config, task: Task, devices: Devices) -> PipelineState:
    """Builds model and optimizer on the IPUs, and counters on the host."""
    with devices.strategy.scope():
        state = build_state(config, task.build_model, plain_optimizers.build_plain)
    counters = {
        name: tf.Variable(0, trainable=False, dtype=tf.int64, name=name) for name in ("samples", "steps")
    }
    known = {field.name: getattr(state, field.name) for field in dataclasses.fields(state)}
    return PipelineState(**{**known, **counters})


def make_training(
    config: Config, devices: Devices, task: Task, state: PipelineState, order: TrainingOrder
) -> Callable[[], np.ndarray]:
    """Returns () -> float [steps, 2 x metrics + NUM_COUNTS], a function that runs the next
    --device_iterations steps and returns the sums of each over this process's replicas.

    Args:
      config: configuration of the run.
      devices: see `take_devices`.
      task: the task to train.
      state: the state from which the run continues.
      order: order of its data, from the same position.
    """
    batches = devices.batches
    state.optimizer.iterations.assign(state.step)
    rows = task.train_dataset(batches.train_batch_size, batches.train_batch_size, order)
    scale = objective_scale(config, state, batches)
    steps = feeding.micro_batches(config, task, rows, state.step, batches, scale)
    chain = stages.training_chain(config, task, state.model)
    parts = stages.make_parts(chain, devices.pipeline, feeding.signature_of(steps.unbatch()))
    own = feeding.of_instance(steps, batches, devices.instances, parts[0].features)
    width = 2 * len(task.metrics) + stages.NUM_COUNTS
    update = make_update(config, state, batches, devices.api)

    def optimizer_function(loss, sums):
        del sums
        return devices.api.pipelining_ops.OptimizerFunctionOutput(
            PipelineOptimizer(update),
            loss,
            compute_gradients_kwargs={"var_list": list(state.model.trainable_variables)},
        )

    training = pipeline_lib.Training(optimizer_function, config.device_iterations, [True, False])
    run = _program(config, devices, devices.pipeline, stages.make_functions(chain, parts), own, training)

    def call() -> np.ndarray:
        sums = tf.nest.flatten(run())[0]
        by_step = np.asarray(sums, np.float64).reshape(config.device_iterations, -1, width)
        return by_step.sum(axis=1)  # over the replicas

    return call


def make_evaluation(
    config: Config, devices: Devices, task: Task, state: PipelineState, dataset: Dataset
) -> tuple[Callable[[], tuple[tf.Tensor, dict[str, tf.Tensor]]], int]:
    """Returns (() -> (sums, outputs) of the next device call, as in `step.make_eval_step`; number of calls in
    one pass over the set). After a pass the set begins again.

    Each instance evaluates the whole set, so that each has all of its outputs.

    Args:
      config, devices, task, state: see `make_training`.
      dataset: makes the set's batches from their number of rows.
    """
    plan, batches = devices.evaluation, devices.batches
    per_call = devices.instances.local_replicas * plan.micro_batches * batches.micro_batch_size
    calls = int(dataset(per_call).reduce(np.int64(0), lambda count, _: count + 1))
    rows = feeding.evaluation_batches(dataset, per_call, batches.micro_batch_size)
    signature = feeding.signature_of(rows)
    chain = stages.evaluation_chain(task, state.model)
    parts = stages.make_parts(chain, plan, signature)
    own = rows.map(lambda row: tuple(row[name] for name in parts[0].features))
    run = _program(config, devices, plan, stages.make_functions(chain, parts), own)

    def call() -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
        sums, *outputs = tf.nest.flatten(run())
        lead = len(sums.shape) - 1  # micro batches, and replicas where there are several
        total = tf.reduce_sum(tf.cast(sums, tf.float64), axis=list(range(lead)))
        joined = [tf.reshape(value, [-1, *value.shape[lead + 1 :]]) for value in outputs]
        return total, dict(zip(chain.last.gives[1:], joined))

    return call, calls


def _program(
    config: Config,
    devices: Devices,
    plan: PipelinePlan,
    functions: list,
    dataset: tf.data.Dataset,
    training: pipeline_lib.Training | None = None,
) -> Callable[[], Any]:
    """Returns a function that runs a pipeline once and returns the outputs of its last stage."""
    with devices.strategy.scope():
        queues = pipeline_lib.make_queues(devices.api, dataset)

        @tf.function(jit_compile=True, autograph=False)
        def program():
            pipeline_lib.add_pipeline(config, devices.api, plan, functions, queues, training)

    _ = queues.infeed.initializer  # asking for it starts the queue

    def run() -> Any:
        devices.strategy.run(program)
        return queues.outfeed.dequeue()

    return run


def check_steps(config: Config, step: int) -> None:
    """Raises ConfigError where the steps to the end, or between evaluations, are not a multiple of
    --device_iterations."""
    every, last = config.device_iterations, train_steps(config)
    between = config.steps_between_eval if config.do_eval else None
    for left, what in ((last - step, f"{last - step} steps from step {step} to step {last}"), (between, "")):
        if left and left % every:
            what = what or f"steps_between_eval={between}"
            raise ConfigError(
                f"device_iterations={every} does not divide the {what}. Change --device_iterations or the"
                " number of steps."
            )
