"""Signals of this process, and collective operations of all processes of a run."""

from __future__ import annotations

import contextlib
import signal
import zlib
from collections.abc import Callable, Iterator, Mapping
from typing import TypeVar

import tensorflow as tf
from absl import logging

from official.io import signals
from official.io.errors import ConfigError

T = TypeVar("T")


class ProcessGroup:
    """Collective operations of a run's processes. All processes call each method, at the same point.

    Attributes:
      signal: number of the signal that this process has received; None without one.
    """

    def __init__(self, add: Callable[[tf.Tensor], tf.Tensor] | None = None, num_replicas: int = 1):
        """Makes the group.

        Args:
          add: tensor -> its sum over all replicas of all processes; None for a single process.
          num_replicas: number of replicas of all processes.
        """
        self.signal: int | None = None
        self._add, self._num_replicas = add, num_replicas

    @contextlib.contextmanager
    def noting_signals(self) -> Iterator[None]:
        """Notes a signal in its block, instead of ending with it. Outside of the main thread, where signals
        cannot be handled, it does nothing."""
        with signals.watching(), signals.noting(self._note):
            yield

    def _note(self, number: int) -> None:
        self.signal = number
        logging.warning("%s: saving, then stopping. A second one stops at once.", signal.Signals(number).name)

    def mean(self, value: float) -> float:
        """Returns the mean of the processes' values in float32, the same in all of them."""
        if self._add is None:
            return value
        return float(self._add(tf.constant(value, tf.float32))) / self._num_replicas

    def barrier(self) -> None:
        """Waits until all processes have called this."""
        self.mean(0.0)

    def all(self, holds: bool) -> bool:
        """Tells whether something holds in all processes."""
        return self.mean(float(holds)) == 1.0

    def differing(self, values: Mapping[str, object]) -> list[str]:
        """Returns the names of values that are not the same in all processes as in this one.

        Compares the values' checksums with the sum over all processes, in float64, which is exact for two
        million replicas. If a value differs, at least one process notices. All processes pass the same number
        of values, in the same order.
        """
        if self._add is None:
            return []
        marks = [float(zlib.crc32(repr(value).encode())) for value in values.values()]
        sums = self._add(tf.constant(marks, tf.float64)).numpy().tolist()
        return [name for name, mark, total in zip(values, marks, sums) if total != mark * self._num_replicas]

    def check_same_step(self, step: int, model_dir: str) -> None:
        """Raises ConfigError if the processes start from different steps, since they do not share a
        folder."""
        if self.differing({"step": step}):
            raise ConfigError(
                f"--model_dir={model_dir} is not the same for all workers: this one is at"
                f" step {step}, others are not. Use a folder that all of them share."
            )

    def poll(self) -> None:
        """Raises Interrupted in all processes once one of them has received a signal."""
        received = self.mean(float(self.signal is not None)) > 0
        if received:
            self.signal = self.signal or signal.SIGTERM
            raise signals.Interrupted(self.signal)

    def interruptible(self, work: Callable[[], T]) -> T:
        """Returns the result of `work`, which only reads files, so a signal may interrupt it.

        Raises:
          Interrupted: in all processes, if a signal interrupted one of them.
        """
        made: list[T] = []
        try:
            with signals.raising():
                made.append(work())
        except signals.Interrupted as error:  # raised after the other processes know
            self.signal = error.signal
        self.poll()
        return made[0]
