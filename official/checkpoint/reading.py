"""Reading checkpoints: find the prefix, read tensors by name, compare names strictly."""

import contextlib
import os
import re

import tensorflow as tf

# tf.train.load_checkpoint finds no prefix on remote file systems (it globs); the reader itself does.
from tensorflow.python.training import py_checkpoint_reader

from official.config import ConfigError

_OBJECT_GRAPH = "_CHECKPOINTABLE_OBJECT_GRAPH"


def find_prefix(path: str, label: str) -> str:
    """Returns the checkpoint prefix that a path means: a prefix as it is, of a folder the newest checkpoint
    in it.

    Args:
      path: of a prefix, one of its files, or a folder.
      label: what gave the path, for messages: --init_checkpoint or PATH.

    Raises:
      ConfigError: where there is none.
    """
    if tf.io.gfile.isdir(path):
        try:
            prefix = tf.train.latest_checkpoint(path) or _newest_index(path)
        except UnicodeDecodeError:  # a damaged `checkpoint` file
            prefix = _newest_index(path)
        if prefix is None:
            raise ConfigError(f"{label}={path}: no checkpoint in this folder (no file ending in .index).")
        return prefix
    prefix = re.sub(r"\.(index|data-\d+-of-\d+)$", "", path)
    if not tf.io.gfile.exists(prefix + ".index"):
        raise ConfigError(
            f"{label}={path}: no checkpoint with this prefix ({os.path.basename(prefix)}.index does not"
            " exist)."
        )
    return prefix


def _newest_index(folder: str) -> str | None:
    indexes = [name for name in tf.io.gfile.listdir(folder) if name.endswith(".index")]
    if not indexes:
        return None
    newest = max(indexes, key=lambda name: [int(number) for number in re.findall(r"\d+", name)] or [-1])
    return os.path.join(folder, newest.removesuffix(".index"))


def new_reader(prefix: str):
    """Returns TensorFlow's reader of a bundle."""
    return py_checkpoint_reader.NewCheckpointReader(prefix)


class DamagedError(Exception):
    """A checkpoint's files are corrupted, truncated or incomplete."""


@contextlib.contextmanager
def open_checkpoint(prefix: str):
    """Gives a reader of a name-based checkpoint; `get_variable_to_shape_map()` and `get_tensor(name)` verify
    checksums.

    Raises:
      DamagedError: for corrupted, truncated or missing files, also where the body of the `with` comes upon
        them.
      ConfigError: for an object-based checkpoint, which has no variable names.
    """
    try:
        reader = new_reader(prefix)
        if _OBJECT_GRAPH in reader.get_variable_to_shape_map():
            raise ConfigError(
                f"{prefix} is an object-based TensorFlow 2 checkpoint; only name-based ones (this project's"
                " and Google's TF1) can be read."
            )
        yield reader
    except (
        tf.errors.OpError,
        RuntimeError,
        IndexError,
        UnicodeDecodeError,
    ) as error:  # what the reader's bindings raise
        raise DamagedError(f"{str(error).splitlines()[0][:200]}") from None


def shapes(reader) -> dict[str, tuple[int, ...]]:
    """Returns {name: shape} of an open checkpoint."""
    return {name: tuple(shape) for name, shape in reader.get_variable_to_shape_map().items()}


def compare_names(expected: dict[str, tuple], found: dict[str, tuple]) -> dict[str, list[str]]:
    """Returns {kind of difference: names} of two {name: shape}; an empty dict where there is none."""
    missing, unexpected = sorted(set(expected) - set(found)), sorted(set(found) - set(expected))
    reshaped = [
        f"{name} {list(found[name])} for {list(expected[name])}"
        for name in sorted(set(expected) & set(found))
        if tuple(found[name]) != tuple(expected[name])
    ]
    kinds = {"missing": missing, "unexpected": unexpected, "of another shape": reshaped}
    return {kind: names for kind, names in kinds.items() if names}
