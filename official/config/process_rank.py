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
# Of launchers that are not read: {variable with the number of processes: (that of this one, who sets them)}.
_UNREAD = {
    "WORLD_SIZE": ("RANK", "torchrun, or a PyTorchJob"),
    "HOROVOD_SIZE": ("HOROVOD_RANK", "horovodrun"),
}


def rank(config: Config) -> int:
    """Returns the number of this process among those of its run, from 0. Raises ConfigError."""
    return read_cluster(config).rank if BACKENDS[config.distribution_strategy].several_processes else 0


def chosen_by_place(
    layers: list[tuple[str, dict]], environment: Mapping[str, str] = os.environ
) -> list[tuple[str, dict[str, Any]]]:
    """Returns a layer of settings, to be put below the others, that chooses the strategy of several processes
    where this is one of them that train and nobody has chosen; else none.

    Args:
      layers: as of `official.config.build_config`.
      environment: of this process.

    Raises:
      ConfigError: where who started this process contradicts itself, or is a launcher that is not read: each
        process would train by itself.
    """
    settings = _merged(layers)
    if settings.get("distribution_strategy") is not None or settings.get("do_train") is False:
        return []
    cluster = _of_several(settings, environment)
    _refuse_unread(environment, len(cluster.hosts) if cluster else 1)
    if cluster is None:
        return []
    return [(cluster.source, {"distribution_strategy": _TOGETHER})]


def with_folder_of_rank(
    layers: list[tuple[str, dict]], environment: Mapping[str, str] = os.environ
) -> tuple[list[tuple[str, dict[str, Any]]], list[str]]:
    """Returns a layer of settings, to be put above the others, with a folder of its own for a process that
    times predictions (`predict_epochs`) and is one of several, and a line for people; else none.

    Args:
      layers: as of `official.config.build_config`.
      environment: of this process.

    Raises:
      ConfigError: where who started this process contradicts itself.
    """
    settings = _merged(layers)
    strategy = settings.get("distribution_strategy") or FIELDS["distribution_strategy"].default
    folder = settings.get("model_dir")
    times = settings.get("predict_epochs") is not None and settings.get("do_train") is False
    if not times or not isinstance(folder, str) or strategy not in BACKENDS:
        return [], []
    if BACKENDS[strategy].several_processes or BACKENDS[strategy].program:
        return [], []
    cluster = _of_several(settings, environment)
    if cluster is None:
        return [], []
    own: str = f"{folder.rstrip('/')}_rank_{cluster.rank}"
    layer = {"model_dir": own}
    if not settings.get("init_checkpoint") and os.path.exists(os.path.join(folder, "checkpoint")):
        layer["init_checkpoint"] = folder
    told = (
        f"This process is rank {cluster.rank} of {len(cluster.hosts)} ({cluster.source}), which time"
        f" predictions: each works by itself, this one in --model_dir={own}."
    )
    return [(cluster.source, layer)], [told]


def keeps_to_itself(layers: list[tuple[str, dict]], environment: Mapping[str, str] = os.environ) -> list[str]:
    """Returns a line for people where this process is one of several, but was told of a strategy that knows
    no other processes; else none."""
    settings = _merged(layers)
    strategy = settings.get("distribution_strategy")
    if strategy not in BACKENDS or BACKENDS[strategy].several_processes or BACKENDS[strategy].program:
        return []
    try:
        cluster = _of_several({}, environment)
    except ConfigError:  # of what has no part in this run
        return []
    if settings.get("do_train") is False or cluster is None:
        return []
    return [
        f"This process is rank {cluster.rank} of {len(cluster.hosts)} ({cluster.source}), but"
        f" --distribution_strategy={strategy} trains alone. Together: --distribution_strategy={_TOGETHER}."
    ]


def leaves_nodes(layers: list[tuple[str, dict]], environment: Mapping[str, str] = os.environ) -> list[str]:
    """Returns a line for people where a training stays on one of several nodes of a Slurm job; else none."""
    settings, nodes = _merged(layers), environment.get("SLURM_JOB_NUM_NODES", "")
    is_outside = nodes.isdecimal() and int(nodes) > 1 and not environment.get("SLURM_STEP_NUM_TASKS")
    strategy = settings.get("distribution_strategy") or FIELDS["distribution_strategy"].default
    others = strategy not in BACKENDS or BACKENDS[strategy].several_processes or BACKENDS[strategy].program
    if not is_outside or others or settings.get("do_train") is False:
        return []
    return [
        f"This job of Slurm has {nodes} nodes, and srun has not started this command: it trains on this node"
        " alone."
    ]


def _refuse_unread(environment: Mapping[str, str], count: int) -> None:
    """Raises ConfigError where a launcher that is not read says another number of processes than `count`."""
    for size_name, (rank_name, by) in _UNREAD.items():
        rank, size = (environment.get(name, "") for name in (rank_name, size_name))
        if rank.isdecimal() and size.isdecimal() and int(size) not in (1, count):
            raise ConfigError(
                f"{rank_name}={rank} and {size_name}={size} in the environment ({by}) say that this process"
                f" is one of {size}, and are not read. Start it with bert launch, srun or mpirun, or let it"
                " train alone: --distribution_strategy=mirrored."
            )


def _merged(layers: list[tuple[str, dict]]) -> dict[str, Any]:
    return {name: value for _, layer in layers for name, value in layer.items()}


def _of_several(settings: dict[str, Any], environment: Mapping[str, str]) -> Cluster | None:
    """Returns the processes that this one is one of; None where it is alone."""
    asked = {name: FIELDS[name].checked(settings.get(name), "settings") for name in _NAMING}
    cluster = find_cluster(SimpleNamespace(**asked), environment)
    return cluster if cluster and len(cluster.hosts) > 1 else None
