"""Processes of a run: their addresses, and the rank of this one."""

from __future__ import annotations

import dataclasses
import itertools
import os
import re
import zlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from official.io.errors import ConfigError
from official.io.json_files import parse_json

# -----------------------------------------------------------------------------------------------------------
# Processes


PORT_VARIABLE = "BERT_PORT"
# Below the ports that systems assign themselves (32768 and up on Linux, 30000 on Kubernetes' nodes).
_FIRST_PORT, _PORTS_OF_A_JOB, _JOBS = 21000, 16, 500


@dataclasses.dataclass(frozen=True)
class Cluster:
    """The processes of a run. The first one is the chief, which writes the files and the user's log.

    Attributes:
      hosts: host:port of every process, by rank; '' if it is unknown before they meet.
      rank: rank of this process.
      source: source of this information, for messages.
    """

    hosts: tuple[str, ...]
    rank: int
    source: str = dataclasses.field(default="", compare=False)

    def name(self, rank: int) -> str:
        """Returns the name of a process in messages: 'host:port (rank 1)', or 'rank 1'."""
        return f"{self.hosts[rank]} (rank {rank})" if self.hosts[rank] else f"rank {rank}"

    def describe(self) -> str:
        """Returns the rank of this process and its source, for the log."""
        address = self.hosts[self.rank] or "an address that the others will receive"
        return f"Rank {self.rank} of {len(self.hosts)} at {address}, according to {self.source}"


def checked_hosts(hosts: Iterable, source: str) -> tuple[str, ...]:
    """Returns addresses after checking that they are unique and of the form HOST:PORT. Raises ConfigError."""
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
        raise ConfigError(f"{source} names {twice} twice, expected one address per process.")
    return tuple(hosts)


def number(environment: Mapping[str, str], name: str, most: int | None = None) -> int:
    """Returns the number in an environment variable, from 0 to `most`. Raises ConfigError for anything
    else."""
    text = environment.get(name, "").strip()
    if not re.fullmatch(r"[0-9]{1,9}", text) or most is not None and int(text) > most:
        received = repr(text[:50]) if text else "nothing"
        allowed = "a number" if most is None else f"a number from 0 to {most}"
        raise ConfigError(f"{name} in the environment is {received}, expected {allowed}. Correct {name}.")
    return int(text)


def rank_and_count(environment: Mapping[str, str], rank_name: str, count_name: str) -> tuple[int, int]:
    """Returns the rank of this process and the number of processes. Raises ConfigError."""
    count = number(environment, count_name)
    if not count:
        raise ConfigError(f"{count_name} in the environment is 0, expected 1 or more. Correct {count_name}.")
    return number(environment, rank_name, count - 1), count


def port_of_job(environment: Mapping[str, str], job: str, default: int | None = None) -> int:
    """Returns the first port of a job's processes on a host: BERT_PORT, or a port derived from the job's
    name, so that two jobs on one machine use different ones. Raises ConfigError."""
    if not environment.get(PORT_VARIABLE):
        return default or _FIRST_PORT + _PORTS_OF_A_JOB * (zlib.crc32(job.encode()) % _JOBS)
    port = number(environment, PORT_VARIABLE, 2**16 - 1)
    if not port:
        raise ConfigError(f"{PORT_VARIABLE}=0 in the environment, expected a port from 1 to 65535.")
    return port


def addresses(hosts: Iterable[str], first_port: int, source: str) -> tuple[str, ...]:
    """Returns host:port of processes on these hosts, by rank; those on one host have consecutive ports.
    Raises ConfigError if the ports run out."""
    taken: dict[str, int] = {}
    found = []
    for host in hosts:
        port = taken.get(host, first_port)
        taken[host] = port + 1
        found.append(f"{host}:{port}")
    return checked_hosts(found, source)


# -----------------------------------------------------------------------------------------------------------
# --worker_hosts


WORKER_FLAGS_SOURCE = "--worker_hosts"


def read_worker_flags(worker_hosts: str | None, task_index: int | None) -> Cluster | None:
    """Returns the processes of the two flags; None if these are not given. Raises ConfigError."""
    if worker_hosts is None:
        if task_index is not None:
            raise ConfigError(f"task_index={task_index} is an index in --worker_hosts: give both, or none.")
        return None
    hosts = checked_hosts(worker_hosts.split(","), "worker_hosts")
    if task_index is None or task_index >= len(hosts):
        raise ConfigError(
            f"task_index={task_index} with {len(hosts)} worker_hosts, expected 0 to {len(hosts) - 1}."
            " Set --task_index."
        )
    return Cluster(hosts, task_index, WORKER_FLAGS_SOURCE)


# -----------------------------------------------------------------------------------------------------------
# TF_CONFIG


TF_CONFIG_SOURCE = "TF_CONFIG"
_TF_CONFIG_JOBS = ("chief", "worker")  # in the order of their ranks


def read_tf_config(environment: Mapping[str, str]) -> Cluster | None:
    """Returns the processes of TF_CONFIG; None if it is missing or names no cluster.

    A `chief` has rank 0, workers follow. `ps` and `evaluator` jobs have no part in this strategy.

    Raises:
      ConfigError: if it is malformed.
    """
    text = environment.get(TF_CONFIG_SOURCE)
    if not text:
        return None
    try:
        values = parse_json(text, TF_CONFIG_SOURCE)
        if values.keys().isdisjoint(("cluster", "task")):
            return None
        jobs, task = values["cluster"], values["task"]
        kind, index = task["type"], int(task["index"])
        lists = {job: list(jobs.get(job, ())) for job in _TF_CONFIG_JOBS}
    except (ValueError, KeyError, TypeError, AttributeError):
        raise ConfigError(
            'TF_CONFIG is not of the form {"cluster": {"worker": ["HOST:PORT", ...]}, "task": {"type":'
            ' "worker", "index": 0}}. Correct it, or use --worker_hosts and --task_index.'
        ) from None
    wrong = ""
    if kind not in _TF_CONFIG_JOBS:
        wrong = f"this process has type {str(kind)[:40]!r}, allowed are chief and worker"
    elif not 0 <= index < len(lists[kind]):
        wrong = f"task index {index} of type {kind!r}, but the cluster has only {len(lists[kind])} of them"
    elif len(lists["chief"]) > 1:
        wrong = f"{len(lists['chief'])} processes of type 'chief', expected one at most"
    if wrong:
        raise ConfigError(f"TF_CONFIG: {wrong}. Correct TF_CONFIG.")
    hosts = checked_hosts(lists["chief"] + lists["worker"], TF_CONFIG_SOURCE)
    return Cluster(hosts, index + (len(lists["chief"]) if kind == "worker" else 0), TF_CONFIG_SOURCE)


# -----------------------------------------------------------------------------------------------------------
# Slurm
#
# Source: https://slurm.schedmd.com/srun.html, OUTPUT ENVIRONMENT VARIABLES.


SLURM_SOURCE = "the Slurm step"
_HOSTS, _TASKS = "SLURM_STEP_NODELIST", "SLURM_STEP_TASKS_PER_NODE"
_MOST_HOSTS = 1 << 16


def read_slurm(environment: Mapping[str, str], needs_addresses: bool = True) -> Cluster | None:
    """Returns the tasks of the Slurm step, with addresses if needed; None outside of one. Raises ConfigError
    for unreadable variables."""
    if not environment.get("SLURM_STEP_NUM_TASKS"):
        return None
    rank, count = rank_and_count(environment, "SLURM_PROCID", "SLURM_STEP_NUM_TASKS")
    if not needs_addresses:
        return Cluster(("",) * count, rank, SLURM_SOURCE)
    distribution = environment.get("SLURM_DISTRIBUTION", "")
    if re.split("[:=,]", distribution)[0] in ("plane", "arbitrary"):
        raise ConfigError(
            f"SLURM_DISTRIBUTION={distribution[:30]} does not set the host of each task. Start it with srun"
            " --distribution=block or cyclic, or give --worker_hosts=HOST:PORT of the first task."
        )
    hosts, tasks = host_names(environment.get(_HOSTS, "")), tasks_per_host(environment.get(_TASKS, ""))
    if len(hosts) != len(tasks) or sum(tasks) != count:
        raise ConfigError(
            f"Slurm contradicts itself: {count} tasks (SLURM_STEP_NUM_TASKS), {sum(tasks)} on {len(tasks)}"
            f" hosts ({_TASKS}), {len(hosts)} hosts ({_HOSTS}). Give --worker_hosts and --task_index."
        )
    turns = [(turn, host) for host, count in enumerate(tasks) for turn in range(count)]
    if distribution.startswith("cyclic"):  # tasks go to the hosts in turn
        turns.sort()
    places = [host for _, host in turns]
    if environment.get("SLURM_NODEID") and places[rank] != number(environment, "SLURM_NODEID"):
        raise ConfigError(
            f"Task {rank} of the Slurm step is on host {environment['SLURM_NODEID'][:9]}, expected"
            f" {places[rank]}. Start it with srun --distribution=block, or give --worker_hosts=HOST:PORT of"
            " the first task."
        )
    job = ".".join(environment.get(f"SLURM_{name}_ID", "") for name in ("JOB", "STEP"))
    port = port_of_job(environment, f"slurm {job}")
    return Cluster(addresses((hosts[place] for place in places), port, _HOSTS), rank, SLURM_SOURCE)


def host_names(text: str) -> list[str]:
    """Expands a list of names of Slurm: `a[01-03,7],b` is a01, a02, a03, a7 and b.

    Raises:
      ConfigError: for a malformed list.
    """
    parts = re.findall(r"(?:[^,\[\]]|\[[^\[\]]*\])+", text)
    names = [name for part in parts for name in itertools.islice(_names_of(part), _MOST_HOSTS)]
    if not names or ",".join(parts) != text:
        raise ConfigError(f"{_HOSTS}={text[:100]!r} is not a list such as node[01-03,7],other.")
    return names


def _names_of(part: str):
    pieces = re.split(r"\[([^\]]*)\]", part)  # text, numbers, text, numbers, ..., text
    choices = [_numbers(piece) if place % 2 else [piece] for place, piece in enumerate(pieces)]
    return map("".join, itertools.product(*choices))


def _numbers(text: str) -> list[str]:
    """Returns the numbers of `01-03,7` with their leading zeros."""
    found: list[str] = []
    for part in text.split(","):
        match = re.fullmatch(r"(\d{1,9})(?:-(\d{1,9}))?", part)
        if not match or int(match[2] or match[1]) - int(match[1]) not in range(_MOST_HOSTS):
            raise ConfigError(f"{_HOSTS}: [{text[:100]}] are not numbers such as [01-03,7].")
        first, last = match[1], match[2] or match[1]
        found += [str(value).zfill(len(first)) for value in range(int(first), int(last) + 1)]
    return found


def tasks_per_host(text: str) -> list[int]:
    """Returns the number of tasks of each host: `2(x3),1` is 2, 2, 2 and 1. Raises ConfigError for a
    malformed list."""
    found: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"(\d{1,6})(?:\(x(\d{1,5})\))?", part)
        if not match:
            raise ConfigError(f"{_TASKS}={text[:100]!r} is not a list such as 2(x3),1.")
        found += [int(match[1])] * int(match[2] or 1)
    return found


# -----------------------------------------------------------------------------------------------------------
# mpirun and poprun
#
# Open MPI sets OMPI_COMM_WORLD_RANK and _SIZE for each process, MPICH and Intel MPI set PMI_RANK and
# PMI_SIZE; poprun starts Open MPI's and adds POPDIST_*. None has the addresses of the others. Source:
# https://docs.open-mpi.org/en/v5.0.x/tuning-apps/environment-var.html


# {variable with the count: (variables with the rank, the count and the rank on this host)}
MPI_VARIABLES = {
    "OMPI_COMM_WORLD_SIZE": (
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_LOCAL_SIZE",
        "OMPI_COMM_WORLD_LOCAL_RANK",
    ),
    "PMI_SIZE": ("PMI_RANK", "MPI_LOCALNRANKS", "MPI_LOCALRANKID"),
}
_JOB_NAMES = ("PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid")  # Open MPI's; others: the common parent process


def read_mpi(environment: Mapping[str, str]) -> Cluster | None:
    """Returns the processes of MPI's world; None if MPI did not start this one. Their addresses are known if
    all are on this host. Raises ConfigError for contradictions."""
    count_name = next((name for name in MPI_VARIABLES if environment.get(name)), None)
    if count_name is None:
        return None
    rank_name, local_name, _ = MPI_VARIABLES[count_name]
    if (
        count_name == "PMI_SIZE"
        and environment.get("SLURM_STEP_NUM_TASKS")
        and not environment.get(local_name)
    ):
        return None  # set by Slurm itself with srun --mpi=pmi2
    rank, count = rank_and_count(environment, rank_name, count_name)
    if environment.get("PMIX_RANK") and number(environment, "PMIX_RANK") != rank:
        raise ConfigError(
            f"MPI contradicts itself: {rank_name}={rank}, PMIX_RANK={environment['PMIX_RANK'][:9]}. Start the"
            " command again, outside of other MPI processes."
        )
    source = _check_poprun(environment, rank, count)
    if count > 1 and (not environment.get(local_name) or number(environment, local_name) != count):
        return Cluster(("",) * count, rank, source)
    job = " ".join(environment.get(name, "") for name in _JOB_NAMES).strip() or str(os.getppid())
    port = port_of_job(environment, f"mpi {job}")
    return Cluster(addresses(["localhost"] * count, port, source), rank, source)


def _check_poprun(environment: Mapping[str, str], rank: int, count: int) -> str:
    """Returns the launcher of the processes. Raises ConfigError if poprun contradicts MPI."""
    if not environment.get("POPDIST_NUM_TOTAL_REPLICAS"):
        return "mpirun"
    names = [
        f"POPDIST_{name}" for name in ("NUM_LOCAL_REPLICAS", "NUM_TOTAL_REPLICAS", "REPLICA_INDEX_OFFSET")
    ]
    local, total, offset = (number(environment, name) for name in names)
    if local * count != total or local * rank != offset:
        raise ConfigError(
            f"poprun and MPI contradict each other: rank {rank} of {count}, but POPDIST_* has"
            f" {local} of {total} replicas here, from {offset} on. Start all processes with one poprun."
        )
    return "poprun"


# -----------------------------------------------------------------------------------------------------------
# Kubernetes
#
# Kubernetes sets each pod's number, JOB_COMPLETION_INDEX, and its name, <job>-<number>. The manifest sets the
# number of pods (BERT_WORKERS) and the name of the service for the pods' host names (BERT_SERVICE). Source:
# https://kubernetes.io/docs/tasks/job/job-with-pod-to-pod-communication/


KUBERNETES_SOURCE = "the Kubernetes job"
_DEFAULT_PORT = 2222  # every pod has its own address


def read_kubernetes(environment: Mapping[str, str], needs_addresses: bool = True) -> Cluster | None:
    """Returns the pods of the job, with addresses if needed; None if the manifest does not set the number of
    workers. Raises ConfigError for missing or contradictory variables."""
    if not environment.get("BERT_WORKERS"):
        return None
    rank, count = rank_and_count(environment, "JOB_COMPLETION_INDEX", "BERT_WORKERS")
    if not needs_addresses:
        return Cluster(("",) * count, rank, KUBERNETES_SOURCE)
    port = port_of_job(environment, "", _DEFAULT_PORT)
    if count == 1:
        return Cluster(addresses(["localhost"], port, KUBERNETES_SOURCE), 0, KUBERNETES_SOURCE)
    name, service = environment.get("HOSTNAME", ""), environment.get("BERT_SERVICE", "")
    if not service:
        raise ConfigError(
            f"BERT_WORKERS={count} in the environment needs BERT_SERVICE, the name of the pods' headless"
            " service. Set it in the manifest."
        )
    if not name.endswith(f"-{rank}"):
        raise ConfigError(
            f"HOSTNAME={name[:60]!r} is not JOB-{rank}, the name of pod {rank} of an Indexed Job"
            " (JOB_COMPLETION_INDEX), from which the names of the others follow. Drop hostNetwork, or give"
            " the address of the first process: --worker_hosts=HOST:PORT."
        )
    job = name[: -len(f"-{rank}")]
    return Cluster(
        addresses((f"{job}-{index}.{service}" for index in range(count)), port, KUBERNETES_SOURCE),
        rank,
        KUBERNETES_SOURCE,
    )


# -----------------------------------------------------------------------------------------------------------
# The relevant launcher


_WITH_ADDRESSES = (WORKER_FLAGS_SOURCE, TF_CONFIG_SOURCE)  # chosen by the user


def read_cluster(asked: Any, environment: Mapping[str, str] = os.environ) -> Cluster:
    """Returns the processes of a run, from the flags, TF_CONFIG, Kubernetes, Slurm or MPI.

    Args:
      asked: the configuration, or another object with worker_hosts and task_index.
      environment: environment variables of this process.

    Raises:
      ConfigError: if no source names them, one is malformed, or two contradict each other.
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
            f"{cluster.source} has started {len(cluster.hosts)} processes on several hosts without naming"
            " these. Give all processes --worker_hosts=HOST:PORT, of the host of rank 0."
        )
    return cluster


def find_cluster(asked: Any, environment: Mapping[str, str] = os.environ) -> Cluster | None:
    """Returns the processes of a run, possibly without addresses; None if no source names any. Raises
    ConfigError as `read_cluster` does."""
    # A single address without a task index is that of the first process, if another source has the count.
    is_alone = asked.task_index is None and asked.worker_hosts is not None and "," not in asked.worker_hosts
    first = asked.worker_hosts if is_alone else None
    needs_addresses = first is None
    readers: list[Callable[[], Cluster | None]] = [
        lambda: None if first else read_worker_flags(asked.worker_hosts, asked.task_index),
        lambda: read_tf_config(environment),
        lambda: read_kubernetes(environment, needs_addresses),
        # mpirun may run inside a Slurm step, whose tasks are then mpirun's daemons.
        lambda: read_mpi(environment) or read_slurm(environment, needs_addresses),
    ]
    found: list[Cluster] = []
    for read in readers:
        try:
            cluster = read()
        except ConfigError:
            if not any(each.source in _WITH_ADDRESSES for each in found):
                raise
            continue  # the user's choice overrides unreadable variables
        found += [cluster] if cluster else []
    # Another launcher may start several processes inside a scheduler's single one.
    found = [each for each in found if len(each.hosts) > 1 or each.source in _WITH_ADDRESSES] or found
    for other in found[1:]:
        _check_agreement(found[0], other)
    if first:
        return _with_first(found[0], first) if found else read_worker_flags(first, None)  # refuses it
    return found[0] if found else None


def _check_agreement(first: Cluster, other: Cluster) -> None:
    """Raises ConfigError if two sources contradict each other."""
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


def _with_first(cluster: Cluster, address: str) -> Cluster:
    """Returns processes with the address of the first; the others report theirs at the start."""
    checked_hosts([address], "worker_hosts")
    if cluster.source not in _WITH_ADDRESSES:
        hosts = (address, *[""] * (len(cluster.hosts) - 1))
        return dataclasses.replace(cluster, hosts=hosts)
    if address != cluster.hosts[0]:
        raise ConfigError(
            f"worker_hosts={address} contradicts {cluster.source}, whose first process is at"
            f" {cluster.hosts[0]}. Drop --worker_hosts."
        )
    return cluster
