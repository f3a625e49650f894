"""The loop of a run on IPUs: its steps and evaluations are calls of compiled pipelines."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from official.data.pipeline import MOST_STREAMS
from official.training import evaluate
from official.training.ipu import building, stages
from official.training.loop import RunLoop
from official.training.task import Dataset, ExampleTask, Outputs, reading


class PipelineLoop(RunLoop):
    """The loop of a run on IPUs; its `strategy` is `building.Devices`."""

    state: building.PipelineState

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
        """Compiles the programs of the training and, where there is one, of the evaluation, by calling each
        once."""
        self._train_iterator()()
        if self.config.do_eval:
            call, _ = self._evaluation_of(self.task.eval_dataset)
            call()

    def few_outputs(self, task: ExampleTask) -> Outputs | None:
        return None  # they would be a program of their own

    # --------------------------------------------------------------------------------------------------------
    # Training

    def _train_iterator(self) -> Callable[[], np.ndarray]:
        building.check_steps(self.config, self.state.step)
        return building.make_training(self.config, self.strategy, self.task, self.state, self.order())

    def _run_steps(self, call: Callable[[], np.ndarray], num_steps: tf.Tensor, totals: dict) -> dict:
        """Runs `num_steps` steps like the loop of `step.make_train_loop`, --device_iterations steps per
        device call, and returns the totals."""
        for _ in range(int(num_steps) // self.config.device_iterations):
            totals = self._added(totals, call())
        return totals

    def _added(self, totals: dict[str, tf.Tensor], steps: np.ndarray) -> dict[str, tf.Tensor]:
        """Returns the totals plus the sums of more steps; advances the state's steps and samples."""
        sums, counts = np.split(steps, [-stages.NUM_COUNTS], axis=1)
        found = {**totals, "sums": totals["sums"] + tf.constant(sums.sum(axis=0), tf.float32)}
        bad = np.flatnonzero(~np.isfinite(sums).all(axis=1))
        if bad.size and int(totals["bad_step"]) < 0:
            found["bad_step"] = tf.constant(self.state.step + int(bad[0]) + 1, tf.int64)
        self.state.steps.assign_add(len(steps))
        sequences = len(steps) * self.plan.sequences_per_step
        if self.plan.is_packed:
            told, tokens = np.rint(counts.sum(axis=0)).astype(np.int64)
            # --synthetic_input leaves the batches empty, which say none.
            sequences = sequences if self.config.synthetic_input else int(told)
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
            self._evaluations.clear()  # their queues stand in the middle of a set
            raise

    def _evaluation_of(self, dataset: Dataset) -> tuple[Callable[[], Any], int]:
        """Returns the compiled evaluation of a set, see `building.make_evaluation`; compiled once per set."""
        if dataset not in self._evaluations:
            parts = self.config, self.strategy, self.task, self.state
            self._evaluations[dataset] = self.processes.interruptible(
                lambda: reading(self.task, lambda: building.make_evaluation(*parts, dataset))
            )
        return self._evaluations[dataset]
