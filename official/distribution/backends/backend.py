"""Interface of a back end, and the functions that most of them share."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import tensorflow as tf

from official.config import Config

HostDataset = Callable[[tf.distribute.InputContext], tf.data.Dataset]


def host_batches(host_dataset: HostDataset, strategy: tf.distribute.Strategy) -> tf.data.Dataset:
    """Returns this host's dataset itself.

    TensorFlow would put iterators for devices behind it that are autotuned whatever the dataset's options
    say, and that may take as long to end as they have lived (TensorFlow 2.15.1, Model::OptimizeLoop), a
    minute at most. Batches are small here: what they gain by being on the device beforehand cannot be seen in
    a step.
    """
    return host_dataset(input_context(strategy))


def deal_out(iterator: Iterator, strategy: tf.distribute.Strategy) -> Any:
    """Returns the next batches of the host's dataset, one for every replica of this process."""
    return strategy.experimental_distribute_values_from_function(lambda _: next(iterator))


def input_context(strategy: tf.distribute.Strategy) -> tf.distribute.InputContext:
    """Returns the context of this process: its number, in the order of the replicas, and the number of
    processes."""
    replicas: list[int] = []

    def take_part(context: tf.distribute.ReplicaContext) -> int:
        replicas.append(context.replica_id_in_sync_group)
        return 0

    strategy.experimental_distribute_values_from_function(take_part)
    return tf.distribute.InputContext(
        strategy.num_replicas_in_sync // len(replicas),
        replicas[0] // len(replicas),
        strategy.num_replicas_in_sync,
    )


@dataclasses.dataclass(frozen=True)
class Backend:
    """A kind of devices: the functions that find and use them.

    Attributes:
      strategies: the kinds of strategies that are its own.
      make_strategy: config -> the strategy; raises ConfigError where a device is missing, PeerError where a
        process is.
      num_replicas: config -> the replicas that a run would have, as far as this machine can know before it
        connects to anything; raises ConfigError where it cannot.
      distribute: (host dataset, strategy) -> the batches of every replica, to be iterated over.
      next_batch: (iterator of them, strategy) -> the next batch of every replica; in graphs, too.
      is_chief: strategy -> whether this process writes files and talks to people.
      has_peers: whether other processes take part, and may be lost.
      devices: strategy -> the names of the devices that it computes on.
      noticing_lost_peers: strategy -> a context that raises PeerError where one is.
      note_passed: strategy -> None; notes that this process has come to a point that all pass together.
    """

    strategies: tuple[type, ...]
    make_strategy: Callable[[Config], tf.distribute.Strategy]
    num_replicas: Callable[[Config], int]
    distribute: Callable[[HostDataset, tf.distribute.Strategy], Iterable] = host_batches
    next_batch: Callable[[Iterator, tf.distribute.Strategy], Any] = deal_out
    is_chief: Callable[[tf.distribute.Strategy], bool] = lambda strategy: True
    has_peers: bool = False
    devices: Callable[[Any], Iterable[str]] = lambda strategy: strategy.extended.worker_devices
    noticing_lost_peers: Callable[[tf.distribute.Strategy], contextlib.AbstractContextManager] = (
        contextlib.nullcontext
    )
    note_passed: Callable[[tf.distribute.Strategy], None] = lambda strategy: None
