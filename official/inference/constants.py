"""Weights as tensors, without a copy of what was read."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

_ALIGNMENT = 64  # bytes: where TensorFlow expects tensors to begin


def tensor(values: np.ndarray, dtype: str = "float32") -> tf.Tensor:
    """Returns an array as a tensor. It shares the memory where it can: nobody may change the array any more.

    Args:
      values: float32.
      dtype: of the tensor.
    """
    if values.ctypes.data % _ALIGNMENT or not (values.flags.c_contiguous and values.flags.writeable):
        shared = tf.convert_to_tensor(values)
    else:
        shared = tf.experimental.dlpack.from_dlpack(values.__dlpack__())
    return tf.cast(shared, dtype)


def side_by_side(parts: list[np.ndarray]) -> np.ndarray:
    """Returns float32 arrays one after the other along the last axis; of a single one no copy is made."""
    if len(parts) == 1:
        return parts[0]
    widths = [part.shape[-1] for part in parts]
    return np.concatenate(parts, axis=-1, out=empty((*parts[0].shape[:-1], sum(widths))))


def empty(shape: tuple[int, ...]) -> np.ndarray:
    """Returns a float32 array that `tensor` can share."""
    size = int(np.prod(shape)) * 4
    room = np.empty(size + _ALIGNMENT, np.uint8)
    first = -room.ctypes.data % _ALIGNMENT
    return room[first : first + size].view(np.float32).reshape(shape)
