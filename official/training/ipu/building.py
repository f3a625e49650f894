"""What a run on IPUs is made of, before its first step: devices, state, data, and the program of a call."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
from absl import logging

from official.config import Config, ConfigError, train_steps
from official.data.pipeline import TrainingOrder
from official.distribution.batch_plan import BatchPlan, make_batch_plan
from official.distribution.ipu import api as api_lib
from official.distribution.ipu import instances as instances_lib
from official.distribution.ipu import options
from official.distribution.ipu import pipeline as pipeline_lib
from official.distribution.pipelining.plan import PipelinePlan, make_plan
from official.modeling.pretrainer import BertPretrainer
from official.optimization import kinds
from official.optimization.train_state import TrainState, build_state
from official.training.ipu import feeding, stages
from official.training.ipu.optimizer import PipelineOptimizer, make_update, objective_scale
from official.training.ipu.records import Records

POLICIES = {"fp32": "float32", "fp16": "mixed_float16"}


@dataclasses.dataclass(frozen=True)
class Devices:
    """What a process computes with.

    Attributes:
      api: `tensorflow.python.ipu`.
      instances: the replicas of the run, and this process's.
      strategy: in whose scope variables are made.
      pipeline: stages and IPUs of a replica.
      batches: of all replicas.
    """

    api: Any
    instances: instances_lib.Instances
    strategy: Any
    pipeline: PipelinePlan
    batches: BatchPlan


def take_devices(config: Config) -> Devices:
    """Configures the IPUs of this process, and sets precision and seeds.

    Raises:
      ConfigError: without the SDK, and where stages, batches or poprun's numbers do not fit the settings.
    """
    plan = make_plan(config, stages.names_of(config))
    pipeline_lib.check_plan(config, plan)
    batches = make_batch_plan(config, config.ipu_replicas)
    api = api_lib.load()
    instances = instances_lib.find(config, plan.num_devices, api_lib.load_popdist())
    options.configure(config, api, instances)
    tf.keras.mixed_precision.set_global_policy(POLICIES[config.dtype])
    tf.random.set_seed(config.seed)
    api.utils.reset_ipu_seed(config.seed)  # of stochastic rounding
    logging.info("%s; %s on %d IPUs a replica", batches.describe(), plan.schedule, instances.ipus_per_replica)
    return Devices(api, instances, options.make_strategy(api, instances), plan, batches)


def make_state(config: Config, devices: Devices) -> TrainState:
    """Builds model and optimizer on the IPUs; the count of sequences stays on the host."""
    with devices.strategy.scope():
        state = build_state(config, lambda: BertPretrainer(config.model), kinds.build_plain)
    samples = tf.Variable(0, trainable=False, dtype=tf.int64, name="samples")
    return dataclasses.replace(state, samples=samples)


def make_call(
    config: Config, devices: Devices, state: TrainState, records: Records
) -> Callable[[], np.ndarray]:
    """Returns () -> float [steps, stages.NUM_SUMS], the sums of each of the next --device_iterations steps,
    of this process's replicas; it runs them.

    Args:
      config: of the run.
      devices: see `take_devices`.
      state: where the run goes on.
      records: that are trained on.

    Raises:
      ConfigError: where the steps that are left are no multiple of those of a call.
    """
    step, batches = state.step, devices.batches
    _check_steps_left(config, step)
    order = TrainingOrder(config.seed, state.samples_done, rows_done=step * batches.train_batch_size)
    rows = records.batches(batches.train_batch_size, order)
    micro_batches = feeding.micro_batches(
        config, rows, step, batches, objective_scale(config, state, batches)
    )
    signature = feeding.signature_of(micro_batches)
    chain = stages.training_chain(config, state.model)
    parts = stages.make_parts(chain, devices.pipeline, signature)
    own = feeding.of_instance(micro_batches, batches, devices.instances, parts[0].features)
    with devices.strategy.scope():
        queues = pipeline_lib.make_queues(devices.api, own)
        program = _program(config, devices, state, stages.make_functions(chain, parts), queues)
    _ = queues.infeed.initializer  # asking for it starts the queue

    def call() -> np.ndarray:
        devices.strategy.run(program)
        sums = tf.nest.flatten(queues.outfeed.dequeue())[0]
        by_step = np.asarray(sums, np.float64).reshape(config.device_iterations, -1, stages.NUM_SUMS)
        return by_step.sum(axis=1)  # over the replicas

    return call


def _program(
    config: Config, devices: Devices, state: TrainState, functions: list, queues: pipeline_lib.Queues
) -> Any:
    """Returns the compiled function of a call."""
    api = devices.api
    update = make_update(config, state, devices.batches, api)

    def optimizer_function(loss, sums):
        del sums
        return api.pipelining_ops.OptimizerFunctionOutput(
            PipelineOptimizer(update),
            loss,
            compute_gradients_kwargs={"var_list": list(state.model.trainable_variables)},
        )

    training = pipeline_lib.Training(optimizer_function, config.device_iterations, [True, False])

    @tf.function(jit_compile=True, autograph=False)
    def program():
        pipeline_lib.add_pipeline(config, api, devices.pipeline, functions, queues, training)

    return program


def _check_steps_left(config: Config, step: int) -> None:
    left = train_steps(config) - step
    if left % config.device_iterations:
        raise ConfigError(
            f"device_iterations={config.device_iterations} does not divide the {left} steps from step {step}"
            f" to step {train_steps(config)}. Change --device_iterations or the number of steps."
        )
