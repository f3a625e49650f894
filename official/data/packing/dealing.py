"""Assignment of sequences to places of a plan, so that no process needs to know all sequences.

The rows of a plan, kind after kind, are dealt out to shards in turn. The places for sequences of a length,
shard after shard, are numbered; the i-th sequence of that length, in the order of the files, takes place
number p(i), where p is a permutation that is computed, not stored. So any part of the data finds its places
by itself, in memory that does not grow with the data.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from official.data.packing.plan import PackingPlan

_ROUNDS = 4
_MIX = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))  # of SplitMix64


def permuted(numbers: np.ndarray, size: int, key: int) -> np.ndarray:
    """Returns p(number) of a permutation p of 0 to size - 1.

    A Feistel network permutes a power of 4; what falls behind `size` is permuted again until it does not.

    Args:
      numbers: int [N], 0 to size - 1.
      size: 1 to 2**62.
      key: 0 to 2**64 - 1: chooses p.
    """
    half = np.uint64(max(1, ((size - 1).bit_length() + 1) // 2))
    found = numbers.astype(np.uint64)
    left = np.arange(len(found))
    while len(left):
        found[left] = _feistel(found[left], half, key)
        left = left[found[left] >= size]
    return found.astype(np.int64)


def _feistel(numbers: np.ndarray, half: np.uint64, key: int) -> np.ndarray:
    mask = (np.uint64(1) << half) - np.uint64(1)
    upper, lower = numbers >> half, numbers & mask
    for turn in range(_ROUNDS):
        salt = np.uint64((key + turn * 0x9E3779B97F4A7C15) % 2**64)
        upper, lower = lower, upper ^ (_mixed(lower ^ salt) & mask)
    return upper << half | lower


def _mixed(values: np.ndarray) -> np.ndarray:
    for shift, factor in zip((30, 27), _MIX):
        values = (values ^ (values >> np.uint64(shift))) * factor
    return values ^ (values >> np.uint64(31))


class _Places(NamedTuple):
    """The places for sequences of one length. Shards S[i] to S[i + 1] - 1 have equally many each."""

    shards: np.ndarray  # S: int64 [I], ascending
    counts: np.ndarray  # int64 [I], of one shard
    ends: np.ndarray  # int64 [I]: of all shards before S[i + 1]


class Dealer:
    """Deals sequences out to the shards of a plan. Shapes: T shards, K kinds of rows, P sequences of a row.

    Row r of the plan is one of shard r modulo T. So of a kind every shard has the same number of rows, but
    for one more in a run of shards. What is held grows with the kinds alone, not with the shards.
    """

    def __init__(self, plan: PackingPlan, num_shards: int, seed: int):
        self.num_shards, self._seed = num_shards, seed
        self.depth = plan.depth
        self._kinds_KP = plan.lengths_of_kinds().astype(np.int32)  # a shard may have many rows of them
        rows_K = np.array(list(plan.packs.values()), np.int64)
        self._each_K, self._more_K = np.divmod(rows_K, num_shards)
        self._first_K = (np.cumsum(rows_K) - rows_K) % num_shards  # of the shards that have one more
        self._places: dict[int, _Places] = {}

    def places(self, length: int, ordinals: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns shards and places in them, among those of this length, for the sequences with these numbers
        among all of this length, int [N] each."""
        if length not in self._places:
            self._places[length] = self._places_of(length)
        shards, counts, ends = self._places[length]
        key = int(np.random.SeedSequence([self._seed, length]).generate_state(1, np.uint64)[0])
        number = permuted(ordinals, int(ends[-1]), key)
        run = np.searchsorted(ends, number, side="right")
        beyond, place = np.divmod(number - np.where(run > 0, ends[run - 1], 0), counts[run])
        return shards[run] + beyond, place

    def _places_of(self, length: int) -> _Places:
        in_a_row_K = (self._kinds_KP == length).sum(axis=1)
        kinds = np.flatnonzero(in_a_row_K)
        times, first = in_a_row_K[kinds], self._first_K[kinds]
        end = first + self._more_K[kinds]
        wraps = end > self.num_shards  # the run goes on at shard 0
        # From which shard on there are so many more places in a shard.
        steps = [(0 * first, times * (self._each_K[kinds] + wraps)), (first, times)]
        steps += [(end - self.num_shards * wraps, -times)]
        starts, changes = (np.concatenate(column) for column in zip(*steps))
        shards, which = np.unique(starts, return_inverse=True)
        counts: np.ndarray = np.zeros(len(shards), np.int64)
        np.add.at(counts, which, changes)
        counts = np.cumsum(counts)
        is_there = shards < self.num_shards
        shards, counts = shards[is_there], counts[is_there]
        return _Places(shards, counts, np.cumsum(counts * np.diff(shards, append=self.num_shards)))

    def rows(self, shard: int) -> np.ndarray:
        """Returns the lengths in each row of a shard, int [R, P], 0 behind the last one."""
        rows_K = self._each_K + ((shard - self._first_K) % self.num_shards < self._more_K)
        return np.repeat(self._kinds_KP, rows_K, axis=0)
