"""Remaining part of each source when equal documents are dropped, known before they have met.

Equal documents have equal keys. Each task that reads text lists the keys and tokens of its documents; where
it has too many, of those with the lowest keys only. The keys that all tasks have listed in full are those of
a random sample of all different documents, whatever their order: of each source, the part of the sample that
no earlier text holds is the part that will be left. It is exact where every document is listed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from official.data.pretraining import blocks
from official.data.pretraining.job import Job

_LISTED = 1 << 21  # documents of all tasks, about
_FEWEST_LISTED = 1 << 5  # of a task


def is_needed(job: Job) -> bool:
    """Tells whether a job needs to know the remaining parts."""
    return job.mixture is not None and job.drop_duplicates


class KeyList:
    """The documents of a task."""

    def __init__(self, num_tasks: int):
        self._most = max(_LISTED // num_tasks, _FEWEST_LISTED)
        self._keys: list[np.ndarray] = []
        self._tokens: list[np.ndarray] = []

    def add(self, sample: blocks.Sample) -> None:
        self._keys.append(sample.keys)
        self._tokens.append(np.diff(sample.documents.token_starts()))

    def to_json(self) -> dict:
        """Returns {halvings, keys, tokens}: keys below 2**(64 - halvings) are listed, as int64."""
        keys = np.concatenate([np.zeros(0, np.uint64), *self._keys])
        tokens = np.concatenate([np.zeros(0, np.int64), *self._tokens])
        halvings = 0
        while len(keys) > self._most:
            halvings += 1
            is_low = _is_below(keys, halvings)
            keys, tokens = keys[is_low], tokens[is_low]
        return {"halvings": halvings, "keys": keys.view(np.int64).tolist(), "tokens": tokens.tolist()}


def tokens_left(tokens: Sequence[int], listed: Iterable[tuple[int, dict]]) -> list[float]:
    """Returns the tokens of each source that will be left.

    Args:
      tokens: of each source, as they were read.
      listed: of each task, in their order: the number of its source, and what `KeyList.to_json` returned.
    """
    keys, counts, sources, halvings = [], [], [], 0
    for source, own in listed:
        halvings = max(halvings, own["halvings"])
        keys.append(np.array(own["keys"], np.int64).view(np.uint64))
        counts.append(np.array(own["tokens"], np.int64))
        sources.append(np.full(len(own["keys"]), source))
    sample = np.concatenate(keys)
    is_in_all = _is_below(sample, halvings)
    sample, count, source_of = (
        values[is_in_all] for values in (sample, np.concatenate(counts), np.concatenate(sources))
    )
    _, first = np.unique(sample, return_index=True)
    before = np.bincount(source_of, count, len(tokens))
    after = np.bincount(source_of[first], count[first], len(tokens))
    return (np.array(tokens) * np.where(before > 0, after / np.maximum(before, 1), 1.0)).tolist()


def _is_below(keys: np.ndarray, halvings: int) -> np.ndarray:
    """Tells which keys are below 2**(64 - halvings), bool [D]."""
    return keys <= np.uint64((1 << (blocks.KEY_BITS - halvings)) - 1)
