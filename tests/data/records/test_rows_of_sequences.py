"""Rows of several sequences as they are read: packed on the fly, and as packed files have them. What they
hold, in which order, where they go on, and what an evaluation counts."""

import dataclasses
from collections import Counter

import numpy as np
import pytest
import tensorflow as tf

from official.data import synthetic
from official.data.pipeline import MOST_STREAMS, TrainingOrder
from official.data.records import batches as record_batches
from official.data.records import encoding, on_the_fly
from official.data.records import schema as schema_lib
from official.data.records import streams as streams_lib
from official.data.records.formats import packed
from official.data.records.on_the_fly import Packer
from tests.fixtures import slow, write_records
from tests.records import Sequence, encode, members_of, sequences_of, short_examples

LENGTH, MOST, DEPTH = 24, 4, 4
SCHEMA = schema_lib.pretraining_schema(LENGTH, MOST, 50)
PACKER = Packer(SCHEMA, DEPTH)
BUFFER, EACH, FILES = 20, 15, 4


@pytest.fixture(autouse=True, scope="module")
def _small_buffers():
    """A buffer is longer than a file, so that it goes across epochs; windows of the shuffling are shorter."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(on_the_fly, "_SEQUENCES", BUFFER)
        patch.setattr(on_the_fly, "_MIN_BUFFER", BUFFER)
        patch.setattr(streams_lib, "_SHUFFLED_ROWS", 12)
        yield


def examples(file: int, count: int = EACH):
    return short_examples(count, seed=file, length=LENGTH, most=MOST, shortest=6, longest=11)


@pytest.fixture(scope="module")
def plain_files(tmp_path_factory):
    return _written(tmp_path_factory.mktemp("plain"), "plain")


@pytest.fixture(scope="module")
def whole(plain_files):
    """Returns the first batches of one stream, and of four."""
    return {1: batches(plain_files, 30), 4: batches(plain_files, 13, 8, 4)}


def _written(folder, kind: str) -> list[str]:
    return [
        write_records(folder / f"part-{number}", encode(examples(number), kind)) for number in range(FILES)
    ]


ROW = 36  # of packed_files: three sequences of eleven tokens fit
ROW_SCHEMA = schema_lib.packed_schema(ROW, MOST + 2, 3, 50)


@pytest.fixture(scope="module")
def packed_files(tmp_path_factory):
    """Returns four files of rows of up to three sequences, which are those of `plain_files`."""
    together = np.arange(EACH).reshape(-1, 3)
    together[-1, 2] = -1  # the last sequence of a file has a row of its own
    together = np.concatenate([together, [[EACH - 1, -1, -1]]])
    paths, folder = [], tmp_path_factory.mktemp("packed")
    for number in range(FILES):
        some = examples(number)
        wide = dataclasses.replace(some, input_ids=np.pad(some.input_ids, ((0, 0), (0, ROW - LENGTH))))
        paths.append(write_records(folder / f"rows-{number}", packed.encode_rows(wide, together)))
    return paths


def expected_members(*numbers) -> list[Sequence]:
    return [each for number in numbers for each in sequences_of(examples(number))]


def batches(files, count, batch_size=4, streams=1, schema=SCHEMA, packer=PACKER, **order):
    dataset = record_batches.training_dataset(
        files, schema, batch_size, TrainingOrder(**{"seed": 1, **order}), streams, "", packer
    )
    return list(dataset.take(count).as_numpy_iterator())


def rows(found) -> list[bytes]:
    return [row.tobytes() for batch in found for row in batch["input_ids"]]


# ------------------------------------------------------------------------------------------------------------
# On the fly


@pytest.mark.parametrize("kind", [slow("plain"), "compact", slow("remask"), slow("packed")])
def test_three_epochs_hold_every_sequence_three_times_and_nothing_else(tmp_path, kind):
    """Of one stream: 180 sequences are nine buffers."""
    found, total = [], 3 * EACH * FILES
    for batch in batches(_written(tmp_path, kind), 60, batch_size=2):
        found += members_of(batch)
    counts = Counter(found[:total])
    assert counts == Counter(dict.fromkeys(expected_members(*range(FILES)), 3))
    assert len(found) > total


def test_rows_are_fuller_than_sequences_are_long_and_not_in_order_of_length(whole):
    tokens = np.concatenate([batch["input_mask"].sum(axis=1) for batch in whole[1]])
    assert tokens.mean() / LENGTH > 0.8 and max(len(one["example_weights"][0]) for one in whole[1]) == DEPTH
    firsts = [int((batch["sequence_ids"][0] == 1).sum()) for batch in whole[1]]
    assert firsts != sorted(firsts, reverse=True)


@pytest.mark.parametrize("streams,batch_size,done", [slow(1, 4, 5), (4, 8, 9)])
def test_going_on_gives_the_rows_that_come_next(plain_files, whole, streams, batch_size, done):
    counts = np.zeros(MOST_STREAMS, int)
    for batch in whole[streams][:done]:
        np.add.at(counts, batch["streams"], batch["example_weights"].sum(axis=1).astype(int))
    done_so_far = dict(
        sequences_done=int(counts.sum()), rows_done=done * batch_size, stream_sequences=tuple(counts.tolist())
    )
    found = batches(plain_files, 4, batch_size, streams, **done_so_far)
    assert rows(found) == rows(whole[streams][done : done + 4])


@pytest.mark.slow
def test_without_counts_of_streams_all_begin_at_the_same_place(plain_files):
    """As after a run that was not packed: nothing fails, whatever the place is inside a buffer."""
    for done in (37, 160):
        assert len(members_of(batches(plain_files, 1, 8, 4, sequences_done=done)[0])) >= 8


@pytest.mark.parametrize("host", [slow(0), 1])
def test_hosts_together_read_what_one_host_reads(plain_files, whole, host):
    for batch, own in zip(whole[4], batches(plain_files, 6, 4, 4, host=host, num_hosts=2)):
        expected = batch["input_ids"][batch["streams"] % 2 == host]
        assert Counter(rows([own])) == Counter(rows([{"input_ids": expected}])) and len(expected) == 4
        assert set(own["streams"]) == {host, host + 2}


@pytest.mark.parametrize("kind", [slow("plain"), slow("compact"), slow("remask"), "packed"])
@pytest.mark.parametrize("count", [33, slow(1000)])
def test_an_evaluation_counts_the_first_sequences_once(tmp_path, kind, count):
    found = record_batches.evaluation_dataset(_written(tmp_path, kind), SCHEMA, 8, count, PACKER)
    got = [member for batch in found.as_numpy_iterator() for member in members_of(batch)]
    assert Counter(got) == Counter(expected_members(*range(FILES))[:count])


def test_sequences_that_rows_cannot_hold_are_refused(tmp_path):
    """A masked position behind its sequence would be its neighbour's; weights are not kept."""
    wrong, features = examples(0), examples(0).features()
    wrong.positions[3, 0] = wrong.lengths[3]
    features["masked_lm_weights"] *= 0.5
    for records, problem in (
        (encoding.encode(wrong, "plain"), "beyond the tokens of its sequence"),
        (encoding.tf_examples(features), "parts are out of order"),
    ):
        path = write_records(tmp_path / "x", records)
        with pytest.raises(tf.errors.InvalidArgumentError, match=problem):
            list(record_batches.evaluation_dataset([path], SCHEMA, 4, EACH, PACKER))


def test_rows_without_slots_for_all_predictions_are_parted(tmp_path):
    """Four sequences of six tokens have room, 4 x 4 predicted tokens do not: there are 4 + 4 - 1 slots."""
    some = short_examples(20, length=LENGTH, most=MOST, shortest=6, longest=6)
    some.predictions[:] = MOST
    path = write_records(tmp_path / "x", encoding.encode(some, "compact"))
    found = next(record_batches.evaluation_dataset([path], SCHEMA, 32, 20, PACKER).as_numpy_iterator())
    assert found["masked_lm_weights"].sum(axis=1).max() == 4 and len(members_of(found)) == 20


# ------------------------------------------------------------------------------------------------------------
# Packed files


@pytest.mark.parametrize("streams", [slow(1), 4])
def test_packed_files_hold_their_sequences_and_go_on_after_rows(packed_files, streams):
    settings = dict(schema=ROW_SCHEMA, packer=None)
    whole = batches(packed_files, 8, 4, streams, **settings)
    epoch = [member for batch in whole[:6] for member in members_of(batch)]
    assert Counter(epoch) == Counter(expected_members(*range(FILES)))
    rest = batches(packed_files, 3, 4, streams, rows_done=20, sequences_done=47, **settings)
    assert rows(rest) == rows(whole[5:8])


@pytest.mark.slow
def test_an_evaluation_of_packed_files_ends_inside_a_row(packed_files):
    """What is behind the last sequence has no weight, tokens and relation alike."""
    for count in (2, 44, 99):
        expected, got, weights, predicted = expected_members(*range(FILES))[:count], [], 0.0, 0.0
        for batch in record_batches.evaluation_dataset(
            packed_files, ROW_SCHEMA, 8, count
        ).as_numpy_iterator():
            weights += batch["example_weights"].sum()
            predicted += batch["masked_lm_weights"].sum()
            batch["masked_lm_sequences"] = batch["masked_lm_sequences"] * (batch["masked_lm_weights"] > 0)
            got += members_of(batch)
        assert Counter(got) == Counter(expected)
        assert (weights, predicted) == (len(expected), sum(len(member.positions) for member in expected))


def test_sequences_a_row_are_told_before(packed_files, plain_files, whole):
    assert record_batches.sequences_per_row(packed_files, ROW_SCHEMA, None) == 15 / 6
    found = record_batches.sequences_per_row(plain_files, SCHEMA, PACKER)
    assert found == pytest.approx(np.mean([len(members_of(one)) / 4 for one in whole[1][:20]]), rel=0.1)


def test_synthetic_rows_fit_the_schema():
    for schema, average in ((PACKER.schema, 2.5), (schema_lib.packed_schema(8, 14, 12, 50), 2.0)):
        found = synthetic.packed_rows(schema, 50, average, seed=0)
        assert {name: value.shape[1] for name, value in found.items()} == {
            name: feature.length for name, feature in schema.items()
        }
        assert found["example_weights"].sum(axis=1).mean() == pytest.approx(average, rel=0.05)
        schema_lib.in_range({name: tf.constant(value) for name, value in found.items()}, schema)
        starts_BL, numbers_BL = found["position_ids"] == 0, found["sequence_ids"]
        assert (numbers_BL == np.cumsum(starts_BL, axis=1)).all()  # nothing is padding
        for starts_L, heads_P in zip(starts_BL, found["cls_positions"]):
            assert np.flatnonzero(starts_L).tolist() == heads_P[: starts_L.sum()].tolist()
