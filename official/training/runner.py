"""One run from a configuration and a task to a result, as a person would tell it."""

import contextlib
import fcntl
import json
import os
import shlex
import signal
import sys
import time

from absl import logging
import tensorflow as tf

from official import config as config_lib
from official.checkpoint import initialize
from official.checkpoint.formats import registry
from official.checkpoint.manager import CheckpointManager
from official.config import ConfigError
from official.config.model import contradictions
from official.distribution import batch_plan
from official.distribution import strategy as strategy_lib
from official.reporting import environment
from official.reporting import metrics as metrics_lib
from official.reporting import mllog
from official.reporting import plots
from official.reporting import report
from official.reporting import summary
from official.io.writing import replace_file
from official.reporting.result import TrainResult, keep_training_result, read_json_object, read_result, remove_result, result_dict, write_result
from official.reporting.wandb_run import WandbRun
from official.training import finish
from official.training import page_cache
from official.training import step as step_lib
from official.training.interruption import Interruption
from official.training.loop import Loop, NonFiniteError, Outcome, reading


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
        initialize.check_model(config.model, registry.open_checkpoint(config.init_checkpoint, "--init_checkpoint"))
    with _writing(config.model_dir) if chief else contextlib.nullcontext(), Interruption() as interruption, \
            _open_wandb(config, writes=chief) as wandb:
        logging.info("%s; %s", _describe_devices(strategy, config), plan.describe())
        _warn_of_long_warmup(config)
        logging.debug("Configuration\n%s", config_lib.to_json(config))
        state = step_lib.make_state(config, task, strategy)
        rows = summary.parameter_table(state.model.trainable_variables)
        logging.info("Parameters\n%s", summary.format_parameter_table(rows))
        manager = CheckpointManager(config.model_dir, state.variables(), config.keep_checkpoints, read_only=not chief)
        earlier = _Earlier(config.model_dir)
        fresh = _restore(config, manager, state, earlier, task)
        same_evaluation = earlier.evaluates_like(config)
        if state.step and earlier.changes(asked):
            logging.info("Changed since this run was started: %s", ", ".join(earlier.changes(asked)))
        if chief:
            _save_settings(asked, command or sys.argv)
        metrics = _open_metrics(config, state, writes=chief, others=[wandb] if wandb else [])
        log = _open_log(config, strategy, state, chief, earlier)
        loop = Loop(config, task, state, strategy, plan, manager, metrics, log, interruption,
                    earlier.evaluations(state.step) if same_evaluation and config.do_train else {}, started)
        result = _train(loop, data_files, earlier if same_evaluation else None)
        result.fresh_variables, result.config = fresh, json.loads(config_lib.to_json(config))
        result.environment, result.data = surroundings, task.data_digest()
        if chief:
            _write_result(config, result, rows)
        if wandb:
            wandb.close(result.status, result_dict(result))
    return result


def _write_result(config, result: TrainResult, parameters: list) -> None:
    """Writes result and report. An evaluation of somebody's run leaves the result of the training beside it."""
    if not config.do_train:
        keep_training_result(config.model_dir)
    write_result(config.model_dir, result)
    report.write_report(config.model_dir, f"BERT {config.task}", config_lib.to_json(config), result, parameters)


# What an evaluation's result depends on, beside the weights.
_EVALUATION_SETTINGS = ("eval_files", "num_eval_samples", "use_synthetic_data", "predict_file", "version_2_with_negative", "max_seq_length", "doc_stride",
                        "max_query_length", "n_best_size", "max_answer_length", "null_score_diff_threshold", "data_dir", "glue_task")


class _Earlier:
    """What earlier processes left in the run's folder, read before this one writes: result, metrics, settings."""

    def __init__(self, model_dir: str):
        self.result = read_result(model_dir)
        self.metrics = metrics_lib.read_metrics(model_dir)
        self._settings = read_json_object(os.path.join(model_dir, "config.json"))

    def evaluates_like(self, config) -> bool:
        """Tells whether its evaluations are of the set that this run evaluates."""
        names = _EVALUATION_SETTINGS + (() if config.eval_files else ("input_files",))
        return bool(self._settings) and all(self._settings.get(name, config_lib.FIELDS[name].default) == config[name] for name in names)

    def changes(self, config) -> list[str]:
        """Returns the settings that differ from those of the earlier process: 'name old -> new'."""
        known = {name: self._settings[name] for name in config_lib.FIELDS if name in self._settings and name != "init_checkpoint"}
        return [f"{name} {value} -> {config[name]}" for name, value in known.items() if value != config[name]]

    def check_model(self, config) -> None:
        """Raises ConfigError where its model computes something else with the same weights: other heads, activation or epsilon."""
        saved = self._settings.get("model")
        other = contradictions(config.model, saved) if isinstance(saved, dict) else []
        if other:
            raise ConfigError(f"the run in --model_dir={config.model_dir} {'; it '.join(other)}. Give the config.json there as --config "
                              "in place of --bert_config_file, or change --model_dir.")

    def evaluations(self, last_step: int) -> dict[int, dict]:
        return {line["step"]: line for line in self.metrics if line["split"] == "eval" and line["step"] <= last_step}

    def skipped_steps(self, last_step: int) -> int:
        return sum(line.get("skipped_steps", 0) for line in self.metrics if line["split"] == "train" and line["step"] <= last_step)


def _warn_of_long_warmup(config) -> None:
    steps = config_lib.schedule_steps(config)
    if config.do_train and config.start_warmup_step + config.warmup_steps >= steps:
        logging.warning("warmup_steps=%g ends at or after the last of the %d steps of the schedule: the peak learning rate is never "
                        "reached. Lower --warmup_steps.", config.warmup_steps, steps)


def _unwritable(model_dir: str, error: OSError) -> ConfigError:
    return ConfigError(f"--model_dir={model_dir} cannot be written to: {error.strerror or error}.")


def _describe_devices(strategy, config) -> str:
    kind = type(strategy).__name__.removesuffix("V1").removesuffix("Strategy")
    devices = ", ".join(sorted({device.split("device:")[-1] for device in strategy.extended.worker_devices}))
    return f"Task {config.task} on {devices} ({kind}), {config.dtype}{', XLA' if config.enable_xla else ''}"


@contextlib.contextmanager
def _writing(model_dir: str):
    """Locks the folder, and turns a full disk or a missing permission into one line."""
    with _locked(model_dir):
        try:
            yield
        except OSError as error:
            raise _unwritable(model_dir, error) from None
        except (tf.errors.ResourceExhaustedError, tf.errors.PermissionDeniedError) as error:
            if error.node_def is not None:  # an operation of the model: memory, not the disk
                raise
            raise ConfigError(f"--model_dir={model_dir} cannot be written to: {error.message}.") from None


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
        raise _unwritable(model_dir, error) from None
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(f"--model_dir={model_dir} is in use by another run. Wait for it, or choose another folder.") from None
        yield


def _save_settings(config, command: list[str]) -> None:
    """Saves what was asked for. An evaluation of somebody's run leaves that run's own settings alone."""
    if config.do_train or not tf.io.gfile.exists(os.path.join(config.model_dir, "config.json")):
        replace_file(os.path.join(config.model_dir, "config.json"), config_lib.to_json(config))
        replace_file(os.path.join(config.model_dir, "command.txt"), shlex.join(command) + "\n")


def _restore(config, manager: CheckpointManager, state: step_lib.TrainState, earlier: _Earlier, task) -> list[str]:
    """Sets the state: own newest (without training: best) checkpoint > init_checkpoint > fresh. Returns the names of a head that started fresh."""
    best = None if config.do_train or not task.keeps_best else earlier.result.get("best_step")
    prefix = best is not None and manager.restore(best) or manager.restore_newest()
    if prefix:
        earlier.check_model(config)
        logging.info("Resuming from %s: step %d, %d sequences", prefix, state.step, int(state.samples.numpy()))
        return earlier.result.get("fresh_variables", [])
    if config.init_checkpoint:
        made = initialize.initialize(state.model_variables(), config.init_checkpoint, config.model)
        logging.info("%s", made.describe())
        if made.fresh and task.keeps_best and not config.do_train:
            raise ConfigError(f"--init_checkpoint={config.init_checkpoint} has no {', '.join(made.fresh)}: it was not fine-tuned for this task. "
                              "Give a checkpoint that was, or --do_train.")
        return made.fresh
    if not config.do_train:
        raise ConfigError(f"do_train=false, but --model_dir={config.model_dir} has no checkpoint to evaluate. Change --model_dir, or give "
                          "--init_checkpoint.")
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
    log = mllog.MLPerfLog(mllog.log_path(config), settings, samples, goes_on=samples > 0 and earlier.evaluates_like(config),
                          evaluated=state.step in earlier.evaluations(state.step))
    return log if log.started or state.step < config_lib.train_steps(config) else mllog.SilentLog()


def _train(loop: Loop, data_files: list[str], earlier: _Earlier | None) -> TrainResult:
    """Runs the loop. `earlier` is what earlier processes of the same run found out, None where it does not count any more."""
    state, first_step = loop.state, loop.state.step
    loop.check_same_state()
    _prepare(loop, data_files)
    run_started = time.time()
    status, reason = _run_loop(loop)
    last_step, samples = state.step, int(state.samples.numpy())  # before going back to the best ones
    findings = finish.Findings() if status in ("interrupted", "failed") else finish.finish(loop)
    outcome, steps = loop.outcome, loop.manager.steps()
    result = TrainResult(
        status=status, reason=reason, step=last_step, samples=samples,
        eval_accuracy=outcome.eval_metrics.get(loop.task.target_metric), eval_loss=outcome.eval_metrics.get("loss"),
        target=loop.config.stop_threshold, target_metric=loop.task.target_metric, majority_accuracy=_majority_accuracy(loop, status, earlier),
        sequences_per_sec=outcome.sequences_per_sec(), wall_secs=time.time() - run_started, startup_secs=run_started - loop.process_started,
        first_step_secs=outcome.first_step_secs, peak_memory_bytes=environment.peak_memory_bytes(),
        checkpoint=os.path.join(loop.config.model_dir, f"ckpt-{steps[-1]}") if steps else None,
        skipped_steps=outcome.skipped_steps, signal=loop.interruption.signal,
        scores=findings.scores, tables=findings.tables, predictions=findings.files)
    if earlier:
        result.skipped_steps += earlier.skipped_steps(first_step)
        if last_step == first_step == earlier.result.get("step"):  # nothing was trained: the speed is that of the earlier process
            result.sequences_per_sec, result.wall_secs = earlier.result.get("sequences_per_sec"), earlier.result.get("wall_secs")
    return result


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
            status, reason = _judge(loop.config, loop.task, loop.outcome, loop.state, loop.interruption)
        except NonFiniteError as error:
            reason = f"{error}; the newest checkpoint is from before it"
        finally:
            loop.log.run_stop(status == "success", status, int(loop.state.samples.numpy()), loop.state.step)
    return status, reason


def _majority_accuracy(loop: Loop, status: str, earlier: _Earlier | None) -> float | None:
    """Returns the accuracy to compare with. It is found after the run, which is to be the first to read the data."""
    known = earlier.result.get("majority_accuracy") if earlier else None
    if known is not None or not loop.config.do_eval or loop.manager.read_only or status in ("interrupted", "failed"):
        return known
    majority = reading(loop.task, loop.task.majority_accuracy)
    if majority is not None:
        metric = loop.task.target_metric
        logging.info("Always predicting the %s scores %.4f (%s) on the evaluation set", plots.constant_prediction(metric), majority, metric)
    return majority


def _judge(config, task, outcome: Outcome, state, interruption) -> tuple[str, str]:
    """Returns the status of a run that ended in order, and why."""
    accuracy = outcome.eval_metrics.get(task.target_metric)
    if outcome.reached:
        return "success", f"{task.target_metric} {accuracy:.4f} reached the target {config.stop_threshold} at step {state.step}"
    if state.step < config_lib.train_steps(config) and config.do_train:
        return "interrupted", f"saved at step {state.step} on {signal.Signals(interruption.signal).name}"
    if config.stop_threshold is not None:
        return "aborted", f"{task.target_metric} {accuracy:.4f} is below the target {config.stop_threshold} after all {state.step} steps"
    if not config.do_train:
        return "finished", f"{'evaluated' if config.do_eval else 'predicted'} at step {state.step}"
    return "finished", f"all {state.step} steps done"

