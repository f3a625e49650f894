"""Our plain optimizers as the TF1 optimizer that the IPU API takes, applied to a pipeline's accumulated
gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from official.config import Config
from official.distribution.batch_plan import BatchPlan
from official.optimization import gradients as gradients_lib
from official.optimization import replica_step
from official.optimization.train_state import TrainState


class PipelineOptimizer(tf.compat.v1.train.Optimizer):
    """Reduces, unscales and clips the gradients of a step, and updates the weights."""

    def __init__(self, update: Callable[[list, list], None]):
        """Args: update: takes gradients and their variables."""
        super().__init__(use_locking=False, name="bert_optimizer")
        self._update = update

    def apply_gradients(self, grads_and_vars, global_step=None, name=None):
        """Returns the operation that updates the variables; `global_step` is counted by our optimizer."""
        del global_step
        graph = tf.compat.v1.get_default_graph()
        before = {operation.name for operation in graph.get_operations()}
        self._update(*map(list, zip(*grads_and_vars)))
        made = [operation for operation in graph.get_operations() if operation.name not in before]
        return tf.group(*[operation for operation in made if operation.type.startswith("Assign")], name=name)


def make_update(config: Config, state: TrainState, plan: BatchPlan, api: Any) -> Callable[[list, list], None]:
    """Returns (gradients, variables) -> None, the end of a step: reduce across replicas, unscale, clip,
    apply.

    Args:
      config: configuration of the run.
      state: state to update.
      plan: batches of all replicas.
      api: API of the IPUs.
    """
    scale, largest = (
        objective_scale(config, state, plan),
        replica_step.largest_norm(config, plan.num_replicas),
    )
    turns = float(replica_step.micro_batch_divisor(config, plan.num_accumulation_steps))

    def update(gradients, variables):
        if plan.num_replicas > 1:
            gradients = [api.cross_replica_ops.cross_replica_sum(gradient) for gradient in gradients]
        divisor = scale(state.optimizer.iterations) * turns
        factor = 1.0
        if largest is not None:
            factor = gradients_lib.clip_factor(tf.linalg.global_norm(gradients) / divisor, largest)
        state.optimizer.update(gradients, variables, factor / divisor)

    return update


def objective_scale(config: Config, state: TrainState, plan: BatchPlan) -> Callable:
    """Returns step -> factor of a micro batch's loss, float32, see `replica_step.objective_scale`."""
    loss_scale = state.loss_scale
    if loss_scale is None:
        return lambda step: tf.constant(1.0)
    factor = replica_step.scale_factor(config, plan.num_accumulation_steps, plan.num_replicas)
    return lambda step: loss_scale.at(step) * factor
