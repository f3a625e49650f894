"""Meeting of the processes of a run, at which they wait for each other.

No TensorFlow: its own wait is silent, answers no signal and lasts an hour.

Process 0 listens at its address. The others listen at theirs, too, call process 0 and say who they are; it
calls back, so that a wrong address is found out. Where the address of a process is not known beforehand, it
takes a free port and says which. Once all are there process 0 lets them go with the list of all addresses,
and TensorFlow's servers take the same ports. The connections stay: over them processes watch each other.
"""

import contextlib
import dataclasses
import socket
import time

from official.config.cluster import Cluster
from official.distribution.gathering import gather
from official.distribution.meeting import GREETING, LONGEST_LINE_BYTES, Met, Wait, call, listen
from official.io.errors import ConfigError, PeerError

__all__ = ["Met", "meet"]


def meet(cluster: Cluster, timeout_secs: float) -> Met:
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
    with listen(cluster) as listener:
        wait = Wait(cluster, timeout_secs, listener.getsockname()[1])
        return gather(wait, listener) if cluster.rank == 0 else _join(wait)


def _join(wait: Wait) -> Met:
    """Calls process 0 until it is there, and waits for its word."""
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
    """Returns the addresses of all when process 0 lets everybody go, None where the connection has ended.
    Raises as `meet`."""
    cluster, text = wait.cluster, b""
    with contextlib.suppress(OSError):
        connection.sendall(f"{GREETING} {cluster.rank} {len(cluster.hosts)} {wait.port}\n".encode())
    while True:
        connection.settimeout(max(wait.pause_secs(), 0.01))
        try:
            data = connection.recv(LONGEST_LINE_BYTES)
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
            _obey(wait, kind, rest)


def _obey(wait: Wait, kind: str, rest: str) -> None:
    """Takes a line of process 0's that lets nobody go. Raises as `meet`."""
    if kind == "refused":
        raise ConfigError(rest)
    if kind == "over":
        raise PeerError(rest)
    if kind == "missing":
        wait.heard = rest
