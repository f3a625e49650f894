"""`bert benchmark --spec`: files of benchmarks, commands, numbers, whole runs of small programs, signals."""

import csv
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree as xml

import matplotlib.image
import pytest

from official.cli.benchmark import run, spec
from official.io.errors import ConfigError
from tests.fixtures import ROOT

SPECS = ROOT / "tests" / "cli" / "specs"


@pytest.fixture
def benchmark(tmp_path, monkeypatch):
    """Returns a function that runs `bert benchmark` in this process, in a folder with a benchmarks.yml."""
    monkeypatch.chdir(tmp_path)
    shutil.copy(SPECS / "runs.yml", tmp_path / "benchmarks.yml")

    def call(*arguments: str) -> int:
        monkeypatch.setattr(sys, "argv", ["bert benchmark run", *arguments])
        return run.main()

    return call


def test_a_failure_is_reported_and_stops_nothing(benchmark, tmp_path, capsys):
    """And a result has the published keys and ours."""
    arguments = ["--log-dir=logs", "--output=out/numbers"]
    assert benchmark(*arguments) == 1
    text = capsys.readouterr().out
    lines = ["PASSED good_gen::good_gen"] * 2
    lines += [f"FAILED {name}_gen::{name}_gen" for name in ("bad", "silent", "missing")]
    assert "\n".join(lines) in text and " 3 failed, 2 passed " in text and "| it broke" in text
    logs = tmp_path / "logs"
    results = json.loads((logs / "benchmark_results.json").read_text())
    codes = {name: [each["exitcode"] for each in found] for name, found in results.items()}
    assert codes == {"good_gen": [0, 0], "bad_gen": [1], "silent_gen": [1], "missing_gen": [127]}
    assert results["silent_gen"][0]["results"]["throughput"] == {"mean": None}
    rows = list(csv.DictReader((logs / "benchmark_results.csv").open()))
    assert rows[1]["Variant name"] == "good_gen_batch_4" and rows[1]["throughput"] == "4.0"
    suite = xml.parse(logs / "benchmark_results.xml").getroot()[0]
    assert (suite.get("tests"), suite.get("failures")) == ("5", "3")
    markdown = (logs / "benchmark_results.md").read_text().splitlines()
    assert markdown[0] == "| benchmark | result | seconds | samples/s |" and markdown[3].endswith("| 4 |")
    assert "throughput: 2 samples" in (logs / "output.log").read_text()
    assert "PASSED good_gen::good_gen" in (logs / "console.log").read_text()
    folder = logs / "good_gen_batch_4"
    result = json.loads((folder / "variant_result.json").read_text())
    assert result["benchmark_path"] == str(tmp_path / "benchmarks.yml")
    assert result["params"] == {"batch": "4"} and result["results"]["throughput"] == {"mean": 4.0}
    assert result["log_paths"] == {"out": f"{folder}/stdout.log", "err": f"{folder}/stderr.log"}
    published = "benchmark_name variant_name command start_time end_time compilation_end_time test_duration"
    published += " exitcode latest_checkpoint_path sdk_path sdk_version"
    assert set(published.split()) <= result.keys()
    ours = {"name": "good_gen_batch_4", "dtype": "fp32", "max_seq_length": 128, "batch": 4, "backend": None}
    assert (ours | {"sequences_per_sec": 4.0, "latency_ms": None}).items() <= result.items()
    record = json.loads((tmp_path / "out" / "numbers.json").read_text())
    assert [row["name"] for row in record["results"]][:2] == ["good_gen_batch_2", "good_gen_batch_4"]
    assert str(tmp_path) not in json.dumps(record["results"])
    assert record["environment"]["machine"] and record["command"].startswith("bert benchmark run")
    assert matplotlib.image.imread(tmp_path / "out" / "numbers.png").std() > 0.01
    with pytest.raises(ConfigError, match="benchmark_results.json exists"):
        benchmark(*arguments)
    assert benchmark(*arguments, "--benchmark=good_gen", "--overwrite") == 0


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
        "import examples_utils.benchmarks.custom_metrics\n"
        "from examples_utils.benchmarks import custom_metrics\n"
        "from examples_utils.benchmarks.custom_metrics import register_custom_metric\n"
        "assert custom_metrics is examples_utils.benchmarks.custom_metrics\n"
        "assert custom_metrics.register_custom_metric is register_custom_metric\n"
        "register_custom_metric('letters', lambda stdout, stderr, exitcode: len(stdout))\n"
        "register_custom_metric('broken', lambda stdout, stderr, exitcode: 1 / 0)\n"
    )
    arguments = ["--csv-metrics", "seen", "--additional-metrics", "--custom-metrics-files=own.py"]
    assert benchmark("--benchmark=good_gen", "--log-dir=logs", *arguments) == 0
    row = next(csv.DictReader((tmp_path / "logs" / "benchmark_results.csv").open()))
    assert {"seen": "", "letters": "22.0", "broken": "", "result": "PASSED"}.items() <= row.items()
    assert list(row)[-6:] == ["test_duration", "loss", "result", "cmd", "env", "git_commit_hash"]


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


def test_a_signal_ends_all_processes_and_keeps_what_was_measured(tmp_path):
    marker = f"marker-{os.getpid()}-signal"
    first = """a_gen:\n  data: {t: {regexp: '(1)'}}\n  cmd: echo 1\n"""
    (tmp_path / "benchmarks.yml").write_text(f"{first}b_gen:\n  cmd: >-\n    {tree(marker)}\n")
    program, pipe = [sys.executable, ROOT / "scripts" / "benchmark.py", "--log-dir=logs"], subprocess.PIPE
    process = subprocess.Popen(program, cwd=tmp_path, stdout=pipe, stderr=pipe, text=True)
    until = time.monotonic() + 60
    while len(sleepers(marker)) < 2 and time.monotonic() < until:
        time.sleep(0.1)
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGTERM, err
    assert "PASSED a_gen::a_gen" in out and "b_gen was interrupted" in out
    assert not sleepers(marker)
    assert list(json.loads((tmp_path / "logs" / "benchmark_results.json").read_text())) == ["a_gen"]


# ------------------------------------------------------------------------------------------------------------
# Files: entries, their commands, and numbers in an output


@pytest.fixture(name="read")
def fixture_read(tmp_path):
    """Returns (text of a file) -> its first benchmark."""

    def read_text(text: str) -> spec.Benchmark:
        path = tmp_path / "benchmarks.yml"
        path.write_text(text)
        return next(iter(spec.read([str(path)]).values()))

    return read_text


def variants(benchmark, environment=None, **given):
    flags = run.Main.parse([])
    vars(flags).update(given)
    return run.make_variants(benchmark, flags, environment or {"PATH": "/bin"})


def test_only_entries_that_are_asked_for_are_checked(tmp_path, monkeypatch):
    """The broken one is: by name, or with those for convergence. What entries share is none."""

    def names_of(*arguments):
        monkeypatch.setattr(sys, "argv", ["x", f"--spec={SPECS}/published.yml", *arguments])
        monkeypatch.setenv("DATASETS_DIR", str(tmp_path))
        return [variant.name for variant in run.plan(run.parse_flags())]

    inference = ["infer_gen_pod4_batchsize_1", "infer_gen_pod4_batchsize_2"]
    assert names_of() == ["pretrain_real_pod16", *inference]
    assert names_of("--benchmark", "infer_gen_pod4") == inference
    for arguments in (["--benchmark=broken_conv"], ["--include_convergence"]):
        with pytest.raises(ConfigError, match="unknown parameter {nothing}"):
            names_of(*arguments)
    with pytest.raises(ConfigError, match="is not one of pretrain_real_pod16, infer_gen_pod4, broken_conv"):
        names_of("--benchmark=inference_opts")


def test_a_command_is_one_line_with_a_whole_path_and_the_environment(read, tmp_path):
    entry, environment = read((SPECS / "entry.yml").read_text()), {"PATH": "/bin", "PLACE": "a b"}
    found = variants(entry, environment, logging="ERROR", profile=True)
    names = [f"one_gen_batch_{each.values['batch']}_size_{each.values['size']}" for each in found]
    assert [each.name for each in found] == names
    assert [each.values["batch"] for each in found] == ["1", "2", "1", "2"]  # the first fastest, as published
    second = found[1]
    assert second.command == f"python3 {tmp_path}/train.py --batch=2 --size base --home=$PLACE"
    assert second.words[1:] == [f"{tmp_path}/train.py", "--batch=2", "--size", "base", "--home=a", "b"]
    assert second.env["PATH"] == f"{os.path.dirname(sys.executable)}{os.pathsep}/bin"
    reports = json.loads(second.added_env.pop("POPLAR_ENGINE_OPTIONS"))
    assert reports["autoReport.directory"] == f"{tmp_path}/{second.name}_profile"
    levels = {"POPLAR_LOG_LEVEL": "ERROR", "POPART_LOG_LEVEL": "ERROR"}
    assert second.added_env == {**levels, "TF_CPP_VMODULE": "poplar_compiler=1", "LEVEL": "3"}
    own = variants(read("a_gen: {cmd: x, env: {PATH: /own}}"))[0].env["PATH"]
    assert own == f"{os.path.dirname(sys.executable)}{os.pathsep}/own"
    rows = variants(read("a_gen: {cmd: 'x {a} {b}', parameters: [[a, b], [1, x], [2, y]]}"))
    assert [each.command for each in rows] == ["x 1 x", "x 2 y"]


def test_arguments_that_are_taken_out_and_variables_that_are_put_in(read):
    text = "a_gen: {cmd: x --vipu-partition=p --wandb --wandb-name N --wandb-project=P --n 1"
    taken, kept = "x --vipu-partition=p --n 1", text.partition("cmd: ")[2]
    plain, allowed = read(text + "}"), read(text + ", allow_wandb: true}")
    for benchmark, given, command in (
        (plain, {}, taken),
        (plain, {"allow_wandb": True}, kept),
        (allowed, {}, kept),
        (allowed, {"ignore_wandb": True}, taken),
        (allowed, {"compile_only": True}, "x --n 1 --compile-only"),
    ):
        assert variants(benchmark, **given)[0].command == command
    words = variants(read("a: {cmd: x $DATASETS_DIR/y}"), {"DATASETS_DIR": "/d"})[0].words
    assert words == ["x", "/d/y"]
    partition = read("a_gen: {cmd: 'poprun --vipu-partition=$IPUOF_VIPU_API_PARTITION_ID x'}")
    assert "--vipu-partition=p" in variants(partition, {"PARTITION": "p"})[0].words


def test_a_row_says_what_the_command_does(read):
    train = "a_gen: {cmd: 'python3 train.py --config=benchmark_cpu --train_batch_size=6 --dtype=bf16'}"
    (variant,) = variants(read(train))
    results = {"throughput": {"mean": 2.9}, "step_secs": {"mean": 2.0}, "latency_99p": {"mean": 5.0}}
    made = run.make_row(variant, results)
    latencies = made.pop("latency_ms")
    wanted = {"name": "a_gen", "dtype": "bf16", "max_seq_length": 128, "batch": 6, "backend": "tensorflow"}
    assert made == {**wanted, "sequences_per_sec": 3.0}
    assert latencies == {"mean": None, "p50": None, "p99": 5.0, "p999": None, "min": None, "max": None}
    (packed,) = variants(read(train[:-2] + " --pack_on_the_fly'}"))
    assert run.make_row(packed, results)["sequences_per_sec"] == 2.9  # a step has as many as fit
    (other,) = variants(read("b_gen: {cmd: 'x --backends a --dtypes=fp32,bf16 --micro-batch-size 4'}"))
    made = run.make_row(other, {})
    assert (made["backend"], made["dtype"], made["batch"]) == ("a", None, 4)


def test_numbers_of_an_output(read):
    """Reduced, multiplied by mpirun's processes, computed of one another and of parameters, or missing."""

    def found(name, output, settings="", code=0, more="", command="x", **values):
        keys = f"cmd: {command}, data: {{{name}: {{regexp: 'n=(.*)'{settings}}}}}{more}"
        (variant,) = variants(read(f"a_gen: {{{keys}}}"))
        numbers, processes = variant.benchmark.numbers, variant.processes
        return spec.find_numbers(numbers, output.splitlines(), values, code, processes)

    for name, settings, value in (
        ("m", "", 4.0),
        ("m", ", skip: 1", 5.0),  # sorted first: the smallest is left out, wherever it stands
        ("latency", ", skip: 1", 2.5),  # the largest
        ("m", ", skip: 1, reduction_type: final", 3.0),
        ("m", ", reduction_type: min", 2.0),
        ("m", ", reduction_type: value", 7.0),
    ):
        reduction = settings.partition("type: ")[2] or "mean"
        assert found(name, "n=7\nx n=2\nn=3", settings) == ({name: {reduction: value}}, [])
    mpi = "mpirun --tag-output --np 4 x"
    assert found("throughput", "n=3", command=mpi) == ({"throughput": {"mean": 12.0}}, [])
    for text, code, why in (
        ("n=nan", 0, "NaN"),
        ("n=1", 3, "exit code 3"),
        ("", 0, "0 matches"),
        ("n=1", 0, "1 matches"),
        ("n=?", 0, "is not a number"),
    ):
        results, problems = found("t", text, ", skip: 1", code)
        assert results == {"t": {"mean": None}} and why in problems[0]
    more = ", derived: {a: {expr: '{t} * 4'}, c: {expr: 'max({a}, 1) ** 2', reduction_type: p99}}"
    assert found("t", "n=1.5", more=more)[0] == {"t": {"mean": 1.5}, "a": {"mean": 6.0}, "c": {"p99": 36.0}}
    results, problems = found("t", "", more=more)
    assert results["a"] == {"mean": None} and "a: 'None * 4'" in problems[1]
    assert found("t", "n=2", more=more, t="5")[0]["a"] == {"mean": 20.0}  # a parameter counts before


def test_arithmetic_and_nothing_else():
    for text, value in (
        ("1 + 2 * 3", 7),
        ("-(7 // 2) % 3", 0),
        ("-2 ** 2 ** 3", -256),
        ("round(2.345, 1)", 2.3),
        ("min(3, 2) / 4", 0.5),
        ("int(2.9)", 2),
    ):
        assert spec.evaluate(text) == value
    others = "__import__('os')|a|[1]|(1).real|1 if 1 else 2|'a' * 9|max|min()|(-8) ** 0.5|1 +|1 << 2|1e999"
    for text in (*others.split("|"), "1 + " * 1000 + "1"):
        with pytest.raises(ValueError):
            spec.evaluate(text)
    with pytest.raises(ArithmeticError):  # powers do not grow without bound
        spec.evaluate("9 ** 9 ** 9")
