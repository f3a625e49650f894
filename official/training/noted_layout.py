"""Layout (workers, replicas, micro batches) that a run began with, saved in its folder as layout.json."""

from __future__ import annotations

import dataclasses
import json
import os

import tensorflow as tf

from official.checkpoint.manager import CheckpointManager
from official.distribution.batch_plan import Layout
from official.io import json_files
from official.io.errors import ConfigError
from official.io.writing import replace_file

FILE_NAME = "layout.json"


def read(model_dir: str) -> Layout | None:
    """Returns the saved layout of the run that continues in a folder; None without a checkpoint or a saved
    layout.

    Raises:
      ConfigError: for a damaged file.
    """
    path = os.path.join(model_dir, FILE_NAME)
    if not tf.io.gfile.exists(path) or not CheckpointManager(model_dir, {}, 1).steps():
        return None
    values = json_files.read_json(path)
    names = [field.name for field in dataclasses.fields(Layout)]
    layout = Layout(**{name: json_files.expect(values, name, int, path) for name in names})
    if min(dataclasses.astuple(layout)) < 1 or layout.train_batch_size % layout.micro_batches:
        raise ConfigError(
            f"{path}: {layout.describe()} cannot share {layout.train_batch_size} rows. Remove it."
        )
    return layout


def write(model_dir: str, layout: Layout) -> None:
    """Saves the layout of a run. Raises OSError."""
    replace_file(os.path.join(model_dir, FILE_NAME), json.dumps(dataclasses.asdict(layout)) + "\n")
