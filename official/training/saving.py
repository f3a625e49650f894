"""Writes the checkpoints of a run, asynchronously beside its training or while it waits."""

import json

from official.checkpoint.manager import CheckpointManager
from official.config import Config


def save(config: Config, manager: CheckpointManager, step: int, kept: dict) -> None:
    """Writes the checkpoint of a step, or starts to with --async_checkpoints.

    Args:
      config: configuration of the run.
      manager: manager of its checkpoints.
      step: step of the state.
      kept: values of the state that are not variables, as a dict for JSON; may be empty.

    Raises:
      ConfigError: where the folder is full or cannot be written to; also for the previous checkpoint.
    """
    write = manager.begin_save if config.async_checkpoints else manager.save
    write(step, json.dumps(kept) + "\n" if kept else None)
