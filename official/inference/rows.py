"""Sequences laid end to end: the input of a network on any back end. Shapes: N sequences of T tokens
in all, M masked tokens."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np


class Rows(NamedTuple):
    """Token ids of some sequences, one after the other, without padding.

    Attributes:
      ids_T: int32.
      segments_T: int32, 0 for the first and 1 for the second segment of a sequence.
      lengths_N: int32, tokens of each sequence, 1 or more; their sum is T.
      masked_M: int32, in [0, T): the tokens whose words are to be predicted, ascending; None for heads that
        predict none.
    """

    ids_T: np.ndarray
    segments_T: np.ndarray
    lengths_N: np.ndarray
    masked_M: np.ndarray | None = None

    @property
    def firsts_N(self) -> np.ndarray:
        """Index of the first token of each sequence, int64."""
        return np.cumsum(self.lengths_N) - self.lengths_N

    @property
    def masked_ends_N(self) -> np.ndarray:
        """Number of masked tokens up to the end of each sequence, int64; 0 where none are asked."""
        if self.masked_M is None:
            return np.zeros(len(self.lengths_N), np.int64)
        return np.searchsorted(self.masked_M, np.cumsum(self.lengths_N))

    @property
    def masked_counts_N(self) -> np.ndarray:
        """Masked tokens of each sequence, int64."""
        return np.diff(self.masked_ends_N, prepend=0)

    def pick(self, sequences: Sequence[int] | np.ndarray) -> "Rows":
        """Returns some of the sequences, in the order given."""
        firsts_N = self.firsts_N
        ranges = [np.arange(firsts_N[n], firsts_N[n] + self.lengths_N[n]) for n in sequences]
        places_T = np.concatenate(ranges) if ranges else np.zeros(0, np.int64)
        masked_M = None
        if self.masked_M is not None:
            is_masked_T = np.zeros(len(self.ids_T), bool)
            is_masked_T[self.masked_M] = True
            masked_M = np.flatnonzero(is_masked_T[places_T]).astype(np.int32)
        return Rows(
            self.ids_T[places_T], self.segments_T[places_T], self.lengths_N[list(sequences)], masked_M
        )


def join(sequences: Sequence[np.ndarray], segments: Sequence[np.ndarray] | None = None) -> Rows:
    """Returns rows of sequences of token ids; without `segments` all tokens are of the first one."""
    ids_T = np.concatenate([*sequences, np.zeros(0, np.int32)]).astype(np.int32)
    segments_T = np.zeros_like(ids_T) if segments is None else np.concatenate(segments).astype(np.int32)
    return Rows(ids_T, segments_T, np.array([len(ids) for ids in sequences], np.int32))
