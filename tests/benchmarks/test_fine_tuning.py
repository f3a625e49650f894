"""Fine-tuning beside the Trainer: its recipe, runs that are kept, the verdict, the flags; never a time."""

import importlib
import json
import os
import pathlib
import re
import shutil
import sys

import pytest

import fine_tuning
import harness
import start
from official.io.errors import ConfigError
from tests.fine_tuning_files import fixture_vocab_file, squad_json  # noqa: F401
from tests.fixtures import TINY
from tests.io.test_vocabulary_files import write_tokenizer

# Of a Trainer that is a line of its own: it counts how often it was asked, in its folder.
FAKE = """
import json, os, sys
asked = json.loads(sys.stdin.readline())
with open(asked["model"] + "/asked.jsonl", "a") as file:
    file.write(json.dumps(asked) + "\\n")
made = {"training_secs": 2.0, "loss": 1.5, "data_sequences": 4, "data_tokens": 40, "versions": {}}
print(json.dumps({**made, "checkpoint": asked["model"]}), flush=True)
"""
LAYER = {**TINY, "num_hidden_layers": 1, "max_position_embeddings": 48}


@pytest.fixture(name="recipe")
def fixture_recipe(tmp_path, vocab_file):
    """Returns a recipe on a small file of questions, from a made-up checkpoint with what Hugging Face reads
    beside it."""
    model = tmp_path / "model"
    (tmp_path / "train.json").write_text(json.dumps(squad_json(24, 1)))
    (tmp_path / "bert.json").write_text(json.dumps(LAYER))
    model.mkdir()
    start.write_made_up(str(tmp_path / "bert.json"), str(model))
    shutil.copy(vocab_file, model / "vocab.txt")
    write_tokenizer(model, (model / "vocab.txt").read_text().splitlines())
    usual = "--task=squad --max_seq_length=48 --max_query_length=8 --train_batch_size=8 --eval_batch_size=8"
    usual += " --optimizer_type=adamw --decay_from=warmup_end --learning_rate=5e-3 --num_gpus=0"
    files = [f"--bert_config_file={tmp_path}/bert.json", f"--init_checkpoint={model}/ckpt-0"]
    files += [f"--{name}={tmp_path}/train.json" for name in ("train_file", "predict_file")]
    return [*usual.split(), *files, f"--vocab_file={vocab_file}"]


@pytest.fixture(name="fake")
def fixture_fake(tmp_path, monkeypatch):
    """Puts a program in the Trainer's place; returns a function that says what it was asked."""
    (tmp_path / "trainer.py").write_text(FAKE)
    monkeypatch.setattr(harness, "PROGRAMS", str(tmp_path))
    monkeypatch.setattr(harness, "python_of", lambda *_: sys.executable)
    monkeypatch.setattr(harness, "prepare", lambda *_: None)

    def asked() -> list[dict]:
        path = tmp_path / "model" / "asked.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    return asked


def measure(monkeypatch, *arguments):
    monkeypatch.setattr("sys.argv", ["benchmarks/fine_tuning.py", *map(str, arguments)])
    fine_tuning.main()


def test_the_trainer_gets_the_recipe(tmp_path, recipe, fake, monkeypatch):
    arguments = [f"--work_dir={tmp_path}/work", "--peers=huggingface_grouped", "--seeds=2", "--no-scores"]
    measure(monkeypatch, *arguments, "--dtypes=bf16", "--train_steps=30", "--", *recipe)
    first, second = fake()
    wanted = dict(task="squad", dtype="bf16", padding="grouped", train_steps=30, warmup_steps=3.0)
    wanted |= dict(learning_rate=5e-3, train_batch_size=8, seed=12345)
    wanted |= {"train_file": f"{tmp_path}/train.json", "model": f"{tmp_path}/model"}
    assert wanted.items() <= first.items() and second["seed"] == 12346
    for steps, every in ((100, 10), (115, 5), (341, 31), (7, 1), (13, 1)):  # the loss is logged evenly
        assert f"--steps_per_loop={every}" in fine_tuning.common_flags(steps), steps


def test_a_run_that_is_done_is_not_done_again(tmp_path, recipe, fake, monkeypatch):
    arguments = [f"--work_dir={tmp_path}/work", "--peers=huggingface_padded", "--dtypes=fp32", "--no-scores"]
    measure(monkeypatch, *arguments, "--seeds=1", "--", *recipe)
    folder = tmp_path / "work" / "fp32-huggingface_padded-seed-12345"
    kept = (folder / "run.json").read_text()
    measure(monkeypatch, *arguments, "--seeds=2", f"--output={tmp_path}/out", "--", *recipe)
    assert [each["seed"] for each in fake()] == [12345, 12346] and (folder / "run.json").read_text() == kept
    (row,) = json.loads((tmp_path / "out.json").read_text())["cases"]
    assert row["mean_length"] == 10.0 and row["losses"] == [1.5, 1.5] and row["score_mean"] is None
    assert (tmp_path / "out.png").stat().st_size > 1000
    # What an interrupted run has left is no run.
    (folder / "run.json").unlink()
    (folder / "model").mkdir()
    measure(monkeypatch, *arguments, "--seeds=1", "--", *recipe)
    assert len(fake()) == 3 and not (folder / "model").exists()
    with pytest.raises(ConfigError, match="is of another recipe"):
        measure(monkeypatch, *arguments, "--train_steps=99", "--", *recipe)
    (folder / "run.json").write_text(json.dumps({**json.loads(kept), "whole_secs": "long"}))
    with pytest.raises(ConfigError, match='"whole_secs" is a text, expected a number'):
        measure(monkeypatch, *arguments, "--", *recipe)
    assert len(fake()) == 3


def test_rows_of_glue_for_the_trainer(tmp_path, recipe):
    lines = ["index\tsentence1\tsentence2\tlabel", '0\tA "b"\tc\tentailment', "1\td\te\tnot_entailment"]
    (tmp_path / "RTE").mkdir()
    (tmp_path / "RTE" / "train.tsv").write_text("\n".join(lines) + "\n")
    of_squad = ("--train_file", "--predict_file", "--max_query")
    shared = [flag for flag in recipe if not flag.startswith(of_squad)]
    glue = [*shared, "--task=glue", "--glue_task=rte", f"--data_dir={tmp_path}"]
    config = fine_tuning.read_recipe(glue, train_steps=5)
    path, outputs = fine_tuning.training_file(config, str(tmp_path))
    first, second = (json.loads(line) for line in pathlib.Path(path).read_text().splitlines())
    assert outputs == 2 and first == {"sentence1": 'A "b"', "sentence2": "c", "label": 0}
    assert second["label"] == 1


def test_tokens_of_an_answer(monkeypatch):
    """Against a search over all pairs of tokens."""
    monkeypatch.syspath_prepend(harness.PROGRAMS)
    trainer = importlib.import_module("trainer")
    context = "the quick brown fox jumps over the lazy dog"
    words = [word.span() for word in re.finditer(r"\w+", context)]
    offsets = [(0, 0), (0, 5), (0, 0), *words, (0, 0)]  # [CLS] question [SEP] context [SEP]
    parts = [None, 0, None, *([1] * len(words)), None]
    for text in ("the", "quick brown", "dog", "lazy dog", "ick bro", context):
        begin = context.index(text)
        answers = [{"text": text, "answer_start": begin}]
        end, own = begin + len(text), [number for number, part in enumerate(parts) if part == 1]
        inside = [number for number in own if offsets[number][1] > begin and offsets[number][0] < end]
        assert trainer.answer_tokens(answers, offsets, parts) == (inside[0], inside[-1]), text
    last = [{"text": "dog", "answer_start": context.index("dog")}]
    assert trainer.answer_tokens(last, offsets[:-2], parts[:-2]) == (0, 0)  # it is in another window
    assert trainer.answer_tokens([], offsets, parts) == (0, 0)


def rows_for(recipe, scores_of_ours, scores_of_theirs):
    config = fine_tuning.read_recipe(recipe, train_steps=10)
    runs, values = [], []
    ours, theirs = ("ours_unpad", 10.0, scores_of_ours), ("huggingface_grouped", 15.0, scores_of_theirs)
    for system, secs, scores in (ours, theirs):
        for seed, score in enumerate(scores):
            runs.append(fine_tuning.Run(system, "fp32", seed, (), config, True, "", ""))
            whole = secs + seed
            value = {"whole_secs": whole, "cpu_secs": whole, "score": score, "training_secs": whole / 2}
            values.append({**value, "loss": 1.0, "metric": "f1", "data_sequences": 2, "data_tokens": 6})
    return fine_tuning.rows_of(runs, values)


def test_verdict(recipe):
    rows = rows_for(recipe, [0.5, 0.6, 0.7], [0.60, 0.61, 0.62])
    assert rows[0]["sequences_per_sec"] == pytest.approx(80 / 11)
    assert rows[0]["mean_length"] == 3 and rows[0]["score_spread"] == pytest.approx(0.2)
    (comparison,) = fine_tuning.compare(rows)
    assert comparison["ratio"] == comparison["training_ratio"] == pytest.approx(16 / 11)
    assert comparison["scores_agree"] is True
    assert "1.45 x Hugging Face's Trainer" in fine_tuning.describe(rows, [comparison])
    apart = rows_for(recipe, [0.50, 0.51, 0.52], [0.60, 0.61, 0.62])
    assert "SCORES DIFFER" in fine_tuning.describe(apart, fine_tuning.compare(apart))
    assert fine_tuning.compare(rows_for(recipe, [0.5], [0.6]))[0]["scores_agree"] is None


@pytest.mark.slow
def test_the_whole_way(tmp_path, recipe, fake, monkeypatch):
    arguments = [f"--work_dir={tmp_path}/work", "--peers=ours_buckets,ours_unpad,huggingface_padded"]
    arguments += ["--dtypes=fp32", "--seeds=1", "--train_steps=20", f"--output={tmp_path}/out"]
    measure(monkeypatch, *arguments, "--", *recipe)
    record = json.loads((tmp_path / "out.json").read_text())
    buckets, unpad, peer = record["cases"]
    assert buckets["data_sequences"] == unpad["data_sequences"] == 24 and unpad["losses"][0] > 0
    assert unpad["metric"] == peer["metric"] == "f1"
    assert unpad["score_mean"] > peer["score_mean"]  # it has learned
    for row in record["cases"]:
        folder = tmp_path / "work" / f"fp32-{row['peer']}-seed-12345"
        assert sorted(os.listdir(folder)) == ["log.txt", "run.json"]


@pytest.mark.slow
def test_a_run_that_fails(tmp_path, recipe, monkeypatch):
    arguments = [f"--work_dir={tmp_path}/work", "--peers=ours_padded", "--dtypes=fp32", "--"]
    with pytest.raises(ConfigError, match="ours_padded: bert train ended with exit code 2: .*nothing.json"):
        measure(monkeypatch, *arguments, *recipe, f"--train_file={tmp_path}/nothing.json")
    assert not (tmp_path / "work" / "fp32-ours_padded-seed-12345" / "run.json").exists()
