"""Lazy tensors: each is read when it is written, so that a conversion holds only a few at a time in memory.

The functions return new lazy tensors, which read and transform their arguments when they are read.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from official.io.errors import ConfigError


@dataclass(frozen=True)
class Tensor:
    """Shape and type of a tensor, a function that reads its values, and its names in the source."""

    shape: tuple[int, ...]
    dtype: np.dtype
    read: Callable[[], np.ndarray]
    sources: tuple[str, ...] = ()

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


Tensors = dict[str, Tensor]


def is_float(tensor: Tensor) -> bool:
    # NumPy does not count ml_dtypes' bfloat16 as a float.
    return tensor.dtype.kind == "f" or tensor.dtype.name == "bfloat16"


def of_array(array: np.ndarray, name: str) -> Tensor:
    return Tensor(array.shape, array.dtype, lambda: array, (name,))


def zeros(shape: tuple[int, ...], dtype: DTypeLike) -> Tensor:
    return Tensor(shape, np.dtype(dtype), lambda: np.zeros(shape, dtype))


def changed(tensor: Tensor, change: Callable[[np.ndarray], np.ndarray], **others: Any) -> Tensor:
    """Returns a tensor whose values are `change` of the original's. `others`: its new shape and type, if they
    change."""
    return replace(tensor, read=lambda: change(tensor.read()), **others)


def transposed(tensor: Tensor) -> Tensor:
    """Swaps the axes of a matrix."""
    return changed(tensor, lambda values: np.ascontiguousarray(values.T), shape=tensor.shape[::-1])


def reshaped(tensor: Tensor, shape: tuple[int, ...]) -> Tensor:
    return changed(tensor, lambda values: values.reshape(shape), shape=shape)


def joined(parts: list[Tensor], axis: int) -> Tensor:
    """Concatenates tensors along an axis."""
    shape = list(parts[0].shape)
    shape[axis] = sum(part.shape[axis] for part in parts)
    sources = tuple(name for part in parts for name in part.sources)
    return Tensor(
        tuple(shape), parts[0].dtype, lambda: np.concatenate([part.read() for part in parts], axis), sources
    )


def part(tensor: Tensor, axis: int, index: int, count: int) -> Tensor:
    """Returns slice `index` of `count` equal ones along an axis."""
    shape = list(tensor.shape)
    shape[axis] //= count
    rows = range(index * shape[axis], (index + 1) * shape[axis])
    return changed(tensor, lambda values: np.take(values, rows, axis), shape=tuple(shape))


def with_rows(tensor: Tensor, rows: int) -> Tensor:
    """Cuts off rows, or adds zero rows."""
    more = [(0, max(rows - tensor.shape[0], 0)), *[(0, 0)] * (len(tensor.shape) - 1)]
    change = lambda values: np.pad(values, more) if rows > len(values) else values[:rows]
    return changed(tensor, change, shape=(rows, *tensor.shape[1:]))


def with_average_rows(tensor: Tensor, rows: Mapping[int, Sequence[int]]) -> Tensor:
    """Replaces each row of {row: other rows} by the mean of the others' original values."""

    def averaged(values: np.ndarray) -> np.ndarray:
        result = values.copy() if rows else values
        for row, others in rows.items():
            result[row] = values[list(others)].astype(np.float32).mean(axis=0)
        return result

    return changed(tensor, averaged)


def rows_from(tensor: Tensor, start: int) -> Tensor:
    """Returns the rows from `start` on."""
    shape = (tensor.shape[0] - start, *tensor.shape[1:])
    return changed(tensor, lambda values: values[start:], shape=shape)


def cast(tensor: Tensor, dtype: DTypeLike) -> Tensor:
    return changed(tensor, lambda values: values.astype(dtype), dtype=np.dtype(dtype))


def checked_cast(name: str, tensor: Tensor, dtype: np.dtype) -> Tensor:
    """As `cast`; a finite value that the type cannot hold raises ConfigError when the tensor is read."""
    if tensor.dtype == dtype:
        return tensor

    def checked(values: np.ndarray) -> np.ndarray:
        with np.errstate(over="ignore"):
            result = values.astype(dtype)
        if np.isfinite(values).all() and not np.isfinite(result).all():
            advice = " Use --precision=32." if dtype.itemsize == 2 else ""
            problem = f"{float(np.abs(values).max()):g}, beyond what {dtype.name} can hold.{advice}"
            raise ConfigError(f"{name} holds values up to {problem}")
        return result

    return changed(tensor, checked, dtype=dtype)
