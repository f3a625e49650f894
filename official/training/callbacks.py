"""Callbacks of a run. To add one, write a subclass of `official.reporting.callback.Callback` and put it into
one of the two lists here."""

import contextlib
import importlib
from collections.abc import Iterator

import tensorflow as tf
from absl import logging

from official import config as config_lib
from official.config import values
from official.config.table import Config
from official.distribution import strategy as strategy_lib
from official.distribution.batch_plan import BatchPlan
from official.optimization import schedules
from official.optimization.optimizers import TrainState
from official.reporting import mllog
from official.reporting.callback import Callback
from official.reporting.metrics import MetricsWriter
from official.reporting.profile import Profile
from official.reporting.progress import Progress
from official.reporting.tensorboard import Tags, TensorBoard
from official.reporting.wandb_run import WandbRun
from official.training.run_lock import PreviousRun


@contextlib.contextmanager
def showing(config: Config, writes: bool) -> Iterator[list[Callback]]:
    """Yields the list of callbacks that show a run; the caller later adds those that need the state. Closes
    all of them at the end, also after an error.

    Args:
      config: configuration of the run.
      writes: whether this process writes files.

    Raises:
      ConfigError: if one cannot start, such as W&B without a key; before the model is built.
    """
    callbacks: list[Callback] = [Progress()]
    if config_lib.follows_graphcore_log(config):
        style = importlib.import_module(config_lib.LOG_STYLES["graphcore"])
        rate_at = schedules.from_config(config)
        callbacks = [style.GraphcoreLog(config, writes, lambda step: float(rate_at(step)))]
    if config.wandb and config.do_train and writes:
        callbacks.append(WandbRun(config, _tags(config)))
    with contextlib.ExitStack() as stack:
        try:
            yield callbacks
        finally:
            for callback in callbacks:  # closes the others even if one fails
                stack.callback(callback.close)


def of_training(
    config: Config,
    strategy: tf.distribute.Strategy,
    plan: BatchPlan,
    state: TrainState,
    previous: PreviousRun | None,
) -> list[Callback]:
    """Returns the callbacks that write the files of a training run, positioned at its first step; none
    without training, or if this process is not the chief.

    Args:
      config, strategy, plan, state: of the run.
      previous: the earlier run, if its evaluations are valid for this one; else None.
    """
    if not (strategy_lib.is_chief(strategy) and config.do_train):
        return []
    step, last_step = state.step, config_lib.train_steps(config)
    found: list[Callback] = []
    if config.task == "pretrain":
        kind = strategy_lib.device_names(strategy)[0].split(":")[0].lower()
        platform = f"{kind}-{strategy.num_replicas_in_sync}"
        # One log must not mix evaluations of different sets, nor include their time.
        log = mllog.MLPerfLog(
            mllog.log_path(config),
            mllog.run_settings(config, platform, plan.sequences_per_step, plan.num_accumulation_steps),
            state.samples_done,
            goes_on=state.samples_done > 0 and previous is not None,
            evaluated=previous is not None and step in previous.evaluations(step),
        )
        if log.started or step < last_step:  # else the run has ended and never wrote a log
            found.append(log)
    found.append(MetricsWriter(config.model_dir, step, evaluations_count=previous is not None))
    found.append(TensorBoard(config.model_dir, step, _tags(config)))
    window = values.window(config, step, last_step)
    if window:
        found.append(Profile(config, state, window, strategy_lib.device_names(strategy)))
    elif config.profile_steps:
        logging.warning("No profile: steps %s do not begin after step %d.", config.profile_steps, step)
    return found


def _tags(config: Config) -> Tags | None:
    if not config_lib.follows_graphcore_log(config):
        return None
    return importlib.import_module(config_lib.LOG_STYLES["graphcore"]).Tags(config)
