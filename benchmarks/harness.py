"""Harness of the benchmarks: cases in turns, programs of other systems, watched processes, results.

A benchmark answers one question, in one file: `python benchmarks/NAME.py --output=results/NAME`. It writes
results/NAME.json, with command, commit, machine, versions, seed and rounds, and the chart results/NAME.png.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple, NoReturn

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
if ROOT not in sys.path:  # `python benchmarks/NAME.py` has its own folder there
    sys.path.insert(0, ROOT)

from official.cli import command_line, outputs  # noqa: E402
from official.cli.benchmark.inference import Program, own_variables  # noqa: E402
from official.cli.benchmark.step import in_turns, read_model, read_shapes  # noqa: E402, F401
from official.io import signals, streams  # noqa: E402
from official.io.errors import ConfigError  # noqa: E402

PROGRAMS = os.path.join(ROOT, "benchmarks", "programs")
MAX_SHOWN = 300  # maximum length of another program's last line in messages


def main(question: Callable[[], int | None]) -> NoReturn:
    """Runs a benchmark and exits with its code: 2 and one line on stderr for bad input."""
    streams.settle()
    signals.watch()
    command_line.run(question)


# ------------------------------------------------------------------------------------------------------------
# Results


def write(flags: argparse.Namespace, *given: Any, **limit: Any) -> None:
    """Writes --output.json and its chart, if --output is set; see `outputs.write_bars`."""
    outputs.write_bars(flags.output, *given, **limit)


class ChartFlags(command_line.Flags):
    """Flags of a benchmark with a chart, which `write` serves.

    Attributes:
      output: Also write OUTPUT.json and the chart OUTPUT.png.
      overwrite: Replace existing files.
    """

    output: str | None = None
    overwrite: bool = False

    @classmethod
    def parse(cls, words: list[str] | None = None) -> Any:
        """Parses words and checks that --output can be written. Raises ConfigError."""
        flags = super().parse(words)
        outputs.check_results(flags)
        return flags


class NumbersFlags(command_line.Flags):
    """Flags of a benchmark without a chart, which `write_json` serves.

    Attributes:
      output: Also write the numbers to this JSON file.
      overwrite: Replace an existing file.
    """

    output: str | None = None
    overwrite: bool = False

    @classmethod
    def parse(cls, words: list[str] | None = None) -> Any:
        """Parses words and checks that --output can be written. Raises ConfigError."""
        flags = super().parse(words)
        outputs.check_files(flags, "output")
        return flags


def write_json(flags: argparse.Namespace, record: dict) -> None:
    """Writes --output, if set, with the command and the machine."""
    if flags.output:
        outputs.write_json(flags.output, outputs.with_machine(record))


# ------------------------------------------------------------------------------------------------------------
# Environments of other systems


class Environment(NamedTuple):
    """A virtual environment: its name, also that of its folder, and the requirements that pip installs."""

    name: str
    requirements: tuple[str, ...]


HUGGINGFACE = Environment(
    "huggingface", ("torch==2.13.0", "transformers==5.0.0", "accelerate==1.12.0", "numpy")
)
# For benchmarks of families and formats, which need a newer release.
NEW_HUGGINGFACE = Environment("huggingface_scores", ("torch==2.13.0", "transformers==5.24.0", "numpy"))


class EnvironmentFlags(command_line.Flags):
    """Flags of a benchmark with other systems.

    Attributes:
      environments: Folder of the peers' virtual environments, about 2 GB each.
      make_environments: Make missing environments, from the package index.
    """

    environments: str = ".peers"
    make_environments: bool = False


def python_of(environment: str | None, folder: str) -> str:
    """Returns the interpreter of an environment; for None, that of this process."""
    if environment is None:
        return sys.executable
    return os.path.join(os.path.abspath(folder), environment, "bin", "python")


def prepare(wanted: Iterable[tuple[str, Environment | None]], flags: argparse.Namespace) -> None:
    """Makes missing environments, and installs missing packages. Raises ConfigError if one is missing without
    --make_environments, or cannot be made.

    Args:
      wanted: (name of a peer, its environment; None: this one).
      flags: with --environments and --make_environments.
    """
    for name, environment in wanted:
        if environment is None:
            continue
        python = python_of(environment.name, flags.environments)
        folder = os.path.dirname(os.path.dirname(python))
        made = os.path.join(folder, "made")  # lists the installed requirements of a complete environment
        installed = None
        if os.path.exists(made):
            with open(made, encoding="utf-8") as file:
                installed = file.read().splitlines()
        missing = [text for text in environment.requirements if text not in (installed or ())]
        if not missing:
            continue
        if not flags.make_environments:
            lacks = f"no {', '.join(missing)} in {folder}"
            if installed is None:
                lacks = f"no environment in {flags.environments}"
            raise ConfigError(f"--peers: {name} has {lacks}. Make it with --make_environments.")
        print(f"Making {folder} ({', '.join(environment.requirements)}) ...", file=sys.stderr)
        new = [[sys.executable, "-m", "venv", "--clear", folder]] if installed is None else []
        for command in (*new, [python, "-m", "pip", "install", "-q", *environment.requirements]):
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                raise ConfigError(f"--make_environments: {name}: {' '.join(done.stderr.splitlines()[-3:])}")
        with open(made, "w", encoding="utf-8") as file:
            file.write("\n".join([*(installed or ()), *missing]) + "\n")


def variables(environment: str | None) -> dict[str, str]:
    """Returns the environment variables of a system: those of this process without this project's settings.

    Ours finds this package; the others must not: "official" is the name of the Model Garden's package, too.
    """
    kept = {**own_variables(), "HF_HUB_OFFLINE": "1"}
    if environment:
        del kept["PYTHONPATH"]
    return kept


# ------------------------------------------------------------------------------------------------------------
# Processes


def last_line(path: str) -> str:
    """Returns the last line of a log that is not blank."""
    with open(path, encoding="utf-8", errors="replace") as log:
        lines = [line.strip() for line in log if line.strip()]
    return lines[-1][:MAX_SHOWN] if lines else "it has printed no output."


def run_logged(command: list[str], log_file: str, what: str) -> float:
    """Runs one of our commands and appends its output to a file. Returns its seconds.

    Raises:
      ConfigError: if it fails, with `what` and the last line of the output.
    """
    started = time.perf_counter()
    with open(log_file, "a", encoding="utf-8") as log:
        code = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=variables(None),
            check=False,
        ).returncode
    if code:
        raise ConfigError(f"{what} ended with exit code {code}: {last_line(log_file)}")
    return time.perf_counter() - started


def resident_bytes(root: int) -> int:
    """Returns the summed resident memory of a process and its descendants."""
    return sum(_of_tree(root, lambda process: process.memory_info().rss))


def cpu_secs(root: int) -> float:
    """Returns the CPU time of a process and its running descendants so far."""
    return sum(_of_tree(root, lambda process: sum(process.cpu_times()[:2])))


def _of_tree(root: int, value: Callable[[Any], Any]) -> Iterator[Any]:
    """Yields a value of a process and of each running descendant."""
    import psutil

    with contextlib.suppress(psutil.Error):
        process = psutil.Process(root)
        for each in (process, *process.children(recursive=True)):
            with contextlib.suppress(psutil.Error):
                yield value(each)


def watch(command: list[str], folder: str, period_secs: float = 0.2) -> dict:
    """Runs a command and returns {secs, core_secs, peak_memory_bytes, peak_disk_bytes, peak_open_files}: CPU
    time of all its processes, memory of the largest one, bytes in a folder, maximum open files of a process.
    Raises RuntimeError if it fails."""
    began = time.monotonic()
    cores: dict[int, float] = {}
    peaks = {"peak_memory_bytes": 0, "peak_disk_bytes": 0, "peak_open_files": 0}

    def look(process) -> None:
        cores[process.pid] = sum(process.cpu_times()[:2])
        peaks["peak_memory_bytes"] = max(peaks["peak_memory_bytes"], process.memory_info().rss)
        peaks["peak_open_files"] = max(peaks["peak_open_files"], process.num_fds())

    with tempfile.TemporaryFile() as errors:
        running = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=errors)
        try:
            while running.poll() is None:
                list(_of_tree(running.pid, look))
                peaks["peak_disk_bytes"] = max(peaks["peak_disk_bytes"], _size_of(folder))
                with contextlib.suppress(subprocess.TimeoutExpired):
                    running.wait(period_secs)
        finally:
            running.kill()
            running.wait()
        secs = time.monotonic() - began
        if running.returncode:
            errors.seek(0)
            raise RuntimeError(f"{' '.join(command)}: {errors.read().decode()[-2000:]}")
    peaks["peak_disk_bytes"] = max(peaks["peak_disk_bytes"], _size_of(folder))
    return {"secs": secs, "core_secs": sum(cores.values()), **peaks}


def _size_of(folder: str) -> int:
    total = 0
    for root, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):  # it was renamed
                total += os.path.getsize(os.path.join(root, name))
    return total


def program(
    name: str, file: str, environment: Environment | None, flags: Any, folder: str, advice: str = ""
) -> Program:
    """Starts a program of PROGRAMS in an environment; None: this one."""
    place = environment.name if environment else None
    command = [python_of(place, getattr(flags, "environments", "")), os.path.join(PROGRAMS, file)]
    return Program(name, command, folder, variables(place), advice)


# -----------------------------------------------------------------------------------------------------------
# Flags that benchmarks share


class ModelFlag(command_line.Flags):
    """Flag of benchmarks of a model.

    Attributes:
      bert_config_file: Model.
    """

    bert_config_file: str = "configs/models/bert_base.json"


class GpusFlag(command_line.Flags):
    """Flag of benchmarks that may run on a GPU.

    Attributes:
      num_gpus: 0 for the CPU, 1 for a GPU. Unset: a GPU if the machine has one.
    """

    num_gpus: int | None = None


class ShapesFlag(command_line.Flags):
    """Flag of benchmarks of a training step, which `read_shapes` reads.

    Attributes:
      shapes: Comma-separated LENGTHxBATCH: tokens per sequence x sequences per step.
    """

    shapes: str = "128x8,512x2"


def in_new_process(*words: str) -> list[str]:
    """Returns the words that run a command of `bert` in a new process; the caller adds its flags."""
    return [sys.executable, "-m", "official.cli", *words]
