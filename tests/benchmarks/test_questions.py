"""The questions: each has a command line, and its own arithmetic; a journey of all with tiny settings."""

import argparse
import dataclasses
import importlib
import json
import math
import os
import re
import runpy

import numpy as np
import pytest

import data_scale
import inference
import numerics
import optimizer
import peers
import record
from official.checkpoint import registry
from official.cli.benchmark import answering
from official.cli.benchmark import inference as inference_lib
from official.config import BertConfig
from official.data.word_pieces import vocabulary
from official.inference import source
from official.io.errors import ConfigError
from official.reporting.measurement import Timing
from official.reporting.result import write_result
from tests import programs
from tests.fixtures import ROOT, TINY
from tests.reporting.test_reporting import fake_metrics, make_result, save_metrics

NAMES = sorted(
    path.name
    for path in (ROOT / "benchmarks").glob("*.py")
    if "harness.main(" in path.read_text(encoding="utf-8") and path.stem != "harness"
)


def test_every_command_line(monkeypatch):
    """Its flags are checked, its example and its page are there."""
    for name in NAMES:
        monkeypatch.setattr("sys.argv", [f"benchmarks/{name}", "--rouns=1"])
        with pytest.raises(ConfigError, match="unknown flag --rouns"):
            importlib.import_module(name.removesuffix(".py")).main()
        text = (ROOT / "benchmarks" / name).read_text(encoding="utf-8")
        assert f"python benchmarks/{name} --" in text.split('"""')[1], name
    pages = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "docs").glob("*.md"))
    assert not [name for name in NAMES if f"benchmarks/{name}" not in pages]  # each feeds a page


def test_peers_are_compared_with_the_fastest():
    ours = {"ours": 9.0, "ours_plain": 20.0}
    speeds = {"a": {**ours, "tf_models": 6.0, "keras_hub": 4.0}, "b": {"ours": 1.0}, "c": {"tf_models": 1.0}}
    rows = [
        {"case": case, "peer": name, "sequences_per_sec": value}
        for case, values in speeds.items()
        for name, value in values.items()
    ]
    assert peers.compare(rows) == ["a: 1.50 x tf-models-official"]


def test_a_case_that_fails_takes_no_measured_one_along(tmp_path, monkeypatch, capsys):
    def measure(flags, model, cases):
        ((dtype, length, batch),) = cases
        if batch == 8:
            raise ConfigError("fake was killed")
        case = {"case": f"{length} x {batch}", "dtype": dtype, "max_seq_length": length}
        case |= {"train_batch_size": batch, "peer": "ours", "sequences_per_sec": 2.0, "step_secs": 1.0}
        case |= {"peak_bytes": None, "spread": 0.1, "start_secs": 3.0, "secs": [1.0], "losses": [2.0]}
        return [case]

    monkeypatch.setattr(peers, "measure", measure)
    flags = ["--peers=ours", "--dtypes=fp32", "--shapes=16x4,16x8", f"--output={tmp_path}/out"]
    monkeypatch.setattr("sys.argv", ["benchmarks/peers.py", *flags])
    with pytest.raises(ConfigError, match="fake was killed"):
        peers.main()
    assert [row["case"] for row in json.loads((tmp_path / "out.json").read_text())["cases"]] == ["16 x 4"]
    assert "16 x 4" in capsys.readouterr().out


def test_examples_are_the_same_for_every_system(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks" / "programs"))
    from training_step import STEPS, examples

    assert {peer.step for peer in peers.PEERS.values()} == set(STEPS)
    specification = {"batch": 3, "length": 16, "predictions": 4, "seed": 1, "model": TINY}
    batch, again = examples(specification), examples(specification)
    assert all((batch[name] == again[name]).all() for name in batch)
    assert batch["input_ids"].shape == (3, 16) and batch["input_ids"].max() < TINY["vocab_size"]
    for row in range(3):
        assert len(set(batch["positions"][row])) == 4 and set(batch["segment_ids"][row]) == {0, 1}
        assert (batch["labels"][row] == batch["input_ids"][row][batch["positions"][row]]).all()


def test_an_update_is_laid_beside_the_memory():
    secs = {"memory": 0.012, "lamb": 0.08, "adamw, tensorflow-addons": 0.028}
    timings = {name: Timing((value,)) for name, value in secs.items()}
    bare, lamb, adamw = optimizer.rows(timings, parameters=1_000_000)
    assert bare["over_bound"] == 1.0 and bare["gb_per_sec"] == pytest.approx(1.0)
    assert lamb["bytes"] == 40_000_000 and lamb["over_bound"] == pytest.approx(2.0)
    assert adamw["bytes"] == 28_000_000 and adamw["over_bound"] == pytest.approx(1.0)


def test_the_picture_of_a_run_takes_target_and_baseline_from_its_result(tmp_path):
    save_metrics(tmp_path, fake_metrics())
    write_result(str(tmp_path), make_result())
    legends = [axes.get_legend_handles_labels()[1] for axes in record.picture_of(str(tmp_path)).axes]
    assert "target 0.300" in legends[1] and len(legends) == 3


def test_types_agree_within_the_spread_of_the_seeds():
    def curves(*losses):
        return [numerics.Curve((5, 10), (loss + 1, loss)) for loss in losses]

    first, near, far = numerics.summarize(
        {"fp32": curves(2.0, 2.1, 2.2), "bf16": curves(2.15, 2.2, 2.1), "fp32_plain": curves(2.4, 2.3, 2.35)}
    )
    assert first["agrees"] and first["distance"] == 0 and first["spread"] == pytest.approx(0.2)
    assert near["agrees"] and near["distance"] == pytest.approx(0.05)
    assert near["largest_of_one_seed"] == pytest.approx(0.15)
    assert not far["agrees"] and far["mean"] == pytest.approx(2.35)  # 0.25 away, seeds are 0.2 and 0.1 apart


def test_of_a_short_job_the_median_run_counts(tmp_path, monkeypatch):
    (tmp_path / "vocab.txt").write_text("\n".join([*vocabulary.SPECIAL_TOKENS, *"abcdefgh"]) + "\n")
    taken = iter([(3.0, 10), (1.0, 30), (2.0, 20), (99.0, 1)])

    def run_once(_, path, records):
        secs, memory_bytes = next(taken)
        assert os.path.getsize(path) >= 100_000 and not os.path.exists(records)
        return {"secs": secs, "rounds_secs": secs - 0.5, "core_secs": 1.0, "peak_memory_bytes": memory_bytes}

    monkeypatch.setattr(data_scale, "_run", run_once)
    monkeypatch.setattr(data_scale, "_LEAST_SECS", 6.0)
    flags = argparse.Namespace(vocab_file=str(tmp_path / "vocab.txt"), num_workers=1)
    row = data_scale.measure(flags, str(tmp_path), [b"a b c. d e f.\n\n" * 100], 100_000)
    assert (row["runs"], row["secs"], row["peak_memory_bytes"]) == (3, 2.0, 30)
    assert row["ms_per_mb"] == pytest.approx(1.5 / row["text_bytes"] * 1e9)


def test_the_model_for_hugging_face_has_the_same_weights(tmp_path):
    bert = BertConfig(**TINY)
    made_up = source.random_source(bert, "answer", seed=3)
    folder = inference.write_huggingface(made_up, None, str(tmp_path / "a"))
    read = registry.open_checkpoint(folder, "path").to_canonical().tensors
    assert set(read) == set(made_up.tensors)
    assert all((read[name].read() == made_up.tensors[name].read()).all() for name in read)
    other = dataclasses.replace(made_up, bert=dataclasses.replace(bert, block_type="groupbert"))
    with pytest.raises(ConfigError, match="--peers: Hugging Face has no model of block_type=groupbert"):
        inference.write_huggingface(other, None, str(tmp_path / "b"))


def test_the_verdict_of_inference_is_on_the_fastest_of_each_side():
    rates = {"tensorflow": 8.0, "openvino": 12.0, "huggingface_sdpa": 10.0, "huggingface_eager": 4.0}
    rates["huggingface_onnxruntime"] = 15.0
    systems = {name: inference.system_of(name, ".peers") for name in list(rates)[2:]}
    case = "fp32, 128 tokens x 1"
    rows = []
    for name, rate in rates.items():
        label = systems[name].title if name in systems else f"ours, {name}"
        rows.append({"case": case, "backend": name, "label": label, "sequences_per_sec": rate})
        rows[-1]["share_of_products"] = 0.5
    groups = {name: system.group for name, system in systems.items()}
    expected = f"{case}: ours, openvino, 12.00 seq/s; 1.20 x Hugging Face, sdpa;"
    expected += " 0.80 x Hugging Face in ONNX Runtime; 50% of bare products"
    assert inference_lib.verdicts(rows, groups) == [expected]
    assert inference_lib.verdicts(rows[2:], groups) == []


def test_padded_rows_of_peers_come_back(monkeypatch):
    monkeypatch.setenv("BERT_ANSWERING", os.path.dirname(inference.ANSWERING))
    peers_program = runpy.run_path(f"{inference.harness.PROGRAMS}/answering.py")
    lengths_N = np.array([5, 3, 8])
    ids_T = np.arange(1, 17, dtype=np.int32)
    for width in (None, 12):
        batch = answering.Batch(ids_T, ids_T % 2, lengths_N)
        ids_NL, mask_NL, segments_NL = peers_program["padded"](batch, width)
        assert ids_NL.shape == (3, width or 8) and mask_NL.sum(axis=1).tolist() == [5, 3, 8]
        assert not ids_NL[mask_NL == 0].any() and not segments_NL[mask_NL == 0].any()
        both = peers_program["end_to_end"](ids_NL, segments_NL, lengths_N)
        assert (both[0] == batch.ids_T).all() and (both[1] == batch.segments_T).all()


# ------------------------------------------------------------------------------------------------------------
# A journey


def run(name, tmp_path, *arguments):
    """Runs a benchmark; returns (its record, what it printed)."""
    done = programs.run(f"benchmarks/{name}.py", f"--output={tmp_path}/{name}", *arguments)
    assert done.returncode == 0, done.stderr
    (path,) = [path for path in (tmp_path / f"{name}.json", tmp_path / name) if path.is_file()]
    if path.suffix:
        assert (tmp_path / f"{name}.png").stat().st_size > 1000, name
    record = json.loads(path.read_text())
    assert record["environment"]["machine"] and record["command"].startswith(f"python benchmarks/{name}.py")
    return record, done.stdout


@pytest.mark.slow
def test_all_questions_with_tiny_settings(tmp_path):
    model = tmp_path / "bert.json"
    model.write_text(json.dumps(TINY))
    of_model = f"--bert_config_file={model}"
    tiny = "--shapes=16x4 --dtypes=fp32 --peers=ours,ours_plain --rounds=2 --steps=300"
    record, _ = run("peers", tmp_path, of_model, *tiny.split())
    ours, plain = record["cases"]
    assert len(ours["secs"]) == 2 and ours["losses"] == pytest.approx(plain["losses"], rel=1e-3)
    # One batch again and again is learnt by heart; fresh random rows would not be.
    assert ours["losses"][0] == pytest.approx(math.log(TINY["vocab_size"]) + math.log(2), rel=0.05)
    assert ours["losses"][-1] < ours["losses"][0] - 0.5

    record, text = run("optimizer", tmp_path, of_model, "--rounds=2")
    names = {row["name"] for row in record["cases"]}
    assert {"memory", "norm", "lamb", "adamw"} <= names
    assert all(len(row["secs"]) == 2 and row["name"] in text for row in record["cases"])

    (tmp_path / "large.json").write_text(json.dumps({**TINY, "vocab_size": 30522}))
    record, _ = run("conversion", tmp_path, f"--bert_config_file={tmp_path}/large.json")
    assert record["round_trip_is_bit_equal"] and len(record["conversions"]) == 3

    record, text = run("start", tmp_path, of_model, "--rounds=1")
    (row,) = record["cases"]
    assert row["secs"]["first_answer"] > row["secs"]["second"] > 0 and "tensorflow fp32" in text

    record, _ = run("step_profile", tmp_path, of_model, "--shapes=16x4", "--steps=2")
    assert len(record["cases"][0]["groups"]) >= 5 and min(record["cases"][0]["groups"].values()) > 0

    own = f"--model_dir={tmp_path}/runs --variants=fp32,fp32_plain --num_runs=2 -- {of_model}"
    tiny = "--use_synthetic_data --max_seq_length=16 --max_predictions_per_seq=3 --num_steps_per_epoch=4"
    tiny += " --num_train_epochs=1 --steps_per_loop=2 --steps_between_eval=2 --num_eval_samples=8"
    tiny += " --train_batch_size=4 --warmup_steps=0 --num_gpus=0"
    record, _ = run("numerics", tmp_path, *own.split(), *tiny.split())
    fused, plain = record["variants"]
    assert fused["curves"][0]["steps"] == [2, 4] and fused["final_losses"][0] != fused["final_losses"][1]
    assert plain["largest_of_one_seed"] < 1e-3 and plain["agrees"]  # dropout's masks are the same


@pytest.mark.slow
def test_questions_about_data_with_tiny_settings(tmp_path):
    words = "the cat sat on a mat and ate fish".split()
    (tmp_path / "vocab.txt").write_text("\n".join([*vocabulary.SPECIAL_TOKENS, *words]) + "\n")
    text = "\n\n".join("\n".join(" ".join(words) + "." for _ in range(12)) for _ in range(60))
    (tmp_path / "text").write_text(text + "\n")
    given = [f"--input_files={tmp_path}/text", f"--vocab_file={tmp_path}/vocab.txt"]
    record, shown = run("data", tmp_path, *given, "--rounds=1")
    assert record["share_of_tokenizer"] > 0 and "create 512 x10 compact" in shown
    record, _ = run("data_scale", tmp_path, *given, "--gigabytes=0.0001", "--num_workers=1")
    assert record["measured"][0]["tokens"] > 1000 and record["measured"][0]["peak_memory_bytes"] > 1e6
    records = tmp_path / "records"
    sizes = ["--max_seq_length=64", "--max_predictions_per_seq=5"]
    created = [f"--output_dir={records}", *sizes, "--dupe_factor=1", "--num_workers=1"]
    done = programs.run("scripts/create_pretraining_data.py", *given, *created)
    assert done.returncode == 0, done.stderr
    (tmp_path / "bert.json").write_text(json.dumps({**TINY, "max_position_embeddings": 64}))
    own = [f"--bert_config_file={tmp_path}/bert.json", f"--input_files={records}/*.tfrecord"]
    batch = ["--rounds=1", "--train_batch_size=2", "--num_gpus=0"]
    record, shown = run("packing", tmp_path, *own, *sizes, *batch)
    assert record["sequences_per_row"] >= 1 and record["bound"] >= 1
    assert re.search(r"fp32, packed: \d\.\d+ times", shown)
