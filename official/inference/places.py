"""Places of the tokens of sequences in attention, which takes them in rows of a few widths.

Shapes: T tokens end to end, N sequences of a group, W tokens of its longest one.
"""

from typing import NamedTuple

import numpy as np

from official.inference.rows import Rows

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
