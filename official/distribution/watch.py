"""Mutual watch of a run's processes: each notices, in bounded time, that one is gone or does not go on.

A thread in each process holds the connections over which they have met: process 0 to all others, these to
process 0. It says a few times a minute that the process is there, and how many times it has come to a point
that all processes pass together. Process 0 tells all who is lost.

 - A process that ends without a word is noticed at once: its connection ends.
 - One whose machine is down, cut off or stopped is silent.
 - One that hangs is there, but the others have passed more points than it has.
"""

import contextlib
import selectors
import socket
import threading
import time
from collections.abc import Callable
from typing import cast

from absl import logging

from official.distribution.rendezvous import Met

_BEATS = 6  # within the time of silence, and within that of a stall
_LONGEST_LINE_BYTES = 4096


class _Peer:
    """Another process, as this one knows it."""

    def __init__(self, link: socket.socket, deadline: float):
        link.setblocking(False)
        self.link = link
        self.text = b""  # of a line that is not whole
        self.deadline = deadline  # to be heard of again
        self.passed, self.passed_at = 0, time.monotonic()  # points

    def note_passed(self, count: int) -> None:
        if count != self.passed:
            self.passed, self.passed_at = count, time.monotonic()


class Watch:
    """A thread that watches the other processes.

    Args:
      met: the processes, and the connections to them.
      silence_secs: how long a process may be silent.
      stall_secs: how long processes may wait for one that does not go on.
      first_secs: how long a process may take until it is heard of first.
      on_loss: called, once, in the thread, with words about who is lost, 'host:port (rank 1)', and an event
        that is set once this process has done its part all the same.
    """

    def __init__(
        self,
        met: Met,
        silence_secs: float,
        stall_secs: float,
        first_secs: float,
        on_loss: Callable[[str, threading.Event], object],
    ):
        self.lost: str | None = None
        self.found = threading.Event()  # set once `lost` is
        self._met, self._on_loss = met, on_loss
        self._silence_secs, self._stall_secs = silence_secs, stall_secs
        self._passed, self._passed_at = 0, time.monotonic()
        deadline = time.monotonic() + max(first_secs, silence_secs)
        self._peers = {rank: _Peer(link, deadline) for rank, link in met.links.items()}
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def note_passed(self) -> None:
        """Notes that this process has come to the next point that all pass together."""
        self._passed, self._passed_at = self._passed + 1, time.monotonic()

    def end(self, in_order: bool = True) -> None:
        """Ends the watch, and tells the others that this process has done its part, where it has."""
        self._ending.set()
        self._thread.join()
        if in_order:
            self._tell("bye")
        for peer in self._peers.values():
            peer.link.close()

    def lose(self, who: str) -> None:
        """Notes that a process is lost, and tells the others; only the first one counts."""
        if self.lost is not None:
            return
        self.lost = who
        self.found.set()
        logging.warning("A process is lost: %s", who)
        self._tell(f"lost {who}")

    # --------------------------------------------------------------------------------------------------------
    # In the thread

    def _run(self) -> None:
        pause = min(self._silence_secs, self._stall_secs) / _BEATS
        last = time.monotonic()
        with selectors.DefaultSelector() as selector:
            for rank, peer in self._peers.items():
                selector.register(peer.link, selectors.EVENT_READ, rank)
            next_beat = last
            while self._peers and not self._ending.is_set() and self.lost is None:
                now = time.monotonic()
                self._forgive(now - last - pause)
                last = now
                if now >= next_beat:
                    self._tell(f"at {self._passed}")
                    next_beat = now + pause
                for key, _ in selector.select(min(pause, 0.25)):
                    if not self._hear(key.data):
                        selector.unregister(cast(socket.socket, key.fileobj))
                self._check_silence()
                self._check_stall()
        if self.lost is not None:
            self._on_loss(self.lost, self._ending)

    def _forgive(self, secs: float) -> None:
        """Gives the others the time in which this process itself stood still."""
        if secs > 1:
            for peer in self._peers.values():
                peer.deadline += secs

    def _tell(self, line: str) -> None:
        for peer in list(self._peers.values()):
            with contextlib.suppress(
                OSError
            ):  # who has gone is found out by `_hear`, who is cut off is silent
                peer.link.send(f"{line}\n".encode())

    def _hear(self, rank: int) -> bool:
        """Takes what a process has sent. Returns whether more may come."""
        peer = self._peers[rank]
        try:
            data = peer.link.recv(_LONGEST_LINE_BYTES)
        except BlockingIOError:
            return True
        except OSError:
            data = b""
        *lines, peer.text = (peer.text + data).split(b"\n")
        words = [line.decode(errors="replace").partition(" ") for line in lines]
        said_bye = any(kind == "bye" for kind, _, _ in words)
        for kind, _, rest in words:
            if kind == "at" and rest.isdecimal() and len(rest) < 20:
                peer.note_passed(int(rest))
            elif kind == "lost":
                self.lose(rest)
        peer.deadline = time.monotonic() + self._silence_secs
        if not data and not said_bye:
            self.lose(self._met.cluster.name(rank))
        if said_bye or not data:
            del self._peers[rank]
        return bool(data) and not said_bye

    def _check_silence(self) -> None:
        for rank, peer in self._peers.items():
            if time.monotonic() > peer.deadline:
                self.lose(f"{self._met.cluster.name(rank)} has been silent for {self._silence_secs:g} s")

    def _check_stall(self) -> None:
        """Finds, as process 0, those that others wait for."""
        if self._met.cluster.rank != 0 or not self._peers:
            return
        passed = {rank: (peer.passed, peer.passed_at) for rank, peer in self._peers.items()}
        passed[0] = (self._passed, self._passed_at)
        fewest = min(count for count, _ in passed.values())
        behind = {rank: since for rank, (count, since) in passed.items() if count == fewest}
        if time.monotonic() - max(behind.values()) < self._stall_secs:
            return
        if len(behind) < len(passed):
            who = (
                ", ".join(map(self._met.cluster.name, list(behind)[:3])) + " does not go on, the others wait"
            )
        else:
            who = "one of the processes, which are all in the same step: its data or its device hang,"
        self.lose(f"{who} for {self._stall_secs:g} s")
