"""Processes that are told by TF_CONFIG: by `bert launch`, Kubeflow, Vertex AI and others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from official.config.cluster.processes import Cluster, checked_hosts
from official.io.errors import ConfigError
from official.io.json_files import parse_json

SOURCE = "TF_CONFIG"
_JOBS = ("chief", "worker")  # in the order of their ranks


def read(environment: Mapping[str, str]) -> Cluster | None:
    """Returns the processes of TF_CONFIG; None without it, or where it names no cluster.

    A `chief` has rank 0, workers follow. `ps` and `evaluator` jobs have no part in this strategy.

    Raises:
      ConfigError: where it is not of the right form.
    """
    text = environment.get(SOURCE)
    values = _parsed(text) if text else None
    if not values or values.keys().isdisjoint(("cluster", "task")):
        return None
    kind, index, lists = _task(values)
    if kind not in _JOBS:
        raise ConfigError(
            f"TF_CONFIG: this process is of type {str(kind)[:40]!r}, a run has only chief and worker. Start"
            " no other kind."
        )
    if not 0 <= index < len(lists[kind]):
        raise ConfigError(
            f"TF_CONFIG: task index {index} of type {kind!r}, the cluster has {len(lists[kind])} of them."
            " Correct TF_CONFIG."
        )
    if len(lists["chief"]) > 1:
        raise ConfigError(
            f"TF_CONFIG has {len(lists['chief'])} processes of type 'chief', expected one at most. Correct"
            " TF_CONFIG."
        )
    hosts = checked_hosts(lists["chief"] + lists["worker"], SOURCE)
    return Cluster(hosts, index + (len(lists["chief"]) if kind == "worker" else 0), SOURCE)


def _parsed(text: str) -> dict[str, Any]:
    try:
        values = parse_json(text, SOURCE)
    except ValueError:
        raise _wrong_form() from None
    if not isinstance(values, dict):
        raise _wrong_form()
    return values


def _task(values: dict[str, Any]) -> tuple[Any, int, dict[str, list]]:
    """Returns the job of this process, its number in it, and the addresses of each job."""
    try:
        jobs, task = values["cluster"], values["task"]
        return task["type"], int(task["index"]), {job: list(jobs.get(job, ())) for job in _JOBS}
    except (ValueError, KeyError, TypeError, AttributeError):
        raise _wrong_form() from None


def _wrong_form() -> ConfigError:
    return ConfigError(
        'TF_CONFIG is not of the form {"cluster": {"worker": ["HOST:PORT", ...]}, "task": {"type":'
        ' "worker", "index": 0}}. Correct it, or use --worker_hosts and --task_index.'
    )
