"""Packing plans: as few rows as published, every sequence once, no row over its length or depth."""

import functools
import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from official.data.packing import algorithms, layout
from official.data.packing.plan import Histogram, PackingPlan, plan_of
from official.io.errors import ConfigError
from tests.fixtures import ROOT, slow

# Of the 16 million sequences of Wikipedia and the 88,641 of SQuAD 1.1 in Graphcore's examples.
HISTOGRAMS = ROOT / "tests" / "data" / "packing" / "histograms"


def read(name: str) -> Histogram:
    return algorithms.read_histogram(str(HISTOGRAMS / f"{name}.json"))


def check(plan: PackingPlan, histogram: Histogram, depth: int) -> None:
    """Checks that every sequence is in exactly one row, and no row is over its length or depth."""
    np.testing.assert_array_equal(plan.histogram().counts, histogram.counts)
    for lengths, count in plan.packs.items():
        assert count > 0 and 0 < sum(lengths) <= histogram.max_length and 0 < len(lengths) <= depth
        assert list(lengths) == sorted(lengths, reverse=True)
    assert (plan.sequences, plan.tokens) == (histogram.sequences, histogram.tokens)


@pytest.mark.slow
def test_as_few_rows_as_published():
    for name, algorithm, depth, rows, efficiency in (
        ("wikipedia_512", "spfhp", 12, 8_166_708, 0.99604),
        ("wikipedia_512", "lpfhp", 12, 8_149_619, 0.99813),
        ("wikipedia_512", "nnlshp", 3, 8_154_800, 0.9975),
        ("wikipedia_512", "ennlshp", 3, 8_154_800, 0.9975),
        ("squad_v1.1_384", "lpfhp", 3, 40_631, 0.977),
    ):
        histogram = read(name)
        plan = algorithms.plan_by_algorithm(histogram, algorithm, depth).plan
        check(plan, histogram, depth)
        assert plan.rows <= rows and round(plan.efficiency, 5) >= efficiency
        assert plan.speedup == pytest.approx(histogram.sequences / plan.rows)


@st.composite
def histograms(draw) -> Histogram:
    length = draw(st.integers(1, 24))
    counts = draw(st.lists(st.integers(0, 50) | st.integers(0, 10**9), min_size=length, max_size=length))
    return Histogram(np.array([0, *counts], np.int64))


@pytest.mark.parametrize("algorithm", algorithms.ALGORITHMS)
@settings(max_examples=25, deadline=None)
@given(histogram=histograms(), depth=st.integers(1, 13))
def test_every_sequence_once_and_no_row_over_length_or_depth(algorithm, histogram, depth):
    if not histogram.sequences:
        with pytest.raises(ConfigError, match="no sequences"):
            algorithms.plan_by_algorithm(histogram, algorithm, depth)
        return
    plan = algorithms.plan_by_algorithm(histogram, algorithm, depth).plan
    check(plan, histogram, min(depth, 3) if "nnls" in algorithm else depth)


def of_random_lengths(seed: int) -> Histogram:
    rng = np.random.default_rng(seed)
    length = int(rng.integers(40, 120))
    return Histogram(np.array([0, *rng.integers(0, 10 ** rng.integers(1, 6), length)], np.int64))


@pytest.mark.parametrize("name", [slow("squad_v1.1_384"), 1, slow(2)])
def test_without_an_algorithm_no_single_one_has_fewer_rows(name):
    histogram, best = read(name) if isinstance(name, str) else of_random_lengths(name), {}
    for depth in (2, 3):
        planned = algorithms.plan_by_algorithm(histogram, None, depth)
        check(planned.plan, histogram, depth)
        alone = {
            each: algorithms.plan_by_algorithm(histogram, each, depth).plan for each in algorithms.ALGORITHMS
        }
        assert planned.plan.rows == min(plan.rows for plan in alone.values())
        assert planned.plan == alone[planned.algorithm]
        best[depth] = planned.algorithm
    if name == "squad_v1.1_384":  # none is the best for all lengths, for up to 3 sequences a row, too
        assert {best[2], best[3]} == {"lpfhp", "nnlshp"}


@functools.cache
def fewest_rows(left: tuple[int, ...], length: int, depth: int) -> int:
    """Tries every row that the longest sequence can be in."""
    if not left:
        return 0
    longest, others = left[0], left[1:]
    found = [1 + fewest_rows(others, length, depth)]
    for size in range(1, depth):
        for chosen in set(itertools.combinations(range(len(others)), size)):
            if longest + sum(others[i] for i in chosen) <= length:
                rest = tuple(n for i, n in enumerate(others) if i not in chosen)
                found.append(1 + fewest_rows(rest, length, depth))
    return min(found)


@pytest.mark.parametrize(
    "algorithm, over, step",
    [("spfhp", 3, 1), ("lpfhp", 1, 1), ("nnlshp", 2, 3), slow("nnlshp", 2, 1), slow("ennlshp", 2, 1)],
)
def test_tiny_sets_take_about_as_few_rows_as_trying_all_ways(algorithm, over, step):
    """SPFHP, as published, puts a length into a row once: five of one token take five rows, not two."""
    length, depth, best = 7, 3, 0
    sets = [
        some
        for count in (1, 3, 5)
        for some in itertools.combinations_with_replacement((6, 5, 4, 3, 2, 1), count)
    ][::step]
    for lengths in sets:
        histogram = Histogram.of_lengths(lengths, length)
        plan = algorithms.plan_by_algorithm(histogram, algorithm, depth).plan
        check(plan, histogram, depth)
        fewest = fewest_rows(lengths, length, depth)
        assert fewest <= plan.rows <= fewest + over, (lengths, plan.packs)
        best += plan.rows == fewest
    assert best > 0.6 * len(sets)


# ------------------------------------------------------------------------------------------------------------
# Sequences that share a row


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_every_sequence_is_in_one_row_that_has_room(data):
    length, depth = data.draw(st.integers(4, 40)), data.draw(st.integers(1, 6))
    lengths = np.array(data.draw(st.lists(st.integers(1, length), min_size=1, max_size=80)))
    most = data.draw(st.integers(1, 5))
    predictions = np.array(
        data.draw(st.lists(st.integers(0, most), min_size=len(lengths), max_size=len(lengths)))
    )
    members = layout.group(lengths, predictions, length, most + depth - 1, depth)
    assert sorted(members[members >= 0]) == list(range(len(lengths)))
    is_there = members >= 0
    assert (is_there[:, :-1] >= is_there[:, 1:]).all() and is_there[:, 0].all()  # no gaps, no empty rows
    assert np.where(is_there, lengths[members], 0).sum(axis=1).max() <= length
    assert np.where(is_there, predictions[members], 0).sum(axis=1).max() <= most + depth - 1


def test_rows_are_those_of_the_plan_where_slots_are_no_limit():
    lengths = np.random.default_rng(0).integers(1, 65, 500)
    plan = plan_of(lengths, 64, 5)
    members = layout.group(lengths, np.zeros(500, int), 64, 5, 5)
    packs = {tuple(sorted((lengths[row[row >= 0]]).tolist(), reverse=True)) for row in members}
    assert len(members) == plan.rows and packs == set(plan.packs)
