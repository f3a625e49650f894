"""Measuring: turns, medians and spread; the step benchmark's whole way on a small model; never a time."""

import json

import pytest

from official.reporting import measurement
from tests import programs
from tests.fixtures import TINY


def test_median_and_spread():
    timing = measurement.Timing((1.0, 2.0, 4.0, 3.0, 10.0))
    assert timing.median == 3.0 and timing.rate(6.0) == 2.0
    assert timing.spread == pytest.approx((4.0 - 2.0) / 2 / 3.0)
    assert measurement.Timing((2.0,)).spread == 0.0


def test_cases_take_turns():
    calls = []
    cases = {name: lambda name=name: calls.append(name) for name in "ab"}
    timings = measurement.measure_in_turns(cases, rounds=3, warmup_rounds=1)
    assert "".join(calls) == "abababab"
    assert {name: len(timing.secs) for name, timing in timings.items()} == {"a": 3, "b": 3}


@pytest.mark.slow
def test_the_whole_way(tmp_path):
    groupbert = {**TINY, "block_type": "groupbert", "groupbert_conv_group_size": 8}
    for name, model in (("bert", TINY), ("groupbert", groupbert)):
        (tmp_path / f"{name}.json").write_text(json.dumps(model))
    arguments = f"--bert_config_file={tmp_path}/bert.json,{tmp_path}/groupbert.json --output={tmp_path}/out"
    arguments += " --shapes=16x4 --dtypes=fp32,bf16 --blocks=fused,plain --rounds=2"
    done = programs.run("scripts/benchmark_step.py", *arguments.split())
    assert done.returncode == 0, done.stderr
    record = json.loads((tmp_path / "out.json").read_text())
    assert len(record["cases"]) == 8 and all(len(row["secs"]) == 2 for row in record["cases"])
    for row in record["cases"]:
        assert row["sequences_per_sec"] == pytest.approx(row["train_batch_size"] / row["step_secs"])
        peak = record["products"][row["dtype"]]["gflops"]
        assert row["share_of_products"] == pytest.approx(row["gflops"] / peak)
        assert row["name"] in done.stdout
    assert record["cases"][0]["name"] == "bert, fp32, 16 tokens x 4"
    assert (tmp_path / "out.png").stat().st_size > 1000
    again = programs.run("scripts/benchmark_step.py", *arguments.split())
    assert again.returncode == 2 and "exists" in again.stderr
