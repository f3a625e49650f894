"""Reading TFRecords: order, resume position, sharding by host, exact evaluation sets, remote paths, errors
that name the file.
"""

import functools
import gzip
import itertools
import json
import math
import os
import pathlib

import numpy as np
import pytest
import tensorflow as tf

from official.config import derived
from official.data import synthetic
from official.data.pipeline import TrainingOrder
from official.data.records import batches as record_batches
from official.data.records import encoding, record_formats
from official.data.records import files as record_files
from official.data.records import schema as schema_lib
from official.data.records import streams as streams_lib
from official.data.records.files import check_first_record, detect_format
from official.io.errors import ConfigError
from tests.data.records.test_records import make_examples
from tests.data.text.test_documents import write
from tests.fixtures import make_records, slow, write_records
from tests.refusals import assert_refused


def ids(batches) -> list[bytes]:
    """Returns what tells records apart, in order."""
    return [row.tobytes() for batch in batches for row in batch["input_ids"]]


def training_ids(files, schema, count, batch_size=4, streams=1, **order) -> list[bytes]:
    order = TrainingOrder(**{"seed": 1, **order})
    dataset = record_batches.training_dataset(files, schema, batch_size, order, streams)
    return ids(dataset.take(count).as_numpy_iterator())


def write_kind(folder, kind: str, sizes: list[int], schema) -> list[str]:
    """Writes files of so many examples."""
    made = {
        "plain": lambda size, number: make_records(size, number, schema),
        "compact": lambda size, number: encoding.encode(make_examples(size, number, length=16, most=3), kind),
    }
    return [
        write_records(folder / f"part-{number:05}", made[kind](size, number))
        for number, size in enumerate(sizes)
    ]


@pytest.fixture(params=[slow("plain"), "compact"])
def files(request, tmp_path, schema, monkeypatch):
    """Returns three files of 12 examples, of compact records that hold up to five; a window has fewer
    examples than a file."""
    monkeypatch.setattr(streams_lib, "_SHUFFLED_ROWS", 24)
    monkeypatch.setattr(encoding, "BLOCK_EXAMPLES", 5)
    return write_kind(tmp_path, request.param, [12] * 3, schema)


@pytest.fixture
def plain_files(tmp_path, schema):
    return write_kind(tmp_path, "plain", [12] * 4, schema)


SIZES = [7, 1, 31, 12, 3, 20, 1, 9, 14, 2, 5]


@pytest.fixture(params=["plain", slow("compact")])
def uneven_files(request, schema, tmp_path, monkeypatch):
    """Returns eleven files of 1 to 31 examples, of which four are read in turns, in windows of ten."""
    monkeypatch.setattr(streams_lib, "_SHUFFLED_ROWS", 10)
    monkeypatch.setattr(streams_lib, "_INTERLEAVED_FILES", 4)
    monkeypatch.setattr(encoding, "BLOCK_EXAMPLES", 3)
    return write_kind(tmp_path, request.param, SIZES, schema)


def test_an_epoch_visits_every_record_once_and_epochs_differ(files, schema):
    for streams in (1, 3):
        found = training_ids(files, schema, 18, streams=streams)
        first, second = found[:36], found[36:]
        assert len(set(first)) == 36 and set(first) == set(second) and first != second


@pytest.mark.parametrize("streams, size, all_done", [slow(1, 5, (5, 65, 170)), (11, 11, (33,))])
def test_going_on_is_exact_wherever_files_end(uneven_files, schema, streams, size, all_done):
    whole = training_ids(uneven_files, schema, 46, batch_size=size, streams=streams)
    for done in all_done:
        found = training_ids(uneven_files, schema, 4, batch_size=size, sequences_done=done, streams=streams)
        assert found == whole[done : done + 4 * size]


def test_a_place_found_by_arithmetic_is_that_of_the_reading():
    def read(files, group):
        found = []
        while files:
            left = [range(100 * number + passed, 100 * number + records[number]) for number, passed in files]
            files, left, group = files[group:], left[:group], cycle
            while any(left):
                found += itertools.chain.from_iterable(own[:part] for own in left)
                left = [own[part:] for own in left]
        return found

    for records, cycle, part in (
        ([5, 1, 9, 3, 4, 0, 6], 3, 2),
        ([5, 5, 5], 8, 2),
        ([100, 3, 50], 2, 7),
        ([1], 1, 1),
        ([30, 40, 50, 60], 4, 3),
        ([0, 0, 4, 0, 2], 2, 3),
    ):
        whole = read([(number, 0) for number in range(len(records))], cycle)
        for passed in range(len(whole)):
            place = streams_lib.interleaved_position(records, cycle, part, passed)
            assert read(place.files, place.group)[place.cut :] == whole[passed:], (records, passed)


def test_what_was_read_before_is_not_unpacked(uneven_files, schema, monkeypatch):
    seen, kind = [], detect_format(uneven_files)
    whole = training_ids(uneven_files, schema, 46, batch_size=5)
    reader = type(record_formats.READERS[kind])
    original = reader.unpack

    def unpack(self, serialized, schema):
        note = tf.numpy_function(lambda batch: seen.extend(batch) or np.int32(0), [serialized], tf.int32)
        with tf.control_dependencies([note]):
            return original(self, tf.identity(serialized), schema)

    monkeypatch.setattr(reader, "unpack", unpack)
    assert training_ids(uneven_files, schema, 1, batch_size=5, sequences_done=95) == whole[95:100]
    assert len(seen) < (75 if kind == "plain" else 30)  # of 105 examples; what comes next is read ahead


@pytest.fixture
def counted(monkeypatch) -> list[str]:
    """Returns the files that are counted meanwhile."""
    found, count_file = [], record_files._count_file
    monkeypatch.setattr(
        record_files, "_count_file", lambda path, **named: found.append(path) or count_file(path, **named)
    )
    return found


def test_records_are_counted_once_and_files_that_changed_again(uneven_files, schema, tmp_path, counted):
    kept, kind = tmp_path / "record_counts.json", detect_format(uneven_files)

    def rows() -> list[int]:
        return [found.rows for found in record_files.count(uneven_files, kind, str(kept))]

    assert rows() == rows() == SIZES and sorted(counted) == uneven_files
    os.rename(write_kind(tmp_path / "..", kind, [2], schema)[0], uneven_files[1])
    assert rows() == [7, 2, *SIZES[2:]] and counted[11:] == [uneven_files[1]]
    wrong = b'{"files": {"a": {"bytes": 1, "changed": 2, "runs": [3]}}}'
    for garbage in (b"\xff", b"[]", b'{"files": {"a": 3}}', wrong):
        kept.write_bytes(garbage)
        del counted[:]
        rows()
        assert len(counted) == 11


def test_a_manifest_counts_where_names_and_sizes_are_its_own(plain_files, counted):
    size = os.path.getsize(plain_files[0])
    manifest = {
        "files": {"part-00000": 12, "part-00001": 99},
        "file_bytes": {"part-00000": size, "part-00001": 1},
    }
    pathlib.Path(plain_files[0]).with_name("manifest.json").write_text(json.dumps(manifest))
    found = record_files.count(plain_files[:2], "plain")
    assert [each.rows for each in found] == [12, 12] and counted == plain_files[1:2]


@pytest.mark.parametrize("tail", [1 << 16, 100])  # the last record is, and is not, within the tail
def test_a_file_cut_off_anywhere_is_found_by_its_end(plain_files, tail, monkeypatch):
    monkeypatch.setattr(record_files, "_TAIL_BYTES", tail)
    monkeypatch.setattr(record_files, "_CHUNK_BYTES", 1000)
    path = pathlib.Path(plain_files[0])
    whole = path.read_bytes()
    record_files.check_ends([str(path)])
    told = "00000 is truncated or damaged after record 11: record 12 cannot be read"
    cases = [(size, told) for size in range(len(whole) - len(whole) // 12 + 1, len(whole))]
    assert_refused(lambda size: record_files.check_ends([write(path, whole[:size])]), cases)


def test_a_record_cut_off_within_its_length_ends_no_training_or_evaluation_data(files, schema):
    whole = pathlib.Path(files[1]).read_bytes()
    pathlib.Path(files[1]).write_bytes(whole + whole[:8])  # TensorFlow takes it for the end of the file
    for read in (training_ids, functools.partial(record_batches.evaluation_dataset, num_sequences=30)):
        with pytest.raises(ConfigError, match="is truncated or damaged after record"):
            read(files, schema, 4)


def test_hosts_read_disjoint_files_and_together_what_one_host_reads(plain_files, schema):
    streams = derived.num_streams(len(plain_files), train_batch_size=8)
    assert streams == 4
    one = training_ids(plain_files, schema, 6, batch_size=8, streams=streams)
    two = [
        training_ids(plain_files, schema, 6, batch_size=4, streams=streams, host=host, num_hosts=2)
        for host in (0, 1)
    ]
    assert not set(two[0]) & set(two[1])
    for step in range(6):
        own = [set(part[4 * step : 4 * step + 4]) for part in two]
        assert set(one[8 * step : 8 * step + 8]) == own[0] | own[1]
    told = "4 files make 4 streams, which 3 hosts cannot share evenly. Write a number of shards"
    with pytest.raises(ConfigError, match=told):
        record_batches.training_dataset(plain_files, schema, 4, TrainingOrder(1, num_hosts=3), streams)


def test_evaluation_reads_the_first_records_in_order(files, schema):
    batches = list(record_batches.evaluation_dataset(files, schema, 8, num_sequences=21).as_numpy_iterator())
    assert [batch["example_weights"].sum() for batch in batches] == [8, 8, 5]
    assert all(batch["input_ids"].shape == (8, 16) for batch in batches)
    expected = ids(list(record_batches.evaluation_dataset(files, schema, 36, 36).as_numpy_iterator()))[:21]
    assert ids(batches)[:21] == expected
    assert not batches[-1]["masked_lm_weights"][5:].any()


@pytest.mark.parametrize("size", [slow(1), 4])
def test_batches_may_be_of_any_size(files, schema, size):
    one = training_ids(files, schema, 6, batch_size=6, streams=3, sequences_done=30)
    other = training_ids(files, schema, 36 // size, batch_size=size, streams=3, sequences_done=30)
    common = math.lcm(6, size)
    for first in range(0, 36, common):
        assert set(other[first : first + common]) == set(one[first : first + common])


def test_a_window_is_shuffled_and_holds_what_follows(files, schema):
    window = {"plain": 8, "compact": 5}[detect_format(files)]  # of eight examples, in whole records
    found = training_ids(files, schema, 12, batch_size=3, streams=3)
    in_order = ids(record_batches.evaluation_dataset(files, schema, 36, 36).as_numpy_iterator())
    for number in range(3):
        own, rows = found[number::3], in_order[12 * number : 12 * number + 12]
        assert set(own[:window]) == set(rows[:window]) and own[:window] != rows[:window]
        assert set(own) == set(rows)
        places = [rows.index(row) % window for row in own]  # the next window has an order of its own
        assert window == 8 or places[:window] != places[window : 2 * window]


def test_records_of_another_shape_are_named_before_training(files, schema, tmp_path):
    messages = {
        "plain": ("input_ids has 16 values, expected 32", "positions has 3 values, expected 5"),
        "compact": ("max_seq_length 16, expected 32", "max_predictions_per_seq 3, expected 5"),
    }[detect_format(files)]
    values = r"feature input_ids has values from \d+ to \d+, expected 0 to 9"
    for shape, message in (((32, 3), messages[0]), ((16, 5), messages[1]), ((16, 3, 10), values)):
        with pytest.raises(ConfigError, match=f"--input_files: .*part-00000, record 1: .*{message}"):
            check_first_record(files, schema_lib.pretraining_schema(*shape), "input_files")
    check_first_record(files, schema_lib.pretraining_schema(16, 3, 100), "input_files")
    cases = (
        (b"", "has no records"),
        (b"not a record, just text", "damaged after record 0"),
        (gzip.compress(bytes(64)), "damaged after record 0: .*; it is compressed with gzip"),
    )
    path = tmp_path / "x"
    assert_refused(lambda content: check_first_record([write(path, content)], schema, "eval_files"), cases)
    assert_refused(
        lambda content: training_ids([*files, write(path, content)], schema, 1),
        [(b"", "x has no records"), (b"text", "x has no records")],
    )


def test_features_that_nothing_reads_are_warned_of(schema, tmp_path, caplog):
    """Such as those of ALBERT, whose next_sentence_labels tell the order of two segments."""
    example = tf.train.Example.FromString(make_records(1, 5, schema)[0])
    example.features.feature["token_boundary"].int64_list.value.append(1)
    path = write_records(tmp_path / "x", [example.SerializeToString()])
    check_first_record([path], schema, "input_files")
    assert f"{path}: records have features that are ignored: token_boundary." in caplog.text


def test_synthetic_records_fit_the_schema(schema):
    batch = next(synthetic.synthetic_dataset(schema, 50, 4, seed=1).as_numpy_iterator())
    real = next(synthetic.synthetic_dataset(schema, 50, 4, seed=1).as_numpy_iterator())
    assert all((batch[name] == real[name]).all() for name in batch)
    assert batch["input_ids"].max() < 50 and batch["masked_lm_positions"].max() < 16
    assert (np.diff(batch["masked_lm_positions"], axis=1) > 0).all()
    assert {name: value.dtype for name, value in batch.items() if name in schema} == {
        name: feature.dtype.as_numpy_dtype for name, feature in schema.items()
    }
