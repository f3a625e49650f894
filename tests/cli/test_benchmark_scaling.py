"""bert benchmark scaling: what is predicted from what, and the whole way; never a time."""

import json

import pytest

from official.cli.benchmark import scaling_prediction
from official.cli.benchmark.scaling_prediction import ALONE, APART, JOINED
from official.training.step_benchmark import SMALL_SUM, SMALL_SUMS, SUM, step_name
from tests import programs
from tests.conftest import TINY


def measured(micro=0.3, update=0.1, slower=1.0, gradient_bytes=10**8, gbps=1.0, latency=1e-3):
    """Returns seconds as processes would measure them that follow the model."""
    extra = gradient_bytes / (gbps * 1e9) + 2 * latency + 2 * latency  # the weights of the losses are a sum
    alone = {step_name(count): [2 * (count * micro + update)] * 3 for count in (1, 4)}
    apart = {name: [slower * each for each in secs] for name, secs in alone.items()}
    joined = {name: [slower * secs[0] + 2 * extra] * 3 for name, secs in alone.items()}
    joined[SUM] = [gradient_bytes / (gbps * 1e9) + 2 * latency] * 3
    joined[SMALL_SUM] = [SMALL_SUMS * 2 * latency] * 3
    return {ALONE: alone, APART: apart, JOINED: joined}, gradient_bytes


def test_processes_that_follow_the_model_are_predicted():
    found = scaling_prediction.results([1, 4], 8, 2, *measured(slower=1.25))
    assert found["all_reduce"]["gbps"] == pytest.approx(1.0)
    assert found["all_reduce"]["latency_usecs"] == pytest.approx(1000)
    for row in found["cases"]:
        assert row["predicted_from_apart_off"] == pytest.approx(0, abs=1e-9)
        assert row["predicted_from_alone_off"] < -0.1  # they slow each other down
        assert row["efficiency"] == pytest.approx(row["alone_secs"] / row["joined_secs"])
    one, four = found["cases"]
    assert one["efficiency"] < four["efficiency"] < 1
    curves = [each["efficiency"] for each in found["curves"]]
    assert all(curve["1"] == 1 and curve["2"] > curve["4096"] > 0 for curve in curves)
    record = {"model": "m", "dtype": "fp32", "max_seq_length": 128, "micro_batch_size": 8, **found}
    assert "1.000" not in scaling_prediction.table(record).splitlines()[1]
    assert scaling_prediction.draw(record)[:4] == b"\x89PNG"


def test_one_number_of_micro_batches_has_no_line():
    secs, size = measured(update=0.0)
    (row,) = scaling_prediction.results([1], 8, 2, secs, size)["cases"]
    assert row["predicted_from_alone_off"] == pytest.approx(0, abs=1e-9)


@pytest.mark.slow
def test_the_whole_way(tmp_path):
    model = tmp_path / "model.json"
    model.write_text(json.dumps(TINY))
    flags = ["--shape=16x4", "--accumulations=1,2", "--rounds=2", "--steps=1"]
    done = programs.run(
        "scripts/benchmark_scaling.py", f"--bert_config_file={model}", *flags, f"--output={tmp_path}/s"
    )
    assert done.returncode == 0, done.stderr
    record = json.loads((tmp_path / "s.json").read_text())
    assert [row["num_accumulation_steps"] for row in record["cases"]] == [1, 2]
    assert record["all_reduce"]["bytes"] > 10**4 and (tmp_path / "s.png").exists()
    assert "bare all-reduce" in done.stdout


@pytest.mark.parametrize(
    "arguments,message",
    [
        (["--accumulations=1,0"], "--accumulations=1,0, expected numbers from 1"),
        (["--shape=128x8,128x4"], "expected one LENGTHxROWS"),
        (["--rounds=0"], "rounds"),
        (["--output=/proc/x"], "--output=/proc/x.json: No such file"),
    ],
)
def test_wrong_flags(arguments, message):
    done = programs.run("scripts/benchmark_scaling.py", *arguments)
    assert done.returncode == 2 and message in done.stderr and len(done.stderr.splitlines()) == 1
