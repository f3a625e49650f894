"""Signals of this process, and collective operations of all processes of a run."""

from __future__ import annotations

import contextlib
import signal
import zlib
from collections.abc import Callable, Mapping
from typing import TypeVar

import tensorflow as tf
from absl import logging

from official.io import signals
from official.io.errors import ConfigError

T = TypeVar("T")


class Interruption:
    """Context manager that notes a signal instead of ending with it. `signal` is its number, or None.

    Outside of the main thread, where signals cannot be handled, it does nothing.
    """

    def __init__(self):
        self.signal: int | None = None
        self._entered = contextlib.ExitStack()

    def __enter__(self):
        self._entered.enter_context(signals.watching())
        self._entered.enter_context(signals.noting(self._note))
        return self

    def __exit__(self, *_):
        self._entered.close()

    def _note(self, number: int) -> None:
        self.signal = number
        logging.warning("%s: saving, then stopping. A second one stops at once.", signal.Signals(number).name)


class ProcessGroup:
    """Collective operations of a run's processes. All processes call each method, at the same point."""

    def __init__(
        self,
        interruption: Interruption,
        add: Callable[[tf.Tensor], tf.Tensor] | None = None,
        num_replicas: int = 1,
    ):
        """Makes the group.

        Args:
          interruption: signals of this process.
          add: tensor -> its sum over all replicas of all processes; None for a single process.
          num_replicas: number of replicas of all processes.
        """
        self.interruption = interruption
        self._add, self._num_replicas = add, num_replicas

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
        received = self.mean(float(self.interruption.signal is not None)) > 0
        if received:
            self.interruption.signal = self.interruption.signal or signal.SIGTERM
            raise signals.Interrupted(self.interruption.signal)

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
            self.interruption.signal = error.signal
        self.poll()
        return made[0]
