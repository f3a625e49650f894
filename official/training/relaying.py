"""Reads the data shards of a run that continues with another number of workers."""

from __future__ import annotations

import dataclasses

import tensorflow as tf

from official.data import pipeline
from official.data.pipeline import TrainingOrder
from official.distribution.batch_plan import BatchPlan, Layout, Share, shares
from official.training.task import Task


def host_dataset(
    task: Task, plan: BatchPlan, layout: Layout, order: TrainingOrder, context: tf.distribute.InputContext
) -> tf.data.Dataset:
    """Returns the batches of one host, one per replica, from the rows of its micro batches of the layout.

    A host reads only the files of the workers whose micro batches it computes. Where several hosts share the
    micro batches of one worker, each reads all of that worker's files and drops the rows of the others.
    """
    host, hosts = context.input_pipeline_id, context.num_input_pipelines
    own = dataclasses.replace(order, num_hosts=layout.workers, reader=host)
    parts = [_part(task, layout, own, share) for share in shares(layout, host, hosts)]
    steps = parts[0] if len(parts) == 1 else tf.data.Dataset.zip(tuple(parts)).map(_joined)
    batches = pipeline.rebatched(steps, plan.replica_batch_size, drop_remainder=True)
    return pipeline.fixed(batches.prefetch(pipeline.CALLS))


def _part(task: Task, layout: Layout, order: TrainingOrder, share: Share) -> tf.data.Dataset:
    """Returns the rows of a share of one worker's micro batches in the layout, one element per step."""
    rows = layout.train_batch_size
    own = dataclasses.replace(order, host=share.worker)
    batches = task.train_dataset(rows, rows // layout.num_replicas, own)
    steps = pipeline.rebatched(batches, rows // layout.workers, drop_remainder=True)
    micro = rows // layout.micro_batches
    first, last = share.first * micro, share.last * micro
    return steps.map(lambda step: {name: value[first:last] for name, value in step.items()})


def _joined(*parts: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
    return {name: tf.concat([part[name] for part in parts], axis=0) for name in parts[0]}
