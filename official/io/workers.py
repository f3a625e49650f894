"""Runs the tasks of a job in this process or in several, with a progress bar that they all move."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Iterable
from concurrent.futures import FIRST_EXCEPTION, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.connection import Connection

from official.io import speeds
from official.io.bars import Bar
from official.io.errors import ConfigError

_REFRESH_SECS = 0.5
_REFRESH_OF_A_LOG_SECS = 30.0  # where the bar is no terminal's: a line now and then
_counters = None  # in a process of the pool: what `report` adds to
_bar = None  # without a pool: what `report` moves


def report(num_bytes: float, items: int) -> None:
    """Called by a task now and then: it has done so many more bytes of text, and items of the kind that the
    bar counts."""
    if _counters is not None:
        with _counters.get_lock():
            _counters[0] += num_bytes
            _counters[1] += items
    elif _bar is not None:
        _move(_bar, _bar.n + num_bytes, _bar.items + items)


def run_all(
    tasks: Iterable[tuple], num_workers: int, total_bytes: float, doing: str, items: str, preload: str
) -> None:
    """Runs tasks, the later ones after the earlier ones have begun.

    Args:
      tasks: (function, argument, ...) each; for several processes they are sent, so functions of modules and
        plain values.
      num_workers: processes; with 1, or one task, it is this one.
      total_bytes: what `report` adds up to.
      doing, items: words of the progress bar: "Tokenising", "documents".
      preload: module that all processes need; it is loaded once.

    Raises:
      ConfigError: where a process was killed. What a task raises comes through; the others are stopped.
    """
    tasks = list(tasks)
    used = max(1, min(num_workers, len(tasks)))
    timed = speeds.timed(speeds.TimedRound(doing, items, "local", used))
    with timed as found, _new_bar(total_bytes, doing, items) as bar:
        if used == 1:
            _run_here(tasks, bar)
        else:
            _run_in_processes(tasks, used, bar, preload)
        found.bytes, found.items = bar.n, bar.items


def _run_here(tasks: list[tuple], bar: Bar) -> None:
    global _bar
    _bar = bar
    try:
        for function, *arguments in tasks:
            function(*arguments)
    finally:
        _bar = None


def _run_in_processes(tasks: list[tuple], workers: int, bar: Bar, preload: str) -> None:
    # Forked from a process that loads TensorFlow and runs nothing: a fork of one that has run an operation
    # hangs in the next.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([preload])
    counters = context.Array("d", 2)
    # Only this process holds the end that is written to: the others read its end when this process does,
    # whatever ended it.
    read_end, write_end = context.Pipe(duplex=False)
    try:
        with (
            write_end,
            read_end,
            ProcessPoolExecutor(
                workers, mp_context=context, initializer=_begin, initargs=(counters, read_end)
            ) as pool,
        ):
            futures = [pool.submit(*task) for task in tasks]
            try:
                _watch(futures, counters, bar)
            except BaseException:
                for process in (
                    multiprocessing.active_children()
                ):  # without this, leaving the pool waits for the tasks in work
                    process.terminate()
                raise
    except BrokenProcessPool:
        raise ConfigError(
            f"a worker process was killed, perhaps for want of memory. Lower --num_workers={workers}; the"
            " same command goes on with what is not done."
        ) from None


def _watch(futures: list, counters, bar: Bar) -> None:
    while True:
        done, left = wait(futures, timeout=_REFRESH_SECS, return_when=FIRST_EXCEPTION)
        _move(bar, *counters)
        for future in done:
            future.result()
        if not left:
            return


def _begin(counters, read_end: Connection) -> None:
    """Sets up a process of the pool: it counts, dies on signals without a word, and does not outlive the one
    that began the job."""
    global _counters
    _counters = counters
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    threading.Thread(target=_die_with, args=(read_end,), daemon=True).start()


def _die_with(read_end: Connection) -> None:
    """Ends this process when the pipe's other end is closed. The parent tells nothing: it is a fork server,
    and lives on as long as its children.
    """
    with contextlib.suppress(EOFError, OSError):
        read_end.recv_bytes()
    os._exit(1)  # pylint: disable=protected-access


def _new_bar(total: float, doing: str, items: str) -> Bar:
    interval = 0.1 if sys.stderr.isatty() else _REFRESH_OF_A_LOG_SECS
    bar = Bar(
        total=total,
        desc=doing,
        unit="B",
        unit_scale=True,
        mininterval=interval,
        maxinterval=interval,
        delay=interval,
    )
    bar.items, bar.items_name = 0, items
    return bar


def _move(bar: Bar, num_bytes: float, items: float) -> None:
    bar.items = items
    elapsed = max(time.time() - bar.start_t, 1e-9)
    bar.set_postfix_str(f"{items:,.0f} {bar.items_name}, {items / elapsed:,.0f}/s", refresh=False)
    bar.update(num_bytes - bar.n)
