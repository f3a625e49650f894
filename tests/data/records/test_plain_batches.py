"""The reader of few modules against `record_batches`, and what stands in for TensorFlow's newer functions."""

import numpy as np
import pytest
import tensorflow as tf

from official.data import pipeline
from official.data.pipeline import TrainingOrder
from official.data.records import plain_batches, record_batches
from official.data.records.encoding import encoders
from official.data.records.formats import packed
from official.data.records.record_files import find_files
from official.data.records.schema import Feature
from official.io.errors import ConfigError
from tests.conftest import write_records
from tests.records import short_examples


@pytest.fixture(params=["plain", "packed"])
def files(request, tmp_path) -> list[str]:
    for number in range(4):
        examples = short_examples(20 + 2 * number, number, longest=8)
        if request.param == "packed":
            records = packed.encode_rows(examples, np.arange(len(examples)).reshape(-1, 2))
        else:
            records = encoders.encode(examples, "plain")
        write_records(tmp_path / f"part-{number}", records)
    return find_files(str(tmp_path / "part-*"))


def numbers(batches: tf.data.Dataset, count: int) -> list[dict[str, np.ndarray]]:
    return list(batches.take(count).as_numpy_iterator())


def assert_same_batches(found, expected):
    for one, other in zip(found, expected):
        assert one.keys() == other.keys()
        for name in one:
            np.testing.assert_array_equal(one[name], other[name], err_msg=name)


@pytest.mark.parametrize("order", [TrainingOrder(5), TrainingOrder(5, 99, rows_done=48, host=1, num_hosts=2)])
def test_the_batches_are_those_of_the_other_reader(files, schema, order):
    found = plain_batches.find_schema(files, schema, "input_files")
    ours = plain_batches.training_dataset(files, found, 4, order, num_streams=2)
    theirs = record_batches.training_dataset(files, found, 4, order, 2)
    assert ours.element_spec == theirs.element_spec
    assert_same_batches(numbers(ours, 30), numbers(theirs, 30))


def test_it_goes_on_where_it_was(files, schema):
    found = plain_batches.find_schema(files, schema, "input_files")
    whole = numbers(plain_batches.training_dataset(files, found, 4, TrainingOrder(5), num_streams=4), 40)
    rest = plain_batches.training_dataset(files, found, 4, TrainingOrder(5, 4 * 27), num_streams=4)
    assert_same_batches(numbers(rest, 13), whole[27:])


def test_records_of_other_formats_and_lengths_are_refused(tmp_path, schema):
    examples = short_examples(4, longest=8)
    path = write_records(tmp_path / "compact", encoders.encode(examples, "compact"))
    with pytest.raises(ConfigError, match="--input_files: .*compact, record 1: feature input_ids is missing"):
        plain_batches.find_schema([path], schema, "input_files")
    path = write_records(tmp_path / "plain", encoders.encode(examples, "plain"))
    longer = {**schema, "input_ids": Feature(32, tf.int32)}
    with pytest.raises(ConfigError, match="record 1: feature input_ids has 16 values, expected 32"):
        plain_batches.find_schema([path], longer, "input_files")


@pytest.mark.parametrize("content, message", [(b"", "has no records"), (b"x" * 50, "corrupted record")])
def test_files_without_records_are_refused(tmp_path, schema, content, message):
    (tmp_path / "part").write_bytes(content)
    with pytest.raises(ConfigError, match=f"--input_files: .*part.*{message}"):
        plain_batches.find_schema([str(tmp_path / "part")], schema, "input_files")


# ------------------------------------------------------------------------------------------------------------
# TensorFlow 2.6


@pytest.fixture
def tensorflow_2_6(monkeypatch):
    """Takes away what came later."""
    monkeypatch.delattr(tf.random.experimental, "stateless_shuffle")
    monkeypatch.delattr(tf.data.Dataset, "rebatch")
    assert not hasattr(tf.data.Dataset.range(1), "rebatch")


def test_an_older_tensorflow_reads_the_same_rows(files, schema, tensorflow_2_6):
    found = plain_batches.find_schema(files, schema, "input_files")
    whole = numbers(plain_batches.training_dataset(files, found, 4, TrainingOrder(5), num_streams=4), 40)
    rest = plain_batches.training_dataset(files, found, 4, TrainingOrder(5, 4 * 27), num_streams=4)
    assert_same_batches(numbers(rest, 13), whole[27:])


def test_an_older_tensorflow_shuffles_by_its_seed(tensorflow_2_6):
    values = tf.range(100)
    orders = [
        pipeline.shuffled(values, tf.constant([1, second], tf.int64)).numpy().tolist() for second in (2, 2, 3)
    ]
    assert orders[0] == orders[1] != orders[2] and orders[0] != list(range(100))
    assert all(sorted(order) == list(range(100)) for order in orders)


@pytest.mark.parametrize("drop_remainder", [False, True])
def test_an_older_tensorflow_makes_other_batches(tensorflow_2_6, drop_remainder):
    batches = pipeline.rebatched(tf.data.Dataset.range(10).batch(4), 3, drop_remainder)
    expected = [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9]]
    assert [batch.tolist() for batch in batches.as_numpy_iterator()] == expected[: 3 if drop_remainder else 4]
