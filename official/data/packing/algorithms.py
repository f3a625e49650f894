"""The packing algorithms by name, and histograms from files."""

from __future__ import annotations

import time
from typing import NamedTuple

import numpy as np

from official.data.packing import first_fit, least_squares
from official.data.packing.plan import Histogram, PackingPlan
from official.io import json_files
from official.io.errors import ConfigError, suggest

# Of plans of the same size the first one counts: least squares may be another plan on another machine.
ALGORITHMS = {
    "lpfhp": first_fit.longest_pack_first,
    "spfhp": first_fit.shortest_pack_first,
    "nnlshp": least_squares.nonnegative_least_squares,
    "ennlshp": least_squares.extended_least_squares,
}


class Planned(NamedTuple):
    """A plan, what making it took, and the algorithm that found it."""

    plan: PackingPlan
    secs: float
    algorithm: str


def make_plan(histogram: Histogram, algorithm: str | None, depth: int) -> Planned:
    """Plans the packing of a histogram.

    Args:
      histogram: of the lengths.
      algorithm: one of ALGORITHMS; None: the one with the fewest rows.
      depth: sequences of a row, at most; those by least squares have up to 3 in any case.

    Raises:
      ConfigError: for an unknown algorithm, a depth below 1, or a histogram without sequences.
    """
    if algorithm is not None and algorithm not in ALGORITHMS:
        raise ConfigError(
            f"--algorithm={algorithm} is unknown{suggest(algorithm, ALGORITHMS)}."
            f" Allowed: {', '.join(ALGORITHMS)}."
        )
    if depth < 1:
        raise ConfigError(f"--max_sequences_per_pack={depth} is out of range. Allowed: 1 or more.")
    if not histogram.sequences:
        raise ConfigError("There are no sequences to pack: all counts of the histogram are 0.")
    started = time.perf_counter()
    found: dict[str, PackingPlan] = {}
    for name in [algorithm] if algorithm else ALGORITHMS:
        found[name] = ALGORITHMS[name](histogram, depth)
        if found[name].rows == -(-histogram.tokens // histogram.max_length):
            break  # fewer are not possible
    best = min(found, key=lambda name: found[name].rows)
    return Planned(found[best], time.perf_counter() - started, best)


def read_histogram(path: str) -> Histogram:
    """Reads {"max_sequence_length": S, "counts_by_length_from_1": [S numbers]}. Raises ConfigError."""
    values = json_files.read_json(path, "histogram")
    length = json_files.expect(values, "max_sequence_length", int, path)
    counts = json_files.expect(values, "counts_by_length_from_1", list, path)
    if length < 1 or len(counts) != length:
        raise ConfigError(
            f'{path}: "counts_by_length_from_1" has {len(counts)} counts, expected "max_sequence_length" ='
            f" {length}, 1 or more."
        )
    for place, count in enumerate(counts, 1):
        if not json_files.is_of_kind(count, int) or not 0 <= count < 1 << 53:
            raise ConfigError(
                f"{path}: the count of length {place} is {count!r}, expected a whole number from 0."
            )
    return Histogram(np.array([0, *counts], np.int64))


def describe(histogram: Histogram, planned: Planned) -> dict:
    """Returns the numbers of a plan, for reports. Shares are 0 to 1; `lengths` counts the sequences that have
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
