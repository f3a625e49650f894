"""Callbacks of a run, the one place that knows them by name."""

import contextlib
import importlib
from collections.abc import Iterator

from absl import logging

from official import config as config_lib
from official.config import values
from official.config.table import Config
from official.distribution import strategy as strategy_lib
from official.optimization import schedules
from official.optimization.optimizers import TrainState
from official.reporting import mllog
from official.reporting.metrics import MetricsWriter
from official.reporting.observer import Observer
from official.reporting.progress import Progress
from official.reporting.tensorboard import Tags, TensorBoard
from official.reporting.wandb_run import WandbRun
from official.training.profiling import Profile
from official.training.starting import Beginning, Devices


@contextlib.contextmanager
def listening(config: Config, writes: bool) -> Iterator[list[Observer]]:
    """Yields the list of observers, to which the caller later adds those that need the state; all of them are
    closed at the end, also after an error.

    Args:
      config: of the run.
      writes: whether this process is the one that writes files.

    Raises:
      ConfigError: where one cannot start, such as W&B without a key: known before anything is built.
    """
    observers: list[Observer] = [Progress()]
    if config_lib.follows_graphcore_log(config):
        style = importlib.import_module(config_lib.LOG_STYLES["graphcore"])
        rate_at = schedules.from_config(config)
        observers = [style.GraphcoreLog(config, writes, lambda step: float(rate_at(step)))]
    if config.wandb and config.do_train and writes:
        observers.append(WandbRun(config, _tags(config)))
    with contextlib.ExitStack() as stack:
        try:
            yield observers
        finally:
            for observer in observers:  # an error of one does not keep another open
                stack.callback(observer.close)


def of_state(config: Config, devices: Devices, beginning: Beginning) -> list[Observer]:
    """Returns the observers that write a training's files, resumed at its first step; none without training,
    or where this process isn't the chief."""
    if not (devices.is_chief and config.do_train):
        return []
    step = beginning.state.step
    log = _mlperf_log(config, devices, beginning) if config.task == "pretrain" else None
    files: list[Observer] = [
        MetricsWriter(config.model_dir, resume_step=step),
        TensorBoard(config.model_dir, step, _tags(config)),
    ]
    return [*([log] if log else []), *files, *_profile(config, devices, beginning.state)]


def _tags(config: Config) -> Tags | None:
    if not config_lib.follows_graphcore_log(config):
        return None
    return importlib.import_module(config_lib.LOG_STYLES["graphcore"]).Tags(config)


def _profile(config: Config, devices: Devices, state: TrainState) -> list[Observer]:
    """Returns a list with the profiler of the steps asked for; empty where none are, or all of them are
    past."""
    window = values.window(config, state.step, config_lib.train_steps(config))
    if window is None and config.profile_steps:
        logging.warning("No profile: steps %s are not ahead of step %d.", config.profile_steps, state.step)
    return [Profile(config, state, window, strategy_lib.device_names(devices.strategy))] if window else []


def _mlperf_log(config: Config, devices: Devices, beginning: Beginning) -> mllog.MLPerfLog | None:
    """Returns the MLPerf log; None where the run is over and never wrote one."""
    strategy, plan, state = devices.strategy, devices.plan, beginning.state
    kind = strategy_lib.device_names(strategy)[0].split(":")[0].lower()
    platform = f"{kind}-{strategy.num_replicas_in_sync}"
    # Evaluations of another set do not belong into one log, and their cost not into its time.
    log = mllog.MLPerfLog(
        mllog.log_path(config),
        mllog.run_settings(config, platform, plan.sequences_per_step, plan.num_accumulation_steps),
        state.samples_done,
        goes_on=state.samples_done > 0 and beginning.earlier_counts,
        evaluated=state.step in beginning.earlier.evaluations(state.step),
        to_stdout=config.mllog_to_stdout,
    )
    return log if log.started or state.step < config_lib.train_steps(config) else None
