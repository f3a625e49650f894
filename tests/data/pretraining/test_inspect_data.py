"""Looking at records: what is counted, what is shown, and the first record that is wrong."""

import dataclasses
import json

import numpy as np
import pytest
import tensorflow as tf

from official.cli import records as inspect_data
from official.data.pretraining import inspection
from official.data.records import encoding, record_formats, schema
from official.data.records import files as record_files
from official.data.word_pieces import vocabulary
from official.io.errors import ConfigError
from tests.data.pretraining.test_creation import LONG, MOST, WORDS, create, make_text, write
from tests.data.records.test_records import make_examples
from tests.fixtures import make_records, write_records
from tests.records import serialize_example
from tests.refusals import assert_refused

VOCABULARY = vocabulary.Vocabulary(tuple(WORDS), "")


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Returns (folder of records, manifest) of a format."""
    folder, found = tmp_path_factory.mktemp("records"), {}
    text, vocab = make_text(folder / "text.txt", 20), write(folder / "vocab.txt", "\n".join(WORDS) + "\n")
    for kind in ("plain", "compact", "remask"):
        found[kind] = folder / kind, create(text, vocab, folder / kind, record_format=kind, num_shards=2)
    return found


def paths(folder):
    return sorted(map(str, folder.glob("*.tfrecord")))


def test_what_is_counted_is_what_the_manifest_says(made):
    for kind, (folder, manifest) in made.items():
        summary = inspection.summarize(paths(folder), VOCABULARY)
        sizes = (summary.record_format, summary.max_seq_length, summary.max_predictions_per_seq)
        assert sizes == (kind, LONG, MOST)
        counts = (summary.records, summary.random_next, summary.predictions)
        assert counts == tuple(manifest[name] for name in ("instances", "random_next", "masked_tokens"))
        lengths = {str(length): count for length, count in enumerate(summary.lengths) if count}
        assert lengths == manifest["lengths"]
        shares = summary.shares()
        assert shares["masked"] + shares["kept"] + shares["replaced"] == pytest.approx(1)
        assert 0.7 < shares["masked"] < 0.9 and 0.3 < shares["random_next"] < 0.7
        assert 0 < shares["padding"] < 0.5


def test_repetitions_are_found(made):
    files = paths(made["plain"][0])
    once, twice = (inspection.summarize(each, VOCABULARY).shares() for each in (files, files * 2))
    assert once["repeated_records"] < 0.1 and twice["repeated_records"] >= 0.5
    assert twice["repeated_texts"] > once["repeated_texts"]


# What becomes of a feature; of several numbers, its first value.
DAMAGES = {
    "input_ids": [-1, 2**32 + 7, 2**31, lambda value: value + 10**4],
    "input_mask": [-1, 2, 2**32 + 1, lambda value: 1 - value],
    "segment_ids": [-1, 2, lambda value: 1 - value],
    "masked_lm_positions": [-1, 16, 2**32 + 2, lambda value: value[[1, 0, 2]]],
    "masked_lm_ids": [-7, 2**32 + 7],
    "masked_lm_weights": [0.5, -1.0, float("nan"), float("inf"), lambda value: value[::-1]],
    "next_sentence_labels": [-1, 2, 2**32],
}


def make_values(rng) -> dict:
    length = int(rng.integers(8, 16))
    return {
        "input_ids": np.where(np.arange(16) < length, rng.integers(5, 50, 16), 0),
        "input_mask": (np.arange(16) < length).astype(int),
        "segment_ids": ((np.arange(16) >= 4) & (np.arange(16) < length)).astype(int),
        "masked_lm_positions": np.array([2, 5, 0]),
        "masked_lm_ids": np.array([7, 8, 0]),
        "masked_lm_weights": np.array([1.0, 1.0, 0.0]),
        "next_sentence_labels": np.array([1]),
    }


def test_the_first_bad_record_is_named(tmp_path, monkeypatch):
    """Of values out of range also without a vocabulary, and by a step, where nothing else looks at them."""
    features, rng = schema.pretraining_schema(16, 3), np.random.default_rng(0)
    good = [make_values(rng) for _ in range(7)]
    monkeypatch.setattr(record_files, "_CHECKED_ROWS", 3)
    for name, damage in [(name, damage) for name, damages in DAMAGES.items() for damage in damages]:
        values = good[4][name].astype(float if name == "masked_lm_weights" else np.int64)
        if callable(damage):
            values = damage(values)
        else:
            values[0] = damage
        changed = [*good[:4], good[4] | {name: values}, *good[5:]]
        records = [serialize_example(values, features) for values in changed]
        told = "bad, record 5: " + ("" if callable(damage) else f".*{name}")
        with pytest.raises(ConfigError, match=told):
            path = write_records(tmp_path / "bad", records)
            inspection.summarize([path], VOCABULARY if callable(damage) else None)
        if not callable(damage) and damage != 0.5:
            with pytest.raises(tf.errors.InvalidArgumentError):
                record_formats.parse_records(tf.constant(records), features, "plain")
    path = write_records(tmp_path / "good", [serialize_example(values, features) for values in good])
    assert inspection.summarize([path], None).records == 7


def test_the_first_bad_example_of_a_block_is_named(tmp_path):
    words = vocabulary.Vocabulary(tuple(map(str, range(45))) + vocabulary.SPECIAL_TOKENS, "")
    reader = record_formats.READERS["compact"]
    blocks = encoding.encode(make_examples(300), "compact")
    single = [record for block in blocks for record in reader.split(block)]
    assert inspection.summarize([write_records(tmp_path / "good", reader.join(single))], words).records == 300
    good = make_examples(1, shortest=24)
    for changes, fault in (
        ({"positions": good.positions[:, ::-1]}, "masked_lm_positions are not ascending"),
        ({"input_ids": good.input_ids + 50}, "feature input_ids has values from"),
        ({"first_lengths": good.lengths + 1}, "of them in the first segment"),
    ):
        single[130] = encoding.encode(dataclasses.replace(good, **changes), "compact")[0]
        with pytest.raises(ConfigError, match=f"bad, record 2: example 3: .*{fault}"):
            inspection.summarize([write_records(tmp_path / "bad", reader.join(single))], words)


def test_what_is_no_record_is_named(tmp_path):
    good = make_records(2, 0, schema.pretraining_schema(16, 3))
    cases = (
        ([b"nonsense"], "bad, record 1: it is not a record of pre-training data"),
        ([*good, b"\xff\xff\xff"], "bad, record 3: it is not a tf.train.Example"),
    )
    assert_refused(lambda some: inspection.summarize([write_records(tmp_path / "bad", some)], None), cases)


def test_bad_arguments_are_named_as_they_were_given(made, tmp_path, run_program):
    folder = made["plain"][0]
    (tmp_path / "manifest.json").write_bytes(b"garbage")
    (tmp_path / "a.tfrecord").write_bytes((folder / "part-00000-of-00002.tfrecord").read_bytes())
    cases = (
        (f"{folder}/manifest.json", f"^{folder}/manifest.json holds no records, only manifest.json[.]"),
        (tmp_path, f"^{tmp_path}/manifest.json: not a JSON file"),
    )
    assert_refused(lambda path: run_program(inspect_data.run_inspect, path), cases)


def test_the_command_line(made, tmp_path, run_program):
    folder, manifest = made["plain"]
    flags = [f"--picture={tmp_path}/l.png", f"--report={tmp_path}/r.json"]
    flags.append(f"--compare_to={made['compact'][0]}")
    told = run_program(inspect_data.run_inspect, folder, "--examples=3", *flags).out
    assert f"2 files, {manifest['instances']:,} examples" in told
    assert "largest gap between the distributions of lengths: 0.0000" in told
    assert told.count("part-00000-of-00002.tfrecord, record ") == 3
    assert told.count("[SEP]") == 6 and ">[MASK]}" in told
    assert (tmp_path / "l.png").stat().st_size > 5000
    report = json.loads((tmp_path / "r.json").read_text())
    assert report["records"]["shares"] == report["compare_to"]["shares"]
