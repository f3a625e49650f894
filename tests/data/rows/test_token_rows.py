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
    return token_rows.TokenRows(
        generator.integers(1, 50, lengths.sum()).astype(np.uint16),
        lengths,
        lengths // 2,
        {"label": np.arange(ROWS, dtype=np.int32)},
    )


def training(rows, bucketed=True, part=BATCH, count=None, **position):
    shape = token_rows.BatchShape(BATCH, part, LONGEST, bucketed)
    batches = token_rows.training_dataset(rows, shape, TrainingOrder(seed=3, **position))
    return list(batches.take(count or STEPS * BATCH // part).as_numpy_iterator())


@pytest.mark.parametrize("bucketed", [True, False])
def test_every_epoch_has_each_row_once(rows, bucketed):
    batches = training(rows, bucketed, count=2 * STEPS)
    epochs = [
        np.concatenate([batch["rows"] for batch in part]) for part in (batches[:STEPS], batches[STEPS:])
    ]
    for epoch in epochs:
        assert sorted(epoch[epoch >= 0]) == list(range(ROWS)) and (epoch < 0).sum() == STEPS * BATCH - ROWS
    assert epochs[0].tolist() != epochs[1].tolist()


@pytest.mark.parametrize("bucketed", [True, False])
def test_features_are_those_of_the_row(rows, bucketed):
    for batch in training(rows, bucketed):
        assert (batch["example_weights"] == (batch["rows"] >= 0)).all()
        for index, row in enumerate(batch["rows"]):
            if row < 0:
                continue
            length = rows.lengths[row]
            expected = np.zeros(batch["input_ids"].shape[1], int)
            expected[:length] = rows.ids[rows.starts[row] :][:length]
            assert (
                batch["input_ids"][index].tolist() == expected.tolist()
                and batch["input_mask"][index].sum() == length
            )
            assert batch["segment_ids"][index].tolist() == [
                int(rows.first_lengths[row] <= place < length) for place in range(len(expected))
            ]
            assert batch["label"][index] == row


def test_buckets_leave_little_padding(rows):
    share = {
        bucketed: np.mean([1 - batch["input_mask"].mean() for batch in training(rows, bucketed)])
        for bucketed in (True, False)
    }
    assert share[True] < 0.3 < share[False]


@pytest.mark.parametrize("bucketed", [True, False])
def test_resumed_in_the_middle(rows, bucketed):
    whole = training(rows, bucketed, count=30)
    resumed = training(rows, bucketed, count=14, sequences_done=16 * BATCH)  # in the second epoch
    assert [batch["rows"].tolist() for batch in resumed] == [batch["rows"].tolist() for batch in whole[16:]]


@pytest.mark.parametrize("hosts", [1, 2])
def test_batches_do_not_depend_on_replicas_and_hosts(rows, hosts):
    whole = training(rows, count=10)
    parts = [training(rows, part=4, count=40 // hosts, host=host, num_hosts=hosts) for host in range(hosts)]
    dealt = [parts[number % hosts][number // hosts] for number in range(40)]
    for number, batch in enumerate(whole):
        own = dealt[4 * number : 4 * number + 4]
        assert np.concatenate([part["rows"] for part in own]).tolist() == batch["rows"].tolist()
        assert {part["input_ids"].shape[1] for part in own} == {batch["input_ids"].shape[1]}


@pytest.mark.parametrize("bucketed", [True, False])
def test_evaluation_has_each_row_once(rows, bucketed):
    shape = token_rows.BatchShape(BATCH, BATCH, LONGEST, bucketed)
    batches = list(token_rows.evaluation_dataset(rows, shape).as_numpy_iterator())
    seen = np.concatenate([batch["rows"] for batch in batches])
    assert sorted(seen[seen >= 0]) == list(range(ROWS)) and {len(batch["rows"]) for batch in batches} == {
        BATCH
    }
    lengths = [batch["input_ids"].shape[1] for batch in batches]
    assert lengths == sorted(lengths, reverse=True) and (bucketed or set(lengths) == {LONGEST})
