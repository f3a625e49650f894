"""Batches for the devices, from files or random records; each host reads its own share."""

import contextlib
import dataclasses
import os
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from official.data import pipeline
from official.data.pipeline import TrainingOrder
from official.distribution import strategy as strategy_lib
from official.distribution.batch_plan import BatchPlan, Layout, Share, shares
from official.training.task import Dataset, Task

# -----------------------------------------------------------------------------------------------------------
# Page cache


def drop(paths: list[str]) -> int:
    """Drops local files from the page cache. Needs no privileges; other files stay.

    Returns:
      Number of dropped files; remote files, and systems without such a call, count as 0.
    """
    dropped = 0
    for path in paths if hasattr(os, "posix_fadvise") else ():
        # Some files are remote or missing, and some file systems have no page cache.
        with contextlib.suppress(OSError), open(path, "rb", buffering=0) as file:
            os.fsync(file)  # dirty pages cannot be dropped
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            dropped += 1
    return dropped


# -----------------------------------------------------------------------------------------------------------
# Batches


def training_batches(
    task: Task, plan: BatchPlan, order: TrainingOrder, strategy: tf.distribute.Strategy
) -> Iterator:
    """Returns endless batches of the training set in an order. Every host reads its own part, in batches of
    one replica."""

    def make(context: tf.distribute.InputContext) -> tf.data.Dataset:
        if plan.layout:
            return host_dataset(task, plan, plan.layout, order, context)
        host, hosts = context.input_pipeline_id, context.num_input_pipelines
        own = dataclasses.replace(order, host=host, num_hosts=hosts)
        return task.train_dataset(plan.train_batch_size, plan.replica_batch_size, own)

    return iter(strategy_lib.distribute(make, strategy))


def synthetic_batches(
    task: Task, replica_batch: int, strategy: tf.distribute.Strategy, for_evaluation: bool = False
) -> Iterator:
    """Returns endless batches of random records, `replica_batch` rows per replica, in the shape of training
    or evaluation batches."""
    make = lambda _: task.synthetic_dataset(replica_batch, for_evaluation)
    return iter(strategy_lib.distribute(make, strategy))


def whole_set(dataset: Dataset, plan: BatchPlan, strategy: tf.distribute.Strategy) -> Any:
    """Returns one pass over a set, for `strategy.batches`: global batches padded to one shape, cut into one
    batch per replica and sharded among the hosts."""

    def host_dataset(context: tf.distribute.InputContext) -> tf.data.Dataset:
        batches = dataset(plan.eval_batch_size).rebatch(plan.replica_eval_batch_size, drop_remainder=True)
        return batches.shard(context.num_input_pipelines, context.input_pipeline_id)

    return strategy_lib.distribute(host_dataset, strategy)


# -----------------------------------------------------------------------------------------------------------
# Resharding: a run resumes with another number of workers than its layout


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
    join = lambda *some: {name: tf.concat([part[name] for part in some], axis=0) for name in some[0]}
    steps = parts[0] if len(parts) == 1 else tf.data.Dataset.zip(tuple(parts)).map(join)
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
