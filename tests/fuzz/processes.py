"""Commands in forks of this process, which has loaded the libraries and run nothing, and the verdict on what
they leave on their terminal."""

import atexit
import contextlib
import dataclasses
import fcntl
import gc
import importlib
import os
import pathlib
import re
import resource
import runpy
import select
import shutil
import signal
import struct
import sys
import tempfile
import termios
import threading
import time
import traceback
import tty
from collections.abc import Callable, Iterator

ROOT = pathlib.Path(__file__).resolve().parents[2]
LIMIT_SECS = 240  # a case takes seconds; what takes longer hangs
_MAX_CHARACTERS = 300  # of an error line
_MEMORY_BYTES = 16 << 30  # of address space: what takes more is an error, and not the end of the machine
_ROWS, _COLUMNS = 24, 100  # of the terminal

# Libraries of the commands; the names of this project come first, since they set what TensorFlow reads.
_LIBRARIES = """
    official official.cli.main official.cli.table official.cli.command_line official.cli.outputs
    official.tasks official.training.run official.planning.plan official.training.step_benchmark
    official.checkpoint.convert official.data.pretraining.creation official.data.text.preparation
    official.data.pretraining.inspection official.data.squad.evaluation official.data.glue.files
    official.reporting.comparison official.reporting.convergence official.inference
    official.inference.verification tensorflow_text mlperf_logging.mllog
    mlperf_logging.rcp_checker.rcp_checker mlperf_logging.result_summarizer.result_summarizer
    matplotlib.figure matplotlib.backends.backend_agg sklearn.metrics scipy.stats onnx safetensors
""".split()

# Lines of libraries and tracebacks: nothing that tells a user what to do.
_NOISE = re.compile(
    r"Traceback|ERROR:tensorflow|WARNING:tensorflow|All log messages before absl|"
    r"^[EWIF]\d{4} \d\d:|: [EWF] \w+/|\w+Warning: |"
    r"Exception ignored|dumped|<class '",
    re.MULTILINE,
)
_NAMED = re.compile(
    r"damaged|skipped|left out|is not used|malformed|undecodable|not in the context|"
    r"empty|nanswered|issing prediction|not finite|non-finite|NaN|added: |stand for no word"
)


@dataclasses.dataclass(frozen=True)
class Ended:
    """End of a command: its exit code, None where it hung, negative for a signal; its seconds; the text on
    stdout, and on stderr, which was a terminal."""

    code: int | None
    secs: float
    output: str
    errors: str


def load_libraries() -> None:
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    for name in _LIBRARIES:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()  # the forks share these objects: nothing walks over them


def _fork(function: Callable[[], int | None]) -> int:
    """Starts a fork of this process that calls a function and ends with the exit code that this returns.
    Returns the fork's process number."""
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        code = function() or 0
    except BaseException:  # pylint: disable=broad-except
        traceback.print_exc()
    finally:
        os._exit(code)


def in_child(function: Callable[[], None]) -> None:
    """Calls a function in a fork of this process. Raises RuntimeError where it fails."""
    if os.waitpid(_fork(function), 0)[1]:
        raise RuntimeError("a fork of this process failed; its message is above")


@contextlib.contextmanager
def new_folder() -> Iterator[pathlib.Path]:
    """Yields a folder that is removed after the block; not, as one of tempfile's is, when a fork ends."""
    path = pathlib.Path(tempfile.mkdtemp())
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def run(script: str, arguments: tuple[str, ...], folder: pathlib.Path) -> Ended:
    """Runs a command in a folder, with FOLDER/stdin, where that is there, as its stdin."""
    terminal, other_end = os.openpty()
    tty.setraw(other_end)
    fcntl.ioctl(other_end, termios.TIOCSWINSZ, struct.pack("HHHH", _ROWS, _COLUMNS, 0, 0))
    given = folder / "stdin"
    with tempfile.TemporaryFile() as output, open(given if given.exists() else os.devnull, "rb") as source:
        streams = (source.fileno(), output.fileno(), other_end)
        started, pid = time.monotonic(), _fork(lambda: _become(script, arguments, folder, streams, terminal))
        os.close(other_end)
        errors, code, has_ended = b"", None, 0
        while not has_ended and time.monotonic() - started < LIMIT_SECS:
            errors += _read(terminal)
            has_ended, status = os.waitpid(pid, os.WNOHANG)
            code = os.waitstatus_to_exitcode(status) if has_ended else None
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)  # also what the command has left running
        if not has_ended:
            os.waitpid(pid, 0)
        while more := _read(terminal):
            errors += more
        os.close(terminal)
        output.seek(0)
        texts = (data.decode(errors="replace") for data in (output.read(), errors))
        return Ended(code, round(time.monotonic() - started, 2), *texts)


def _read(terminal: int) -> bytes:
    """Returns bytes of a terminal, none where there are none for a moment or the other end is closed."""
    if select.select([terminal], [], [], 0.02)[0]:
        with contextlib.suppress(OSError):  # the other end is closed
            return os.read(terminal, 1 << 16)
    return b""


def _become(
    script: str, arguments: tuple[str, ...], folder: pathlib.Path, streams: tuple[int, ...], terminal: int
) -> int:
    """Runs the command as Python would run its file, with the end of all its objects. Returns the exit
    code."""
    os.setsid()
    for number, descriptor in enumerate(streams):
        os.dup2(descriptor, number)
    for descriptor in (*streams, terminal):
        os.close(descriptor)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
    sys.stdin = open(0, encoding="utf-8", closefd=False)
    sys.stdout = open(1, "w", encoding="utf-8", closefd=False)
    sys.stderr = open(2, "w", encoding="utf-8", errors="backslashreplace", buffering=1, closefd=False)
    os.chdir(folder)
    sys.argv[:] = [str(ROOT / script), *arguments]
    sys.path[:0] = [str((ROOT / script).parent)]
    code = 0
    try:
        runpy.run_path(sys.argv[0], run_name="__main__")
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:  # pylint: disable=broad-except  # finding any is what this is for
        traceback.print_exc()
        code = 1
    gc.collect()  # the command's objects alone: Python's own end takes seconds with all libraries loaded
    threading._shutdown()  # pylint: disable=protected-access
    atexit._run_exitfuncs()  # pylint: disable=protected-access
    sys.stdout.flush()
    return code


def judge(script: str, ended: Ended, codes: tuple[int, ...], expected: str) -> str | None:
    """Returns the fault in how a case ended, or None.

    Args:
      script: the command's file.
      ended: its end.
      codes: exit codes that the command may end with, beside 2.
      expected: of `damage`: refused, named or any.
    """
    code, output, errors = ended.code, ended.output, ended.errors
    if code is None:
        return "hang"
    noise = _NOISE.search(errors) or _NOISE.search(output)
    if noise:
        return "traceback" if noise.group() == "Traceback" else f"noise: {noise.group()}"
    if code not in (2, *codes):
        return f"exit code {code}"
    if code == 2:
        return _judge_error(os.path.basename(script), errors)
    if not output.strip() and not errors.strip():
        return "nothing said"
    if expected == "refused" and code != 3:
        return "silent acceptance"
    if expected == "named" and code != 3 and not _NAMED.search(output + errors):
        return "silent acceptance"
    return None


def _judge_error(program: str, errors: str) -> str | None:
    """Returns the fault in an error: it is one short line, the last one, and nothing is drawn over it."""
    lines = [_shown(line) for line in errors.rstrip("\n").split("\n")]
    complaints = [line for line in lines if line.startswith(f"{program}: ")]
    if len(complaints) != 1:
        return f"{len(complaints)} error lines"
    if not errors.endswith("\n") or lines[-1] != complaints[0]:
        return "the error is not the last line"
    if lines[-1] != errors.rstrip("\n").rpartition("\n")[2].rpartition("\r")[2].rstrip():
        return "a bar is left behind the error"
    if len(lines[-1]) >= _MAX_CHARACTERS:
        return f"an error of {len(lines[-1])} characters"
    return None


def _shown(line: str) -> str:
    """Returns a line as a terminal shows it: what follows a carriage return overwrites what was there."""
    shown = ""
    for part in line.split("\r"):
        shown = part + shown[len(part) :]
    return shown.rstrip()
