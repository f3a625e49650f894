"""Progress bars that are erased on an error, so that its line is the last one, and the shared bar of a round
of tasks."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

import tqdm

from official.io import jobs

if TYPE_CHECKING:
    from official.io.engines import Round

_REFRESH_OF_A_LOG_SECS = 30.0  # without a terminal: a line now and then


class Bar(tqdm.tqdm):
    """tqdm's bar, for use in a `with`: it is erased if the block fails."""

    leave: bool | None

    def __exit__(self, kind, error, trace) -> None:
        self.leave = self.leave and error is None
        self.close()


class ProgressBar(Bar):
    """A bar of bytes that also shows how many items are done, and how many a second, by `workers`."""

    items, items_name, workers = 0.0, "", 0

    def add(self, num_bytes: float, items: float) -> None:
        self.move_to(self.n + num_bytes, self.items + items)

    def move_to(self, num_bytes: float, items: float) -> None:
        """Moves the bar to these totals."""
        self.items = items
        elapsed = max(time.time() - self.start_t, 1e-9)
        self.set_postfix_str(f"{items:,.0f} {self.items_name}, {items / elapsed:,.0f}/s", refresh=False)
        self.update(num_bytes - self.n)


@contextlib.contextmanager
def of_round(tasks: Round, engine: str, workers: int = 0) -> Iterator[ProgressBar]:
    """Shows a round, and records its times for `jobs.take_rounds` unless it fails.

    Args:
      tasks: of the round.
      engine: where they run.
      workers: maximum number that run at the same time; the block may change the bar's.
    """
    interval, start = 0.1 if sys.stderr.isatty() else _REFRESH_OF_A_LOG_SECS, time.monotonic()
    how = dict(mininterval=interval, maxinterval=interval, delay=interval)
    with ProgressBar(total=tasks.total_bytes, desc=tasks.doing, unit="B", unit_scale=True, **how) as bar:
        bar.items_name, bar.workers = tasks.items, workers
        yield bar
    jobs.rounds.append(
        {
            "doing": tasks.doing,
            "items_name": tasks.items,
            "engine": engine,
            "workers": bar.workers,
            "secs": time.monotonic() - start,
            "bytes": bar.n,
            "items": bar.items,
        }
    )
