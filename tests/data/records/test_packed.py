"""Packed rows: where things stand, reading back, slots of predicted tokens, and rows that are wrong."""

import numpy as np
import pytest
import tensorflow as tf

from official.data.pretraining import inspection
from official.data.pretraining.examples import Examples
from official.data.records import record_batches, record_counts, record_files, record_formats
from official.data.records import schema as schema_lib
from official.data.records.encoding import encoders
from official.data.records.formats import packed, packed_rows, packed_whole
from official.io.errors import ConfigError
from tests.conftest import write_records
from tests.data.records.test_records import LENGTH, MOST, features_of, make_examples, parsed

MEMBERS = np.array([[3, 0, -1], [1, -1, -1], [5, 2, 4]])


def short_examples(count: int = 6) -> Examples:
    """Returns examples of 5 to 8 tokens, of which three fit into a row of 24."""
    examples = make_examples(count, length=8, most=2, shortest=5)
    wide = np.zeros((count, LENGTH), np.uint16)
    wide[:, :8] = examples.input_ids
    return Examples(
        wide,
        examples.lengths,
        examples.first_lengths,
        np.pad(examples.positions, ((0, 0), (0, 2))),
        np.pad(examples.labels, ((0, 0), (0, 2))),
        examples.predictions,
        examples.is_random,
    )


def row_of(record: bytes) -> dict[str, np.ndarray]:
    example = tf.train.Example.FromString(record).features.feature
    return {
        name: np.array(
            example[name].float_list.value if name in packed_rows.FLOATS else example[name].int64_list.value
        )
        for name in packed_rows.NAMES
    }


def record_of(row: dict[str, np.ndarray]) -> bytes:
    example = tf.train.Example()
    for name, values in row.items():
        feature = example.features.feature[name]
        (feature.float_list if name in packed_rows.FLOATS else feature.int64_list).value.extend(
            values.tolist()
        )
    return example.SerializeToString(deterministic=True)


def test_a_row_has_the_published_layout():
    examples = short_examples()
    row = row_of(packed.encode_rows(examples, MEMBERS)[0])
    first, second = int(examples.lengths[3]), int(examples.lengths[0])
    assert row["packed_input_ids"].tolist() == [
        *examples.input_ids[3, 1:first],
        *examples.input_ids[0, 1:second],
        *[0] * (LENGTH - first - second),
        examples.input_ids[0, 0],  # [CLS] of example k is k-th from the end
        examples.input_ids[3, 0],
    ]
    assert row["packed_input_mask"].tolist() == [
        *[1] * (first - 1), *[2] * (second - 1), *[0] * (LENGTH - first - second), 2, 1,
    ]  # fmt: skip
    assert row["packed_position_ids"].tolist() == [
        *range(1, first), *range(1, second), *[0] * (LENGTH - first - second), 0, 0,
    ]  # fmt: skip
    predicted, after = int(examples.predictions[3]), int(examples.predictions[0])
    assert len(row["packed_masked_lm_ids"]) == MOST + 3 - 1
    assert row["packed_masked_lm_positions"].tolist()[: predicted + after] == [
        *(examples.positions[3, :predicted] - 1),
        *(first - 1 + examples.positions[0, :after] - 1),
    ]
    assert row["packed_masked_lm_mask"].tolist()[: predicted + after + 1] == [
        *[1] * predicted, *[2] * after, 0,
    ]  # fmt: skip
    assert row["packed_next_sentence_labels"].tolist() == [
        0, int(examples.is_random[0]), int(examples.is_random[3]),
    ]  # fmt: skip
    assert row["packed_next_sentence_mask"].tolist() == [0, 1, 1]


def test_the_bytes_are_those_of_protobuf():
    for record in packed.encode_rows(short_examples(), MEMBERS):
        assert record_of(dict(sorted(row_of(record).items()))) == record


def test_rows_are_read_as_their_examples():
    examples, features = short_examples(), features_of(words=50)
    records = packed.encode_rows(examples, MEMBERS)
    assert {record_formats.detect_format(record) for record in records} == {"packed"}
    assert {record_formats.sizes_of(record, "packed") for record in records} == {(LENGTH, MOST)}
    assert not any(record_formats.describe_mismatch(record, features, "packed") for record in records)
    assert record_formats.count_rows(tf.constant(records), "packed").numpy().tolist() == [2, 1, 3]
    order = MEMBERS[MEMBERS >= 0]
    found = parsed(records, "packed", features)
    for name, values in examples.features().items():
        np.testing.assert_array_equal(found[name], values[order], name)
    single = [one for record in records for one in record_formats.split(record, "packed")]
    assert len(single) == 6 and record_formats.join(single, "packed") == single
    for name, values in parsed(single, "packed", features).items():
        np.testing.assert_array_equal(values, found[name], name)


def test_a_predicted_cls_is_found_at_the_end_of_the_row():
    examples = short_examples()
    examples.positions[0, 0] = 0
    records = packed.encode_rows(examples, MEMBERS)
    assert LENGTH - 2 in row_of(records[0])["packed_masked_lm_positions"]
    assert parsed(records, "packed", features_of())["masked_lm_positions"][1, 0] == 0


def published(lengths: list[int], predictions: list[int], most: int, row: int = 512) -> Examples:
    """Returns examples of these lengths and numbers of predicted tokens."""
    positions = np.where(np.arange(most) < np.array(predictions)[:, None], np.arange(1, most + 1), 0)
    ids = np.where(np.arange(row) < np.array(lengths)[:, None], 7, 0)
    return Examples(
        ids, np.array(lengths), np.array(lengths) // 2, positions, positions, np.array(predictions),
        np.zeros(len(lengths), bool),
    )  # fmt: skip


def test_slots_of_predicted_tokens_are_78_as_published_and_79_are_refused():
    """0.15 x 17, 37 and 458, rounded up: 3 + 6 + 69 = 78 = 76 + 3 - 1; other lengths can have 79."""
    together = np.array([[0, 1, 2]])
    (record,) = packed.encode_rows(published([17, 37, 458], [3, 6, 69], 76), together)
    assert np.count_nonzero(row_of(record)["packed_masked_lm_mask"]) == 78
    with pytest.raises(ValueError, match="row 0 has 79 predicted tokens, expected at most 78"):
        packed.encode_rows(published([21, 41, 450], [4, 7, 68], 76), together)


def test_a_record_with_79_slots_is_read_by_its_own_size():
    (record,) = packed.encode_rows(published([17, 37, 458], [3, 6, 70], 77), np.array([[0, 1, 2]]))
    assert record_formats.sizes_of(record, "packed") == (512, 77)
    assert "expected 512 and 76" in str(
        record_formats.describe_mismatch(record, features_of(512, 76), "packed")
    )


def test_too_many_tokens_are_refused():
    with pytest.raises(ValueError, match="row 0 has 513 tokens, expected at most 512"):
        packed.encode_rows(published([256, 257], [3, 3], 76), np.array([[0, 1]]))


def set_to(name: str, place: int, value: float):
    def damage(row):
        row[name][place] = value

    return damage


def cut(name: str):
    def damage(row):
        row[name] = row[name][:-1]

    return damage


def swap(name: str, one: int, other: int):
    def damage(row):
        row[name][[one, other]] = row[name][[other, one]]

    return damage


DAMAGES = {
    "examples overlap": (set_to("packed_input_mask", 2, 2), "examples overlap or stand apart"),
    "an example in two parts": (swap("packed_input_mask", 3, 5), "examples overlap or stand apart"),
    "a number above P": (set_to("packed_input_mask", 2, 4), "number that is not 0 to 3"),
    "a gap": (lambda row: np.place(row["packed_input_mask"], row["packed_input_mask"] == 1, 3), "example 1"),
    "a row without examples": (lambda row: row["packed_input_mask"].fill(0), "it holds no example 1"),
    "positions go on": (set_to("packed_position_ids", 5, 9), "packed_position_ids leave their example"),
    "a masked place elsewhere": (
        set_to("packed_masked_lm_positions", 0, 5),
        "packed_masked_lm_positions leave their example",
    ),
    "a masked place behind the row": (
        set_to("packed_masked_lm_positions", 0, LENGTH),
        "packed_masked_lm_positions exceed the row of 24 tokens",
    ),
    "slots out of order": (swap("packed_masked_lm_mask", 0, -1), "is not ones, twos"),
    "half a slot": (set_to("packed_masked_lm_mask", 0, 0.5), "number that is not 0 to 3"),
    "a label without example": (set_to("packed_next_sentence_mask", 0, 1), "packed_next_sentence_mask"),
    "a strange label": (
        set_to("packed_next_sentence_labels", 2, 2),
        "next_sentence_labels has values from 0",
    ),
    "a strange word": (set_to("packed_input_ids", 0, 50), "input_ids has values from"),
    "a segment before its time": (set_to("packed_segment_ids", 4, 1), "not zeros and then ones"),
    "[CLS] in the second segment": (
        lambda row: np.place(row["packed_segment_ids"], row["packed_input_mask"] == 1, 1),
        "not zeros and then ones",
    ),
    "a segment of padding": (set_to("packed_segment_ids", 12, 1), "packed_segment_ids are not 0 in the padd"),
    "a word of padding": (set_to("packed_input_ids", 12, -1), "input_ids has values from"),
    "a place of an empty slot": (
        set_to("packed_masked_lm_positions", -1, -1),
        "packed_masked_lm_positions exceed the row of 24 tokens",
    ),
    "a label of an empty slot": (set_to("packed_masked_lm_ids", -1, -1), "masked_lm_ids has values from"),
    "a short feature": (cut("packed_position_ids"), "has 23 values, packed_input_ids 24"),
    "no feature": (lambda row: row.pop("packed_segment_ids"), "packed_segment_ids is missing"),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_wrong_rows_are_refused_by_file_and_number(name, tmp_path):
    damage, problem = DAMAGES[name]
    good = packed.encode_rows(published([5, 6], [2, 2], MOST, LENGTH), np.array([[0, 1, -1]]))[0]
    row = row_of(good)
    damage(row)
    path = str(tmp_path / "a.tfrecord")
    write_records(path, [good, record_of(row), good])
    line = str(record_files.find_bad_record([path], features_of(words=50)))
    assert line.startswith(f"{path}, record 2: ") and problem in line
    with pytest.raises(tf.errors.InvalidArgumentError):
        record_formats.parse_records(tf.constant([good, record_of(row)]), features_of(words=50), "packed")
    with pytest.raises(tf.errors.InvalidArgumentError):  # in a graph, too
        records = tf.data.Dataset.from_tensors([good, record_of(row)])
        list(records.map(lambda batch: record_formats.parse_records(batch, features_of(words=50), "packed")))
    rows = schema_lib.packed_schema(LENGTH, MOST + 2, 3, 50)
    with pytest.raises(tf.errors.InvalidArgumentError):
        packed_whole.parse_rows(tf.constant([good, record_of(row)]), rows)
    if name != "a strange word":  # no vocabulary is known
        with pytest.raises(ConfigError, match=r"a\.tfrecord, record 2: ") as error:
            inspection.summarize([path], None)
        assert problem in str(error.value) or name == "a strange label"


def test_batches_of_packed_files_are_those_of_plain_ones(tmp_path):
    examples, features = short_examples(), features_of()
    order = MEMBERS[MEMBERS >= 0]
    plain = encoders.encode(examples, "plain")
    files = {
        "packed": write_records(tmp_path / "packed", packed.encode_rows(examples, MEMBERS)),
        "plain": write_records(tmp_path / "plain", [plain[number] for number in order]),
    }
    found = {
        kind: list(record_batches.evaluation_dataset([path], features, 4, 6).as_numpy_iterator())
        for kind, path in files.items()
    }
    assert len(found["packed"]) == len(found["plain"]) == 2
    for one, other in zip(*found.values()):
        for name, values in one.items():
            np.testing.assert_array_equal(values, other[name], name)


def test_files_are_counted_by_their_examples(tmp_path):
    path = str(tmp_path / "a.tfrecord")
    write_records(path, packed.encode_rows(short_examples(), MEMBERS))
    (counts,) = record_counts.count([path], "packed")
    assert (counts.records, counts.rows, counts.rows_before(2)) == (3, 6, 3)
