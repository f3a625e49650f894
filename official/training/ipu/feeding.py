"""Cuts the rows of a step into the replicas' micro batches, and computes on the host what the IPUs would else
have to count.

Each micro batch carries its weight in the step and the seed of its dropout: stages are functions of their
inputs.
"""

from __future__ import annotations

from collections.abc import Callable

import tensorflow as tf

from official.config import Config
from official.data import pipeline
from official.distribution.batch_plan import BatchPlan
from official.distribution.ipu.instances import Instances
from official.optimization import replica_step
from official.training.ipu.stages import COUNTS, FACTORS, SEED
from official.training.task import Task


def micro_batches(
    config: Config, task: Task, steps: tf.data.Dataset, first_step: int, plan: BatchPlan, scale: Callable
) -> tf.data.Dataset:
    """Returns the micro batches of all replicas, {feature: tensor}, in the order in which replicas take them:
    all of one turn, then all of the next.

    Args:
      config: of the run.
      task: gives the loss weights of a batch.
      steps: rows of whole steps, {feature: [train_batch_size, ...]}.
      first_step: number of the first of them.
      plan: batches of all replicas.
      scale: step -> factor of the loss, see `objective_scale`.
    """

    def cut(step, rows):
        parts = {name: _by_turn(value, plan) for name, value in rows.items()}
        turns, replicas = plan.num_accumulation_steps, plan.num_replicas
        count = turns * replicas
        turn, replica = tf.meshgrid(tf.range(turns), tf.range(replicas), indexing="ij")
        seeds = [tf.fill([count], config.seed), tf.fill([count], tf.cast(step, tf.int32))]
        parts[SEED] = tf.stack([*seeds, tf.reshape(replica, [-1]), tf.reshape(turn, [-1])], axis=1)
        parts[FACTORS] = _factors(config, task, rows, parts, plan) * scale(step)
        tokens = tf.reduce_sum(tf.cast(rows["input_mask"], tf.float32))
        counts = tf.stack([tf.reduce_sum(rows["example_weights"]), tokens])
        parts[COUNTS] = tf.tile(counts[None] / count, [count, 1])
        return parts

    return steps.enumerate(first_step).map(cut)


def of_instance(
    parts: tf.data.Dataset, plan: BatchPlan, instances: Instances, names: tuple[str, ...]
) -> tf.data.Dataset:
    """Returns the micro batches of one instance's replicas, one an element: a tuple of the features `names`.

    Every instance reads the whole step, which gives its micro batches their weights, and keeps its part.
    """
    turns, replicas = plan.num_accumulation_steps, plan.num_replicas
    first, local = instances.first_replica, instances.local_replicas

    def keep(step):
        def own(value):
            by_turn = tf.reshape(value, [turns, replicas, *value.shape[1:]])[:, first : first + local]
            return tf.reshape(by_turn, [turns * local, *value.shape[1:]])

        mine = {name: own(value) for name, value in step.items()}
        mine[COUNTS] *= replicas / local  # the parts of an instance add up to the whole step's
        return tuple(mine[name] for name in names)

    return parts.map(keep).unbatch().prefetch(2 * turns * local)


def _by_turn(value, plan: BatchPlan):
    """Returns rows [N, ...] as micro batches [turns x replicas, rows of one, ...]. A replica's rows follow
    each other in the batch."""
    sizes = plan.num_replicas, plan.num_accumulation_steps, plan.micro_batch_size
    rest = value.shape[1:]
    by_replica = tf.reshape(value, [*sizes, *rest])
    by_turn = tf.transpose(by_replica, [1, 0, *range(2, 3 + len(rest))])
    return tf.reshape(by_turn, [sizes[0] * sizes[1], sizes[2], *rest])


def _factors(config: Config, task: Task, rows: dict, parts: dict, plan: BatchPlan) -> tf.Tensor:
    """Returns the factors of the summed losses of each micro batch, float32 [micro batches, losses].

    global: 1 / weight of the step. local: 1 / weight of the micro batch, with --scale_loss also / replicas.
    """
    count = plan.num_replicas * plan.num_accumulation_steps

    def weights_of(batch):
        weights = task.weights(batch)
        return tf.stack([weights[name] for name in task.losses])

    if config.loss_normalization != "local":
        return tf.tile(tf.math.divide_no_nan(1.0, weights_of(rows))[None], [count, 1])
    asked = {name: value for name, value in parts.items() if name in rows}
    weights = tf.map_fn(weights_of, asked, fn_output_signature=tf.TensorSpec([len(task.losses)], tf.float32))
    weights += [task.local_epsilon[name] for name in task.losses]
    return tf.math.divide_no_nan(replica_step.local_factor(config, plan.num_replicas), weights)


def evaluation_batches(
    whole: Callable[[int], tf.data.Dataset], rows: int, micro_batch: int
) -> tf.data.Dataset:
    """Returns a set, repeated endlessly, in micro batches {feature: [micro_batch, ...]}; each pass is padded
    to whole device calls.

    Args:
      whole: rows of a batch -> the set once, its last batch filled up.
      rows: of a call of the devices, all replicas.
      micro_batch: rows.
    """
    return pipeline.fixed(pipeline.rebatched(whole(rows), micro_batch, drop_remainder=True).repeat())


def signature_of(dataset: tf.data.Dataset) -> dict[str, tf.TensorSpec]:
    """Returns {feature: shape and type} of the elements of a dataset."""
    return {name: tf.TensorSpec(spec.shape, spec.dtype, name) for name, spec in dataset.element_spec.items()}
