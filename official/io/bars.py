"""Progress bars that an error takes off the terminal, so that its line is the last one; among them the one
that all tasks of a round move."""

from __future__ import annotations

import sys
import time

import tqdm

_REFRESH_OF_A_LOG_SECS = 30.0  # where the bar is no terminal's: a line now and then


class Bar(tqdm.tqdm):
    """tqdm's bar, to be used in a `with`: where the block fails, nothing of it stays."""

    leave: bool | None

    def __exit__(self, kind, error, trace) -> None:
        self.leave = self.leave and error is None
        self.close()


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
