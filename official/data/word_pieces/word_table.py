"""A table in which the ids of many words of a text are looked up at once."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

_KEY_BYTES = 16
_LINE_BYTES = 64  # of the cache
_FIRST_BYTES = np.array([256**count - 1 for count in range(9)], np.uint64)  # masks of the first of eight
_NO_KEY = np.uint64(2**64 - 1)  # of no word: UTF-8 has no such byte


def keys_of(text: bytes, starts: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """Returns the bytes of each word text[starts[n]:ends[n]] as two numbers, uint64 [N, 2]; _NO_KEY for one
    of more than 16 bytes."""
    eights: np.ndarray = np.ndarray((len(text) + 8,), "<u8", text + bytes(16), strides=(1,))
    lengths = ends - starts
    keys = np.zeros((len(starts), 2), np.uint64)
    keys[:, 0] = eights[starts] & _FIRST_BYTES.take(lengths, mode="clip")
    long = np.flatnonzero(lengths > 8)  # few: the others have zeros there
    keys[long, 1] = eights[starts[long] + 8] & _FIRST_BYTES.take(lengths[long] - 8, mode="clip")
    keys[long[lengths[long] > _KEY_BYTES]] = _NO_KEY
    return keys


def keys_of_words(words: Collection[str]) -> np.ndarray:
    """Returns the keys, as `keys_of`, of words that are given one by one; they are ASCII."""
    lengths = np.fromiter(map(len, words), np.intp, len(words))
    ends = np.cumsum(lengths)
    return keys_of("".join(words).encode(), ends - lengths, ends)


class WordTable:
    """Ids of words, found by the words' keys. Words share buckets; one whose bucket is full has no place, nor
    has one of more ids than MOST_IDS.

    One thread may add words while others look some up: a key is written behind its ids.
    """

    BITS = 15  # of the number of buckets
    PLACES = 4  # of a bucket: their keys fill a line of the cache, and so do their ids where they are uint16
    MOST_IDS = 7
    FACTORS = np.array([0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F], np.uint64)  # odd; their bits look random

    def __init__(self, dtype: np.dtype):
        places = 2**self.BITS * self.PLACES
        self.keys = _aligned_zeros((places, 2), np.dtype(np.uint64))  # no word has the key 0
        self.ids = _aligned_zeros((places, 1 + self.MOST_IDS), dtype)  # behind their number

    def find(self, keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns the place of each word, or any place, and whether the word is there."""
        places = self._buckets(keys)
        is_there = self._is_at(places, keys)
        rest = np.flatnonzero(~is_there)
        for number in range(1, self.PLACES):
            found = self._is_at(places[rest] + number, keys[rest])
            places[rest[found]] += number
            is_there[rest[found]] = True
            rest = rest[~found]
        return places, is_there

    def add(self, keys: np.ndarray, ids: list[bytes]) -> None:
        """Gives places to words that have none, as long as there are free ones.

        Args:
          keys: uint64 [N, 2].
          ids: of each word, as bytes of the table's type.
        """
        counts = np.fromiter(map(len, ids), np.intp, len(ids)) // self.ids.itemsize
        firsts, own_ids = np.cumsum(counts) - counts, np.frombuffer(b"".join(ids), self.ids.dtype)
        rest = np.flatnonzero((counts <= self.MOST_IDS) & (keys[:, 0] != _NO_KEY))
        buckets = self._buckets(keys)
        for number in range(self.PLACES):
            places = buckets[rest] + number
            free = np.flatnonzero(self.keys[places, 0] == 0)
            taken, first = np.unique(places[free], return_index=True)
            words = rest[free[first]]
            self.ids[taken, 0] = counts[words]
            for column in range(counts[words].max(initial=0)):
                longer = np.flatnonzero(counts[words] > column)
                self.ids[taken[longer], 1 + column] = own_ids[firsts[words[longer]] + column]
            self.keys[taken] = keys[words]
            rest = rest[~self._is_at(places, keys[rest])]  # the same word may be there more than once

    def _buckets(self, keys: np.ndarray) -> np.ndarray:
        """Returns the first place of the bucket of each word."""
        mixed = keys[:, 0] * self.FACTORS[0] ^ keys[:, 1] * self.FACTORS[1]
        return (mixed >> np.uint64(64 - self.BITS)).astype(np.intp) * self.PLACES

    def _is_at(self, places: np.ndarray, keys: np.ndarray) -> np.ndarray:
        return (self.keys[places] == keys).all(axis=1)


def _aligned_zeros(shape: tuple[int, int], dtype: np.dtype) -> np.ndarray:
    """Returns zeros that begin with a line of the cache, so that no bucket lies in more of them than need
    be."""
    size = int(np.prod(shape)) * dtype.itemsize
    data = np.zeros(size + _LINE_BYTES, np.uint8)
    first = -data.ctypes.data % _LINE_BYTES
    return data[first : first + size].view(dtype).reshape(shape)
