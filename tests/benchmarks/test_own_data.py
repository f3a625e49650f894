"""People's own data beside transformers: both sides have the same rows, and the same rules of scores."""

import json
import runpy

import numpy as np
import pytest

import harness
import own_data
from official.data.tables import labels as labels_lib
from official.data.tables import tags, texts
from official.data.tables.files import open_table
from official.io.errors import ConfigError
from tests.benchmarks.conftest import read_rows, write_lines, write_pairs


@pytest.fixture(name="data_dir")
def fixture_data_dir(tmp_path):
    """Returns a folder of few rows in the layouts of the public data."""
    folder, numbers = tmp_path / "data", range(30)
    write_pairs(folder)
    for split in ("train", "dev"):
        rows = [f'so "good" {n}\t{n % 2}' for n in numbers]
        write_lines(folder / f"glue/SST-2/{split}.tsv", ["sentence\tlabel", *rows])
        words = [line for n in numbers for line in (f"w{n}\tO", "x\tB-X", "\t")]
        write_lines(folder / f"ner/wnut17/{split}.conll", words)
    write_lines(folder / "emotions/xed_en.tsv", [f"text {n}\t{1 + n % 8}, 3" for n in range(200)])
    for split in ("dev", "trial"):
        answers = [[{"text": "b", "answer_start": 2}], [{"text": "b", "answer_start": 0}]]
        questions = [{"id": str(n), "question": "?", "answers": given} for n, given in enumerate(answers)]
        content = {"data": [{"paragraphs": [{"context": "a b", "qas": questions}]}]}
        write_lines(folder / f"squad_zh/cmrc2018_{split}.json", [json.dumps(content)])
    return str(folder)


def test_both_sides_have_the_same_rows(data_dir, tmp_path):
    made = {}
    for name, kind in own_data.KINDS.items():
        folder = tmp_path / name
        folder.mkdir()
        flags, theirs = kind.make(data_dir, str(folder), 20, 20)
        ours = dict(flag.removeprefix("--").split("=", 1) for flag in flags)
        rows = {split: read_rows(path) for split, path in theirs.items()}
        made[name] = (ours, rows)
    for name, columns in (("one", ["text"]), ("number", ["first", "second"]), ("pairs", ["first", "second"])):
        ours, theirs = made[name]
        for split in ("train", "eval"):
            table = open_table(ours[f"{split}_file"], "train_file", columns)
            (batch,) = table.batches()
            *own, labels = batch.columns.values()
            assert [list(row) for row in zip(*own)] == [row["texts"] for row in theirs[split]]
            assert [float(one) for one in labels] == [float(row["label"]) for row in theirs[split]]
    _, theirs = made["several"]
    assert len(theirs["train"]) + len(theirs["eval"]) == 20
    assert all(texts.share_of(row["texts"]) < 0.1 for row in theirs["eval"])
    ours, theirs = made["tags"]
    read = tags.read_sentences(ours["eval_file"], "eval_file", True)
    assert [(one.words, one.tags) for one in read] == [(row["words"], row["tags"]) for row in theirs["eval"]]
    (content,) = made["answers"][1]["train"]  # the answer that stands elsewhere is left out
    assert [one["qas"][0]["id"] for one in content["data"][0]["paragraphs"]] == ["0"]
    with pytest.raises(ConfigError, match="there is no glue"):
        own_data.KINDS["one"].make(str(tmp_path), str(tmp_path), 1, 1)


def test_thresholds_of_both_sides_call_the_same_rows(monkeypatch):
    monkeypatch.syspath_prepend(harness.PROGRAMS)
    program = runpy.run_path(f"{harness.PROGRAMS}/own_data_trainer.py")
    generator = np.random.default_rng(0)
    truths_NC = generator.integers(0, 2, (80, 4)).astype(np.float64)
    chances_NC = np.clip(truths_NC * 0.3 + generator.random((80, 4)) * 0.7, 0, 1)
    thresholds = labels_lib.choose_thresholds(chances_NC, truths_NC)
    for chances_N, truths_N, threshold in zip(chances_NC.T, truths_NC.T, thresholds):
        assert (program["best_calls"](chances_N, truths_N) == (chances_N >= threshold)).all()


def test_sides_agree_inside_the_range_of_the_seeds():
    def rows_for(theirs):
        runs, found = [], []
        for side, values in (("ours", (0.8, 0.84)), ("huggingface", theirs)):
            for seed, value in enumerate(values):
                runs.append(own_data.Run("tags", side, seed, ("--eval_file=/a/b.conll",), {}, ""))
                scores = {"f1": value, "strict_f1": value, "accuracy": value}
                found.append({"scores": scores, "train_rows": 5, "eval_rows": 2})
        return own_data.rows_of(runs, found), runs, found

    (row,), runs, found = rows_for((0.83, 0.85))
    assert row["inside_spread"] and row["difference"] == pytest.approx(-0.02)
    assert row["train_flags"] == ["--eval_file=b.conll"] and row["ours"]["spread"] == pytest.approx(0.04)
    (row,), *_ = rows_for((0.87, 0.88))
    assert not row["inside_spread"] and "NO" in own_data.describe([row])
    found[-1]["eval_rows"] = 3
    with pytest.raises(ConfigError, match="has read another number of rows"):
        own_data.rows_of(runs, found)
