"""Time that a step's program waits for its batch: the host's part of a step."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import tensorflow as tf


class HostWait:
    """A sum of seconds that graphs add to.

    On GPUs the program runs ahead of the devices: waiting while they still compute counts, too, so that the
      sum
    is an upper bound.
    """

    def __init__(self) -> None:
        with tf.device("CPU"):
            self._secs = tf.Variable(0.0, dtype=tf.float64, trainable=False)

    def timed(self, take: Callable[[], Any], after: Iterable[tf.Tensor]) -> Any:
        """Returns the batch of `take` and adds its time to the sum; for use in graphs.

        Args:
          take: returns the batch of every replica.
          after: tensors of the step before; the clock starts once they are computed.
        """
        with tf.device("CPU"), tf.control_dependencies(list(after)):
            began = tf.timestamp()
        with tf.control_dependencies([began]):
            batch = take()
        with tf.device("CPU"), tf.control_dependencies(tf.nest.flatten(batch, expand_composites=True)):
            self._secs.assign_add(tf.timestamp() - began)
        return batch

    def take_secs(self) -> float:
        """Returns the seconds summed since the last call, and resets the sum."""
        secs = float(self._secs.numpy())
        self._secs.assign(0.0)
        return secs
