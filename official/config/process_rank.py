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
      ConfigError: where who started this process contradicts itself.
    """
    settings = _merged(layers)
    if settings.get("distribution_strategy") is not None or settings.get("do_train") is False:
        return []
    cluster = _of_several(settings, environment)
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


def _merged(layers: list[tuple[str, dict]]) -> dict[str, Any]:
    return {name: value for _, layer in layers for name, value in layer.items()}


def _of_several(settings: dict[str, Any], environment: Mapping[str, str]) -> Cluster | None:
    """Returns the processes that this one is one of; None where it is alone."""
    asked = {name: FIELDS[name].checked(settings.get(name), "settings") for name in _NAMING}
    cluster = find_cluster(SimpleNamespace(**asked), environment)
    return cluster if cluster and len(cluster.hosts) > 1 else None
