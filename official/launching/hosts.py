"""Processes of a job, and their hosts."""

from __future__ import annotations

import contextlib
import dataclasses
import ipaddress
import json
import re
import socket
from collections.abc import Iterator

from official.config.cluster.slurm import host_names
from official.io.errors import ConfigError

_ENTRY = re.compile(r"([^:]+)(?::(\d{1,5}))?")
_NAME = re.compile(r"[\w.][\w.-]*")  # of a machine: what other programs take for neither an option nor more
_MOST_PORTS = 2**16


@dataclasses.dataclass(frozen=True)
class Host:
    """An entry of --hosts.

    Attributes:
      name: the name or address of the machine.
      port: of its first process; None: any that is free.
    """

    name: str
    port: int | None


@dataclasses.dataclass(frozen=True)
class Worker:
    """A process of a job.

    Attributes:
      rank: its number in the job.
      host: the machine that it runs on.
      port: at which the other processes reach it.
      is_local: whether it runs on this machine.
    """

    rank: int
    host: str
    port: int
    is_local: bool

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"

    @property
    def name(self) -> str:
        """Name of the process in messages: its rank and its address."""
        return f"rank {self.rank} ({self.address})"


def read_hosts(text: str, instances_per_host: int = 1) -> list[Host]:
    """Returns the machines of --hosts=HOST[:PORT],..., where HOST may have a range: node[0-2,4].

    Raises:
      ConfigError: for what is no host, or an address that two processes would have.
    """
    hosts = [host for entry in _split(text) for host in _read_entry(entry)]
    if not hosts:
        raise ConfigError(f"--hosts={text[:100]!r} names no host, expected HOST:PORT,HOST:PORT,...")
    taken: set[tuple[str, int]] = set()
    for host in hosts:
        for port in range(host.port, host.port + instances_per_host) if host.port else ():
            if port >= _MOST_PORTS or (host.name, port) in taken:
                problem = "is no port" if port >= _MOST_PORTS else "is there twice"
                raise ConfigError(
                    f"--hosts: {host.name}:{port} {problem}; each process takes one, from the port of its"
                    f" host on (--instances_per_host={instances_per_host}). Give other ports."
                )
            taken.add((host.name, port))
    return hosts


def _split(text: str) -> list[str]:
    """Returns the entries between commas that stand in no brackets."""
    return [entry.strip() for entry in re.split(r",(?![^\[]*\])", text) if entry.strip()]


def _read_entry(entry: str) -> Iterator[Host]:
    match = _ENTRY.fullmatch(entry)
    try:
        names = host_names(match[1]) if match else []
    except ConfigError:
        names = []
    is_port = not match or not match[2] or 0 < int(match[2]) < _MOST_PORTS
    if not names or not is_port or not all(map(_NAME.fullmatch, names)):
        raise ConfigError(
            f"--hosts: {entry[:100]!r} is not HOST, HOST:PORT or HOST[0-2,4]:PORT, with a port from 1 to"
            " 65535, and a name of letters, digits and . _ -, the first no -."
        )
    assert match
    for name in names:
        yield Host(name, int(match[2]) if match[2] else None)


def make_workers(hosts: list[Host], instances_per_host: int) -> list[Worker]:
    """Returns the processes of a job by rank: those of the first host, then those of the second.

    Raises:
      ConfigError: for a host elsewhere without a port, and for this machine as 'localhost' among others.
    """
    here = {host.name: is_local(host.name) for host in hosts}
    for host in hosts:
        if host.port is None and not here[host.name]:
            raise ConfigError(
                f"--hosts: {host.name} has no port, and only on this machine a free one is looked for. Give"
                f" {host.name}:PORT."
            )
        if not all(here.values()) and _is_loopback(host.name):
            raise ConfigError(
                f"--hosts: {host.name} means another machine to each host. Give a name or an address by which"
                " the others reach this one."
            )
    wanted = sum(instances_per_host for host in hosts if host.port is None)
    free = iter(_free_ports(wanted))
    places = [
        (host.name, next(free) if host.port is None else host.port + instance)
        for host in hosts
        for instance in range(instances_per_host)
    ]
    return [Worker(rank, name, port, here[name]) for rank, (name, port) in enumerate(places)]


def is_local(name: str) -> bool:
    """Whether a name or an address is one of this machine's."""
    try:
        found = {info[4][:2] for info in socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)}
    except (OSError, UnicodeError):
        return False
    return any(_can_bind(str(address)) for address, _ in found)


def _can_bind(address: str) -> bool:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        with socket.socket(family) as probe:
            probe.bind((address, 0))
    except OSError:
        return False
    return True


def _is_loopback(name: str) -> bool:
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(name).is_loopback
    return name == "localhost"


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("", 0))
        return [each.getsockname()[1] for each in sockets]


def tf_config(workers: list[Worker], rank: int) -> str:
    """Returns TF_CONFIG of a process: who is in the job, and which of them it is."""
    addresses = [worker.address for worker in workers]
    return json.dumps({"cluster": {"worker": addresses}, "task": {"type": "worker", "index": rank}})
