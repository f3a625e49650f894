"""Programs of a run on IPUs: devices, state, micro batches, update, compiled steps and evaluations."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
from absl import logging

from official.checkpoint import DamagedError, bundle_reader
from official.checkpoint.canonical import compare_names
from official.config import train_steps
from official.config.table import Config
from official.data import pipeline
from official.data.pipeline import TrainingOrder
from official.distribution.batch_plan import BatchPlan, check_training
from official.distribution.pipeline_plan import PipelinePlan, make_plan
from official.graphcore import devices as devices_lib
from official.graphcore import pipeline as pipeline_lib
from official.graphcore.devices import Instances
from official.graphcore.pipeline import COUNTS, FACTORS, SEED
from official.io.errors import ConfigError, describe_names
from official.optimization import gradients as gradients_lib
from official.optimization import plain_optimizers, replica_step
from official.optimization.train_state import TrainState, build_state
from official.training.task import Dataset, Task

# -----------------------------------------------------------------------------------------------------------
# Update of the weights


class PipelineOptimizer(tf.compat.v1.train.Optimizer):
    """Reduces, unscales and clips the gradients of a step, and updates the weights."""

    def __init__(self, update: Callable[[list, list], None]):
        """Args: update: function of gradients and their variables."""
        super().__init__(use_locking=False, name="bert_optimizer")
        self._update = update

    def apply_gradients(self, grads_and_vars, global_step=None, name=None):
        """Returns the operation that updates the variables; `global_step` is counted by this project's
        optimizer."""
        del global_step
        graph = tf.compat.v1.get_default_graph()
        before = {operation.name for operation in graph.get_operations()}
        self._update(*map(list, zip(*grads_and_vars)))
        made = [operation for operation in graph.get_operations() if operation.name not in before]
        return tf.group(*[operation for operation in made if operation.type.startswith("Assign")], name=name)


def make_update(config: Config, state: TrainState, plan: BatchPlan, api: Any) -> Callable[[list, list], None]:
    """Returns the function (gradients, variables) -> None for the end of a step: reduce across replicas,
    unscale, clip, apply.

    Args:
      config: configuration of the run.
      state: state to update.
      plan: batches of all replicas.
      api: API of the IPUs.
    """
    scale = objective_scale(config, state, plan)
    largest = replica_step.largest_norm(config, plan.num_replicas)
    turns = float(replica_step.micro_batch_divisor(config, plan.num_accumulation_steps))

    def update(gradients, variables):
        if plan.num_replicas > 1:
            gradients = [api.cross_replica_ops.cross_replica_sum(gradient) for gradient in gradients]
        divisor = scale(state.optimizer.iterations) * turns
        factor = 1.0
        if largest is not None:
            factor = gradients_lib.clip_factor(tf.linalg.global_norm(gradients) / divisor, largest)
        state.optimizer.update(gradients, variables, factor / divisor)

    return update


def objective_scale(config: Config, state: TrainState, plan: BatchPlan) -> Callable:
    """Returns the function step -> factor of a micro batch's loss, float32, see
    `replica_step.objective_scale`."""
    loss_scale = state.loss_scale
    if loss_scale is None:
        return lambda step: tf.constant(1.0)
    factor = replica_step.scale_factor(config, plan.num_accumulation_steps, plan.num_replicas)
    return lambda step: loss_scale.at(step) * factor


# -----------------------------------------------------------------------------------------------------------
# Initial weights


def initialize(variables: dict, path: str) -> list[str]:
    """Assigns the model's variables from a checkpoint. Returns the names of those that it lacks: heads, which
    keep their initial values.

    Args:
      variables: {name: variable}, the model's.
      path: prefix of a TensorFlow checkpoint with Google's variable names.

    Raises:
      ConfigError: if a variable of the encoder is missing or has another shape, or there is no such
        checkpoint.
    """
    try:
        with bundle_reader.open_reader(path) as reader:
            found = bundle_reader.shapes(reader)
            wanted = {name: tuple(variable.shape) for name, variable in variables.items()}
            encoder = ("bert/", "LayerNorm/")  # the latter is the norm after prenorm blocks
            fresh = [name for name in wanted if name not in found and not name.startswith(encoder)]
            wanted = {name: shape for name, shape in wanted.items() if name not in fresh}
            problems = compare_names(wanted, {name: found[name] for name in wanted if name in found})
            if problems:
                raise ConfigError(
                    f"init_checkpoint {path} does not fit the model. {describe_names(problems)}. Change"
                    " --init_checkpoint, or convert it with bert convert.",
                    problems,
                )
            for name in wanted:
                variables[name].assign(reader.get_tensor(name))
    except DamagedError as error:
        raise ConfigError(
            f"--init_checkpoint={path}: not a name-based checkpoint ({error}). Convert other formats with"
            " bert convert first."
        ) from None
    line = "Initial weights: %d variables from %s; started fresh: %s"
    logging.info(line, len(wanted), path, fresh or "none")
    return fresh


# -----------------------------------------------------------------------------------------------------------
# Micro batches
#
# Each micro batch carries its weight in the step and the seed of its dropout: stages are functions of their
# inputs.


def micro_batches(
    config: Config, task: Task, steps: tf.data.Dataset, first_step: int, plan: BatchPlan, scale: Callable
) -> tf.data.Dataset:
    """Returns the micro batches of all replicas, {feature: tensor}, in the order in which replicas read them:
    those of one turn, then those of the next.

    Args:
      config: configuration of the run.
      task: task with the loss weights of a batch.
      steps: rows of whole steps, {feature: [train_batch_size, ...]}.
      first_step: number of the first step.
      plan: batches of all replicas.
      scale: function step -> factor of the loss, see `objective_scale`.
    """

    def cut(step, rows):
        parts = {name: _by_turn(value, plan) for name, value in rows.items()}
        turns, replicas = plan.num_accumulation_steps, plan.num_replicas
        count = turns * replicas
        turn, replica = tf.meshgrid(tf.range(turns), tf.range(replicas), indexing="ij")
        seeds = [tf.fill([count], config.seed), tf.fill([count], tf.cast(step, tf.int32))]
        parts[SEED] = tf.stack([*seeds, tf.reshape(replica, [-1]), tf.reshape(turn, [-1])], axis=1)
        parts[FACTORS] = _factors(config, task, rows, parts, plan) * scale(step)
        tokens = tf.reduce_sum(tf.cast(rows["input_mask"], tf.float32))
        counts = tf.stack([tf.reduce_sum(rows["example_weights"]), tokens])
        parts[COUNTS] = tf.tile(counts[None] / count, [count, 1])
        return parts

    return steps.enumerate(first_step).map(cut)


def of_instance(
    parts: tf.data.Dataset, plan: BatchPlan, instances: Instances, names: tuple[str, ...]
) -> tf.data.Dataset:
    """Returns the micro batches of one instance's replicas, one per element: a tuple of the features `names`.

    Every instance reads the whole step, on which the weights of micro batches depend, and keeps its part.
    """
    turns, replicas = plan.num_accumulation_steps, plan.num_replicas
    first, local = instances.first_replica, instances.local_replicas

    def keep(step):
        def own(value):
            by_turn = tf.reshape(value, [turns, replicas, *value.shape[1:]])[:, first : first + local]
            return tf.reshape(by_turn, [turns * local, *value.shape[1:]])

        mine = {name: own(value) for name, value in step.items()}
        mine[COUNTS] *= replicas / local  # the shares of an instance add up to the whole step's
        return tuple(mine[name] for name in names)

    return parts.map(keep).unbatch().prefetch(2 * turns * local)


def _by_turn(value, plan: BatchPlan):
    """Returns rows [N, ...] as micro batches [turns x replicas, rows per micro batch, ...]. A replica's rows
    are consecutive in the batch."""
    sizes = plan.num_replicas, plan.num_accumulation_steps, plan.micro_batch_size
    rest = value.shape[1:]
    by_replica = tf.reshape(value, [*sizes, *rest])
    by_turn = tf.transpose(by_replica, [1, 0, *range(2, 3 + len(rest))])
    return tf.reshape(by_turn, [sizes[0] * sizes[1], sizes[2], *rest])


def _factors(config: Config, task: Task, rows: dict, parts: dict, plan: BatchPlan) -> tf.Tensor:
    """Returns the factors of the summed losses of each micro batch, float32 [micro batches, losses].

    global: 1 / weight of the step. local: 1 / weight of the micro batch, with --scale_loss also / replicas.
    """
    count = plan.num_replicas * plan.num_accumulation_steps

    def weights_of(batch):
        weights = task.weights(batch)
        return tf.stack([weights[name] for name in task.losses])

    if config.loss_normalization == "global":
        return tf.tile(tf.math.divide_no_nan(1.0, weights_of(rows))[None], [count, 1])
    asked = {name: value for name, value in parts.items() if name in rows}
    weights = tf.map_fn(weights_of, asked, fn_output_signature=tf.TensorSpec([len(task.losses)], tf.float32))
    weights += [task.local_epsilon[name] for name in task.losses]
    return tf.math.divide_no_nan(replica_step.local_factor(config, plan.num_replicas), weights)


def signature_of(dataset: tf.data.Dataset) -> dict[str, tf.TensorSpec]:
    """Returns {feature: shape and type} of the elements of a dataset."""
    return {name: tf.TensorSpec(spec.shape, spec.dtype, name) for name, spec in dataset.element_spec.items()}


# -----------------------------------------------------------------------------------------------------------
# Devices, state, programs


POLICIES = {"fp32": "float32", "fp16": "mixed_float16"}


@dataclasses.dataclass(frozen=True)
class Devices:
    """Devices and programs of a process.

    Attributes:
      api: `tensorflow.python.ipu`.
      instances: the replicas of the run, and those of this process.
      strategy: the strategy in whose scope variables are created.
      pipeline: stages and IPUs of a replica.
      evaluation: the pipeline without a backward pass, with a separate number of micro batches.
      batches: batches of all replicas.
    """

    api: Any
    instances: devices_lib.Instances
    strategy: Any
    pipeline: PipelinePlan
    evaluation: PipelinePlan
    batches: BatchPlan


def set_numbers(config: Config) -> None:
    """Sets precision and seed. Called before any random number is drawn, also for generated data."""
    tf.keras.mixed_precision.set_global_policy(POLICIES[config.dtype])
    tf.random.set_seed(config.seed)


def take_devices(config: Config) -> Devices:
    """Configures the IPUs of this process.

    Raises:
      ConfigError: without the SDK, and if stages, batches or poprun's numbers contradict the settings.
    """
    plan = make_plan(config, pipeline_lib.names_of(config))
    pipeline_lib.check_plan(config, plan)
    check_training(config, config.ipu.replicas)
    batches = BatchPlan(
        config.ipu.replicas, config.num_accumulation_steps, config.train_batch_size, config.eval_batch_size
    )
    evaluation = plan
    if config.do_eval or config.do_predict:
        evaluation, batches = pipeline_lib.evaluation_plan(config, plan, batches)
        line = "eval_batch_size %d = %d replicas x %d micro batches x %d rows"
        rows = batches.eval_batch_size // (batches.num_replicas * evaluation.micro_batches)
        logging.info(line, batches.eval_batch_size, batches.num_replicas, evaluation.micro_batches, rows)
    api = devices_lib.load_api()
    instances = devices_lib.find_instances(config, plan.num_devices, devices_lib.load_popdist())
    devices_lib.configure(config, api, instances)
    api.utils.reset_ipu_seed(config.seed)  # seed of stochastic rounding
    logging.info("%s; %s on %d IPUs/replica", batches.describe(), plan.schedule, instances.ipus_per_replica)
    return Devices(api, instances, devices_lib.make_strategy(api, instances), plan, evaluation, batches)


@dataclasses.dataclass(frozen=True)
class PipelineState(TrainState):
    """The state of a run on IPUs. Its counters are on the host, since reading one from the devices would copy
    the whole state.

    Attributes:
      steps: number of updates done, saved in checkpoints; the optimizer's count is set from it.
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
    known = {field.name: getattr(state, field.name) for field in dataclasses.fields(state)}
    for name in ("samples", "steps"):
        known[name] = tf.Variable(0, trainable=False, dtype=tf.int64, name=name)
    return PipelineState(**known)


def make_training(
    config: Config, devices: Devices, task: Task, state: PipelineState, order: TrainingOrder
) -> Callable[[], np.ndarray]:
    """Returns the function () -> float [steps, 2 x metrics + NUM_COUNTS], which runs the next
    `device_iterations` steps and returns the sums of each over this process's replicas.

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
    steps = micro_batches(config, task, rows, state.step, batches, scale)
    chain = pipeline_lib.training_chain(config, task, state.model)
    parts = pipeline_lib.make_parts(chain, devices.pipeline, signature_of(steps.unbatch()))
    own = of_instance(steps, batches, devices.instances, parts[0].features)
    width = 2 * len(task.metrics) + pipeline_lib.NUM_COUNTS
    update = make_update(config, state, batches, devices.api)

    def optimizer_function(loss, sums):
        del sums
        return devices.api.pipelining_ops.OptimizerFunctionOutput(
            PipelineOptimizer(update),
            loss,
            compute_gradients_kwargs={"var_list": list(state.model.trainable_variables)},
        )

    training = pipeline_lib.Training(optimizer_function, config.ipu.device_iterations, [True, False])
    run = _program(
        config, devices, devices.pipeline, pipeline_lib.make_functions(chain, parts), own, training
    )

    def call() -> np.ndarray:
        sums = tf.nest.flatten(run())[0]
        by_step = np.asarray(sums, np.float64).reshape(config.ipu.device_iterations, -1, width)
        return by_step.sum(axis=1)  # over the replicas

    return call


def make_evaluation(
    config: Config, devices: Devices, task: Task, state: PipelineState, dataset: Dataset
) -> tuple[Callable[[], tuple[tf.Tensor, dict[str, tf.Tensor]]], int]:
    """Returns (function () -> (sums, outputs) of the next device call, as in `step.make_eval_step`; number of
    calls in one pass over the set). After a pass the set starts again.

    Each instance evaluates the whole set, so that each has all outputs.

    Args:
      config, devices, task, state: see `make_training`.
      dataset: function from a number of rows to the batches of the set.
    """
    plan, batches = devices.evaluation, devices.batches
    per_call = devices.instances.local_replicas * plan.micro_batches * batches.micro_batch_size
    calls = int(dataset(per_call).reduce(np.int64(0), lambda count, _: count + 1))
    # Endless, with each pass padded to whole device calls.
    passes = pipeline.rebatched(dataset(per_call), batches.micro_batch_size, drop_remainder=True).repeat()
    rows = pipeline.fixed(passes)
    chain = pipeline_lib.evaluation_chain(task, state.model)
    parts = pipeline_lib.make_parts(chain, plan, signature_of(rows))
    own = rows.map(lambda row: tuple(row[name] for name in parts[0].features))
    run = _program(config, devices, plan, pipeline_lib.make_functions(chain, parts), own)

    def call() -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
        sums, *outputs = tf.nest.flatten(run())
        lead = len(sums.shape) - 1  # micro batches, and replicas if there are several
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

    _ = queues.infeed.initializer  # reading this attribute starts the queue

    def run() -> Any:
        devices.strategy.run(program)
        return queues.outfeed.dequeue()

    return run


def check_steps(config: Config, step: int) -> None:
    """Raises ConfigError if the steps to the end, or between evaluations, are not a multiple of
    --device_iterations."""
    every, last = config.ipu.device_iterations, train_steps(config)
    between = config.steps_between_eval if config.do_eval else None
    for left, what in ((last - step, f"{last - step} steps from step {step} to step {last}"), (between, "")):
        if left and left % every:
            what = what or f"steps_between_eval={between}"
            raise ConfigError(
                f"device_iterations={every} does not divide the {what}. Change --ipu_options or the"
                " number of steps."
            )
