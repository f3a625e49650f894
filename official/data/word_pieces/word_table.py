"""A table in which many words of a text are looked up at once."""

import numpy as np

_KEY_BYTES = 16
_FIRST_BYTES = np.array([256**count - 1 for count in range(9)], np.uint64)  # masks of the first of eight
_NO_KEY = np.uint64(2**64 - 1)  # of no word: UTF-8 has no such byte


def keys_of(text: bytes, starts: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """Returns the bytes of each word text[starts[n]:ends[n]] as two numbers, uint64 [2, N]; _NO_KEY for one
    of more than 16 bytes."""
    eights: np.ndarray = np.ndarray((len(text) + 8,), "<u8", text + bytes(16), strides=(1,))
    lengths = ends - starts
    keys = np.zeros((2, len(starts)), np.uint64)
    keys[0] = eights[starts] & _FIRST_BYTES.take(lengths, mode="clip")
    long = np.flatnonzero(lengths > 8)  # few: the others have zeros there
    keys[1, long] = eights[starts[long] + 8] & _FIRST_BYTES.take(lengths[long] - 8, mode="clip")
    keys[:, long[lengths[long] > _KEY_BYTES]] = _NO_KEY
    return keys


class WordTable:
    """Places of words, found by the words' keys. A word whose place is taken by another has none."""

    BITS = 17  # of the number of places
    FACTORS = np.array([0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F], np.uint64)  # odd; their bits look random

    def __init__(self):
        self.keys = np.zeros((2, 2**self.BITS), np.uint64)  # no word has the key 0

    def find(self, keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns a place for each key, and whether it is that of the word."""
        places = self._places(keys)
        return places, (self.keys[0].take(places) == keys[0]) & (self.keys[1].take(places) == keys[1])

    def add(self, keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Gives words the places that are free. Returns these places and which of the keys got them."""
        places = self._places(keys)
        free = np.flatnonzero((self.keys[0].take(places) == 0) & (keys[0] != _NO_KEY))
        places, first = np.unique(places[free], return_index=True)
        self.keys[:, places] = keys[:, free[first]]
        return places, free[first]

    def _places(self, keys: np.ndarray) -> np.ndarray:
        mixed = keys[0] * self.FACTORS[0] ^ keys[1] * self.FACTORS[1]
        return (mixed >> np.uint64(64 - self.BITS)).astype(np.intp)
