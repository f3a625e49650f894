"""Processes that are the pods of an Indexed Job, also of one in a JobSet.

Kubernetes gives each pod its number, JOB_COMPLETION_INDEX, and its name, <job>-<number>. The manifest says
how many there are (BERT_WORKERS) and the name of the service under which pods find each other (BERT_SERVICE).
Source: https://kubernetes.io/docs/tasks/job/job-with-pod-to-pod-communication/
"""

from __future__ import annotations

from collections.abc import Mapping

from official.config.cluster.processes import Cluster, addresses, port_of_job, rank_and_count
from official.io.errors import ConfigError

SOURCE = "the Kubernetes job"
_DEFAULT_PORT = 2222  # every pod has an address of its own


def read(environment: Mapping[str, str], needs_addresses: bool = True) -> Cluster | None:
    """Returns the pods of the job, with their addresses where these are needed; None where the manifest does
    not say how many workers there are. Raises ConfigError for what is missing or contradicts itself."""
    if not environment.get("BERT_WORKERS"):
        return None
    rank, count = rank_and_count(environment, "JOB_COMPLETION_INDEX", "BERT_WORKERS")
    if not needs_addresses:
        return Cluster(("",) * count, rank, SOURCE)
    port = port_of_job(environment, "", _DEFAULT_PORT)
    if count == 1:
        return Cluster(addresses(["localhost"], port, SOURCE), 0, SOURCE)
    name, service = environment.get("HOSTNAME", ""), environment.get("BERT_SERVICE", "")
    if not service:
        raise ConfigError(
            f"BERT_WORKERS={count} in the environment needs BERT_SERVICE, the name of the headless service"
            " under which the pods find each other. Set it in the manifest."
        )
    if not name.endswith(f"-{rank}"):
        raise ConfigError(
            f"HOSTNAME={name[:60]!r} is not JOB-{rank}, the name of pod {rank} of an Indexed Job"
            " (JOB_COMPLETION_INDEX), from which the names of the others follow. Drop hostNetwork, or give"
            " --coordinator_address."
        )
    job = name[: -len(f"-{rank}")]
    return Cluster(
        addresses((f"{job}-{index}.{service}" for index in range(count)), port, SOURCE), rank, SOURCE
    )
