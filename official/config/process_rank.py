"""Selects `multi_worker_mirrored` when the environment says that this process is one of several."""

from __future__ import annotations

import os
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

from official.config.backends import BACKENDS
from official.config.cluster import Cluster, find_cluster, read_cluster
from official.config.table import FIELDS, Config
from official.io.errors import ConfigError

_TOGETHER = "multi_worker_mirrored"
_NAMING = ("worker_hosts", "task_index")
# Unsupported launchers: {variable with the number of processes: (variable with the rank, launcher)}.
_UNREAD = {
    "WORLD_SIZE": ("RANK", "torchrun, or a PyTorchJob"),
    "HOROVOD_SIZE": ("HOROVOD_RANK", "horovodrun"),
}


def rank(config: Config) -> int:
    """Returns the rank of this process in its run, from 0. Raises ConfigError."""
    return read_cluster(config).rank if BACKENDS[config.distribution_strategy].several_processes else 0


def placed(
    layers: list[tuple[str, dict]], environment: Mapping[str, str]
) -> tuple[list[tuple[str, dict]], list[str]]:
    """Returns layers of settings, adapted if this process is one of several, and lines for the log.

    Training processes get the strategy for several processes as a default; a chosen strategy for a single
    process is reported. A process that times predictions (`predict_epochs`) gets a separate folder, which
    overrides the given one.

    Args:
      layers: see `official.config.build_config`.
      environment: environment variables of this process.

    Raises:
      ConfigError: if the launcher's variables contradict each other, or the launcher is unsupported: each
        process would train alone.
    """
    settings = {name: value for _, layer in layers for name, value in layer.items()}
    asked, folder = settings.get("distribution_strategy"), settings.get("model_dir")
    trains = settings.get("do_train") is not False
    if trains and asked is None:
        cluster = _of_several(settings, environment)
        _refuse_unread(environment, len(cluster.hosts) if cluster else 1)
        if cluster is None:
            return layers, _nodes_without(environment)
        return [(cluster.source, {"distribution_strategy": _TOGETHER}), *layers], []
    backend = BACKENDS.get(asked or FIELDS["distribution_strategy"].default)
    if backend is None or backend.several_processes or backend.program:
        return layers, []
    if trains:
        try:
            cluster = _of_several({}, environment)
        except ConfigError:  # variables that do not concern this run
            cluster = None
        line = f"--distribution_strategy={asked} trains alone. Together: --distribution_strategy={_TOGETHER}."
        return layers, [f"{_place(cluster)}, but {line}"] if cluster else _nodes_without(environment)
    if settings.get("predict_epochs") is None or not isinstance(folder, str):
        return layers, []
    cluster = _of_several(settings, environment)
    if cluster is None:
        return layers, []
    own = {"model_dir": f"{folder.rstrip('/')}_rank_{cluster.rank}"}
    line = f"which all predict alone to measure the time, this one in --model_dir={own['model_dir']}."
    if not settings.get("init_checkpoint") and os.path.exists(os.path.join(folder, "checkpoint")):
        own["init_checkpoint"] = folder
    return [*layers, (cluster.source, own)], [f"{_place(cluster)}, {line}"]


def _place(cluster: Cluster) -> str:
    return f"This process is rank {cluster.rank} of {len(cluster.hosts)} ({cluster.source})"


def _nodes_without(environment: Mapping[str, str]) -> list[str]:
    """Returns a log line if training runs on only one of several nodes of a Slurm job, or in only one of
    several pods of a Kubernetes job; otherwise none."""
    pod = environment.get("JOB_COMPLETION_INDEX", "")
    if pod not in ("", "0") and not environment.get("BERT_WORKERS"):
        return [
            f"This is pod {pod} of an Indexed Job, and the manifest does not set BERT_WORKERS, the number of"
            " pods that train together: it trains alone."
        ]
    nodes = environment.get("SLURM_JOB_NUM_NODES", "")
    if not nodes.isdecimal() or int(nodes) < 2 or environment.get("SLURM_STEP_NUM_TASKS"):
        return []
    return [
        f"This job of Slurm has {nodes} nodes, and srun has not started this command: it trains on this node"
        " alone."
    ]


def _refuse_unread(environment: Mapping[str, str], count: int) -> None:
    """Raises ConfigError if an unsupported launcher started another number of processes than `count`."""
    for size_name, (rank_name, by) in _UNREAD.items():
        rank, size = (environment.get(name, "") for name in (rank_name, size_name))
        if rank.isdecimal() and size.isdecimal() and int(size) not in (1, count):
            raise ConfigError(
                f"{rank_name}={rank} and {size_name}={size} in the environment ({by}) say that this process"
                f" is one of {size}, but bert does not read them. Start it with bert launch, srun or mpirun,"
                " or let it train alone: --distribution_strategy=mirrored."
            )


def _of_several(settings: dict[str, Any], environment: Mapping[str, str]) -> Cluster | None:
    """Returns the processes of this run; None if there is only this one."""
    asked = {name: FIELDS[name].checked(settings.get(name), "settings") for name in _NAMING}
    cluster = find_cluster(SimpleNamespace(**asked), environment)
    return cluster if cluster and len(cluster.hosts) > 1 else None
