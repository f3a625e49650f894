"""ModernBERT beside transformers: both have the same texts, and ours runs every work of a case."""

import json
import runpy

import numpy as np
import pytest

import harness
import long_texts
from tests.fixtures import TINY
from tests.refusals import assert_refused

MODEL = dict(TINY, family="modernbert", block_type="modernbert", hidden_act="gelu_erf", local_attention=8)


def test_rows_and_single_texts_hold_the_same(monkeypatch):
    monkeypatch.syspath_prepend(harness.PROGRAMS)
    program = runpy.run_path(f"{harness.PROGRAMS}/long_texts.py")
    asked = {"seed": 1, "model": MODEL, "lengths": [8, 20, 13]}
    apart, rows = program["texts"](asked), program["padded"](asked)
    assert rows["input_mask"].sum(axis=1).tolist() == asked["lengths"]
    assert rows["weights"].sum(axis=1).tolist() == [len(places) for _, places, _ in apart] == [1, 3, 2]
    for row, (ids, places, labels) in enumerate(apart):
        assert (rows["input_ids"][row, : len(ids)] == ids).all() and (ids[places] == 4).all()
        assert rows["positions"][row, : len(places)].tolist() == places.tolist()
        assert rows["labels"][row, : len(places)].tolist() == labels.tolist() and labels.min() >= 10


@pytest.mark.slow
def test_our_side_trains_and_infers_mixed_lengths(tmp_path, monkeypatch, capsys):
    (tmp_path / "model.json").write_text(json.dumps(MODEL))
    flags = [f"--bert_config_file={tmp_path}/model.json", "--cases=8:20:13", "--peers=ours", "--rounds=1"]
    monkeypatch.setattr("sys.argv", ["benchmarks/long_texts.py", *flags, f"--output={tmp_path}/out"])
    long_texts.main()
    train, infer = json.loads((tmp_path / "out.json").read_text())["cases"]
    assert train["lengths"] == [8, 20, 13] and train["peak_bytes"] > 1e8
    assert train["losses"][0] == pytest.approx(np.log(MODEL["vocab_size"]), rel=0.1)
    assert train["losses"][-1] < train["losses"][0] and len(set(infer["losses"])) == 1
    assert "train, fp32, 8:20:13" in capsys.readouterr().out


def test_the_fastest_and_the_smallest_are_compared_with():
    measured = (("ours", 2.0, 6), ("padded", 4.0, 8), ("compiled", 3.0, 10))
    names = ("peer", "median_secs", "peak_bytes")
    (found,) = long_texts.compare([{"case": "a", **dict(zip(names, row))} for row in measured])
    assert found["fastest"] == "compiled" and found["speedup"] == 1.5
    assert found["least_memory"] == "padded" and found["memory"] == 0.75


def test_wrong_cases_are_named():
    cases = [("512x3", 8192, "512x3 is none of 512x2, mixed"), ("8:9000", 8192, "not from 8 to 8,192")]
    assert_refused(long_texts.read_cases, cases)
