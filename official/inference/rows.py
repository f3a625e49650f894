"""Sequences laid end to end: the input of a network, whatever computes it. Shapes: N sequences, T tokens."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

# -----------------------------------------------------------------------------------------------------------
# Rows


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


# -----------------------------------------------------------------------------------------------------------
# Widths of attention
#
# Shapes: T tokens end to end, N sequences of a group, W tokens of its longest one.


GROUPS = 4  # at most: more waste less, and are more operations
_NEW_GROUP = 64 * 64  # as many scores more are cheaper than another group


class Group(NamedTuple):
    """Sequences that are as wide as the longest of them.

    Attributes:
      tokens_NW: int32, in [0, T): the token in a place; behind the end of a sequence its last one.
      lengths_N: int32.
    """

    tokens_NW: np.ndarray
    lengths_N: np.ndarray


class Places(NamedTuple):
    """All groups, and the way back.

    Attributes:
      groups: GROUPS of them, the ones with sequences first; the others have one sequence of one token.
      used: those with sequences.
      firsts_T, widths_T: int32: with the groups' vectors [N, H, W] one after the other, that of head h of a
        token is vector firsts + h x widths. A group is H times as many vectors as it has tokens, so that
        firsts are counted for the number of heads given.
    """

    groups: list[Group]
    used: int
    firsts_T: np.ndarray
    widths_T: np.ndarray


def find(rows: Rows, heads: int) -> Places:
    """Returns the places of sequences."""
    order_N = np.argsort(-rows.lengths_N, kind="stable")
    bounds = _cut(rows.lengths_N[order_N].astype(np.int64))
    starts_N = rows.firsts_N
    groups, base = [], 0
    firsts_T, widths_T = (np.zeros(len(rows.ids_T), np.int32) for _ in range(2))
    for first, last in zip(bounds[:-1], bounds[1:]):
        lengths_N = rows.lengths_N[order_N[first:last]]
        width = int(lengths_N[0])
        places_W = np.arange(width)
        tokens_NW = starts_N[order_N[first:last], None] + np.minimum(places_W, lengths_N[:, None] - 1)
        is_token_NW = places_W < lengths_N[:, None]
        vectors_NW = base + np.arange(last - first)[:, None] * (heads * width) + places_W
        firsts_T[tokens_NW[is_token_NW]] = vectors_NW[is_token_NW]
        widths_T[tokens_NW[is_token_NW]] = width
        base += tokens_NW.size * heads
        groups.append(Group(tokens_NW.astype(np.int32), lengths_N))
    empty = Group(np.zeros((1, 1), np.int32), np.ones(1, np.int32))
    return Places(groups + [empty] * (GROUPS - len(groups)), len(groups), firsts_T, widths_T)


def _cut(lengths_N: np.ndarray) -> list[int]:
    """Cuts lengths, descending, into at most GROUPS groups with the fewest scores of attention; returns
    where they begin and the last one ends.

    Lengths that are the same stay together: the best cuts are between different ones.
    """
    starts = [0, *(np.flatnonzero(np.diff(lengths_N)) + 1).tolist()]
    squares, ends = lengths_N[starts] ** 2, np.array([*starts[1:], len(lengths_N)])
    # best[k]: the fewest scores of the first k kinds of lengths with so many groups, and the cuts for it.
    best = [(0, [0])] + [(np.iinfo(np.int64).max // 2, [0])] * len(starts)
    found = best
    for _ in range(GROUPS):
        longer = [best[0]]
        for end in range(1, len(starts) + 1):
            counts = ends[end - 1] - np.array(starts[:end])
            totals = np.array([total for total, _ in best[:end]]) + squares[:end] * counts + _NEW_GROUP
            cheapest = int(totals.argmin())
            longer.append((int(totals[cheapest]), [*best[cheapest][1], int(ends[end - 1])]))
        best = longer
        if found is None or best[-1][0] < found[-1][0]:
            found = best
    return found[-1][1]
