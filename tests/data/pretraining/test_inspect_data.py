"""Looking at records: what is counted, what is shown, and the first record that is wrong."""

import dataclasses
import json
import re
import subprocess
import sys

import numpy as np
import pytest

from official.cli import records as inspect_data
from official.data.pretraining import creation, examples, inspection
from official.data.records import encoding, record_formats, schema
from official.data.records import files as record_files
from official.data.word_pieces import vocabulary
from official.io.errors import ConfigError
from tests.conftest import ROOT, make_records, write_records
from tests.data.pretraining.test_creation import LONG, MOST, WORDS, make_text, write
from tests.data.records.test_records import make_examples
from tests.records import serialize_example


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Returns (folder of records, manifest) of a format."""
    folder = tmp_path_factory.mktemp("records")
    text, vocab = make_text(folder / "text.txt", 20), write(folder / "vocab.txt", "\n".join(WORDS) + "\n")
    return {
        kind: (
            folder / kind,
            creation.create_pretraining_data(
                creation.Job(
                    text,
                    str(folder / kind),
                    vocab,
                    examples.ExampleRules(LONG, MOST, 4, remask=kind == "remask"),
                    record_format=kind,
                    num_shards=2,
                )
            ),
        )
        for kind in ("plain", "compact", "remask")
    }


@pytest.fixture
def words():
    return vocabulary.Vocabulary(tuple(WORDS), "")


def paths(folder):
    return sorted(map(str, folder.glob("*.tfrecord")))


def shown(path, count, words):
    return "\n".join(example.text() for example in inspection.first_examples(path, count, words))


@pytest.mark.parametrize("kind", ["plain", "compact", "remask"])
def test_what_is_counted_is_what_the_manifest_says(made, words, kind):
    folder, manifest = made[kind]
    summary = inspection.summarize(paths(folder), words)
    assert (summary.record_format, summary.max_seq_length, summary.max_predictions_per_seq) == (
        kind,
        LONG,
        MOST,
    )
    assert (summary.records, summary.random_next, summary.predictions) == tuple(
        manifest[name] for name in ("instances", "random_next", "masked_tokens")
    )
    assert {str(length): count for length, count in enumerate(summary.lengths) if count} == manifest[
        "lengths"
    ]
    shares = summary.shares()
    assert (
        shares["masked"] + shares["kept"] + shares["replaced"] == pytest.approx(1)
        and 0.7 < shares["masked"] < 0.9
    )
    assert 0 < shares["padding"] < 0.5 and 0.3 < shares["random_next"] < 0.7


def test_repetitions_are_found(made, words):
    files = paths(made["plain"][0])
    once, twice = inspection.summarize(files, words).shares(), inspection.summarize(files * 2, words).shares()
    assert (
        once["repeated_records"] < 0.1
        and twice["repeated_records"] >= 0.5
        and twice["repeated_texts"] > once["repeated_texts"]
    )


def test_examples_are_shown_with_their_masks(made, words):
    text = shown(paths(made["plain"][0])[0], 3, words)
    assert (
        text.count("part-00000-of-00002.tfrecord, record ") == 3
        and text.count("[SEP]") == 6
        and ">[MASK]}" in text
    )


DAMAGES = {
    "input_ids": lambda value: value + 10**4,
    "input_mask": lambda value: 1 - value,
    "segment_ids": lambda value: 1 - value,
    "masked_lm_positions": lambda value: value[[1, 0, 2]],
    "masked_lm_weights": lambda value: value[::-1],
}
OUT_OF_RANGE = {
    "input_ids": [-1, 2**32 + 7, 2**31],
    "input_mask": [-1, 2, 2**32 + 1],
    "segment_ids": [-1, 2],
    "masked_lm_positions": [-1, 16, 2**32 + 2],
    "masked_lm_ids": [-7, 2**32 + 7],
    "masked_lm_weights": [0.5, -1.0, float("nan"), float("inf")],
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


def test_values_out_of_range_are_named_without_a_vocabulary(tmp_path):
    features, rng = schema.pretraining_schema(16, 3), np.random.default_rng(0)
    for name, value in [(name, value) for name, values in OUT_OF_RANGE.items() for value in values]:
        good, bad = make_values(rng), make_values(rng)
        bad[name] = bad[name].astype(float if name == "masked_lm_weights" else np.int64)
        bad[name][0] = value
        records = [serialize_example(values, features) for values in (good, bad)]
        with pytest.raises(ConfigError, match=f"bad, record 2: .*{name}"):
            inspection.summarize([write_records(tmp_path / "bad", records)], None)


def test_the_first_bad_record_is_named(tmp_path, monkeypatch):
    features = schema.pretraining_schema(16, 3, 50)
    rng = np.random.default_rng(0)
    words = vocabulary.Vocabulary(tuple(map(str, range(45))) + vocabulary.SPECIAL_TOKENS, "")
    good = [make_values(rng) for _ in range(7)]
    write_records(tmp_path / "good", [serialize_example(values, features) for values in good])
    assert inspection.summarize([str(tmp_path / "good")], None).records == 7
    monkeypatch.setattr(record_files, "_CHECKED_ROWS", 3)
    for name, damage in DAMAGES.items():
        bad = [*good[:4], good[4] | {name: damage(good[4][name])}, *good[5:]]
        write_records(tmp_path / "bad", [serialize_example(values, features) for values in bad])
        with pytest.raises(ConfigError, match="bad, record 5: "):
            inspection.summarize([str(tmp_path / "bad")], words)


@pytest.mark.parametrize(
    "change, fault",
    [
        (
            lambda example: dataclasses.replace(example, positions=example.positions[:, ::-1]),
            "masked_lm_positions are not ascending",
        ),
        (
            lambda example: dataclasses.replace(example, input_ids=example.input_ids + 50),
            "feature input_ids has values from",
        ),
        (
            lambda example: dataclasses.replace(example, first_lengths=example.lengths + 1),
            "of them in the first segment",
        ),
    ],
)
def test_the_first_bad_example_of_a_block_is_named(tmp_path, change, fault):
    words = vocabulary.Vocabulary(tuple(map(str, range(45))) + vocabulary.SPECIAL_TOKENS, "")
    single = [
        record
        for record in encoding.encode(make_examples(300), "compact")
        for record in record_formats.READERS["compact"].split(record)
    ]
    assert (
        inspection.summarize(
            [write_records(tmp_path / "good", record_formats.READERS["compact"].join(single))], words
        ).records
        == 300
    )
    single[130] = encoding.encode(change(make_examples(1, shortest=24)), "compact")[0]
    with pytest.raises(ConfigError, match=f"bad, record 2: example 3: .*{fault}"):
        inspection.summarize(
            [write_records(tmp_path / "bad", record_formats.READERS["compact"].join(single))], words
        )


def test_a_file_that_is_cut_off_or_no_record_is_named(tmp_path):
    path = write_records(tmp_path / "cut", make_records(5, 0, schema.pretraining_schema(16, 3)))
    data = (tmp_path / "cut").read_bytes()
    (tmp_path / "cut").write_bytes(data[:-20])
    with pytest.raises(
        ConfigError, match="cut is truncated or damaged after record 4: record 5 cannot be read"
    ):
        inspection.summarize([path], None)
    with pytest.raises(ConfigError, match="odd, record 1: it is no record of pre-training data"):
        inspection.summarize([write_records(tmp_path / "odd", [b"nonsense"])], None)
    good = make_records(2, 0, schema.pretraining_schema(16, 3))
    with pytest.raises(ConfigError, match="foreign, record 3: it is not a tf.train.Example"):
        inspection.summarize([write_records(tmp_path / "foreign", [*good, b"\xff\xff\xff"])], None)


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["/nowhere/*"], "/nowhere/* matches no file."),
        (["{folder}", "--picture=x.xyz"], "--picture=x.xyz does not end with one of .png"),
        (["{folder}/manifest.json"], "{folder}/manifest.json holds no records, only manifest.json."),
        (["{other}"], "{other}/manifest.json: not a JSON file"),
    ],
)
def test_bad_arguments_are_named_as_they_were_given(made, tmp_path, monkeypatch, arguments, message):
    folder = made["plain"][0]
    (tmp_path / "manifest.json").write_bytes(b"garbage")
    (tmp_path / "a.tfrecord").write_bytes((folder / "part-00000-of-00002.tfrecord").read_bytes())
    names = {"folder": str(folder), "other": str(tmp_path)}
    monkeypatch.setattr(
        "sys.argv", ["inspect_data.py", *(argument.format(**names) for argument in arguments)]
    )
    with pytest.raises(ConfigError, match="^" + re.escape(message.format(**names))):
        inspect_data.run_inspect()


def test_the_command_line(made, tmp_path):
    folder, manifest = made["plain"]
    command = [
        sys.executable,
        str(ROOT / "scripts" / "inspect_data.py"),
        str(folder),
        f"--picture={tmp_path}/l.png",
        f"--report={tmp_path}/r.json",
        f"--compare_to={made['compact'][0]}",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert (
        f"2 files, {manifest['instances']:,} examples" in done.stdout
        and "largest gap between the distributions of lengths: 0.0000" in done.stdout
    )
    assert "record 2" in done.stdout and (tmp_path / "l.png").stat().st_size > 5000
    report = json.loads((tmp_path / "r.json").read_text())
    assert report["records"]["shares"] == report["compare_to"]["shares"]
