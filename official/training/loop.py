"""Loop of a run: metrics, evaluations, checkpoints and signals between two device calls."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import re
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any, TypeVar, cast

import numpy as np
import tensorflow as tf
from absl import logging

from official import config as config_lib
from official.checkpoint.manager import CheckpointManager
from official.config import values as values_lib
from official.config.table import FIELDS, Config
from official.data.pipeline import TrainingOrder
from official.distribution import batch_plan
from official.io import signals
from official.io.errors import ConfigError, PeerError
from official.optimization.replica_step import mean_metrics
from official.optimization.schedules import ByTime
from official.optimization.train_state import TrainState
from official.reporting.callback import Callback, End, Evaluation
from official.training import metrics_window
from official.training.metrics_window import MetricsWindow, NonFiniteError, PackingCounts, TimeBudget
from official.training.process_group import ProcessGroup
from official.training.task import Dataset, ExampleTask, Outputs, Task, is_scored


@dataclasses.dataclass
class Outcome:
    """Measurements of the loop so far.

    Attributes:
      eval_metrics: metrics of the last evaluation.
      outputs: the model's outputs in the last evaluation of this process.
      reached: whether --stop_threshold was reached.
      skipped_steps: number of updates that loss scaling skipped.
      loop_rates: (sequences, seconds) of each metrics window.
      first_step_secs: seconds from the start of this process to the end of its first step.
      step_secs: seconds per step in the last device call after the first.
      interrupted: whether a signal stopped the loop before its end.
      stopped_early: whether --early_stopping_patience stopped it.
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
    stopped_early: bool = False
    packing: PackingCounts = dataclasses.field(default_factory=PackingCounts)

    def sequences_per_sec(self) -> float | None:
        """Returns the training throughput, without the first window, which includes the compilation, unless
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


STOPPED = ("interrupted", "failed")  # statuses of a run that has no scores and no predictions
T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class Ended:
    """End of a loop.

    Attributes:
      end: status, reason, last step, and sequences trained on.
      findings: result fields about the best weights, such as scores.
      first_step: the step at which the loop began.
      run_started: start of the run's clock, seconds since 1970.
      peer_lost: whether another process was lost.
    """

    end: End
    findings: dict[str, Any]
    first_step: int
    run_started: float
    peer_lost: bool


@dataclasses.dataclass
class RunLoop:
    """The loop of a run on any kind of device.

    Subclasses call the devices: `official.training.strategy_loop` with TensorFlow's strategies,
    `official.graphcore.run` on IPUs. To follow a run, read `run_to_end` and `run` from top to bottom.

    Attributes:
      strategy: the strategy in whose scope variables are made.
      plan: batches of all replicas.
      callbacks: `Callback`s, notified of the run's events.
      evaluated: {step: metrics} of evaluations by earlier processes of a resumed run.
      process_started: start time of this process, seconds since 1970.
      check_folder: function that raises ConfigError if the run no longer owns its folder.
      processes: the processes of the run; by default this one alone.
      train_loop: function that runs steps on the devices, see `step.make_train_loop`; set by the subclass.
      weights_are_finite: function that tells whether all weights are finite; set by the subclass.
    """

    config: Config
    task: Task
    state: TrainState
    strategy: Any
    plan: batch_plan.BatchPlan
    manager: CheckpointManager
    callbacks: list[Callback]
    evaluated: dict[int, dict] = dataclasses.field(default_factory=dict)
    process_started: float = dataclasses.field(default_factory=time.time)
    check_folder: Callable[[], None] = lambda: None
    processes: ProcessGroup = dataclasses.field(default_factory=ProcessGroup)
    train_loop: Callable = dataclasses.field(init=False)
    weights_are_finite: Callable = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        self.outcome = Outcome()
        self.last_step = config_lib.train_steps(self.config) if self.config.do_train else self.state.step
        saved = self.manager.companion(self.state.step)
        self.nothing, self.told_few = self.no_totals(), -1
        self.window = metrics_window.window_from_saved(saved, self.state.step, self.nothing)
        stages = batch_plan.stages_between(self.config, self.plan, 0, self.state.step)
        rows = sum(steps * plan.train_batch_size for steps, plan in stages)
        self.data_position = metrics_window.position_from_saved(saved, self.state.samples_done, rows)
        is_packed = self.config.do_train and self.plan.is_packed
        if is_packed and self.state.step and not self.data_position.stream_sequences.any():
            warning = "ckpt-%d lacks its position in the packed data (ckpt-%d.interval.json). It is"
            warning += " estimated, so some sequences are read twice, and others not."
            logging.warning(warning, self.state.step, self.state.step)
        stops = values_lib.window(self.config, self.state.step, self.last_step) or ()
        self.steps_per_call = metrics_window.StepsPerCall(stops, config_lib.steps_per_call(self.config))
        self.budget: TimeBudget | None = None
        if self.config.budget_hours and self.config.do_train:
            secs = 3600 * self.config.budget_hours
            self.budget = TimeBudget(secs, saved, self.state.step, self.config.model_dir)
            if self.budget.rates:  # of the last steps, whose metrics window may be unfinished
                cast(ByTime, self.state.schedule).rate.assign([*self.budget.rates.values()][-1])
            self._spend()

    # --------------------------------------------------------------------------------------------------------
    # The devices

    def _enters_stage(self) -> bool:
        """Switches to the batch size of the next step if --batch_warmup changes it, and tells whether it
        did."""
        return False

    def no_totals(self) -> dict[str, tf.Tensor]:
        """Returns the initial totals of `train_loop`, see `step.no_totals`."""
        raise NotImplementedError

    def take_wait_secs(self) -> float | None:
        """Returns the time in seconds that steps have waited for batches since the last call; None if it is
        not measured."""
        return None

    def few_outputs(self, task: ExampleTask) -> Outputs | None:
        """Returns the task's example outputs for the first rows of the evaluation set, for the report; None
        on devices that do not compute them."""
        raise NotImplementedError

    def _train_iterator(self) -> Any:
        """Returns the training batches from the run's position, for `train_loop`."""
        raise NotImplementedError

    def _evaluated(self, dataset: Dataset, secs: list[float] | None = None) -> tuple[np.ndarray, Outputs]:
        """Evaluates a set; returns (sums, outputs), see `evaluate.run`.

        Args:
          dataset: function that returns the set's global batches.
          secs: optional list, to which the time of each batch in seconds is appended.

        Raises:
          Interrupted: on a signal, between two batches.
        """
        raise NotImplementedError

    # --------------------------------------------------------------------------------------------------------
    # The course of the run

    def notify(self, event: Callable, *arguments: Any) -> None:
        """Calls the method `event` of all callbacks."""
        for callback in self.callbacks:
            getattr(callback, event.__name__)(*arguments)

    def run_to_end(
        self,
        prepare: Callable[[], None],
        findings: Callable[[RunLoop], dict[str, Any]],
        noticing_lost_peers: Callable[[], AbstractContextManager] = contextlib.nullcontext,
    ) -> Ended:
        """Prepares and runs the loop, and scores its best weights.

        Args:
          prepare: called before the run's clock starts.
          findings: function that returns the result fields about the best weights; not called after an
            interruption.
          noticing_lost_peers: context manager that turns the loss of another process into a PeerError.
        """
        first_step, run_started, found = self.state.step, time.time(), {}
        try:
            with noticing_lost_peers(), naming_nondeterminism():
                prepare()
                run_started = time.time()
                with self.processes.noting_signals():
                    end = self._run_to_status()
                    try:
                        found = {} if end.status in STOPPED else findings(self)
                    except signals.Interrupted:
                        end = dataclasses.replace(end, status="interrupted", reason=self._interruption())
        except PeerError as error:
            end = End("failed", str(error), self.state.step, self.state.samples_done)
            return Ended(end, found, first_step, run_started, peer_lost=True)
        return Ended(end, found, first_step, run_started, peer_lost=False)

    def _run_to_status(self) -> End:
        """Runs the loop and returns its end. Callbacks are notified of the end even if the loop raises."""
        status, reason = "failed", ""
        try:
            self.run()
            if self.outcome.interrupted:
                status, reason = "interrupted", self._interruption()
            else:
                status, reason = self._judged()
        except NonFiniteError as error:
            reason = f"{error}; the newest checkpoint is from before it"
            self.manager.close()
        finally:
            end = End(status, reason, self.state.step, self.state.samples_done)
            with contextlib.ExitStack() as stack:  # notifies the others even if one fails
                for callback in reversed(self.callbacks):
                    stack.callback(callback.on_end, end)
        return end

    def _judged(self) -> tuple[str, str]:
        """Returns (status, reason) of a loop that ended without an error or a signal."""
        config, outcome, step, name = self.config, self.outcome, self.state.step, self.task.target_metric
        if outcome.reached or config.stop_threshold is not None:
            score, target = f"{name} {outcome.eval_metrics[name]:.4f}", f"the target {config.stop_threshold}"
            if outcome.reached:
                return "success", f"{score} reached {target} at step {step}"
            return "aborted", f"{score} is below {target} after all {step} steps"
        if outcome.stopped_early:
            patience = config.early_stopping_patience
            return "finished", f"no better {name} in {patience} evaluations, at step {step}"
        if not config.do_train:
            return "finished", f"{'evaluated' if config.do_eval else 'predicted'} at step {step}"
        if self.budget:
            return "finished", f"{config.budget_hours:g} hours used in {step} steps"
        return "finished", f"all {step} steps done"

    def _interruption(self) -> str:
        """Returns the reason of a loop that a signal stopped."""
        done = "saved" if self.config.do_train else "evaluation stopped"
        name = signal.Signals(self.processes.signal or signal.SIGTERM).name
        return f"{done} at step {self.state.step} on {name}"

    def run(self) -> None:
        """Trains up to the threshold, the last step or a signal, saves the final state, and records results
        in `outcome`.

        Raises:
          NonFiniteError: if a metric is not finite; the state is then not saved.
          ConfigError: if a data file cannot be read, or the folder of the run was removed.
        """
        if self.evaluated:
            self.outcome.eval_metrics = self.evaluated[max(self.evaluated)]
        self.manager.pin(self.best_step())
        if self.budget:
            self.budget.begin()
        try:
            self._train_and_evaluate()
        except signals.Interrupted:
            self.outcome.interrupted = True
            first = self.window.first_step
            if self.config.do_train and first < self.state.step:  # also after an early stop
                steps = self.state.step - first
                self.notify(Callback.on_open_interval, self.state.step, steps, self._window_values())
            self._count_window()
        if self.config.do_train and not self.manager.is_saved(self.state.step):
            self._save()
        self.manager.wait()

    def _train_and_evaluate(self) -> None:
        """Alternates training and evaluation up to the threshold or the last step. Raises Interrupted on a
        signal, between two updates."""
        iterator = None
        while True:
            self._evaluate_if_due()
            if self.outcome.reached or self.outcome.stopped_early or self.state.step >= self.last_step:
                return
            if self._enters_stage() or iterator is None:
                iterator = self.processes.interruptible(lambda: reading(self.task, self._train_iterator))
            self._train(iterator)
            if self.state.step % config_lib.checkpoint_every_steps(self.config) == 0:
                self._save()

    def order(self) -> TrainingOrder:
        """Returns the order of the training data from the run's position."""
        order = TrainingOrder(self.config.seed, self.state.samples_done)
        return self.data_position.order(order) if self.plan.is_packed else order

    def _save(self) -> None:
        """Saves a checkpoint; with --async_checkpoints starts to save it in the background.

        Raises:
          NonFiniteError: if a weight is not finite; the previous checkpoint is kept.
          ConfigError: if the disk is full or the folder is not writable, also for the previous checkpoint.
        """
        if not self.weights_are_finite():
            raise NonFiniteError(f"weights not finite after step {self.state.step}")
        self.check_folder()
        self.notify(Callback.on_checkpoint, self.state.step)
        kept = self.window.to_saved() if self.window.first_step < self.state.step else {}
        if self.plan.is_packed:
            kept.update(self.data_position.to_saved())
        if self.budget:
            kept.update(self.budget.to_saved())
        write = self.manager.begin_save if self.config.async_checkpoints else self.manager.save
        write(self.state.step, json.dumps(kept) + "\n" if kept else None)

    # --------------------------------------------------------------------------------------------------------
    # Training

    def _train(self, iterator: Any) -> dict:
        """Trains to the end of the metrics window in device calls of a few seconds, reports and returns its
        metrics.

        The end of a window depends only on the step, and its totals are passed from call to call, so the
        length of the calls does not change any result.
        """
        self.processes.poll()
        step = self.state.step
        evaluation = batch_plan.next_evaluation(self.config, step, self.last_step)
        stop = batch_plan.next_stop(self.config, step, self.last_step)
        end = step + batch_plan.loop_length(step, config_lib.steps_per_loop(self.config), stop)
        stages = batch_plan.stages_between(self.config, self.plan, step, evaluation)
        planned = sum(steps * plan.sequences_per_step for steps, plan in stages)
        sequences = None if evaluation == config_lib.MAX_STEPS else planned
        self.notify(Callback.on_training, step, self.state.samples_done, sequences)
        while True:
            values = self._call_devices(iterator, end - self.state.step)
            if self.state.step >= min(end, self.last_step):
                break
            self.processes.poll()
        self.notify(Callback.on_interval, self.state.step, values)
        self.window.check_skipped(self.state)
        self._count_window()
        self.window = MetricsWindow(self.state.step, self.nothing)
        return values

    def _call_devices(self, iterator: Any, left: int) -> dict:
        """Runs some of the `left` steps of the window, and returns the metrics of the window so far. Raises
        NonFiniteError."""
        self.check_folder()
        self.manager.check()
        self.notify(Callback.on_call, self.state.step)
        call_secs = self._hold_rate() if self.budget else metrics_window.CALL_SECS
        first = self.steps_per_call.is_unknown
        steps = self.steps_per_call.steps(left, self.state.step, call_secs)
        started, samples, before = time.monotonic(), self.state.samples_done, self.window.totals
        # The first call compiles, perhaps for minutes, and nothing is trained yet.
        with signals.expendable() if first else contextlib.nullcontext():
            totals = reading(self.task, lambda: self.train_loop(iterator, tf.constant(steps), before))
            totals["sums"].numpy()  # waits
        secs = time.monotonic() - started
        self.steps_per_call.note(steps, self.processes.mean(secs))
        if self.plan.is_packed:
            rows, new = steps * self.plan.train_batch_size, (totals["counts"] - before["counts"]).numpy()
            self.data_position.add(rows, new[:-1])
            self.outcome.packing.add(rows, new)
        self.window.add(totals, steps, self.state.samples_done - samples, secs, self.take_wait_secs())
        if self.budget:
            self._spend()
        values = self._window_values()
        if self.window.bad_step is not None:
            self.notify(Callback.on_interval, self.state.step, values)
            raise self.window.non_finite(self.task, values)
        if first:  # includes the compilation, and counts as the startup time instead
            self.outcome.first_step_secs = time.time() - self.process_started
            self.notify(Callback.on_first_step, self.state.step, self.outcome.first_step_secs)
        else:
            self.outcome.step_secs = secs / steps
            self.notify(Callback.on_steps, self.state.step, values)
        return values

    def _window_values(self) -> dict:
        rows = self.plan.train_batch_size if self.plan.is_packed else 0
        values = self.window.values(self.task, self.state, rows, self.config.max_seq_length)
        if self.budget:
            values["budget_left_secs"] = max(self.budget.secs - self.budget.used(), 0.0)
        return values

    def _hold_rate(self) -> float:
        """Sets the learning rate of the next device call from the used share of --budget_hours, and returns
        the time that the call may take, in seconds."""
        budget, schedule = cast(TimeBudget, self.budget), cast(ByTime, self.state.schedule)
        used = self.processes.mean(budget.used())
        budget.note(self.state.step, schedule.hold(min(used / budget.secs, 1.0)))
        return budget.call_secs(used)

    def _spend(self) -> None:
        """Ends the schedule at the current step, in all processes, if the time budget is used up."""
        budget = cast(TimeBudget, self.budget)
        if self.processes.mean(budget.used()) >= budget.secs:
            self.last_step = self.state.step

    def _count_window(self) -> None:
        """Adds the complete or interrupted window to the outcome."""
        if self.window.steps:
            self.outcome.loop_rates.append((self.window.sequences, self.window.secs))
        self.outcome.skipped_steps += int(self.window.totals["skipped"])

    # --------------------------------------------------------------------------------------------------------
    # Evaluation

    def _evaluate_if_due(self) -> None:
        step = self.state.step
        if not batch_plan.eval_is_due(self.config, step, self.last_step):
            return
        if step in self.evaluated:
            self.outcome.eval_metrics = self.evaluated[step]
        else:
            self.processes.poll()
            self.outcome.eval_metrics = self.evaluate()
            if self.config.do_train and is_scored(self.task):
                self.evaluated[step] = self.outcome.eval_metrics
                if self.best_step() == step:
                    if not self.manager.is_saved(step):
                        self._save()
                    self.manager.pin(step)
        accuracy, target = self.outcome.eval_metrics[self.task.target_metric], self.config.stop_threshold
        self.outcome.reached = target is not None and accuracy >= target
        patience, best = self.config.early_stopping_patience, self.best_step()
        if patience and best is not None:
            since = sum(best < evaluated <= step for evaluated in self.evaluated)
            self.outcome.stopped_early = since >= patience and step < self.last_step

    def best_step(self) -> int | None:
        """Returns the step of the best evaluation of a scored task; None without evaluations. Ties are broken
        by the lower loss, then by the earlier step."""
        if not (is_scored(self.task) and self.evaluated):
            return None

        name = self.config.early_stopping_metric or self.task.target_metric
        sign = -1 if name.endswith(("loss", "error")) else 1

        def rank(step: int) -> tuple[float, float]:
            values = self.evaluated[step]
            if name not in values:
                raise ConfigError(f"--early_stopping_metric={name} is not one of {', '.join(values)}.")
            loss = values.get("loss")  # None if the evaluation set has no labels
            return sign * values[name], -math.inf if loss is None else -loss

        return max(sorted(self.evaluated), key=rank)

    def evaluate(self) -> dict:
        """Evaluates the whole set; reports and returns the metrics. Sums over the set, then divides once.

        Raises:
          Interrupted: on a signal.
          NonFiniteError: if a metric is not finite.
        """
        started, step, samples = time.monotonic(), self.state.step, self.state.samples_done
        self.notify(Callback.on_evaluation_start, step, samples)
        try:
            (*sums, sequences), outputs = self._evaluated(self.task.eval_dataset)
        finally:
            self.notify(Callback.on_evaluation_stop, step, samples)
        self.outcome.outputs, name = outputs, self.task.target_metric
        metrics = mean_metrics(self.task.losses, self.task.eval_metrics, np.asarray(sums))
        values = {"samples": samples, **metrics}
        if is_scored(self.task) and all(np.isfinite(output).all() for output in outputs.values()):
            values.update(self.task.score(outputs))
        values.setdefault(name, math.nan)  # a metric that cannot be computed
        target, secs = self.config.stop_threshold, time.monotonic() - started
        evaluation = Evaluation(step, samples, round(sequences), values, name, target, secs)
        self.notify(Callback.on_evaluation, evaluation)
        wanted, field = self.config.num_eval_samples, FIELDS["num_eval_samples"]
        if self.config.task in field.tasks and field.default != wanted > round(sequences) != self.told_few:
            warning = "--num_eval_samples=%d: the evaluation files have only %d records; all are evaluated."
            logging.warning(warning, wanted, round(sequences))
            self.told_few = round(sequences)
        bad = [name for name, value in values.items() if not math.isfinite(value)]
        if bad:
            raise NonFiniteError(f"{', '.join(bad)} not finite in the evaluation at step {step}")
        return values

    def outputs_of(self, dataset: Dataset, secs: list[float] | None = None) -> Outputs:
        """Returns the model's outputs in the order of the sequences. `dataset` maps a batch size to the set's
        global batches; the time of each batch in seconds is appended to `secs`."""
        return self._evaluated(dataset, secs)[1]


@contextlib.contextmanager
def naming_nondeterminism() -> Iterator[None]:
    """Context manager that turns TensorFlow's error about an operation without a deterministic kernel into a
    one-line ConfigError."""
    try:
        yield
    except (tf.errors.UnimplementedError, tf.errors.FailedPreconditionError) as error:
        text = str(error)
        said = re.search(r"^(?:{{function_node \S*}} )?(.*eterminis.*)$", text, re.MULTILINE)
        if not said:
            raise
        node = re.search(r"{{node ([^}]*)}}", text)
        where = f" ({node[1]})" if node else ""
        raise ConfigError(
            f"deterministic=True, but TensorFlow has no deterministic form of an operation: {said[1]}{where}."
            " Drop --deterministic."
        ) from error


def reading(task: Task, work: Callable[[], T]) -> T:
    """Runs `work`. If it fails on a data file, raises a ConfigError that names the file."""
    try:
        return work()
    # TensorFlow raises a UnicodeDecodeError if its message quotes a binary record.
    except (
        tf.errors.DataLossError,
        tf.errors.InvalidArgumentError,
        tf.errors.NotFoundError,
        UnicodeDecodeError,
    ) as error:
        explanation = task.explain_read_error()
        if explanation is None:
            raise
        raise ConfigError(explanation + ".") from error
