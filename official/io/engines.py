"""Engines run the rounds of a job: in processes of this machine, or on the nodes of a Ray cluster.

A task is a function of a module and plain arguments. It may run in any process, on any machine that sees the
same files, and more than once: it reads files, writes its own whole (`official.io.writing`), and what it
writes depends on its arguments alone. So a lost task is simply run again, and the files of a job do not
depend on the engine.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Iterable, Iterator
from typing import Protocol

from official.io import processes
from official.io.errors import ConfigError

NAMES = ("local", "ray")
# Fields of a job, and flags, that choose its engine. The files of a job do not depend on them.
FIELDS = ("num_workers", "engine", "ray_address")
_BYTES_PER_WORKER = 16 << 20


@dataclasses.dataclass(frozen=True)
class Round:
    """Tasks that may run at the same time. A round begins when the one before it is done.

    Attributes:
      tasks: (function, argument, ...) each; they are taken from it one by one, shortly before they run.
      number: of the tasks.
      total_bytes: what `workers.report` adds up to.
      doing, items: words of the progress bar: "Tokenising", "documents".
      preload: module that all processes need; it is loaded once.
      bytes_per_worker: an engine that is not told how many processes to start, starts one for so many bytes,
        one a core at most.
    """

    tasks: Iterable[tuple]
    number: int
    total_bytes: float
    doing: str
    items: str
    preload: str
    bytes_per_worker: int = _BYTES_PER_WORKER


class Engine(Protocol):
    """An engine, which runs the tasks of a job.

    Attributes:
      num_workers: tasks that run at the same time, at most; None: as many as there are cores for.
    """

    @property
    def num_workers(self) -> int | None: ...

    def run(self, tasks: Round) -> None:
        """Runs the tasks of a round, the later ones after the earlier ones have begun.

        Raises:
          ConfigError: where a task was lost too often. What a task raises comes through as it is; the other
            tasks are stopped.
        """


class Choice(Protocol):
    """Fields of a job that choose its engine, by the flags' names."""

    @property
    def num_workers(self) -> int | None: ...
    @property
    def engine(self) -> str: ...
    @property
    def ray_address(self) -> str | None: ...


@dataclasses.dataclass(frozen=True)
class Local:
    """Runs tasks in processes of this machine; a single one in this process."""

    num_workers: int | None = None

    def run(self, tasks: Round) -> None:
        wanted = self.processes_for(tasks.total_bytes, tasks.bytes_per_worker)
        processes.run(tasks, min(wanted, tasks.number))

    def processes_for(self, total_bytes: float | None, bytes_per_worker: int = _BYTES_PER_WORKER) -> int:
        """Returns the number of processes for so much work, the most where None is known, if it comes in as
        many tasks."""
        most = cores() if total_bytes is None else 1 + int(total_bytes // bytes_per_worker)
        return self.num_workers or min(cores(), most)


def cores() -> int:
    """Returns the number of cores that this process may use."""
    return len(os.sched_getaffinity(0))


def check(choice: Choice) -> None:
    """Raises ConfigError where the flags of an engine do not go together."""
    if choice.engine not in NAMES:
        raise ConfigError(f"--engine={choice.engine} is unknown. Allowed: {', '.join(NAMES)}.")
    if choice.num_workers is not None and choice.num_workers < 1:
        raise ConfigError(f"--num_workers={choice.num_workers} is out of range. Allowed: 1 or more.")
    if choice.ray_address and choice.engine != "ray":
        raise ConfigError(f"--ray_address={choice.ray_address} needs --engine=ray.")


def has_others(choice: Choice, total_bytes: float | None) -> bool:
    """Tells whether a job has other processes work for it than the one that starts it; `total_bytes` as of
    `Local.processes_for`."""
    return choice.engine != "local" or Local(choice.num_workers).processes_for(total_bytes) > 1


def load_ahead(choice: Choice, preload: str, total_bytes: float | None = None) -> None:
    """Lets the processes of a job begin to load a module, `Round.preload`, while this one does so itself;
    nothing where the job will need no other process of this machine.

    Args:
      choice: of the engine.
      preload: name of the module.
      total_bytes: of the job; None: they are not known yet, and may be many.

    Raises:
      ConfigError: as `check` does.
    """
    check(choice)
    if choice.engine == "local" and has_others(choice, total_bytes):
        processes.load_ahead(preload)


@contextlib.contextmanager
def opened(choice: Choice) -> Iterator[Engine]:
    """Yields the engine of a job. Ray is reached, or started, by the first round, and left after the block.

    Raises:
      ConfigError: where the flags do not go together, or Ray is not installed.
    """
    check(choice)
    if choice.engine == "local":
        yield Local(choice.num_workers)
        return
    from official.io import ray_engine  # late: Ray is an extra

    with ray_engine.opened(choice.num_workers, choice.ray_address) as engine:
        yield engine
