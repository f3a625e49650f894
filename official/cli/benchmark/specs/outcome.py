"""Runs a variant of a benchmark, and makes its result in the published keys."""

from __future__ import annotations

import dataclasses
import datetime
import glob
import os
import re
import shutil
import sys
import time
from collections.abc import Callable
from typing import Any

from official.cli import outputs
from official.cli.benchmark.specs import custom, metrics, process, row
from official.cli.benchmark.specs.commands import Variant

RESULT_FILE = "variant_result.json"
LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")
_CHECKPOINT_FLAGS = re.compile(
    r"--(?:checkpoint[-_]output[-_]dir|save[-_]ckpt[-_]path|model[-_]dir)[= ](\S+)"
)
_SDK_VERSION = re.compile(r"\d+\.\d+\.\d+\+\d+")


@dataclasses.dataclass(frozen=True)
class Session:
    """Settings shared by all runs of one command.

    Attributes:
      log_dir: folder of all files.
      level: lowest level of the messages shown, one of `LEVELS`.
      timeout: time limit of a run in seconds, or None.
      trace_secs: seconds between two updates of the time shown for a run.
      keeps_metrics: whether metrics are extracted from the output.
      functions: {metric: function} from the user's own files.
    """

    log_dir: str
    level: str = "INFO"
    timeout: float | None = None
    trace_secs: float = 1.0
    keeps_metrics: bool = True
    functions: dict[str, custom.Function] = dataclasses.field(default_factory=dict)

    def tell(self, text: str, level: str = "INFO") -> None:
        """Prints a text, and appends it to console.log, where its level is shown."""
        if LEVELS.index(level) >= LEVELS.index(self.level):
            print(text, flush=True)
            with open(os.path.join(self.log_dir, "console.log"), "a", encoding="utf-8") as file:
                file.write(text + "\n")


def run_variant(variant: Variant, session: Session) -> dict[str, Any]:
    """Runs a variant, writes its files below the folder of the logs, and returns its result."""
    folder = os.path.join(session.log_dir, variant.name.replace(os.sep, "_"))
    os.makedirs(folder, exist_ok=True)
    logs = (os.path.join(folder, "stdout.log"), os.path.join(folder, "stderr.log"))
    session.tell(f"Running {variant.name}")
    session.tell(f"   {variant.command}\n   in {variant.benchmark.folder}, env {variant.added_env}", "DEBUG")
    limits = [each for each in (session.timeout, variant.benchmark.timeout) if each is not None]
    started, beginning = datetime.datetime.now(), time.monotonic()
    try:
        words, where = variant.words, variant.benchmark.folder
        ended = process.run(words, where, variant.env, logs, min(limits, default=None), _clock(session))
    finally:
        _append_to(os.path.join(session.log_dir, "output.log"), logs)
    times = (started, datetime.datetime.now(), time.monotonic() - beginning)
    result = _result(variant, session, ended, times, logs)
    _tell_result(session, result)
    outputs.write_json(os.path.join(folder, RESULT_FILE), result)
    return result


def _result(
    variant: Variant, session: Session, ended: process.Ended, times: tuple, logs: tuple[str, str]
) -> dict[str, Any]:
    """Returns the result in the published keys and ours, with the reasons of missing metrics in
    `problems`."""
    found, problems = _measured(variant, session, ended.code, *map(_text, logs))
    if ended.code:
        problems = [f"timeout of {ended.timeout:g} s" if ended.timeout else f"exit code {ended.code}"]
    sdk = os.environ.get("POPLAR_SDK_ENABLED")
    version = _SDK_VERSION.search(sdk or "")
    return {
        "benchmark_path": variant.benchmark.path,
        "benchmark_name": variant.benchmark.name,
        "variant_name": variant.name,
        "params": variant.values,
        "command": variant.command,
        "results": found,
        "start_time": str(times[0]),
        "end_time": str(times[1]),
        "compilation_end_time": str(metrics.number_of(found, metrics.COMPILING)),
        "test_duration": str(times[2]),
        "exitcode": ended.code or int(bool(problems)),
        "log_paths": {"out": logs[0], "err": logs[1]},
        "latest_checkpoint_path": _latest_checkpoint(variant),
        "sdk_path": sdk,
        "sdk_version": version[0] if version else None,
        "problems": problems,
        **row.make(variant, found),
    }


def _measured(
    variant: Variant, session: Session, code: int, stdout: str, stderr: str
) -> tuple[metrics.Results, list[str]]:
    """Returns (metrics of a run, reasons of missing ones)."""
    found: metrics.Results = {}
    problems: list[str] = []
    if session.keeps_metrics:
        found, problems = metrics.extract(variant.benchmark.metrics, stdout, stderr, code, variant.processes)
        found, more = metrics.derive(variant.benchmark.derived, found, variant.values, code)
        problems += more
    compiling = None if code else metrics.compiling_secs(stdout, stderr)
    found[metrics.COMPILING] = {"mean": compiling}
    own = custom.compute(session.functions, stdout, stderr, code)
    found |= {name: {"value": value} for name, value in own.items()}
    return found, problems


def _tell_result(session: Session, result: dict[str, Any]) -> None:
    for name, reduced in result["results"].items():
        value = next(iter(reduced.values()))
        if value is not None:
            session.tell(f"   {name} = {value:,.6g}")
    for problem in result["problems"]:
        session.tell(f"   {problem}", "ERROR")
    if result["exitcode"]:
        last = _text(result["log_paths"]["err"]).splitlines()[-10:]
        session.tell("\n".join(["   Last lines of its stderr:", *(f"   | {line}" for line in last)]), "ERROR")


def _text(path: str) -> str:
    with open(path, encoding="utf-8", errors="replace") as file:
        return file.read()


def _append_to(path: str, logs: tuple[str, str]) -> None:
    """Appends the output of a run to the log of all runs."""
    with open(path, "ab") as whole:
        for each in logs:
            if os.path.exists(each):
                with open(each, "rb") as file:
                    shutil.copyfileobj(file, whole)


def _clock(session: Session) -> Callable[[float], None]:
    """Returns (seconds) -> None, a function that shows the elapsed time of a run on a terminal."""
    shown = 0.0

    def show(secs: float) -> None:
        nonlocal shown
        if sys.stderr.isatty() and secs - shown >= session.trace_secs:
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
