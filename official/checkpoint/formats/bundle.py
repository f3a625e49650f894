"""TensorFlow bundles (PREFIX.index, PREFIX.data-*) by tensor name: reading lazily, writing a few tensors at a time."""

import os

import numpy as np
import tensorflow as tf

from official.checkpoint import reading
from official.checkpoint.formats.tensors import Tensor, Tensors
from official.config import ConfigError

LAST = ".index"
_SHARD_BYTES = 1 << 26
# What the reader's bindings raise for damaged files.
_DAMAGE = (tf.errors.OpError, RuntimeError, IndexError, UnicodeDecodeError)


def read(prefix: str) -> Tensors:
    """Returns the tensors of a bundle. Raises DamagedError, also when one of them is read."""
    try:
        reader = reading.new_reader(prefix)
        types, shapes = reader.get_variable_to_dtype_map(), reader.get_variable_to_shape_map()
    except _DAMAGE as error:
        raise reading.DamagedError(str(error).splitlines()[0][:200]) from None
    return {name: _lazy(reader, name, tuple(shapes[name]), types[name]) for name in sorted(shapes)}


def _lazy(reader, name: str, shape: tuple[int, ...], dtype) -> Tensor:
    def get():
        try:
            return np.asarray(reader.get_tensor(name))
        except _DAMAGE as error:
            raise reading.DamagedError(f"{name}: {str(error).splitlines()[0][:200]}") from None

    return Tensor(shape, np.dtype(dtype.as_numpy_dtype), get, (name,))


def locate(path: str) -> str | None:
    """Returns the prefix that a prefix, one of its files or a folder means; None where there is no bundle."""
    try:
        return reading.find_prefix(path, "PATH")
    except ConfigError:
        return None


def target(output_dir: str, source: str) -> str:
    """Returns the prefix OUTPUT_DIR/<basename of the source>."""
    name = os.path.basename(os.path.abspath(source))
    return os.path.join(output_dir, name.removesuffix(".onnx").removesuffix(".safetensors"))


def files(prefix: str) -> list[str]:
    """Returns the files of a bundle that are there."""
    folder, name = os.path.split(prefix)
    found = tf.io.gfile.listdir(folder) if tf.io.gfile.isdir(folder) else []
    return [
        os.path.join(folder, file)
        for file in sorted(found)
        if file.startswith((f"{name}.data-", f"{name}.index"))
    ]


def write(tensors: Tensors, prefix: str, options=None, progress=lambda size: None) -> None:
    """Writes a bundle that TensorFlow's readers and the TF1 Saver read.

    Args:
      tensors: {name: tensor}, read here one after the other.
      prefix: of the files, in a folder that is there.
      options: not used here.
      progress: called with the bytes written since the last call.
    """
    work = f"{prefix}.shards"
    tf.io.gfile.makedirs(work)
    try:
        shards = []
        for group in _groups(tensors):
            shards.append(os.path.join(work, f"shard-{len(shards)}"))
            _write_shard({key: tensors[key] for key in group}, shards[-1])
            progress(sum(tensors[key].nbytes for key in group))
        with tf.device("/cpu:0"):
            tf.raw_ops.MergeV2Checkpoints(
                checkpoint_prefixes=shards, destination_prefix=prefix, delete_old_dirs=False
            )
    finally:
        tf.io.gfile.rmtree(work)


def _groups(tensors: Tensors):
    """Yields lists of names whose tensors are written together: about _SHARD_BYTES each, in the order of
    names."""
    group, size = [], 0
    for name in sorted(tensors):
        if group and size + tensors[name].nbytes > _SHARD_BYTES:
            yield group
            group, size = [], 0
        group.append(name)
        size += tensors[name].nbytes
    yield group


def _write_shard(tensors: Tensors, prefix: str) -> None:
    with tf.device("/cpu:0"):
        values = [tf.constant(tensor.read(), tf.as_dtype(tensor.dtype)) for tensor in tensors.values()]
        tf.raw_ops.SaveV2(
            prefix=prefix, tensor_names=list(tensors), shape_and_slices=[""] * len(tensors), tensors=values
        )
