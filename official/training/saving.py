"""How the checkpoints of a run are written: beside its training, or while it waits."""

import json

from official.checkpoint.manager import CheckpointManager
from official.config import Config


def save(config: Config, manager: CheckpointManager, step: int, kept: dict) -> None:
    """Writes the checkpoint of a step, or begins to, as --async_checkpoints says.

    Args:
      config: of the run.
      manager: of its checkpoints.
      step: of the state.
      kept: what belongs to the state and is no variable, ready for JSON; may be empty.

    Raises:
      ConfigError: where the folder is full or cannot be written to; also for the checkpoint before.
    """
    write = manager.begin_save if config.async_checkpoints else manager.save
    write(step, json.dumps(kept) + "\n" if kept else None)
