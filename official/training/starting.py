"""Start of a run: devices, data, the restored state, and the settings that are logged and saved before
training."""

import dataclasses
import time
from collections.abc import Callable

import tensorflow as tf
from absl import logging

from official import config as config_lib
from official.checkpoint import initialize, registry
from official.checkpoint.manager import CheckpointManager
from official.config import Config
from official.distribution import strategy as strategy_lib
from official.distribution.backends import as_pipeline
from official.distribution.batch_plan import BatchPlan, Layout, is_kept, lay_out, make_batch_plan
from official.distribution.pipeline_plan import allocation
from official.optimization.optimizers import TrainState
from official.reporting import summary
from official.reporting.observer import Built, Observer
from official.training import pipelined, resume
from official.training.resume import Earlier
from official.training.task import Task

MakeTask = Callable[[Config], Task]


def check_init_checkpoint(config: Config) -> None:
    """Raises ConfigError where --init_checkpoint is needed and does not fit the model, before a large model
    is built."""
    if config.init_checkpoint and not CheckpointManager(config.model_dir, {}, 1).steps():
        source = registry.open_checkpoint(config.init_checkpoint, "--init_checkpoint")
        initialize.check_model(config.model, source)


@dataclasses.dataclass(frozen=True)
class Devices:
    """Strategy, batches and role of this process.

    Attributes:
      strategy: the strategy of all processes.
      plan: batches of all replicas.
      is_chief: whether this process writes files and logs.
      layout: workers, replicas and micro batches that the run keeps; None where it keeps no layout.
    """

    strategy: tf.distribute.Strategy
    plan: BatchPlan
    is_chief: bool
    layout: Layout | None = None


@dataclasses.dataclass(frozen=True)
class Ready:
    """Configuration, devices and task of a run before its model is built.

    Attributes:
      config: the configuration completed from devices and data.
      devices: devices of this process.
      task: the task, after `find_data`.
      data_files: all files, of training and evaluation.
      data_secs: seconds that finding the data took.
    """

    config: Config
    devices: Devices
    task: Task
    data_files: list[str]
    data_secs: float


def make_ready(config: Config, make_task: MakeTask) -> Ready:
    """Sets up the devices and finds the data.

    Raises:
      ConfigError: where devices or data are missing, or a batch cannot be divided among replicas.
    """
    devices, own = _take_devices(config)
    task, since = make_task(own), time.monotonic()
    data_files = task.find_data()
    data_secs = time.monotonic() - since
    own = config_lib.with_data(own, task.train_samples, task.sequences_per_row)
    devices = dataclasses.replace(devices, plan=devices.plan.with_rows_of(task.sequences_per_row))
    return Ready(own, devices, task, data_files, data_secs)


def _take_devices(config: Config) -> tuple[Devices, Config]:
    """Makes the strategy. Returns the devices, and the configuration with the settings that depend on
    them."""
    strategy = strategy_lib.make_strategy(config)
    config = strategy_lib.with_length_buckets(config, strategy)
    chief = strategy_lib.is_chief(strategy)
    if not chief:
        logging.set_verbosity(logging.WARNING)
    plan, layout = _make_plan(config, strategy)
    return Devices(strategy, plan, chief, layout), config


def _make_plan(config: Config, strategy: tf.distribute.Strategy) -> tuple[BatchPlan, Layout | None]:
    """Returns (batch plan, layout that the run keeps, None where it keeps none)."""
    replicas = strategy.num_replicas_in_sync
    if not is_kept(config):
        return make_batch_plan(config, replicas), None
    return lay_out(config, strategy_lib.num_workers(strategy), replicas, resume.read(config.model_dir))


def tell(config: Config, devices: Devices) -> None:
    """Logs task, devices, precision and batches of the run; warns of a warmup longer than the schedule."""
    strategy = devices.strategy
    kind = type(strategy).__name__.removesuffix("V1").removesuffix("Strategy")
    names = ", ".join(sorted(set(strategy_lib.device_names(strategy))))
    compiled = ", XLA" if config.enable_xla else ""
    logging.info(
        "Task %s on %s (%s), %s%s; %s",
        config.task,
        names,
        kind,
        config.dtype,
        compiled,
        devices.plan.describe(),
    )
    if devices.plan.layout:
        logging.info("The same micro batches as of %s", devices.plan.layout.describe())
    steps = config_lib.schedule_steps(config)
    if config.do_train and config.start_warmup_step + config.warmup_steps >= steps:
        logging.warning(
            "warmup_steps=%g ends at or after the last of the %d steps of the schedule: the peak learning"
            " rate is never reached. Lower --warmup_steps.",
            config.warmup_steps,
            steps,
        )
    logging.debug("Configuration\n%s", config_lib.to_json(config))


def tell_built(observers: list[Observer], ready: Ready) -> None:
    """Tells the observers that the model is built, and its devices."""
    strategy = ready.devices.strategy
    names = tuple(name.replace(":", " ") for name in strategy_lib.device_names(strategy))
    built = Built(ready.data_secs, names, _allocation(strategy))
    for observer in observers:
        observer.on_built(built)


def _allocation(strategy: tf.distribute.Strategy) -> tuple[tuple[str, str], ...]:
    """Returns (part of the model, its devices in all replicas) of each part in a pipeline; empty without
    one."""
    pipeline = as_pipeline(strategy)
    if pipeline is None or pipeline.plan is None:
        return ()
    return tuple(
        (part, ", ".join(name.replace(":", " ") for name in pipeline.names_of(device)))
        for part, device in allocation(pipeline.plan)
    )


@dataclasses.dataclass(frozen=True)
class Beginning:
    """State of a run at its start, and the results of earlier processes.

    Attributes:
      state: the restored or fresh state.
      manager: manager of its checkpoints.
      earlier: result, metrics and settings of earlier processes.
      earlier_counts: whether their evaluations are valid for this run, with the same evaluation set.
      fresh: names of the variables that no checkpoint had.
      data_changed: whether the data differ from those that the run began with.
      weights: path of the checkpoint that the weights are from; empty for fresh ones.
      parameters: the table of parameters, for the report.
    """

    state: TrainState
    manager: CheckpointManager
    earlier: Earlier
    earlier_counts: bool
    fresh: list[str]
    data_changed: bool
    weights: str
    parameters: list


def begin(config: Config, task: Task, devices: Devices, asked: Config, command: list[str]) -> Beginning:
    """Builds the state, restores it, and saves the settings beside it.

    Args:
      config: the configuration completed from devices and data.
      task: the task, after `find_data`.
      devices: devices of this process.
      asked: the configuration that was asked for, which is saved.
      command: the command line, saved, too.
    """
    earlier = Earlier(config.model_dir)
    earlier.check(asked, config)  # what is in the folder may have changed while the data were found
    state = pipelined.make_state(config, task, devices.strategy)
    parameters = summary.parameter_table(state.model.trainable_variables)
    logging.info("Model: %s", summary.format_total(parameters))
    logging.debug("Parameters\n%s", summary.format_parameter_table(parameters))
    manager = CheckpointManager(
        config.model_dir, state.variables(), config.keep_checkpoints, read_only=not devices.is_chief
    )
    to_keep = resume.missing(config.model_dir, task.companions)
    weights, fresh = restore(config, manager, state, earlier, task)
    if state.step and config.do_train:
        earlier.tell_changes(asked)
    goes_on = devices.is_chief and config.do_train and state.step > 0
    data_changed = goes_on and resume.have_changed(config, task.data_files())
    if devices.is_chief:
        resume.write_settings(asked, command)
        if devices.layout:
            resume.write_layout(config.model_dir, devices.layout)
        resume.write_assets(config.model_dir, to_keep)
    counts = earlier.evaluates_like(config)
    return Beginning(state, manager, earlier, counts, fresh, data_changed, weights, parameters)


def restore(
    config: Config, manager: CheckpointManager, state: TrainState, earlier: Earlier, task: Task
) -> tuple[str, list[str]]:
    """Restores the state, see `earlier.restore`; --init_checkpoint may be of any format."""

    def initialize_model(path: str) -> list[str]:
        made = initialize.initialize(state.model_variables(), path, config.model, task.class_names)
        logging.info("%s", made.describe())
        return made.fresh

    return resume.restore(config, manager, state, earlier, task, initialize_model)
