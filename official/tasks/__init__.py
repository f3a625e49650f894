"""What differs between jobs, and nothing else. One module per task, one row each in `TASKS`."""

from collections.abc import Callable
from typing import Any

from official.config import Config
from official.tasks.glue import GlueTask
from official.tasks.pretraining import PretrainingTask
from official.tasks.squad import SquadTask

TASKS: dict[str, Callable[[Config], Any]] = {
    "pretrain": PretrainingTask,
    "squad": SquadTask,
    "glue": GlueTask,
}
