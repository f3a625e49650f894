"""Dynamic batching: calls of all clients wait in a queue, and one thread computes them in batches.

A call is split into rows, so that a long call does not block others. A batch has rows of one signature and
one version. Calls whose client no longer waits are dropped.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import dataclasses
import itertools
import threading
import time
import traceback
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from official.io.errors import ConfigError
from official.serving.server.protocols import Call
from official.serving.server.settings import HTTPError, Limits

if TYPE_CHECKING:
    from official.serving.server.versions import Served


class Failure(Exception):
    """The model failed. The message has the type and location of the error, and no content of a request."""


@dataclasses.dataclass(eq=False)
class Work:
    """A call in the queue.

    Attributes:
      served: the model version that it is for.
      call: signature and rows.
      deadline: time.monotonic() at which the call expires.
      future: future of the event loop, which gets the results of the rows.
      batch: number of sequences of the largest batch that it was part of.
      taken: number of rows that were passed to the model.
      results: results of the computed rows.
    """

    served: Served
    call: Call
    deadline: float
    future: asyncio.Future
    batch: int = 0
    taken: int = 0
    results: list[Any] = dataclasses.field(default_factory=list)

    @property
    def is_awaited(self) -> bool:
        return not self.future.done() and time.monotonic() < self.deadline


_Piece = tuple[Work, list[Any]]  # consecutive rows of a call


class Batcher:
    """The queue and its thread. Call `submit` from the event loop only."""

    def __init__(
        self, limits: Limits, observe: Callable[[str, int, float], None], clients: Callable[[], int]
    ):
        """Starts the thread.

        Args:
          limits: limits of batches and queue.
          observe: called in the thread after each batch, with signature, number of sequences, and seconds.
          clients: returns the number of open connections. If that many calls wait, no more can arrive.
        """
        self._limits, self._observe, self._clients = limits, observe, clients
        self._queue: collections.deque[Work] = collections.deque()
        self._changed = threading.Condition()
        self._is_closed = False
        self._computing: list[Work] = []
        self._thread = threading.Thread(target=self._run, name="batches", daemon=True)
        self._thread.start()

    def waiting(self) -> int:
        """Returns the number of calls in the queue."""
        return len(self._queue)

    def submit(self, served: Served, call: Call, deadline: float) -> Work:
        """Puts a call into the queue. Raises HTTPError if the queue is full."""
        work = Work(served, call, deadline, asyncio.get_running_loop().create_future())
        with self._changed:
            if len(self._queue) >= self._limits.max_queue:
                self._queue = collections.deque(each for each in self._queue if each.is_awaited)
            if len(self._queue) >= self._limits.max_queue:
                raise HTTPError(429, "too many requests wait. Try again later.", {"Retry-After": "1"})
            self._queue.append(work)
            self._changed.notify()
        return work

    def uses(self, served: Served) -> bool:
        """Tells whether calls for a version are waiting or being computed."""
        with self._changed:
            return any(work.served is served for work in (*self._queue, *self._computing))

    def close(self, secs: float) -> bool:
        """Ends the thread after the waiting calls. Returns whether it ended within `secs`."""
        with self._changed:
            self._is_closed = True
            self._changed.notify()
        self._thread.join(secs)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while pieces := self._take():
            self._compute_all(pieces)
            del pieces  # so that an old version is freed after its last batch

    def _compute_all(self, pieces: list[_Piece]) -> None:
        began = time.monotonic()
        first, rows = pieces[0][0], [row for _, own in pieces for row in own]
        results = _compute(first.served, first.call.name, rows)
        self._observe(first.call.name, len(rows), time.monotonic() - began)
        left = iter(results)
        for work, own in pieces:
            work.batch = max(work.batch, len(results))
            _finish(work, list(itertools.islice(left, len(own))))
        with self._changed:
            self._computing = []

    def _take(self) -> list[_Piece]:
        """Waits for calls and returns the pieces of a batch; nothing after `close`."""
        with self._changed:
            while True:
                self._changed.wait_for(lambda: self._queue or self._is_closed)
                self._changed.wait_for(self._is_full, self._limits.batch_delay_ms / 1000)
                pieces = self._cut()
                if pieces or self._is_closed and not self._queue:
                    self._computing = [work for work, _ in pieces]
                    return pieces

    def _is_full(self) -> bool:
        """Tells whether the batch is full, or no more calls can arrive."""
        return self._is_closed or len(self._queue) >= min(self._limits.max_batch_size, self._clients())

    def _cut(self) -> list[_Piece]:
        """Takes the rows of a batch from the queue, starting with its first call, whose first row always
        fits."""
        pieces: list[_Piece] = []
        rows, tokens = self._limits.max_batch_size, self._limits.max_batch_tokens
        kept: collections.deque[Work] = collections.deque()
        while self._queue:
            work = self._queue.popleft()
            if not work.is_awaited:
                continue
            call, begin = work.call, work.taken
            first = pieces[0][0] if pieces else work
            if work.served is first.served and call.name == first.call.name:
                while rows and work.taken < len(call.rows):
                    cost = call.costs[work.taken]
                    if cost > tokens and (pieces or work.taken > begin):
                        break
                    work.taken, rows, tokens = work.taken + 1, rows - 1, tokens - cost
                if work.taken > begin:
                    pieces.append((work, call.rows[begin : work.taken]))
            if work.taken < len(call.rows):
                kept.append(work)
        self._queue = kept
        return pieces


def _compute(served: Served, name: str, rows: list[Any]) -> list[Any]:
    """Returns a result or an exception for each row.

    A batch with a bad row fails before anything is computed; its two halves are then tried separately.
    """
    try:
        return served.compute(name, rows)
    except ConfigError as error:
        if len(rows) == 1:
            return [HTTPError(400, str(error))]
        half = len(rows) // 2
        return _compute(served, name, rows[:half]) + _compute(served, name, rows[half:])
    except BaseException as error:  # pylint: disable=broad-except  # the thread continues, also after a panic
        return [Failure(place_of(error))] * len(rows)


def place_of(error: BaseException) -> str:
    """Returns the type and location of an error, but not its message, which may contain client data."""
    frames = traceback.extract_tb(error.__traceback__)
    place = f" at {frames[-1].filename}:{frames[-1].lineno}" if frames else ""
    return f"{type(error).__name__}{place}"


def _finish(work: Work, results: list[Any]) -> None:
    """Stores the results of some rows. The first exception, or the last row, completes the call."""
    work.results.extend(results)
    wrong = next((each for each in results if isinstance(each, Exception)), None)
    if wrong or len(work.results) == len(work.call.rows):
        with contextlib.suppress(RuntimeError):  # the event loop has ended, so no client waits
            work.future.get_loop().call_soon_threadsafe(_resolve, work.future, wrong or work.results)


def _resolve(future: asyncio.Future, outcome: Any) -> None:
    if not future.done():
        (future.set_exception if isinstance(outcome, Exception) else future.set_result)(outcome)
