"""Inputs of the inference benchmark: random sequences of one length, or the windows of real questions."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from official.cli.benchmark.inference.peer_programs.asking import Batch
from official.io.errors import ConfigError

if TYPE_CHECKING:
    from official.data.squad.features import Features
    from official.inference.source import Source

_GENERATED = 4  # different batches; their answers take the same time
_MOST_REAL = 64


class Windows(NamedTuple):
    """Windows of questions, int32: ids [N, L], their tokens [N], and those of the first segment [N]."""

    ids_NL: np.ndarray
    lengths_N: np.ndarray
    firsts_N: np.ndarray

    def batch(self, numbers: np.ndarray) -> Batch:
        """Returns the windows of the given numbers as a batch without padding."""
        ids_NL, lengths_N, firsts_N = (values[numbers] for values in self)
        column_L = np.arange(ids_NL.shape[1])
        is_token_NL = column_L < lengths_N[:, None]
        segments_NL = (column_L >= firsts_N[:, None]).astype(np.int32)
        return Batch(ids_NL[is_token_NL], segments_NL[is_token_NL], lengths_N)

    def batches(self, order: np.ndarray, size: int) -> list[Batch]:
        """Returns batches of `size` windows, in an order; the last one may have fewer."""
        return [self.batch(order[first : first + size]) for first in range(0, len(order), size)]


def generated(words: int, length: int, count: int, seed: int) -> Windows:
    """Returns windows of random words, all `length` tokens long, the second half in the second segment."""
    ids_NL = np.random.default_rng(seed).integers(0, words, (count, length), dtype=np.int32)
    lengths_N = np.full(count, length, np.int32)
    return Windows(ids_NL, lengths_N, lengths_N // 2)


def real(path: str, found: Source, length: int) -> Windows:
    """Returns the windows of a SQuAD file, cut as `ask` cuts them. Raises ConfigError."""
    from official.data.squad import features, squad_files

    with_negative = found.setting("version_2_with_negative", False)
    data = squad_files.read_squad(path, "predict_file", False, with_negative)
    vocabulary = found.vocabulary
    rules = features.WindowRules(length, max(length // 3, 1), max(length // 6, 1))
    made: Features = features.make_features(data, vocabulary, rules)
    if not len(made):
        raise ConfigError(f"--predict_file={path} has no question that can be answered.")
    return Windows(made.input_ids.astype(np.int32), made.lengths, made.first_lengths)


def some(windows: Windows, count: int | None, seed: int) -> Windows:
    """Returns `count` windows drawn at random, in their order; all of them for None."""
    if count is None or count >= len(windows.lengths_N):
        return windows
    drawn = np.sort(np.random.default_rng(seed).permutation(len(windows.lengths_N))[:count])
    return Windows(*(values[drawn] for values in windows))


def case_batches(windows: Windows, size: int, is_real: bool) -> list[Batch]:
    """Returns full batches of one size for a case that repeats them. Raises ConfigError where there are too
    few windows for one."""
    count = len(windows.lengths_N) // size
    if not count:
        raise ConfigError(
            f"--micro_batch_size={size}: there are {len(windows.lengths_N)} windows. Take a smaller one."
        )
    order = np.arange(min(count, _MOST_REAL if is_real else _GENERATED) * size)
    return windows.batches(order, size)
