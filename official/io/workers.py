"""What a task says while it works, and the progress bar that all tasks of a round move."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator

from official.io.bars import Bar

_REFRESH_OF_A_LOG_SECS = 30.0  # where the bar is no terminal's: a line now and then
_sink: Callable[[float, int], None] | None = None  # of this process: where `report` goes


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
