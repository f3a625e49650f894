"""Rendezvous: processes of a run wait for each other at process 0."""

import contextlib
import dataclasses
import random
import re
import resource
import selectors
import socket
import time
from typing import NamedTuple, cast

from absl import logging

from official.config.cluster import Cluster
from official.io.errors import ConfigError, PeerError

# -----------------------------------------------------------------------------------------------------------
# Ports and calls


_SECS_BETWEEN_LINES = 5.0
CALL_SECS = 2.0  # for one attempt to reach a process
GREETING = "bert-run"
MAX_LINE_BYTES = 4096
_FREE_PORTS = range(21000, 29000)  # below the ephemeral ports of operating systems


class Met(NamedTuple):
    """Result of a meeting: the addresses of all processes of a run, and the connections between them.

    Attributes:
      cluster: with the addresses of all.
      links: {rank: connection}: of process 0 to all others, of these to process 0.
    """

    cluster: Cluster
    links: dict[int, socket.socket]


def listen(cluster: Cluster) -> socket.socket:
    """Returns a socket that listens at this process's port. Raises ConfigError."""
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    own = cluster.hosts[cluster.rank]
    ports = [parts(own)[1]] if own else random.SystemRandom().sample(_FREE_PORTS, 100)
    try:
        for port in ports[:-1]:  # the first one that is free
            with contextlib.suppress(OSError):
                listener.bind(("", port))
                break
        else:
            listener.bind(("", ports[-1]))
        listener.listen(len(cluster.hosts))
    except OSError as error:
        listener.close()
        raise ConfigError(
            f"The port of this process, {cluster.name(cluster.rank)}, cannot be used: {error.strerror}. End"
            " the program that uses it, or give another port: --worker_hosts, TF_CONFIG, or BERT_PORT for"
            " processes of Slurm, MPI or Kubernetes."
        ) from None
    listener.setblocking(False)
    return listener


def parts(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host, int(port)


def call(address: str) -> socket.socket:
    """Connects to host:port. Raises ConnectionError with the reason, and ConfigError if no retry can
    succeed."""
    try:
        return socket.create_connection(parts(address), timeout=CALL_SECS)
    except (socket.gaierror, UnicodeError):
        raise ConnectionError("unknown host") from None
    except OSError as error:
        host, found = parts(address)[0], []
        with contextlib.suppress(OSError, UnicodeError):
            found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
        if found and all(family == socket.AF_INET6 for family, *_ in found):  # nobody can listen there
            raise ConfigError(
                f"Host {host} of the run's processes has only IPv6 addresses, such as {found[0][4][0]};"
                " expected an IPv4 address. Give it one, or another name of that machine in --worker_hosts or"
                " TF_CONFIG."
            ) from None
        is_silent = isinstance(error, TimeoutError)
        raise ConnectionError("no answer" if is_silent else error.strerror or "no answer") from None


class Wait:
    """The wait of this process for others: its time limit, and log lines that name the missing processes."""

    def __init__(self, cluster: Cluster, timeout_secs: float, port: int):
        self.cluster, self.port = cluster, port
        self._timeout_secs = timeout_secs
        self._started = time.monotonic()
        self._next_line = self._started + _SECS_BETWEEN_LINES
        self.problems: dict[int, str] = {}  # {rank: why it cannot be reached, if known}
        self.heard: str | None = None  # in other processes: the missing ones, as reported by process 0

    def pause_secs(self) -> float:
        """Returns the seconds to the next line or the end, a second at most."""
        return min(1.0, max(0.0, min(self._next_line, self._started + self._timeout_secs) - time.monotonic()))

    def describe(self, missing: list[int]) -> str:
        """Returns the names of the first missing processes, and the number of the others."""
        if self.heard:
            return self.heard
        names = [
            ": ".join(filter(None, (self.cluster.name(rank), self.problems.get(rank)))) for rank in missing
        ]
        return "; ".join(names[:3] + [f"and {len(names) - 3} more"] * (len(names) > 3))

    def check(self, missing: list[int]) -> bool:
        """Logs the missing processes if a line is due, and returns whether it was. Raises PeerError after the
        time limit."""
        now = time.monotonic()
        if now >= self._started + self._timeout_secs:
            raise PeerError(
                f"Missing after --peer_timeout_secs={self._timeout_secs:g}: {self.describe(missing)}. Start"
                " all processes again."
            )
        if now < self._next_line:
            return False
        self._next_line = now + _SECS_BETWEEN_LINES
        waited, most = now - self._started, self._timeout_secs
        logging.warning("Waiting for %s (%.0f of %g s)", self.describe(missing), waited, most)
        return True


# -----------------------------------------------------------------------------------------------------------
# Process 0


_OTHER_FILES = 512  # open files of a process besides the connections
_MAX_UNKNOWN = 64
_GREETING = re.compile(rf"{GREETING} ([0-9]{{1,9}}) ([0-9]{{1,9}}) ([0-9]{{1,9}})\s*")


@dataclasses.dataclass
class _Caller:
    """A connection that has not identified itself yet: its host, the text received, and its deadline."""

    host: str
    deadline: float
    text: bytes = b""


class Connections:
    """The connections to process 0: `present` {rank: connection} have identified themselves, `unknown` have
    not yet, oldest first. `addresses` holds the known addresses by rank."""

    def __init__(self, wait: Wait, listener: socket.socket):
        self.wait = wait
        self.present: dict[int, socket.socket] = {}
        self.unknown: dict[socket.socket, _Caller] = {}
        self.addresses = list(wait.cluster.hosts)
        self._ranks: dict[socket.socket, int] = {}
        self._listener, self._selector = listener, selectors.DefaultSelector()
        self._selector.register(listener, selectors.EVENT_READ)

    def missing(self) -> list[int]:
        return [rank for rank in range(1, len(self.addresses)) if rank not in self.present]

    def tell(self, line: str) -> None:
        """Sends a line to all present processes. `_hear` detects those that ended meanwhile."""
        for connection in self.present.values():
            with contextlib.suppress(OSError):
                connection.sendall(f"{line}\n".encode())

    def receive(self, secs: float) -> None:
        """Handles incoming data for up to some seconds."""
        arrived = [cast(socket.socket, key.fileobj) for key, _ in self._selector.select(secs)]
        now = time.monotonic()  # earlier messages are read before a connection is refused
        for connection in arrived:
            if connection is not self._listener:
                self._hear(connection)
        if self._listener in arrived:
            self._accept()
        for connection, caller in list(self.unknown.items()):
            if now > caller.deadline or len(self.unknown) > _MAX_UNKNOWN:
                self._end(connection)

    def _accept(self) -> None:
        """Accepts the next connection, as unknown."""
        try:
            connection, (host, _) = self._listener.accept()
        except (BlockingIOError, ConnectionError):  # already closed
            return
        except OSError:  # out of file descriptors: unknown connections are closed
            for caller in list(self.unknown)[:1]:
                self._end(caller)
            time.sleep(0.05)
            return
        connection.settimeout(CALL_SECS)
        self.unknown[connection] = _Caller(host, time.monotonic() + CALL_SECS)
        self._selector.register(connection, selectors.EVENT_READ)

    def _hear(self, connection: socket.socket) -> None:
        """Reads a connection's data, or its end."""
        try:
            data = connection.recv(MAX_LINE_BYTES)
        except OSError:
            data = b""
        if not data:
            if connection in self._ranks:
                rank = self._ranks.pop(connection)
                del self.present[rank]
                self.wait.problems[rank] = "its connection has ended"
            self._end(connection)
        elif connection in self.unknown:  # the others send nothing after the greeting
            caller = self.unknown[connection]
            caller.text += data
            line, end, _ = caller.text.partition(b"\n")  # the first packet may hold only a part of the line
            if len(caller.text) > MAX_LINE_BYTES:
                self._end(connection)
            elif end:
                self._greet(connection, line.decode(errors="replace"))

    def _greet(self, connection: socket.socket, line: str) -> None:
        """Accepts a connection that sends '<greeting> RANK NUMBER_OF_PROCESSES PORT', and refuses others."""
        cluster = self.wait.cluster
        match = _GREETING.fullmatch(line)
        rank, count, port = map(int, match.groups()) if match else (0, 0, 0)
        if not 0 < port < 2**16:
            self._end(connection)
        elif count != len(cluster.hosts) or not 0 < rank < count:
            waits = f"{cluster.name(0)} waits for {len(cluster.hosts)} processes, but this one is"
            self._refuse(connection, f"{waits} rank {rank} of {count}. Give all processes the same list.")
        elif rank in self.present:
            taken = f"Another process already has rank {rank}."
            self._refuse(connection, f"{taken} Give each process a different task index.")
        else:
            self._take_in(connection, rank, port)

    def _take_in(self, connection: socket.socket, rank: int, port: int) -> None:
        """Adds a process of the run, after connecting back to its address."""
        host, hosts = self.unknown[connection].host, self.wait.cluster.hosts
        if host.startswith("127."):  # on this machine: others reach it under the name of process 0
            host = parts(hosts[0])[0]
        address = hosts[rank] or f"{host}:{port}"
        try:
            call(address).close()
        except ConnectionError as error:
            self.wait.problems[rank] = f"it reaches this process, but cannot be reached ({error})"
            self._end(connection)
            return
        del self.unknown[connection]
        self.present[rank], self._ranks[connection], self.addresses[rank] = connection, rank, address
        self.wait.problems.pop(rank, None)
        if missing := self.missing():
            with contextlib.suppress(OSError):
                connection.sendall(f"missing {self.wait.describe(missing)}\n".encode())

    def _refuse(self, connection: socket.socket, why: str) -> None:
        with contextlib.suppress(OSError):
            connection.sendall(f"refused {why}\n".encode())
        self._end(connection)

    def _end(self, connection: socket.socket) -> None:
        self.unknown.pop(connection, None)
        self._selector.unregister(connection)
        connection.close()

    def close(self) -> None:
        """Closes the connections that do not belong to the run; all, if a process is missing."""
        self._selector.close()
        for connection in (*self.unknown, *(self.present.values() if self.missing() else ())):
            connection.close()


def gather(wait: Wait, listener: socket.socket) -> Met:
    """Waits, in process 0, for all others, and then lets them continue."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)  # a connection to each process is an open file
    needed = len(wait.cluster.hosts) + _OTHER_FILES
    if soft != resource.RLIM_INFINITY and soft < needed:
        most = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    connections = Connections(wait, listener)
    with contextlib.closing(connections):
        try:
            while missing := connections.missing():
                if wait.check(missing):
                    connections.tell("missing " + wait.describe(missing))
                connections.receive(wait.pause_secs())
        except PeerError as error:
            connections.tell(f"over {error}")
            raise
        except ConfigError as error:  # of an address
            connections.tell(f"refused {error}")
            raise
        connections.tell("go " + ",".join(connections.addresses))
    return Met(dataclasses.replace(wait.cluster, hosts=tuple(connections.addresses)), connections.present)


# -----------------------------------------------------------------------------------------------------------
# All processes
#
# Without TensorFlow, whose own wait logs nothing, ignores signals and lasts an hour.
#
# Process 0 listens at its address. The others listen at theirs, too, connect to process 0 and send their
# rank; it connects back, which detects a wrong address. A process without a given address takes a free port
# and reports it. Once all have connected, process 0 sends them the list of all addresses, and TensorFlow's
# servers use the same ports. The connections stay open for the heartbeat.


def meet(cluster: Cluster, timeout_secs: float) -> Met:
    """Returns once every process of the cluster has called this, almost simultaneously in all of them.

    Logs every few seconds which processes are missing. Signals may raise at any moment: there is nothing to
    save yet.

    Args:
      cluster: the processes.
      timeout_secs: seconds to wait for the others.

    Raises:
      ConfigError: if this process's port is in use, or another process has the same rank or another number of
        processes.
      PeerError: names the processes that did not connect in time.
    """
    with listen(cluster) as listener:
        wait = Wait(cluster, timeout_secs, listener.getsockname()[1])
        return gather(wait, listener) if cluster.rank == 0 else _join(wait)


def _join(wait: Wait) -> Met:
    """Calls process 0 until it answers, and waits for its permission to continue."""
    while True:
        try:
            connection = call(wait.cluster.hosts[0])
            wait.problems[0] = "it does not answer"
            with contextlib.ExitStack() as unless_met:
                unless_met.enter_context(connection)
                hosts = _stay(wait, connection)
                if hosts is not None:
                    unless_met.pop_all()
                    return Met(dataclasses.replace(wait.cluster, hosts=hosts), {0: connection})
            wait.problems[0], wait.heard = "it has ended the connection", None
        except ConnectionError as error:
            wait.problems[0] = str(error)
        wait.check([0])
        time.sleep(min(0.3, wait.pause_secs()))


def _stay(wait: Wait, connection: socket.socket) -> tuple[str, ...] | None:
    """Returns all addresses when process 0 lets the processes continue; None if the connection ended.
    Raises as `meet`."""
    cluster, text = wait.cluster, b""
    with contextlib.suppress(OSError):
        connection.sendall(f"{GREETING} {cluster.rank} {len(cluster.hosts)} {wait.port}\n".encode())
    while True:
        connection.settimeout(max(wait.pause_secs(), 0.01))
        try:
            data = connection.recv(MAX_LINE_BYTES)
        except TimeoutError:
            wait.check([0])
            continue
        except OSError:
            data = b""
        if not data:
            return None
        *lines, text = (text + data).split(b"\n")
        for line in lines:
            kind, _, rest = line.decode(errors="replace").partition(" ")
            if kind == "go":
                return tuple(rest.split(","))
            if kind == "refused":
                raise ConfigError(rest)
            if kind == "over":
                raise PeerError(rest)
            if kind == "missing":
                wait.heard = rest
