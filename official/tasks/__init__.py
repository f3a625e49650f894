"""What differs between jobs, and nothing else. One module per task, one row each in `TASKS`."""

from official.tasks.glue import GlueTask
from official.tasks.pretraining import PretrainingTask
from official.tasks.squad import SquadTask

TASKS = {"pretrain": PretrainingTask, "squad": SquadTask, "glue": GlueTask}
