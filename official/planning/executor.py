"""How long operations take that wait for each other and share a machine's cores.

As TensorFlow's executor runs a graph on CPUs: an operation starts when those before it are done, first ready,
first run; as many run at once as there are threads for it; what runs at once shares the cores.
"""

from __future__ import annotations

import collections
from collections.abc import Sequence
from typing import NamedTuple


class Job(NamedTuple):
    """An operation.

    Attributes:
      secs: it takes alone.
      cores: of the machine that it keeps busy meanwhile, at least 1 for what computes at all.
      part: what its time counts as.
      after: numbers of the jobs before it, each smaller than its own.
    """

    secs: float
    cores: float
    part: str
    after: tuple[int, ...]


_DONE = 1e-12  # seconds that are none


def run(jobs: Sequence[Job], cores: int) -> dict[str, float]:
    """Returns the seconds that each part takes of the time of all jobs; their sum is that time.

    Where several jobs run at once, the time is divided among them as the cores are.

    Args:
      jobs: in an order in which they can run.
      cores: of the machine, and jobs that run at once at most.
    """
    queue = _Queue(jobs)
    running: dict[int, float] = {}  # job -> seconds that it would still take alone
    parts: dict[str, float] = collections.defaultdict(float)
    while queue.ready or running:
        while queue.ready and len(running) < cores:
            number = queue.ready.popleft()
            running[number] = jobs[number].secs
            if running[number] <= _DONE:  # takes no thread
                del running[number]
                queue.finish(number)
        given = shares({number: jobs[number].cores for number in running}, cores)
        speeds = {number: given[number] / jobs[number].cores for number in running}
        passed = min((running[number] / speeds[number] for number in running), default=0.0)
        for number in list(running):
            parts[jobs[number].part] += passed * given[number] / sum(given.values())
            running[number] -= passed * speeds[number]
            if running[number] <= _DONE:
                del running[number]
                queue.finish(number)
    return dict(parts)


class _Queue:
    """The jobs whose turn it is, first ready, first run."""

    def __init__(self, jobs: Sequence[Job]):
        self._followers: dict[int, list[int]] = collections.defaultdict(list)
        self._waiting = [len(set(job.after)) for job in jobs]
        for number, job in enumerate(jobs):
            for first in set(job.after):
                self._followers[first].append(number)
        self.ready = collections.deque(number for number, count in enumerate(self._waiting) if not count)

    def finish(self, number: int) -> None:
        """Makes ready what waited for a job alone."""
        for follower in self._followers[number]:
            self._waiting[follower] -= 1
            if not self._waiting[follower]:
                self.ready.append(follower)


def shares(wanted: dict[int, float], cores: float) -> dict[int, float]:
    """Returns how many cores each job gets: what it wants, or an equal share of what the others leave.

    Args:
      wanted: {job: cores}.
      cores: that there are.
    """
    given: dict[int, float] = {}
    left = float(cores)
    for place, number in enumerate(sorted(wanted, key=lambda number: wanted[number])):
        given[number] = min(wanted[number], left / (len(wanted) - place))
        left -= given[number]
    return given
