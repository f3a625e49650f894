"""Processes that are the tasks of a Slurm step: what srun starts. The shell of a batch script is none.

Source: https://slurm.schedmd.com/srun.html, OUTPUT ENVIRONMENT VARIABLES.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping

from official.config.cluster.processes import Cluster, addresses, number, port_of_job, rank_and_count
from official.io.errors import ConfigError

SOURCE = "the Slurm step"
_HOSTS, _TASKS = "SLURM_STEP_NODELIST", "SLURM_STEP_TASKS_PER_NODE"
_MOST_HOSTS = 1 << 16


def read(environment: Mapping[str, str], needs_addresses: bool = True) -> Cluster | None:
    """Returns the tasks of the step, with their addresses where these are needed; None outside of one. Raises
    ConfigError for what cannot be read."""
    if not environment.get("SLURM_STEP_NUM_TASKS"):
        return None
    rank, count = rank_and_count(environment, "SLURM_PROCID", "SLURM_STEP_NUM_TASKS")
    if not needs_addresses:
        return Cluster(("",) * count, rank, SOURCE)
    _check_distribution(environment.get("SLURM_DISTRIBUTION", ""))
    hosts, tasks = host_names(environment.get(_HOSTS, "")), tasks_per_host(environment.get(_TASKS, ""))
    if len(hosts) != len(tasks) or sum(tasks) != count:
        raise ConfigError(
            f"Slurm contradicts itself: {count} tasks (SLURM_STEP_NUM_TASKS), {sum(tasks)} on {len(tasks)}"
            f" hosts ({_TASKS}), {len(hosts)} hosts ({_HOSTS}). Give --worker_hosts and --task_index."
        )
    is_cyclic = environment.get("SLURM_DISTRIBUTION", "").startswith("cyclic")
    places = _in_turns(tasks) if is_cyclic else _one_by_one(tasks)
    if environment.get("SLURM_NODEID") and places[rank] != number(environment, "SLURM_NODEID"):
        raise ConfigError(
            f"Task {rank} of the Slurm step is on host {environment['SLURM_NODEID'][:9]}, expected"
            f" {places[rank]}. Start it with srun --distribution=block, or give --coordinator_address."
        )
    job = ".".join(environment.get(f"SLURM_{name}_ID", "") for name in ("JOB", "STEP"))
    port = port_of_job(environment, f"slurm {job}")
    return Cluster(addresses((hosts[place] for place in places), port, _HOSTS), rank, SOURCE)


def _check_distribution(distribution: str) -> None:
    """Raises ConfigError, in every task, where the hosts of the tasks do not follow from the lists."""
    name = distribution.partition(":")[0].partition("=")[0].partition(",")[0]
    if name in ("plane", "arbitrary"):
        raise ConfigError(
            f"SLURM_DISTRIBUTION={distribution[:30]} does not say on which host a task is. Start it with srun"
            " --distribution=block or cyclic, or give --coordinator_address."
        )


def host_names(text: str) -> list[str]:
    """Returns the names that a list of Slurm's stands for: `a[01-03,7],b` is a01, a02, a03, a7 and b.

    Raises:
      ConfigError: for what is no such list.
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
            raise ConfigError(f"{_HOSTS}: [{text[:100]}] are no numbers such as [01-03,7].")
        first, last = match[1], match[2] or match[1]
        found += [str(value).zfill(len(first)) for value in range(int(first), int(last) + 1)]
    return found


def tasks_per_host(text: str) -> list[int]:
    """Returns the tasks of each host: `2(x3),1` is 2, 2, 2 and 1. Raises ConfigError for what is no such
    list."""
    found: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"(\d{1,6})(?:\(x(\d{1,5})\))?", part)
        if not match:
            raise ConfigError(f"{_TASKS}={text[:100]!r} is not a list such as 2(x3),1.")
        found += [int(match[1])] * int(match[2] or 1)
    return found


def _one_by_one(tasks: list[int]) -> list[int]:
    """Returns the host of every task where a host is filled before the next one."""
    return [host for host, count in enumerate(tasks) for _ in range(count)]


def _in_turns(tasks: list[int]) -> list[int]:
    """Returns the host of every task where hosts get one after the other in turn."""
    return [host for turn in range(max(tasks)) for host, count in enumerate(tasks) if turn < count]
