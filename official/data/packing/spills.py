"""Sequences on their way to shards: blocks in the work folder, of which a shard reads its part at once.

A block is one file. It holds sequences of an input file in the order of their shards, those of a shard side
by side: int32 heads [n, 5], then int32 words, of each sequence its ids, masked places and labels without
padding. Where the parts of all shards begin stands in one small file a block, NAME.index, int64 [T + 1, 2]:
bytes and sequences before them.
"""

from __future__ import annotations

import errno
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np

from official.data.pretraining.examples import Examples
from official.io import writing
from official.io.stores import store_of

_INDEX = ".index"
_READERS = 8  # reads of a shard that wait at the same time
_PLACE, _LENGTH, _FIRST, _PREDICTIONS, _RANDOM = range(5)  # columns of the heads


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


class Spilled(NamedTuple):
    """N sequences of a shard."""

    heads: np.ndarray  # int32 [N, 5]
    words: np.ndarray  # int32
    starts: np.ndarray  # int64 [N + 1]: where in the words a sequence begins

    @property
    def places(self) -> np.ndarray:
        """The place of each sequence among those of its length, int [N]."""
        return self.heads[:, _PLACE]

    @property
    def lengths(self) -> np.ndarray:
        return self.heads[:, _LENGTH]

    @property
    def predictions(self) -> np.ndarray:
        return self.heads[:, _PREDICTIONS]

    def examples(self, chosen: np.ndarray, length: int, most: int) -> Examples:
        """Returns some of the sequences, by number, as examples of `length` tokens and `most` predictions."""
        heads = self.heads[chosen]
        is_there = _are_there(heads, length, most)
        words = np.zeros(is_there.shape, np.int32)
        counts = is_there.sum(axis=1)
        steps = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        words[is_there] = self.words[np.repeat(self.starts[chosen], counts) + steps]
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
    """Returns which of ids, places and labels a sequence has, bool [N, L + 2 M]."""
    is_token = np.arange(length) < heads[:, _LENGTH, None]
    is_used = np.arange(most) < heads[:, _PREDICTIONS, None]
    return np.concatenate([is_token, is_used, is_used], axis=1)


def write_block(
    path: str, some: list[Examples], shards: np.ndarray, places: np.ndarray, num_shards: int
) -> None:
    """Writes a block.

    Args:
      path: of its file.
      some: N examples in all.
      shards, places: int [N].
      num_shards: T.
    """
    words = np.concatenate([np.concatenate([one.input_ids, one.positions, one.labels], 1) for one in some])
    heads = np.concatenate(
        [
            np.stack([one.lengths, one.lengths, one.first_lengths, one.predictions, one.is_random], axis=1)
            for one in some
        ]
    ).astype(np.int32)
    heads[:, _PLACE] = places
    order = np.argsort(shards, kind="stable")
    heads, words = heads[order], words[order]
    is_there = _are_there(heads, some[0].input_ids.shape[1], some[0].positions.shape[1])
    firsts = np.searchsorted(shards[order], np.arange(num_shards + 1))
    kept = words[is_there]
    starts = np.concatenate([[0], np.cumsum(is_there.sum(axis=1))])[firsts]
    with writing.replacing(path) as temporary, open(temporary, "wb") as file:
        for (first, end), (start, stop) in zip(zip(firsts, firsts[1:]), zip(starts, starts[1:])):
            file.write(heads[first:end].tobytes() + kept[start:stop].tobytes())
    item = np.dtype(np.int32).itemsize
    index = np.stack([(starts + firsts * heads.shape[1]) * item, firsts], axis=1)
    writing.replace_file(path + _INDEX, index.astype("<i8").tobytes())


class Blocks:
    """The blocks of a work folder, whose indices are read once a process."""

    def __init__(self, paths: list[str], num_shards: int):
        self._paths = paths
        with ThreadPoolExecutor(_READERS) as pool:  # a store takes its time for each
            found = pool.map(lambda path: _read_all(path + _INDEX), paths)
            self._indices = [np.frombuffer(data, "<i8").reshape(num_shards + 1, 2) for data in found]

    def read_shard(self, shard: int) -> Spilled:
        """Returns the sequences of a shard from all blocks. Raises OSError."""
        with ThreadPoolExecutor(_READERS) as pool:
            parts = list(pool.map(lambda each: self._part(each, shard), range(len(self._paths))))
        heads = np.concatenate([np.zeros((0, 5), np.int32), *(part[0] for part in parts)])
        words = np.concatenate([np.zeros(0, np.int32), *(part[1] for part in parts)])
        counts = heads[:, _LENGTH].astype(np.int64) + 2 * heads[:, _PREDICTIONS]
        return Spilled(heads, words, np.concatenate([[0], np.cumsum(counts)]))

    def _part(self, block: int, shard: int) -> tuple[np.ndarray, np.ndarray]:
        (start, first), (stop, end) = self._indices[block][shard], self._indices[block][shard + 1]
        path, size = self._paths[block], int(stop - start)
        data = store_of(path).read_range(path, int(start), size)
        if len(data) != size:
            raise OSError(errno.EIO, "it is shorter than it was written", path)
        values = np.frombuffer(data, np.int32)
        heads, words = np.split(values, [int(end - first) * 5])
        return heads.reshape(-1, 5), words


def _read_all(path: str) -> bytes:
    with store_of(path).open(path) as file:
        return file.read()
