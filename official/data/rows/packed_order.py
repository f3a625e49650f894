"""Rows of sequences, and the order of the rows: functions of lengths, seed and epoch.

How many rows have sequences of which lengths is planned once. Sequences of one length are exchangeable: which
of them stands where is drawn for each epoch, so that every epoch has the same number of rows.

Shapes: N sequences, R rows, P places of a row.
"""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from official.data import pipeline
from official.data.packing import first_fit
from official.data.packing.plan import Histogram, PackingPlan


def make_plan(lengths_N: np.ndarray, row_length: int, places: int) -> PackingPlan:
    """Plans rows of `row_length` tokens, with `places` sequences each at most, by LPFHP.

    Raises:
      ConfigError: where a sequence is longer than a row, which none is that was cut to it.
    """
    if not len(lengths_N):
        return PackingPlan(row_length, {})
    return first_fit.longest_pack_first(Histogram.of_lengths(lengths_N, row_length), places)


def ranks(plan: PackingPlan, places: int) -> np.ndarray:
    """Returns int64 [R, P]: which of all sequences, counted from 0 in the order of their lengths, stands at a
    place; -1 where none does."""
    lengths_RP = plan.lengths_of_rows(places)
    ranks_F = np.empty(lengths_RP.size, np.int64)
    ranks_F[np.argsort(lengths_RP, axis=None, kind="stable")] = np.arange(lengths_RP.size)
    empty = lengths_RP.size - plan.sequences  # are shorter than all others
    return np.maximum(ranks_F - empty, -1).reshape(lengths_RP.shape)


def fixed(lengths_N: np.ndarray, ranks_RP: np.ndarray) -> np.ndarray:
    """Returns int64 [R, P], the sequences of each row, in one order for good; -1 where there is none."""
    return _placed(np.argsort(lengths_N, kind="stable"), ranks_RP).numpy()


def drawn(lengths_N: tf.Tensor, ranks_RP: tf.Tensor, seeds: tf.Tensor) -> tf.Tensor:
    """Returns int64 [R, P], the sequences of each row of an epoch; -1 where there is none.

    Args:
      lengths_N: int64.
      ranks_RP: see `ranks`.
      seeds: [2, 2], of the epoch: who shares a row, and the order of the rows.
    """
    shuffled_N = pipeline.shuffled(tf.range(tf.size(lengths_N), dtype=tf.int64), seeds[0])
    by_length_N = tf.gather(shuffled_N, tf.argsort(tf.gather(lengths_N, shuffled_N), stable=True))
    return pipeline.shuffled(_placed(by_length_N, ranks_RP), seeds[1])


def _placed(by_length_N, ranks_RP) -> tf.Tensor:
    if not len(ranks_RP):
        return tf.constant(ranks_RP)
    return tf.where(ranks_RP >= 0, tf.gather(by_length_N, tf.maximum(ranks_RP, 0)), -1)
