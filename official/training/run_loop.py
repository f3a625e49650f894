"""Loop of a run: metrics, evaluations, checkpoints and signals between two calls of the devices."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import signal
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import numpy as np
import tensorflow as tf
from absl import logging

from official import config as config_lib
from official.checkpoint.manager import CheckpointManager
from official.config import values as values_lib
from official.config.table import Config
from official.data.pipeline import MOST_STREAMS, TrainingOrder
from official.distribution import batch_plan
from official.io import signals
from official.io.errors import ConfigError
from official.optimization import replica_step
from official.optimization.replica_step import mean_metrics
from official.optimization.train_state import TrainState
from official.reporting.observer import Evaluation, Observer
from official.training.task import Dataset, ExampleTask, Outputs, Task, is_scored, reading

# -----------------------------------------------------------------------------------------------------------
# Position in the training data


@dataclasses.dataclass
class Place:
    """Position of a run on packed rows: the rows read, and the sequences read of each stream of the data.

    Neither follows from the total number of sequences, so checkpoints keep both.
    """

    rows: int
    stream_sequences: np.ndarray  # int64 [MOST_STREAMS]

    def add(self, rows: int, stream_sequences: np.ndarray) -> None:
        """Advances the position by the rows and the sequences of each stream that were trained on."""
        self.rows, self.stream_sequences = self.rows + rows, self.stream_sequences + stream_sequences

    def order(self, order: TrainingOrder) -> TrainingOrder:
        """Returns the order of the data, continued from this position."""
        return dataclasses.replace(
            order, rows_done=self.rows, stream_sequences=tuple(self.stream_sequences.tolist())
        )

    def to_saved(self) -> dict:
        """Returns the position as a dict for JSON, which `from_saved` reads."""
        return {"rows_done": self.rows, "stream_sequences": self.stream_sequences.tolist()}


def position_from_saved(saved: dict, samples: int, rows: int) -> Place:
    """Returns the position at which a run continues.

    Args:
      saved: the value of `to_saved`; another dict where the run wasn't packed so far, or its file is lost.
      samples: sequences done; a saved position with another total is not used.
      rows: rows done, for a run without a saved position. Its counts per stream are zeros, and the data
        assume as many sequences of each stream: some are then read twice, and others left out.
    """
    rows_done, streams = saved.get("rows_done"), saved.get("stream_sequences")
    if (
        type(rows_done) is int
        and isinstance(streams, list)
        and len(streams) == MOST_STREAMS
        and all(type(count) is int and count >= 0 for count in streams)
        and sum(streams) == samples
    ):
        return Place(rows_done, np.array(streams, np.int64))
    return Place(rows, np.zeros(MOST_STREAMS, np.int64))


# -----------------------------------------------------------------------------------------------------------
# Agreement of processes


T = TypeVar("T")


class Together:
    """Collective operations of a run's processes. All processes call each method, at the same point."""

    def __init__(
        self,
        interruption: Interruption,
        add: Callable[[tf.Tensor], tf.Tensor] | None = None,
        num_replicas: int = 1,
    ):
        """Args: interruption: signals of this process. add: scalar -> its sum over all replicas of all
        processes; None for a single process. num_replicas: number of replicas of all processes."""
        self.interruption = interruption
        self._add, self._num_replicas = add, num_replicas

    def mean(self, value: float) -> float:
        """Returns the mean of the processes' values in float32, the same in all of them."""
        if self._add is None:
            return value
        return float(self._add(tf.constant(value, tf.float32))) / self._num_replicas

    def meet(self) -> None:
        """Waits until all processes have called this (a barrier)."""
        self.mean(0.0)

    def check_same_step(self, step: int, model_dir: str) -> None:
        """Raises ConfigError where the processes start from different steps, as they don't see the same
        folder."""
        if self._add and float(self._add(tf.constant(float(step)))) != step * self._num_replicas:
            raise ConfigError(
                f"--model_dir={model_dir} is not the same for all workers: this one is at"
                f" step {step}, others are not. Use a folder that all of them share."
            )

    def poll(self) -> None:
        """Raises Interrupted in all processes once one of them has received a signal."""
        received = self.mean(float(self.interruption.signal is not None)) > 0
        if received:
            self.interruption.signal = self.interruption.signal or signal.SIGTERM
            raise signals.Interrupted(self.interruption.signal)

    def interruptible(self, work: Callable[[], T]) -> T:
        """Returns the result of `work`, which only reads files and so may be cut off by a signal.

        Raises:
          Interrupted: in all processes, where a signal cut it off in one.
        """
        made: list[T] = []
        try:
            with signals.raising():
                made.append(work())
        except signals.Interrupted as error:  # not yet: the other processes are to know first
            self.interruption.signal = error.signal
        self.poll()
        return made[0]


# -----------------------------------------------------------------------------------------------------------
# Wait for input


class HostWait:
    """A sum of seconds that graphs add to.

    On GPUs the program runs ahead of the devices: waiting while they still compute counts, too, so that the
      sum
    is an upper bound.
    """

    def __init__(self) -> None:
        with tf.device("CPU"):
            self._secs = tf.Variable(0.0, dtype=tf.float64, trainable=False)

    def timed(self, take: Callable[[], Any], after: Iterable[tf.Tensor]) -> Any:
        """Returns the batch of `take` and adds its time to the sum; for use in graphs.

        Args:
          take: returns the batch of every replica.
          after: tensors of the step before; the clock starts once they are computed.
        """
        with tf.device("CPU"), tf.control_dependencies(list(after)):
            began = tf.timestamp()
        with tf.control_dependencies([began]):
            batch = take()
        with tf.device("CPU"), tf.control_dependencies(tf.nest.flatten(batch, expand_composites=True)):
            self._secs.assign_add(tf.timestamp() - began)
        return batch

    def take_secs(self) -> float:
        """Returns the seconds summed since the last call, and resets the sum."""
        secs = float(self._secs.numpy())
        self._secs.assign(0.0)
        return secs


# -----------------------------------------------------------------------------------------------------------
# Saving


def save(config: Config, manager: CheckpointManager, step: int, kept: dict) -> None:
    """Writes the checkpoint of a step, or starts to with --async_checkpoints.

    Args:
      config: configuration of the run.
      manager: manager of its checkpoints.
      step: step of the state.
      kept: values of the state that are not variables, as a dict for JSON; may be empty.

    Raises:
      ConfigError: where the folder is full or cannot be written to; also for the previous checkpoint.
    """
    write = manager.begin_save if config.async_checkpoints else manager.save
    write(step, json.dumps(kept) + "\n" if kept else None)


# -----------------------------------------------------------------------------------------------------------
# Outcome


@dataclasses.dataclass
class PackingCounts:
    """Counts of the packed rows that a run trained on.

    Attributes:
      rows, sequences: numbers of both.
      tokens: number of tokens without padding, to seven digits.
    """

    rows: int = 0
    sequences: int = 0
    tokens: int = 0

    def add(self, rows: int, counts: np.ndarray) -> None:
        """Adds `rows` rows with their `counts`, int [N + 1]: sequences of each of N streams, then tokens."""
        self.rows, self.tokens = self.rows + rows, self.tokens + int(counts[-1])
        self.sequences += int(counts[:-1].sum())

    def shares(self, row_length: int) -> dict[str, float]:
        """Returns `sequences_per_row` and `packing_efficiency`, the share of the rows' positions that hold a
        token; empty without packed rows."""
        if not self.rows:
            return {}
        efficiency = self.tokens / (self.rows * row_length)
        return {"sequences_per_row": self.sequences / self.rows, "packing_efficiency": efficiency}


@dataclasses.dataclass
class Outcome:
    """Measurements of the loop so far.

    Attributes:
      eval_metrics: values of the last evaluation.
      outputs: the model's outputs in the last evaluation of this process.
      reached: whether the target was reached.
      skipped_steps: number of updates that loss scaling skipped.
      loop_rates: (sequences, seconds) of each interval.
      first_step_secs: seconds from the start of this process to the end of its first step.
      step_secs: seconds per step in the last device call after the first.
      interrupted: whether a signal stopped the loop before its end.
      packing: counts of the packed rows trained on in this process.
    """

    eval_metrics: dict = dataclasses.field(default_factory=dict)
    outputs: dict[str, np.ndarray] = dataclasses.field(default_factory=dict)
    reached: bool = False
    skipped_steps: int = 0
    loop_rates: list[tuple[int, float]] = dataclasses.field(default_factory=list)
    first_step_secs: float | None = None
    step_secs: float | None = None
    interrupted: bool = False
    packing: PackingCounts = dataclasses.field(default_factory=PackingCounts)

    def sequences_per_sec(self) -> float | None:
        """Returns the training throughput, without the first interval, which includes the compilation, unless
        it is the only one; None without training."""
        steady = self.loop_rates[1:] or self.loop_rates
        secs = sum(secs for _, secs in steady)
        return sum(sequences for sequences, _ in steady) / secs if secs else None

    def startup_secs(self, process_started: float, run_started: float) -> float:
        """Returns the startup time in seconds: up to the end of the first step, less the time of a step;
        without training, up to the start of the run. Both arguments are seconds since 1970."""
        if self.first_step_secs is None:
            return run_started - process_started
        return max(self.first_step_secs - (self.step_secs or 0.0), 0.0)


def judge(config: Config, task: Task, outcome: Outcome, step: int) -> tuple[str, str]:
    """Returns (status, reason) of a run that ended at `step` without an error or a signal."""
    if outcome.reached or config.stop_threshold is not None:
        score = f"{task.target_metric} {outcome.eval_metrics[task.target_metric]:.4f}"
        target = f"the target {config.stop_threshold}"
        if outcome.reached:
            return "success", f"{score} reached {target} at step {step}"
        return "aborted", f"{score} is below {target} after all {step} steps"
    if not config.do_train:
        return "finished", f"{'evaluated' if config.do_eval else 'predicted'} at step {step}"
    return "finished", f"all {step} steps done"


def describe_interruption(config: Config, step: int, number: int) -> str:
    """Returns the reason of a run that stopped at `step` on signal `number`."""
    done = "saved" if config.do_train else "evaluation stopped"
    return f"{done} at step {step} on {signal.Signals(number).name}"


# -----------------------------------------------------------------------------------------------------------
# Metrics of an interval, and steps of a call


# Duration of a device call; signals and non-finite losses are checked between calls.
CALL_SECS = 5.0


class NonFiniteError(ArithmeticError):
    """A loss, metric, gradient or weight is NaN or infinite. The message names step and metric."""


@dataclasses.dataclass
class Interval:
    """Totals of the steps since the last line of the metrics.

    Attributes:
      first_step: number of updates done before the interval.
      totals: sums of the training loop over the interval, see `step.no_totals`.
      steps, sequences, secs: steps of the interval that this process has done, the sequences that they
        trained on, and their seconds.
      waited_secs: the part of `secs` in which steps waited for their batches; None where it isn't measured.
    """

    first_step: int
    totals: dict[str, tf.Tensor]
    steps: int = 0
    sequences: int = 0
    secs: float = 0.0
    waited_secs: float | None = None

    def add_wait(self, wait: HostWait | None) -> None:
        """Adds the seconds that a call waited for batches; nothing without a `wait`."""
        if wait is not None:
            self.waited_secs = (self.waited_secs or 0.0) + wait.take_secs()

    def add(self, totals: dict[str, tf.Tensor], steps: int, sequences: int, secs: float) -> None:
        """Takes the totals that a call returned, which include those before it, and adds its steps, sequences
        and seconds."""
        self.totals, self.steps, self.secs = totals, self.steps + steps, self.secs + secs
        self.sequences += sequences

    def numbers(self) -> dict[str, np.ndarray]:
        """Returns the totals as NumPy arrays."""
        return {name: value.numpy() for name, value in self.totals.items()}

    @property
    def bad_step(self) -> int | None:
        """Returns the first step with a number that is not finite; None where all are."""
        step = int(self.totals["bad_step"])
        return step if step >= 0 else None

    def values(self, task: Task, state: TrainState) -> dict:
        """Returns the values of the metrics line, for the part of the interval that is done."""
        totals, skipped = self.numbers(), int(self.totals["skipped"])
        wait, norm = {}, {}
        if self.waited_secs is not None and self.secs:
            wait["host_wait_share"] = self.waited_secs / self.secs
        if "norm" in totals:  # which IPUs do not tell
            norm["gradient_norm"] = float(totals["norm"]) / max(state.step - self.first_step - skipped, 1)
        return {
            **replica_step.mean_metrics(task.losses, task.metrics, totals["sums"]),
            "learning_rate": float(state.schedule(state.step - 1)),
            **norm,
            "loss_scale": _loss_scale(state),
            "skipped_steps": skipped,
            "sequences_per_sec": self.sequences / self.secs if self.secs else None,
            **wait,
        }

    def non_finite(self, task: Task, values: dict) -> NonFiniteError:
        """Returns the error of an interval with a `bad_step`."""
        names = [name for name in task.metrics if not math.isfinite(values[name])] or ["gradient norm"]
        return NonFiniteError(f"{', '.join(names)} not finite at step {self.bad_step}")

    def check_skipped(self, state: TrainState) -> None:
        """Raises NonFiniteError where loss scaling has skipped all steps of a finished interval and cannot
        lower its scale any more."""
        steps = state.step - self.first_step
        if state.loss_scale is None or int(self.totals["skipped"]) < steps:
            return
        scale = float(state.loss_scale.scale.numpy())
        if not state.loss_scale.dynamic or scale <= 1.0:
            raise NonFiniteError(
                f"gradient norm not finite in any of the {steps} steps before step {state.step}, "
                f"with loss_scale {scale:g}"
            )

    def to_saved(self) -> dict:
        """Returns the first step and the totals as a dict for JSON, from which a later process resumes
        bit-exactly."""
        totals = {name: value.tolist() for name, value in self.numbers().items()}
        return {"first_step": self.first_step, **totals}


def _loss_scale(state: TrainState) -> float:
    """Returns the loss scale of the last step, 1 without loss scaling; the next step's where it is
    dynamic."""
    if state.loss_scale is None:
        return 1.0
    told = state.loss_scale.told(state.step - 1)
    return float(state.loss_scale.scale.numpy()) if told is None else told


def from_saved(saved: dict, step: int, nothing: dict[str, tf.Tensor]) -> Interval:
    """Returns the interval that a run resumes with.

    Args:
      saved: the value of `to_saved` from the checkpoint of `step`; empty where an interval ended there.
      step: number of updates done.
      nothing: initial totals, see `step.no_totals`; saved totals of other shapes belong to another task, and
        the interval starts anew.
    """
    try:
        totals = {
            name: tf.constant(np.array(saved[name], value.dtype.as_numpy_dtype))
            for name, value in nothing.items()
        }
        first_step = saved["first_step"]
    except (KeyError, TypeError, ValueError, OverflowError):
        return Interval(step, nothing)
    fits = all(totals[name].shape == value.shape for name, value in nothing.items())
    return (
        Interval(first_step, totals)
        if fits and type(first_step) is int and 0 <= first_step < step
        else Interval(step, nothing)
    )


class Pace:
    """Chooses the number of steps of a device call, so that it takes about `CALL_SECS`, from the last call's
    time.

    The first call is one unit: it compiles, and people wait for it. Its time overestimates that of a step, so
    that the second call is rather too short than too long.
    """

    def __init__(self, stops: Sequence[int] = (), unit: int = 1) -> None:
        """Args: stops: steps at which a call ends in any case. unit: a call's steps are a multiple of it,
        unless fewer are left."""
        self._secs_per_step: float | None = None
        self._stops, self._unit = stops, unit

    @property
    def is_unknown(self) -> bool:
        """Whether no call has been timed yet."""
        return self._secs_per_step is None

    def steps(self, left: int, step: int = 0) -> int:
        """Returns the number of steps of the next call: at most `left`, after `step` updates."""
        left = min([left, *(stop - step for stop in self._stops if stop > step)])
        if self._secs_per_step is None:
            return min(self._unit, left)
        units = int(CALL_SECS / max(self._secs_per_step, 1e-9)) // self._unit
        return min(left, max(1, units) * self._unit)

    def note(self, steps: int, secs: float) -> None:
        """Records the seconds of a call, which must be the same in all processes."""
        self._secs_per_step = secs / steps


# -----------------------------------------------------------------------------------------------------------
# Interruption


class Interruption:
    """Context manager that notes a signal instead of ending with it. `signal` is its number, or None.

    Outside of the main thread, where signals cannot be handled, it does nothing.
    """

    def __init__(self):
        self.signal: int | None = None
        self._entered = contextlib.ExitStack()

    def __enter__(self):
        self._entered.enter_context(signals.watching())
        self._entered.enter_context(signals.noting(self._note))
        return self

    def __exit__(self, *_):
        self._entered.close()

    def _note(self, number: int) -> None:
        self.signal = number
        logging.warning("%s: saving, then stopping. A second one stops at once.", signal.Signals(number).name)


# -----------------------------------------------------------------------------------------------------------
# Loop
#
# Subclasses make the device calls: `official.training.loop` under TensorFlow's strategies,
# `official.graphcore.run` on IPUs.


@dataclasses.dataclass
class RunLoop:
    """The loop of a run on any kind of device.

    Attributes:
      strategy: the strategy in whose scope variables are made.
      plan: batches of all replicas.
      observers: observers that are told of the run's events.
      evaluated: {step: values} of evaluations that an earlier process made.
      process_started: start of this process, seconds since 1970.
      check_folder: raises ConfigError where the run no longer owns its folder.
      train_loop: runs steps on the devices, see `step.make_train_loop`.
      weights_are_finite: tells whether every weight of the model is finite.
      wait: sums the time that steps wait for their batches; None where it isn't measured.
    """

    config: Config
    task: Task
    state: TrainState
    strategy: Any
    plan: batch_plan.BatchPlan
    manager: CheckpointManager
    observers: list[Observer]
    interruption: Interruption
    evaluated: dict[int, dict]
    process_started: float = dataclasses.field(default_factory=time.time)
    check_folder: Callable[[], None] = lambda: None
    outcome: Outcome = dataclasses.field(default_factory=Outcome)
    train_loop: Callable = dataclasses.field(init=False)
    weights_are_finite: Callable = dataclasses.field(init=False)
    wait: HostWait | None = dataclasses.field(default=None, init=False)

    def __post_init__(self) -> None:
        self.together = self._find_peers()
        self.last_step = config_lib.train_steps(self.config) if self.config.do_train else self.state.step
        saved = self.manager.companion(self.state.step)
        self.nothing = self.no_totals()
        self.interval = from_saved(saved, self.state.step, self.nothing)
        self.place = position_from_saved(
            saved, self.state.samples_done, self.state.step * self.plan.train_batch_size
        )
        stops = values_lib.window(self.config, self.state.step, self.last_step) or ()
        self.pace = Pace(stops, self.config.device_iterations)

    # --------------------------------------------------------------------------------------------------------
    # The devices

    def _find_peers(self) -> Together:
        """Returns the processes of the run: this one alone."""
        return Together(self.interruption)

    def no_totals(self) -> dict[str, tf.Tensor]:
        """Returns the initial totals of `train_loop`, see `step.no_totals`."""
        raise NotImplementedError

    def few_outputs(self, task: ExampleTask) -> Outputs | None:
        """Returns the task's example outputs of the first rows of the evaluation set, for the report; None
        where the devices compute none."""
        raise NotImplementedError

    def _train_iterator(self) -> Any:
        """Returns the training batches from the run's position, for `train_loop`."""
        raise NotImplementedError

    def _evaluated(self, dataset: Dataset, secs: list[float] | None = None) -> tuple[np.ndarray, Outputs]:
        """Evaluates a set; returns (sums, outputs), see `evaluation.run`.

        Args:
          dataset: makes the set's global batches.
          secs: gets the seconds of each batch, where it is given.

        Raises:
          Interrupted: on a signal, between two batches.
        """
        raise NotImplementedError

    # --------------------------------------------------------------------------------------------------------
    # The course of the run

    def run(self) -> None:
        """Trains to the threshold, the last step or a signal, saves the final state, and records the results
        in `outcome`.

        Raises:
          NonFiniteError: where a metric is not finite; the state is not saved then.
          ConfigError: where a data file cannot be read, or the folder of the run is gone.
        """
        if self.evaluated:
            self.outcome.eval_metrics = self.evaluated[max(self.evaluated)]
        self.manager.pin(self.best_step())
        try:
            self._train_and_evaluate()
        except signals.Interrupted:
            self.outcome.interrupted = True
            self._tell_open_interval()
            self._count_open_interval()
        if self.config.do_train and not self.manager.is_saved(self.state.step):
            self._save()
        self.manager.wait()

    def _train_and_evaluate(self) -> None:
        """Trains and evaluates in turns up to the threshold or the last step. Raises Interrupted on a signal,
        between two updates."""
        iterator = None
        while True:
            self._evaluate_if_due()
            if self.outcome.reached or self.state.step >= self.last_step:
                return
            if iterator is None:
                iterator = self.together.interruptible(lambda: reading(self.task, self._train_iterator))
            self._train(iterator)
            if self.state.step % config_lib.checkpoint_every_steps(self.config) == 0:
                self._save()

    def order(self) -> TrainingOrder:
        """Returns the order of the training data from the run's position."""
        order = TrainingOrder(self.config.seed, self.state.samples_done)
        return self.place.order(order) if self.plan.is_packed else order

    def _save(self) -> None:
        """Saves the state. Raises NonFiniteError where a weight is not finite: the last good checkpoint
        stays."""
        if not self.weights_are_finite():
            raise NonFiniteError(f"weights not finite after step {self.state.step}")
        self.check_folder()
        for observer in self.observers:
            observer.on_checkpoint(self.state.step)
        kept = self.interval.to_saved() if self.interval.first_step < self.state.step else {}
        if self.plan.is_packed:
            kept.update(self.place.to_saved())
        save(self.config, self.manager, self.state.step, kept)

    # --------------------------------------------------------------------------------------------------------
    # Training

    def _train(self, iterator: Any) -> dict:
        """Trains to the end of the interval, in calls of some seconds, reports it and returns its values.

        The end of an interval depends on steps alone, and its totals continue from call to call: the length
          of
        calls changes no bit.
        """
        self.together.poll()
        step = self.state.step
        planned = batch_plan.next_evaluation(self.config, step, self.last_step) - step
        end = step + batch_plan.loop_length(step, config_lib.steps_per_loop(self.config), step + planned)
        for observer in self.observers:
            observer.on_training(step, self.state.samples_done, planned * self.plan.sequences_per_step)
        while True:
            values = self._call_devices(iterator, end - self.state.step)
            if self.state.step >= end:
                break
            self.together.poll()
        self._tell_interval(values)
        self.interval.check_skipped(self.state)
        self._count_open_interval()
        self.interval = Interval(self.state.step, self.nothing)
        return values

    def _call_devices(self, iterator: Any, left: int) -> dict:
        """Runs some of the `left` steps of the interval and returns the values of its line so far. Raises
        NonFiniteError."""
        self.check_folder()
        self.manager.check()
        for observer in self.observers:
            observer.on_call(self.state.step)
        first, steps = self.pace.is_unknown, self.pace.steps(left, self.state.step)
        started, samples = time.monotonic(), self.state.samples_done
        # The first one compiles, for minutes perhaps, and nothing is trained yet.
        with signals.expendable() if first else contextlib.nullcontext():
            totals = reading(
                self.task, lambda: self.train_loop(iterator, tf.constant(steps), self.interval.totals)
            )
            totals["sums"].numpy()  # waits
        secs = time.monotonic() - started
        self.pace.note(steps, self.together.mean(secs))
        if self.plan.is_packed:
            new = (totals["counts"] - self.interval.totals["counts"]).numpy()
            self.place.add(steps * self.plan.train_batch_size, new[:-1])
            self.outcome.packing.add(steps * self.plan.train_batch_size, new)
        self.interval.add(totals, steps, self.state.samples_done - samples, secs)
        self.interval.add_wait(self.wait)
        values = {"samples": self.state.samples_done, **self.interval.values(self.task, self.state)}
        values.update(self._packing_of_interval())
        if self.interval.bad_step is not None:
            self._tell_interval(values)
            raise self.interval.non_finite(self.task, values)
        self._tell_steps(first, secs / steps, values)
        return values

    def _packing_of_interval(self) -> dict[str, float]:
        """Returns `sequences_per_row` and `packing_efficiency` of the interval so far; empty without packed
        rows."""
        packing = PackingCounts()
        if self.plan.is_packed:
            steps = self.state.step - self.interval.first_step
            packing.add(steps * self.plan.train_batch_size, self.interval.numbers()["counts"])
        return packing.shares(self.config.max_seq_length)

    def _tell_interval(self, values: dict) -> None:
        for observer in self.observers:
            observer.on_interval(self.state.step, values)

    def _tell_steps(self, first: bool, step_secs: float, values: dict) -> None:
        """Records the time of a step and tells the observers of the steps. The first call of a process
        includes the compilation, and counts as the startup time instead."""
        if not first:
            self.outcome.step_secs = step_secs
            for observer in self.observers:
                observer.on_steps(self.state.step, values)
            return
        self.outcome.first_step_secs = time.time() - self.process_started
        for observer in self.observers:
            observer.on_first_step(self.state.step, self.outcome.first_step_secs)

    def _tell_open_interval(self) -> None:
        """Reports the interval that a signal cut off: a run that stops early has metrics, too."""
        first = self.interval.first_step
        if not self.config.do_train or first == self.state.step:
            return
        values = {"samples": self.state.samples_done, **self.interval.values(self.task, self.state)}
        values.update(self._packing_of_interval())
        for observer in self.observers:
            observer.on_open_interval(self.state.step, self.state.step - first, values)

    def _count_open_interval(self) -> None:
        if self.interval.steps:
            self.outcome.loop_rates.append((self.interval.sequences, self.interval.secs))
        self.outcome.skipped_steps += int(self.interval.totals["skipped"])

    # --------------------------------------------------------------------------------------------------------
    # Evaluation

    def _evaluate_if_due(self) -> None:
        step = self.state.step
        if not batch_plan.eval_is_due(self.config, step, self.last_step):
            return
        outcome, known = self.outcome, self.evaluated.get(step)
        if not known:
            self.together.poll()
        outcome.eval_metrics = known or self.evaluate()
        if not known and self.config.do_train and is_scored(self.task):
            self._keep_best(step)
        accuracy, target = outcome.eval_metrics[self.task.target_metric], self.config.stop_threshold
        outcome.reached = target is not None and accuracy >= target

    def _keep_best(self, step: int) -> None:
        """Saves the state where its evaluation is the best so far, and protects it from removal."""
        self.evaluated[step] = self.outcome.eval_metrics
        if self.best_step() == step:
            if not self.manager.is_saved(step):
                self._save()
            self.manager.pin(step)

    def best_step(self) -> int | None:
        """Returns the step of the best evaluation of a scored task: of equal scores the one with the lower
        loss, of equal losses the first; None without one."""
        if not (is_scored(self.task) and self.evaluated):
            return None

        def rank(step: int) -> tuple[float, float]:
            values = self.evaluated[step]
            loss = values.get("loss")  # none of tasks whose evaluation set has no labels
            return values[self.task.target_metric], -math.inf if loss is None else -loss

        return max(sorted(self.evaluated), key=rank)

    def evaluate(self) -> dict:
        """Evaluates the whole set, sums first and divides once, reports the values and returns them.

        Raises:
          Interrupted: on a signal.
          NonFiniteError: where a value is not finite.
        """
        started, step, samples = time.monotonic(), self.state.step, self.state.samples_done
        for observer in self.observers:
            observer.on_evaluation_start(step, samples)
        try:
            (*sums, sequences), self.outcome.outputs = self._evaluated(self.task.eval_dataset)
        finally:
            for observer in self.observers:
                observer.on_evaluation_stop(step, samples)
        values = self._evaluation_values(samples, np.asarray(sums))
        name, target, secs = self.task.target_metric, self.config.stop_threshold, time.monotonic() - started
        outcome = Evaluation(step, samples, round(sequences), values, name, target, secs)
        for observer in self.observers:
            observer.on_evaluation(outcome)
        bad = [name for name, value in values.items() if not math.isfinite(value)]
        if bad:
            raise NonFiniteError(f"{', '.join(bad)} not finite in the evaluation at step {step}")
        return values

    def _evaluation_values(self, samples: int, sums: np.ndarray) -> dict:
        """Returns the values of an evaluation; the target metric is NaN where it cannot be computed."""
        values = {"samples": samples, **mean_metrics(self.task.losses, self.task.eval_metrics, sums)}
        outputs = self.outcome.outputs
        if is_scored(self.task) and all(np.isfinite(output).all() for output in outputs.values()):
            values.update(self.task.score(outputs))
        values.setdefault(self.task.target_metric, math.nan)
        return values

    def outputs_of(self, dataset: Dataset, secs: list[float] | None = None) -> Outputs:
        """Returns the model's outputs, in the order of the sequences. `dataset` makes the set's global
        batches from their size; `secs` gets the seconds of each."""
        return self._evaluated(dataset, secs)[1]
