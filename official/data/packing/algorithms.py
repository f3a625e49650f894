"""Packing algorithms of the published programs, by name."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
from scipy import linalg
from threadpoolctl import threadpool_limits

from official.data.packing.plan import Histogram, PackingPlan, first_fit, make_plan
from official.io import json_files
from official.io.errors import ConfigError, check_counts, suggest

# -----------------------------------------------------------------------------------------------------------
# Least squares
#
# The kinds of packs are all ways to fill a row with at most three lengths. Source: Krell et al. 2021, arXiv
# 2107.02027, sections on NNLSHP and its extended form.


_PARTS = 3


def least_squares(histogram: Histogram, depth: int | None = None, max_turns: int = 0) -> PackingPlan:
    """NNLSHP: minimises |w (A x - h)|, x >= 0; h is the histogram, A's columns are the lengths in each kind
    of pack. x is rounded; leftover sequences are packed by LPFHP, and surplus slots stay empty.

    ENNLSHP, with turns: a missing slot for a length costs 1e6 times as much as a surplus one, so that only
    rounding leaves sequences over. The published system has a variable for the empty slots of each length,
    r >= 0: |1e6 (A x - r - h)|^2 + |w r|^2. At its minimum r is A x - h where that is positive, else 0, which
    leaves the system of NNLSHP with other weights. The lengths with missing slots follow from its solution,
    which is repeated a few times, each time from the last x.

    Args:
      histogram: histogram of the lengths.
      depth: maximum number of sequences in a pack: 1, 2 or 3; None: 3. Larger values mean 3.
      max_turns: maximum number of turns of the extended form; 0: NNLSHP.
    """
    length, depth = histogram.max_length, min(depth or _PARTS, _PARTS)
    first, second = np.meshgrid(np.arange(length + 1), np.arange(length + 1), indexing="ij")
    third = length - first - second
    # All ways to fill a row with one to three lengths, int [K, 3], long ones first, padded with 0.
    kinds = np.stack([first, second, third], axis=-1)[(first >= second) & (second >= third) & (third >= 0)]
    kinds = kinds[(kinds > 0).sum(axis=1) <= depth].astype(np.int32)
    counts = histogram.counts[1:].astype(np.float64)
    weights = np.where(np.arange(1, length + 1) <= 8, 0.09, 1.0)  # empty slots of short lengths cost little
    solution = _solve(kinds, counts, weights)
    too_few: np.ndarray = np.zeros(length, bool)
    for _ in range(max_turns):
        places = np.bincount(kinds.ravel(), np.repeat(solution, _PARTS), minlength=int(kinds.max()) + 1)[1:]
        earlier, too_few = too_few, places < counts
        if np.array_equal(earlier, too_few):
            break
        solution = _solve(kinds, counts, np.where(too_few, 1e3, weights), solution)
    # Rounded packs: surplus slots are removed, and leftover sequences are packed among themselves.
    numbers = np.rint(solution).astype(np.int64)
    packs = [(tuple(int(n) for n in kinds[i] if n), int(numbers[i])) for i in np.flatnonzero(numbers)]
    surplus = make_plan(length, packs).histogram().counts - histogram.counts
    rest = first_fit(Histogram(np.maximum(-surplus, 0)), depth)
    return make_plan(length, [*_without(packs, np.maximum(surplus, 0)), *rest.packs.items()])


def _without(packs: list, surplus: np.ndarray) -> Iterator[tuple[tuple[int, ...], int]]:
    """Yields the packs after removing `surplus[n]` slots of each length n."""
    stack = list(packs)
    while stack:
        lengths, count = stack.pop()
        place = next((place for place, length in enumerate(lengths) if surplus[length]), None)
        if place is None:
            yield lengths, count
            continue
        changed = int(min(count, surplus[lengths[place]]))
        surplus[lengths[place]] -= changed
        stack.append((lengths[:place] + lengths[place + 1 :], changed))
        if count > changed:
            stack.append((lengths, count - changed))


def _solve(kinds: np.ndarray, counts: np.ndarray, weights: np.ndarray, start=None) -> np.ndarray:
    """Returns x >= 0 that minimises |w (A x - h)|.

    The active-set method of Lawson and Hanson (1974). A column has at most three entries, so gradients are
    sums of three numbers; the Cholesky factor of the active columns grows by a row with each new column.

    Linear algebra runs in one thread: the matrices are small, so threads on a busy machine would wait for
    each other, and the plan has the same bits on any number of cores.

    Args:
      kinds: int [C, 3], the columns of A.
      counts: h, [L].
      weights: w, [L].
      start: [C], 0 or more: its positive columns are active from the start; None: no column is.
    """
    rows = np.maximum(kinds - 1, 0)
    values, target = (kinds > 0) * weights[rows], counts * weights
    # The active columns, dense, and the Cholesky factor of their products.
    columns: list[int] = []
    height, x = len(counts), np.zeros(len(rows))
    dense, lower = np.zeros((height, height), order="F"), np.zeros((height, height))

    def append(column: int) -> bool:
        """Adds a column, unless it depends linearly on the others or the matrix is full."""
        size = len(columns)
        if size == height:
            return False
        new, row = np.zeros(height), np.zeros(0)
        np.add.at(new, rows[column], values[column])
        norm = new @ new
        if size:
            products, factor = dense[:, :size].T @ new, lower[:size, :size]
            row = linalg.solve_triangular(factor, products, lower=True, check_finite=False)
        rest = norm - row @ row
        if rest <= 1e-10 * norm:
            return False
        dense[:, size] = new
        lower[size, :size], lower[size, size] = row, rest**0.5
        columns.append(column)
        return True

    def step() -> None:
        """Moves x towards the least-squares solution of the active columns, as far as all stay positive;
        columns that reach 0 are removed."""
        while True:
            size = len(columns)
            factor = lower[:size, :size], True
            wanted = linalg.cho_solve(factor, dense[:, :size].T @ target, check_finite=False)
            current = x[columns]
            falling = wanted <= 0
            if not falling.any():
                x[columns] = wanted
                return
            share = (current[falling] / (current[falling] - wanted[falling])).min()
            moved = current + share * (wanted - current)
            out = np.flatnonzero(falling & (moved <= 1e-9 * max(1.0, current.max())))
            if not len(out):
                out = np.flatnonzero(falling)[:1]
            moved[out] = 0
            x[columns] = moved
            kept = np.setdiff1d(np.arange(size), out)
            columns[:], size = [columns[place] for place in kept], len(kept)
            dense[:, :size] = dense[:, kept]
            used = dense[:, :size]
            lower[:size, :size] = linalg.cholesky(used.T @ used, lower=True, check_finite=False)

    with threadpool_limits(limits=1, user_api="blas"):
        if start is not None:
            used = [column for column in np.flatnonzero(start).tolist() if append(column)]
            x[used] = start[used]
            step()
        tolerance = 1e-6 * counts.max() * weights.max()
        banned = np.zeros(len(rows), bool)
        while True:
            residual = target - dense[:, : len(columns)] @ x[columns]
            gradient = (values * residual[rows]).sum(axis=1)
            gradient[columns] = -np.inf
            gradient[banned] = -np.inf
            best = int(gradient.argmax())
            if gradient[best] <= tolerance:
                return x
            banned[best] = not append(best)
            if not banned[best]:
                step()
                banned[:] = False


# -----------------------------------------------------------------------------------------------------------
# Algorithms by name


# The first of the smallest plans is chosen; least squares, which can give another plan on another machine,
# comes last.
ALGORITHMS: dict[str, Callable[..., PackingPlan]] = {
    "lpfhp": first_fit,
    "spfhp": functools.partial(first_fit, is_tightest=False),
    "nnlshp": least_squares,
    "ennlshp": functools.partial(least_squares, max_turns=10),  # two are enough for the lengths of Wikipedia
}


class Planned(NamedTuple):
    """A plan, the time to make it, and the algorithm that made it."""

    plan: PackingPlan
    secs: float
    algorithm: str


def plan_by_algorithm(histogram: Histogram, algorithm: str | None, depth: int) -> Planned:
    """Plans the packing of a histogram.

    Args:
      histogram: histogram of the lengths.
      algorithm: name in ALGORITHMS; None: the one with the fewest rows.
      depth: maximum number of sequences in a row; at most 3 with least squares.

    Raises:
      ConfigError: for an unknown algorithm, a depth below 1, or a histogram without sequences.
    """
    if algorithm is not None and algorithm not in ALGORITHMS:
        allowed = f"{suggest(algorithm, ALGORITHMS)}. Allowed: {', '.join(ALGORITHMS)}"
        raise ConfigError(f"--algorithm={algorithm} is unknown{allowed}.")
    check_counts(max_sequences_per_pack=depth)
    if not histogram.sequences:
        raise ConfigError("There are no sequences to pack: all counts of the histogram are 0.")
    started = time.perf_counter()
    found: dict[str, PackingPlan] = {}
    for name in [algorithm] if algorithm else ALGORITHMS:
        found[name] = ALGORITHMS[name](histogram, depth)
        if found[name].rows == -(-histogram.tokens // histogram.max_length):
            break  # the minimum
    best = min(found, key=lambda name: found[name].rows)
    return Planned(found[best], time.perf_counter() - started, best)


def read_histogram(path: str) -> Histogram:
    """Reads {"max_sequence_length": S, "counts_by_length_from_1": [S numbers]}. Raises ConfigError."""
    values = json_files.read_json(path, "histogram")
    length = json_files.expect(values, "max_sequence_length", int, path)
    counts = json_files.expect(values, "counts_by_length_from_1", list, path)
    if length < 1 or len(counts) != length:
        wanted = f'expected "max_sequence_length" = {length}, 1 or more'
        raise ConfigError(f'{path}: "counts_by_length_from_1" has {len(counts)} counts, {wanted}.')
    for place, count in enumerate(counts, 1):
        if not json_files.is_of_kind(count, int) or not 0 <= count < 1 << 53:
            problem = f"the count of length {place} is {count!r}, expected a whole number from 0"
            raise ConfigError(f"{path}: {problem}.")
    return Histogram(np.array([0, *counts], np.int64))


def describe(histogram: Histogram, planned: Planned) -> dict:
    """Returns the figures of a plan, for reports. Shares are 0 to 1; `lengths` counts the sequences that have
    0, 1, 2, .. tokens, `tokens_of_rows` the rows."""
    plan, before = planned.plan, histogram.tokens / (histogram.sequences * histogram.max_length)
    return {
        "algorithm": planned.algorithm,
        "packs": plan.rows,
        "sequences": plan.sequences,
        "tokens": plan.tokens,
        "max_seq_length": plan.row_length,
        "sequences_per_pack": plan.depth,
        "kinds": len(plan.packs),
        "efficiency": plan.efficiency,
        "speedup": plan.speedup,
        "bound": 1 / before,
        "padding_before": 1 - before,
        "padding_after": 1 - plan.efficiency,
        "secs": planned.secs,
        "lengths": histogram.counts.tolist(),
        "tokens_of_rows": plan.tokens_of_rows().tolist(),
    }
