"""Rank of this process among those that mpirun started, and its share of the cores."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from official.io.errors import ConfigError

# (rank, processes, rank on this machine, processes on this machine), as mpirun's kinds name them.
_VARIABLES = (
    (
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_SIZE",
        "OMPI_COMM_WORLD_LOCAL_RANK",
        "OMPI_COMM_WORLD_LOCAL_SIZE",
    ),
    ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
    ("PMIX_RANK", "PMIX_SIZE", "PMIX_LOCAL_RANK", "PMIX_LOCAL_SIZE"),
)


class Rank(NamedTuple):
    """A process that mpirun started: its number, and that among those of this machine, from 0."""

    rank: int
    local_rank: int
    local_size: int


def find(environment: Mapping[str, str] = os.environ) -> Rank | None:
    """Returns this process's rank from mpirun's variables; None where mpirun did not start it. Raises
    ConfigError for variables that are not numbers."""
    for rank, size, local_rank, local_size in _VARIABLES:
        if rank not in environment:
            continue
        names = (
            rank,
            local_rank if local_rank in environment else rank,
            local_size if local_size in environment else size,
        )
        try:
            found = Rank(*(int(environment.get(name, "1")) for name in names))
        except ValueError:
            shown = ", ".join(f"{name}={environment.get(name)}" for name in names)
            raise ConfigError(f"{shown[:150]}: expected the numbers that mpirun sets.") from None
        return found
    return None


def own_cores(cores: Sequence[int], rank: Rank | None, of_machine: int) -> list[int]:
    """Returns the cores of this process.

    Args:
      cores: cores that it may run on.
      rank: rank of this process; None: it is alone.
      of_machine: number of the machine's cores. Where the process may run on fewer, mpirun has bound it
        already.

    Returns:
      Its cores; with more processes than cores, several processes share one.
    """
    if rank is None or len(cores) < of_machine or rank.local_size < 2:
        return sorted(cores)
    if rank.local_size > len(cores):
        return [sorted(cores)[rank.local_rank % len(cores)]]
    return split(cores, rank.local_size)[rank.local_rank]


def split(cores: Sequence[int], parts: int) -> list[list[int]]:
    """Returns the cores in equal parts of neighbours; the remainder is in no part. Raises ConfigError where
    there are fewer cores than parts."""
    share = len(cores) // parts
    if not share:
        raise ConfigError(
            f"--instances={parts}: each needs a core of its own, and this process has {len(cores)}."
            f" Allowed: 1 to {len(cores)}."
        )
    ordered = sorted(cores)
    return [ordered[part * share : (part + 1) * share] for part in range(parts)]


def own_output(output: str | None, rank: Rank | None) -> str | None:
    """Returns --output of this process: under mpirun, DIR/NAME becomes DIR/NAME_rank_N/NAME."""
    if output is None or rank is None:
        return output
    return os.path.join(f"{output}_rank_{rank.rank}", os.path.basename(output))
