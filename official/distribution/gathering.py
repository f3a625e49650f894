"""Process 0's side of a meeting: it waits for all others of a run."""

import contextlib
import dataclasses
import re
import resource
import selectors
import socket
import time
from typing import cast

from official.distribution.meeting import CALL_SECS, GREETING, LONGEST_LINE_BYTES, Met, Wait, call, parts
from official.io.errors import ConfigError, PeerError

_OTHER_FILES = 512  # that a process has open at once
_MOST_STRANGERS = 64
_PAUSE_SECS = 0.05  # where no connection can be taken
_GREETING = re.compile(rf"{GREETING} ([0-9]{{1,9}}) ([0-9]{{1,9}}) ([0-9]{{1,9}})\s*")


@dataclasses.dataclass
class _Stranger:
    """A connection that has not said yet who it is: from which host, what it has said, and until when it may
    take."""

    host: str
    deadline: float
    text: bytes = b""


class Guests:
    """The connections to process 0: `present` have said who they are, {rank: connection}, `strangers` have
    not yet, oldest first. `addresses` are those of all processes, by rank, as far as known."""

    def __init__(self, wait: Wait, listener: socket.socket):
        self.wait = wait
        self.present: dict[int, socket.socket] = {}
        self.strangers: dict[socket.socket, _Stranger] = {}
        self.addresses = list(wait.cluster.hosts)
        self._ranks: dict[socket.socket, int] = {}
        self._listener, self._selector = listener, selectors.DefaultSelector()
        self._selector.register(listener, selectors.EVENT_READ)

    def missing(self) -> list[int]:
        return [rank for rank in range(1, len(self.addresses)) if rank not in self.present]

    def tell(self, line: str) -> None:
        """Sends a line to all that are present. Who has gone meanwhile is found out by `_hear`."""
        for connection in self.present.values():
            with contextlib.suppress(OSError):
                connection.sendall(f"{line}\n".encode())

    def receive(self, secs: float) -> None:
        """Takes what arrives, for some seconds at most."""
        arrived = [cast(socket.socket, key.fileobj) for key, _ in self._selector.select(secs)]
        now = time.monotonic()  # what came before is heard before anyone is sent away
        for connection in arrived:
            if connection is not self._listener:
                self._hear(connection)
        if self._listener in arrived:
            self._accept()
        for connection, stranger in list(self.strangers.items()):
            if now > stranger.deadline or len(self.strangers) > _MOST_STRANGERS:
                self._end(connection)

    def _accept(self) -> None:
        """Lets the next one in, as a stranger."""
        try:
            connection, (host, _) = self._listener.accept()
        except (BlockingIOError, ConnectionError):  # it has gone again
            return
        except OSError:  # no files are left: strangers leave theirs
            for stranger in list(self.strangers)[:1]:
                self._end(stranger)
            time.sleep(_PAUSE_SECS)
            return
        connection.settimeout(CALL_SECS)
        self.strangers[connection] = _Stranger(host, time.monotonic() + CALL_SECS)
        self._selector.register(connection, selectors.EVENT_READ)

    def _hear(self, connection: socket.socket) -> None:
        """Takes what a connection has sent, or that it has ended."""
        try:
            data = connection.recv(LONGEST_LINE_BYTES)
        except OSError:
            data = b""
        if not data:
            self._forget(connection)
        elif connection in self.strangers:  # others say nothing after the greeting
            self._listen_to(connection, data)

    def _listen_to(self, connection: socket.socket, data: bytes) -> None:
        """Takes what a stranger has sent: a line, of which the first call may bring a part only."""
        stranger = self.strangers[connection]
        if len(stranger.text) + len(data) > LONGEST_LINE_BYTES:
            self._end(connection)
            return
        stranger.text += data
        line, end, _ = stranger.text.partition(b"\n")
        if end:
            self._greet(connection, line.decode(errors="replace"))

    def _greet(self, connection: socket.socket, line: str) -> None:
        """Takes in who says '<greeting> RANK NUMBER_OF_PROCESSES PORT', and sends others away."""
        cluster = self.wait.cluster
        match = _GREETING.fullmatch(line)
        rank, count, port = map(int, match.groups()) if match else (0, 0, 0)
        if not 0 < port < 2**16:
            self._end(connection)
        elif count != len(cluster.hosts) or not 0 < rank < count:
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
            self._take_in(connection, rank, port)

    def _take_in(self, connection: socket.socket, rank: int, port: int) -> None:
        """Notes a process of the run, which can be called at its address."""
        address = self.wait.cluster.hosts[rank] or self._address_of(self.strangers[connection].host, port)
        try:
            call(address).close()
        except ConnectionError as error:
            self.wait.problems[rank] = f"it calls, but cannot be called ({error})"
            self._end(connection)
            return
        del self.strangers[connection]
        self.present[rank], self._ranks[connection], self.addresses[rank] = connection, rank, address
        self.wait.problems.pop(rank, None)
        if missing := self.missing():
            with contextlib.suppress(OSError):
                connection.sendall(f"missing {self.wait.describe(missing)}\n".encode())

    def _address_of(self, host: str, port: int) -> str:
        """Returns where others reach a process that has not been told its address: on this host as they reach
        process 0."""
        if host.startswith("127."):
            host = parts(self.wait.cluster.hosts[0])[0]
        return f"{host}:{port}"

    def _refuse(self, connection: socket.socket, why: str) -> None:
        with contextlib.suppress(OSError):
            connection.sendall(f"refused {why}\n".encode())
        self._end(connection)

    def _forget(self, connection: socket.socket) -> None:
        if connection in self._ranks:
            rank = self._ranks.pop(connection)
            del self.present[rank]
            self.wait.problems[rank] = "it was here and has ended"
        self._end(connection)

    def _end(self, connection: socket.socket) -> None:
        self.strangers.pop(connection, None)
        self._selector.unregister(connection)
        connection.close()

    def close(self) -> None:
        """Ends what is not of the run; all, where not all have come."""
        self._selector.close()
        for connection in (*self.strangers, *(self.present.values() if self.missing() else ())):
            connection.close()


def gather(wait: Wait, listener: socket.socket) -> Met:
    """Waits, as process 0, for all others, and lets them go."""
    _allow_connections(len(wait.cluster.hosts))
    guests = Guests(wait, listener)
    with contextlib.closing(guests):
        try:
            while missing := guests.missing():
                if wait.check(missing):
                    guests.tell("missing " + wait.describe(missing))
                guests.receive(wait.pause_secs())
        except PeerError as error:
            guests.tell(f"over {error}")
            raise
        except ConfigError as error:  # of an address
            guests.tell(f"refused {error}")
            raise
        guests.tell("go " + ",".join(guests.addresses))
    return Met(dataclasses.replace(wait.cluster, hosts=tuple(guests.addresses)), guests.present)


def _allow_connections(count: int) -> None:
    """Raises this process's limit of open files, where it is too low for a connection to each process."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = count + _OTHER_FILES
    if soft != resource.RLIM_INFINITY and soft < wanted:
        most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
