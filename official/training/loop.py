"""The loop of a run: what happens between two inner loops, and when."""

import contextlib
import dataclasses
import math
import signal
import time
from collections.abc import Callable

import numpy as np
import tensorflow as tf
from absl import logging

from official import config as config_lib
from official.checkpoint.manager import CheckpointManager
from official.config import ConfigError
from official.distribution import batch_plan
from official.distribution import strategy as strategy_lib
from official.io import signals
from official.reporting.metrics import MetricsWriter
from official.reporting.mllog import MLPerfLog
from official.reporting.progress import Progress
from official.training import evaluation
from official.training import interval as interval_lib
from official.training import step as step_lib
from official.training.interruption import Interruption
from official.training.interval import NonFiniteError


def reading(task, work):
    """Runs `work`; where it fails on a data file, raises a ConfigError that names the file."""
    try:
        return work()
    # TensorFlow raises a UnicodeDecodeError where its message quotes a record that is no text.
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


@dataclasses.dataclass
class Outcome:
    """What the loop has found out so far."""

    eval_metrics: dict = dataclasses.field(default_factory=dict)
    outputs: dict = dataclasses.field(
        default_factory=dict
    )  # of the model, in the last evaluation of this process
    reached: bool = False
    skipped_steps: int = 0
    loop_rates: list = dataclasses.field(default_factory=list)  # (samples, seconds) of each interval
    first_step_secs: float | None = None  # from the start of this process to the end of its first step
    step_secs: float | None = None  # of one step, by the last call of the devices after the first
    interrupted: bool = False  # a signal has left something undone

    def sequences_per_sec(self) -> float | None:
        """Returns the training throughput, without the first interval, which holds the compilation, where
        there are more."""
        steady = self.loop_rates[1:] or self.loop_rates
        secs = sum(secs for _, secs in steady)
        return sum(samples for samples, _ in steady) / secs if secs else None


@dataclasses.dataclass
class Loop:
    """The parts of a run that the loop works with."""

    config: object
    task: object
    state: step_lib.TrainState
    strategy: tf.distribute.Strategy
    plan: batch_plan.BatchPlan
    manager: CheckpointManager
    metrics: MetricsWriter
    log: MLPerfLog
    interruption: Interruption
    evaluated: dict[int, dict]  # {step: metrics} of evaluations that an earlier process made
    process_started: float = dataclasses.field(default_factory=time.time)
    check_folder: Callable[[], None] = lambda: (
        None
    )  # raises ConfigError where the run's folder is not its own any more
    outcome: Outcome = dataclasses.field(default_factory=Outcome)
    pace: interval_lib.Pace = dataclasses.field(default_factory=interval_lib.Pace)

    def __post_init__(self):
        self.train_loop = step_lib.make_train_loop(self.config, self.task, self.state, self.strategy)
        self.eval_step = step_lib.make_eval_step(self.task, self.state, self.strategy)
        self.weights_are_finite = step_lib.make_finite_check(self.state)
        self.sum_over_replicas = step_lib.make_sum_over_replicas(self.strategy)
        self.last_step = config_lib.train_steps(self.config) if self.config.do_train else self.state.step
        self.interval = interval_lib.from_saved(
            self.manager.companion(self.state.step), self.state.step, step_lib.no_totals(self.task)
        )
        self.progress: Progress | None = None

    def run(self) -> None:
        """Trains to the threshold, the last step or a signal, saves the final state, and notes it all in
        `outcome`.

        Raises:
          NonFiniteError: where a metric is not finite; the state is not saved then.
          ConfigError: where a data file cannot be read, or the folder of the run is gone.
        """
        if self.evaluated:
            self.outcome.eval_metrics = self.evaluated[max(self.evaluated)]
        self.manager.pin(self.best_step())
        self.progress = Progress(self.last_step, self.state.step)
        try:
            try:
                self._train_and_evaluate()
            except signals.Interrupted:
                self.outcome.interrupted = True
                self._count_open_interval()
            if self.config.do_train and self.manager.steps()[-1:] != [self.state.step]:
                self._save()
        finally:
            self.progress.close()
            self._flush()

    def _train_and_evaluate(self) -> None:
        """Goes on to the threshold or the last step. Raises Interrupted on a signal, between two updates."""
        iterator = None
        while True:
            self._evaluate_if_due()
            if self.outcome.reached or self.state.step >= self.last_step:
                return
            iterator = iterator or self._interruptible(self._train_iterator)
            self._train(iterator)
            if self.state.step % config_lib.checkpoint_every_steps(self.config) == 0:
                self._save()

    def _save(self) -> None:
        """Saves the state, unless the last update has broken the weights: the last good checkpoint stays."""
        if not self.weights_are_finite():
            raise NonFiniteError(f"weights not finite after step {self.state.step}")
        self.check_folder()
        self._flush()  # first: what a resumed process knows of the run must reach to its checkpoint
        open_interval = self.interval.first_step < self.state.step
        self.manager.save(self.state.step, self.interval.to_json() if open_interval else None)

    def _flush(self) -> None:
        self.metrics.flush()
        self.log.flush()

    def check_same_state(self) -> None:
        """Raises ConfigError where processes start from different steps, because they do not see the same
        folder."""
        if isinstance(self.strategy, tf.distribute.MultiWorkerMirroredStrategy):
            total = float(self.sum_over_replicas(tf.constant(float(self.state.step))))
            if total != self.state.step * self.strategy.num_replicas_in_sync:
                raise ConfigError(
                    f"--model_dir={self.config.model_dir} is not the same for all workers: this one is at"
                    f" step {self.state.step}, others are not. Use a folder that all of them share."
                )

    def _poll(self) -> None:
        """Raises Interrupted, in all processes at the same point, once one of them has got a signal."""
        received = self._agreed(float(self.interruption.signal is not None)) > 0
        if received:
            self.interruption.signal = self.interruption.signal or signal.SIGTERM
            raise signals.Interrupted(self.interruption.signal)

    def _agreed(self, value: float) -> float:
        """Returns the mean of what all processes give, in all of them the same."""
        if not isinstance(self.strategy, tf.distribute.MultiWorkerMirroredStrategy):
            return value
        return (
            float(self.sum_over_replicas(tf.constant(value, tf.float32))) / self.strategy.num_replicas_in_sync
        )

    def _interruptible(self, work: Callable):
        """Returns what `work` makes of files, which can be made again: a signal cuts it. Raises Interrupted
        then, in all processes."""
        made = None
        try:
            with signals.raising():
                made = reading(self.task, work)
        except signals.Interrupted as error:  # not yet: the other processes are to know first
            self.interruption.signal = error.signal
        self._poll()
        return made

    def warm_up(self) -> None:
        """Compiles the training and the evaluation step on synthetic data and leaves every variable
        bit-equal."""
        with step_lib.restored(list(self.state.variables().values())):
            self.train_loop(
                self._synthetic_iterator(self.plan.replica_batch_size),
                tf.constant(1),
                step_lib.no_totals(self.task),
            )
        if self.config.do_eval:
            self.eval_step(
                strategy_lib.next_batch(
                    self._synthetic_iterator(self.plan.replica_eval_batch_size), self.strategy
                )
            )

    def _synthetic_iterator(self, replica_batch_size: int):
        return iter(
            strategy_lib.distribute(
                lambda context: self.task.synthetic_dataset(replica_batch_size), self.strategy
            )
        )

    def _train_iterator(self):
        """Every host reads its own part, in batches of one replica, from where the state says."""
        samples = int(self.state.samples.numpy())

        def host_dataset(context):
            return self.task.train_dataset(
                self.plan.replica_batch_size, samples, context.input_pipeline_id, context.num_input_pipelines
            )

        return iter(strategy_lib.distribute(host_dataset, self.strategy))

    def _global_batches(self, dataset):
        """Global batches, filled up to one shape, cut into one batch a replica and dealt out to the hosts."""

        def host_dataset(context):
            batches = dataset(self.plan.eval_batch_size).rebatch(
                self.plan.replica_eval_batch_size, drop_remainder=True
            )
            return batches.shard(context.num_input_pipelines, context.input_pipeline_id)

        return strategy_lib.distribute(host_dataset, self.strategy)

    def _train(self, iterator) -> dict:
        """Trains to the end of the interval, in calls of some seconds, writes its line of the metrics and
        returns its values.

        Where an interval ends depends on steps alone, and its totals go on from call to call: how long calls
          are changes no bit.
        """
        self._poll()
        step = self.state.step
        planned = batch_plan.next_evaluation(self.config, step, self.last_step) - step
        end = step + batch_plan.loop_length(step, self.config.steps_per_loop, step + planned)
        self.log.train(int(self.state.samples.numpy()), planned * self.plan.train_batch_size, step)
        while True:
            values = self._call_devices(iterator, end - self.state.step)
            if self.state.step >= end:
                break
            self._poll()
        self.metrics.write("train", self.state.step, values)
        self.interval.check_skipped(self.state)
        self._count_open_interval()
        self.interval = interval_lib.Interval(self.state.step, step_lib.no_totals(self.task))
        return values

    def _call_devices(self, iterator, left: int) -> dict:
        """Runs some of the `left` steps of the interval and returns the values of its line so far. Raises
        NonFiniteError."""
        self.check_folder()
        first, steps, started = self.pace.is_unknown, self.pace.steps(left), time.monotonic()
        with (
            signals.expendable() if first else contextlib.nullcontext()
        ):  # it compiles, for minutes perhaps, and nothing is trained yet
            totals = reading(
                self.task, lambda: self.train_loop(iterator, tf.constant(steps), self.interval.totals)
            )
            totals["sums"].numpy()  # waits
        secs = time.monotonic() - started
        self.pace.note(steps, self._agreed(secs))
        self.interval.add(totals, steps, secs)
        values = {
            **self._counters(),
            **self.interval.values(self.task, self.state, self.plan.train_batch_size),
        }
        if self.interval.bad_step is not None:
            self.metrics.write("train", self.state.step, values)
            raise self.interval.non_finite(self.task, values)
        self._show(first, secs / steps, values)
        return values

    def _show(self, first: bool, step_secs: float, values: dict) -> None:
        """Lets people see that steps were done. The first one of a process says nothing about how long the
        others will take."""
        if first:
            self.outcome.first_step_secs = time.time() - self.process_started
            logging.info("First step done %.1f s after the start", self.outcome.first_step_secs)
        else:
            self.outcome.step_secs = step_secs
        if self.progress and first:
            self.progress.begin(self.state.step)
        elif self.progress:
            self.progress.update(self.state.step, values)

    def _count_open_interval(self) -> None:
        if self.interval.steps:
            self.outcome.loop_rates.append(
                (self.interval.steps * self.plan.train_batch_size, self.interval.secs)
            )
        self.outcome.skipped_steps += int(self.interval.totals["skipped"])

    def _evaluate_if_due(self) -> None:
        step = self.state.step
        if not batch_plan.eval_is_due(self.config, step, self.last_step):
            return
        outcome = self.outcome
        known = self.evaluated.get(step)
        if not known:
            self._poll()
        outcome.eval_metrics = known or self.evaluate()
        if not known and self.config.do_train and self.task.keeps_best:
            self._keep_best(step)
        accuracy, target = outcome.eval_metrics[self.task.target_metric], self.config.stop_threshold
        outcome.reached = target is not None and accuracy >= target

    def _keep_best(self, step: int) -> None:
        """Saves the state where no evaluation before was better, and keeps it from being removed."""
        self.evaluated[step] = self.outcome.eval_metrics
        if self.best_step() == step:
            if self.manager.steps()[-1:] != [step]:
                self._save()
            self.manager.pin(step)

    def best_step(self) -> int | None:
        """Returns the step of the best evaluation, the first of equals, of a task that keeps its best
        checkpoint; None where there was none."""
        if not (self.task.keeps_best and self.evaluated):
            return None
        return max(sorted(self.evaluated), key=lambda step: self.evaluated[step][self.task.target_metric])

    def evaluate(self) -> dict:
        """Evaluates the whole set, sums first and divides once, and writes and returns the metrics. On a
        signal, Interrupted comes through."""
        started = time.monotonic()
        at = self._counters()["samples"], self.state.step
        with self.log.evaluation(*at):
            (*sums, examples), self.outcome.outputs = self._evaluated(self.task.eval_dataset)
        means = step_lib.mean_metrics(self.task.losses, self.task.eval_metrics, sums)
        values = {
            **self._counters(),
            **means,
            **(self.task.score(self.outcome.outputs) if self._outputs_are_finite() else {}),
        }
        values.setdefault(self.task.target_metric, math.nan)
        if math.isfinite(values[self.task.target_metric]):
            self.log.accuracy(values[self.task.target_metric], round(examples), *at)
        self.metrics.write("eval", self.state.step, values)
        self._flush()
        bad = [name for name, value in values.items() if not math.isfinite(value)]
        if bad:
            raise NonFiniteError(f"{', '.join(bad)} not finite in the evaluation at step {self.state.step}")
        target = "" if self.config.stop_threshold is None else f" (target {self.config.stop_threshold})"
        parts = [f"{name} {value:.4f}" for name, value in values.items() if name != "samples"]
        logging.info(
            "Evaluation at step %d: %s%s, %.1f s",
            self.state.step,
            "  ".join(parts),
            target,
            time.monotonic() - started,
        )
        return values

    def _outputs_are_finite(self) -> bool:
        """Tells whether scores mean anything."""
        return all(np.isfinite(values).all() for values in self.outcome.outputs.values())

    def outputs_of(self, dataset) -> dict:
        """Returns the model's outputs, in the order of the rows; `dataset` makes the set's global batches of
        their size."""
        return self._evaluated(dataset)[1]

    def _evaluated(self, dataset) -> tuple:
        """Returns what `evaluation.run` does. Raises Interrupted on a signal, between two batches."""
        distributed = self._interruptible(lambda: self._global_batches(dataset))
        return reading(
            self.task,
            lambda: evaluation.run(
                self.eval_step, strategy_lib.batches(distributed, self.strategy), self._poll
            ),
        )

    def _counters(self) -> dict:
        return {"samples": int(self.state.samples.numpy())}
