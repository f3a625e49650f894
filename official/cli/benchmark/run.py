"""Runs the benchmarks of a YAML file, extracts numbers from their output, and writes JSON, CSV, XML, markdown
and a chart.

  bert benchmark --spec=benchmarks.yml --benchmark=pretrain_base_128_gen_cpu
  python scripts/benchmark.py --spec benchmarks.yml --log-dir logs

The format and the names of the options are those of Graphcore's `examples_utils benchmark`. A failed
benchmark is reported, and the others run. Exit code 1: one has failed.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import dataclasses
import datetime
import glob
import importlib
import io
import json
import logging
import os
import pathlib
import re
import runpy
import shlex
import shutil
import signal
import subprocess
import sys
import time
import types
import xml.etree.ElementTree as xml
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Literal

from official.cli import command_line, outputs
from official.cli import flags as train_flags
from official.cli.benchmark import spec
from official.cli.benchmark.spec import MAX_SECS, Benchmark, Results, number_of
from official.io.errors import ConfigError, suggest
from official.io.writing import check_output_file
from official.launching import supervisor

# -----------------------------------------------------------------------------------------------------------
# Flags


_MIN_SECS = 0.001
_SLURM = "submit this command itself, with sbatch"
_ONE_MACHINE = "nothing is copied to other machines: they share the folder, or have a copy"
# Options of the published runner that are refused -> why.
_REFUSED = {
    "gc_monitor": "it shows IPUs, every 5 seconds: run gc-monitor beside the benchmark",
    **dict.fromkeys(("no_code_sync", "remove_dirs_after"), _ONE_MACHINE),
    "upload_checkpoints": "checkpoints stay where the command writes them; see latest_checkpoint_path",
    **dict.fromkeys(("submit_on_slurm", "slurm_machine_type", "slurm_resource_reservation"), _SLURM),
    "ignore_errors": "a benchmark that fails stops nothing, unless --stop_on_error is given",
    "examples_location": "entries run in the folder of their file; see location and reference_directory",
    "sdk_path": "activate the SDK before; POPLAR_SDK_ENABLED tells where it is",
    "venv_path": "activate the environment before",
}


class Main(command_line.Flags):
    """Flags of the command.

    Attributes:
      spec: Files of benchmarks, separated by commas or blanks.
      benchmark: Benchmarks to run, in this order, separated by commas or blanks. Unset: all.
      log_dir: Folder for logs and results. Unset: log_<time> in the working folder.
      output: Also write OUTPUT.json with machine and versions, OUTPUT.md and a chart, OUTPUT.png.
      overwrite: Replace results in --log_dir and of --output.
      csv_metrics: Additional metrics as columns of the CSV, separated by commas or blanks.
      additional_metrics: More columns: test_duration, loss, result, cmd, env, git_commit_hash.
      custom_metrics_files: Python files that call register_custom_metric(name, function).
      logging: Which messages are shown, and Poplar's level in runs on IPUs.
      timeout: Maximum seconds of a run; then all its processes are ended.
      stop_on_error: Stop after the first benchmark that fails.
      compile_only: Pass --compile-only to the programs; extract no numbers.
      allow_wandb: Keep arguments for W&B; else they are removed.
      ignore_wandb: Remove them also if an entry allows them.
      include_convergence: Without --benchmark: entries with _conv, too.
      profile: Runs on IPUs write Poplar's reports to <variant>_profile.
      requirements_file: Requirements file to install with pip before the first run.
      progress_trace_period: Seconds between two progress lines, on a terminal.
    """

    ALIASES = {"logdir": "log_dir"}
    LISTS = ("spec", "benchmark", "csv_metrics", "custom_metrics_files")
    RANGES = dict.fromkeys(("timeout", "progress_trace_period"), (_MIN_SECS, MAX_SECS))
    spec: str = "benchmarks.yml"
    benchmark: str | None = None
    log_dir: str | None = None
    output: str | None = None
    overwrite: bool = False
    csv_metrics: str | None = None
    additional_metrics: bool = False
    custom_metrics_files: str | None = None
    logging: Literal["DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"] = "INFO"
    timeout: float | None = None
    stop_on_error: bool = False
    compile_only: bool = False
    allow_wandb: bool = False
    ignore_wandb: bool = False
    include_convergence: bool = False
    profile: bool = False
    requirements_file: str | None = None
    progress_trace_period: float = 1.0


def parse_flags() -> argparse.Namespace:
    for word in sys.argv[1:]:
        name = word.partition("=")[0].removeprefix("--").replace("-", "_")
        if word.startswith("--") and name in _REFUSED:
            raise ConfigError(f"--{name} is not an option here: {_REFUSED[name]}.")
    flags: argparse.Namespace = Main.parse()
    for name in Main.LISTS:
        setattr(flags, name, [part for part in (getattr(flags, name) or "").split(",") if part])
    if not flags.spec:
        raise ConfigError("--spec is empty, expected files of benchmarks.")
    if flags.allow_wandb and flags.ignore_wandb:
        raise ConfigError("--allow_wandb and --ignore_wandb exclude each other. Drop one of them.")
    now = datetime.datetime.now().strftime("%Y-%m-%d-%H.%M.%S.%f")
    flags.log_dir = os.path.abspath(flags.log_dir or f"log_{now}")
    return flags


# -----------------------------------------------------------------------------------------------------------
# Variants: command lines and environments


# Environment variable of a command for several machines -> other variables that may hold its value.
_OF_MACHINES = {
    "HOSTS": (),
    "IPUOF_VIPU_API_PARTITION_ID": ("PARTITION",),
    "VIPU_ALLOCATION_ID": (),
    "TCP_IF_INCLUDE": (),
    "VIPU_CLI_API_HOST": ("IPUOF_VIPU_API_HOST",),
}
_VIPU = ("--vipu-partition=", "--vipu-server-host=", "--vipu-server-port")
_VARIABLE = re.compile(r"\$(?:(\w+)|\{(\w+)\})")
_WANDB = re.compile(r"(?<!\S)-[^\s=]*wandb[^\s=]*(?:=\S*| +[^-\s]\S*)?(?!\S)")  # with its value
_MPI_PROCESSES = re.compile(r"mpirun.+--np.(\d*) ")


@dataclasses.dataclass(frozen=True)
class Variant:
    """A run of a benchmark.

    Attributes:
      benchmark: its benchmark.
      name: <benchmark>_<parameter>_<value>..., parameters sorted.
      values: {parameter: value}.
      command: the command with its parameters filled in, environment variables not expanded.
      words: words of the executed command.
      env: the whole environment.
      added_env: variables added by the runner and the entry.
      processes: N of `mpirun --np N`, else 1.
    """

    benchmark: Benchmark
    name: str
    values: dict[str, str]
    command: str
    words: list[str]
    env: dict[str, str]
    added_env: dict[str, str]
    processes: int


def make_variants(
    benchmark: Benchmark, flags: argparse.Namespace, environment: Mapping[str, str] = os.environ
) -> list[Variant]:
    """Returns the runs of a benchmark. Raises ConfigError for a command that cannot be split into words, for
    unset variables, and for a missing folder."""
    title, entry, folder = benchmark.name, benchmark.entry, benchmark.folder
    is_generated = entry.get("generated") or entry.get("synthetic") or "gen" in title or "synth" in title
    if not is_generated and "DATASETS_DIR" not in environment:
        others = "Names of those on generated data have gen or synth in them."
        raise ConfigError(f"{title} needs data: set DATASETS_DIR. {others}")
    if not os.path.isdir(folder):
        raise ConfigError(f"{title}: its location {folder} is no folder.")
    shared = {}
    named = {one or other for one, other in _VARIABLE.findall(entry["cmd"])}
    for variable in filter(named.__contains__, _OF_MACHINES):
        names = (variable, *_OF_MACHINES[variable])
        values = [environment[each] for each in names if each in environment]
        if not values:
            also = "".join(f", or {each}" for each in names[1:])
            raise ConfigError(f"{title}: its command needs {variable} in the environment{also}.")
        shared[variable] = values[0]
    variants = []
    for parameters in benchmark.variants:
        name = title + "".join(f"_{key}_{parameters[key]}" for key in sorted(parameters))
        levels = dict.fromkeys(("POPLAR_LOG_LEVEL", "POPART_LOG_LEVEL"), flags.logging)
        added = {**levels, "TF_CPP_VMODULE": "poplar_compiler=1"}
        if flags.profile:
            report = {
                "all": "true",
                "directory": f"{folder}/{name}_profile",
                "outputSerializedGraph": "false",
            }
            added["POPLAR_ENGINE_OPTIONS"] = json.dumps({f"autoReport.{key}": report[key] for key in report})
        added |= {str(key): str(value) for key, value in entry.get("env", {}).items()}
        env = {**environment, **added, **shared}
        # The interpreter of this process is `python3`, also where its environment is not active.
        env["PATH"] = os.pathsep.join([os.path.dirname(sys.executable), env.get("PATH", os.defpath)])
        command = _command(benchmark, parameters, flags)
        try:
            words = shlex.split(_expanded(command, env))
        except ValueError as error:
            raise ConfigError(f"{title}: cmd {command[:60]!r}: {error}.") from None
        found = _MPI_PROCESSES.search(command)
        processes = int(found[1] or 1) if found else 1
        variants.append(Variant(benchmark, name, parameters, command, words, env, added, processes))
    return variants


def _expanded(command: str, env: Mapping[str, str]) -> str:
    """Expands the environment variables of a command; unset ones are kept."""
    return _VARIABLE.sub(lambda found: env.get(found[1] or found[2], found[0]), command)


def _command(benchmark: Benchmark, values: dict[str, str], flags: argparse.Namespace) -> str:
    """Returns the command in one line: its parameters filled in, the file that Python runs as a full path,
    without disallowed W&B arguments; for compiling only, without V-IPU's and with --compile-only."""
    words = spec.fill(benchmark.entry["cmd"], values).split()
    interpreter = next((each for each in ("python3", "python") if each in words[:-1]), None)
    if interpreter:
        place = words.index(interpreter) + 1
        if not words[place].startswith("-"):
            words[place] = os.path.join(benchmark.folder, words[place])
    allows_wandb = benchmark.entry.get("allow_wandb") and not flags.ignore_wandb or flags.allow_wandb
    if flags.compile_only or not allows_wandb:
        words = _WANDB.sub("", " ".join(words)).split()
    if flags.compile_only:
        words = [word for word in words if not word.startswith(_VIPU)] + ["--compile-only"]
    return " ".join(words)


def plan(flags: argparse.Namespace) -> list[Variant]:
    """Returns all runs, in order. Raises ConfigError for an invalid one before any has started."""

    def choose(benchmarks: Collection[str]) -> list[str]:
        for name in flags.benchmark:
            if name not in benchmarks:
                known = ", ".join(benchmarks) or "none"
                raise ConfigError(f"--benchmark={name}{suggest(name, benchmarks)} is not one of {known}.")
        every = [name for name in benchmarks if flags.include_convergence or "_conv" not in name]
        return flags.benchmark or every

    benchmarks = spec.read(flags.spec, choose).values()
    variants = [variant for benchmark in benchmarks for variant in make_variants(benchmark, flags)]
    if not variants:
        raise ConfigError(f"--spec={','.join(flags.spec)} has no benchmark to run.")
    return variants


# -----------------------------------------------------------------------------------------------------------
# A process with a time limit, which ends with all its descendants


_GRACE_SECS = 2.0  # between SIGTERM and SIGKILL; a signal to this process leaves it five in all
_POLL_SECS = 0.2


def run_process(
    variant: Variant, logs: Sequence[str], timeout: float | None, period: float
) -> tuple[int, bool]:
    """Runs a command without a shell, under the launcher's supervisor, which ends all its descendants.
    Returns its exit code, 127 for a missing program, and whether the timeout has ended it. An exception, such
    as from a signal, ends all its processes, too.

    Args:
      variant: the variant whose command to run.
      logs: files for stdout and stderr.
      timeout: seconds after which all its processes are ended; None: no limit.
      period: seconds between two progress lines, on a terminal.
    """
    words, folder = variant.words, variant.benchmark.folder
    order = json.dumps({"command": words, "environment": variant.env, "folder": folder})
    with open(logs[0], "wb") as out, open(logs[1], "wb") as err:
        program = os.path.join(folder, words[0]) if os.sep in words[0] else words[0]
        if not shutil.which(program, path=variant.env["PATH"]):
            known = "cannot be run" if os.path.exists(program) else "no such program"
            err.write(f"{words[0]}: {known}\n".encode())
            return 127, False  # as of a shell
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", supervisor.__file__],
            stdin=subprocess.PIPE,
            stdout=out,
            stderr=err,
            text=True,
            start_new_session=True,
        )
        assert process.stdin
        print(order, file=process.stdin, flush=True)
        started = shown = time.monotonic()
        try:
            while timeout is None or time.monotonic() < started + timeout:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    return process.wait(_POLL_SECS), False
                if sys.stderr.isatty() and time.monotonic() >= shown + period:
                    shown = time.monotonic()
                    passed = datetime.timedelta(seconds=int(shown - started))
                    print(f"\r   {passed}\r", end="", file=sys.stderr, flush=True)
        finally:
            with contextlib.suppress(BrokenPipeError, subprocess.TimeoutExpired):
                print("signal", int(signal.SIGTERM), file=process.stdin, flush=True)
                process.wait(_GRACE_SECS)
            with contextlib.suppress(BrokenPipeError):
                process.stdin.close()  # makes the supervisor kill the remaining processes
            process.wait()
        err.seek(0, os.SEEK_END)
        err.write(f"\nTimeout ({timeout:g})\n".encode())
        return process.returncode or 1, True


# -----------------------------------------------------------------------------------------------------------
# A run and its result


Function = Callable[[str, str, int], "float | None"]  # of stdout, stderr and the exit code
Run = tuple[Variant, dict[str, Any]]  # and its result
_COMPILING = "total_compiling_time"
_COMPILED = re.compile(r"Compiled/Loaded model in (\d+(?:\.\d+)?) secs")  # of our trainer
_CHECKPOINT_FLAGS = re.compile(
    r"--(?:checkpoint[-_]output[-_]dir|save[-_]ckpt[-_]path|model[-_]dir)[= ](\S+)"
)
_SDK_VERSION = re.compile(r"\d+\.\d+\.\d+\+\d+")
# Key of a latency -> names of metrics that hold it, in milliseconds.
_LATENCIES = {
    "mean": ("latency", "latency_avg", "latency_mean"),
    "p50": ("latency_50p", "latency_p50"),
    "p99": ("latency_99p", "latency_p99"),
    "p999": ("latency_99p9", "latency_p999"),
    "min": ("latency_min",),
    "max": ("latency_max",),
}
# Key of a row -> flags that say it.
_FLAGS = {
    "dtype": ("dtype", "dtypes", "precision"),
    "max_seq_length": ("max_seq_length",),
    "batch": ("micro_batch_size", "batch_size", "train_batch_size", "batch"),
    "backend": ("backend", "backends"),
}


def load_functions(paths: Iterable[str]) -> dict[str, Function]:
    """Returns {metric: function} that Python files register, with `register_custom_metric(name, function)`,
    which they may import under the name of the published package. Raises ConfigError."""
    found: dict[str, Function] = {}
    module = types.ModuleType("examples_utils.benchmarks.custom_metrics")
    vars(module)["register_custom_metric"] = found.__setitem__
    sys.modules[module.__name__] = module
    while "." in module.__name__:  # the packages around it: those installed, else empty ones
        outer, _, name = module.__name__.rpartition(".")
        try:
            package = importlib.import_module(outer)
        except ImportError:
            package = sys.modules[outer] = types.ModuleType(outer)
        setattr(package, name, module)
        module = package
    for path in paths:
        try:
            runpy.run_path(path, {"register_custom_metric": found.__setitem__})
        except Exception as error:
            reason = getattr(error, "strerror", None) or f"{type(error).__name__}: {error}"
            raise ConfigError(f"--custom_metrics_files={path}: {reason}.") from None
    return found


def run_variant(variant: Variant, flags: argparse.Namespace, log: logging.Logger) -> dict[str, Any]:
    """Runs a variant, writes its files below the folder of the logs, and returns its result in the published
    keys and ours, with the reasons of missing metrics in `problems`."""
    benchmark = variant.benchmark
    folder = os.path.join(flags.log_dir, variant.name.replace(os.sep, "_"))
    os.makedirs(folder, exist_ok=True)
    logs = [os.path.join(folder, name) for name in ("stdout.log", "stderr.log")]
    log.info("Running %s", variant.name)
    log.debug("   %s\n   in %s, env %s", variant.command, benchmark.folder, variant.added_env)
    limits = [each for each in (flags.timeout, benchmark.entry.get("timeout")) if each is not None]
    limit = min(limits, default=None)
    started, beginning = datetime.datetime.now(), time.monotonic()
    try:
        code, timed_out = run_process(variant, logs, limit, flags.progress_trace_period)
    finally:
        with open(os.path.join(flags.log_dir, "output.log"), "ab") as whole:
            for path in filter(os.path.exists, logs):
                whole.write(pathlib.Path(path).read_bytes())
    ended, duration = datetime.datetime.now(), time.monotonic() - beginning
    stdout, stderr = (pathlib.Path(path).read_text("utf-8", "replace") for path in logs)
    found, problems = find_numbers(variant, flags, code, stdout, stderr)
    if code:
        problems = [f"timeout of {limit:g} s" if timed_out else f"exit code {code}"]
    sdk = os.environ.get("POPLAR_SDK_ENABLED")
    version = _SDK_VERSION.search(sdk or "")
    result = {
        "benchmark_path": benchmark.path,
        "benchmark_name": benchmark.name,
        "variant_name": variant.name,
        "params": variant.values,
        "command": variant.command,
        "results": found,
        "start_time": str(started),
        "end_time": str(ended),
        "compilation_end_time": str(number_of(found, _COMPILING)),
        "test_duration": str(duration),
        "exitcode": code or int(bool(problems)),
        "log_paths": {"out": logs[0], "err": logs[1]},
        "latest_checkpoint_path": _latest_checkpoint(variant),
        "sdk_path": sdk,
        "sdk_version": version[0] if version else None,
        "problems": problems,
        **make_row(variant, found),
    }
    for name in found:
        value = number_of(found, name)
        if value is not None:
            log.info("   %s = %s", name, f"{value:,.6g}")
    if problems:
        last = [f"| {line}" for line in stderr.splitlines()[-10:]]
        for line in (*problems, "Last lines of its stderr:", *last):
            log.error("   %s", line)
    outputs.write_json(os.path.join(folder, "variant_result.json"), result)
    return result


def find_numbers(
    variant: Variant, flags: argparse.Namespace, code: int, stdout: str, stderr: str
) -> tuple[Results, list[str]]:
    """Returns (metrics of a run, reasons of missing ones). If several processes compile, the longest time
    counts; a failed function of the user gives no value."""
    lines = [*stdout.splitlines(), *stderr.splitlines()]
    wanted = () if flags.compile_only else variant.benchmark.numbers
    found, problems = spec.find_numbers(wanted, lines, variant.values, code, variant.processes)
    compiling = [] if code else [float(secs) for line in lines for secs in _COMPILED.findall(line)]
    found[_COMPILING] = {"mean": max(compiling, default=None)}
    for name, function in flags.functions.items():
        found[name] = {"value": None}
        with contextlib.suppress(Exception):
            value = function(stdout, stderr, code)
            found[name] = {"value": None if value is None else float(value)}
    return found, problems


def make_row(variant: Variant, results: Results) -> dict[str, Any]:
    """Returns {name, dtype, max_seq_length, batch, backend, sequences_per_sec, latency_ms}, with None for
    values that the command does not set or that were not measured.

    If the seconds of a step are known (`step_secs`), the speed is computed from them with all digits; the log
    lines of a training run round it to tenths.
    """
    numbers = {name: number for name in results if (number := number_of(results, name)) is not None}
    latencies = {
        key: next((numbers[name] for name in names if name in numbers), None)
        for key, names in _LATENCIES.items()
    }
    said, sequences = _said(variant.words)
    speed, secs = numbers.get("throughput"), numbers.get("step_secs")
    if sequences and secs and speed is not None:
        speed = sequences / secs * variant.processes
    has_latency = any(value is not None for value in latencies.values())
    row = {"name": variant.name, **said, "sequences_per_sec": speed}
    return {**row, "latency_ms": latencies if has_latency else None}


def _said(words: Sequence[str]) -> tuple[dict[str, Any], int]:
    """Returns dtype, length, batch and back end of a command, and the sequences per step, 0 if unknown: for
    our training from its configuration, else from its flags."""
    trains = [place for place, word in enumerate(words) if os.path.basename(word) == "train.py"]
    if trains:
        with contextlib.suppress(ConfigError):  # of another train.py
            config = train_flags.parse([*words[trains[0] + 1 :], "--plan"])
            values = (config.dtype, config.max_seq_length, config.train_batch_size, "tensorflow")
            is_packed = config.pack_on_the_fly or config.pack
            return dict(zip(_FLAGS, values)), 0 if is_packed else config.train_batch_size
    given = dict(command_line.given_values(words))
    said: dict[str, Any] = {}
    for key, names in _FLAGS.items():
        text = next((given[name] for name in names if name in given), ",")
        is_number = key in ("max_seq_length", "batch")
        is_one = text.isdigit() if is_number else "," not in text
        said[key] = None if not is_one else int(text) if is_number else text
    return said, 0


def _latest_checkpoint(variant: Variant) -> str | None:
    """Returns the newest checkpoint, else the newest folder, in the command's checkpoint folder; None without
    one."""
    named = _CHECKPOINT_FLAGS.search(variant.command)
    if not named or "://" in named[1]:
        return None
    folder = os.path.join(variant.benchmark.folder, named[1].strip("\"'"))
    found = glob.glob(os.path.join(glob.escape(folder), "ckpt-*.index"))
    found = found or [
        path for path in glob.glob(os.path.join(glob.escape(folder), "**", "")) if path != folder
    ]
    return max(found, key=os.path.getmtime).removesuffix(".index") if found else None


# -----------------------------------------------------------------------------------------------------------
# Results as files and as text


_ADDITIONAL = ("test_duration", "loss", "result", "cmd", "env", "git_commit_hash")
_CSV_METRICS = ("throughput", "latency", _COMPILING)
_LOSSES = ("loss", "total_loss", "mlm_loss")
_OF_THE_MACHINE = ("benchmark_path", "log_paths", "latest_checkpoint_path", "sdk_path")
_DASH = "\u2013"


def _verdict(result: Mapping[str, Any]) -> str:
    return "FAILED" if result["exitcode"] else "PASSED"


def _count_failed(runs: Iterable[Run]) -> int:
    return sum(result["exitcode"] != 0 for _, result in runs)


def summary(runs: Sequence[Run]) -> str:
    """Returns a line for each run, and the number of failed ones."""
    lines = [f"{_verdict(result)} {each.benchmark.name}::{each.benchmark.name}" for each, result in runs]
    failed = _count_failed(runs)
    counts = f" {failed} failed, {len(runs) - failed} passed ".center(62, "=")
    return "\n".join([" short test summary info ".center(62, "="), "", *lines, "", counts])


def to_json(runs: Iterable[Run]) -> str:
    """Returns {benchmark: [result of a variant, ...]}, as published."""
    found: dict[str, list] = {}
    for variant, result in runs:
        found.setdefault(variant.benchmark.name, []).append(result)
    return json.dumps(found, sort_keys=True, indent=2) + "\n"


def to_csv(runs: Iterable[Run], more: Iterable[str], additional: bool) -> str:
    """Returns a line for each variant: the published metrics, `more` metrics, and the `additional`
    columns."""
    names = list(dict.fromkeys([*_CSV_METRICS, *more]))
    text, commit = io.StringIO(), None
    writer = csv.writer(text, quoting=csv.QUOTE_ALL, lineterminator="\n")
    writer.writerow(["benchmark name", "Variant name", *names, *(_ADDITIONAL if additional else ())])
    if additional:  # of the working folder
        with contextlib.suppress(OSError):
            done = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=False)
            commit = done.stdout.strip() or None
    for variant, result in runs:
        found = result["results"]
        row = [variant.benchmark.name, variant.name, *(number_of(found, name) for name in names)]
        if additional:
            loss = next((number_of(found, name) for name in _LOSSES if name in found), None)
            row += [result["test_duration"], loss, _verdict(result), variant.command]
            row += [json.dumps(variant.added_env), commit]
        writer.writerow(row)
    return text.getvalue()


def to_xml(runs: Sequence[Run]) -> str:
    """Returns the runs as a test suite in JUnit's XML, for CI systems."""
    counts = {"tests": str(len(runs)), "failures": str(_count_failed(runs))}
    root = xml.Element("testsuites")
    suite = xml.SubElement(root, "testsuite", {"name": "benchmarks", **counts})
    for variant, result in runs:
        names = {"classname": variant.benchmark.name, "name": variant.name}
        case = xml.SubElement(suite, "testcase", {**names, "time": result["test_duration"]})
        if result["exitcode"]:
            message = "; ".join(result["problems"])
            printable = "".join(letter if letter.isprintable() else " " for letter in message)
            xml.SubElement(case, "failure", {"message": printable})
    xml.indent(root)
    return xml.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def to_rows(runs: Iterable[Run]) -> list[dict[str, str]]:
    """Returns {title: cell} of each run: name, status, seconds, and the columns in `output` of its entry."""
    rows = []
    for variant, result in runs:
        secs = f"{float(result['test_duration']):,.0f}"
        row = {"benchmark": variant.name, "result": _verdict(result), "seconds": secs}
        for label, name in variant.benchmark.columns:
            number = _shown(result, name)
            row[label] = variant.values.get(name, _DASH) if number is None else _format(number)
        rows.append(row)
    return rows


def _shown(result: Mapping[str, Any], name: str) -> float | None:
    """Returns the value of a metric for tables and charts; the speed with all its digits."""
    return result["sequences_per_sec"] if name == "throughput" else number_of(result["results"], name)


def _format(value: float) -> str:
    """Formats a number with at least three significant digits, and commas between thousands."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _titles(rows: list[dict[str, str]]) -> list[str]:
    return list(dict.fromkeys(title for row in rows for title in row))


def to_markdown(rows: list[dict[str, str]]) -> str:
    """Returns a table in markdown."""
    titles = _titles(rows)
    lines = [titles, ["---"] * len(titles), *([row.get(title, _DASH) for title in titles] for row in rows)]
    return "".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |\n" for line in lines)


def draw(runs: Iterable[Run]) -> bytes | None:
    """Draws a bar for each run: the first column of its `output`, relative to the largest of the same unit.
    Returns a PNG; None without numbers."""
    from official.reporting import measurement

    found: dict[str, dict[str, float]] = {}
    for variant, result in runs:
        for unit, name in variant.benchmark.columns[:1]:
            number = _shown(result, name)
            if number is not None:
                found.setdefault(unit, {})[variant.name] = number
    bars = [
        (name, number / (max(numbers.values()) or 1), 0.0, f"{_format(number)} {unit}", unit)
        for unit, numbers in found.items()
        for name, number in numbers.items()
    ]
    return (
        measurement.draw_bars(bars, "Benchmarks", "share of the largest of the same unit") if bars else None
    )


# -----------------------------------------------------------------------------------------------------------
# bert benchmark run


def write(runs: list[Run], flags: argparse.Namespace) -> None:
    """Writes all results in the log folder except the chart."""
    texts = {
        "json": to_json(runs),
        "csv": to_csv(runs, [*flags.csv_metrics, *flags.functions], flags.additional_metrics),
        "xml": to_xml(runs),
        "md": to_markdown(to_rows(runs)),
    }
    for ending, text in texts.items():
        outputs.write_file(f"{flags.log_dir}/benchmark_results.{ending}", text)


def finish(runs: list[Run], flags: argparse.Namespace) -> None:
    """Draws the chart, and writes --output, without the paths of this machine."""
    rows = []
    for variant, result in runs:
        kept = {key: value for key, value in result.items() if key not in _OF_THE_MACHINE}
        typed = variant.command.replace(os.path.join(variant.benchmark.folder, ""), "")
        rows.append({**kept, "command": typed})
    if flags.output:
        outputs.write_json(f"{flags.output}.json", outputs.with_machine({"results": rows}))
        outputs.write_file(f"{flags.output}.md", to_markdown(to_rows(runs)))
    drawn = draw(runs)
    if drawn:
        for stem in filter(None, (f"{flags.log_dir}/benchmark_results", flags.output)):
            outputs.write_file(f"{stem}.png", drawn)


def main() -> int:
    """Runs the variants one after the other, and writes all results except the chart after each. A signal
    ends the current one; earlier measurements are kept."""
    flags = parse_flags()
    variants = plan(flags)
    flags.functions = load_functions(flags.custom_metrics_files)
    for ending in ("json", "csv", "xml", "md", "png"):
        check_output_file(f"{flags.log_dir}/benchmark_results.{ending}", "log_dir", flags.overwrite)
    for ending in ("json", "md", "png") if flags.output else ():
        check_output_file(f"{flags.output}.{ending}", "output", flags.overwrite)
    log = logging.Logger("benchmark", flags.logging)
    log.addHandler(logging.StreamHandler(sys.stdout))
    log.addHandler(logging.FileHandler(f"{flags.log_dir}/console.log", encoding="utf-8"))
    needed = [(each.benchmark.folder, each.benchmark.entry.get("requirements_file")) for each in variants]
    paths = [os.path.join(folder, name) for folder, name in [("", flags.requirements_file), *needed] if name]
    for path in dict.fromkeys(paths):
        done = subprocess.run([sys.executable, "-m", "pip", "install", "-r", path], check=False)
        if done.returncode:
            raise ConfigError(f"requirements_file {path}: pip ended with exit code {done.returncode}.")
    runs: list[Run] = []
    for variant in variants:
        try:
            runs.append((variant, run_variant(variant, flags, log)))
        except KeyboardInterrupt:
            log.critical("\n%s was interrupted. Results: %s\n%s", variant.name, flags.log_dir, summary(runs))
            raise
        write(runs, flags)
        if flags.stop_on_error and runs[-1][1]["exitcode"]:
            log.error("Stopped: --stop_on_error.")
            break
    finish(runs, flags)
    rows = to_rows(runs)
    log.info("\n%s\n", outputs.table([(title, title, "") for title in _titles(rows)], rows))
    log.critical(summary(runs))
    log.info("Results: %s", flags.log_dir)
    return int(_count_failed(runs) > 0)
