"""TensorFlow bundles (PREFIX.index, PREFIX.data-*): reading lazily, writing a few tensors at a time."""

from __future__ import annotations

import os
import re
from typing import Any

import numpy as np
import tensorflow as tf

from official.checkpoint import DamagedError, naming_damaged
from official.checkpoint.bundle_reader import DAMAGE, new_reader
from official.checkpoint.containers import Progress, stem
from official.checkpoint.tensors import Tensor, Tensors
from official.io import files as io_files
from official.io.errors import first_line, shortened

LAST = ".index"
IS_FOLDER = False
_OF_OTHERS = re.compile(r"saved_model\.pb|.*\.(h5|keras|msgpack)")


def locate(path: str) -> str | None:
    """Returns the prefix for a path: a prefix, one of its files, or a folder, of which the newest checkpoint
    is taken; None without a bundle. Raises DamagedError if the newest one according to the file `checkpoint`
    does not exist."""
    if not tf.io.gfile.isdir(path):
        prefix = _prefix_of(path)
        return prefix if tf.io.gfile.exists(prefix + LAST) else None
    indexes = [name for name in tf.io.gfile.listdir(path) if name.endswith(LAST)]
    try:
        state = tf.train.get_checkpoint_state(path)
    except ValueError:  # the file is damaged
        state = None
    if state is not None:
        # The name may be a path on the machine that wrote the file.
        name = os.path.basename(state.model_checkpoint_path)
        for prefix in (os.path.join(path, name), state.model_checkpoint_path):
            if tf.io.gfile.exists(prefix + LAST):
                return prefix
        if indexes:
            advice = "give the prefix of another checkpoint of this folder to use that"
            problem = f"its file `checkpoint` names {name} as the newest, but {name}{LAST} does not exist"
            raise DamagedError(f"{problem}; {advice}")
    newest = max(indexes, key=lambda name: list(map(int, re.findall(r"\d+", name))) or [-1], default=None)
    return os.path.join(path, newest.removesuffix(LAST)) if newest else None


def why_none(path: str) -> str:
    """Returns the reason for which `locate` found nothing, for a message."""
    is_folder, is_there = tf.io.gfile.isdir(path), tf.io.gfile.exists(path)
    names = sorted(tf.io.gfile.listdir(path)) if is_folder else [os.path.basename(path)] * is_there
    if others := [name for name in names if _OF_OTHERS.fullmatch(name)]:
        reason = "are not read: of SavedModels only those of `bert export` are, of Keras and Flax no files"
        return f"the weights in {others[0]} {reason}. Give model.safetensors or a TensorFlow checkpoint"
    if is_folder:
        return f"no checkpoint in this folder (no file ending in {LAST})"
    missing = "" if is_there else "no such file or folder, and "
    index = f"{os.path.basename(_prefix_of(path))}{LAST}"
    return f"{missing}no checkpoint with this prefix ({index} does not exist)"


def _prefix_of(path: str) -> str:
    return re.sub(r"\.(index|data-\d+-of-\d+)$", "", path)


def read(prefix: str) -> Tensors:
    """Returns the tensors of a bundle. Raises DamagedError if one of its files is missing or truncated, and
    when a damaged tensor is read."""
    reader, types, shapes = _index(prefix)
    data = _data_files(prefix)
    tensors = {name: _lazy(reader, name, tuple(shapes[name]), types[name]) for name in sorted(shapes)}
    needed = sum(_stored_bytes(tensor) for tensor in tensors.values())
    there = sum(tf.io.gfile.stat(path).length for path in data)
    if there < needed:
        names = shortened(list(map(os.path.basename, data)))
        raise DamagedError(f"{names}: truncated, {there:,} bytes for tensors of {needed:,}")
    return tensors


def names_of(prefix: str) -> set[str]:
    """Returns the names of a bundle's tensors; its values may be missing. Raises DamagedError."""
    return set(_index(prefix)[2])


def _index(prefix: str) -> tuple[Any, dict[str, Any], dict[str, Any]]:
    """Returns TensorFlow's reader of a bundle, and {name: type} and {name: shape} of its tensors."""
    try:
        reader = new_reader(prefix)
        return reader, reader.get_variable_to_dtype_map(), reader.get_variable_to_shape_map()
    except DAMAGE as error:
        raise DamagedError(first_line(error)) from None


def _data_files(prefix: str) -> list[str]:
    """Returns the paths of a bundle's data files. Raises DamagedError if one of them is missing or not a
    file."""
    found = [re.fullmatch(r".*\.data-\d{5}-of-(\d{5})", path) for path in files(prefix)]
    missing: list[str] = []
    # If two numbers of shards occur, some files are from an earlier bundle.
    for number in sorted({int(each[1]) for each in found if each} or {1}):
        paths = [f"{prefix}.data-{n:05d}-of-{number:05d}" for n in range(number)]
        missing = [path for path in paths if not tf.io.gfile.exists(path)]
        if not missing:
            for path in paths:
                with naming_damaged(path):
                    io_files.check_readable(path)
            return paths
    gone = shortened([os.path.basename(path) for path in missing])
    raise DamagedError(f"data files of {os.path.basename(prefix)}{LAST} are missing: {gone}")


def _stored_bytes(tensor: Tensor) -> int:
    """Returns the size of the values in a data file; strings, whose size is unknown, are read."""
    if tensor.dtype != object:
        return tensor.nbytes
    lengths = [len(text) for text in np.ravel(tensor.read())]
    return sum(length + max(-(-length.bit_length() // 7), 1) for length in lengths) + 4  # plus a checksum


def _lazy(reader: Any, name: str, shape: tuple[int, ...], dtype: Any) -> Tensor:
    def get() -> np.ndarray:
        try:
            return np.asarray(reader.get_tensor(name))
        except DAMAGE as error:
            raise DamagedError(f"{name}: {first_line(error)}") from None

    return Tensor(shape, np.dtype(dtype.as_numpy_dtype), get, (name,))


def target(output_dir: str, source: str) -> str:
    """Returns the prefix OUTPUT_DIR/<basename of the source>."""
    path = os.path.abspath(source)
    # The weights of an export have the name of its folder.
    own = os.path.dirname(path) if os.path.basename(path) == "assets.extra" else path
    return os.path.join(output_dir, stem(own))


def files(prefix: str) -> list[str]:
    """Returns the existing files of a bundle."""
    folder, name = os.path.split(prefix)
    found = tf.io.gfile.listdir(folder) if tf.io.gfile.isdir(folder) else []
    own = (file for file in sorted(found) if file.startswith((f"{name}.data-", f"{name}.index")))
    return [os.path.join(folder, file) for file in own]


def write(tensors: Tensors, prefix: str, progress: Progress = lambda size: None) -> None:
    """Writes a bundle that TensorFlow's readers and the TF1 Saver read.

    Args:
      tensors: {name: lazy tensor}, read one after the other.
      prefix: prefix of the files, in an existing folder.
      progress: called with the bytes written since the last call.
    """
    work = f"{prefix}.shards"
    tf.io.gfile.makedirs(work)
    shards: list[str] = []

    def write_shard(names: list[str]) -> None:
        shards.append(os.path.join(work, f"shard-{len(shards)}"))
        values = [tf.constant(tensors[name].read(), tf.as_dtype(tensors[name].dtype)) for name in names]
        whole = [""] * len(names)
        tf.raw_ops.SaveV2(prefix=shards[-1], tensor_names=names, shape_and_slices=whole, tensors=values)
        progress(sum(tensors[name].nbytes for name in names))

    try:
        with tf.device("/cpu:0"):
            group: list[str] = []
            for name in sorted(tensors):
                if group and sum(tensors[one].nbytes for one in (*group, name)) > 1 << 26:
                    write_shard(group)
                    group = []
                group.append(name)
            write_shard(group)
            tf.raw_ops.MergeV2Checkpoints(
                checkpoint_prefixes=shards, destination_prefix=prefix, delete_old_dirs=False
            )
    finally:
        tf.io.gfile.rmtree(work)
