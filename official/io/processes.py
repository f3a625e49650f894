"""Runs tasks in this process, or in several of this machine."""

from __future__ import annotations

import contextlib
import itertools
import multiprocessing
import os
import signal
import tempfile
import threading
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import forkserver, util
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING

from official.io import signals, speeds, streams, workers
from official.io.errors import ConfigError

if TYPE_CHECKING:
    from official.io.bars import ProgressBar
    from official.io.engines import Round

_REFRESH_SECS = 0.5
_WAITING_PER_PROCESS = 4  # tasks that are submitted at once: none has to wait for the next one


def run(tasks: Round, number: int) -> None:
    """Runs the tasks of a round, as `engines.Engine.run` does.

    Args:
      tasks: of the round.
      number: processes; with 1, or 0, it is this one.
    """
    from official.io import bars  # late: the processes that are started here have none

    timed = speeds.timed(speeds.TimedRound(tasks.doing, tasks.items, "local", max(number, 1)))
    with timed as found, bars.new_bar(tasks.total_bytes, tasks.doing, tasks.items) as bar:
        if number <= 1:
            with workers.reporting_to(bar.add), workers.finishing_behind():
                for function, *arguments in tasks.tasks:
                    function(*arguments)
        else:
            _run_in_processes(tasks, number, bar)
        found.bytes, found.items = bar.n, bar.items


def _forking(preload: str) -> multiprocessing.context.ForkServerContext:
    """Returns the context of processes that have loaded a module: of all rounds the one of the first."""
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
    """Returns the folder of temporary files, or another one where its path has more than `longest` bytes: a
    socket below it has a path of 107 at most."""
    asked = tempfile.gettempdir()
    if len(os.fsencode(asked)) <= longest:
        return asked
    usable = (each for each in ("/tmp", "/var/tmp", "/dev/shm") if os.access(each, os.W_OK | os.X_OK))
    return next(usable, asked)


def load_ahead(preload: str) -> None:
    """Starts the process that the processes of all rounds are forked from, which loads a module while this
    one goes on. It ends when this process does."""
    _forking(preload)
    if threading.current_thread() is not threading.main_thread():  # signals are the main one's
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # inherited: Ctrl-C is told by this process alone
    try:
        forkserver.ensure_running()
    finally:
        signal.signal(signal.SIGINT, before)


def _run_in_processes(tasks: Round, number: int, bar: ProgressBar) -> None:
    context = _forking(tasks.preload)
    counters = context.Array("d", 2)
    # Only this process holds the end that is written to: the others read its end when this process does,
    # whatever ended it.
    read_end, write_end = context.Pipe(duplex=False)
    try:
        pool = ProcessPoolExecutor(
            number, mp_context=context, initializer=_begin, initargs=(counters, read_end)
        )
        with write_end, read_end, pool:
            try:
                _watch(pool, iter(tasks.tasks), number * _WAITING_PER_PROCESS, counters, bar)
            except BaseException:
                # Without this, leaving the pool waits for the tasks in work.
                for process in multiprocessing.active_children():
                    process.terminate()
                raise
    except BrokenProcessPool:
        raise ConfigError(
            f"a worker process was killed, perhaps for want of memory. Lower --num_workers={number}; the"
            " same command goes on with what is not done."
        ) from None


def _watch(
    pool: ProcessPoolExecutor, tasks: Iterator[tuple], window: int, counters, bar: ProgressBar
) -> None:
    """Submits tasks, `window` of them at once, and moves the bar until all are done."""
    left: set[Future] = set()
    while True:
        left |= {pool.submit(*task) for task in itertools.islice(tasks, window - len(left))}
        if not left:
            return
        done, left = wait(left, timeout=_REFRESH_SECS, return_when=FIRST_COMPLETED)
        bar.move_to(*counters)
        for future in done:
            future.result()


def _begin(counters, read_end: Connection) -> None:
    """Sets up a process of the pool: it counts, dies on signals without a word, and does not outlive the one
    that began the job."""

    def count(num_bytes: float, items: int) -> None:
        with counters.get_lock():
            counters[0] += num_bytes
            counters[1] += items

    streams.settle()
    workers.report_to(count)
    for number in signals.handled():
        signal.signal(number, signal.SIG_DFL)
    threading.Thread(target=_die_with, args=(read_end,), daemon=True).start()


def _die_with(read_end: Connection) -> None:
    """Ends this process when the pipe's other end is closed. The parent tells nothing: it is a fork server,
    and lives on as long as its children.
    """
    with contextlib.suppress(EOFError, OSError):
        read_end.recv_bytes()
    os._exit(1)  # pylint: disable=protected-access
