"""`bert benchmark --spec`: whole runs of small programs, files, exit codes, limits of time, signals."""

import csv
import json
import os
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree as xml

import matplotlib.image
import pytest

from official.cli.benchmark import run
from official.io.errors import ConfigError
from tests.conftest import ROOT

SPEC = """
shared_options: &shared
  data:
    throughput: {regexp: 'throughput: (.*) samples'}
  output:
    - [samples/s, throughput]
good_gen:
  <<: *shared
  parameters: {batch: "2,4"}
  cmd: >-
    python3 -c "print('throughput: {batch} samples')"
      --max_seq_length 128 --batch_size={batch} --dtype=fp32
bad_gen:
  <<: *shared
  cmd: python3 -c "import sys; sys.exit('it broke')"
silent_gen:
  <<: *shared
  cmd: python3 -c "pass"
missing_gen:
  <<: *shared
  cmd: there_is_no_such_program
late_gen_conv:
  <<: *shared
  cmd: >-
    python3 -c "print('throughput: 7 samples')"
"""


@pytest.fixture
def benchmark(tmp_path, monkeypatch):
    """Returns a function that runs `bert benchmark` in this process, in a folder with a benchmarks.yml."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "benchmarks.yml").write_text(SPEC)

    def call(*arguments: str) -> int:
        monkeypatch.setattr(sys, "argv", ["bert benchmark run", *arguments])
        return run.main()

    return call


def test_a_failure_is_reported_and_stops_nothing(benchmark, tmp_path, capsys):
    assert benchmark("--log-dir", "logs") == 1
    text = capsys.readouterr().out
    lines = ["PASSED good_gen::good_gen"] * 2
    lines += [f"FAILED {name}_gen::{name}_gen" for name in ("bad", "silent", "missing")]
    assert "\n".join(lines) in text and " 3 failed, 2 passed " in text and "| it broke" in text
    logs = tmp_path / "logs"
    results = json.loads((logs / "benchmark_results.json").read_text())
    assert [each["exitcode"] for each in results["good_gen"]] == [0, 0]
    codes = [results[f"{name}_gen"][0]["exitcode"] for name in ("bad", "silent", "missing")]
    assert codes == [1, 1, 127]
    assert results["silent_gen"][0]["results"]["throughput"] == {"mean": None}
    rows = list(csv.DictReader((logs / "benchmark_results.csv").open()))
    assert rows[1]["Variant name"] == "good_gen_batch_4" and rows[1]["throughput"] == "4.0"
    suite = xml.parse(logs / "benchmark_results.xml").getroot()[0]
    assert (suite.get("tests"), suite.get("failures")) == ("5", "3")
    markdown = (logs / "benchmark_results.md").read_text().splitlines()
    assert markdown[0] == "| benchmark | result | seconds | samples/s |" and markdown[3].endswith("| 4 |")
    assert "throughput: 2 samples" in (logs / "output.log").read_text()
    assert "PASSED good_gen::good_gen" in (logs / "console.log").read_text()


def test_a_result_has_the_published_keys_and_ours(benchmark, tmp_path):
    assert benchmark("--benchmark", "good_gen", "--log_dir=logs", "--output=out/numbers") == 0
    folder = tmp_path / "logs" / "good_gen_batch_4"
    result = json.loads((folder / "variant_result.json").read_text())
    assert result["benchmark_path"] == str(tmp_path / "benchmarks.yml")
    assert result["params"] == {"batch": "4"} and result["results"]["throughput"] == {"mean": 4.0}
    assert result["log_paths"] == {"out": f"{folder}/stdout.log", "err": f"{folder}/stderr.log"}
    published = "benchmark_name variant_name command start_time end_time compilation_end_time test_duration"
    published += " exitcode latest_checkpoint_path sdk_path sdk_version"
    assert set(published.split()) <= result.keys()
    ours = {"name": "good_gen_batch_4", "dtype": "fp32", "max_seq_length": 128, "batch": 4, "backend": None}
    assert {key: result[key] for key in ours} == ours
    assert result["sequences_per_sec"] == 4.0 and result["latency_ms"] is None
    record = json.loads((tmp_path / "out" / "numbers.json").read_text())
    assert [row["name"] for row in record["results"]] == ["good_gen_batch_2", "good_gen_batch_4"]
    assert str(tmp_path) not in json.dumps(record["results"])
    assert record["environment"]["machine"] and record["command"].startswith("bert benchmark run")
    assert matplotlib.image.imread(tmp_path / "out" / "numbers.png").std() > 0.01


def test_which_are_run(benchmark, tmp_path, capsys):
    assert benchmark("--benchmark=late_gen_conv,good_gen", "--log-dir=a") == 0  # in this order
    names = [line for line in capsys.readouterr().out.splitlines() if line.startswith("Running")]
    assert names[0] == "Running late_gen_conv"
    benchmark("--include-convergence", "--log-dir=b")
    assert "Running late_gen_conv" in capsys.readouterr().out
    assert benchmark("--benchmark", "bad_gen", "good_gen", "--stop-on-error", "--logdir=c") == 1
    assert list(json.loads((tmp_path / "c" / "benchmark_results.json").read_text())) == ["bad_gen"]


def test_more_columns(benchmark, tmp_path):
    (tmp_path / "own.py").write_text(
        "from examples_utils.benchmarks.custom_metrics import register_custom_metric\n"
        "register_custom_metric('letters', lambda stdout, stderr, exitcode: len(stdout))\n"
        "register_custom_metric('broken', lambda stdout, stderr, exitcode: 1 / 0)\n"
    )
    arguments = ["--csv-metrics", "seen", "--additional-metrics", "--custom-metrics-files=own.py"]
    assert benchmark("--benchmark=good_gen", "--log-dir=logs", *arguments) == 0
    row = next(csv.DictReader((tmp_path / "logs" / "benchmark_results.csv").open()))
    assert (
        row["seen"] == "" and row["letters"] == "22.0" and row["broken"] == "" and row["result"] == "PASSED"
    )
    assert list(row)[-6:] == ["test_duration", "loss", "result", "cmd", "env", "git_commit_hash"]
    assert "examples_utils" not in sys.modules


def test_only_compiling_looks_for_no_numbers(benchmark, tmp_path):
    (tmp_path / "benchmarks.yml").write_text("a_gen: {cmd: echo, data: {t: {regexp: x}}}")
    assert benchmark("--compile-only", "--log-dir=logs") == 0
    assert (tmp_path / "logs" / "a_gen" / "stdout.log").read_text() == "--compile-only\n"


def test_bad_options_are_one_line(benchmark):
    for words, message in (
        ("--spec=none.yml", "--spec=none.yml: No such file"),
        ("--benchmark=god_gen", r"--benchmark=god_gen \(did you mean good_gen\?\) is not one of good_gen"),
        ("--gc-monitor", "--gc_monitor is not an option here: it shows IPUs"),
        ("--submit-on-slurm", "submit this command itself, with sbatch"),
        ("--timeout=0", "--timeout=0, expected seconds above 0"),
        ("--allow-wandb --ignore-wandb", "exclude each other"),
        ("--loging=INFO", r"unknown flag --loging \(did you mean --logging\?\)"),
        ("--custom-metrics-files=none.py", "--custom_metrics_files=none.py: No such file"),
    ):
        with pytest.raises(ConfigError, match=message):
            benchmark(*words.split(), "--log-dir=logs")
    assert not os.path.exists("logs")


def test_results_are_not_replaced_unasked(benchmark):
    arguments = ["--benchmark=good_gen", "--log-dir=logs"]
    assert benchmark(*arguments) == 0
    with pytest.raises(ConfigError, match="benchmark_results.json exists"):
        benchmark(*arguments)
    assert benchmark(*arguments, "--overwrite") == 0


def sleepers(marker: str) -> list[str]:
    """Returns the command lines of processes that have a marker in theirs."""
    listed = subprocess.run(["ps", "-eo", "stat=,args="], capture_output=True, text=True, check=True).stdout
    return [line for line in listed.splitlines() if marker in line and not line.startswith("Z")]


def tree(marker: str) -> str:
    """Returns a command that starts processes: one in a session of its own, one that ignores SIGTERM."""
    return (
        f"""bash -c "setsid python3 -c 'import time; time.sleep(99)' {marker} & trap '' TERM;"""
        f""" python3 -c 'import time; time.sleep(99)' {marker}" """
    )


def test_a_timeout_ends_all_processes(benchmark, tmp_path):
    marker = f"marker-{os.getpid()}-timeout"
    (tmp_path / "benchmarks.yml").write_text(f"a_gen:\n  timeout: 60\n  cmd: >-\n    {tree(marker)}\n")
    assert benchmark("--timeout=1", "--log-dir=logs") == 1
    assert not sleepers(marker)
    result = json.loads((tmp_path / "logs" / "a_gen" / "variant_result.json").read_text())
    assert result["problems"] == ["timeout of 1 s"] and result["exitcode"] != 0
    assert (tmp_path / "logs" / "a_gen" / "stderr.log").read_text().endswith("\nTimeout (1)\n")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_all_processes_and_keeps_what_was_measured(tmp_path, number):
    marker = f"marker-{os.getpid()}-{number}"
    first = """a_gen:\n  data: {t: {regexp: '(1)'}}\n  cmd: echo 1\n"""
    (tmp_path / "benchmarks.yml").write_text(f"{first}b_gen:\n  cmd: >-\n    {tree(marker)}\n")
    program = [sys.executable, ROOT / "scripts" / "benchmark.py", "--log-dir=logs"]
    process = subprocess.Popen(
        program, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    until = time.monotonic() + 60
    while len(sleepers(marker)) < 2 and time.monotonic() < until:
        time.sleep(0.1)
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 128 + number, err
    assert "PASSED a_gen::a_gen" in out and "b_gen was interrupted" in out
    assert not sleepers(marker)
    assert list(json.loads((tmp_path / "logs" / "benchmark_results.json").read_text())) == ["a_gen"]
