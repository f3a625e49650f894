"""The optimizer benchmark: its arithmetic, its whole way on a small model, its flags; never a time."""

import json

import pytest

from official.cli.benchmark import optimizer as benchmark_optimizer
from official.reporting import measurement
from tests import programs
from tests.conftest import TINY


def benchmark(*arguments):
    return programs.run("scripts/benchmark_optimizer.py", *arguments)


def test_rows():
    timings = {
        name: measurement.Timing((secs,))
        for name, secs in (("memory", 0.012), ("lamb", 0.08), ("adamw, plain", 0.028))
    }
    memory, lamb, adamw = benchmark_optimizer.rows(timings, parameters=1_000_000)
    assert memory["over_bound"] == 1.0 and memory["gb_per_sec"] == pytest.approx(1.0)
    assert (
        lamb["bytes"] == 40_000_000
        and lamb["over_bound"] == pytest.approx(2.0)
        and lamb["gb_per_sec"] == pytest.approx(0.5)
    )
    assert adamw["bytes"] == 28_000_000 and adamw["over_bound"] == pytest.approx(1.0)


@pytest.mark.slow
def test_the_whole_way(tmp_path):
    (tmp_path / "bert.json").write_text(json.dumps(TINY))
    arguments = [f"--bert_config_file={tmp_path}/bert.json", "--rounds=2", f"--output={tmp_path}/out"]
    done = benchmark(*arguments)
    assert done.returncode == 0, done.stderr
    record = json.loads((tmp_path / "out.json").read_text())
    assert {
        "memory",
        "norm",
        "lamb",
        "adamw",
        "lamb, plain",
        "adamw, plain, XLA",
    } <= {row["name"] for row in record["cases"]}
    assert all(len(row["secs"]) == 2 and row["name"] in done.stdout for row in record["cases"])
    assert record["command"].startswith("python scripts/benchmark_optimizer.py") and record["environment"]
    assert (tmp_path / "out.png").stat().st_size > 1000
    again = benchmark(*arguments)
    assert again.returncode == 2 and "exists" in again.stderr


def test_wrong_flags():
    for argument, message in (
        ("--rounds=0", "expected 1 or more"),
        ("--round=2", "did you mean --rounds"),
        ("--output=/proc/x", "No such file"),
    ):
        done = benchmark(argument)
        assert done.returncode == 2 and message in done.stderr and len(done.stderr.splitlines()) == 1
