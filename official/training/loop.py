"""The loop of a run: what happens between two inner loops, and when."""

import dataclasses
import math
import signal
import time

from absl import logging
import numpy as np
import tensorflow as tf

from official import config as config_lib
from official.checkpoint.manager import CheckpointManager
from official.config import ConfigError
from official.distribution import batch_plan
from official.distribution import strategy as strategy_lib
from official.reporting.metrics import MetricsWriter
from official.reporting.mllog import MLPerfLog
from official.reporting.progress import Progress
from official.training import evaluation
from official.training import step as step_lib
from official.training.interruption import Interruption


class NonFiniteError(ArithmeticError):
    """A loss, metric, gradient or weight is NaN or infinite. The message names step and metric."""


def reading(task, work):
    """Runs `work`; where it fails on a data file, raises a ConfigError that names the file."""
    try:
        return work()
    # TensorFlow raises a UnicodeDecodeError where its message quotes a record that is no text.
    except (tf.errors.DataLossError, tf.errors.InvalidArgumentError, tf.errors.NotFoundError, UnicodeDecodeError) as error:
        explanation = task.explain_read_error()
        if explanation is None:
            raise
        raise ConfigError(explanation + ".") from error


@dataclasses.dataclass
class Outcome:
    """What the loop has found out so far."""

    eval_metrics: dict = dataclasses.field(default_factory=dict)
    outputs: dict = dataclasses.field(default_factory=dict)  # of the model, in the last evaluation of this process
    reached: bool = False
    skipped_steps: int = 0
    loop_rates: list = dataclasses.field(default_factory=list)  # (samples, seconds) of each inner loop
    first_step_secs: float | None = None  # from the start of this process to the end of its first step

    def sequences_per_sec(self) -> float | None:
        """Returns the training throughput, without the first inner loop, which holds the compilation, where there are more."""
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
    outcome: Outcome = dataclasses.field(default_factory=Outcome)

    def __post_init__(self):
        self.train_loop = step_lib.make_train_loop(self.config, self.task, self.state, self.strategy)
        self.eval_step = step_lib.make_eval_step(self.task, self.state, self.strategy)
        self.weights_are_finite = step_lib.make_finite_check(self.state)
        self.stopping = False  # like `interruption`, but the same in all processes
        self.sum_over_replicas = step_lib.make_sum_over_replicas(self.strategy)
        self.last_step = config_lib.train_steps(self.config) if self.config.do_train else self.state.step

    def run(self) -> None:
        """Trains to the threshold, the last step or a signal, saves the final state, and notes it all in `outcome`.

        Raises:
          NonFiniteError: where a metric is not finite; the state is not saved then.
          ConfigError: where a data file cannot be read.
        """
        outcome = self.outcome
        if self.evaluated:
            outcome.eval_metrics = self.evaluated[max(self.evaluated)]
        self.manager.pin(self.best_step())
        progress = Progress(self.last_step, self.state.step)
        iterator = None
        try:
            while True:
                self._share_signal()
                self._evaluate_if_due()
                if outcome.reached or self.state.step >= self.last_step or self.stopping:
                    break
                iterator = iterator or reading(self.task, self._train_iterator)
                values = self._train(iterator)
                progress.update(self.state.step, values)
                if self.state.step % config_lib.checkpoint_every_steps(self.config) == 0:
                    self._save()
            if self.config.do_train and self.manager.steps()[-1:] != [self.state.step]:
                self._save()
        finally:
            progress.close()
            self._flush()

    def _save(self) -> None:
        """Saves the state, unless the last update has broken the weights: the last good checkpoint stays."""
        if not self.weights_are_finite():
            raise NonFiniteError(f"weights not finite after step {self.state.step}")
        self._flush()  # first: what a resumed process knows of the run must reach to its checkpoint
        self.manager.save(self.state.step)

    def _flush(self) -> None:
        self.metrics.flush()
        self.log.flush()

    def check_same_state(self) -> None:
        """Raises ConfigError where processes start from different steps, because they do not see the same folder."""
        if isinstance(self.strategy, tf.distribute.MultiWorkerMirroredStrategy):
            total = float(self.sum_over_replicas(tf.constant(float(self.state.step))))
            if total != self.state.step * self.strategy.num_replicas_in_sync:
                raise ConfigError(f"--model_dir={self.config.model_dir} is not the same for all workers: this one is at step "
                                  f"{self.state.step}, others are not. Use a folder that all of them share.")

    def _share_signal(self) -> None:
        """Decides whether to stop, the same in all processes: once one of them has got a signal."""
        self.stopping = self.interruption.signal is not None
        if isinstance(self.strategy, tf.distribute.MultiWorkerMirroredStrategy):
            self.stopping = float(self.sum_over_replicas(tf.constant(float(self.stopping)))) > 0
            if self.stopping and self.interruption.signal is None:
                self.interruption.signal = signal.SIGTERM

    def warm_up(self) -> None:
        """Compiles the training and the evaluation step on synthetic data and leaves every variable bit-equal."""
        variables = self.state.variables().values()
        before = [tf.identity(variable.read_value()) for variable in variables]
        self.train_loop(self._synthetic_iterator(self.plan.replica_batch_size), tf.constant(1), step_lib.no_totals(self.task))
        if self.config.do_eval:
            self.eval_step(next(self._synthetic_iterator(self.plan.replica_eval_batch_size)))
        for variable, value in zip(variables, before):
            variable.assign(value)

    def _synthetic_iterator(self, replica_batch_size: int):
        return iter(strategy_lib.distribute(lambda context: self.task.synthetic_dataset(replica_batch_size), self.strategy))

    def _train_iterator(self):
        """Every host reads its own part, in batches of one replica, from where the state says."""
        samples = int(self.state.samples.numpy())

        def host_dataset(context):
            return self.task.train_dataset(
                self.plan.replica_batch_size, samples, context.input_pipeline_id, context.num_input_pipelines)

        return iter(strategy_lib.distribute(host_dataset, self.strategy))

    def _global_batches(self, dataset):
        """Global batches, filled up to one shape, cut into one batch a replica and dealt out to the hosts."""

        def host_dataset(context):
            batches = dataset(self.plan.eval_batch_size).rebatch(self.plan.replica_eval_batch_size, drop_remainder=True)
            return batches.shard(context.num_input_pipelines, context.input_pipeline_id)

        return strategy_lib.distribute(host_dataset, self.strategy)

    def _train(self, iterator) -> dict:
        """Runs one inner loop, writes its metrics and returns them."""
        step = self.state.step
        planned = batch_plan.next_evaluation(self.config, step, self.last_step) - step
        steps = batch_plan.loop_length(step, self.config.steps_per_loop, step + planned)
        self.log.train(int(self.state.samples.numpy()), planned * self.plan.train_batch_size, step)
        started = time.monotonic()
        totals = {name: value.numpy() for name, value in reading(self.task, lambda: self._run_steps(iterator, steps)).items()}
        secs = time.monotonic() - started
        samples = steps * self.plan.train_batch_size
        self.outcome.loop_rates.append((samples, secs))
        self.outcome.skipped_steps += int(totals["skipped"])
        values = {
            **self._counters(),
            **step_lib.mean_metrics(self.task.losses, self.task.metrics, totals["sums"]),
            "learning_rate": float(self.state.schedule(step + steps - 1)),
            "gradient_norm": float(totals["norm"]) / max(steps - int(totals["skipped"]), 1),
            "loss_scale": float(self.state.loss_scale.scale.numpy()) if self.state.loss_scale else 1.0,
            "skipped_steps": int(totals["skipped"]),
            "sequences_per_sec": samples / secs,
        }
        self.metrics.write("train", self.state.step, values)
        self._check_finite(totals, values, steps)
        return values

    def _run_steps(self, iterator, steps: int) -> dict:
        """Runs steps on the devices and returns their totals. The first step of a process runs apart: people wait for it."""
        totals = step_lib.no_totals(self.task)
        if self.outcome.first_step_secs is None:
            totals, steps = self.train_loop(iterator, tf.constant(1), totals), steps - 1
            totals["sums"].numpy()  # waits
            self.outcome.first_step_secs = time.time() - self.process_started
            logging.info("First step done %.1f s after the start", self.outcome.first_step_secs)
        return self.train_loop(iterator, tf.constant(steps), totals)

    def _check_finite(self, totals: dict, values: dict, steps: int) -> None:
        if totals["bad_step"] >= 0:
            names = [name for name in self.task.metrics if not math.isfinite(values[name])] or ["gradient norm"]
            raise NonFiniteError(f"{', '.join(names)} not finite at step {totals['bad_step']}")
        if totals["skipped"] == steps and (not self.state.loss_scale.dynamic or values["loss_scale"] <= 1.0):
            raise NonFiniteError(f"gradient norm not finite in any of the {steps} steps before step {self.state.step}, "
                                 f"with loss_scale {values['loss_scale']:g}")

    def _evaluate_if_due(self) -> None:
        step = self.state.step
        if not batch_plan.eval_is_due(self.config, step, self.last_step) or (self.stopping and step < self.last_step):
            return
        outcome = self.outcome
        known = self.evaluated.get(step)
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
        """Returns the step of the best evaluation, the first of equals, of a task that keeps its best checkpoint; None where there was none."""
        if not (self.task.keeps_best and self.evaluated):
            return None
        return max(sorted(self.evaluated), key=lambda step: self.evaluated[step][self.task.target_metric])

    def evaluate(self) -> dict:
        """Evaluates the whole set, sums first and divides once, and writes and returns the metrics."""
        started = time.monotonic()
        at = self._counters()["samples"], self.state.step
        with self.log.evaluation(*at):
            (*sums, examples), self.outcome.outputs = reading(
                self.task, lambda: evaluation.run(self.eval_step, self._global_batches(self.task.eval_dataset)))
        means = step_lib.mean_metrics(self.task.losses, self.task.eval_metrics, sums)
        values = {**self._counters(), **means, **(self.task.score(self.outcome.outputs) if self._outputs_are_finite() else {})}
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
        logging.info("Evaluation at step %d: %s%s, %.1f s", self.state.step, "  ".join(parts), target, time.monotonic() - started)
        return values

    def _outputs_are_finite(self) -> bool:
        """Tells whether scores mean anything."""
        return all(np.isfinite(values).all() for values in self.outcome.outputs.values())

    def outputs_of(self, dataset) -> dict:
        """Returns the model's outputs, in the order of the rows; `dataset` makes the set's global batches of their size."""
        return evaluation.run(self.eval_step, self._global_batches(dataset))[1]

    def _counters(self) -> dict:
        return {"samples": int(self.state.samples.numpy())}
