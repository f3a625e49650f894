"""Search for the window of a question that shows a token of the context best."""

import functools

import numpy as np

from official.data.squad.features import Features

_BLOCK_ROWS = 4096  # are compared at once


def is_max_context(features: Features) -> np.ndarray:
    """Returns bool [N, L]: whether a token is a piece of the context, and none of the question's other
    windows shows it better.

    A window shows a piece by the smaller of the numbers of pieces on its left and right, plus 0.01 of the
    window's length; the first of the best windows counts.

    Source: https://github.com/google-research/bert, run_squad.py, _check_is_max_context.
    """
    result = features.is_context()
    for distance in range(1, len(features)):
        numbers = features.question_numbers
        earlier = np.flatnonzero(numbers[distance:] == numbers[:-distance])
        window_ends = features.first_pieces[earlier] + features.window_lengths[earlier]
        earlier = earlier[features.first_pieces[earlier + distance] < window_ends]
        if not earlier.size:
            break
        for first in range(0, len(earlier), _BLOCK_ROWS):
            rows = earlier[first : first + _BLOCK_ROWS]
            later = rows + distance
            scores = functools.partial(_context_scores, features)
            result[rows] &= scores(rows, rows) >= scores(later, rows)
            result[later] &= scores(later, later) > scores(rows, later)
    return result


def _context_scores(features: Features, windows: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Returns how well each of the windows [B] shows the tokens of each of the rows [B]: float64 [B, L], -inf
    where it does not."""
    places = (
        np.arange(features.input_ids.shape[1])
        - features.first_lengths[rows, None]
        + (features.first_pieces[rows] - features.first_pieces[windows])[:, None]
    )
    lengths = features.window_lengths[windows, None]
    scores = np.minimum(places, lengths - 1 - places) + 0.01 * lengths
    return np.where((places >= 0) & (places < lengths), scores, -np.inf)
