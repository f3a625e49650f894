"""The tasks: the code that differs between jobs, and nothing else. One module per task, one row in
`TASKS`."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from official.config import Config

Value = TypeVar("Value")

if TYPE_CHECKING:
    MakeTask = Callable[[Config], Any]
    _Table = Mapping[str, MakeTask]
else:
    _Table = Mapping


class _Tasks(_Table):
    """Task classes by name. A task's module is imported when it is looked up: each takes a tenth of a
    second."""

    def __init__(self, rows: Mapping[str, str]):
        self._rows = rows

    def __getitem__(self, name: str) -> MakeTask:
        module, _, task = self._rows[name].rpartition(".")
        return getattr(importlib.import_module(f"{__name__}.{module}"), task)

    def __iter__(self) -> Iterator[str]:
        return iter(self._rows)

    def __len__(self) -> int:
        return len(self._rows)


TASKS = _Tasks(
    {"pretrain": "pretraining.PretrainingTask", "squad": "squad.SquadTask", "glue": "glue.GlueTask"}
)


def known(value: Value | None) -> Value:
    """Returns an optional value that the checks of the configuration, or `find_data`, have set. Raises
    ValueError where it is None."""
    if value is None:
        raise ValueError("asked for before find_data has found it, or though the configuration lacks it")
    return value
