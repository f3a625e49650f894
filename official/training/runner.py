"""One run from a configuration and a task to a result, as a person would tell it."""

import contextlib
import json
import os
import shlex
import signal
import sys
import time

import tensorflow as tf
from absl import logging

from official import config as config_lib
from official.checkpoint import initialize, registry
from official.checkpoint.manager import CheckpointManager
from official.config import ConfigError
from official.config.model import contradictions
from official.distribution import batch_plan, peers
from official.distribution import strategy as strategy_lib
from official.io.errors import PeerError
from official.io.json_files import read_json_or_empty
from official.io.signals import Interrupted
from official.io.writing import replace_file
from official.optimization import schedules
from official.reporting import environment, mllog, report, summary
from official.reporting import metrics as metrics_lib
from official.reporting.result import (
    TrainResult,
    keep_training_result,
    read_result,
    remove_result,
    result_dict,
    write_result,
)
from official.reporting.wandb_run import WandbRun
from official.training import finish, kept_files, own_folder, page_cache
from official.training import step as step_lib
from official.training.interruption import Interruption
from official.training.loop import Loop, NonFiniteError, reading


def run(config, make_task, command: list[str] | None = None, started: float | None = None) -> TrainResult:
    """Trains, evaluates and reports.

    Args:
      config: the frozen configuration.
      make_task: config -> Task.
      command: the command line, saved with the run.
      started: when the process began, seconds since 1970; unset: now.

    Returns:
      The result, which is also in the folder of the run.

    Raises:
      ConfigError: for bad input, before anything is trained.
    """
    started = started or time.time()
    surroundings = environment.environment()  # of the start: the checkout may change while the run goes on
    if config.num_tpu_cores:
        batch_plan.make_batch_plan(config, config.num_tpu_cores)
    strategy = strategy_lib.make_strategy(config)
    asked, config = config, strategy_lib.with_length_buckets(config, strategy)
    chief = strategy_lib.is_chief(strategy)
    if not chief:
        logging.set_verbosity(logging.WARNING)
    plan = batch_plan.make_batch_plan(config, strategy.num_replicas_in_sync)
    task = make_task(config)
    data_files = task.find_data()
    config = config_lib.with_data(config, task.train_samples)
    if config.init_checkpoint and not CheckpointManager(config.model_dir, {}, 1).steps():
        # Found out now, not after a large model is built.
        initialize.check_model(
            config.model, registry.open_checkpoint(config.init_checkpoint, "--init_checkpoint")
        )
    with (
        (
            own_folder.writing(config.model_dir) if chief else contextlib.nullcontext(own_folder.unchecked)
        ) as check_folder,
        _open_wandb(config, writes=chief) as wandb,
        peers.noticing_lost_peers(strategy),
    ):
        logging.info("%s; %s", _describe_devices(strategy, config), plan.describe())
        _warn_of_long_warmup(config)
        logging.debug("Configuration\n%s", config_lib.to_json(config))
        state = step_lib.make_state(config, task, strategy)
        rows = summary.parameter_table(state.model.trainable_variables)
        logging.info("Model: %s", summary.format_total(rows))
        logging.debug("Parameters\n%s", summary.format_parameter_table(rows))
        manager = CheckpointManager(
            config.model_dir, state.variables(), config.keep_checkpoints, read_only=not chief
        )
        earlier = _Earlier(config.model_dir)
        to_keep = kept_files.missing(config.model_dir, task.companions)
        fresh = _restore(config, manager, state, earlier, task)
        same_evaluation = earlier.evaluates_like(config)
        if state.step and earlier.changes(asked):
            logging.info("Changed since this run was started: %s", ", ".join(earlier.changes(asked)))
        if chief:
            _save_settings(asked, command or sys.argv)
            kept_files.write(config.model_dir, to_keep)
        metrics = _open_metrics(config, state, writes=chief, others=[wandb] if wandb else [])
        log = _open_log(config, strategy, state, chief, earlier)
        loop = Loop(
            config,
            task,
            state,
            strategy,
            plan,
            manager,
            metrics,
            log,
            Interruption(),
            earlier.evaluations(state.step) if same_evaluation and config.do_train else {},
            started,
            check_folder,
        )
        result = _train(loop, data_files, earlier if same_evaluation else None)
        result.fresh_variables, result.config = fresh, json.loads(config_lib.to_json(config))
        result.environment, result.data = surroundings, task.data_digest()
        if chief:
            _write_result(config, result, rows)
        if wandb:
            wandb.close(result.status, result_dict(result))
    return result


def _write_result(config, result: TrainResult, parameters: list) -> None:
    """Writes result and report. An evaluation of somebody's run leaves the result of the training beside
    it."""
    if not config.do_train:
        keep_training_result(config.model_dir)
    write_result(config.model_dir, result)
    report.write_report(
        config.model_dir, f"BERT {config.task}", config_lib.to_json(config), result, parameters
    )


class _Earlier:
    """What earlier processes left in the run's folder, read before this one writes: result, metrics,
    settings."""

    def __init__(self, model_dir: str):
        self.result = read_result(model_dir)
        self.metrics = metrics_lib.read_metrics(model_dir)
        self._settings = read_json_or_empty(os.path.join(model_dir, "config.json"))

    def evaluates_like(self, config) -> bool:
        """Tells whether its evaluations are of the set that this run evaluates."""
        return bool(self._settings) and all(
            self._settings.get(name, field.default) == config[name]
            for name, field in config_lib.FIELDS.items()
            if field.changes_evaluation(config)
        )

    def changes(self, config) -> list[str]:
        """Returns the settings that differ from those of the earlier process: 'name old -> new'."""
        known = {
            name: self._settings[name]
            for name in config_lib.FIELDS
            if name in self._settings and name != "init_checkpoint"
        }
        return [f"{name} {value} -> {config[name]}" for name, value in known.items() if value != config[name]]

    def check_model(self, config) -> None:
        """Raises ConfigError where its model computes something else with the same weights: other heads,
        activation or epsilon."""
        saved = self._settings.get("model")
        other = contradictions(config.model, saved) if isinstance(saved, dict) else []
        if other:
            raise ConfigError(
                f"the run in --model_dir={config.model_dir} {'; it '.join(other)}. Give the config.json there"
                " as --config in place of --bert_config_file, or change --model_dir."
            )

    def evaluations(self, last_step: int) -> dict[int, dict]:
        return {
            line["step"]: line
            for line in self.metrics
            if line["split"] == "eval" and line["step"] <= last_step
        }

    def skipped_steps(self, last_step: int) -> int:
        return sum(
            line.get("skipped_steps") or 0
            for line in self.metrics
            if line["split"] == "train" and line["step"] <= last_step
        )


def _warn_of_long_warmup(config) -> None:
    steps = config_lib.schedule_steps(config)
    if config.do_train and config.start_warmup_step + config.warmup_steps >= steps:
        logging.warning(
            "warmup_steps=%g ends at or after the last of the %d steps of the schedule: the peak learning"
            " rate is never reached. Lower --warmup_steps.",
            config.warmup_steps,
            steps,
        )


def _describe_devices(strategy, config) -> str:
    kind = type(strategy).__name__.removesuffix("V1").removesuffix("Strategy")
    devices = ", ".join(sorted({device.split("device:")[-1] for device in strategy.extended.worker_devices}))
    return f"Task {config.task} on {devices} ({kind}), {config.dtype}{', XLA' if config.enable_xla else ''}"


def _save_settings(config, command: list[str]) -> None:
    """Saves what was asked for. An evaluation of somebody's run leaves that run's own settings alone."""
    if config.do_train or not tf.io.gfile.exists(os.path.join(config.model_dir, "config.json")):
        replace_file(os.path.join(config.model_dir, "config.json"), config_lib.to_json(config))
        replace_file(os.path.join(config.model_dir, "command.txt"), shlex.join(command) + "\n")


def _restore(
    config, manager: CheckpointManager, state: step_lib.TrainState, earlier: _Earlier, task
) -> list[str]:
    """Sets the state: own newest (without training: best) checkpoint > init_checkpoint > fresh. Returns the
    names of a head that started fresh."""
    best = None if config.do_train or not task.keeps_best else earlier.result.get("best_step")
    prefix = best is not None and manager.restore(best) or manager.restore_newest()
    if prefix:
        earlier.check_model(config)
        logging.info(
            "Resuming from %s: step %d, %d sequences", prefix, state.step, int(state.samples.numpy())
        )
        return earlier.result.get("fresh_variables", [])
    if config.init_checkpoint:
        made = initialize.initialize(state.model_variables(), config.init_checkpoint, config.model)
        logging.info("%s", made.describe())
        if made.fresh and task.keeps_best and not config.do_train:
            raise ConfigError(
                f"--init_checkpoint={config.init_checkpoint} has no {', '.join(made.fresh)}: it was not"
                " fine-tuned for this task. Give a checkpoint that was, or --do_train."
            )
        return made.fresh
    if not config.do_train:
        raise ConfigError(
            f"do_train=false, but --model_dir={config.model_dir} has no checkpoint to evaluate. Change"
            " --model_dir, or give --init_checkpoint."
        )
    logging.info("Fresh weights from seed %d", config.seed)
    return []


def _open_wandb(config, writes: bool):
    return WandbRun(config) if config.wandb and config.do_train and writes else contextlib.nullcontext()


def _open_metrics(config, state, writes: bool, others):
    if not (writes and config.do_train):
        return metrics_lib.SilentWriter()
    return metrics_lib.MetricsWriter(config.model_dir, resume_step=state.step, others=others)


def _open_log(config, strategy, state, writes: bool, earlier: _Earlier):
    if not (writes and config.do_train) or config.task != "pretrain":
        return mllog.SilentLog()
    kind = strategy.extended.worker_devices[0].split("device:")[-1].split(":")[0].lower()
    settings = mllog.run_settings(config, f"{kind}-{strategy.num_replicas_in_sync}")
    # Evaluations of another set do not belong into one log, and their cost not into its time.
    samples = int(state.samples.numpy())
    log = mllog.MLPerfLog(
        mllog.log_path(config),
        settings,
        samples,
        goes_on=samples > 0 and earlier.evaluates_like(config),
        evaluated=state.step in earlier.evaluations(state.step),
        to_stdout=config.mllog_to_stdout,
    )
    return log if log.started or state.step < config_lib.train_steps(config) else mllog.SilentLog()


def _train(loop: Loop, data_files: list[str], earlier: _Earlier | None) -> TrainResult:
    """Runs the loop. `earlier` is what earlier processes of the same run found out, None where it does not
    count any more."""
    state, first_step = loop.state, loop.state.step
    run_started = time.time()  # known better once all is prepared
    findings, peer_lost = finish.Findings(), False
    try:
        with peers.noticing_lost_peers(loop.strategy):
            loop.check_same_state()
            _prepare(loop, data_files)
            run_started = time.time()
            with loop.interruption:
                status, reason = _run_loop(loop)
                last_step, samples = (
                    state.step,
                    int(state.samples.numpy()),
                )  # before going back to the best ones
                status, reason, findings = _finish(loop, status, reason)
    except PeerError as error:
        status, reason, peer_lost = "failed", str(error), True
        last_step, samples = state.step, int(state.samples.numpy())
    outcome, steps = loop.outcome, loop.manager.steps()
    majority_prediction, majority_accuracy = _constant_prediction(loop, status, earlier)
    result = TrainResult(
        status=status,
        reason=reason,
        step=last_step,
        samples=samples,
        eval_accuracy=outcome.eval_metrics.get(loop.task.target_metric),
        eval_loss=outcome.eval_metrics.get("loss"),
        target=loop.config.stop_threshold,
        target_metric=loop.task.target_metric,
        majority_accuracy=majority_accuracy,
        majority_prediction=majority_prediction,
        learning_rates=schedules.corners(loop.config) if loop.config.do_train else {},
        sequences_per_sec=outcome.sequences_per_sec(),
        wall_secs=time.time() - run_started,
        startup_secs=_startup_secs(loop, run_started),
        first_step_secs=outcome.first_step_secs,
        peak_memory_bytes=environment.peak_memory_bytes(),
        checkpoint=os.path.join(loop.config.model_dir, f"ckpt-{steps[-1]}") if steps else None,
        skipped_steps=outcome.skipped_steps,
        signal=loop.interruption.signal,
        peer_lost=peer_lost,
        scores=findings.scores,
        tables=findings.tables,
        examples=findings.examples,
        predictions=findings.files,
    )
    if earlier:
        result.skipped_steps += earlier.skipped_steps(first_step)
        if (
            last_step == first_step == earlier.result.get("step")
        ):  # nothing was trained: the speed is that of the earlier process
            result.sequences_per_sec, result.wall_secs = (
                earlier.result.get("sequences_per_sec"),
                earlier.result.get("wall_secs"),
            )
    return result


def _finish(loop: Loop, status: str, reason: str) -> tuple[str, str, finish.Findings]:
    """Returns status, reason and what the best weights are worth, unless a signal cuts that or has cut the
    training."""
    if status in ("interrupted", "failed"):
        return status, reason, finish.Findings()
    last_step = loop.state.step
    try:
        return status, reason, finish.finish(loop)
    except Interrupted:
        return "interrupted", _describe_interruption(loop, last_step), finish.Findings()


def _describe_interruption(loop: Loop, step: int) -> str:
    return (
        f"{'saved' if loop.config.do_train else 'evaluation stopped'} at step {step} on"
        f" {signal.Signals(loop.interruption.signal).name}"
    )


def _startup_secs(loop: Loop, run_started: float) -> float:
    """Returns the seconds until training was at its speed: until the first step was done, less a step;
    without training, until the run began."""
    outcome = loop.outcome
    if outcome.first_step_secs is None:
        return run_started - loop.process_started
    return max(outcome.first_step_secs - (outcome.step_secs or 0.0), 0.0)


def _prepare(loop: Loop, data_files: list[str]) -> None:
    """Does what comes before the clock starts: compiles, empties caches, and writes the head of the log."""
    config, log = loop.config, loop.log
    if config.device_warmup:
        since = time.monotonic()
        loop.warm_up()
        logging.info("Compiled the training and the evaluation step in %.1f s", time.monotonic() - since)
    if loop.last_step == loop.state.step:
        return
    if not loop.manager.read_only:
        remove_result(config.model_dir)  # it would be untrue from now on
    dropped = page_cache.drop(data_files) if config.clear_caches else 0
    if not log.started:
        log.initialize(list(loop.state.model_variables()), since=loop.process_started)
        if dropped:
            log.cache_clear()
        log.run_start()


def _run_loop(loop: Loop) -> tuple[str, str]:
    """Runs the loop and returns status and reason; the log has its end whatever happens."""
    status, reason = "failed", ""
    with contextlib.closing(loop.metrics), contextlib.closing(loop.log):
        try:
            loop.run()
            status, reason = _judge(loop)
        except NonFiniteError as error:
            reason = f"{error}; the newest checkpoint is from before it"
        finally:
            loop.log.run_stop(status == "success", status, int(loop.state.samples.numpy()), loop.state.step)
    return status, reason


def _constant_prediction(
    loop: Loop, status: str, earlier: _Earlier | None
) -> tuple[str | None, float | None]:
    """Returns what to compare with: what to predict always, and its score. Found after the run, which is to
    be the first to read the data."""
    known = tuple(
        earlier.result.get(name) if earlier else None for name in ("majority_prediction", "majority_accuracy")
    )
    if (
        None not in known
        or not loop.config.do_eval
        or loop.manager.read_only
        or status in ("interrupted", "failed")
    ):
        return known
    found = reading(loop.task, loop.task.constant_prediction)
    if found:
        logging.info(
            "Always predicting %r scores %.4f (%s) on the evaluation set", *found, loop.task.target_metric
        )
    return found or (None, None)


def _judge(loop: Loop) -> tuple[str, str]:
    """Returns the status of a run that ended in order, and why."""
    config, task, outcome, state = loop.config, loop.task, loop.outcome, loop.state
    if outcome.interrupted:
        return "interrupted", _describe_interruption(loop, state.step)
    accuracy = outcome.eval_metrics.get(task.target_metric)
    if outcome.reached:
        return (
            "success",
            (
                f"{task.target_metric} {accuracy:.4f} reached the target {config.stop_threshold} at step"
                f" {state.step}"
            ),
        )
    if config.stop_threshold is not None:
        return (
            "aborted",
            (
                f"{task.target_metric} {accuracy:.4f} is below the target {config.stop_threshold} after all"
                f" {state.step} steps"
            ),
        )
    if not config.do_train:
        return "finished", f"{'evaluated' if config.do_eval else 'predicted'} at step {state.step}"
    return "finished", f"all {state.step} steps done"
