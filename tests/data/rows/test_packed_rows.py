"""Batches of packed rows: every sequence once an epoch, companions drawn anew, exact where they go on."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from official.data.packing.plan import plan_of, ranks
from official.data.pipeline import TrainingOrder
from official.data.rows import token_rows
from official.io.errors import ConfigError

SEQUENCES, ROW, PLACES, BATCH = 203, 64, 4, 8


def make_rows(lengths) -> token_rows.TokenRows:
    lengths = np.array(lengths)
    ids = np.random.default_rng(0).integers(1, 50, lengths.sum()).astype(np.uint16)
    labels = np.arange(len(lengths), dtype=np.int32)
    return token_rows.TokenRows(ids, lengths, (lengths + 1) // 2, {"label": labels})


@pytest.fixture(scope="module", name="rows")
def _rows():
    return make_rows(np.random.default_rng(0).integers(3, 40, SEQUENCES))


@pytest.fixture(scope="module", name="plan")
def _plan(rows):
    return plan_of(rows.lengths, ROW, PLACES)


@pytest.fixture(scope="module", name="steps")
def _steps(plan):
    assert plan.rows % BATCH  # the last batch of an epoch is filled up
    return -(-plan.rows // BATCH)


def shape_of(part=BATCH, places=PLACES):
    return token_rows.BatchShape(BATCH, part, ROW, bucketed=False, depth=places)


def training(rows, count, part=BATCH, places=PLACES, **position):
    order = TrainingOrder(seed=3, **position)
    batches = token_rows.training_dataset(rows, shape_of(part, places), order)
    return list(batches.take(count).as_numpy_iterator())


def numbers(batches) -> np.ndarray:
    return np.concatenate([batch["rows"] for batch in batches])


def test_every_epoch_has_each_sequence_once_and_companions_change(rows, plan, steps):
    batches = training(rows, 3 * steps)
    for batch in batches[:steps]:
        check_rows(batch, rows)
    epochs = [numbers(batches[first : first + steps]) for first in (0, steps, 2 * steps)]
    companions = []
    for epoch in epochs:
        assert sorted(epoch[epoch >= 0]) == list(range(SEQUENCES))
        filled = (epoch >= 0).any(axis=1)
        assert filled.sum() == plan.rows and filled[: plan.rows].all()
        companions.append({tuple(sorted(row)) for row in epoch[filled].tolist()})
    assert len(companions[0] & companions[1]) < plan.rows / 2
    assert [row.tolist() for row in epochs[1]] != [row.tolist() for row in epochs[2]]


def check_rows(batch, rows):
    """Compares packed rows with their sequences, laid out by hand."""
    assert (batch["example_weights"] == (batch["rows"] >= 0)).all()
    for index, row in enumerate(batch["rows"].tolist()):
        expected = {name: np.zeros(ROW, int) for name, values in batch.items() if values.shape[1:] == (ROW,)}
        begin = 0
        for place, number in enumerate(row):
            assert batch["cls_positions"][index, place] == (begin if number >= 0 else 0)
            if number < 0:
                continue
            length, span = rows.lengths[number], slice(begin, begin + rows.lengths[number])
            expected["input_ids"][span] = rows.ids[rows.starts[number] :][:length]
            expected["segment_ids"][span] = np.arange(length) >= rows.first_lengths[number]
            expected["position_ids"][span] = np.arange(length)
            expected["sequence_ids"][span] = place + 1
            expected["input_mask"][span] = 1
            assert batch["label"][index, place] == number
            begin += length
        for name, values in expected.items():
            assert batch[name][index].tolist() == values.tolist(), name


def test_goes_on_behind_any_batch(rows, steps):
    whole = training(rows, 2 * steps + 3)
    done = 0
    for number, batch in enumerate(whole[: 2 * steps]):
        resumed = training(rows, 3, sequences_done=done)
        assert [part["rows"].tolist() for part in resumed] == [
            part["rows"].tolist() for part in whole[number : number + 3]
        ]
        done += int(batch["example_weights"].sum())
    assert done == 2 * SEQUENCES


def test_goes_on_with_batches_of_another_size(rows, plan):
    """What is left of an epoch has the sequences that were not in it before."""
    first = training(rows, 5)
    done = int(sum(batch["example_weights"].sum() for batch in first))
    larger = token_rows.BatchShape(2 * BATCH, 2 * BATCH, ROW, False, PLACES)
    left = token_rows.training_dataset(rows, larger, TrainingOrder(3, done))
    left = list(left.take(-(-(plan.rows - 5 * BATCH) // (2 * BATCH))).as_numpy_iterator())
    seen = np.concatenate([numbers(first), numbers(left)])
    assert sorted(seen[seen >= 0]) == list(range(SEQUENCES))


def test_batches_do_not_depend_on_replicas_and_hosts(rows):
    for position in ({}, {"sequences_done": SEQUENCES + 1}):
        whole = training(rows, 10, **position)
        for hosts in (1, 2):
            parts = [
                training(rows, 40 // hosts, part=2, host=host, num_hosts=hosts, **position)
                for host in range(hosts)
            ]
            dealt = [parts[number % hosts][number // hosts] for number in range(40)]
            for name in ("rows", "input_ids", "cls_positions"):
                joined, expected = (np.concatenate([part[name] for part in some]) for some in (dealt, whole))
                assert joined.tolist() == expected.tolist()


def test_evaluation_has_each_sequence_once_always_in_one_order(rows, steps):
    datasets = [token_rows.evaluation_dataset(rows, shape_of()) for _ in range(2)]
    first, again = (list(dataset.as_numpy_iterator()) for dataset in datasets)
    assert len(first) == steps and numbers(first).tolist() == numbers(again).tolist()
    seen = numbers(first)
    assert sorted(seen[seen >= 0]) == list(range(SEQUENCES))
    for batch in first:
        check_rows(batch, rows)
    trained = token_rows.training_dataset(rows, shape_of(), TrainingOrder(3))
    assert datasets[0].element_spec == trained.element_spec
    assert all(spec.shape.is_fully_defined() for spec in trained.element_spec.values())


def test_special_sets():
    """One sequence a row, rows that are full, one sequence, more places than there is room for; none, and a
    long one."""
    sets = (([5, 9, 3], 1, 3), ([ROW] * 3, 4, 3), ([7], 4, 1), ([1] * 9, 4, 3), ([ROW // 2] * 4, 2, 2))
    for lengths, places, packed in sets:
        rows = make_rows(lengths)
        for batch in training(rows, 2, places=places):
            assert sorted(batch["rows"][batch["rows"] >= 0]) == list(range(len(lengths)))
            assert (batch["rows"] >= 0).any(axis=1).sum() == packed
            check_rows(batch, rows)
    assert list(token_rows.evaluation_dataset(make_rows(np.zeros(0, int)), shape_of())) == []
    with pytest.raises(ConfigError, match=f"A sequence has {ROW + 1} tokens, a row has 1 to {ROW}"):
        token_rows.evaluation_dataset(make_rows([3, ROW + 1]), shape_of())


@settings(deadline=None, max_examples=60)
@given(st.lists(st.integers(1, 16), min_size=1, max_size=60), st.integers(1, 6))
def test_planned_rows_hold_each_sequence_and_no_more_than_fits(lengths, places):
    lengths = np.array(lengths)
    plan = plan_of(lengths, 16, places)
    rows = token_rows.drawn(lengths, ranks(plan.lengths_of_rows(places))).numpy()
    assert rows.shape == (plan.rows, places) and sorted(rows[rows >= 0]) == list(range(len(lengths)))
    assert (np.where(rows >= 0, lengths[rows], 0).sum(axis=1) <= 16).all() and (rows[:, 0] >= 0).all()
    assert (np.diff((rows >= 0).astype(int), axis=1) <= 0).all()  # places are taken from the first one on
