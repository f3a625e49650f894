"""Sequences on their way to shards: blocks of files in the work folder, from which a shard reads its part.

A block holds the sequences of a part of an input file in the order of their shards: NAME.heads.npy, int32
[N, 5], NAME.words.npy, int32: of each sequence its ids, masked places and labels without padding;
NAME.index.npy, int64 [T + 1, 2]: where in the other two the sequences of a shard begin.
"""

from __future__ import annotations

import glob
import os
from typing import NamedTuple

import numpy as np

from official.data.pretraining.examples import Examples
from official.io import writing

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
      path: without an ending.
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
    starts = np.concatenate([[0], np.cumsum(is_there.sum(axis=1))])
    for name, array in (
        ("heads", heads),
        ("words", words[is_there]),
        ("index", np.stack([firsts, starts[firsts]], axis=1)),
    ):
        with writing.replacing(f"{path}.{name}.npy") as temporary, open(temporary, "wb") as file:
            np.save(file, array)


def read_shard(folder: str, shard: int) -> Spilled:
    """Returns the sequences of a shard from all blocks of a folder. Raises OSError."""
    parts = []
    for index_path in sorted(glob.glob(os.path.join(glob.escape(folder), "*.index.npy"))):
        path = index_path.removesuffix(".index.npy")
        index = np.load(index_path, mmap_mode="r")
        (first, start), (end, stop) = index[shard], index[shard + 1]
        if end > first:
            heads = np.load(f"{path}.heads.npy", mmap_mode="r")[first:end]
            words = np.load(f"{path}.words.npy", mmap_mode="r")[start:stop]
            parts.append((np.array(heads), np.array(words)))
    heads = np.concatenate([np.zeros((0, 5), np.int32), *(part[0] for part in parts)])
    words = np.concatenate([np.zeros(0, np.int32), *(part[1] for part in parts)])
    counts = heads[:, _LENGTH].astype(np.int64) + 2 * heads[:, _PREDICTIONS]
    return Spilled(heads, words, np.concatenate([[0], np.cumsum(counts)]))
