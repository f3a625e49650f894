"""What a task says while it works, what it leaves to be done behind it, and the progress bar that all tasks
of a round move."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

from official.io.bars import Bar

_REFRESH_OF_A_LOG_SECS = 30.0  # where the bar is no terminal's: a line now and then
_sink: Callable[[float, int], None] | None = None  # of this process: where `report` goes
_behind: _Behind | None = None  # where this process runs all tasks of a round


def report(num_bytes: float, items: int) -> None:
    """Called by a task now and then: it has done so many more bytes of text, and items of the kind that the
    bar counts."""
    if _sink is not None:
        _sink(num_bytes, items)


def report_to(sink: Callable[[float, int], None] | None) -> None:
    """Says where the reports of this process go, for good."""
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


class ProgressBar(Bar):
    """A bar of bytes that also shows how many items are done, and how many a second."""

    items, items_name = 0.0, ""

    def add(self, num_bytes: float, items: float) -> None:
        self.move_to(self.n + num_bytes, self.items + items)

    def move_to(self, num_bytes: float, items: float) -> None:
        """Shows these sums."""
        self.items = items
        elapsed = max(time.time() - self.start_t, 1e-9)
        self.set_postfix_str(f"{items:,.0f} {self.items_name}, {items / elapsed:,.0f}/s", refresh=False)
        self.update(num_bytes - self.n)


def new_bar(total_bytes: float, doing: str, items: str) -> ProgressBar:
    """Returns the bar of a round; see `engines.Round`."""
    interval = 0.1 if sys.stderr.isatty() else _REFRESH_OF_A_LOG_SECS
    bar = ProgressBar(
        total=total_bytes,
        desc=doing,
        unit="B",
        unit_scale=True,
        mininterval=interval,
        maxinterval=interval,
        delay=interval,
    )
    bar.items_name = items
    return bar
