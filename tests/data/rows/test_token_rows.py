"""Batches of rows in memory, one sequence or several in each: every sequence once an epoch, the order a
function of the seed, exact where it goes on, padding only where it must be.
"""

import numpy as np
import pytest

from official.data.packing.plan import plan_of
from official.data.pipeline import TrainingOrder
from official.data.rows import token_rows
from official.io.errors import ConfigError
from tests.fixtures import slow

SEQUENCES, ROW, PLACES, BATCH = 203, 64, 4, 8


def make_rows(lengths) -> token_rows.TokenRows:
    lengths = np.array(lengths)
    ids = np.random.default_rng(0).integers(1, 50, lengths.sum()).astype(np.uint16)
    labels = np.arange(len(lengths), dtype=np.int32) + 1
    return token_rows.TokenRows(ids, lengths, (lengths + 1) // 2, {"label": labels})


ROWS = make_rows(np.random.default_rng(0).integers(3, 40, SEQUENCES))
PLAN = plan_of(ROWS.lengths, ROW, PLACES)
each_kind = pytest.mark.parametrize("kind", ["bucketed", slow("fixed"), "packed"])


def shape_of(kind, part=BATCH, places=PLACES):
    return token_rows.BatchShape(BATCH, part, ROW, kind == "bucketed", places if kind == "packed" else None)


def steps_of(kind) -> int:
    """Returns the batches of an epoch, of which the last one is filled up."""
    rows = PLAN.rows if kind == "packed" else SEQUENCES
    assert rows % BATCH
    return -(-rows // BATCH)


def training(kind, count, part=BATCH, places=PLACES, rows=ROWS, **position):
    order = TrainingOrder(seed=3, **position)
    batches = token_rows.training_dataset(rows, shape_of(kind, part, places), order)
    return list(batches.take(count).as_numpy_iterator())


def numbers(batches) -> np.ndarray:
    return np.concatenate([batch["rows"] for batch in batches])


def sequences(batches) -> list[int]:
    found = numbers(batches)
    return sorted(found[found >= 0].tolist())


def check_rows(batch, rows=ROWS):
    """Compares rows with their sequences, laid out by hand."""
    assert (batch["example_weights"] == (batch["rows"] >= 0)).all()
    length = batch["input_ids"].shape[1]
    for index, members in enumerate(batch["rows"].reshape(BATCH, -1).tolist()):
        if batch["rows"].ndim == 1 and members == [-1]:
            assert batch["label"][index] == 0  # a place in every batch, not of another row
            continue
        expected = {name: np.zeros(length, int) for name in batch if batch[name].shape[1:] == (length,)}
        begin = 0
        for place, number in enumerate(members):
            if number < 0:
                assert batch["cls_positions"][index, place] == 0
                continue
            tokens = np.arange(rows.lengths[number])
            features = {
                "input_ids": rows.ids[rows.starts[number] :][: len(tokens)],
                "segment_ids": tokens >= rows.first_lengths[number],
                "position_ids": tokens,
                "sequence_ids": place + 1,
                "input_mask": 1,
            }
            for name, values in expected.items():
                values[begin : begin + len(tokens)] = features[name]
            assert batch["label"].reshape(BATCH, -1)[index, place] == number + 1
            assert "cls_positions" not in batch or batch["cls_positions"][index, place] == begin
            begin += len(tokens)
        for name, values in expected.items():
            assert batch[name][index].tolist() == values.tolist(), name


@each_kind
def test_every_epoch_has_each_sequence_once_and_goes_on_behind_any_batch(kind):
    steps = steps_of(kind)
    batches = training(kind, 2 * steps + 3)
    for batch in batches[:steps]:
        check_rows(batch)
    for first in (0, steps):
        assert sequences(batches[first : first + steps]) == list(range(SEQUENCES))
    assert numbers(batches[:steps]).tolist() != numbers(batches[steps : 2 * steps]).tolist()
    numbers_done = (1, steps // 2, steps - 1, steps, steps + 1, 2 * steps - 1)
    for number in {"bucketed": numbers_done[::2], "packed": numbers_done[1::2]}.get(kind, numbers_done):
        # Where a row is a sequence, filling counts, too.
        done = len(sequences(batches[:number])) if kind == "packed" else number * BATCH
        resumed = training(kind, 3, sequences_done=done)
        assert numbers(resumed).tolist() == numbers(batches[number : number + 3]).tolist()


def test_sequences_share_a_row_with_others_in_each_epoch():
    steps, companions = steps_of("packed"), []
    batches = training("packed", 2 * steps)
    for first in (0, steps):
        epoch = numbers(batches[first : first + steps])
        filled = (epoch >= 0).any(axis=1)
        assert filled.sum() == PLAN.rows and filled[: PLAN.rows].all()
        companions.append({tuple(sorted(row)) for row in epoch[filled].tolist()})
    assert len(companions[0] & companions[1]) < PLAN.rows / 2


def test_goes_on_with_batches_of_another_size():
    """What is left of an epoch has the sequences that were not in it before."""
    first = training("packed", 5)
    larger = token_rows.BatchShape(2 * BATCH, 2 * BATCH, ROW, False, PLACES)
    left = token_rows.training_dataset(ROWS, larger, TrainingOrder(3, len(sequences(first))))
    left = list(left.take(-(-(PLAN.rows - 5 * BATCH) // (2 * BATCH))).as_numpy_iterator())
    assert sorted(sequences(first) + sequences(left)) == list(range(SEQUENCES))


def test_buckets_leave_little_padding():
    padding = {}
    for kind in ("bucketed", "fixed"):
        batches = training(kind, steps_of(kind))
        padding[kind] = np.mean([1 - batch["input_mask"].mean() for batch in batches])
    assert padding["bucketed"] < 0.3 < padding["fixed"]


@each_kind
@pytest.mark.parametrize("hosts", [slow(1), 2])
@pytest.mark.parametrize("done", [slow(0), SEQUENCES + 1])
def test_batches_do_not_depend_on_replicas_and_hosts(kind, hosts, done):
    whole, named = training(kind, 10, sequences_done=done), dict(num_hosts=hosts, sequences_done=done)
    parts = [training(kind, 40 // hosts, part=2, host=host, **named) for host in range(hosts)]
    dealt = [parts[number % hosts][number // hosts] for number in range(40)]
    for number, batch in enumerate(whole):
        for name in ("rows", "input_ids"):
            joined = np.concatenate([part[name] for part in dealt[4 * number : 4 * number + 4]])
            assert joined.tolist() == batch[name].tolist()


@each_kind
def test_evaluation_has_each_sequence_once_always_in_one_order(kind):
    datasets = [token_rows.evaluation_dataset(ROWS, shape_of(kind)) for _ in range(2)]
    first, again = (list(dataset.as_numpy_iterator()) for dataset in datasets)
    assert len(first) == steps_of(kind) and numbers(first).tolist() == numbers(again).tolist()
    assert sequences(first) == list(range(SEQUENCES))
    for batch in first:
        check_rows(batch)
    lengths = [batch["input_ids"].shape[1] for batch in first]
    assert lengths == sorted(lengths, reverse=True) and (kind == "bucketed" or set(lengths) == {ROW})
    trained = token_rows.training_dataset(ROWS, shape_of(kind), TrainingOrder(3))
    assert datasets[0].element_spec == trained.element_spec
    is_static = all(spec.shape.is_fully_defined() for spec in trained.element_spec.values())
    assert is_static == (kind != "bucketed")


def test_special_sets():
    """One sequence a row, rows that are full, one sequence, more places than there is room for; none, and a
    long one."""
    sets = (([5, 9, 3], 1, 3), ([ROW] * 3, 4, 3), ([7], 4, 1), ([1] * 9, 4, 3), ([ROW // 2] * 4, 2, 2))
    for lengths, places, packed in sets:
        rows = make_rows(lengths)
        for batch in training("packed", 2, places=places, rows=rows):
            assert sequences([batch]) == list(range(len(lengths)))
            assert (batch["rows"] >= 0).any(axis=1).sum() == packed
            check_rows(batch, rows)
    empty = token_rows.evaluation_dataset(make_rows(np.zeros(0, int)), shape_of("packed"))
    assert list(empty) == []
    with pytest.raises(ConfigError, match=f"A sequence has {ROW + 1} tokens, a row has 1 to {ROW}"):
        token_rows.evaluation_dataset(make_rows([3, ROW + 1]), shape_of("packed"))
