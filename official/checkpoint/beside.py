"""Work that a thread does beside the training, one piece at a time."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import threading
import time
from collections.abc import Callable

from official.io import signals


@dataclasses.dataclass
class SaveTimes:
    """Number and times of the checkpoints of a run.

    Attributes:
      saves: number of those begun.
      wait_secs: in which the training stood still: for copies of its state, and for the checkpoint before.
      write_secs: from the first byte of a checkpoint to its last one on the disk.
    """

    saves: int = 0
    wait_secs: float = 0.0
    write_secs: float = 0.0


class Beside:
    """A thread for one piece of work at a time. What goes wrong in it is raised to who asks next, once."""

    def __init__(self) -> None:
        self._thread: concurrent.futures.ThreadPoolExecutor | None = None
        self._going_on: concurrent.futures.Future | None = None

    def begin(self, work: Callable[[], None]) -> None:
        """Waits for the work before, and begins this one. Raises what that one has raised."""
        self.wait()
        # Python waits for its end before it exits.
        self._thread = self._thread or concurrent.futures.ThreadPoolExecutor(1, "checkpoint")
        self._going_on = self._thread.submit(_to_the_end, work)

    def check(self) -> None:
        """Raises what the work has raised, if it is over; waits for nothing."""
        if self._going_on is not None and self._going_on.done():
            self.wait()

    def wait(self) -> None:
        """Returns once no work goes on. Raises what it has raised."""
        going_on, self._going_on = self._going_on, None
        if going_on is None:
            return
        try:
            going_on.result()
        except BaseException:
            # A signal has cut the waiting, not the work: it is still to be waited for.
            if not going_on.done():
                self._going_on = going_on
            raise


def _to_the_end(work: Callable[[], None]) -> None:
    """Does the work; a signal that ends the process lets it finish."""
    over = threading.Event()
    with signals.waited_for(over.wait):
        try:
            work()
        finally:
            over.set()


class Stopwatch:
    """Context manager that adds the seconds of its block to an attribute of `SaveTimes`."""

    def __init__(self, times: SaveTimes, name: str):
        self._times, self._name = times, name

    def __enter__(self) -> None:
        self._since = time.monotonic()

    def __exit__(self, *_: object) -> None:
        secs = time.monotonic() - self._since
        setattr(self._times, self._name, getattr(self._times, self._name) + secs)
