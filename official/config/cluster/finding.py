"""Asks all who may have started this process, and has the last word where they contradict each other."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping
from typing import Protocol

from official.config.cluster import kubernetes, mpi, slurm, tf_config, worker_flags
from official.config.cluster.processes import Cluster, checked_hosts
from official.io.errors import ConfigError

_WITH_ADDRESSES = (worker_flags.SOURCE, tf_config.SOURCE)  # of people's choice


class Asked(Protocol):
    """The settings that name processes, see `official.config.settings.devices`."""

    @property
    def worker_hosts(self) -> str | None: ...

    @property
    def task_index(self) -> int | None: ...

    @property
    def coordinator_address(self) -> str | None: ...


def read_cluster(asked: Asked, environment: Mapping[str, str] = os.environ) -> Cluster:
    """Returns the processes of a run, as the flags, TF_CONFIG, Kubernetes, Slurm or MPI name them.

    Raises:
      ConfigError: where nobody names them, they are not in the right form, or two contradict each other.
    """
    cluster = find_cluster(asked, environment)
    if cluster is None:
        raise ConfigError(
            "distribution_strategy=multi_worker_mirrored needs --worker_hosts and --task_index, TF_CONFIG in"
            " the environment, or to be started by bert launch, srun, mpirun or an Indexed Job of Kubernetes"
            " with BERT_WORKERS."
        )
    if "" in cluster.hosts[:1]:
        raise ConfigError(
            f"{cluster.source} has started {len(cluster.hosts)} processes on several hosts and does not say"
            f" which. Give all of them --coordinator_address=HOST:PORT, of the host of rank 0."
        )
    return cluster


def find_cluster(asked: Asked, environment: Mapping[str, str] = os.environ) -> Cluster | None:
    """Returns the processes of a run, perhaps without addresses; None where nobody names any. Raises
    ConfigError as `read_cluster` does."""
    needs_addresses = asked.coordinator_address is None
    readers: list[Callable[[], Cluster | None]] = [
        lambda: worker_flags.read(asked.worker_hosts, asked.task_index),
        lambda: tf_config.read(environment),
        lambda: kubernetes.read(environment, needs_addresses),
        # What mpirun has started may be below a step of Slurm's, whose tasks are then mpirun's daemons.
        lambda: mpi.read(environment) or slurm.read(environment, needs_addresses),
    ]
    found: list[Cluster] = []
    for read in readers:
        try:
            cluster = read()
        except ConfigError:
            if not any(each.source in _WITH_ADDRESSES for each in found):
                raise
            continue  # people's own choice is the way out of what cannot be read
        found += [cluster] if cluster else []
    # Inside of what is one process for a scheduler, another launcher may start several.
    found = [each for each in found if len(each.hosts) > 1 or each.source in _WITH_ADDRESSES] or found
    for other in found[1:]:
        _check_agreement(found[0], other)
    return _with_coordinator(found[0], asked.coordinator_address) if found else None


def _check_agreement(first: Cluster, other: Cluster) -> None:
    """Raises ConfigError where two say something else."""
    same_place = (first.rank, len(first.hosts)) == (other.rank, len(other.hosts))
    both_chosen = {first.source, other.source} <= set(_WITH_ADDRESSES)
    if not same_place or both_chosen and first.hosts != other.hosts:
        ours, theirs = (
            f"rank {each.rank} of {len(each.hosts)}" + (f" ({each.hosts[0]}, ...)" if both_chosen else "")
            for each in (first, other)
        )
        raise ConfigError(
            f"{first.source} and {other.source} contradict each other: {ours}, and {theirs}. Keep one of"
            " them, or correct it."
        )


def _with_coordinator(cluster: Cluster, address: str | None) -> Cluster:
    """Returns processes of which the first is at an address and the others tell theirs when they meet."""
    if address is None:
        return cluster
    checked_hosts([address], "coordinator_address")
    if cluster.source not in _WITH_ADDRESSES:
        hosts = (address, *[""] * (len(cluster.hosts) - 1))
        return dataclasses.replace(cluster, hosts=hosts)
    if address != cluster.hosts[0]:
        raise ConfigError(
            f"coordinator_address={address} and {cluster.source} contradict each other, whose first process"
            f" is at {cluster.hosts[0]}. Drop --coordinator_address."
        )
    return cluster
