"""Processes that mpirun, mpiexec or poprun has started.

Open MPI tells each of them OMPI_COMM_WORLD_RANK and _SIZE, MPICH and Intel MPI tell PMI_RANK and PMI_SIZE;
poprun starts Open MPI's and adds POPDIST_*. None tells where the others are.
Source: https://docs.open-mpi.org/en/v5.0.x/tuning-apps/environment-var.html
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from official.config.cluster.processes import Cluster, addresses, number, port_of_job, rank_and_count
from official.io.errors import ConfigError

# {the variable with the count: (with the rank, with the count on this host)}
_VARIABLES = {
    "OMPI_COMM_WORLD_SIZE": ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    "PMI_SIZE": ("PMI_RANK", "MPI_LOCALNRANKS"),
}
_JOB_NAMES = ("PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid")  # of Open MPI; others: their common parent


def read(environment: Mapping[str, str]) -> Cluster | None:
    """Returns the processes of MPI's world; None where it has started none. Their addresses are known where
    all are on this host. Raises ConfigError for what contradicts itself."""
    count_name = next((name for name in _VARIABLES if environment.get(name)), None)
    if count_name is None:
        return None
    rank_name, local_name = _VARIABLES[count_name]
    if (
        count_name == "PMI_SIZE"
        and environment.get("SLURM_STEP_NUM_TASKS")
        and not environment.get(local_name)
    ):
        return None  # these are Slurm's own, of srun --mpi=pmi2
    rank, count = rank_and_count(environment, rank_name, count_name)
    if environment.get("PMIX_RANK") and number(environment, "PMIX_RANK") != rank:
        raise ConfigError(
            f"MPI contradicts itself: {rank_name}={rank}, PMIX_RANK={environment['PMIX_RANK'][:9]}. Start the"
            " command anew, not from within another process of MPI's."
        )
    source = _check_poprun(environment, rank, count)
    if count > 1 and (not environment.get(local_name) or number(environment, local_name) != count):
        return Cluster(("",) * count, rank, source)
    job = " ".join(environment.get(name, "") for name in _JOB_NAMES).strip() or str(os.getppid())
    port = port_of_job(environment, f"mpi {job}")
    return Cluster(addresses(["localhost"] * count, port, source), rank, source)


def _check_poprun(environment: Mapping[str, str], rank: int, count: int) -> str:
    """Returns the launcher of the processes. Raises ConfigError where poprun contradicts MPI."""
    if not environment.get("POPDIST_NUM_TOTAL_REPLICAS"):
        return "mpirun"
    names = [
        f"POPDIST_{name}" for name in ("NUM_LOCAL_REPLICAS", "NUM_TOTAL_REPLICAS", "REPLICA_INDEX_OFFSET")
    ]
    local, total, offset = (number(environment, name) for name in names)
    if local * count != total or local * rank != offset:
        raise ConfigError(
            f"poprun and MPI contradict each other: rank {rank} of {count}, but POPDIST_* says that"
            f" {local} of {total} replicas are here, from {offset} on. Start all with one poprun."
        )
    return "poprun"
