"""Saves, resumes, initializes and converts checkpoints, by variable name.

A checkpoint of a run is a TensorFlow V2 tensor bundle (`.index`, `.data-*`) whose keys are Google's TF1
variable names. `tf.train.load_checkpoint`, TF1 Savers and this project read it; nothing is pickled.

  manager        saves and resumes a run
  initialize     loads initial weights from a checkpoint of any format
  convert        opens a source (`registry`), maps, writes, verifies and publishes it
  formats        one module per format: its tensor names, and its signature
  containers     one module per kind of files
  mapping        tables of names; `canonical` has the names between two formats, `tensors` their values
  sidecar_files  files next to the weights: sizes, vocabulary, labels
"""

import contextlib
import os

from official.io.errors import ConfigError


class DamagedError(Exception):
    """A checkpoint's files are corrupted, truncated or incomplete."""


@contextlib.contextmanager
def naming_damaged(path: str):
    """Turns an OSError in its block into a DamagedError that names the file."""
    try:
        yield
    except OSError as error:
        raise DamagedError(f"{os.path.basename(path)}: {error.strerror or error}") from None


@contextlib.contextmanager
def naming_unreadable(name: str):
    """Turns a DamagedError in its block into a ConfigError that begins with `name`, the flag or path of the
    checkpoint."""
    try:
        yield
    except DamagedError as error:
        raise ConfigError(f"{name}: unreadable checkpoint ({error}).") from None
