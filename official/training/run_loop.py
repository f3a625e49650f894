"""The loop of a run: training intervals, evaluations and checkpoints between two device calls, and their
order.

Subclasses make the device calls: `official.training.loop` under TensorFlow's strategies,
`official.training.ipu.loop` on IPUs.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from official import config as config_lib
from official.checkpoint.manager import CheckpointManager
from official.config import Config, profile_window
from official.data.pipeline import TrainingOrder
from official.distribution import batch_plan
from official.io import signals
from official.optimization.replica_step import mean_metrics
from official.optimization.train_state import TrainState
from official.reporting.observer import Evaluation, Observer
from official.training import interval as interval_lib
from official.training import place as place_lib
from official.training import saving
from official.training.interruption import Interruption
from official.training.interval import NonFiniteError
from official.training.outcome import Outcome, PackingCounts
from official.training.task import Dataset, ExampleTask, Outputs, Task, is_scored, reading
from official.training.together import Together
from official.training.waiting import HostWait


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
        self.interval = interval_lib.from_saved(saved, self.state.step, self.nothing)
        self.place = place_lib.from_saved(
            saved, self.state.samples_done, self.state.step * self.plan.train_batch_size
        )
        stops = profile_window.window(self.config, self.state.step, self.last_step) or ()
        self.pace = interval_lib.Pace(stops, self.config.device_iterations)

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
        saving.save(self.config, self.manager, self.state.step, kept)

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
        self.interval = interval_lib.Interval(self.state.step, self.nothing)
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
