"""Memory and CPU time of a process and all that it has started, and memory over time."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from typing import NamedTuple

PERIOD_SECS = 0.2
_PAGE = os.sysconf("SC_PAGE_SIZE")
_TICKS = os.sysconf("SC_CLK_TCK")
_WINDOW_SECS = 20.0


class Sample(NamedTuple):
    """Resident memory at a moment of the monotonic clock."""

    at: float
    memory_bytes: int


class Peaks(NamedTuple):
    """Peak memory in two windows of equal length: the last one of a load, and the one before it."""

    window_secs: float
    before_bytes: int
    last_bytes: int

    @property
    def growth(self) -> float | None:
        """Relative growth of the last peak over the one before: 0.05 is 5 %; None without an earlier
        sample."""
        return self.last_bytes / self.before_bytes - 1 if self.before_bytes else None


def processes(root: int) -> list[int]:
    """Returns the number of a process and those of all that it has started and that still run."""
    found = [root]
    for process in found:  # grows meanwhile
        with contextlib.suppress(OSError):
            for thread in os.listdir(f"/proc/{process}/task"):
                with open(f"/proc/{process}/task/{thread}/children", encoding="ascii") as file:
                    found += map(int, file.read().split())
    return found


def resident_bytes(root: int) -> int:
    """Returns the resident memory of a process and its descendants, each one's added up; 0 for one that has
    ended."""
    pages = 0
    for process in processes(root):
        with contextlib.suppress(OSError), open(f"/proc/{process}/statm", encoding="ascii") as file:
            pages += int(file.read().split()[1])
    return pages * _PAGE


def cpu_secs(root: int) -> float:
    """Returns the CPU time of a process and its running descendants so far."""
    ticks = 0
    for process in processes(root):
        with contextlib.suppress(OSError), open(f"/proc/{process}/stat", encoding="utf-8") as file:
            values = file.read().rpartition(")")[2].split()  # the name before may have blanks
            ticks += int(values[11]) + int(values[12])
    return ticks / _TICKS


class Sampler:
    """A thread that notes the memory of a process while this context lasts.

    Attributes:
      samples: what it has noted, in the order of time.
    """

    def __init__(self, root: int):
        self.samples: list[Sample] = []
        self._root, self._ended = root, threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        while True:
            self.samples.append(Sample(time.monotonic(), resident_bytes(self._root)))
            if self._ended.wait(PERIOD_SECS):
                return

    def __enter__(self) -> Sampler:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()


def peaks(samples: list[Sample], end: float, secs: float) -> Peaks:
    """Returns the peaks of the last 20 seconds of a load and of the 20 before.

    Args:
      samples: one or more.
      end: of the load, on the monotonic clock.
      secs: how long it took; of less than 60 seconds two thirds are taken, in equal parts.
    """
    window = min(_WINDOW_SECS, secs / 3)
    parts: tuple[list[int], list[int]] = ([], [])
    for sample in samples:
        ago = end - sample.at
        if 0 <= ago < 2 * window:
            parts[ago < window].append(sample.memory_bytes)
    return Peaks(window, *(max(part, default=0) for part in parts))
