"""Rows of several sequences and other people's records: read as what went in, found by their content, packed
anew, refused if wrong."""

import functools
import glob
import json
import os

import numpy as np
import pytest
import tensorflow as tf

from official.data.packing import creation
from official.data.pipeline import TrainingOrder
from official.data.pretraining import inspection
from official.data.records import batches as record_batches
from official.data.records import files as record_files
from official.data.records import record_formats
from official.data.records import schema as schema_lib
from official.data.records.formats import packed
from official.io.errors import ConfigError
from tests.data.records import foreign_records
from tests.data.records.foreign_records import FORMATS
from tests.data.records.test_records import LENGTH, MOST, features_of, make_examples, parsed
from tests.fixtures import slow
from tests.records import members_of, sequences_of, short_examples

PACKS = [[3, 0], [1], [5, 2, 4]]
ORDER = [number for pack in PACKS for number in pack]
PACKED = [kind for kind in FORMATS if FORMATS[kind].is_packed]
BINARIES = [kind for kind in FORMATS if FORMATS[kind].encode is foreign_records.binary]
QUICK = ("packed", "popart_in_place")  # TFRecords and binaries


def each(kinds):
    """Returns the parameters of a test of some formats: all but QUICK are slow."""
    return [kind if kind in QUICK else slow(kind) for kind in kinds]


EXAMPLES = short_examples(6, length=LENGTH, most=MOST, shortest=6, longest=8)  # three fit into a row


def file_of(folder, kind: str, examples=EXAMPLES, name: str = "strategy_1_part_0") -> str:
    records = foreign_records.encoded(examples, PACKS, kind, MOST)
    return foreign_records.write(folder / name, kind, records)


@pytest.mark.parametrize("kind", each(FORMATS))
def test_records_are_read_as_the_examples_that_went_in(kind, tmp_path):
    examples, features = EXAMPLES, features_of(words=50)
    path, name = file_of(tmp_path, kind), FORMATS[kind].name
    assert record_files.detect_format([path]) == name
    (found,) = record_batches.evaluation_dataset([path], features, 6, 6).as_numpy_iterator()
    for feature, values in examples.features().items():
        np.testing.assert_array_equal(found[feature], values[ORDER], feature)
    assert record_files.find_bad_record([path], features) is None
    reader, records = record_formats.READERS[name], foreign_records.encoded(examples, PACKS, kind, MOST)
    assert not any(record_formats.describe_mismatch(record, features, name) for record in records)
    single = [one for record in records for one in reader.split(record)]
    most = MOST + (kind == "popart_packed, 79 slots")  # which nothing in a record tells from M = 5
    single_kind = "packed" if kind == "packed" else "plain"
    for feature, values in parsed(single, single_kind, features_of(most=most)).items():
        if not feature.startswith("masked"):
            np.testing.assert_array_equal(values, examples.features()[feature][ORDER], feature)
    assert reader.join(single) == single
    for length, most in ((LENGTH, MOST - 2), (LENGTH + 4, MOST)):
        with pytest.raises(ConfigError, match="record 1: it (is a row of|has)") as error:
            record_files.check_first_record([path], features_of(length, most), "input_files")
        assert str(length) in str(error.value)


@pytest.mark.parametrize("kind", [slow("packed"), *each(kind for kind in PACKED if kind != "packed")])
def test_whole_rows_say_of_each_sequence_what_its_example_says(kind, tmp_path):
    path = file_of(tmp_path, kind)
    sizes = record_files.row_sizes([path])
    assert sizes == (MOST + foreign_records.DEPTH + FORMATS[kind].spare, foreign_records.DEPTH)
    schema = schema_lib.packed_schema(LENGTH, *sizes, 50)
    (rows,) = record_batches.evaluation_dataset([path], schema, 3, 6).as_numpy_iterator()
    sequences = sequences_of(EXAMPLES)
    assert members_of(rows) == [sequences[number] for number in ORDER]
    np.testing.assert_array_equal(rows["input_mask"], rows["sequence_ids"] > 0)
    assert not rows["masked_lm_weights"][rows["masked_lm_sequences"] == 0].any()
    (counts,) = record_files.count([path], record_formats.AS_ROWS[FORMATS[kind].name])
    assert counts.rows == counts.records == len(PACKS)
    assert record_batches.sequences_per_row([path], schema, None) == 2


def test_packed_rows_are_the_bytes_of_the_published_layout():
    """Also where a [CLS], which stands at the end of the row, is predicted."""
    with_cls = short_examples(6, length=LENGTH, most=MOST, shortest=6, longest=8)
    with_cls.positions[0, 0] = 0
    for examples in (EXAMPLES, with_cls):
        records = packed.encode_rows(examples, np.array([[3, 0, -1], [1, -1, -1], [5, 2, 4]]))
        assert records == foreign_records.encoded(examples, PACKS, "packed", MOST)
    assert parsed(records, "packed", features_of())["masked_lm_positions"][1, 0] == 0


def test_slots_of_predicted_tokens_are_78_as_published_and_79_are_refused():
    """0.15 x 17, 37 and 458, rounded up: 3 + 6 + 69 = 78 = 76 + 3 - 1; other lengths can have 79."""

    def encode(lengths: list[int], predictions: list[int], most: int) -> bytes:
        examples = make_examples(3, length=512, most=most, shortest=100)
        examples.lengths[:], examples.predictions[:] = lengths, predictions
        return packed.encode_rows(examples, np.array([[0, 1, 2]]))[0]

    sizes_of = record_formats.READERS["packed"].sizes_of
    assert sizes_of(encode([17, 37, 458], [3, 6, 69], 76)) == (512, 76)
    with pytest.raises(ValueError, match="row 0 has 79 predicted tokens, expected at most 78"):
        encode([21, 41, 450], [4, 7, 68], 76)
    # A record with 79 slots is read by its own size.
    record = encode([17, 37, 458], [3, 6, 70], 77)
    assert sizes_of(record) == (512, 77)
    problem = record_formats.describe_mismatch(record, features_of(512, 76), "packed")
    assert "expected 512 and 76" in str(problem)


@pytest.mark.slow
def test_training_goes_on_where_it_stopped(tmp_path):
    """Of binaries; TFRecords that hold several sequences are test_data_reading.py's."""
    files = [file_of(tmp_path, "popart_static", name=f"strategy_{number}_part_0") for number in range(2)]
    counts = record_files.count(files, record_files.detect_format(files))
    assert [found.rows for found in counts] == [6, 6]
    features = features_of(words=50)

    def batches(done: int, count: int):
        order = TrainingOrder(seed=3, sequences_done=done)
        data = record_batches.training_dataset(files, features, 2, order, 2)
        return [batch["input_ids"].tolist() for batch in data.take(count).as_numpy_iterator()]

    assert batches(0, 9)[5:] == batches(10, 4)


@pytest.mark.parametrize("kind", each(FORMATS))
def test_bert_pack_takes_them(kind, tmp_path):
    os.mkdir(tmp_path / "in")
    path = file_of(tmp_path / "in", kind)
    job = creation.Job(path, str(tmp_path / "out"), "lpfhp", 3, num_workers=1)
    assert creation.pack_records(job)["sequences"] == 6

    def texts(paths):
        found = []
        for one in paths:
            for _, values in inspection.read_checked(one, *inspection.describe_first(one, None)):
                slots = [
                    np.sort(values[name][:, :MOST], axis=1) for name in ("masked_lm_ids", "masked_lm_weights")
                ]
                rows = np.concatenate([values["input_ids"], values["segment_ids"], *slots], axis=1)
                found += [tuple(row) for row in rows.tolist()]
        return sorted(found)

    assert texts(glob.glob(f"{tmp_path}/out/*.tfrecord")) == texts([path])
    assert inspection.summarize([path], None).record_format == FORMATS[kind].name


# ------------------------------------------------------------------------------------------------------------
# What is found out


@pytest.mark.parametrize("kind", each(FORMATS))
def test_shapes_are_found_from_the_content(kind, tmp_path):
    for length, most in ((512, 76), (100, 7)):
        path = file_of_packs(tmp_path, kind, [foreign_records.DEPTH], length, most)
        summary = inspection.summarize([path], None)
        is_79 = kind == "popart_packed, 79 slots"
        assert (summary.max_seq_length, summary.max_predictions_per_seq) == (length, most + is_79)


def file_of_packs(folder, kind: str, members: list[int], length: int = 60, most: int = 8) -> str:
    """Writes rows of so many sequences each."""
    numbers, depth = iter(range(sum(members))), foreign_records.DEPTH
    packs = [[next(numbers) for _ in range(count)] for count in members]
    shortest = length // depth - 2
    examples = make_examples(sum(members), length=length, most=most, words=30000, shortest=shortest)
    examples.predictions[:] = np.minimum(examples.predictions, most // depth)
    examples.lengths[:] = np.minimum(examples.lengths, length // depth)
    examples.input_ids[np.arange(length) >= examples.lengths[:, None]] = 0
    return foreign_records.write(folder / "part", kind, foreign_records.encoded(examples, packs, kind, most))


@pytest.mark.slow
@pytest.mark.parametrize("kind", each(kind for kind in PACKED if kind in BINARIES))
def test_rows_of_few_sequences_in_front_do_not_matter(kind, tmp_path):
    """Each may be read in several shapes, also with room for fewer sequences and fewer predicted tokens."""
    sizes, wrong = (8 + foreign_records.DEPTH + FORMATS[kind].spare, foreign_records.DEPTH), []
    for members in ([1, 1, 1, 3, 2, 1], [1, 2, 2, 1], [1] * 5 + [3] + [1] * 5, [1, 1, 1]):
        path = file_of_packs(tmp_path, kind, members)
        found = [
            record_files.row_sizes([path]) == sizes,
            inspection.summarize([path], None).records == sum(members),
            record_files.count([path], FORMATS[kind].name)[0].rows == sum(members),
        ]
        wrong += [] if all(found) else [(members, found)]
        os.remove(path)
    assert not wrong


def test_flags_say_the_shape_of_rows_that_may_be_several(tmp_path):
    path = file_of_packs(tmp_path, "popart_packed, backwards", [1, 1, 1])
    assert record_files.row_sizes([path]) == (10, 3)
    for depth in (None, 3):
        assert record_files.row_sizes([path], record_files.Wanted(60, 8, depth)) == (10, 3)
    for depth in (None, 2):
        assert record_files.row_sizes([path], record_files.Wanted(60, 10, depth)) == (11, 2)
    # Which is refused later.
    assert record_files.row_sizes([path], record_files.Wanted(128, 20, None)) == (10, 3)


def test_a_file_that_is_nothing_is_refused_with_what_is_allowed(tmp_path):
    path = tmp_path / "text"
    path.write_bytes(b"It is a truth universally acknowledged" * 40)
    with pytest.raises(ConfigError) as error:
        record_files.check_first_record([str(path)], schema_lib.pretraining_schema(128, 20), "input_files")
    assert "1,520 bytes" in str(error.value) and "1,628 (popart_static)" in str(error.value)
    with pytest.raises(ConfigError, match="text"):
        inspection.summarize([str(path)], None)


@pytest.mark.parametrize("kind", each(BINARIES))
def test_a_binary_that_is_cut_off_is_refused_by_its_bytes(kind, tmp_path):
    good = file_of(tmp_path, kind)
    size = record_files.bytes_of([good], FORMATS[kind].name)
    bad = tmp_path / "strategy_1_part_1"
    with open(good, "rb") as file:
        bad.write_bytes(file.read()[: 2 * size - 12])
    line = str(record_files.find_bad_record([good, str(bad)], features_of()))
    assert line.startswith(f"{bad} is truncated or damaged after record 1") and f"{size:,}" in line
    with pytest.raises(ConfigError, match="truncated or damaged after record 1"):
        record_files.count([good, str(bad)], FORMATS[kind].name)


def test_a_missing_masked_token_is_read_as_padding(tmp_path):
    """Graphcore's script leaves out a token whose mask was drawn to be [PAD], and its prediction."""
    examples = short_examples(6, length=LENGTH, most=MOST, shortest=6, longest=8)
    place = int(examples.positions[0, 0])
    examples.input_ids[0, place] = 0
    path = file_of(tmp_path, "popart_static", examples)
    (found,) = record_batches.evaluation_dataset([path], features_of(), 6, 6).as_numpy_iterator()
    row = ORDER.index(0)
    for name in ("input_ids", "input_mask", "segment_ids"):
        np.testing.assert_array_equal(found[name][row], examples.features()[name][0], name)
    assert found["masked_lm_weights"][row].sum() == examples.predictions[0] - 1
    assert place not in found["masked_lm_positions"][row]
    assert inspection.summarize([path], None).records == 6


# ------------------------------------------------------------------------------------------------------------
# Records that are wrong


def put(name: str, place: int, value: float):
    """Returns a damage of a row: another value."""
    return lambda row: row[name].__setitem__(place, value)


ROWS = ("packed", "popart_packed, backwards")  # one check serves the rows of all formats
IN_PLACE, TYPED = ("habana", "popart_in_place"), ("packed", "habana")
STATIC, PLAIN = ("popart_static",), ("popart_plain",)


def change(**values):
    """Returns a damage of a row: other values of some features."""
    return lambda row: row.update(values)


def swap(row):
    slots = row["masked_lm_weights"]
    slots[0], slots[-1] = slots[-1], slots[0]


def gap(row):
    row["input_mask"] = [3 if number == 2 else number for number in row["input_mask"]]


# (formats, how a record is damaged, what is said)
DAMAGES = (
    (ROWS + IN_PLACE, put("input_mask", 4, 2), "examples overlap"),
    (ROWS, put("input_mask", 5, 4), "number of an example"),
    (ROWS, put("positions", 6, LENGTH), "exceed the row of 24 tokens"),
    (ROWS, put("positions", 6, 20), "positions leave their example"),
    (ROWS, change(input_mask=[0] * LENGTH), "it holds no example 1"),
    (ROWS, gap, "have a gap"),
    (ROWS, put("segment_ids", 1, 7), "not zeros and then ones"),
    (ROWS, swap, "not ones, twos"),
    (ROWS, change(next_sentence_labels=[2] * 3), "are not 0 or 1"),
    (ROWS, put("input_ids", 3, 50), "input_ids has values from"),
    (ROWS, put("next_sentence_weights", 1, 0), "next_sentence_weights"),
    (IN_PLACE, put("masked_lm_positions", 0, LENGTH - 8), "masked_lm_positions leave their example"),
    (IN_PLACE, put("next_sentence_positions", 1, 1), "next_sentence_positions leave their example"),
    (STATIC, put("positions", MOST, 1), "examples overlap"),
    (STATIC, put("predicted", 0, MOST + 1), "number of an example"),
    (STATIC, put("end", 0, LENGTH + 1), "number of an example"),
    (PLAIN, put("input_mask", 1, 2), "number of an example"),
    (PLAIN, put("masked_lm_positions", 0, LENGTH - 1), "masked_lm_positions leave"),
    (TYPED, lambda row: row["positions"].pop(), "has 23 values"),
    (TYPED, lambda row: row.pop("positions"), "is missing"),
    (TYPED, put("masked_lm_weights", 0, 0.5), "number of an example"),
    (TYPED, put("input_ids", 3, 1 << 40), "input_ids has values from"),
)


@pytest.mark.parametrize("kind", each([*ROWS, *IN_PLACE, *STATIC, *PLAIN]))
def test_wrong_records_are_refused_by_file_and_number(kind, tmp_path):
    """And in a graph, so that they stop a run. The quick formats leave some to the others."""
    features, wrong, name = features_of(words=50), [], FORMATS[kind].name
    rows_schema = schema_lib.packed_schema(LENGTH, MOST + 3 + FORMATS[kind].spare, 3, 50)
    schemas = {f"{name}_whole": rows_schema} if FORMATS[kind].is_packed else {}
    schemas |= {} if kind in QUICK else {name: features}
    parsers = [
        tf.function(functools.partial(record_formats.parse_records, schema=schema, record_format=reader))
        for reader, schema in schemas.items()
    ]
    for number, (kinds, damage, problem) in enumerate(DAMAGES):
        if kind not in kinds:
            continue
        rows = foreign_records.rows_of(EXAMPLES, [[3, 0]] * 3, kind, MOST)
        damage(rows[1])
        records = [FORMATS[kind].encode(row) for row in rows[:3]]
        path = foreign_records.write(tmp_path / "strategy_1_part_0", kind, records)
        line = str(record_files.find_bad_record([path], features))
        if not line.startswith(f"{path}, record 2: ") or problem not in line:
            wrong.append((number, line))
        for parse in parsers:
            with pytest.raises(tf.errors.InvalidArgumentError):
                parse(tf.constant(records))
                wrong.append((number, "is read"))
        is_inspected = kind not in QUICK or number % 3 == 0
        if is_inspected and rows[1].get("input_ids", [0] * 4)[3] != 50:  # no vocabulary is known
            with pytest.raises(ConfigError, match="strategy_1_part_0, record 2: "):
                inspection.summarize([path], None)
                wrong.append((number, "is inspected"))
    assert not wrong


def test_whole_rows_with_wrong_values_of_padding_and_empty_slots_are_refused():
    """A step looks them up."""
    rows_schema = schema_lib.packed_schema(LENGTH, MOST + 2, 3, 50)
    for name, place in (("input_ids", 20), ("masked_lm_positions", -1), ("masked_lm_ids", -1)):
        (row,) = foreign_records.rows_of(EXAMPLES, [[3, 0]], "packed", MOST)
        row[name][place] = -1
        record = foreign_records.published(row)
        with pytest.raises(tf.errors.InvalidArgumentError):
            record_formats.parse_records(tf.constant([record]), rows_schema, "packed_whole")
        problem = record_formats.describe_mismatch(record, features_of(words=50), "packed")
        assert f"{name} has values" in str(problem)


@pytest.mark.parametrize("kind", each(BINARIES))
def test_a_wrong_first_record_is_found_too(kind, tmp_path):
    rows = foreign_records.rows_of(EXAMPLES, [[3, 0], [1]], kind, MOST)
    rows[0]["segment_ids"][-4:] = [7] * 4
    rows[0]["input_ids"][1] = -1
    path = foreign_records.write(tmp_path / "part", kind, list(map(foreign_records.binary, rows)))
    with pytest.raises(ConfigError, match=r"part, record 1: "):
        inspection.summarize([path], None)
    assert f"{path}, record 1: " in str(record_files.find_bad_record([path], features_of()))


# ------------------------------------------------------------------------------------------------------------
# Metadata


def test_habanas_metadata_tell_the_sequences_of_a_row(tmp_path):
    folder = tmp_path / "packed"
    folder.mkdir()
    files = [file_of(folder, "habana", name=f"strategy_{number}") for number in range(2)]
    assert packed.average_sequences(files) is None
    (tmp_path / "packed_metadata.json").write_text(json.dumps({"avg_seq_per_sample": 1.97}))
    assert packed.average_sequences(files) == 1.97
    schema = schema_lib.packed_schema(LENGTH, *record_files.row_sizes(files))
    assert record_batches.sequences_per_row(files, schema, None) == 1.97
    for wrong in ({}, {"avg_seq_per_sample": "many"}, {"avg_seq_per_sample": 0.5}, []):
        (tmp_path / "packed_metadata.json").write_text(json.dumps(wrong))
        assert packed.average_sequences(files) is None
