"""The tasks: the code that differs between jobs, with one module per task and one row in `TASKS`."""

from __future__ import annotations

import importlib
from typing import Any, TypeVar

Value = TypeVar("Value")


class _Tasks(dict):
    """Task classes by name. A task's module is imported when it is looked up, since each takes a tenth of a
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
    """Returns an optional value that is set by the checks of the configuration or by `find_data`. Raises
    ValueError if it is None."""
    if value is None:
        raise ValueError("the value is unset: find_data was not called, or the configuration lacks it")
    return value
