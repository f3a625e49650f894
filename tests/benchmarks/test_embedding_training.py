"""Vectors trained beside sentence-transformers: both sides have the same rows and names of scores."""

import argparse
import runpy

import pytest

import embedding_training
import harness
from official.io.errors import ConfigError
from tests.benchmarks.conftest import read_rows, write_lines, write_pairs


@pytest.fixture(name="runs")
def fixture_runs(tmp_path):
    """Returns all runs on few rows in the layouts of the public data."""
    folder, kinds = tmp_path / "data", ("entailment", "not_entailment")
    write_pairs(folder)
    pairs = [f"{n}\tquestion {n // 4}\tanswer {n}\t{kinds[n % 2]}" for n in range(200)]
    write_lines(folder / "glue/QNLI/dev.tsv", ["index\tquestion\tsentence\tlabel", *pairs])
    flags = dict(data_dir=str(folder), work_dir=str(tmp_path / "runs"), init_checkpoint="encoder")
    flags |= dict(kinds=list(embedding_training.KINDS), models=["minilm", "tiny"])
    flags |= dict(sides=["ours", "sentence_transformers"], seeds=2, seed=1, max_rows=1000)
    return embedding_training.runs_of(argparse.Namespace(**flags))


def test_both_sides_have_the_same_rows(runs):
    assert len(runs) == 3 * 2 * 2 * 2
    sides = {}
    for run in runs:
        ours = dict(flag.removeprefix("--").split("=", 1) for flag in run.train_flags if "=" in flag)
        for split, path in run.theirs.items():
            own, theirs = read_rows(ours[f"{split}_file"]), read_rows(path)
            assert [list(row.values())[:2] for row in own] == [row["texts"] for row in theirs]
            assert [row.get("score") for row in own] == [row.get("score") for row in theirs]
            assert ("label_column" in ours) == ("score" in theirs[0]) == (run.kind == "sts")
            sides[run.kind, split] = {row["texts"][0] for row in theirs}
    assert len(sides["mrpc", "train"]) == 15 and sides["qnli", "eval"]
    assert not sides["qnli", "train"] & sides["qnli", "eval"]


def test_scores_have_the_same_names_and_agree_inside_the_spread(runs, monkeypatch):
    monkeypatch.syspath_prepend(harness.PROGRAMS)
    program = runpy.run_path(f"{harness.PROGRAMS}/embedding_trainer.py")
    names = ("cosine_ndcg@10", "cosine_mrr@10", "cosine_recall@1", "cosine_recall@10")
    for kind, keys in (("mrpc", names), ("sts", ("spearman_cosine", "pearson_cosine"))):
        own = embedding_training.KINDS[kind]
        assert set(program["named"](dict.fromkeys(keys, 0.5))) == {own.metric, *own.others}
    mine = [run for run in runs if (run.kind, run.model) == ("mrpc", "tiny")]
    others, found = dict.fromkeys(embedding_training.KINDS["mrpc"].others, 0.5), []
    for run, score in zip(mine, (0.5, 0.6, 0.7, 0.7)):
        speed, scores = 3.0 if run.side == "ours" else 2.0, {"ndcg_at_10": score, **others}
        found.append(dict(train_rows=15, steps=2, steps_per_sec=speed, scores=scores))
    (row,) = embedding_training.rows_of(mine, found)
    assert row["inside_spread"] and row["speedup"] == 1.5 and "1.50" in embedding_training.describe([row])
    found[0]["train_rows"] = 14
    with pytest.raises(ConfigError, match="has trained on other rows"):
        embedding_training.rows_of(mine, found)
