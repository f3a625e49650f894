"""Runs a configuration on IPUs: data, devices, state, loop, result."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
import time
from typing import Any

import tensorflow as tf
from absl import logging

from official import config as config_lib
from official.checkpoint.manager import CheckpointManager
from official.config import Config, ConfigError, follows_graphcore_log
from official.config.ipu_rules import computes
from official.distribution.ipu import api
from official.reporting import environment
from official.reporting.callback import Callback, Evaluation, Start
from official.reporting.metrics import MetricsWriter
from official.reporting.result import FILE_NAME, remove_result
from official.training import finish, resume, run_lock
from official.training.ipu import building, records
from official.training.ipu.loop import PipelineLoop
from official.training.ipu.weights import initialize
from official.training.resume import PreviousRun
from official.training.task import Task

_TASKS = "official.tasks"  # by name: the run is told its task, here by the configuration alone
# What the SDK's own Python has not, and a task imports, some of it only once it scores.
_PACKAGES = {"squad": ("tokenizers", "tqdm"), "glue": ("tokenizers", "scipy", "sklearn")}


class _Lines(Callback):
    """Logs a line for each interval and each evaluation."""

    def on_interval(self, step: int, values: dict) -> None:
        told = "step %d: loss %.4f, %.1f sequences/s"
        logging.info(told, step, values["loss"], values["sequences_per_sec"])

    def on_evaluation(self, evaluation: Evaluation) -> None:
        values = [f"{name} {value:.4f}" for name, value in evaluation.values.items() if name != "samples"]
        logging.info("Evaluation at step %d: %s", evaluation.step, "  ".join(values))


def make_task(config: Config) -> Task:
    """Returns the task of a run. Raises ConfigError where this Python lacks packages that it imports."""
    missing = [name for name in _PACKAGES.get(config.task, ()) if importlib.util.find_spec(name) is None]
    if missing:
        raise ConfigError(
            f"task={config.task} needs packages that this Python has not: {', '.join(missing)}. Install them:"
            " pip install tokenizers scipy scikit-learn tqdm."
        )
    if config.task == "pretrain":
        found: Any = records.RecordsTask(config)
    else:
        found = importlib.import_module(_TASKS).TASKS[config.task](config)
    return found


def run(config: Config, command: list[str]) -> int:
    """Trains, evaluates and predicts, and writes the files of the run. Returns the exit code.

    Args:
      config: the frozen configuration.
      command: the command line, saved with the run.

    Raises:
      ConfigError: for bad input, before anything is trained.
    """
    started = time.time()
    for name, flag in (("wandb", config.wandb), ("log_style=graphcore", follows_graphcore_log(config))):
        if flag:
            logging.warning("%s: IPU runs write metrics.jsonl and result.json alone.", name)
    if not computes(config):
        return _compile(*_make_ready(config))
    surroundings = environment.environment()  # of the start: the checkout may change while the run goes on
    surroundings["working_directory"] = os.getcwd()  # of paths in the settings
    with run_lock.set_aside(config, command) as asked:
        asked, over = resume.left_to_do(asked)
        if over:
            print(f"{over.status}: {over.reason}")
            return over.exit_code
        config, task, devices = _make_ready(asked)
    chief = devices.instances.is_chief
    folder = run_lock.writing(config.model_dir) if chief else contextlib.nullcontext(run_lock.unchecked)
    with folder as check_folder, _explained():
        previous = PreviousRun(config.model_dir)
        previous.check(asked, config)
        state = building.make_state(config, task, devices)
        manager = CheckpointManager(
            config.model_dir, state.variables(), config.keep_checkpoints, read_only=not chief
        )
        with contextlib.closing(manager):
            missing = resume.missing_assets(config.model_dir, task.companions)
            weights, fresh = resume.restore(
                config, manager, state, previous, task, lambda path: initialize(state.model_variables(), path)
            )
            if state.step and config.do_train:
                previous.log_changes(asked)
            goes_on = chief and config.do_train and state.step > 0
            data_changed = goes_on and resume.data_have_changed(config, task.data_files())
            counts = previous.evaluates_like(config)
            if chief:
                resume.write_settings(asked, command)
                resume.write_assets(config.model_dir, missing)
            callbacks: list[Callback] = [_Lines()]
            if chief and config.do_train:
                callbacks.append(MetricsWriter(config.model_dir, state.step))
            loop = PipelineLoop(
                config,
                task,
                state,
                devices,
                devices.batches.with_rows_of(task.sequences_per_row),
                manager,
                callbacks,
                evaluated=previous.evaluations(state.step) if counts and config.do_train else {},
                process_started=started,
                check_folder=check_folder,
            )
            finished = finish.run_to_end(loop, previous if counts else None, lambda: _prepare(loop))
            pipeline = devices.pipeline.description()
            about = finish.About(command, weights, fresh, data_changed, surroundings, pipeline)
            result = finish.make_result(loop, finished, previous, counts, about)
        if chief:
            finish.write_result(config, result, previous)
            path = os.path.join(config.model_dir, FILE_NAME)
            print(f"{result.status}: {result.reason}. Result: {path}")
    return result.exit_code


def _make_ready(config: Config) -> tuple[Config, Task, building.Devices]:
    """Finds the data and sets up the devices. Returns (configuration completed from the data, task,
    devices)."""
    api.load()  # where it is missing, that is said before data are read for minutes
    building.set_numbers(config)
    task = make_task(config)
    task.find_data()
    config = config_lib.with_data(config, task.train_samples, task.sequences_per_row)
    return config, task, building.take_devices(config)


def _prepare(loop: PipelineLoop) -> None:
    """Checks the steps, notes the data files, and tells the callbacks of the start."""
    config, state, writes = loop.config, loop.state, not loop.manager.read_only
    if state.step < loop.last_step:
        building.check_steps(config, state.step)
        if writes:
            remove_result(config.model_dir)  # it would be untrue from now on
    if writes and config.do_train and not state.step:
        resume.write_data_files(config.model_dir, loop.task.data_files())
    tensors, before = tuple(state.model_variables()), (state.step, state.samples_done)
    loop.notify(Callback.on_start, Start(*before, loop.last_step, tensors, loop.process_started, False))


def _compile(config: Config, task: Task, devices: building.Devices) -> int:
    """Compiles the programs of a run without IPUs, for --ipu_version, and returns the exit code."""
    since = time.monotonic()
    with _explained():
        state = building.make_state(config, task, devices)
        manager = CheckpointManager(config.model_dir or "", {}, 1, read_only=True)
        plan = devices.batches.with_rows_of(task.sequences_per_row)
        PipelineLoop(config, task, state, devices, plan, manager, []).compile()
    kept = config.executable_cache_path
    where = f"; kept in {kept}" if kept else ""
    print(
        f"compiled in {time.monotonic() - since:.1f} s for {config.ipu_version}{where}; nothing was trained"
    )
    return 0


@contextlib.contextmanager
def _explained() -> Any:
    """Turns the IPUs' errors for a model that does not fit, or a program that they refuse, into a ConfigError
    of one line."""
    try:
        yield
    except tf.errors.ResourceExhaustedError as error:
        raise ConfigError(
            f"the model does not fit into its IPUs ({_first_line(error)}). Give more --pipeline_stages,"
            " smaller micro batches (more --num_accumulation_steps), --recompute=block or another"
            " --available_memory_proportion."
        ) from None
    except tf.errors.FailedPreconditionError as error:
        raise ConfigError(f"the IPUs do not take this pipeline: {_first_line(error)}.") from None


def _first_line(error: tf.errors.OpError) -> str:
    return (error.message.strip().splitlines() or [type(error).__name__])[0][:150].rstrip(".")
