"""Rows of different lengths, concatenated in one array."""

from __future__ import annotations

import numpy as np


def offsets(lengths: np.ndarray) -> np.ndarray:
    """Returns int64 [N + 1]: the start of each row, and the end of the last one."""
    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)


def ranges(starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Returns starts[0], starts[0] + 1, .. (lengths[0] of them), starts[1], .. in one array."""
    ends = np.cumsum(lengths)
    return np.arange(ends[-1] if len(ends) else 0) + np.repeat(starts - ends + lengths, lengths)


def split(values: np.ndarray, lengths: np.ndarray) -> list[np.ndarray]:
    """Returns the rows of these lengths, as views."""
    bounds = offsets(lengths).tolist()
    return [values[first:end] for first, end in zip(bounds, bounds[1:])]


def take(values: np.ndarray, bounds: np.ndarray, order: np.ndarray) -> np.ndarray:
    """Returns the rows values[bounds[i]:bounds[i + 1]] for each i of `order`, one after the other. Each is
    copied as a whole: an index of every element would be eight bytes for each."""
    starts, ends = bounds[order].tolist(), bounds[1:][order].tolist()
    return np.concatenate([values[:0], *(values[start:end] for start, end in zip(starts, ends))])


def windows(data: bytes, starts: np.ndarray, width: int) -> np.ndarray:
    """Returns data[s:s + width] for each start s, uint8 [N, width]; all of them are to lie within the
    data."""
    parts = np.ndarray((max(0, len(data) - width + 1),), f"V{width}", data, strides=(1,))[starts]
    return parts.view(np.uint8).reshape(-1, width)
