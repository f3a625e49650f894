"""Repetitions are counted in memory that does not grow, exactly or as an estimate that says so."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from official.data.pretraining.summary import Repeats, mixed


def hashes(values) -> np.ndarray:
    return mixed(np.asarray(values, np.uint64))


def counted(parts, most_kept=64) -> Repeats:
    repeats = Repeats(most_kept)
    for part in parts:
        repeats.add(hashes(part))
    return repeats


def state(repeats: Repeats) -> list:
    repeats.share()  # takes in what waits
    return [repeats.total, repeats._halvings, repeats._values.tolist()]


def test_few_values_are_counted_exactly():
    repeats = counted([[1, 2, 3], [], [2, 2, 4]])
    assert (repeats.share(), repeats.is_exact()) == (pytest.approx(2 / 6), True)
    assert (Repeats().share(), Repeats().is_exact()) == (0.0, True)


@given(st.lists(st.lists(st.integers(0, 300), max_size=80), max_size=8), st.randoms())
def test_parts_add_up_to_the_whole_in_any_order(parts, random):
    whole = counted(parts, 32)
    cut = [counted([part], 32) for part in parts]
    random.shuffle(cut)
    total = Repeats(32)
    for part in cut:
        total.merge(part)
    assert state(total) == state(whole) and total.share() == whole.share()


def distinct(count: int, seed: int = 0) -> np.ndarray:
    return np.arange(count, dtype=np.uint64) + np.uint64(seed << 32)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    "make",
    [
        lambda seed: distinct(50_000, seed),  # none comes twice
        lambda seed: np.concatenate([distinct(50_000, seed), distinct(1_000, seed)]),  # a few do
        lambda seed: np.repeat(distinct(6_000, seed), 10),
        # One comes very often, as boilerplate does; the limit takes it or not.
        lambda seed: np.concatenate([distinct(30_000, seed), np.full(20_000, seed + 9, np.uint64)]),
    ],
    ids=["distinct", "few", "tenfold", "boilerplate"],
)
def test_an_estimate_is_near(make, seed):
    values = make(seed)
    true = 1 - len(np.unique(values)) / len(values)
    repeats = Repeats(2048)
    for part in np.array_split(hashes(values), 30):
        repeats.add(part)
        assert repeats._waiting == sum(map(len, repeats._new)) <= 2048
        assert len(state(repeats)[2]) <= 2048
    assert not repeats.is_exact()
    assert abs(repeats.share() - true) <= 4 * (1 - true) / 1024**0.5  # four standard errors
