"""How long the program of a step waits for its batch: the host's part of a step."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import tensorflow as tf


class HostWait:
    """A sum of seconds that graphs add to.

    On GPUs the program runs ahead of the devices: what it waits while they still compute counts, too, so that
    the sum is an upper bound.
    """

    def __init__(self) -> None:
        with tf.device("CPU"):
            self._secs = tf.Variable(0.0, dtype=tf.float64, trainable=False)

    def timed(self, take: Callable[[], Any], after: Iterable[tf.Tensor]) -> Any:
        """Returns what `take` makes, of which the time is added; for graphs.

        Args:
          take: returns a batch of every replica.
          after: tensors of the step before: the clock starts once they are there.
        """
        with tf.device("CPU"), tf.control_dependencies(list(after)):
            began = tf.timestamp()
        with tf.control_dependencies([began]):
            batch = take()
        with tf.device("CPU"), tf.control_dependencies(tf.nest.flatten(batch, expand_composites=True)):
            self._secs.assign_add(tf.timestamp() - began)
        return batch

    def take_secs(self) -> float:
        """Returns the seconds since the last time that this was asked, and begins anew."""
        secs = float(self._secs.numpy())
        self._secs.assign(0.0)
        return secs
