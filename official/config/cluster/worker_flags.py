"""Processes that are told by --worker_hosts and --task_index."""

from __future__ import annotations

from official.config.cluster.processes import Cluster, checked_hosts
from official.io.errors import ConfigError

SOURCE = "--worker_hosts"


def read(worker_hosts: str | None, task_index: int | None) -> Cluster | None:
    """Returns the processes that the two flags name; None where they are not given. Raises ConfigError."""
    if worker_hosts is None:
        if task_index is not None:
            raise ConfigError(f"task_index={task_index} is a number in --worker_hosts: give both, or none.")
        return None
    hosts = checked_hosts(worker_hosts.split(","), "worker_hosts")
    if task_index is None or task_index >= len(hosts):
        raise ConfigError(
            f"task_index={task_index} with {len(hosts)} worker_hosts, expected 0 to {len(hosts) - 1}."
            " Set --task_index."
        )
    return Cluster(hosts, task_index, SOURCE)
