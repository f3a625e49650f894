"""A run, from a configuration and a task to a result, in execution order.

`run` does everything: devices and data, state, loop, result, report. `run_seeds` repeats it with several
seeds, and `compile_only` stops after compiling the steps.
"""

import contextlib
import dataclasses
import functools
import os
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf
from absl import logging

from official import config as config_lib
from official import native
from official.checkpoint import initialize, sidecar_files
from official.checkpoint.manager import CheckpointManager
from official.config import Config, ConfigError
from official.config.setting import LENGTH, OWN_DATA
from official.config.settings.optimization import BATCH
from official.distribution import allreduce_check, machine_checks
from official.distribution import strategy as strategy_lib
from official.distribution.batch_plan import BatchPlan, Layout, is_kept, lay_out, make_batch_plan
from official.distribution.pipeline_plan import allocation
from official.distribution.strategy import as_pipeline
from official.io.errors import shortened
from official.optimization.optimizers import TrainState
from official.reporting import compilations, environment, report, summary
from official.reporting.callback import Built, Callback, Start
from official.reporting.result import TrainResult, remove_result, result_dict, write_result
from official.training import callbacks as callbacks_lib
from official.training import feeding, finish, pipelined, resume, run_lock
from official.training import step as step_lib
from official.training.loop import reading
from official.training.process_group import ProcessGroup
from official.training.run_lock import PreviousRun
from official.training.strategy_loop import Loop
from official.training.task import Task

MakeTask = Callable[[Config], Task]


def run(
    config: Config, make_task: MakeTask, command: list[str] | None = None, started: float | None = None
) -> TrainResult:
    """Trains, evaluates and reports.

    Args:
      config: the frozen configuration.
      make_task: config -> Task.
      command: the command line, saved with the run.
      started: start of the process, seconds since 1970; unset: now.

    Returns:
      The result, which is also written to the folder of the run.

    Raises:
      ConfigError: for bad input, before training starts.
    """
    started, command = started or time.time(), command or sys.argv
    surroundings = environment.environment()  # now, since the checkout may change during the run
    surroundings["working_directory"] = os.getcwd()  # of paths in the settings
    with run_lock.set_aside(config, command) as asked:
        asked, over = resume.left_to_do(asked)
        if over:
            return over
        ready = make_ready(asked, make_task)
        # Fails early, before a large model is built.
        config, task = ready.config, ready.task
        if config.init_checkpoint and not CheckpointManager(config.model_dir, {}, 1).steps():
            source = sidecar_files.open_best(config.init_checkpoint, "--init_checkpoint")
            initialize.check_model(config.model, source)
    with (
        run_lock.writing(config.model_dir, ready.is_chief) as check_folder,
        callbacks_lib.showing(config, ready.is_chief) as callbacks,
        strategy_lib.noticing_lost_peers(ready.strategy),
    ):
        _log_start(ready)
        compiled = compilations.compilations()
        if ready.strategy.num_replicas_in_sync > 1 and native.on_gpus(ready.strategy):
            surroundings["all_reduce"] = dataclasses.asdict(allreduce_check.check(ready.strategy, config))
        processes = ProcessGroup(*step_lib.peers(ready.strategy))
        _check_same(config, task, processes, surroundings)
        previous = PreviousRun(config.model_dir)
        if config.do_train:  # the folder may have changed while the data were searched
            previous.check(asked, config_lib.train_steps(config))
        state, pipeline = pipelined.make_state(config, task, ready.strategy), as_pipeline(ready.strategy)
        parameters = summary.parameter_table(state.model.trainable_variables)
        logging.info("Model: %s", summary.format_total(parameters))
        logging.debug("Parameters\n%s", summary.format_parameter_table(parameters))
        manager = CheckpointManager(
            config.model_dir, state.variables(), config.keep_checkpoints, read_only=not ready.is_chief
        )
        set_up = functools.partial(_initialize, config, state, task)
        facts, evaluates_same = resume.begin(asked, config, command, manager, state, previous, task, set_up)
        if ready.is_chief and ready.layout:
            resume.write_layout(config.model_dir, ready.layout)
        counts = processes.all(previous.evaluates_like(config) and evaluates_same)
        callbacks += callbacks_lib.of_training(
            config, ready.strategy, ready.plan, state, previous if counts else None
        )
        loop = Loop(
            config,
            task,
            state,
            ready.strategy,
            ready.plan,
            manager,
            callbacks,
            evaluated=previous.evaluations(state.step) if counts and config.do_train else {},
            process_started=started,
            check_folder=check_folder,
            processes=processes,
        )
        loop.notify(Callback.on_built, _built(ready))
        with contextlib.closing(manager):  # keeps the folder locked until all is written
            ended = loop.run_to_end(
                lambda: _prepare(loop, ready.data_files),
                finish.findings,
                lambda: strategy_lib.noticing_lost_peers(ready.strategy),
            )
            result = finish.make_result(
                loop,
                ended,
                previous,
                counts,
                command,
                page=report.FILE_NAME,
                compiled=compiled,
                environment=surroundings,
                pipeline=pipeline.plan.description() if pipeline and pipeline.plan else None,
                checks=ready.checks,
                **facts,
            )
        if ready.is_chief:
            finish.write_result(config, result, previous)
        if result.report:
            name, text = os.path.basename(result.report), config_lib.to_json(config)
            report.write_report(config.model_dir, f"BERT {config.task}", text, result, parameters, name)
        loop.notify(Callback.on_result, result.status, result_dict(result))
    return result


def _initialize(config: Config, state: TrainState, task: Task, path: str) -> list[str]:
    """Sets the model's variables from a checkpoint of any format; returns the names of fresh ones."""
    heads = task.class_names, task.problem_type, config.task in OWN_DATA
    made = initialize.initialize(state.model_variables(), path, config.model, *heads)
    logging.info("%s", made.describe())
    return made.fresh


# -----------------------------------------------------------------------------------------------------------
# Devices and data


@dataclasses.dataclass(frozen=True)
class Ready:
    """Configuration, devices and task of a run before its model is built.

    Attributes:
      config: the configuration, with values that depend on devices and data filled in.
      strategy: the `tf.distribute` strategy over all processes.
      plan: the batch plan over all replicas.
      layout: workers, replicas and micro batches that the run was started with; None if it has no layout.
      is_chief: whether this process writes files and logs.
      task: the task, after `find_data`.
      data_files: all data files, for training and evaluation.
      data_secs: time that `find_data` took, in seconds.
      checks: results of `official.distribution.machine_checks`; None without GPUs.
    """

    config: Config
    strategy: tf.distribute.Strategy
    plan: BatchPlan
    layout: Layout | None
    is_chief: bool
    task: Task
    data_files: list[str]
    data_secs: float
    checks: list[dict[str, str]] | None


def make_ready(config: Config, make_task: MakeTask) -> Ready:
    """Sets up the devices and finds the data.

    Raises:
      ConfigError: if devices or data are missing, or a batch cannot be divided among the replicas.
    """
    checks = machine_checks.of_run(config)
    config = machine_checks.with_working_kernels(config, checks)
    strategy = strategy_lib.make_strategy(config)
    config = strategy_lib.with_choices_of_devices(config, strategy)
    is_chief, replicas = strategy_lib.is_chief(strategy), strategy.num_replicas_in_sync
    if not is_chief:
        logging.set_verbosity(logging.WARNING)
    if is_kept(config):
        saved = resume.read_layout(resume.folder_of_state(config))
        plan, layout = lay_out(config, strategy_lib.num_workers(strategy), replicas, saved)
    else:
        plan, layout = make_batch_plan(config, replicas), None
    if config.batch_warmup and plan.layout:
        raise ConfigError(
            f"batch_warmup needs the replicas of the start of the run, {plan.layout.describe()}, received"
            f" {replicas}. Start with the same number."
        )
    task, since = make_task(config), time.monotonic()
    data_files = task.find_data()
    data_secs = time.monotonic() - since
    config = reading(task, lambda: config_lib.with_data(config, task.train_samples, task.sequences_per_row))
    plan = plan.with_rows_of(task.sequences_per_row)
    results = [check._asdict() for check in checks] if checks else None
    return Ready(config, strategy, plan, layout, is_chief, task, data_files, data_secs, results)


# Settings that affect weights, evaluations, or the order of collective operations. Paths may differ.
_COMPARED = tuple(
    name
    for name, field in config_lib.FIELDS.items()
    if (field.training or field.evaluation or field in BATCH.fields or name in ("do_train", "do_eval"))
    and not field.files
)


def _check_same(config: Config, task: Task, processes: ProcessGroup, surroundings: Mapping[str, Any]) -> None:
    """Raises ConfigError if the processes of a run differ in settings, models, names of data files,
    vocabularies or labels: they would train differently, or wait for each other forever. Warns if they differ
    in code, packages or TensorFloat-32; `surroundings`: see `environment.environment`."""
    values: dict[str, Any] = {f"--{name}={config[name]}"[:60]: config[name] for name in _COMPARED}
    names = {split: [*map(os.path.basename, paths)] for split, paths in task.data_files().items()}
    values["the configuration of the model"] = dataclasses.asdict(config.model)
    values[f"the names of the data files ({sum(map(len, names.values())):,} here)"] = names
    values["the vocabulary or the labels"] = task.companions
    loose = {
        f"the commit of the code ({surroundings['commit']})": surroundings["commit"],
        "the versions of packages": surroundings["versions"],
        "TensorFloat-32": tf.config.experimental.tensor_float_32_execution_enabled(),
    }
    differing = processes.differing({**values, **loose})
    if others := [name for name in differing if name in loose]:
        logging.warning("The processes of the run differ in %s; their results may differ.", ", ".join(others))
    if differing := [name for name in differing if name in values]:
        raise ConfigError(
            "The processes of the run differ: this one is not the same as all others in"
            f" {shortened(differing)}. Start all of them with the same command and the same files."
        )


def _log_start(ready: Ready) -> None:
    """Logs task, devices, precision and batches of the run; warns of a warmup longer than the schedule."""
    config, strategy = ready.config, ready.strategy
    kind = type(strategy).__name__.removesuffix("V1").removesuffix("Strategy")
    names = ", ".join(sorted(set(strategy_lib.device_names(strategy))))
    precision = f"{config.dtype}{', XLA' if config.enable_xla else ''}"
    logging.info("Task %s on %s (%s), %s; %s", config.task, names, kind, precision, ready.plan.describe())
    if ready.plan.layout:
        logging.info("The same micro batches as of %s", ready.plan.layout.describe())
    for check in ready.checks or ():
        if check["status"] != "ok":
            logging.warning("%s: %s. %s", check["name"], check["found"], check["advice"])
    steps = config_lib.schedule_steps(config)
    if config.do_train and config.task != "pretrain":
        line = "%d epochs of %d steps, learning rate %g after %d steps of warm-up, %d tokens at most"
        numbers = config.num_train_epochs, config.num_steps_per_epoch, config.learning_rate
        logging.info(line, *numbers, config.warmup_steps, config.max_seq_length)
    if config.do_train and config.start_warmup_step + config.warmup_steps >= steps:
        late = f"ends at or after the last of the {steps} steps of the schedule"
        never = "the peak learning rate is never reached. Lower --warmup_steps."
        logging.warning("warmup_steps=%g %s: %s", config.warmup_steps, late, never)
    logging.debug("Configuration\n%s", config_lib.to_json(config))


# -----------------------------------------------------------------------------------------------------------
# State


def _built(ready: Ready) -> Built:
    plain = lambda names: tuple(name.replace(":", " ") for name in names)
    pipeline, parts = as_pipeline(ready.strategy), []
    if pipeline is not None and pipeline.plan is not None:
        for part, device in allocation(pipeline.plan):
            parts.append((part, ", ".join(plain(pipeline.names_of(device)))))
    return Built(ready.data_secs, plain(strategy_lib.device_names(ready.strategy)), tuple(parts))


def _prepare(loop: Loop, data_files: list[str]) -> None:
    """Compiles the steps and drops caches before the run's clock starts, then notifies the callbacks. On GPUs
    with --deterministic it also runs the steps once, since some operations have no deterministic kernel."""
    config, state, writes = loop.config, loop.state, not loop.manager.read_only
    loop.processes.check_same_step(state.step, config.model_dir)
    if config_lib.compiles_first(config) or config.deterministic and native.on_gpus(loop.strategy):
        since = time.monotonic()
        loop.warm_up()
        if not config_lib.follows_graphcore_log(config):  # which has its own line
            logging.info("Compiled the steps in %.1f s", time.monotonic() - since)
    dropped = 0
    if state.step < loop.last_step:
        if writes:
            remove_result(config.model_dir)  # outdated from now on
        dropped = feeding.drop(data_files)
    tensors, before = tuple(state.model_variables()), (state.step, state.samples_done)
    last_step = None if loop.last_step == config_lib.MAX_STEPS else loop.last_step
    loop.notify(Callback.on_start, Start(*before, last_step, tensors, loop.process_started, dropped > 0))
    if config.do_train and not state.step and writes:
        resume.write_data_files(config.model_dir, loop.task.data_files())


# -----------------------------------------------------------------------------------------------------------
# Several seeds


def run_seeds(
    config: Config, make_task: MakeTask, command: list[str] | None = None, started: float | None = None
) -> TrainResult:
    """Runs --num_runs times with the seeds --seed, --seed + 1, ..., in model_dir/run-1, run-2, ...

    A finished run only returns its saved scores, so the same command continues where it was interrupted, and
    a larger --num_runs adds runs.

    Returns:
      The result of a single run. For several runs, the result of the last one, with {metric: mean} and
      {metric_std: sample standard deviation} over all runs as scores, and a table with a row per run. It is
      also written to model_dir/result.json.

    Raises:
      ConfigError: for bad input.
    """
    if config.num_runs == 1:
        return run(config, make_task, command, started)
    if config.seed + config.num_runs > (config_lib.FIELDS["seed"].maximum or 0):
        raise ConfigError(f"seed={config.seed} leaves no room for num_runs={config.num_runs}. Lower --seed.")
    command = command or sys.argv
    with run_lock.set_aside(config, command) as config:
        is_complete, scores, folders = _is_complete(config), {}, {}
        cache_dir = config.cache_dir  # of all runs
        if not cache_dir and (config.task == "squad" or config.teacher):
            cache_dir = os.path.join(config.model_dir, "features")
        for number, seed in enumerate(range(config.seed, config.seed + config.num_runs), 1):
            logging.info("Run %d of %d, seed %d", number, config.num_runs, seed)
            folder = os.path.join(config.model_dir, f"run-{number}")
            own = config_lib.replaced(config, num_runs=1, seed=seed, model_dir=folder, cache_dir=cache_dir)
            result = run(own, make_task, command, started if number == 1 else None)
            if result.status in ("interrupted", "failed"):
                return result
            scores[seed], folders[str(seed)] = result.scores, f"run-{number}"
            if result.signal and number < config.num_runs:  # the signal arrived while this run was finishing
                name = signal.Signals(result.signal).name
                reason = f"{number} of {config.num_runs} runs done on {name}"
                return dataclasses.replace(result, status="interrupted", reason=reason)
        result = _of_all_seeds(config, result, scores, is_complete)
        if not is_complete:
            write_result(config.model_dir, result)
            report.write_repeats_report(config.model_dir, f"BERT {config.task}", result, folders)
        return result


def _is_complete(config: Config) -> bool:
    """Tells whether all requested runs are finished, so that their summary need not be written again.

    Raises:
      ConfigError: if the folder holds a single run, more runs, or runs with other settings.
    """
    record = PreviousRun(config.model_dir)
    before = record.settings.get("num_runs", 1)
    as_before = config_lib.replaced(config, num_runs=before)
    record.check(as_before if 1 < before <= config.num_runs else config)
    return record.is_over and before == config.num_runs and not record.changes(config)[LENGTH]


def _of_all_seeds(
    config: Config, last: TrainResult, scores: dict[int, dict[str, float]], is_complete: bool
) -> TrainResult:
    """Returns the result of all runs: the last one's, with the scores of all."""
    names = [name for name in next(iter(scores.values())) if name != "best_step"]
    table = [["seed", *names], *([str(seed), *(own[name] for name in names)] for seed, own in scores.items())]
    found: dict[str, float] = {}
    for name in names:
        values = [run_scores[name] for run_scores in scores.values()]
        mean, deviation = statistics.fmean(values), statistics.stdev(values)
        found |= {name: mean, f"{name}_std": deviation}
        logging.info("%s over %d runs: %.4f +- %.4f", name, len(values), mean, deviation)
    own: dict[str, Any] = {"scores": found, "tables": {"Runs": table}, "examples": []}
    if not is_complete:
        own |= {"config": config_lib.to_dict(config), "evaluations": []}
        own["report"] = os.path.join(config.model_dir, report.FILE_NAME)
    return dataclasses.replace(last, **own, reason=f"{len(scores)} runs done")


# -----------------------------------------------------------------------------------------------------------
# Compiling only


def compile_only(config: Config, make_task: MakeTask) -> str:
    """Compiles the training and evaluation steps of a run on random records, for --compile_only. Restores the
    weights after the training step.

    Args:
      config: the frozen configuration. Its --model_dir is neither needed nor touched.
      make_task: config -> Task.

    Returns:
      A text for people: compilation time, memory and the plan.

    Raises:
      ConfigError: for bad input.
    """
    from official.planning import plan as plan_lib  # late: other runs do not need it

    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="compile-only-") as folder:
        ready = make_ready(config_lib.replaced(config, model_dir=folder, wandb=False), make_task)
        config, strategy = ready.config, ready.strategy
        with (
            callbacks_lib.showing(config, ready.is_chief) as callbacks,
            strategy_lib.noticing_lost_peers(strategy),
        ):
            _log_start(ready)
            state = pipelined.make_state(config, ready.task, strategy)
            manager = CheckpointManager(folder, state.variables(), 1, read_only=True)
            loop = Loop(config, ready.task, state, strategy, ready.plan, manager, callbacks)
            loop.notify(Callback.on_built, _built(ready))
            since = time.monotonic()
            loop.warm_up()
            ended = time.monotonic()
            # The plan reads no data, so it gets the number of sequences per packed row from here.
            known = config_lib.replaced(config, average_sequences_per_pack=ready.plan.sequences_per_row)
            gpus = [name for name in strategy_lib.device_names(strategy) if name.startswith("GPU")]
            peaks = {name: tf.config.experimental.get_memory_info(name)["peak"] for name in gpus}
            peaks = peaks or {"this process": environment.peak_memory_bytes()}
            lines = [f"Memory of {name}: {peak / 1e9:.3f} GB at most" for name, peak in peaks.items()]
            return (
                f"Compiled the {' and '.join(loop.compilations())} step in {ended - since:.1f} s,"
                f" {ended - began:.1f} s with data and model\n"
                + "\n".join([*lines, "", plan_lib.describe(plan_lib.make_plan(known, make_task))])
                + "\n\ncompiled: nothing was trained or written (--compile_only)"
            )
