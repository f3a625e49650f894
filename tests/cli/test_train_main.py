"""train.py as a user runs it: from text made here to a report, and what wrong command lines print."""

import json
import os
import random
import re
import sys

import pytest

import official
from official.cli import text
from official.cli import train as train_command
from official.reporting import mllog
from official.reporting.metrics import read_metrics
from tests import programs
from tests.fixtures import TINY

SUBJECTS = "the cat|a dog|my friend|the old king|our teacher|one bird".split("|")
VERBS = "sees|likes|follows|finds|paints".split("|")
OBJECTS = "a red house|the river|some bread|a small boat|the moon|the garden".split("|")


@pytest.fixture(scope="module")
def workspace(tmp_path_factory):
    """A folder with text, a vocabulary, a model and records of 32 tokens."""
    folder = tmp_path_factory.mktemp("work")
    generator = random.Random(1)
    for name, documents in (("train", 60), ("eval", 10)):
        lines = []
        for _ in range(documents):
            subject, verb = generator.choice(SUBJECTS), generator.choice(VERBS)
            lines += [f"{subject} {verb} {generator.choice(OBJECTS)} ." for _ in range(12)] + [""]
        (folder / f"{name}.txt").write_text("\n".join(lines))
    words = sorted({word for part in (SUBJECTS, VERBS, OBJECTS) for each in part for word in each.split()})
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", ".", *words]
    (folder / "vocab.txt").write_text("\n".join(vocabulary) + "\n")
    sizes = TINY | dict(vocab_size=len(vocabulary), num_hidden_layers=1, num_attention_heads=2)
    sizes |= dict(max_position_embeddings=64, initializer_range=0.1)
    (folder / "bert.json").write_text(json.dumps(sizes))
    words = f"x --vocab_file={folder}/vocab.txt --max_seq_length=32 --max_predictions_per_seq=5"
    words += " --dupe_factor=5 --num_shards=2"
    for name in ("train", "eval"):
        paths = f"--input_files={folder}/{name}.txt", f"--output_dir={folder}/{name}"
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sys, "argv", [*words.split(), *paths])
            text.run_create()
    return folder


def flags_of(folder, **settings) -> list[str]:
    defaults = dict(bert_config_file=folder / "bert.json", vocab_file=folder / "vocab.txt")
    defaults |= dict(input_files=f"{folder}/train/*.tfrecord", eval_files=f"{folder}/eval/*.tfrecord")
    defaults |= dict(model_dir=folder / "run", max_seq_length=32, max_predictions_per_seq=5)
    defaults |= dict(train_batch_size=16, eval_batch_size=16, num_steps_per_epoch=500, num_train_epochs=1)
    defaults |= dict(steps_per_loop=50, warmup_steps=20, optimizer_type="lamb", learning_rate=0.02)
    defaults |= dict(num_gpus=0, do_eval="true")
    return [f"--{name}={value}" for name, value in {**defaults, **settings}.items()]


def test_from_text_to_a_report(workspace, capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["train.py"])
    flags = flags_of(workspace, steps_between_eval=100, stop_threshold=0.35)
    done = programs.run("train.py", *flags, timeout=300, CUDA_VISIBLE_DEVICES="")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("success: mlm_accuracy 0.") and done.stdout.count("\n") == 1
    run = workspace / "run"
    result = json.loads((run / "result.json").read_text())
    assert result["status"] == "success" and result["eval_accuracy"] >= 0.35 > 2 * result["majority_accuracy"]
    files = "config.json command.txt report.html metrics.jsonl mllog.txt tensorboard checkpoint"
    assert set(files.split()) <= set(os.listdir(run))
    *_, stop = mllog.read_events(f"{run}/mllog.txt")
    assert (stop["key"], stop["metadata"]["status"]) == ("run_stop", "success")
    losses = [line["loss"] for line in read_metrics(str(run)) if line["split"] == "train"]
    assert losses[-1] < losses[0] - 0.5
    for noise in ("cuda", "TensorRT", "oneDNN", "TFA", "Traceback", "deprecated"):
        assert noise.lower() not in done.stderr.lower(), done.stderr
    told = re.compile(r"\d\d:\d\d:\d\d |$")  # each line is the run's: none is of a library
    assert all(map(told.match, done.stderr.splitlines())), done.stderr
    assert train_command.main(flags) == 0
    again = capsys.readouterr().out
    assert f"step {result['step']}" in again and "is over" in again


def test_records_of_another_length_are_refused_in_one_line(workspace, tmp_path, capfd):
    assert train_command.main(flags_of(workspace, model_dir=tmp_path / "run", max_seq_length=16)) == 2
    errors = capfd.readouterr().err  # without a line of a library
    assert len(errors.splitlines()) == 1, errors
    assert "record 1: feature input_ids has 32 values, expected 16" in errors
    assert not (tmp_path / "run").exists()


def test_matrix_products_suit_the_cpu(monkeypatch, tmp_path):
    for dtype, cpu_flags, asked_for, expected in (
        ("bf16", "sse2 avx512f", False, "0"),
        ("bf16", "avx512f avx512_bf16", False, "1"),
        ("bf16", "amx_bf16 avx512f", False, "1"),
        ("fp32", "sse2 avx512f", False, "1"),
        ("bf16", "sse2", True, "1"),
    ):
        monkeypatch.setenv("TF_ENABLE_ONEDNN_OPTS", "1")
        monkeypatch.setattr(official, "_ONEDNN_IS_ASKED_FOR", asked_for)
        (tmp_path / "cpu").write_text(f"processor\t: 0\nflags\t\t: {cpu_flags}\nbugs\t\t: none\n")
        official.choose_kernels(dtype, str(tmp_path / "cpu"))
        assert os.environ["TF_ENABLE_ONEDNN_OPTS"] == expected, (dtype, cpu_flags)


def test_graphcores_style_says_which_configuration_is_used(make_config, capsys):
    for words, style, expected in (
        ("--seed=3 --config a.json", "graphcore", "Using config: a.json\n"),
        ("--flagfile=configs/x.flags", "graphcore", "Using config: configs/x.flags\n"),
        ("--seed=3", "graphcore", ""),
        ("--config=quickstart", "plain", ""),
    ):
        train_command._say_config(words.split(), make_config(log_style=style))
        assert capsys.readouterr().err == expected
