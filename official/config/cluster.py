"""The processes of a run: who they are, and which of them this one is. No TensorFlow."""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

from official.io.errors import ConfigError
from official.io.json_files import parse_json

if TYPE_CHECKING:
    from official.config.table import Config

_JOBS = ("chief", "worker")  # in the order of their ranks


@dataclasses.dataclass(frozen=True)
class Cluster:
    """The processes of a run. The first one is the chief: it writes files and talks to people.

    Attributes:
      hosts: host:port of every process, by rank.
      rank: which of them this process is.
    """

    hosts: tuple[str, ...]
    rank: int

    def name(self, rank: int) -> str:
        """Returns what people call a process: 'host:port (rank 1)'."""
        return f"{self.hosts[rank]} (rank {rank})"


def read_cluster(config: Config, environment: Mapping[str, str] = os.environ) -> Cluster:
    """Returns the processes that --worker_hosts and --task_index name, or else TF_CONFIG in the environment.

    In TF_CONFIG a `chief` has rank 0, workers follow. Its `ps` and `evaluator` jobs have no part in this
    strategy.

    Raises:
      ConfigError: where the processes are not named, or not in the right form.
    """
    if config.worker_hosts is None:
        if config.task_index is not None or not environment.get("TF_CONFIG"):
            raise ConfigError(
                "distribution_strategy=multi_worker_mirrored needs --worker_hosts and --task_index, or"
                " TF_CONFIG in the environment."
            )
        return _read_tf_config(environment["TF_CONFIG"])
    hosts = _checked_hosts(config.worker_hosts.split(","), "worker_hosts")
    if config.task_index is None or config.task_index >= len(hosts):
        raise ConfigError(
            f"task_index={config.task_index} with {len(hosts)} worker_hosts, expected 0 to {len(hosts) - 1}."
            " Set --task_index."
        )
    return Cluster(hosts, config.task_index)


def _read_tf_config(text: str) -> Cluster:
    try:
        values = parse_json(text, "TF_CONFIG")
        jobs, task = values["cluster"], values["task"]
        kind, index = task["type"], int(task["index"])
        lists = {job: list(jobs.get(job, ())) for job in _JOBS}
    except (ValueError, KeyError, TypeError, AttributeError):
        raise ConfigError(
            'TF_CONFIG is not of the form {"cluster": {"worker": ["HOST:PORT", ...]}, "task": {"type":'
            ' "worker", "index": 0}}. Correct it, or use --worker_hosts and --task_index.'
        ) from None
    if kind not in _JOBS:
        raise ConfigError(
            f"TF_CONFIG: this process is of type {str(kind)[:40]!r}, a run has only chief and worker. Start"
            " no other kind."
        )
    if not 0 <= index < len(lists[kind]):
        raise ConfigError(
            f"TF_CONFIG: task index {index} of type {kind!r}, the cluster has {len(lists[kind])} of them."
            " Correct TF_CONFIG."
        )
    if len(lists["chief"]) > 1:
        raise ConfigError(
            f"TF_CONFIG has {len(lists['chief'])} processes of type 'chief', expected one at most. Correct"
            " TF_CONFIG."
        )
    hosts = _checked_hosts(lists["chief"] + lists["worker"], "TF_CONFIG")
    return Cluster(hosts, index + (len(lists["chief"]) if kind == "worker" else 0))


def _checked_hosts(hosts: list, source: str) -> tuple[str, ...]:
    for host in hosts:
        match = re.fullmatch(r"[^\s:/]+:(\d{1,5})", host) if isinstance(host, str) else None
        if not match or not 0 < int(match[1]) < 2**16:
            raise ConfigError(
                f"{source}: {str(host)[:100]!r} is not HOST:PORT, with a port from 1 to 65535; expected"
                " host:port,host:port,..."
            )
        if hosts.count(host) > 1:
            raise ConfigError(f"{source} names {host} twice, expected one address a process.")
    return tuple(hosts)
