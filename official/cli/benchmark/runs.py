"""Runs of a benchmark: command lines of its variants, processes with a time limit, numbers in the output."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import datetime
import glob
import math
import os
import re
import runpy
import shlex
import shutil
import signal
import subprocess
import sys
import time
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from official.cli import command_line, flags, outputs
from official.cli.benchmark import spec
from official.cli.benchmark.spec import Benchmark, Derived, Metric
from official.io.errors import ConfigError

# -----------------------------------------------------------------------------------------------------------
# Command lines and environments


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
      benchmark: the benchmark that it belongs to.
      name: <benchmark>_<parameter>_<value>...
      values: {parameter: value}.
      command: the command with its parameters filled in, environment variables not expanded.
      words: words of the command that is run.
      env: the whole environment.
      added_env: variables that the runner and the entry add to it.
      processes: N of `mpirun --np N`, else 1.
    """

    benchmark: Benchmark
    name: str
    values: dict[str, str]
    command: str
    words: tuple[str, ...]
    env: dict[str, str]
    added_env: dict[str, str]
    processes: int


@dataclasses.dataclass(frozen=True)
class Options:
    """Options of the runner's command line that apply to all commands.

    Attributes:
      logging: level of Poplar's messages.
      compile_only: whether the programs only compile.
      allow_wandb: True: arguments for W&B stay; False: they are dropped; None: as set in the entry.
      profile: whether Poplar writes its reports.
    """

    logging: str = "INFO"
    compile_only: bool = False
    allow_wandb: bool | None = None
    profile: bool = False


def make_variants(
    benchmark: Benchmark, options: Options, environment: Mapping[str, str] = os.environ
) -> list[Variant]:
    """Returns the runs of a benchmark. Raises ConfigError for a command that cannot be split into words, for
    unset variables, and for a missing folder."""
    if benchmark.needs_data and "DATASETS_DIR" not in environment:
        raise ConfigError(
            f"{benchmark.name} needs data: set DATASETS_DIR. Names of those on generated data have gen or"
            " synth in them."
        )
    if not os.path.isdir(benchmark.folder):
        raise ConfigError(f"{benchmark.name}: its location {benchmark.folder} is no folder.")
    return [_make_variant(benchmark, values, options, environment) for values in benchmark.variants]


def _make_variant(
    benchmark: Benchmark, values: dict[str, str], options: Options, environment: Mapping[str, str]
) -> Variant:
    name, command = spec.name_of(benchmark.name, values), _command(benchmark, values, options)
    added = {
        "POPLAR_LOG_LEVEL": options.logging,
        "POPART_LOG_LEVEL": options.logging,
        "TF_CPP_VMODULE": "poplar_compiler=1",
    }
    if options.profile:
        folder = os.path.join(benchmark.folder, f"{name}_profile")
        added["POPLAR_ENGINE_OPTIONS"] = (
            f'{{"autoReport.all": "true", "autoReport.directory": "{folder}",'
            ' "autoReport.outputSerializedGraph": "false"}'
        )
    added |= benchmark.env
    env = {**environment, **added, **_of_machines(benchmark, environment)}
    # The interpreter of this process is the one that `python3` is, also where its environment is not active.
    env["PATH"] = os.pathsep.join([os.path.dirname(sys.executable), env.get("PATH", os.defpath)])
    expanded = _VARIABLE.sub(lambda found: env.get(found[1] or found[2], found[0]), command)
    try:
        words = tuple(shlex.split(expanded))
    except ValueError as error:
        raise ConfigError(f"{benchmark.name}: cmd {command[:60]!r}: {error}.") from None
    found = _MPI_PROCESSES.search(command)
    processes = int(found[1] or 1) if found else 1
    return Variant(benchmark, name, values, command, words, env, added, processes)


def _command(benchmark: Benchmark, values: dict[str, str], options: Options) -> str:
    """Returns the command in one line: its parameters filled in, the file that Python runs as a full path,
    without disallowed W&B arguments; for compiling only, without V-IPU's and with --compile-only."""
    words = spec.fill(benchmark.command, values).split()
    interpreter = next((each for each in ("python3", "python") if each in words[:-1]), None)
    if interpreter:
        place = words.index(interpreter) + 1
        if not words[place].startswith("-"):
            words[place] = os.path.join(benchmark.folder, words[place])
    allows_wandb = benchmark.allows_wandb if options.allow_wandb is None else options.allow_wandb
    if options.compile_only or not allows_wandb:
        words = _WANDB.sub("", " ".join(words)).split()
    if options.compile_only:
        words = [word for word in words if not word.startswith(_VIPU)] + ["--compile-only"]
    return " ".join(words)


def _of_machines(benchmark: Benchmark, environment: Mapping[str, str]) -> dict[str, str]:
    """Returns the variables for several machines that a command names. Raises ConfigError where one is not
    set."""
    found = {}
    named = {one or other for one, other in _VARIABLE.findall(benchmark.command)}
    for name, others in _OF_MACHINES.items():
        if name not in named:
            continue
        values = [environment[each] for each in (name, *others) if each in environment]
        if not values:
            also = "".join(f", or {each}" for each in others)
            raise ConfigError(f"{benchmark.name}: its command needs {name} in the environment{also}.")
        found[name] = values[0]
    return found


# -----------------------------------------------------------------------------------------------------------
# A process with a limit of time, which ends with all that it has started


_GRACE_SECS = 2.0  # between SIGTERM and SIGKILL; a signal to this process leaves it five in all
_POLL_SECS = 0.2
_NOT_FOUND = 127  # exit code, as of a shell


def run_process(
    words: Sequence[str],
    folder: str,
    env: Mapping[str, str],
    logs: tuple[str, str],
    timeout: float | None,
    waiting: Callable[[float], None],
) -> tuple[int, bool]:
    """Runs a command without a shell. Returns its exit code, 127 where there is no such program, and whether
    the timeout has ended it.

    Args:
      words: of the command.
      folder: to run in.
      env: its environment.
      logs: files for stdout and stderr.
      timeout: seconds after which all its processes are ended, or None.
      waiting: called with the seconds since the start, now and then.

    Where an exception passes through, as a signal becomes one, all its processes are ended, too.
    """
    with open(logs[0], "wb") as out, open(logs[1], "wb") as err:
        nothing = subprocess.DEVNULL
        try:
            process = subprocess.Popen(
                words, cwd=folder, env=env, stdin=nothing, stdout=out, stderr=err, start_new_session=True
            )
        except OSError as error:
            err.write(f"{words[0]}: {error.strerror or error}\n".encode())
            return _NOT_FOUND, False
        started = time.monotonic()
        try:
            while timeout is None or time.monotonic() < started + timeout:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    return process.wait(_POLL_SECS), False
                waiting(time.monotonic() - started)
        except BaseException:
            _end_tree(process)
            raise
        _end_tree(process)
        err.seek(0, os.SEEK_END)
        err.write(f"\nTimeout ({timeout:g})\n".encode())
        return process.returncode or 1, True


def _end_tree(process: subprocess.Popen) -> None:
    """Ends a session leader and all processes that it has started: by SIGTERM, then by SIGKILL."""
    import psutil

    below: set[int] = set()
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(psutil.Error):
            below |= {child.pid for child in psutil.Process(process.pid).children(recursive=True)}
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, number)
        for pid in below:  # some lead a session of their own
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_GRACE_SECS)
    process.wait()


# -----------------------------------------------------------------------------------------------------------
# Metrics that people compute in Python files of their own


Function = Callable[[str, str, int], float | None]
_PUBLISHED = (
    "examples_utils.benchmarks.custom_metrics"  # where the files of the published runner import it from
)


def load_functions(paths: Iterable[str]) -> dict[str, Function]:
    """Returns {metric: function of stdout, stderr and the exit code} that files register, with
    `register_custom_metric(name, function)`. They need not import it. Raises ConfigError."""
    found: dict[str, Function] = {}

    def register_custom_metric(name: str, function: Function) -> None:
        found[name] = function

    for path in paths:
        with _importable(register_custom_metric):
            try:
                runpy.run_path(path, {"register_custom_metric": register_custom_metric})
            except Exception as error:
                reason = getattr(error, "strerror", None) or f"{type(error).__name__}: {error}"
                raise ConfigError(f"--custom_metrics_files={path}: {reason}.") from None
    return found


@contextlib.contextmanager
def _importable(function: Callable[[str, Function], None]) -> Iterator[None]:
    """In its block the function can be imported under the name that it has in the published package, where
    that is not installed."""
    parts = _PUBLISHED.split(".")
    names = [".".join(parts[: end + 1]) for end in range(len(parts))]
    missing = [name for name in names if name not in sys.modules]
    for name in missing:
        sys.modules[name] = types.ModuleType(name)
        sys.modules[name].__path__ = []
    vars(sys.modules[_PUBLISHED]).setdefault("register_custom_metric", function)
    try:
        yield
    finally:
        for name in missing:
            del sys.modules[name]


# -----------------------------------------------------------------------------------------------------------
# Metrics: extracted, reduced to one number each, derived from one another


# {metric: {how it was reduced: its value; None where there is none}}
Results = dict[str, dict[str, float | None]]
COMPILING = "total_compiling_time"
_COMPILED = re.compile(r"Compiled/Loaded model in (\d+(?:\.\d+)?) secs")  # of our trainer
_REDUCTIONS: dict[str, Callable[[list[float]], float]] = {
    "final": lambda numbers: numbers[-1],
    "value": lambda numbers: numbers[0],
    "min": min,
    "max": max,
}


def extract(
    metrics: Iterable[Metric], stdout: str, stderr: str, exitcode: int, processes: int = 1
) -> tuple[Results, list[str]]:
    """Returns (metrics of a run, reasons of the missing ones).

    Args:
      metrics: to look for, in all lines of stdout, then in those of stderr.
      stdout, stderr: what the run printed.
      exitcode: of the run; one that failed has no numbers.
      processes: independent ones that `throughput` is the sum of.
    """
    lines = [*stdout.splitlines(), *stderr.splitlines()]
    results: Results = {}
    problems = []
    for metric in metrics:
        value, problem = (None, f"exit code {exitcode}") if exitcode else _found(metric, lines)
        if value is not None and metric.name == "throughput":
            value *= processes
        results[metric.name] = {metric.reduction: value}
        problems += [f"{metric.name}: {problem}"] if problem else []
    return results, problems


def _found(metric: Metric, lines: list[str]) -> tuple[float | None, str]:
    """Returns (value of a metric, reason where it is None). As published, a mean leaves out the first ones
    after sorting: the smallest, of `latency` the largest."""
    try:
        numbers = [float(text) for line in lines for text in metric.regexp.findall(line)]
    except ValueError:
        return None, f"{metric.regexp.pattern!r} matches what is no number"
    if any(map(math.isnan, numbers)):
        return None, "NaN"
    if len(numbers) <= metric.skip:
        return None, f"{len(numbers)} matches of {metric.regexp.pattern!r}, expected more than {metric.skip}"
    if metric.reduction in _REDUCTIONS:
        return _REDUCTIONS[metric.reduction](numbers), ""
    kept = sorted(numbers, reverse=metric.name == "latency")[metric.skip :]
    return sum(kept) / len(kept), ""


def derive(
    derived: Iterable[Derived], results: Results, values: dict[str, str], exitcode: int
) -> tuple[Results, list[str]]:
    """Returns (metrics with the derived ones, reasons of the missing ones).

    Args:
      derived: expressions of metrics, of derived ones before them, and of parameters.
      results: of `extract`.
      values: {parameter: value}; a parameter counts before a metric of the same name.
      exitcode: of the run.
    """
    results, problems = dict(results), []
    for each in derived:
        known = {name: number_of(results, name) for name in results} | values
        value, problem = None, f"exit code {exitcode}"
        if not exitcode:
            try:
                value = spec.evaluate(spec.fill(each.expression, known))
                problem = "" if math.isfinite(value) else f"{each.expression!r} is {value}"
            except (ValueError, ArithmeticError) as error:
                problem = f"{each.expression!r}: {error}"
        results[each.name] = {each.reduction: None if problem else value}
        problems += [f"{each.name}: {problem}"] if problem else []
    return results, problems


def number_of(results: Results, name: str) -> float | None:
    """Returns the value of a metric, whatever it was reduced by; None where there is none."""
    return next(iter(results.get(name, {}).values()), None)


# -----------------------------------------------------------------------------------------------------------
# Result rows, in the keys of all speed benchmarks


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


def make_row(variant: Variant, results: Results) -> dict[str, Any]:
    """Returns {name, dtype, max_seq_length, batch, backend, sequences_per_sec, latency_ms}, with None for
    values that the command does not set or that were not measured.

    Where the seconds of a step are known (`step_secs`), the speed is computed from them, with all its digits:
    the log lines of a training round it to tenths.
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
    return {
        "name": variant.name,
        **said,
        "sequences_per_sec": speed,
        "latency_ms": latencies if any(value is not None for value in latencies.values()) else None,
    }


def _said(words: tuple[str, ...]) -> tuple[dict[str, Any], int]:
    """Returns dtype, length, batch and back end of a command, and the sequences of a step, 0 where they are
    unknown: for our training from its configuration, else from its flags."""
    trains = [place for place, word in enumerate(words) if os.path.basename(word) == "train.py"]
    if trains:
        with contextlib.suppress(ConfigError):  # of another train.py
            config = flags.parse([*words[trains[0] + 1 :], "--plan"])
            values = (config.dtype, config.max_seq_length, config.train_batch_size, "tensorflow")
            is_packed = config.pack_on_the_fly or config.pack
            return dict(zip(_FLAGS, values)), 0 if is_packed else config.train_batch_size
    given = dict(command_line.given_values(words))
    said: dict[str, Any] = {}
    for key, names in _FLAGS.items():
        text = next((given[name] for name in names if name in given), None)
        is_number = key in ("max_seq_length", "batch")
        if text is None or "," in text or is_number and not text.isdigit():
            said[key] = None
        else:
            said[key] = int(text) if is_number else text
    return said, 0


# -----------------------------------------------------------------------------------------------------------
# A run of a variant


LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")
_CHECKPOINT_FLAGS = re.compile(
    r"--(?:checkpoint[-_]output[-_]dir|save[-_]ckpt[-_]path|model[-_]dir)[= ](\S+)"
)
_SDK_VERSION = re.compile(r"\d+\.\d+\.\d+\+\d+")


@dataclasses.dataclass(frozen=True)
class Session:
    """Flags, folder and functions of one command.

    Attributes:
      flags: of the command line.
      log_dir: folder of all files.
      functions: {metric: function} from the user's own files.
    """

    flags: argparse.Namespace
    log_dir: str
    functions: dict[str, Function]

    def tell(self, text: str, level: str = "INFO") -> None:
        """Prints a text, and appends it to console.log, where its level is shown."""
        if LEVELS.index(level) >= LEVELS.index(self.flags.logging):
            print(text, flush=True)
            with open(os.path.join(self.log_dir, "console.log"), "a", encoding="utf-8") as file:
                file.write(text + "\n")


def run_variant(variant: Variant, session: Session) -> dict[str, Any]:
    """Runs a variant, writes its files below the folder of the logs, and returns its result in the published
    keys and ours, with the reasons of missing metrics in `problems`."""
    folder = os.path.join(session.log_dir, variant.name.replace(os.sep, "_"))
    os.makedirs(folder, exist_ok=True)
    logs = (os.path.join(folder, "stdout.log"), os.path.join(folder, "stderr.log"))
    where = variant.benchmark.folder
    session.tell(f"Running {variant.name}")
    session.tell(f"   {variant.command}\n   in {where}, env {variant.added_env}", "DEBUG")
    limits = [each for each in (session.flags.timeout, variant.benchmark.timeout) if each is not None]
    limit = min(limits, default=None)
    started, beginning = datetime.datetime.now(), time.monotonic()
    try:
        code, timed_out = run_process(
            variant.words, where, variant.env, logs, limit, _clock(session.flags.progress_trace_period)
        )
    finally:
        with open(os.path.join(session.log_dir, "output.log"), "ab") as whole:
            for path in filter(os.path.exists, logs):
                with open(path, "rb") as file:
                    shutil.copyfileobj(file, whole)
    ended, duration = datetime.datetime.now(), time.monotonic() - beginning
    stdout, stderr = map(_text, logs)
    found, problems = _measured(variant, session, code, stdout, stderr)
    if code:
        problems = [f"timeout of {limit:g} s" if timed_out else f"exit code {code}"]
    sdk = os.environ.get("POPLAR_SDK_ENABLED")
    version = _SDK_VERSION.search(sdk or "")
    result = {
        "benchmark_path": variant.benchmark.path,
        "benchmark_name": variant.benchmark.name,
        "variant_name": variant.name,
        "params": variant.values,
        "command": variant.command,
        "results": found,
        "start_time": str(started),
        "end_time": str(ended),
        "compilation_end_time": str(number_of(found, COMPILING)),
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
            session.tell(f"   {name} = {value:,.6g}")
    for problem in problems:
        session.tell(f"   {problem}", "ERROR")
    if problems:
        last = [f"   | {line}" for line in stderr.splitlines()[-10:]]
        session.tell("\n".join(["   Last lines of its stderr:", *last]), "ERROR")
    outputs.write_json(os.path.join(folder, "variant_result.json"), result)
    return result


def _measured(
    variant: Variant, session: Session, code: int, stdout: str, stderr: str
) -> tuple[Results, list[str]]:
    """Returns (metrics of a run, reasons of missing ones). Of several processes that compile the longest
    counts; a function of the user's that fails has no value."""
    found: Results = {}
    problems: list[str] = []
    if not session.flags.compile_only:
        found, problems = extract(variant.benchmark.metrics, stdout, stderr, code, variant.processes)
        found, more = derive(variant.benchmark.derived, found, variant.values, code)
        problems += more
    compiling = [] if code else [*map(float, _COMPILED.findall(stdout) + _COMPILED.findall(stderr))]
    found[COMPILING] = {"mean": max(compiling, default=None)}
    for name, function in session.functions.items():
        found[name] = {"value": None}
        with contextlib.suppress(Exception):
            value = function(stdout, stderr, code)
            found[name] = {"value": None if value is None else float(value)}
    return found, problems


def _text(path: str) -> str:
    with open(path, encoding="utf-8", errors="replace") as file:
        return file.read()


def _clock(period: float) -> Callable[[float], None]:
    """Returns (seconds) -> None, a function that shows the elapsed time of a run on a terminal."""
    shown = 0.0

    def show(secs: float) -> None:
        nonlocal shown
        if sys.stderr.isatty() and secs - shown >= period:
            shown = secs
            sys.stderr.write(f"\r   {datetime.timedelta(seconds=int(secs))}\r")
            sys.stderr.flush()

    return show


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
