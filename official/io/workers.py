"""Reports of a task while it works, and the end of its work, which may run behind it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

_sink: Callable[[float, int], None] | None = None  # of this process: where `report` goes
_behind: _Behind | None = None  # where this process runs all tasks of a round


def report(num_bytes: float, items: int) -> None:
    """Reports progress, called by a task now and then: so many more bytes of text, and items of the kind that
    the bar counts."""
    if _sink is not None:
        _sink(num_bytes, items)


def report_to(sink: Callable[[float, int], None] | None) -> None:
    """Sends the reports of this process to `sink`, for good."""
    global _sink
    _sink = sink


@contextlib.contextmanager
def reporting_to(sink: Callable[[float, int], None]) -> Iterator[None]:
    """Lets the reports of this process go to `sink` in its block."""
    before = _sink
    report_to(sink)
    try:
        yield
    finally:
        report_to(before)


class _Behind:
    """Runs functions one after the other in a thread."""

    def __init__(self, thread: ThreadPoolExecutor):
        self._thread = thread
        self._last: Future[None] | None = None

    def begin(self, function: Callable[..., None], arguments: tuple) -> None:
        """Has a function run, and waits for the one before it. Raises what that one raised; this one runs all
        the same."""
        last, self._last = self._last, self._thread.submit(function, *arguments)
        if last is not None:
            last.result()

    def end(self) -> None:
        """Waits for the last one. Raises what it raised."""
        last, self._last = self._last, None
        if last is not None:
            last.result()


def finish(function: Callable[..., None], *arguments) -> None:
    """Called by a task last of all: runs a function that mostly waits for the disk. Where this process runs
    all tasks of a round itself, it goes on with the next one meanwhile; the round ends after it."""
    if _behind is None:
        function(*arguments)
    else:
        _behind.begin(function, arguments)


@contextlib.contextmanager
def finishing_behind() -> Iterator[None]:
    """Lets the next task of this process begin in its block while `finish` is at work for the one before."""
    global _behind
    with ThreadPoolExecutor(1, "finish") as thread:
        _behind = _Behind(thread)
        try:
            yield
            _behind.end()
        finally:
            _behind = None
