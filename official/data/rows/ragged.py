"""Rows of different lengths, concatenated in one array."""

from __future__ import annotations

import numpy as np


def offsets(lengths: np.ndarray) -> np.ndarray:
    """Returns int64 [N + 1]: the start of each row, and the total length."""
    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)


def ranges(starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Returns the concatenated ranges starts[i], .., starts[i] + lengths[i] - 1."""
    ends = np.cumsum(lengths)
    return np.arange(ends[-1] if len(ends) else 0) + np.repeat(starts - ends + lengths, lengths)


def split(values: np.ndarray, lengths: np.ndarray) -> list[np.ndarray]:
    """Returns the rows of these lengths, as views."""
    bounds = offsets(lengths).tolist()
    return [values[first:end] for first, end in zip(bounds, bounds[1:])]


def take(values: np.ndarray, bounds: np.ndarray, order: np.ndarray) -> np.ndarray:
    """Returns the concatenated rows values[bounds[i]:bounds[i + 1]] for each i of `order`. Rows are copied as
    a whole, since an index array would take eight bytes per element."""
    starts, ends = bounds[order].tolist(), bounds[1:][order].tolist()
    return np.concatenate([values[:0], *(values[start:end] for start, end in zip(starts, ends))])


def windows(data: bytes, starts: np.ndarray, width: int) -> np.ndarray:
    """Returns data[s:s + width] for each start s, uint8 [N, width]; all windows must lie within the data."""
    parts = np.ndarray((max(0, len(data) - width + 1),), f"V{width}", data, strides=(1,))[starts]
    return parts.view(np.uint8).reshape(-1, width)
