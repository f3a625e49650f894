"""Parts of a training step, made as a run makes them."""

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from official.config import Config
from official.distribution import strategy as strategy_lib
from official.distribution.batch_plan import BatchPlan, make_batch_plan
from official.optimization import replica_step
from official.optimization.optimizers import TrainState
from official.tasks.pretraining import PretrainingTask
from official.training import feeding, pipelined
from official.training import step as step_lib


@dataclasses.dataclass(frozen=True)
class Step:
    """What a step needs."""

    config: Config
    strategy: tf.distribute.Strategy
    task: Any
    plan: BatchPlan
    state: TrainState

    def batches(self) -> Iterator:
        """Returns endless batches of made-up records, on the devices."""
        return feeding.synthetic_batches(self.task, self.plan.replica_batch_size, self.strategy)

    def loop(self) -> Callable:
        """Returns (iterator, number of steps, totals so far) -> totals."""
        return step_lib.make_train_loop(self.config, self.task, self.state, self.strategy, self.plan)

    def nothing(self) -> dict:
        return step_lib.no_totals(self.task, self.plan)

    def weights(self) -> dict[str, np.ndarray]:
        return {
            variable.name: variable.read_value().numpy() for variable in self.state.model.trainable_variables
        }

    def means(self, sums: tf.Tensor) -> dict[str, float]:
        """Returns the mean losses and accuracies of what a step has added up."""
        return replica_step.mean_metrics(self.task.losses, self.task.metrics, sums)


def make_step(
    config: Config,
    weights: dict[str, np.ndarray] | None = None,
    make_task: Callable[[Config], Any] = PretrainingTask,
) -> Step:
    """Returns a step, with those weights where they are given: two kinds of devices need not draw the same to
    the last bit."""
    strategy, task = strategy_lib.make_strategy(config), make_task(config)
    plan = make_batch_plan(config, strategy.num_replicas_in_sync).with_rows_of(task.sequences_per_row)
    state = pipelined.make_state(config, task, strategy)
    for variable in state.model.trainable_variables if weights else ():
        variable.assign(weights[variable.name])
    return Step(config, strategy, task, plan, state)


def losses_and_gradients(step: Step, batch: dict) -> tuple[dict[str, float], dict[str, np.ndarray]]:
    """Returns the mean losses and the gradients, unscaled, of the first step on a batch, dropout included."""
    of_replica = replica_step.make_replica_gradients(
        step.config, step.task, step.state, step.plan.num_accumulation_steps
    )

    @tf.function(autograph=False)
    def run(batch):
        return step.strategy.run(of_replica, args=(batch,))

    gradients, factor, sums, _ = run(batch)
    names = (variable.name for variable in step.state.model.trainable_variables)
    found = {
        name: tf.convert_to_tensor(gradient).numpy() * np.float32(factor)
        for name, gradient in zip(names, gradients)
    }
    return step.means(sums), found
