"""Engines run the rounds of a job: in processes of this machine, or on the nodes of a Ray cluster."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import multiprocessing
import os
import signal
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import forkserver, util
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any, Protocol

from official.io import signals, streams
from official.io.errors import ConfigError, check_counts, check_installed, check_one_of

if TYPE_CHECKING:
    from official.io.bars import ProgressBar


# -----------------------------------------------------------------------------------------------------------
# Progress of a task


_sink: Callable[[float, int], None] | None = None  # receiver of the reports of this process


def report(num_bytes: float, items: int) -> None:
    """Reports progress from a task: additional bytes of text, and items of the kind that the bar counts."""
    if _sink is not None:
        _sink(num_bytes, items)


@contextlib.contextmanager
def reporting_to(sink: Callable[[float, int], None]) -> Iterator[None]:
    """Sends the reports of this process to `sink` in its block."""
    global _sink
    before, _sink = _sink, sink
    try:
        yield
    finally:
        _sink = before


# -----------------------------------------------------------------------------------------------------------
# Processes of this machine


def _forking(preload: str) -> multiprocessing.context.ForkServerContext:
    """Returns the multiprocessing context whose processes have preloaded a module, that of the first
    round."""
    # Forked from a process that loads modules and runs nothing: a fork of one that has run an operation of
    # TensorFlow hangs in the next.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([preload])
    before, tempfile.tempdir = tempfile.tempdir, folder_for_sockets(70)  # their paths are 33 bytes longer
    try:
        util.get_temp_dir()  # made once, for all sockets of this process
    finally:
        tempfile.tempdir = before
    return context


def folder_for_sockets(longest: int) -> str:
    """Returns the folder of temporary files, or another one if its path has more than `longest` bytes: the
    path of a socket below it is limited to 107 bytes."""
    asked = tempfile.gettempdir()
    if len(os.fsencode(asked)) <= longest:
        return asked
    usable = (each for each in ("/tmp", "/var/tmp", "/dev/shm") if os.access(each, os.W_OK | os.X_OK))
    return next(usable, asked)


def _run_in_processes(tasks: Round, number: int, bar: ProgressBar) -> None:
    context = _forking(tasks.preload)
    counters = context.Array("d", 2)
    # Only this process holds the write end of the pipe, so the others read end-of-file when it ends in any
    # way.
    read_end, write_end = context.Pipe(duplex=False)
    try:
        pool = ProcessPoolExecutor(
            number, mp_context=context, initializer=_begin, initargs=(counters, read_end)
        )
        with write_end, read_end, pool:
            try:
                window = number * 4  # tasks submitted ahead, so that no process waits for its next one
                watch(
                    pool.submit,
                    iter(tasks.tasks),
                    lambda: window,
                    show=lambda: bar.move_to(counters[0], counters[1]),
                )
            except BaseException:
                # Without this, leaving the pool would wait for the running tasks.
                for process in multiprocessing.active_children():
                    process.terminate()
                raise
    except BrokenProcessPool:
        raise ConfigError(
            f"a worker process was killed, perhaps because memory ran out. Lower --num_workers={number}; the"
            " same command resumes the job."
        ) from None


def watch(
    submit: Callable[..., Future],
    tasks: Iterator[tuple],
    window: Callable[[], int],
    take: Callable[[Any], None] = lambda result: None,
    show: Callable[[], None] = lambda: None,
) -> None:
    """Submits tasks, up to `window` at once, until all are done; passes their results to `take`, and calls
    `show` periodically. Raises the error of the first task that fails."""
    left: set[Future] = set()
    while True:
        left |= {submit(*task) for task in itertools.islice(tasks, max(window() - len(left), 0))}
        if not left:
            return
        done, left = wait(left, timeout=0.5, return_when=FIRST_COMPLETED)
        show()
        for future in done:
            take(future.result())


def _begin(counters, read_end: Connection) -> None:
    """Sets up a process of the pool: it reports progress, dies silently on signals, and does not outlive the
    process that began the job."""

    def count(num_bytes: float, items: int) -> None:
        with counters.get_lock():
            counters[0] += num_bytes
            counters[1] += items

    streams.settle()
    global _sink
    _sink = count
    for number in signals.handled():
        signal.signal(number, signal.SIG_DFL)
    threading.Thread(target=_die_with, args=(read_end,), daemon=True).start()


def _die_with(read_end: Connection) -> None:
    """Ends this process when the pipe's other end is closed. Its parent is a fork server, which lives as long
    as its children and cannot be watched instead.
    """
    with contextlib.suppress(EOFError, OSError):
        read_end.recv_bytes()
    os._exit(1)  # pylint: disable=protected-access


# -----------------------------------------------------------------------------------------------------------
# Engines
#
# A task is a module-level function with plain arguments. It may run in any process, on any machine with the
# same files, and more than once: it reads files, writes its own atomically (`official.io.writing`), and its
# output depends only on its arguments. So a lost task is run again, and the files of a job do not depend on
# the engine.


NAMES = ("local", "ray")
# Fields of a job, and flags, that choose its engine. The files of a job do not depend on them.
FIELDS = ("num_workers", "engine", "ray_address")
_BYTES_PER_WORKER = 16 << 20


@dataclasses.dataclass(frozen=True)
class Round:
    """Tasks that may run concurrently. A round begins when the previous one is done.

    Attributes:
      tasks: (function, argument, ...) of each task; an iterable that is consumed shortly before they run.
      number: of the tasks.
      total_bytes: sum of the bytes that tasks report.
      doing, items: words of the progress bar: "Tokenising", "documents".
      preload: module that all processes need; it is loaded once.
      bytes_per_worker: without a given number of processes, an engine starts one per so many bytes, at most
        one per core.
    """

    tasks: Iterable[tuple]
    number: int
    total_bytes: float
    doing: str
    items: str
    preload: str
    bytes_per_worker: int = _BYTES_PER_WORKER


Choice = Any  # has FIELDS: a job, or the flags


def flags_of(job: Any) -> dict:
    """Returns the fields of a job, a dataclass, that its output depends on."""
    others = ("output_dir", "overwrite", *FIELDS)
    return {name: value for name, value in dataclasses.asdict(job).items() if name not in others}


class Engine(Protocol):
    """An engine, which runs the tasks of a job."""

    num_workers: int | None  # maximum number of concurrent tasks; None: one per core

    def run(self, tasks: Round) -> None:
        """Runs the tasks of a round, started in their order.

        Raises:
          ConfigError: if a task was lost too often. Errors of a task are raised unchanged; the other tasks
            are stopped.
        """


@dataclasses.dataclass
class Local:
    """Runs tasks in processes of this machine; a single one in this process."""

    num_workers: int | None = None

    def run(self, tasks: Round) -> None:
        from official.io import bars  # late: the processes that are started here have none

        wanted = self.processes_for(tasks.total_bytes, tasks.bytes_per_worker)
        number = max(min(wanted, tasks.number), 1)
        with bars.of_round(tasks, "local", number) as bar:
            if number > 1:
                _run_in_processes(tasks, number, bar)
            else:
                with reporting_to(bar.add):
                    for function, *arguments in tasks.tasks:
                        function(*arguments)

    def processes_for(self, total_bytes: float | None, bytes_per_worker: int = _BYTES_PER_WORKER) -> int:
        """Returns the number of processes for a number of bytes (None: the maximum) in so many tasks."""
        most = cores() if total_bytes is None else 1 + int(total_bytes // bytes_per_worker)
        return self.num_workers or min(cores(), most)


def cores() -> int:
    """Returns the number of cores that this process may use."""
    return len(os.sched_getaffinity(0))


def check(choice: Choice) -> None:
    """Raises ConfigError if the flags of an engine contradict each other."""
    check_one_of(f"--engine={choice.engine}", choice.engine, NAMES)
    check_counts(num_workers=choice.num_workers)
    if choice.ray_address and choice.engine != "ray":
        raise ConfigError(f"--ray_address={choice.ray_address} needs --engine=ray.")


def has_others(choice: Choice, total_bytes: float | None) -> bool:
    """Tells whether a job uses other processes than the one that starts it; `total_bytes` as of
    `Local.processes_for`."""
    return choice.engine != "local" or Local(choice.num_workers).processes_for(total_bytes) > 1


def load_ahead(choice: Choice, preload: str, total_bytes: float | None = None) -> None:
    """Starts loading a module, `Round.preload`, in the processes of a job while this one loads it, too; does
    nothing if the job needs no other process of this machine.

    Args:
      choice: of the engine.
      preload: name of the module.
      total_bytes: of the job; None: they are not known yet, and may be many.

    Raises:
      ConfigError: as `check` does.
    """
    check(choice)
    if choice.engine != "local" or not has_others(choice, total_bytes):
        return
    _forking(preload)
    if threading.current_thread() is not threading.main_thread():  # signals are the main one's
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # inherited: only this process reports Ctrl-C
    try:
        forkserver.ensure_running()  # which ends when this process does
    finally:
        signal.signal(signal.SIGINT, before)


@contextlib.contextmanager
def opened(choice: Choice) -> Iterator[Engine]:
    """Yields the engine of a job. The first round connects to Ray or starts it; the block's end disconnects.

    Raises:
      ConfigError: if the flags contradict each other, or Ray is not installed.
    """
    check(choice)
    if choice.engine == "local":
        yield Local(choice.num_workers)
        return
    from official.io import ray_engine  # late: Ray is an extra

    check_installed("--engine=ray", "ray", "ray", "psutil")
    with contextlib.ExitStack() as stack:  # of the connection, and of a cluster that is started for it
        yield ray_engine.Ray(choice.num_workers, choice.ray_address, stack)
