"""Where the processes of a run wait for each other.

No TensorFlow: its own wait is silent, answers no signal and lasts an hour.

Process 0 listens at its address. The others listen at theirs, too, call process 0 and say who they are; it
calls back, so that a wrong address is found out. Once all are there it lets them go, and TensorFlow's servers
take the same ports.
"""

import contextlib
import selectors
import socket
import time
from typing import cast

from absl import logging

from official.config.cluster import Cluster
from official.io.errors import ConfigError, PeerError

_SECS_BETWEEN_LINES = 5.0
_CALL_SECS = 2.0  # for one try to reach a process
_GREETING = "bert-run"
_LONGEST_LINE_BYTES = 4096


def meet(cluster: Cluster, timeout_secs: float) -> None:
    """Returns once every process of the cluster has called this, within moments in all of them.

    Says every few seconds who is missing. A signal may raise what it likes here, at any moment: there is
    nothing to save yet.

    Args:
      cluster: the processes.
      timeout_secs: seconds to wait for the others.

    Raises:
      ConfigError: where this process's port is taken, or another process has its rank or another number of
        processes.
      PeerError: naming who did not come in time.
    """
    with _listen(cluster) as listener:
        wait = _Wait(cluster, timeout_secs)
        if cluster.rank == 0:
            _gather(wait, listener)
        else:
            _join(wait)


def _listen(cluster: Cluster) -> socket.socket:
    """Returns a socket that listens at this process's port. Raises ConfigError."""
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(("", _address(cluster, cluster.rank)[1]))
        listener.listen()
    except OSError as error:
        listener.close()
        raise ConfigError(
            f"The port of this process, {cluster.name(cluster.rank)}, cannot be used: {error.strerror}. End"
            " the program that has it, or change --worker_hosts (TF_CONFIG)."
        ) from None
    listener.setblocking(False)
    return listener


def _address(cluster: Cluster, rank: int) -> tuple[str, int]:
    host, _, port = cluster.hosts[rank].rpartition(":")
    return host, int(port)


def _call(cluster: Cluster, rank: int) -> socket.socket:
    """Returns a connection to a process. Raises ConnectionError, whose message says why there is none."""
    try:
        return socket.create_connection(_address(cluster, rank), timeout=_CALL_SECS)
    except (socket.gaierror, UnicodeError):
        raise ConnectionError("no such host is known") from None
    except TimeoutError:
        raise ConnectionError("no answer") from None
    except OSError as error:
        raise ConnectionError(error.strerror or "no answer") from None


class _Wait:
    """How long this process has waited, for whom, and what it says about that."""

    def __init__(self, cluster: Cluster, timeout_secs: float):
        self.cluster = cluster
        self._timeout_secs = timeout_secs
        self._started = time.monotonic()
        self._next_line = self._started + _SECS_BETWEEN_LINES
        self.problems: dict[int, str] = {}  # {rank: why it cannot be reached, where that is known}
        self.heard: str | None = None  # of the others: whom process 0 waits for

    def pause_secs(self) -> float:
        """Returns the seconds to the next line or the end, a second at most."""
        return min(1.0, max(0.0, min(self._next_line, self._started + self._timeout_secs) - time.monotonic()))

    def describe(self, missing: list[int]) -> str:
        """Returns who is missing, in as much as a line holds."""
        if self.heard:
            return self.heard
        parts = [
            self.cluster.name(rank) + (f": {self.problems[rank]}" if rank in self.problems else "")
            for rank in missing[:3]
        ]
        return "; ".join(parts) + (f"; and {len(missing) - 3} more" if len(missing) > 3 else "")

    def check(self, missing: list[int]) -> bool:
        """Says who is missing where a line is due, and returns whether it was. Raises PeerError when time is
        up."""
        now = time.monotonic()
        if now >= self._started + self._timeout_secs:
            raise PeerError(
                f"Not there after --peer_timeout_secs={self._timeout_secs:g}: {self.describe(missing)}. Start"
                " all processes again."
            )
        if now < self._next_line:
            return False
        self._next_line = now + _SECS_BETWEEN_LINES
        logging.warning(
            "Waiting for %s (%.0f of %g s)", self.describe(missing), now - self._started, self._timeout_secs
        )
        return True


# ----------------------------------------------------------------------------------------------------
# Process 0


class _Guests:
    """The connections to process 0: `present` have said who they are, {rank: connection}, `strangers` have
    not yet, {connection: bytes so far}."""

    def __init__(self, wait: _Wait):
        self.wait = wait
        self.present: dict[int, socket.socket] = {}
        self.strangers: dict[socket.socket, bytes] = {}

    def missing(self) -> list[int]:
        return [rank for rank in range(1, len(self.wait.cluster.hosts)) if rank not in self.present]

    def tell(self, line: str) -> None:
        """Sends a line to all that are present. Who has gone meanwhile is found out by `hear`."""
        for connection in self.present.values():
            with contextlib.suppress(OSError):
                connection.sendall(f"{line}\n".encode())

    def hear(self, connection: socket.socket) -> None:
        """Takes what a connection has sent, or that it has ended."""
        try:
            data = connection.recv(_LONGEST_LINE_BYTES)
        except OSError:
            data = b""
        text = self.strangers.pop(connection, b"") + data
        if not data:
            self._forget(connection)
        elif connection in self.present.values():
            return  # nothing is said after the greeting
        elif b"\n" in text or len(text) > _LONGEST_LINE_BYTES:
            self._greet(connection, text.decode(errors="replace").split())
        else:
            self.strangers[connection] = text

    def _greet(self, connection: socket.socket, words: list[str]) -> None:
        """Takes in who says '<greeting> RANK NUMBER_OF_PROCESSES', and sends others away."""
        cluster = self.wait.cluster
        if len(words) != 3 or words[0] != _GREETING or not (words[1].isdecimal() and words[2].isdecimal()):
            connection.close()
            return
        rank, count = int(words[1]), int(words[2])
        if count != len(cluster.hosts) or not 0 < rank < count:
            self._refuse(
                connection,
                f"{cluster.name(0)} waits for {len(cluster.hosts)} processes, this one is rank {rank} of"
                f" {count}. Give all the same list.",
            )
        elif rank in self.present:
            self._refuse(
                connection,
                f"Another process is rank {rank} already. Give each process a task index of its own.",
            )
        else:
            try:
                _call(cluster, rank).close()
            except ConnectionError as error:
                self.wait.problems[rank] = f"it calls, but cannot be called ({error})"
                connection.close()
                return
            self.present[rank] = connection
            self.wait.problems.pop(rank, None)
            if self.missing():
                self.tell("missing " + self.wait.describe(self.missing()))

    def _refuse(self, connection: socket.socket, why: str) -> None:
        with contextlib.suppress(OSError), connection:
            connection.sendall(f"refused {why}\n".encode())

    def _forget(self, connection: socket.socket) -> None:
        for rank in [rank for rank, known in self.present.items() if known is connection]:
            del self.present[rank]
            self.wait.problems[rank] = "it was here and has ended"
        connection.close()

    def close(self) -> None:
        for connection in (*self.present.values(), *self.strangers):
            connection.close()


def _gather(wait: _Wait, listener: socket.socket) -> None:
    """Waits, as process 0, for all others, and lets them go."""
    guests = _Guests(wait)
    with contextlib.closing(guests):
        try:
            while missing := guests.missing():
                if wait.check(missing):
                    guests.tell("missing " + wait.describe(missing))
                _receive(guests, listener, wait.pause_secs())
        except PeerError as error:
            guests.tell(f"over {error}")
            raise
        guests.tell("go")


def _receive(guests: _Guests, listener: socket.socket, secs: float) -> None:
    """Takes what arrives, for some seconds at most."""
    with selectors.DefaultSelector() as selector:
        for source in (listener, *guests.present.values(), *guests.strangers):
            selector.register(source, selectors.EVENT_READ)
        for key, _ in selector.select(secs):
            if key.fileobj is not listener:
                guests.hear(cast(socket.socket, key.fileobj))
                continue
            with contextlib.suppress(OSError):
                connection, _ = listener.accept()
                connection.settimeout(_CALL_SECS)
                guests.strangers[connection] = b""


# ----------------------------------------------------------------------------------------------------
# The others


def _join(wait: _Wait) -> None:
    """Calls process 0 until it is there, and waits for its word."""
    while True:
        try:
            with _call(wait.cluster, 0) as connection:
                wait.problems[0] = "it does not answer"
                if _stay(wait, connection):
                    return
                wait.problems[0], wait.heard = "it has ended the connection", None
        except ConnectionError as error:
            wait.problems[0] = str(error)
        wait.check([0])
        time.sleep(min(0.3, wait.pause_secs()))


def _stay(wait: _Wait, connection: socket.socket) -> bool:
    """Returns True when process 0 lets everybody go, False where the connection has ended. Raises as
    `meet`."""
    with contextlib.suppress(OSError):
        connection.sendall(f"{_GREETING} {wait.cluster.rank} {len(wait.cluster.hosts)}\n".encode())
    text = b""
    while True:
        connection.settimeout(max(wait.pause_secs(), 0.01))
        try:
            data = connection.recv(_LONGEST_LINE_BYTES)
        except TimeoutError:
            wait.check([0])
            continue
        except OSError:
            data = b""
        if not data:
            return False
        *lines, text = (text + data).split(b"\n")
        for line in lines:
            kind, _, rest = line.decode(errors="replace").partition(" ")
            if kind == "go":
                return True
            if kind == "refused":
                raise ConfigError(rest)
            if kind == "over":
                raise PeerError(rest)
            if kind == "missing":
                wait.heard = rest
