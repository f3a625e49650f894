"""Sequences on their way to shards: files in which they lie in the order of the shards that they go to.

A shard has a key, its place among all shards on a scale of 64 bits, so that the files are regrouped by ranges
of keys where there are very many (`official.data.regrouping`). The keys that a file covers are cut into 256
equal ranges, and a chunk is the sequences of one: it is what a file of the level above takes from this one.

A file is a header, an index and the chunks. The index, int64 [257, 2], holds bytes and sequences before each
chunk. A chunk is int32 heads [n, 6], then words, 2 or 4 bytes each: of each sequence its ids, masked places
and labels without padding. All numbers are little-endian.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from official.data import regrouping
from official.data.pretraining.examples import Examples
from official.data.regrouping import KEY_BITS, damaged
from official.data.rows import ragged
from official.io import files, writing

_HEADER = struct.Struct("<8sBBB5xQ")  # magic, bytes of a word, bits of the range and of chunks, first key
_MAGIC = b"BERTSEQS"
_WORDS = {2: "<u2", 4: "<i4"}  # by their bytes
_READERS = 8  # reads that wait at the same time: a store takes its time for each
_SHARD, _PLACE, _LENGTH, _FIRST, _PREDICTIONS, _RANDOM = range(6)  # columns of the heads
_COLUMNS = 6
_PLACE_BYTES = 16  # of a place of the index


def key_of(shard: int, num_shards: int) -> int:
    """Returns the key of a shard, 0 to 2**64 - 1."""
    return (shard << KEY_BITS) // num_shards


def _first_shard(key: int, num_shards: int) -> int:
    """Returns the first shard whose key is `key` or a higher one, up to 2**64."""
    return -(-key * num_shards >> KEY_BITS)


def examples_of(values: dict[str, np.ndarray]) -> Examples:
    """Returns examples for the features {name: [N, length]} of right plain records."""
    lengths = values["input_mask"].sum(axis=1)
    return Examples(
        values["input_ids"].astype(np.int32),
        lengths,
        lengths - values["segment_ids"].sum(axis=1),
        values["masked_lm_positions"].astype(np.int32),
        values["masked_lm_ids"].astype(np.int32),
        (values["masked_lm_weights"] > 0).sum(axis=1),
        values["next_sentence_labels"][:, 0] > 0,
    )


class Spilled:
    """N sequences.

    Attributes:
      heads: int32 [N, 6].
      words: uint16 or int32 [W].
      starts: int64 [N + 1]: where in the words a sequence begins.
    """

    def __init__(self, heads: np.ndarray, words: np.ndarray):
        self.heads, self.words = heads, words
        self.starts = ragged.offsets(self.lengths.astype(np.int64) + 2 * self.predictions)

    @property
    def shards(self) -> np.ndarray:
        """The shard that each sequence goes to, int [N]."""
        return self.heads[:, _SHARD]

    @property
    def places(self) -> np.ndarray:
        """The place of each sequence among those of its length in its shard, int [N]."""
        return self.heads[:, _PLACE]

    @property
    def lengths(self) -> np.ndarray:
        return self.heads[:, _LENGTH]

    @property
    def predictions(self) -> np.ndarray:
        return self.heads[:, _PREDICTIONS]

    def take(self, order: np.ndarray) -> Spilled:
        """Returns some of the sequences, by number, in the order given."""
        return Spilled(self.heads[order], ragged.take(self.words, self.starts, order))

    def by_shard(self) -> Spilled:
        """Returns the sequences in the order of their shards."""
        return self.take(np.argsort(self.shards, kind="stable"))

    def examples(self, chosen: np.ndarray, length: int, most: int) -> Examples:
        """Returns some of the sequences, by number, as examples of `length` tokens and `most` predictions."""
        heads = self.heads[chosen]
        is_there = _are_there(heads, length, most)
        words = np.zeros(is_there.shape, np.int32)
        words[is_there] = ragged.take(self.words, self.starts, chosen)
        ids, positions, labels = np.split(words, [length, length + most], axis=1)
        return Examples(
            ids,
            heads[:, _LENGTH].astype(np.int64),
            heads[:, _FIRST].astype(np.int64),
            positions,
            labels,
            heads[:, _PREDICTIONS].astype(np.int64),
            heads[:, _RANDOM] > 0,
        )


def _are_there(heads: np.ndarray, length: int, most: int) -> np.ndarray:
    """Returns the mask of the ids, places and labels that a sequence has, bool [N, L + 2 M]."""
    is_token = np.arange(length) < heads[:, _LENGTH, None]
    is_used = np.arange(most) < heads[:, _PREDICTIONS, None]
    return np.concatenate([is_token, is_used, is_used], axis=1)


def dealt(some: list[Examples], shards: np.ndarray, places: np.ndarray) -> Spilled:
    """Returns examples, N in all, as sequences in the order of their shards; `shards`, `places`: int [N]."""
    words = np.concatenate([np.concatenate([one.input_ids, one.positions, one.labels], 1) for one in some])
    columns = [
        np.stack([one.lengths, one.first_lengths, one.predictions, one.is_random], axis=1) for one in some
    ]
    heads = np.concatenate([np.stack([shards, places], axis=1), np.concatenate(columns)], axis=1)
    order = np.argsort(shards, kind="stable")
    heads, words = heads[order].astype(np.int32), words[order]
    kept = words[_are_there(heads, some[0].input_ids.shape[1], some[0].positions.shape[1])]
    return Spilled(heads, kept.astype(np.uint16 if kept.max(initial=0) < 1 << 16 else np.int32))


# ------------------------------------------------------------------------------------------------------------
# Files


def write_file(
    path: str, sequences: Spilled, num_shards: int, first_key: int = 0, range_bits: int = KEY_BITS
) -> None:
    """Writes a file.

    Args:
      sequences: in the order of their shards.
      num_shards: of all.
      first_key, range_bits: the file covers the 2**range_bits keys from first_key on.

    Raises:
      OSError: and there is no file of that name, or the one that was there.
    """
    bits = regrouping.BITS
    step = 1 << (range_bits - bits)
    shards = [_first_shard(first_key + number * step, num_shards) for number in range((1 << bits) + 1)]
    ends = np.searchsorted(sequences.shards, shards)
    item = sequences.words.dtype.itemsize
    index = np.stack([ends * (4 * _COLUMNS) + sequences.starts[ends] * item, ends], axis=1)
    with writing.replacing(path) as temporary, open(temporary, "wb") as file:
        file.write(_HEADER.pack(_MAGIC, item, range_bits, bits, first_key) + index.astype("<i8").tobytes())
        for first, end in zip(ends, ends[1:]):
            words = sequences.words[slice(*sequences.starts[[first, end]])]
            file.write(sequences.heads[first:end].tobytes() + words.tobytes())


def read_range(paths: Iterable[str], first_key: int, end_key: int) -> Spilled:
    """Returns the sequences of the chunks in which a range of keys lies, in the order of the files.

    Args:
      first_key, end_key: the first key, and the one behind the last. They lie in one chunk of each file.

    Raises:
      ConfigError: for a file that is not there, or damaged.
    """
    with ThreadPoolExecutor(_READERS) as pool:
        parts = list(pool.map(functools.partial(_read_chunks, keys=(first_key, end_key)), paths))
    heads = np.concatenate([np.zeros((0, _COLUMNS), np.int32), *(part[0] for part in parts)])
    return Spilled(heads, np.concatenate([np.zeros(0, np.uint16), *(part[1] for part in parts)]))


def read_shard(paths: Iterable[str], shard: int, num_shards: int) -> Spilled:
    """Returns the sequences of a shard. Raises ConfigError as `read_range` does."""
    key = key_of(shard, num_shards)
    found = read_range(paths, key, key + 1)
    return found.take(np.flatnonzero(found.shards == shard))


def _read_chunks(path: str, keys: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
    """Returns heads and words of the chunk in which keys lie, from the first to the one behind the last."""
    bits = regrouping.BITS
    try:
        with files.reading_parts(path) as read:
            head = read(0, _HEADER.size + ((1 << bits) + 1) * _PLACE_BYTES)
            magic, item, range_bits, chunk_bits, begin = _HEADER.unpack_from(head)
            if magic != _MAGIC or chunk_bits != bits:
                raise ValueError("it does not begin as such a file does")
            number, last = ((key - begin) >> (range_bits - bits) for key in (keys[0], keys[1] - 1))
            if not 0 <= number == last < 1 << bits:
                raise ValueError("it covers other keys")
            index = np.frombuffer(head, "<i8", offset=_HEADER.size).reshape(-1, 2)
            (start, first), (stop, end) = index[number : number + 2].tolist()
            data = read(len(head) + start, stop - start)
        heads = np.frombuffer(data, "<i4", (end - first) * _COLUMNS).reshape(-1, _COLUMNS)
        return heads, np.frombuffer(data, _WORDS[item], offset=heads.nbytes)
    except (OSError, ValueError, KeyError, struct.error) as error:
        raise damaged(path, error) from None
