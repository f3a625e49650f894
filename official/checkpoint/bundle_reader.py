"""Opens TensorFlow bundles with TensorFlow's reader, and reports damaged files by name."""

from __future__ import annotations

import contextlib
import fnmatch
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

# tf.train.load_checkpoint finds no prefix on remote file systems (it globs); the reader itself does.
from tensorflow.python.training import py_checkpoint_reader

from official.checkpoint import DamagedError, naming_damaged
from official.io import files
from official.io.errors import ConfigError, first_line

GRAPH = "_CHECKPOINTABLE_OBJECT_GRAPH"  # a tensor that only object-based checkpoints have
# Errors of the reader's bindings for damaged files.
DAMAGE = (tf.errors.OpError, RuntimeError, IndexError, UnicodeDecodeError)


def check_path(path: str, shown: str) -> None:
    """Raises ConfigError for a path with wildcards, which TensorFlow would expand. `shown` is its name in the
    message."""
    if not fnmatch.fnmatchcase(path, path):
        raise ConfigError(
            f"{shown}: TensorFlow's checkpoint reader treats *, ? and [ in a path as a pattern. Rename the"
            " folder, or link to it."
        )


def new_reader(prefix: str) -> Any:
    """Returns TensorFlow's reader of a bundle.

    Raises:
      DamagedError: if its index is a pipe or a Git LFS pointer.
      ConfigError: if its path has wildcards, which TensorFlow would expand.
    """
    check_path(prefix, prefix)
    with naming_damaged(f"{prefix}.index"):
        files.check_readable(f"{prefix}.index")
    return py_checkpoint_reader.NewCheckpointReader(prefix)


@contextlib.contextmanager
def open_reader(prefix: str) -> Iterator[Any]:
    """Yields a reader of a name-based bundle; `get_variable_to_shape_map()` and `get_tensor(name)` verify
    checksums.

    Raises:
      DamagedError: for corrupted, truncated or missing files, also when the body of the `with` reads them.
      ConfigError: for an object-based checkpoint, which has no variable names.
    """
    try:
        reader = new_reader(prefix)
        if GRAPH in reader.get_variable_to_shape_map():
            raise ConfigError(
                f"{prefix} is an object-based TensorFlow 2 checkpoint; only name-based ones (this project's"
                " and Google's TF1) can be read."
            )
        yield reader
    except DAMAGE as error:
        raise DamagedError(first_line(error)) from None


def shapes(reader: Any) -> dict[str, tuple[int, ...]]:
    """Returns {name: shape} of an open bundle."""
    return {name: tuple(shape) for name, shape in reader.get_variable_to_shape_map().items()}
