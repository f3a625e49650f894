"""Reading TFRecords: order, resume position, sharding by host, exact evaluation sets, remote paths, errors
that name the file.
"""

import json
import math
import os
import pathlib

import numpy as np
import pytest
import tensorflow as tf

from official.data import synthetic
from official.data.pipeline import TrainingOrder
from official.data.records import batches as record_batches
from official.data.records import counts as record_counts
from official.data.records import encoding, record_formats
from official.data.records import schema as schema_lib
from official.data.records import streams as streams_lib
from official.data.records.files import check_first_record, detect_format, find_bad_record, find_files
from official.io.errors import ConfigError
from tests.conftest import make_records, write_records
from tests.data.records.test_records import make_examples
from tests.records import serialize_example


def ids(batches) -> list[bytes]:
    """Returns what tells records apart, in order."""
    return [row.tobytes() for batch in batches for row in batch["input_ids"]]


def training_ids(files, schema, count, **settings) -> list[bytes]:
    batch_size, streams, counts_path = (
        settings.pop(name, default)
        for name, default in (("batch_size", 4), ("streams", 1), ("counts_path", ""))
    )
    order = TrainingOrder(**{"seed": 1, **settings})
    dataset = record_batches.training_dataset(files, schema, batch_size, order, streams, counts_path)
    return ids(dataset.take(count).as_numpy_iterator())


@pytest.fixture(params=["plain", "compact"])
def files(request, record_files, tmp_path, monkeypatch):
    """Returns three files of 12 examples, of compact records that hold up to five; a window has fewer
    examples than a file."""
    monkeypatch.setattr(streams_lib, "_SHUFFLED_ROWS", 24)
    if request.param == "plain":
        return find_files(record_files(files=3, records=12), "input_files")
    monkeypatch.setattr(encoding, "BLOCK_EXAMPLES", 5)
    return [
        write_records(
            tmp_path / f"part-{number}",
            encoding.encode(make_examples(12, number, length=16, most=3), "compact"),
        )
        for number in range(3)
    ]


@pytest.fixture
def plain_files(record_files):
    return find_files(record_files(files=3, records=12), "input_files")


def test_written_records_read_back(schema, tmp_path):
    record = make_records(1, 0, schema)[0]
    assert schema_lib.describe_example(record, schema) is None
    batch = next(
        record_batches.training_dataset(
            [write_records(tmp_path / "x", [record])], schema, 1, TrainingOrder(0)
        ).as_numpy_iterator()
    )
    assert {name: value.shape for name, value in batch.items()} == {
        **{name: (1, feature.length) for name, feature in schema.items()},
        "example_weights": (1,),
    }
    assert serialize_example({name: batch[name][0] for name in schema}, schema) == record


@pytest.mark.parametrize("streams", [1, 3])
def test_an_epoch_visits_every_record_once_and_epochs_differ(files, schema, streams):
    first, second = [training_ids(files, schema, 9, sequences_done=done, streams=streams) for done in (0, 36)]
    assert len(set(first)) == 36 and set(first) == set(second) and first != second


@pytest.fixture(params=["plain", "compact"])
def uneven_files(request, schema, tmp_path, monkeypatch):
    """Returns eleven files of 1 to 31 examples, of which four are read in turns, in windows of ten."""
    monkeypatch.setattr(streams_lib, "_SHUFFLED_ROWS", 10)
    monkeypatch.setattr(streams_lib, "_INTERLEAVED_FILES", 4)
    monkeypatch.setattr(encoding, "BLOCK_EXAMPLES", 3)
    sizes = [7, 1, 31, 12, 3, 20, 1, 9, 14, 2, 5]
    if request.param == "plain":
        return [
            write_records(tmp_path / f"{number:02}", make_records(size, number, schema))
            for number, size in enumerate(sizes)
        ]
    return [
        write_records(
            tmp_path / f"{number:02}",
            encoding.encode(make_examples(size, number, length=16, most=3), "compact"),
        )
        for number, size in enumerate(sizes)
    ]


@pytest.mark.parametrize("streams", [1, 11])
def test_going_on_is_exact_wherever_files_end(uneven_files, schema, streams):
    step = 11 if streams == 11 else 5
    whole = training_ids(uneven_files, schema, 46, batch_size=step, streams=streams)
    for done in {1: (5, 105, 205), 11: (33, 363)}[streams]:
        assert (
            training_ids(uneven_files, schema, 4, batch_size=step, sequences_done=done, streams=streams)
            == whole[done : done + 4 * step]
        )


@pytest.mark.parametrize(
    "records_of, cycle, part",
    [
        ([5, 1, 9, 3, 4, 0, 6], 3, 2),
        ([5, 5, 5], 8, 2),
        ([100, 3, 50], 2, 7),
        ([1], 1, 1),
        ([30, 40, 50, 60], 4, 3),
        ([0, 0, 4, 0, 2], 2, 3),
    ],
)
def test_a_place_found_by_arithmetic_is_that_of_the_reading(records_of, cycle, part):
    def read(order, passed, group=cycle):
        if len(order) > group:
            rest = read(order[group:], passed[group:])
            return read(order[:group], passed[:group], group) + rest
        values = [
            [100 * number + record for record in range(skipped, records_of[number])]
            for number, skipped in zip(order, passed)
        ]
        flat, ends = sum(values, []), np.cumsum([0, *map(len, values)])
        data = tf.constant(flat, tf.int64)
        ranges = tf.data.Dataset.from_tensor_slices((ends[:-1], ends[1:]))
        blocks = ranges.interleave(
            lambda first, end: tf.data.Dataset.from_tensor_slices(data[first:end]).batch(part), cycle, 1
        )  # a group
        return [record for block in blocks.as_numpy_iterator() for record in block.tolist()]

    whole = read(range(len(records_of)), [0] * len(records_of))
    for passed in range(sum(records_of)):
        place = streams_lib.interleaved_position(records_of, cycle, part, passed)
        if passed % 5 == 0:
            assert read(*zip(*place.files), place.group)[place.cut :] == whole[passed:]
        assert (
            sum(records_of[number] - skipped for number, skipped in place.files) - place.cut
            == len(whole) - passed
        )


def test_what_was_read_before_is_neither_parsed_nor_shuffled(uneven_files, schema, monkeypatch):
    seen, parse_rows = [], record_formats.parse_rows
    kind = detect_format(uneven_files)
    whole = training_ids(uneven_files, schema, 20, batch_size=5)

    def unpack(serialized, *rest, **named):
        def note(batch):
            seen.extend(batch)
            return np.int32(0)

        with tf.control_dependencies([tf.numpy_function(note, [serialized], tf.int32)]):
            return original(tf.identity(serialized), *rest, **named)

    original = record_formats.unpack
    monkeypatch.setattr(record_formats, "unpack", unpack)
    assert training_ids(uneven_files, schema, 1, batch_size=5, sequences_done=95) == whole[95:]
    assert (
        len(seen) < (75 if kind == "plain" else 30) and parse_rows is record_formats.parse_rows
    )  # of 105 examples; what comes next is read ahead


def test_records_are_counted_once_and_files_that_changed_again(uneven_files, schema, tmp_path, monkeypatch):
    kept, counted = str(tmp_path / "record_counts.json"), []
    count_file = record_counts._count_file
    monkeypatch.setattr(
        record_counts, "_count_file", lambda path, **named: counted.append(path) or count_file(path, **named)
    )
    kind = detect_format(uneven_files)
    expected = [7, 1, 31, 12, 3, 20, 1, 9, 14, 2, 5]
    for _ in range(2):
        assert [found.rows for found in record_counts.count(uneven_files, kind, kept)] == expected
    assert sorted(counted) == uneven_files
    write_records(
        uneven_files[1],
        make_records(2, 99, schema)
        if kind == "plain"
        else encoding.encode(make_examples(2, 9, length=16, most=3), kind),
    )
    assert [found.rows for found in record_counts.count(uneven_files, kind, kept)] == [7, 2, *expected[2:]]
    assert counted[11:] == [uneven_files[1]]
    for garbage in (
        b"\xff",
        b"[]",
        b'{"files": {"a": 3}}',
        b'{"files": {"a": {"bytes": 1, "changed": 2, "runs": [3]}}}',
    ):
        (tmp_path / "record_counts.json").write_bytes(garbage)
        del counted[:]
        record_counts.count(uneven_files, kind, kept)
        assert len(counted) == 11


def test_a_manifest_counts_where_names_and_sizes_are_its_own(record_files, monkeypatch):
    files = find_files(record_files(files=2, records=12), "input_files")
    manifest = {
        "files": {"part-00000": 12, "part-00001": 99},
        "file_bytes": {"part-00000": os.path.getsize(files[0]), "part-00001": 1},
    }
    pathlib.Path(files[0]).with_name("manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
    counted, count_file = [], record_counts._count_file
    monkeypatch.setattr(
        record_counts, "_count_file", lambda path, **named: counted.append(path) or count_file(path, **named)
    )
    assert [found.rows for found in record_counts.count(files, "plain")] == [12, 12] and counted == files[1:]


@pytest.mark.parametrize("cut, message", [(3, "truncated or damaged after record 11: record 12"), (0, None)])
def test_counting_finds_a_file_that_is_cut_off(record_files, cut, message, monkeypatch):
    monkeypatch.setattr(record_counts, "_CHUNK_BYTES", 1000)
    path = pathlib.Path(find_files(record_files(files=1, records=12), "input_files")[0])
    path.write_bytes(path.read_bytes()[: path.stat().st_size - cut])
    if message is None:
        assert record_counts.count_records(str(path)) == 12
    else:
        with pytest.raises(ConfigError, match=message):
            record_counts.count_records(str(path))


@pytest.mark.parametrize("tail", [1 << 16, 100])  # the last record is, and is not, within the tail
def test_a_file_cut_off_anywhere_is_found_by_its_end(record_files, tail, monkeypatch):
    monkeypatch.setattr(record_counts, "_TAIL_BYTES", tail)
    path = pathlib.Path(find_files(record_files(files=1, records=4), "input_files")[0])
    whole = path.read_bytes()
    record_counts.check_ends([str(path)])
    unseen = []
    for size in range(len(whole) - len(whole) // 4 + 1, len(whole)):
        path.write_bytes(whole[:size])
        try:
            record_counts.check_ends([str(path)])
            unseen.append(size)
        except ConfigError as error:
            assert "part-00000 is truncated or damaged after record 3: record 4 cannot be read" in str(error)
    assert not unseen


def test_a_record_cut_off_within_its_length_ends_no_training_or_evaluation_data(files, schema):
    whole = pathlib.Path(files[1]).read_bytes()
    pathlib.Path(files[1]).write_bytes(whole + whole[:8])  # TensorFlow takes it for the end of the file
    with pytest.raises(ConfigError, match="is truncated or damaged after record"):
        training_ids(files, schema, 1)
    with pytest.raises(ConfigError, match="is truncated or damaged after record"):
        record_batches.evaluation_dataset(files, schema, 4, 30)


def test_a_manifest_among_records_is_no_record_file(record_files, tmp_path):
    pattern = record_files(files=2, records=3)
    folder = tmp_path / "train"
    (folder / "manifest.json").write_text("{}", encoding="utf-8")
    assert find_files(f"{folder}/*", "input_files") == find_files(pattern, "input_files")
    with pytest.raises(ConfigError, match="--input_files=.*holds no records, only manifest.json"):
        find_files(f"{folder}/man*", "input_files")


def test_hosts_read_disjoint_files_and_together_what_one_host_reads(record_files, schema):
    files = find_files(record_files(files=4, records=12), "input_files")
    streams = streams_lib.num_streams(len(files), train_batch_size=8)
    assert streams == 4
    one = training_ids(files, schema, 6, batch_size=8, streams=streams)
    two = [
        training_ids(files, schema, 6, batch_size=4, streams=streams, host=host, num_hosts=2)
        for host in (0, 1)
    ]
    assert not set(two[0]) & set(two[1])
    for step in range(6):
        assert set(one[8 * step : 8 * step + 8]) == {
            *two[0][4 * step : 4 * step + 4],
            *two[1][4 * step : 4 * step + 4],
        }
    with pytest.raises(ConfigError, match="4 files make 4 streams, which 3 hosts"):
        record_batches.training_dataset(files, schema, 4, TrainingOrder(1, num_hosts=3), streams)


@pytest.mark.parametrize(
    "files,batch,streams",
    [(8, 64, 8), (500, 760, 20), (500, 448, 4), (1, 64, 1), (3, 64, 1), (7, 35, 7), (64, 64, 32)],
)
def test_streams(files, batch, streams):
    assert streams_lib.num_streams(files, batch) == streams


def test_evaluation_reads_the_first_records_in_order(files, schema):
    batches = list(record_batches.evaluation_dataset(files, schema, 8, num_sequences=21).as_numpy_iterator())
    assert [batch["example_weights"].sum() for batch in batches] == [8, 8, 5]
    assert all(batch["input_ids"].shape == (8, 16) for batch in batches)
    expected = ids(list(record_batches.evaluation_dataset(files, schema, 36, 36).as_numpy_iterator()))[:21]
    assert ids(batches)[:21] == expected
    assert not batches[-1]["masked_lm_weights"][5:].any()


def test_batches_may_be_of_any_size(files, schema):
    one = training_ids(files, schema, 12, batch_size=6, streams=3, sequences_done=30)
    for batch_size in (1, 4, 18):
        other = training_ids(
            files, schema, 72 // batch_size, batch_size=batch_size, streams=3, sequences_done=30
        )
        common = math.lcm(6, batch_size)
        for first in range(0, 72, common):
            assert set(other[first : first + common]) == set(one[first : first + common])


def test_a_window_is_shuffled_and_holds_what_follows(files, schema):
    window = {"plain": 8, "compact": 5}[detect_format(files)]  # of eight examples, in whole records
    found = training_ids(files, schema, 12, batch_size=3, streams=3)
    for number, path in enumerate(files):
        rows, own = (
            ids(record_batches.evaluation_dataset([path], schema, 12, 12).as_numpy_iterator()),
            found[number::3],
        )
        assert set(own[:window]) == set(rows[:window]) and own[:window] != rows[:window]
        assert set(own) == set(rows)
        if 2 * window <= len(rows):  # the next window has an order of its own
            assert [rows.index(row) for row in own[:window]] != [
                rows.index(row) - window for row in own[window : 2 * window]
            ]


def test_remote_paths(schema):
    tf.io.gfile.makedirs("ram://reading")
    for index in range(2):
        write_records(f"ram://reading/part-{index}", make_records(4, index, schema))
    found = find_files("ram://reading/part-*", "input_files")
    assert len(found) == 2 and len(set(training_ids(found, schema, 2))) == 8


def test_a_glob_without_match_is_named(plain_files):
    with pytest.raises(ConfigError, match=r"--input_files=missing/\*.rec matches no file"):
        find_files(f"{plain_files[0]},missing/*.rec", "input_files")


def test_a_record_of_another_length_is_named(plain_files, schema):
    with pytest.raises(
        ConfigError,
        match=r"--input_files: .*part-00000, record 1: feature input_ids has 16 values, expected 32",
    ):
        check_first_record(plain_files, schema_lib.pretraining_schema(32, 3), "input_files")
    with pytest.raises(ConfigError, match="masked_lm_positions has 3 values, expected 5"):
        check_first_record(plain_files, schema_lib.pretraining_schema(16, 5), "input_files")


def test_a_block_of_another_length_is_named(tmp_path):
    path = write_records(tmp_path / "part", encoding.encode(make_examples(3), "compact"))
    check_first_record([path], schema_lib.pretraining_schema(24, 4, 50), "input_files")
    for shape, message in (
        ((32, 4), "max_seq_length 24, expected 32"),
        ((24, 5), "max_predictions_per_seq 4, expected 5"),
        ((24, 4, 20), "example 1: feature input_ids has values from 5 to 4., expected 0 to 19"),
    ):
        with pytest.raises(ConfigError, match=f"--input_files: .*part, record 1: .*{message}"):
            check_first_record([path], schema_lib.pretraining_schema(*shape), "input_files")


def test_an_id_outside_of_the_vocabulary_is_named(files):
    with pytest.raises(ConfigError, match=r"feature input_ids has values from \d+ to \d+, expected 0 to 9"):
        check_first_record(files, schema_lib.pretraining_schema(16, 3, vocab_size=10), "input_files")


def test_the_bad_record_is_found(plain_files, schema, tmp_path):
    odd = make_records(1, 9, schema_lib.pretraining_schema(8, 3))[0]
    bad = write_records(tmp_path / "bad", [*make_records(2, 5, schema), odd])
    assert "bad, record 3: feature input_ids has 8 values" in find_bad_record([*plain_files, bad], schema)
    assert find_bad_record(plain_files, schema) is None


def test_the_bad_example_of_a_block_is_found(schema, tmp_path):
    single = [
        block
        for record in encoding.encode(make_examples(9, length=16, most=3), "compact")
        for block in record_formats.split(record, "compact")
    ]
    single[5] = encoding.encode(make_examples(1, words=900, length=16, most=3, shortest=16), "compact")[0]
    bad = write_records(tmp_path / "bad", record_formats.join(single, "compact"))
    assert "bad, record 1: example 6: feature input_ids has" in find_bad_record(
        [bad], schema_lib.pretraining_schema(16, 3, 50)
    )


@pytest.mark.parametrize("content", [b"", b"text"])
def test_a_file_without_records_is_named(files, schema, tmp_path, content):
    (tmp_path / "empty").write_bytes(content)
    with pytest.raises(ConfigError, match="empty has no records"):
        record_batches.training_dataset([*files, str(tmp_path / "empty")], schema, 4, TrainingOrder(1))


@pytest.mark.parametrize(
    "content,message",
    [(b"", "has no records"), (b"not a record at all, just text", "truncated or damaged after record 0")],
)
def test_a_file_that_is_no_tfrecord(content, message, schema, tmp_path):
    path = tmp_path / "x"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=message):
        check_first_record([str(path)], schema, "eval_files")


def test_a_record_that_is_no_example(schema):
    assert schema_lib.describe_example(b"\xff\xff\xff", schema) == "it is not a tf.train.Example"
    assert "input_ids is missing" in schema_lib.describe_example(b"", schema)
    with pytest.raises(ValueError, match="input_ids has 3 values"):
        serialize_example({name: np.zeros(3) for name in schema}, schema)


def test_synthetic_records_fit_the_schema(schema):
    batch = next(synthetic.synthetic_dataset(schema, 50, 4, seed=1).as_numpy_iterator())
    real = next(synthetic.synthetic_dataset(schema, 50, 4, seed=1).as_numpy_iterator())
    assert all((batch[name] == real[name]).all() for name in batch)
    assert batch["input_ids"].max() < 50 and batch["masked_lm_positions"].max() < 16
    assert (np.diff(batch["masked_lm_positions"], axis=1) > 0).all()
    assert {name: value.dtype for name, value in batch.items() if name in schema} == {
        name: feature.dtype.as_numpy_dtype for name, feature in schema.items()
    }


@pytest.mark.parametrize(
    "name,value,message",
    [
        ("segment_ids", 9, "segment_ids has values from 0 to 9, expected 0 to 1"),
        ("input_mask", -1, "input_mask has values from -1 to 1"),
        ("input_ids", 2**32 + 5, "input_ids has values from"),
        ("masked_lm_weights", float("nan"), "masked_lm_weights has the value nan"),
        ("masked_lm_weights", -1.0, "masked_lm_weights has the value -1.0"),
    ],
)
def test_values_out_of_range_are_no_records(schema, name, value, message):
    """On any device: one of them would be trained on where nothing but the model's own operations looked at
    it."""
    good = make_records(1, 0, schema)[0]
    example = tf.train.Example.FromString(good)
    feature = example.features.feature[name]
    (feature.float_list if feature.HasField("float_list") else feature.int64_list).value[1] = value
    bad = example.SerializeToString()
    assert record_formats.parse_records(tf.constant([good]), schema, "plain")[name].shape[0] == 1
    with pytest.raises(tf.errors.InvalidArgumentError):
        record_formats.parse_records(tf.constant([good, bad]), schema, "plain")
    assert message in record_formats.describe_mismatch(bad, schema, "plain")
