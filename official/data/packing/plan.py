"""Packing plans, the number of rows per combination of sequence lengths, and first fit, the simplest
algorithm."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable

import numpy as np

from official.io.errors import ConfigError

# -----------------------------------------------------------------------------------------------------------
# Plan


@dataclasses.dataclass(frozen=True)
class Histogram:
    """Counts of sequences by their length.

    Attributes:
      counts: int64 [M + 1]; `counts[n]` sequences have n tokens. `counts[0]` is 0.
    """

    counts: np.ndarray

    @classmethod
    def of_lengths(cls, lengths: Iterable[int], most: int) -> Histogram:
        """Counts lengths, each from 1 to `most`. Raises ConfigError for another one."""
        lengths = np.fromiter(lengths, np.int64)
        if wrong := lengths[(lengths < 1) | (lengths > most)].tolist():
            problem = f"A sequence has {wrong[0]} tokens, a row has 1 to {most}"
            raise ConfigError(f"{problem}. Raise --max_seq_length.")
        return cls(np.bincount(lengths, minlength=most + 1))

    @property
    def max_length(self) -> int:
        """Maximum number of tokens in a row."""
        return len(self.counts) - 1

    @property
    def sequences(self) -> int:
        return int(self.counts.sum())

    @property
    def tokens(self) -> int:
        return int(self.counts @ np.arange(len(self.counts)))


@dataclasses.dataclass(frozen=True)
class PackingPlan:
    """Kinds of packs.

    Attributes:
      row_length: tokens of a row.
      packs: {lengths of the sequences in a row, long ones first: number of such rows}.
    """

    row_length: int
    packs: dict[tuple[int, ...], int]

    @property
    def rows(self) -> int:
        return sum(self.packs.values())

    @property
    def sequences(self) -> int:
        return sum(len(lengths) * count for lengths, count in self.packs.items())

    @property
    def tokens(self) -> int:
        return sum(sum(lengths) * count for lengths, count in self.packs.items())

    @property
    def efficiency(self) -> float:
        """Share of the positions in rows that hold a token, 0 to 1."""
        return self.tokens / (self.rows * self.row_length) if self.rows else 1.0

    @property
    def speedup(self) -> float:
        """Sequences per row, the factor by which packing reduces the number of rows."""
        return self.sequences / self.rows if self.rows else 1.0

    @property
    def depth(self) -> int:
        """Maximum number of sequences in a row."""
        return max(map(len, self.packs), default=0)

    def lengths_of_kinds(self, places: int | None = None) -> np.ndarray:
        """Returns the lengths of the sequences in each kind of row, int64 [kinds, P], padded with 0.

        Args:
          places: P, `depth` or more; None: `depth`.
        """
        lengths_KP = np.zeros((len(self.packs), self.depth if places is None else places), np.int64)
        for lengths_P, lengths in zip(lengths_KP, self.packs):
            lengths_P[: len(lengths)] = lengths
        return lengths_KP

    def lengths_of_rows(self, places: int | None = None) -> np.ndarray:
        """Returns the lengths of the sequences in each row, int64 [rows, P]: see `lengths_of_kinds`."""
        return np.repeat(self.lengths_of_kinds(places), [*self.packs.values()], axis=0)

    def tokens_of_rows(self) -> np.ndarray:
        """Counts the rows by their tokens, int64 [row_length + 1]."""
        return self._counts(self.lengths_of_kinds().sum(axis=1, keepdims=True))

    def histogram(self) -> Histogram:
        """Counts the lengths of the sequences in the packs."""
        counts = self._counts(self.lengths_of_kinds())
        counts[0] = 0
        return Histogram(counts)

    def _counts(self, numbers_KX: np.ndarray) -> np.ndarray:
        """Counts each number up to `row_length` over all rows, given the numbers of each kind of row."""
        counts = np.zeros(self.row_length + 1, np.int64)
        np.add.at(counts, numbers_KX, np.array(list(self.packs.values()), np.int64)[:, None])
        return counts


def make_plan(row_length: int, packs: Iterable[tuple[tuple[int, ...], int]]) -> PackingPlan:
    """Makes a plan of packs; packs of the same lengths, in any order, are merged."""
    joined: Counter[tuple[int, ...]] = Counter()
    for lengths, count in packs:
        if lengths and count:
            joined[tuple(sorted(lengths, reverse=True))] += count
    return PackingPlan(row_length, dict(sorted(joined.items(), reverse=True)))


# -----------------------------------------------------------------------------------------------------------
# First fit
#
# All sequences of a length are placed at once, and packs of the same lengths are one kind. So the work
# depends on the number of lengths and kinds, not of sequences. Source: Krell et al. 2021, arXiv 2107.02027.


def first_fit(histogram: Histogram, depth: int | None = None, is_tightest: bool = True) -> PackingPlan:
    """LPFHP puts a sequence into the fullest open pack with room for it; if there is none, into a new pack,
    with as many of its length as fit. SPFHP puts it into the open pack with the most room.

    Args:
      histogram: histogram of the lengths.
      depth: maximum number of sequences in a pack; None: any number.
      is_tightest: true for LPFHP, false for SPFHP.
    """
    row_length = histogram.max_length
    limit = depth or row_length
    by_room: list[list] = [[] for _ in range(row_length + 1)]  # packs by their number of free tokens

    def put(lengths: tuple[int, ...], count: int) -> None:
        """Adds packs; a pack of `depth` sequences is closed, however many tokens are free."""
        by_room[row_length - sum(lengths) if len(lengths) < limit else 0].append((lengths, count))

    for length in range(row_length, 0, -1):
        left = int(histogram.counts[length])
        rooms = range(length, row_length + 1)
        while left:
            room = next((room for room in (rooms if is_tightest else reversed(rooms)) if by_room[room]), None)
            if room is None:
                repeated = min(left, row_length // length, limit) if is_tightest else 1
                count = left // repeated
                put((length,) * repeated, count)
                left -= count * repeated
                continue
            lengths, count = by_room[room].pop()
            taken = min(count, left)
            if count > taken:
                by_room[room].append((lengths, count - taken))
            put((*lengths, length), taken)
            left -= taken
    return make_plan(row_length, (kind for kinds in by_room for kind in kinds))


def plan_of(lengths_N: Iterable[int], row_length: int, depth: int) -> PackingPlan:
    """Plans rows of `row_length` tokens and at most `depth` sequences by LPFHP. Raises ConfigError if a
    sequence is longer than a row."""
    return first_fit(Histogram.of_lengths(lengths_N, row_length), depth)


def ranks(lengths_RP: np.ndarray) -> np.ndarray:
    """Returns int64 [R, P]: the sequence in each slot of rows of these lengths, as a rank from 0 in ascending
    order of lengths; -1 for an empty slot."""
    ranks_F = np.empty(lengths_RP.size, np.int64)
    ranks_F[np.argsort(lengths_RP, axis=None, kind="stable")] = np.arange(lengths_RP.size)
    empty = np.count_nonzero(lengths_RP == 0)  # empty slots come before all others in that order

    return np.maximum(ranks_F - empty, -1).reshape(lengths_RP.shape)
