"""A run on IPUs: its loop of compiled pipelines, and the job from data to result."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import os
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
from absl import logging

from official import config as config_lib
from official.checkpoint.manager import CheckpointManager
from official.config import follows_graphcore_log, synthetic_sequences_per_pack, words_of_records
from official.config.table import Config
from official.data.pipeline import MOST_STREAMS
from official.data.records import schema as schema_lib
from official.graphcore import devices as devices_lib
from official.graphcore import pipeline, program
from official.graphcore.program import initialize
from official.graphcore.rules import IPU_VERSION
from official.io.errors import ConfigError, first_line
from official.reporting import environment
from official.reporting.callback import Callback, Evaluation, Start
from official.reporting.metrics import MetricsWriter
from official.reporting.result import FILE_NAME, remove_result
from official.tasks import TASKS
from official.tasks.pretraining import PretrainingTask
from official.training import evaluate, finish, resume, run_lock
from official.training.loop import RunLoop, reading
from official.training.run_lock import PreviousRun
from official.training.task import Dataset, ExampleTask, Outputs, Task

# -----------------------------------------------------------------------------------------------------------
# Loop


class PipelineLoop(RunLoop):
    """The loop of a run on IPUs; its `strategy` is a `program.Devices`."""

    state: program.PipelineState

    def __post_init__(self) -> None:
        self.train_loop, self.weights_are_finite = self._run_steps, self._are_weights_finite
        self._evaluations: dict[Dataset, tuple[Callable, int]] = {}
        super().__post_init__()

    def no_totals(self) -> dict[str, tf.Tensor]:
        totals = {
            "sums": tf.zeros([2 * len(self.task.metrics)]),
            "skipped": tf.constant(0),
            "bad_step": tf.constant(-1, tf.int64),
        }
        if self.plan.is_packed:
            totals["counts"] = tf.zeros([MOST_STREAMS + 1], tf.int64)
        return totals

    def compile(self) -> None:
        """Compiles the programs of the training and of the evaluation, if any, by calling each once."""
        self._train_iterator()()
        if self.config.do_eval:
            call, _ = self._evaluation_of(self.task.eval_dataset)
            call()

    def few_outputs(self, task: ExampleTask) -> Outputs | None:
        return None  # they would need a separate program

    # --------------------------------------------------------------------------------------------------------
    # Training

    def _train_iterator(self) -> Callable[[], np.ndarray]:
        program.check_steps(self.config, self.state.step)
        return program.make_training(self.config, self.strategy, self.task, self.state, self.order())

    def _run_steps(self, call: Callable[[], np.ndarray], num_steps: tf.Tensor, totals: dict) -> dict:
        """Runs `num_steps` steps like the loop of `step.make_train_loop`, `device_iterations` steps per
        device call, and returns the totals."""
        for _ in range(int(num_steps) // self.config.ipu.device_iterations):
            totals = self._added(totals, call())
        return totals

    def _added(self, totals: dict[str, tf.Tensor], steps: np.ndarray) -> dict[str, tf.Tensor]:
        """Returns the totals plus the sums of more steps; advances the state's steps and samples."""
        sums, counts = np.split(steps, [-pipeline.NUM_COUNTS], axis=1)
        found = {**totals, "sums": totals["sums"] + tf.constant(sums.sum(axis=0), tf.float32)}
        bad = np.flatnonzero(~np.isfinite(sums).all(axis=1))
        if bad.size and int(totals["bad_step"]) < 0:
            found["bad_step"] = tf.constant(self.state.step + int(bad[0]) + 1, tf.int64)
        self.state.steps.assign_add(len(steps))
        sequences = len(steps) * self.plan.sequences_per_step
        if self.plan.is_packed:
            counted, tokens = np.rint(counts.sum(axis=0)).astype(np.int64)
            # With --synthetic_input the batches are empty, without weights.
            sequences = sequences if self.config.synthetic_input else int(counted)
            of_streams = [sequences, *[0] * (MOST_STREAMS - 1), int(tokens)]
            found["counts"] = totals["counts"] + tf.constant(of_streams, tf.int64)
        self.state.samples.assign_add(sequences)
        return found

    def _are_weights_finite(self) -> bool:
        variables = self.state.model.trainable_variables
        return all(np.isfinite(variable.numpy()).all() for variable in variables)

    # --------------------------------------------------------------------------------------------------------
    # Evaluation

    def _evaluated(self, dataset: Dataset, secs: list[float] | None = None) -> tuple[np.ndarray, Outputs]:
        call, calls = self._evaluation_of(dataset)
        try:
            return reading(
                self.task, lambda: evaluate.run(lambda _: call(), range(calls), self.processes.poll, secs)
            )
        except BaseException:
            self._evaluations.clear()  # their queues are in the middle of a pass
            raise

    def _evaluation_of(self, dataset: Dataset) -> tuple[Callable[[], Any], int]:
        """Returns the compiled evaluation of a set, see `program.make_evaluation`; compiled once per set."""
        if dataset not in self._evaluations:
            parts = self.config, self.strategy, self.task, self.state
            self._evaluations[dataset] = self.processes.interruptible(
                lambda: reading(self.task, lambda: program.make_evaluation(*parts, dataset))
            )
        return self._evaluations[dataset]


# -----------------------------------------------------------------------------------------------------------
# Pre-training


class RecordsTask(PretrainingTask):
    """The pre-training task on IPUs: it shows no examples, keeps no vocabulary, and its random rows are
    already packed."""

    def __init__(self, config: Config):
        made_up = config.use_synthetic_data or config.synthetic_input
        super().__init__(dataclasses.replace(config, use_synthetic_data=made_up))

    def find_data(self) -> list[str]:
        if self._config.static_mask:
            raise ConfigError(
                "static_mask=true does not go with --distribution_strategy=ipu, which reads plain and packed"
                " records. Write them without --remask."
            )
        return super().find_data()

    def _take_vocabulary(self, files: list[str]) -> None:
        """Does nothing: an IPU run does not use words."""

    def _kept_vocabulary(self, files: list[str]) -> dict[str, bytes]:
        return {}

    def _split(self, files: list[str], flag: str, mask_share: float | None) -> Any:
        config, split = self._config, super()._split(files, flag, mask_share)
        depth = config.max_sequences_per_pack
        if files or not depth:
            return split
        slots, words = config.max_predictions_per_seq + depth - 1, words_of_records(config)
        schema = schema_lib.packed_schema(config.max_seq_length, slots, depth, words)
        return dataclasses.replace(split, schema=schema, row_schema=schema)

    @property
    def sequences_per_row(self) -> float | None:
        """Expected number of sequences per packed row, that of synthetic rows, since real rows are not
        counted beforehand; None for plain records."""
        is_packed = self._config.do_train and schema_lib.is_packed(self._train.schema)
        return synthetic_sequences_per_pack(self._config) if is_packed else None

    def examples(self, outputs: dict) -> list[dict]:
        return []

    def constant_prediction(self) -> None:  # type: ignore[override]
        return None


# -----------------------------------------------------------------------------------------------------------
# Run


# Packages that the SDK's Python lacks and tasks import, some only for scoring.
_PACKAGES = {"squad": ("tokenizers", "tqdm"), "glue": ("tokenizers", "scipy", "sklearn")}


class _Lines(Callback):
    """Logs a line per interval and evaluation."""

    def on_interval(self, step: int, values: dict) -> None:
        line = "step %d: loss %.4f, %.1f sequences/s"
        logging.info(line, step, values["loss"], values["sequences_per_sec"])

    def on_evaluation(self, evaluation: Evaluation) -> None:
        values = [f"{name} {value:.4f}" for name, value in evaluation.values.items() if name != "samples"]
        logging.info("Evaluation at step %d: %s", evaluation.step, "  ".join(values))


def make_task(config: Config) -> Task:
    """Returns the task of a run. Raises ConfigError if this Python lacks packages that it imports."""
    missing = [name for name in _PACKAGES.get(config.task, ()) if importlib.util.find_spec(name) is None]
    if missing:
        raise ConfigError(
            f"task={config.task} needs packages that this Python lacks: {', '.join(missing)}. Install them:"
            " pip install tokenizers scipy scikit-learn tqdm."
        )
    make: Callable[[Config], Any] = RecordsTask if config.task == "pretrain" else TASKS[config.task]
    return make(config)


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
            logging.warning("%s is ignored: IPU runs write only metrics.jsonl and result.json.", name)
    if config.compile_only:
        return _compile(*_make_ready(config))
    surroundings = environment.environment()  # at the start: the checkout may change during the run
    surroundings["working_directory"] = os.getcwd()  # base of paths in the settings
    with run_lock.set_aside(config, command) as asked:
        asked, over = resume.left_to_do(asked)
        if over:
            print(f"{over.status}: {over.reason}")
            return over.exit_code
        config, task, devices = _make_ready(asked)
    chief = devices.instances.is_chief
    with run_lock.writing(config.model_dir, chief) as check_folder, _explained():
        previous = PreviousRun(config.model_dir)
        if config.do_train:
            previous.check(asked, config_lib.train_steps(config))
        state = program.make_state(config, task, devices)
        manager = CheckpointManager(
            config.model_dir, state.variables(), config.keep_checkpoints, read_only=not chief
        )
        with contextlib.closing(manager):
            start = lambda path: initialize(state.model_variables(), path)  # noqa: E731
            facts, _ = resume.begin(asked, config, command, manager, state, previous, task, start)
            counts = previous.evaluates_like(config)
            callbacks: list[Callback] = [_Lines()]
            if chief and config.do_train:
                callbacks.append(MetricsWriter(config.model_dir, state.step, counts))
            plan = devices.batches.with_rows_of(task.sequences_per_row)
            known: dict[str, Any] = dict(process_started=started, check_folder=check_folder)
            known["evaluated"] = previous.evaluations(state.step) if counts and config.do_train else {}
            loop = PipelineLoop(config, task, state, devices, plan, manager, callbacks, **known)
            facts.update(environment=surroundings, pipeline=devices.pipeline.description())
            ended = loop.run_to_end(lambda: _prepare(loop), finish.findings)
            result = finish.make_result(loop, ended, previous, counts, command, **facts)
        if chief:
            finish.write_result(config, result, previous)
            path = os.path.join(config.model_dir, FILE_NAME)
            print(f"{result.status}: {result.reason}. Result: {path}")
    return result.exit_code


def _make_ready(config: Config) -> tuple[Config, Task, program.Devices]:
    """Finds the data and sets up the devices. Returns (configuration completed from the data, task,
    devices)."""
    devices_lib.load_api()  # first, so that a missing SDK is reported before data are read for minutes
    program.set_numbers(config)
    task = make_task(config)
    task.find_data()
    config = reading(task, lambda: config_lib.with_data(config, task.train_samples, task.sequences_per_row))
    return config, task, program.take_devices(config)


def _prepare(loop: PipelineLoop) -> None:
    """Checks the steps, notes the data files, and tells the callbacks of the start."""
    config, state, writes = loop.config, loop.state, not loop.manager.read_only
    if state.step < loop.last_step:
        program.check_steps(config, state.step)
        if writes:
            remove_result(config.model_dir)  # outdated from now on
    if writes and config.do_train and not state.step:
        resume.write_data_files(config.model_dir, loop.task.data_files())
    tensors, before = tuple(state.model_variables()), (state.step, state.samples_done)
    loop.notify(Callback.on_start, Start(*before, loop.last_step, tensors, loop.process_started, False))


def _compile(config: Config, task: Task, devices: program.Devices) -> int:
    """Compiles the programs of a run without IPUs, and returns the exit code."""
    since = time.monotonic()
    with _explained():
        state = program.make_state(config, task, devices)
        manager = CheckpointManager(config.model_dir or "", {}, 1, read_only=True)
        plan = devices.batches.with_rows_of(task.sequences_per_row)
        PipelineLoop(config, task, state, devices, plan, manager, []).compile()
    kept = config.ipu.executable_cache_path
    where = f"; kept in {kept}" if kept else ""
    print(f"compiled in {time.monotonic() - since:.1f} s for {IPU_VERSION}{where}; nothing was trained")
    return 0


@contextlib.contextmanager
def _explained() -> Any:
    """Turns the IPUs' errors for a model that does not fit, or an unsupported program, into a one-line
    ConfigError."""
    try:
        yield
    except tf.errors.ResourceExhaustedError as error:
        raise ConfigError(
            f"the model does not fit into its IPUs ({first_line(error, 150).rstrip('.')}). Give more"
            " --pipeline_stages, smaller micro batches (more --num_accumulation_steps), --recompute=block or"
            " another available_memory_proportion of --ipu_options."
        ) from None
    except tf.errors.FailedPreconditionError as error:
        raise ConfigError(
            f"the IPUs do not take this pipeline: {first_line(error, 150).rstrip('.')}."
        ) from None
