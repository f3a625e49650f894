"""Which sequence goes to which place of a plan, so that no process needs to know all sequences.

The rows of a plan, kind after kind, are dealt out to shards in turn. The places for sequences of a length,
shard after shard, are numbered; the i-th sequence of that length, in the order of the files, takes place
number p(i), where p is a permutation that is computed, not stored. So any part of the data finds its places
by itself, in memory that does not grow with the data.
"""

from __future__ import annotations

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


class Dealer:
    """Deals sequences out to the shards of a plan. Shapes: T shards, L tokens of a row, P sequences of a
    row.
    """

    def __init__(self, plan: PackingPlan, num_shards: int, seed: int):
        self.num_shards, self._seed = num_shards, seed
        self.depth = plan.depth
        self._kinds_KP = plan.lengths_of_kinds().astype(np.int32)  # a shard may have many rows of them
        ends_K1 = np.cumsum(list(plan.packs.values()), dtype=np.int64)[:, None]
        ends_KT = -((np.arange(num_shards) - ends_K1) // num_shards)  # rows of a shard up to this kind
        self._rows_KT = np.diff(ends_KT, axis=0, prepend=0)
        places_TL = np.zeros((num_shards, plan.row_length + 1), np.int64)
        for lengths_K in self._kinds_KP.T:
            np.add.at(places_TL.T, lengths_K, self._rows_KT)
        self._ends_TL = np.cumsum(places_TL, axis=0)

    def places(self, length: int, ordinals: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns shards and places in them, among those of this length, for the sequences with these numbers
        among all of this length, int [N] each."""
        ends_T = self._ends_TL[:, length]
        key = int(np.random.SeedSequence([self._seed, length]).generate_state(1, np.uint64)[0])
        number = permuted(ordinals, int(ends_T[-1]), key)
        shard = np.searchsorted(ends_T, number, side="right")
        return shard, number - np.where(shard > 0, ends_T[shard - 1], 0)

    def rows(self, shard: int) -> np.ndarray:
        """Returns the lengths in each row of a shard, int [R, P], 0 behind the last one."""
        return np.repeat(self._kinds_KP, self._rows_KT[:, shard], axis=0)
