"""What differs between jobs, and nothing else. One module per task, one row each in `TASKS`."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from official.config import Config

if TYPE_CHECKING:
    MakeTask = Callable[[Config], Any]
    _Table = Mapping[str, MakeTask]
else:
    _Table = Mapping


class _Tasks(_Table):
    """The tasks by name; of the others nothing is imported, which would take a tenth of a second."""

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
