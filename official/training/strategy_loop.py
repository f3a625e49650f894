"""The loop of a run under a TensorFlow distribution strategy."""

import functools
import time
from collections.abc import Callable, Iterator

import numpy as np
import tensorflow as tf
from absl import logging

from official import config as config_lib
from official.distribution import batch_plan
from official.distribution import strategy as strategy_lib
from official.optimization.optimizers import restored
from official.reporting.callback import Callback
from official.training import evaluate, feeding, pipelined
from official.training import step as step_lib
from official.training.loop import RunLoop, reading
from official.training.metrics_window import CALL_SECS
from official.training.task import Dataset, ExampleTask, Outputs


class Loop(RunLoop):
    """The loop of a run whose graphs are those of `official.training.step`."""

    def __post_init__(self) -> None:
        config, state, strategy = self.config, self.state, self.strategy
        waits = config_lib.follows_graphcore_log(config) and not config.deterministic  # no clock there
        self._wait = step_lib.HostWait() if waits else None
        self.plan = batch_plan.plan_at(config, self.plan, state.step)
        self._make_train_loop()
        self.eval_step = step_lib.make_eval_step(self.task, state, strategy)
        self.weights_are_finite = step_lib.make_finite_check(state)
        super().__post_init__()

    def _make_train_loop(self) -> None:
        arguments = self.config, self.task, self.state, self.strategy, self.plan, self._wait
        self.train_loop = step_lib.make_train_loop(*arguments)

    def _enters_stage(self) -> bool:
        plan = batch_plan.plan_at(self.config, self.plan, self.state.step)
        if plan == self.plan:
            return False
        logging.info("From step %d on: %s", self.state.step, plan.describe())
        self.plan = plan
        self._make_train_loop()  # which the next call compiles
        self.steps_per_call.note(1, CALL_SECS)
        return True

    def take_wait_secs(self) -> float | None:
        return self._wait.take_secs() if self._wait else None

    def no_totals(self) -> dict[str, tf.Tensor]:
        return step_lib.no_totals(self.task, self.plan)

    def _train_iterator(self) -> Iterator:
        if self.config.synthetic_input:
            return self._held_batch
        return feeding.training_batches(self.task, self.plan, self.order(), self.strategy)

    def _synthetic_batches(self) -> Iterator:
        return feeding.synthetic_batches(self.task, self.plan.replica_batch_size, self.strategy)

    @functools.cached_property
    def _held_batch(self) -> strategy_lib.HeldBatch:
        """The single batch of --synthetic_input, kept on the devices."""
        return strategy_lib.held(self._synthetic_batches(), self.strategy)

    def _evaluated(self, dataset: Dataset, secs: list[float] | None = None) -> tuple[np.ndarray, Outputs]:
        distributed = self.processes.interruptible(
            lambda: reading(self.task, lambda: feeding.whole_set(dataset, self.plan, self.strategy))
        )
        batches = strategy_lib.batches(distributed, self.strategy)
        return reading(self.task, lambda: evaluate.run(self.eval_step, batches, self.processes.poll, secs))

    def few_outputs(self, task: ExampleTask) -> Outputs:
        """Returns the task's example outputs of the first rows of the evaluation set. Each process computes
        them with its first replica's weights: a small batch, so that it costs next to nothing."""

        def work() -> Outputs:
            batch = next(iter(task.example_dataset(min(8, self.plan.eval_batch_size))))
            with self.strategy.scope():
                model = pipelined.on_devices(self.state.model, self.strategy)
                look = tf.function(functools.partial(task.example_outputs, model), autograph=False)
                outputs = look(batch)
            is_row = batch["example_weights"].numpy() > 0  # others are padding
            return {name: value.numpy()[is_row] for name, value in outputs.items()}

        return reading(task, work)

    # --------------------------------------------------------------------------------------------------------
    # Compiling

    def warm_up(self) -> None:
        """Compiles the training and evaluation steps that the run needs, on synthetic data, and leaves every
        variable bit-equal. Notifies the callbacks of each compilation."""
        since, graphs = time.monotonic(), self.compilations().values()
        if graphs:
            self.notify(Callback.on_compiling, 0, len(graphs), 0.0)
        for number, compile_graph in enumerate(graphs, 1):
            compile_graph()
            self.notify(Callback.on_compiling, number, len(graphs), time.monotonic() - since)
        self.take_wait_secs()  # discards the waits of these steps

    def compilations(self) -> dict[str, Callable[[], None]]:
        """Returns {name: function that compiles it} of the steps to compile before the run starts: training,
        evaluation."""
        works = {"training": self._compile_training} if self.state.step < self.last_step else {}
        config = self.config
        if config.do_eval or config.do_predict and not config.do_train:
            works["evaluation"] = self._compile_evaluation
        return works

    def _compile_training(self) -> None:
        with restored(list(self.state.variables().values())):
            batches = self._held_batch if self.config.synthetic_input else self._synthetic_batches()
            self.train_loop(batches, tf.constant(1), self.nothing)

    def _compile_evaluation(self) -> None:
        rows = self.plan.replica_eval_batch_size
        batches = feeding.synthetic_batches(self.task, rows, self.strategy, for_evaluation=True)
        self.eval_step(strategy_lib.next_batch(batches, self.strategy))
