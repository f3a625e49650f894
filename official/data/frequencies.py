"""Frequencies of words in text that is made up."""

from __future__ import annotations

import numpy as np


def draw_ids(generator: np.random.Generator, ids: np.ndarray, shape: int | tuple[int, ...]) -> np.ndarray:
    """Draws ids independently, the n-th one with a frequency proportional to 1 / n (Zipf's law).

    Args:
      generator: all draws come from it.
      ids: [N], to draw from.
      shape: of the result.
    """
    weights = 1 / np.arange(1, len(ids) + 1)
    return generator.choice(ids, shape, p=weights / weights.sum())
