"""Parts that both sides of a meeting need: a port to listen at, calls, and a wait that names the missing."""

import contextlib
import dataclasses
import random
import socket
import time

from absl import logging

from official.config.cluster import Cluster
from official.io.errors import ConfigError, PeerError

_SECS_BETWEEN_LINES = 5.0
CALL_SECS = 2.0  # for one try to reach a process
GREETING = "bert-run"
LONGEST_LINE_BYTES = 4096
_FREE_PORTS = range(21000, 29000)  # below those that systems give away by themselves


@dataclasses.dataclass(frozen=True)
class Met:
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
        _bind(listener, ports)
        listener.listen(len(cluster.hosts))
    except OSError as error:
        listener.close()
        raise ConfigError(
            f"The port of this process, {cluster.name(cluster.rank)}, cannot be used: {error.strerror}. End"
            " the program that has it, or give another one: --worker_hosts, TF_CONFIG, or BERT_PORT for what"
            " Slurm, MPI or Kubernetes have started."
        ) from None
    listener.setblocking(False)
    return listener


def _bind(listener: socket.socket, ports: list[int]) -> None:
    """Takes the first of some ports that is free. Raises OSError where none is."""
    for port in ports[:-1]:
        with contextlib.suppress(OSError):
            listener.bind(("", port))
            return
    listener.bind(("", ports[-1]))


def parts(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host, int(port)


def call(address: str) -> socket.socket:
    """Returns a connection to host:port. Raises ConnectionError, whose message says why there is none, and
    ConfigError where there never will be one."""
    try:
        return socket.create_connection(parts(address), timeout=CALL_SECS)
    except (socket.gaierror, UnicodeError):
        raise ConnectionError("no such host is known") from None
    except OSError as error:
        _check_ipv4(parts(address)[0])
        is_silent = isinstance(error, TimeoutError)
        raise ConnectionError("no answer" if is_silent else error.strerror or "no answer") from None


def _check_ipv4(host: str) -> None:
    """Raises ConfigError for a host at which no process of a run can listen."""
    found: list[tuple] = []
    with contextlib.suppress(OSError, UnicodeError):
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    if found and all(family == socket.AF_INET6 for family, *_ in found):
        raise ConfigError(
            f"Host {host} of the run's processes has IPv6 addresses only, such as {found[0][4][0]}; expected"
            " one of IPv4. Give it one, or another name of that machine in --worker_hosts,"
            " --coordinator_address or TF_CONFIG."
        )


class Wait:
    """Wait of this process, which listens at a port: time limit, and the lines that say who is missing."""

    def __init__(self, cluster: Cluster, timeout_secs: float, port: int):
        self.cluster, self.port = cluster, port
        self._timeout_secs = timeout_secs
        self._started = time.monotonic()
        self._next_line = self._started + _SECS_BETWEEN_LINES
        self.problems: dict[int, str] = {}  # {rank: why it cannot be reached, where that is known}
        self.heard: str | None = None  # of the others: whom process 0 waits for

    def pause_secs(self) -> float:
        """Returns the seconds to the next line or the end, a second at most."""
        return min(1.0, max(0.0, min(self._next_line, self._started + self._timeout_secs) - time.monotonic()))

    def describe(self, missing: list[int]) -> str:
        """Returns the missing processes in words, as many as a line holds."""
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
