"""What differs between jobs, and nothing else. One module per task, one row each in `TASKS`."""

from official.tasks.pretraining import PretrainingTask

TASKS = {"pretrain": PretrainingTask}
