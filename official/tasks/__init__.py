"""The tasks: the code that differs between jobs, and nothing else. One module per task, one row in
`TASKS`."""

from __future__ import annotations

import importlib
from typing import Any, TypeVar

Value = TypeVar("Value")


class _Tasks(dict):
    """Task classes by name. A task's module is imported when it is looked up: each takes a tenth of a
    second."""

    def __getitem__(self, name: str) -> Any:
        module, _, task = super().__getitem__(name).rpartition(".")
        return getattr(importlib.import_module(f"{__name__}.{module}"), task)


TASKS = _Tasks(
    {
        "pretrain": "pretraining.PretrainingTask",
        "squad": "squad.SquadTask",
        "glue": "classification.GlueTask",
        "classify": "classification.ClassifyTask",
        "tag": "tagging.TagTask",
        "embed": "embedding.EmbedTask",
    }
)


def known(value: Value | None) -> Value:
    """Returns an optional value that the checks of the configuration, or `find_data`, have set. Raises
    ValueError where it is None."""
    if value is None:
        raise ValueError("asked for before find_data has found it, or though the configuration lacks it")
    return value
