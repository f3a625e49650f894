"""One run from a configuration and a task to a result, as a person would tell it."""

import contextlib
import fcntl
import os
import shlex
import sys
import time

from absl import logging
import tensorflow as tf

from official import config as config_lib
from official.checkpoint import initialize
from official.checkpoint import reading as checkpoint_reading
from official.checkpoint.manager import CheckpointManager
from official.config import ConfigError
from official.distribution import batch_plan
from official.distribution import strategy as strategy_lib
from official.reporting import metrics as metrics_lib
from official.reporting import report
from official.reporting import summary
from official.reporting.result import TrainResult, write_result
from official.training import step as step_lib
from official.training.interruption import Interruption
from official.training.loop import Loop, NonFiniteError, Outcome


def run(config, make_task, command: list[str] | None = None) -> TrainResult:
    """Trains, evaluates and reports.

    Args:
      config: the frozen configuration.
      make_task: config -> Task. Called once the devices are known to be there, because it looks at the data files.
      command: the command line, saved with the run.

    Returns:
      The result, which is also in the folder of the run.

    Raises:
      ConfigError: for bad input, before anything is trained.
    """
    strategy = strategy_lib.make_strategy(config)
    plan = batch_plan.make_batch_plan(config, strategy.num_replicas_in_sync)
    task = make_task(config)
    if config.init_checkpoint and not CheckpointManager(config.model_dir, {}, 1).steps():
        checkpoint_reading.find_prefix(config.init_checkpoint, "init_checkpoint")  # found out now, not after a large model is built
    logging.info("%s; %s", _describe_devices(strategy, config), plan.describe())
    with _locked(config.model_dir), Interruption() as interruption:
        _save_settings(config, command or sys.argv)
        logging.debug("Configuration\n%s", config_lib.to_json(config))
        state = step_lib.make_state(config, task, strategy)
        rows = summary.parameter_table(state.model.trainable_variables)
        logging.info("Parameters\n%s", summary.format_parameter_table(rows))
        manager = CheckpointManager(config.model_dir, state.variables(), config.keep_checkpoints)
        fresh = _restore(config, manager, state)
        result = _train(config, task, strategy, plan, state, manager, interruption)
        result.fresh_variables = fresh
        _write(config, result, rows)
    return result


def _describe_devices(strategy, config) -> str:
    kind = type(strategy).__name__.removesuffix("V1").removesuffix("Strategy")
    devices = ", ".join(sorted({device.split("device:")[-1] for device in strategy.extended.worker_devices}))
    return f"Task {config.task} on {devices} ({kind}), {config.dtype}{', XLA' if config.enable_xla else ''}"


@contextlib.contextmanager
def _locked(model_dir: str):
    """Makes the folder and holds its lock, so that no second run writes to it. Remote folders have no lock."""
    try:
        tf.io.gfile.makedirs(model_dir)
    except tf.errors.OpError as error:
        raise ConfigError(f"--model_dir={model_dir} cannot be made: {error.message}.") from None
    if "://" in model_dir:
        yield
        return
    try:
        file = open(os.path.join(model_dir, ".lock"), "w", encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"--model_dir={model_dir} cannot be written to: {error.strerror}.") from None
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(f"--model_dir={model_dir} is in use by another run. Wait for it, or choose another folder.") from None
        yield


def _save_settings(config, command: list[str]) -> None:
    metrics_lib.replace_file(os.path.join(config.model_dir, "config.json"), config_lib.to_json(config))
    metrics_lib.replace_file(os.path.join(config.model_dir, "command.txt"), shlex.join(command) + "\n")


def _restore(config, manager: CheckpointManager, state: step_lib.TrainState) -> list[str]:
    """Sets the state: own newest checkpoint > init_checkpoint > fresh. Returns the names of a head that started fresh."""
    prefix = manager.restore_newest()
    if prefix:
        logging.info("Resuming from %s: step %d, %d sequences", prefix, state.step, int(state.samples.numpy()))
        return []
    if config.init_checkpoint:
        made = initialize.initialize(state.model_variables(), config.init_checkpoint)
        logging.info("%s", made.describe())
        return made.fresh
    logging.info("Fresh weights from seed %d", config.seed)
    return []


def _train(config, task, strategy, plan, state, manager, interruption) -> TrainResult:
    started = time.monotonic()
    majority = task.majority_accuracy() if config.do_eval else None
    if majority is not None:
        logging.info("Always predicting the most frequent masked token scores %.4f on the evaluation set", majority)
    metrics = metrics_lib.MetricsWriter(config.model_dir, resume_step=state.step)
    path = os.path.join(config.model_dir, metrics_lib.FILE_NAME)
    evaluated = {line["step"]: line for line in metrics_lib.read_metrics(path) if line["split"] == "eval"} if config.do_train else {}
    loop = Loop(config, task, state, strategy, plan, manager, metrics, interruption, evaluated)
    if config.device_warmup:
        loop.warm_up()
        logging.info("Compiled the training and the evaluation step in %.1f s", time.monotonic() - started)
        started = time.monotonic()
    try:
        outcome = loop.run()
        status, reason = _judge(config, task, outcome, state, interruption)
    except NonFiniteError as error:
        outcome, status = Outcome(), "failed"
        reason = f"{error}; the newest checkpoint is from before it"
    finally:
        metrics.close()
    steps = manager.steps()
    return TrainResult(
        status=status, reason=reason, step=state.step, samples=int(state.samples.numpy()),
        eval_accuracy=outcome.eval_metrics.get(task.target_metric), eval_loss=outcome.eval_metrics.get("loss"),
        target=config.stop_threshold, majority_accuracy=majority, sequences_per_sec=outcome.sequences_per_sec(),
        wall_secs=time.monotonic() - started, checkpoint=f"{config.model_dir}/ckpt-{steps[-1]}" if steps else None,
        skipped_steps=outcome.skipped_steps, signal=interruption.signal if status == "interrupted" else None)


def _judge(config, task, outcome: Outcome, state, interruption) -> tuple[str, str]:
    """Returns the status of a run that ended in order, and why."""
    accuracy = outcome.eval_metrics.get(task.target_metric)
    if outcome.reached:
        return "success", f"{task.target_metric} {accuracy:.4f} reached the target {config.stop_threshold} at step {state.step}"
    if state.step < config_lib.train_steps(config) and config.do_train and interruption.signal:
        return "interrupted", f"saved at step {state.step} on signal {interruption.signal}; the same command goes on from there"
    if config.stop_threshold is not None:
        return "aborted", f"{task.target_metric} {accuracy:.4f} is below the target {config.stop_threshold} after all {state.step} steps"
    return "finished", f"all {state.step} steps done" if config.do_train else f"evaluated at step {state.step}"


def _write(config, result: TrainResult, rows) -> None:
    write_result(config.model_dir, result)
    report.write_report(config.model_dir, f"BERT {config.task}", config_lib.to_json(config), result, rows)
