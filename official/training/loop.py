"""The loop of a run under a TensorFlow distribution strategy."""

import functools
import time
from collections.abc import Callable, Iterator

import numpy as np
import tensorflow as tf

from official import config as config_lib
from official.distribution import strategy as strategy_lib
from official.optimization.optimizers import restored
from official.training import evaluate, feeding
from official.training import step as step_lib
from official.training.run_loop import HostWait, NonFiniteError, RunLoop, Together
from official.training.task import Dataset, ExampleTask, Outputs, reading

__all__ = ["Loop", "NonFiniteError"]

_EXAMPLES = 8  # rows a replica


class Loop(RunLoop):
    """The loop of a run whose graphs are those of `official.training.step`."""

    def __post_init__(self) -> None:
        state, strategy = self.state, self.strategy
        self.wait = HostWait() if config_lib.follows_graphcore_log(self.config) else None
        self.train_loop = step_lib.make_train_loop(
            self.config, self.task, state, strategy, self.plan, self.wait
        )
        self.eval_step = step_lib.make_eval_step(self.task, state, strategy)
        self.weights_are_finite = step_lib.make_finite_check(state)
        super().__post_init__()

    def _find_peers(self) -> Together:
        return Together(self.interruption, *step_lib.peers(self.strategy))

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
        """The single batch of --synthetic_input, which the graph of the steps holds."""
        return strategy_lib.held(self._synthetic_batches(), self.strategy)

    def _evaluated(self, dataset: Dataset, secs: list[float] | None = None) -> tuple[np.ndarray, Outputs]:
        distributed = self.together.interruptible(
            lambda: reading(self.task, lambda: feeding.whole_set(dataset, self.plan, self.strategy))
        )
        batches = strategy_lib.batches(distributed, self.strategy)
        return reading(self.task, lambda: evaluate.run(self.eval_step, batches, self.together.poll, secs))

    def few_outputs(self, task: ExampleTask) -> Outputs:
        """Returns the task's example outputs of the first rows of the evaluation set: one small batch per
        replica, so that it costs next to nothing."""

        def work() -> Outputs:
            look = step_lib.make_example_step(task, self.state, self.strategy)
            rows = min(_EXAMPLES, self.plan.replica_eval_batch_size)
            batches = feeding.first_rows(task.example_dataset, rows, self.strategy)
            return evaluate.run(look, batches, before_each=lambda: None)[1]

        return reading(task, work)

    # --------------------------------------------------------------------------------------------------------
    # Compiling

    def warm_up(self) -> None:
        """Compiles the training and evaluation steps that the run needs, on synthetic data, and leaves every
        variable bit-equal. The observers are told of each."""
        since, works = time.monotonic(), self.compilations().values()
        if works:
            self._tell_compiling(0, len(works), since)
        for number, work in enumerate(works, 1):
            work()
            self._tell_compiling(number, len(works), since)
        if self.wait:
            self.wait.take_secs()  # of no step that counts

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

    def _tell_compiling(self, done: int, graphs: int, since: float) -> None:
        for observer in self.observers:
            observer.on_compiling(done, graphs, time.monotonic() - since)
