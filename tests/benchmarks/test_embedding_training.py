"""Vectors trained beside sentence-transformers: both sides have the same rows and names of scores."""

import argparse
import json
import runpy

import pytest

import embedding_training
import harness
from official.io.errors import ConfigError


@pytest.fixture(name="runs")
def fixture_runs(tmp_path):
    """Returns all runs on few rows in the layouts of the public data."""

    def write(name, lines):
        path = tmp_path / "data" / "glue" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")

    numbers = range(30)
    for split in ("train", "dev"):
        pairs = [f"{n}\ta {n}\tb {n}\t{n / 10}" for n in numbers]
        write(f"STS-B/{split}.tsv", ["index\tsentence1\tsentence2\tscore", *pairs])
        pairs = [f"{n % 2}\t{n}\ta {n}\tb {n}" for n in numbers]
        write(f"MRPC/{split}.tsv", ["Quality\t#1 ID\t#1 String\t#2 String", *pairs])
    kinds = ("entailment", "not_entailment")
    pairs = [f"{n}\tquestion {n // 4}\tanswer {n}\t{kinds[n % 2]}" for n in range(200)]
    write("QNLI/dev.tsv", ["index\tquestion\tsentence\tlabel", *pairs])
    flags = argparse.Namespace(
        data_dir=str(tmp_path / "data"),
        init_checkpoint="encoder",
        work_dir=str(tmp_path / "runs"),
        kinds=list(embedding_training.KINDS),
        models=["minilm", "tiny"],
        sides=["ours", "sentence_transformers"],
        seeds=2,
        seed=1,
        max_rows=1000,
    )
    return embedding_training.runs_of(flags)


def test_both_sides_have_the_same_rows(runs):
    assert len(runs) == 3 * 2 * 2 * 2
    sides = {}
    for run in runs:
        ours = dict(flag.removeprefix("--").split("=", 1) for flag in run.train_flags if "=" in flag)
        for split, path in run.theirs.items():
            own, theirs = (
                [json.loads(line) for line in open(each, encoding="utf-8")]
                for each in (ours[f"{split}_file"], path)
            )
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
    found = [
        {
            "scores": {"ndcg_at_10": score, **dict.fromkeys(embedding_training.KINDS["mrpc"].others, 0.5)},
            "train_rows": 15,
            "steps": 2,
            "steps_per_sec": 3.0 if run.side == "ours" else 2.0,
        }
        for run, score in zip(mine, (0.5, 0.6, 0.7, 0.7))
    ]
    (row,) = embedding_training.rows_of(mine, found)
    assert row["inside_spread"] and row["speedup"] == 1.5 and "1.50" in embedding_training.describe([row])
    found[0]["train_rows"] = 14
    with pytest.raises(ConfigError, match="has trained on other rows"):
        embedding_training.rows_of(mine, found)
