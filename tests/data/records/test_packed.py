"""Packed rows: where things stand, reading back, slots of predicted tokens, and rows that are wrong."""

import numpy as np
import pytest
import tensorflow as tf

from official.data.pretraining import inspection
from official.data.pretraining.examples import Examples
from official.data.records import batches as record_batches
from official.data.records import encoding, record_formats
from official.data.records import files as record_files
from official.data.records import schema as schema_lib
from official.data.records.formats import packed
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


FLOATS = ("packed_masked_lm_mask", "packed_next_sentence_mask")


def row_of(record: bytes) -> dict[str, np.ndarray]:
    features = tf.train.Example.FromString(record).features.feature
    return {
        name: np.array(feature.float_list.value if name in FLOATS else feature.int64_list.value)
        for name, feature in sorted(features.items())
    }


def record_of(row: dict[str, np.ndarray]) -> bytes:
    example = tf.train.Example()
    for name, values in row.items():
        feature = example.features.feature[name]
        (feature.float_list if name in FLOATS else feature.int64_list).value.extend(values.tolist())
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
    for record in packed.encode_rows(examples, MEMBERS):  # the bytes of protobuf
        assert record_of(dict(sorted(row_of(record).items()))) == record


def test_rows_are_read_as_their_examples():
    examples, features = short_examples(), features_of(words=50)
    records = packed.encode_rows(examples, MEMBERS)
    assert {record_formats.detect_format(record) for record in records} == {"packed"}
    assert {record_formats.READERS["packed"].sizes_of(record) for record in records} == {(LENGTH, MOST)}
    assert record_formats.READERS["packed"].count_rows(tf.constant(records)).numpy().tolist() == [2, 1, 3]
    order = MEMBERS[MEMBERS >= 0]
    found = parsed(records, "packed", features)
    for name, values in examples.features().items():
        np.testing.assert_array_equal(found[name], values[order], name)
    single = [one for record in records for one in record_formats.READERS["packed"].split(record)]
    assert len(single) == 6 and record_formats.READERS["packed"].join(single) == single
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
    # A record with 79 slots is read by its own size.
    (record,) = packed.encode_rows(published([17, 37, 458], [3, 6, 70], 77), together)
    assert record_formats.READERS["packed"].sizes_of(record) == (512, 77)
    assert "expected 512 and 76" in str(
        record_formats.describe_mismatch(record, features_of(512, 76), "packed")
    )


def put(name: str, place: int, value: float):
    """Returns a damage of a row: another value."""

    def damage(row):
        row[name][place] = value

    return damage


# {what is wrong: (how it comes, what is said)}; with those of `test_foreign`, of the same checks
DAMAGES = {
    "positions go on": (put("packed_position_ids", 5, 9), "positions leave their example"),
    "half a slot": (put("packed_masked_lm_mask", 0, 0.5), "not 0 to its examples at most"),
    "a label without example": (put("packed_next_sentence_mask", 0, 1), "do not name the examples"),
    "a strange word": (put("packed_input_ids", 0, 50), "input_ids has values from"),
    "no feature": (lambda row: row.pop("packed_segment_ids"), "packed_segment_ids is missing"),
}
# Values that only whole rows have: those of padding and of empty slots, which a step looks up.
OF_ROWS = {
    "a word of padding": put("packed_input_ids", 12, -1),
    "a place of an empty slot": put("packed_masked_lm_positions", -1, -1),
    "a label of an empty slot": put("packed_masked_lm_ids", -1, -1),
}


def test_wrong_rows_are_refused_by_file_and_number(tmp_path):
    features, rows = features_of(words=50), schema_lib.packed_schema(LENGTH, MOST + 2, 3, 50)
    good = packed.encode_rows(published([5, 6], [2, 2], MOST, LENGTH), np.array([[0, 1, -1]]))[0]
    wrong = []
    of_rows = {name: (each, "values") for name, each in OF_ROWS.items()}
    for name, (damage, problem) in {**DAMAGES, **of_rows}.items():
        row = row_of(good)
        damage(row)
        path = write_records(tmp_path / "a.tfrecord", [good, record_of(row), good])
        line = str(record_files.find_bad_record([path], features))
        if not line.startswith(f"{path}, record 2: ") or problem not in line:
            wrong.append(f"{name}: {line}")
        for kind, schema in (("packed", features), ("packed_whole", rows)):
            if kind == "packed" and name in OF_ROWS:
                continue
            with pytest.raises(tf.errors.InvalidArgumentError):
                record_formats.parse_records(tf.constant([good, record_of(row)]), schema, kind)
                wrong.append(f"{name} is read as {kind}")
        if name in DAMAGES and name != "a strange word":  # no vocabulary is known
            with pytest.raises(ConfigError, match=r"a\.tfrecord, record 2: ") as error:
                inspection.summarize([path], None)
            if problem not in str(error.value):
                wrong.append(f"{name}: {error.value}")
    assert wrong == []


def test_batches_of_packed_files_are_those_of_plain_ones(tmp_path):
    examples, features = short_examples(), features_of()
    plain = encoding.encode(examples, "plain")
    rows = write_records(tmp_path / "packed", packed.encode_rows(examples, MEMBERS))
    alone = write_records(tmp_path / "plain", [plain[number] for number in MEMBERS[MEMBERS >= 0]])
    found, expected = (
        list(record_batches.evaluation_dataset([path], features, 4, 6).as_numpy_iterator())
        for path in (rows, alone)
    )
    assert len(found) == len(expected) == 2
    for one, other in zip(found, expected):
        for name, values in one.items():
            np.testing.assert_array_equal(values, other[name], name)
    (counts,) = record_files.count([rows], "packed")
    assert (counts.records, counts.rows, counts.rows_before(2)) == (3, 6, 3)
