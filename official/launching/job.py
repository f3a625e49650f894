"""A job: all its processes, started together, ended together, and started again after a loss."""

from __future__ import annotations

import dataclasses
import os
import selectors
import signal
import threading
import time
from collections.abc import Callable
from typing import Literal

from official.io import signals, streams
from official.launching import hosts as hosts_lib
from official.launching import ranks as ranks_lib

# Ends that are the run's own: nothing would be better the next time.
OWN_CODES = (1, 2, 3, *(128 + number for number in signals.NUMBERS))
LOST_PEER = 4
_TOGETHER_SECS = 300.0  # for the others to save, report and end where one has ended in order
_CAUSE_SECS = 1.0  # for the rank to show that the others' loss comes from
_GRACE_SECS = 5.0  # from SIGTERM to SIGKILL for those that cannot go on; for last words that nobody reads
_ROUND_SECS = 0.1
_BETWEEN_CALLS_SECS = 2.0
_SIGPIPE = 128 + signal.SIGPIPE

Kind = Literal["done", "own", "lost"]


@dataclasses.dataclass(frozen=True)
class Job:
    """Settings of a job.

    Attributes:
      hosts: the machines.
      instances_per_host: processes on each.
      order: command and environment of each process.
      max_restarts: how often all are started again after one was lost.
      host_timeout_secs: how long a host that was lost is waited for before that.
    """

    hosts: list[hosts_lib.Host]
    instances_per_host: int
    order: ranks_lib.Order
    max_restarts: int = 0
    host_timeout_secs: float = 600.0


@dataclasses.dataclass(frozen=True)
class Ending:
    """End of a job.

    Attributes:
      kind: all done; one ended in an order of its own; or one was lost.
      code: exit code of the job.
      cut_off: hosts that could not be reached any more.
    """

    kind: Kind
    code: int
    cut_off: tuple[str, ...] = ()


def run(job: Job, say: Callable[[str], None]) -> int:
    """Runs a job to its end. Signals to this process go to all of the job's; a second one ends all at once.

    Args:
      job: the settings.
      say: takes lines for people.

    Returns:
      the exit code: that of the process that ended first in an order of its own, 4 where one was lost and
      `max_restarts` is used up.

    Raises:
      ConfigError: where a process cannot be started at all.
    """
    with _Inbox() as inbox, signals.noting(inbox.put):
        for restart in range(job.max_restarts + 1):
            ending = _run_once(job, inbox, say)
            if ending.kind != "lost" or restart == job.max_restarts:
                break
            say(f"restart {restart + 1} of {job.max_restarts}")
            code = _wait_for_hosts(job, ending.cut_off, inbox, say)
            if code is not None:
                return code
        return ending.code


class _Inbox:
    """The signals that this process gets, to wait for."""

    def __init__(self) -> None:
        self.received: int | None = None
        self.reader, self._writer = os.pipe()

    def __enter__(self) -> _Inbox:
        return self

    def __exit__(self, *error: object) -> None:
        os.close(self.reader)
        os.close(self._writer)

    def put(self, number: int) -> None:
        """Notes a signal; in another thread."""
        self.received = number
        os.write(self._writer, b"!")

    def clear(self) -> None:
        os.read(self.reader, 64)


def _run_once(job: Job, inbox: _Inbox, say: Callable[[str], None]) -> Ending:
    workers = hosts_lib.make_workers(job.hosts, job.instances_per_host)
    ranks: list[ranks_lib.Rank] = []
    ended = threading.Event()
    try:
        for worker in workers:
            ranks.append(ranks_lib.Rank(job.order, workers, worker.rank))
        if not all(worker.is_local for worker in workers):
            threading.Thread(target=_keep_alive, args=(ranks, ended), daemon=True).start()
        return _Watch(ranks, inbox, say).to_the_end()
    finally:
        ended.set()
        for rank in ranks:  # all have ended, unless something went wrong here
            rank.close()


def _keep_alive(ranks: list[ranks_lib.Rank], ended: threading.Event) -> None:
    """Tells other hosts that the launcher is there; in a thread, for output that nobody takes holds up the
    main one."""
    while not ended.wait(ranks_lib.ALIVE_SECS):
        for rank in ranks:
            rank.keep_alive()


class _Watch:
    """Processes that run: passes their output on, and ends all when one has ended."""

    def __init__(self, ranks: list[ranks_lib.Rank], inbox: _Inbox, say: Callable[[str], None]):
        self._ranks = ranks
        self._inbox = inbox
        self._say = say
        self._cause: ranks_lib.Rank | None = None  # who ended first, and not with 0
        self._steps: list[tuple[float, int]] = []  # (when, signal) that still have to be sent; 0: drop
        self._has_told = False  # the others to end: what they do then is no cause
        self._passed_on: int | None = None
        self._unread_since: float | None = None  # nobody reads the output

    def to_the_end(self) -> Ending:
        """Returns the end of the job, once all processes have ended."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._inbox.reader, selectors.EVENT_READ, self._take_signal)
            for rank in self._ranks:
                for stream in rank.streams:
                    selector.register(stream.source, selectors.EVENT_READ, stream)
            while any(rank.code is None for rank in self._ranks):
                for key, _ in selector.select(_ROUND_SECS):
                    self._take(selector, key)
                self._look_after(selector)
                if streams.is_unread():
                    self._end_unread()
        return self._ending()

    def _take(self, selector: selectors.BaseSelector, key: selectors.SelectorKey) -> None:
        if key.data == self._take_signal:
            self._take_signal()
            return
        if not key.data.pass_on():
            selector.unregister(key.fileobj)

    def _take_signal(self) -> None:
        self._inbox.clear()
        self._pass_signal_on(self._inbox.received or signal.SIGTERM)

    def _pass_signal_on(self, number: int) -> None:
        self._passed_on = number
        for rank in self._ranks:
            rank.send(number)

    def _end_unread(self) -> None:
        """Ends the job, in order, where nobody reads what it prints, unless these were its last words."""
        now = time.monotonic()
        self._unread_since = self._unread_since or now
        if self._passed_on is None and now >= self._unread_since + _GRACE_SECS:
            self._pass_signal_on(signal.SIGTERM)

    def _look_after(self, selector: selectors.BaseSelector) -> None:
        ended = [rank for rank in self._ranks if rank.poll()]
        for rank in ended:
            for stream in rank.streams:
                if stream.source.fileno() in selector.get_map():
                    selector.unregister(stream.source)
        failed = [rank for rank in ended if rank.code]
        if failed and self._passed_on is None:
            self._note(min(failed, key=_weight))
        self._do_due_steps()

    def _note(self, failed: ranks_lib.Rank) -> None:
        """Takes in who has ended: the first one begins the end of all; one that ends by itself just after it
        may have caused it."""
        if self._cause is None:
            self._begin_the_end(failed)
        elif not self._has_told:
            self._cause = min(self._cause, failed, key=_weight)

    def _begin_the_end(self, cause: ranks_lib.Rank) -> None:
        """Plans the end of all: how long the others have for it."""
        self._cause = cause
        first = _TOGETHER_SECS if cause.code in OWN_CODES and cause.code != 2 else _CAUSE_SECS
        start = time.monotonic() + first
        self._steps = [
            (start, signal.SIGTERM),
            (start + _GRACE_SECS, signal.SIGKILL),
            (start + 2 * _GRACE_SECS, 0),
        ]
        left = sum(rank.code is None for rank in self._ranks)
        self._say(f"{cause.worker.name} {cause.how_it_ended()}" + (f"; ending {left} others" if left else ""))

    def _do_due_steps(self) -> None:
        while self._steps and time.monotonic() >= self._steps[0][0]:
            self._has_told = True
            number = self._steps.pop(0)[1]
            for rank in self._ranks:
                rank.send(number) if number else rank.drop()

    def _ending(self) -> Ending:
        codes = [rank.code or 0 for rank in self._ranks]
        if self._passed_on is not None:
            own = next((code for code in codes if code in OWN_CODES), 128 + self._passed_on)
            cut = own if self._unread_since is None else _SIGPIPE
            code = cut if any(codes) else 0
            return Ending("own" if code else "done", code)
        if self._cause is None:
            return Ending("done", 0)
        code = self._cause.code or 0
        if code in OWN_CODES:
            return Ending("own", code)
        cut_off = {rank.worker.host for rank in self._ranks if rank.is_cut_off()}
        return Ending("lost", code if LOST_PEER < code < 126 else LOST_PEER, tuple(sorted(cut_off)))


def _weight(rank: ranks_lib.Rank) -> tuple[bool, bool, int]:
    """Orders ends that were seen at a time: causes before what follows from them."""
    return rank.code not in OWN_CODES, rank.code == LOST_PEER, rank.worker.rank


def _wait_for_hosts(
    job: Job, cut_off: tuple[str, ...], inbox: _Inbox, say: Callable[[str], None]
) -> int | None:
    """Waits until hosts that were cut off have ended what ran there, and answer again. Returns an exit code
    where the job ends meanwhile, else None."""
    if not cut_off:
        return None
    say(f"waiting for {', '.join(cut_off)}, at most {job.host_timeout_secs:g} s")
    began = time.monotonic()
    quiet = began + ranks_lib.SILENCE_SECS + _GRACE_SECS  # by then nothing runs there any more
    missing = list(cut_off)
    while time.monotonic() < began + job.host_timeout_secs or not missing:
        missing = [host for host in cut_off if not _answers(job, host, inbox)]
        if inbox.received is not None:
            return 128 + inbox.received
        if not missing and time.monotonic() >= quiet:
            return None
        with selectors.DefaultSelector() as selector:
            selector.register(inbox.reader, selectors.EVENT_READ)
            selector.select(_BETWEEN_CALLS_SECS)
    say(f"{', '.join(missing)}: no answer after --host_timeout_secs={job.host_timeout_secs:g}")
    return LOST_PEER


def _answers(job: Job, host: str, inbox: _Inbox) -> bool:
    return ranks_lib.answers(job.order.ssh, host, lambda: inbox.received is not None)
