"""The processes of a run, and the checks of their addresses and ranks."""

from __future__ import annotations

import dataclasses
import re
import zlib
from collections.abc import Iterable, Mapping

from official.io.errors import ConfigError

PORT_VARIABLE = "BERT_PORT"
# Below the ports that systems give away by themselves (32768 and up on Linux, 30000 on Kubernetes' nodes).
_FIRST_PORT, _PORTS_OF_A_JOB, _JOBS = 21000, 16, 500


@dataclasses.dataclass(frozen=True)
class Cluster:
    """The processes of a run. The first one is the chief: it writes files and talks to people.

    Attributes:
      hosts: host:port of every process, by rank; '' where it is not known before they meet.
      rank: which of them this process is.
      source: who says so, for people.
    """

    hosts: tuple[str, ...]
    rank: int
    source: str = dataclasses.field(default="", compare=False)

    def name(self, rank: int) -> str:
        """Returns the name of a process in messages: 'host:port (rank 1)', or 'rank 1'."""
        return f"{self.hosts[rank]} (rank {rank})" if self.hosts[rank] else f"rank {rank}"

    def describe(self) -> str:
        """Returns the place of this process and the source that says so, for the log."""
        address = self.hosts[self.rank] or "an address that the others will be told"
        return f"Rank {self.rank} of {len(self.hosts)} at {address}, says {self.source}"


def checked_hosts(hosts: Iterable, source: str) -> tuple[str, ...]:
    """Returns addresses of the form HOST:PORT, each there once. Raises ConfigError for others."""
    hosts = list(hosts)
    for host in hosts:
        match = re.fullmatch(r"[^\s:/]+:(\d{1,5})", host) if isinstance(host, str) else None
        if not match or not 0 < int(match[1]) < 2**16:
            raise ConfigError(
                f"{source}: {str(host)[:100]!r} is not HOST:PORT, with a port from 1 to 65535; expected"
                " host:port,host:port,..."
            )
    if len(set(hosts)) < len(hosts):
        twice = next(host for host in hosts if hosts.count(host) > 1)
        raise ConfigError(f"{source} names {twice} twice, expected one address a process.")
    return tuple(hosts)


def number(environment: Mapping[str, str], name: str, most: int | None = None) -> int:
    """Returns the number that a variable holds, from 0 to `most`. Raises ConfigError for anything else."""
    text = environment.get(name, "").strip()
    if not re.fullmatch(r"[0-9]{1,9}", text) or most is not None and int(text) > most:
        received = repr(text[:50]) if text else "nothing"
        allowed = "a number" if most is None else f"a number from 0 to {most}"
        raise ConfigError(f"{name} in the environment is {received}, expected {allowed}. Correct {name}.")
    return int(text)


def rank_and_count(environment: Mapping[str, str], rank_name: str, count_name: str) -> tuple[int, int]:
    """Returns the rank of this process and how many there are. Raises ConfigError."""
    count = number(environment, count_name)
    if not count:
        raise ConfigError(f"{count_name} in the environment is 0, expected 1 or more. Correct {count_name}.")
    return number(environment, rank_name, count - 1), count


def port_of_job(environment: Mapping[str, str], job: str, default: int | None = None) -> int:
    """Returns the first port of a job's processes on a host: what BERT_PORT says, or else one that follows
    from the job's name, so that two jobs on one machine have others. Raises ConfigError."""
    if not environment.get(PORT_VARIABLE):
        return default or _FIRST_PORT + _PORTS_OF_A_JOB * (zlib.crc32(job.encode()) % _JOBS)
    port = number(environment, PORT_VARIABLE, 2**16 - 1)
    if not port:
        raise ConfigError(f"{PORT_VARIABLE}=0 in the environment, expected a port from 1 to 65535.")
    return port


def addresses(hosts: Iterable[str], first_port: int, source: str) -> tuple[str, ...]:
    """Returns host:port of processes on these hosts, by rank; those of a host have ports that follow each
    other. Raises ConfigError where the ports end."""
    taken: dict[str, int] = {}
    found = []
    for host in hosts:
        port = taken.get(host, first_port)
        taken[host] = port + 1
        found.append(f"{host}:{port}")
    return checked_hosts(found, source)
