"""Batches of rows in memory: every row once an epoch, the order a function of the seed, padding only where it
must be.
"""

import numpy as np
import pytest

from official.data.pipeline import TrainingOrder
from official.data.rows import token_rows

ROWS, BATCH, LONGEST = 203, 16, 64
STEPS = 13  # of an epoch; the last batch is filled up


@pytest.fixture(scope="module", name="rows")
def _rows():
    generator = np.random.default_rng(0)
    lengths = generator.integers(3, 40, ROWS)
    ids = generator.integers(1, 50, lengths.sum()).astype(np.uint16)
    return token_rows.TokenRows(ids, lengths, lengths // 2, {"label": np.arange(ROWS, dtype=np.int32) + 1})


def training(rows, bucketed=True, part=BATCH, count=STEPS, **position):
    shape = token_rows.BatchShape(BATCH, part, LONGEST, bucketed)
    batches = token_rows.training_dataset(rows, shape, TrainingOrder(seed=3, **position))
    return list(batches.take(count).as_numpy_iterator())


def numbers(batches) -> list[int]:
    return np.concatenate([batch["rows"] for batch in batches]).tolist()


@pytest.mark.parametrize("bucketed", [True, False])
def test_every_epoch_has_each_row_once_and_goes_on_in_the_middle(rows, bucketed):
    batches = training(rows, bucketed, count=30)
    epochs = [numbers(batches[:STEPS]), numbers(batches[STEPS : 2 * STEPS])]
    for epoch in epochs:
        assert sorted(epoch) == [-1] * (STEPS * BATCH - ROWS) + list(range(ROWS))
    assert epochs[0] != epochs[1]
    resumed = training(rows, bucketed, count=14, sequences_done=16 * BATCH)  # in the second epoch
    assert [batch["rows"].tolist() for batch in resumed] == [batch["rows"].tolist() for batch in batches[16:]]


def test_features_are_those_of_the_row_and_buckets_leave_little_padding(rows):
    padding = {}
    for bucketed in (True, False):
        batches = training(rows, bucketed)
        padding[bucketed] = np.mean([1 - batch["input_mask"].mean() for batch in batches])
        for batch in batches:
            assert (batch["example_weights"] == (batch["rows"] >= 0)).all()
            assert not batch["label"][batch["rows"] < 0].any()  # a place in every batch, not of another row
            for index in np.flatnonzero(batch["rows"] >= 0):
                row, column = batch["rows"][index], np.arange(batch["input_ids"].shape[1])
                length, expected = rows.lengths[row], np.zeros(len(column), int)
                expected[:length] = rows.ids[rows.starts[row] :][:length]
                assert batch["input_ids"][index].tolist() == expected.tolist()
                assert batch["input_mask"][index].tolist() == (column < length).tolist()
                is_second = (column >= rows.first_lengths[row]) & (column < length)
                assert batch["segment_ids"][index].tolist() == is_second.tolist()
                assert batch["label"][index] == row + 1
    assert padding[True] < 0.3 < padding[False]


def test_batches_do_not_depend_on_replicas_and_hosts(rows):
    whole = training(rows, count=10)
    for hosts in (1, 2):
        parts = [
            training(rows, part=4, count=40 // hosts, host=host, num_hosts=hosts) for host in range(hosts)
        ]
        dealt = [parts[number % hosts][number // hosts] for number in range(40)]
        for number, batch in enumerate(whole):
            own = dealt[4 * number : 4 * number + 4]
            assert numbers(own) == batch["rows"].tolist()
            assert {part["input_ids"].shape[1] for part in own} == {batch["input_ids"].shape[1]}


def test_evaluation_has_each_row_once(rows):
    for bucketed in (True, False):
        shape = token_rows.BatchShape(BATCH, BATCH, LONGEST, bucketed)
        batches = list(token_rows.evaluation_dataset(rows, shape).as_numpy_iterator())
        assert sorted(numbers(batches)) == [-1] * (STEPS * BATCH - ROWS) + list(range(ROWS))
        lengths = [batch["input_ids"].shape[1] for batch in batches]
        assert {len(batch["rows"]) for batch in batches} == {BATCH}
        assert lengths == sorted(lengths, reverse=True) and (bucketed or set(lengths) == {LONGEST})
