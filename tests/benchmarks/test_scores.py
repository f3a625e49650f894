"""Scores of back ends and precisions: those that the run itself found, whatever the batches."""

import json
import sys

import numpy as np
import pytest

import scores
from official.inference import source
from official.io.errors import ConfigError
from tests.run_folders import run


def flags_of(monkeypatch, folder, **given):
    usual = {"checkpoints": folder / "run", "backends": "tensorflow", "dtypes": "fp32", "rounds": 1}
    arguments = [f"--{name}={value}" for name, value in {**usual, **given}.items()]
    monkeypatch.setattr(sys, "argv", ["benchmarks/scores.py", *arguments])
    return scores.parse_flags()


def test_a_batch_is_laid_end_to_end_without_filling():
    batch = {
        "input_ids": np.array([[5, 6, 0], [7, 0, 0], [9, 9, 9]], np.int32),
        "segment_ids": np.array([[0, 1, 0], [0, 0, 0], [0, 0, 0]], np.int32),
        "input_mask": np.array([[1, 1, 0], [1, 0, 0], [1, 1, 1]], np.int32),
        "rows": np.array([3, 1, -1]),
    }
    rows = scores.rows_of(batch)
    assert rows.ids_T.tolist() == [5, 6, 7] and rows.segments_T.tolist() == [0, 1, 0]
    assert rows.lengths_N.tolist() == [2, 1]


@pytest.mark.slow
def test_scores_of_answers_are_those_of_the_run(squad, tmp_path, monkeypatch):
    result = run(squad(num_train_epochs=2, do_predict=True))
    given = {"predict_file": tmp_path / "dev.json", "eval_batch_size": 5, "timed_batches": 1}
    flags = flags_of(monkeypatch, tmp_path, **given)
    (row,) = scores.measure_checkpoint(flags, scores.find_source(flags.checkpoints[0]))
    assert row["scores"]["f1"] == result.scores["f1"] and row["metric"] == "f1"
    assert row["lost"] == row["largest_difference"] == 0 and row["batch"] == 5
    assert row["sequences_per_sec"] > 0 and row["name"] == "squad, tensorflow fp32"
    flags.dtypes = ["int8"]
    with pytest.raises(ConfigError, match="int8 needs --train_file"):
        scores.calibration_rows(flags, source.find(str(tmp_path / "run")))
    flags.train_file = str(tmp_path / "train.json")
    batches = scores.calibration_rows(flags, source.find(str(tmp_path / "run")))
    assert len(batches) == 8 and all(len(rows.lengths_N) <= 5 for rows in batches)


@pytest.mark.slow
def test_scores_of_classes_are_those_of_the_run(glue, tmp_path, monkeypatch):
    result = run(glue("rte", dict(train=20, dev=20)))
    flags = flags_of(monkeypatch, tmp_path)
    (row,) = scores.measure_checkpoint(flags, scores.find_source(flags.checkpoints[0]))
    assert row["task"] == "rte" and row["scores"]["accuracy"] == result.scores["accuracy"]
    assert json.loads(json.dumps(row))["sequences"] == 20
