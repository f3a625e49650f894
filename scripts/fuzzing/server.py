"""Runs command lines in processes forked from this one, which has loaded the libraries and run nothing.

Reads a JSON object a line from stdin, {number, script, arguments, folder, output, limit_secs}, and answers
each with {number, code, secs}, in the order in which they end. A command works in its folder; its stdin is
FOLDER/stdin where that is there, its output goes to OUTPUT/stdout, and its stderr, a terminal, to
OUTPUT/stderr. `code` is that of the process, negative for a signal, None for one that was killed after its
time.

To be started as a module (python -m fuzzing.server) in the folder of the scripts, which they find each
other in.
"""

import atexit
import contextlib
import fcntl
import gc
import importlib
import json
import os
import resource
import runpy
import select
import signal
import struct
import sys
import termios
import threading
import time
import traceback
import tty

# What commands load; the names of this project come first, since they set what TensorFlow reads.
PRELOADED = (
    "official",
    "official.cli.main",
    "official.cli.table",
    "official.cli.command_line",
    "official.cli.outputs",
    "official.tasks",
    "official.training.run",
    "official.planning.plan",
    "official.training.step_benchmark",
    "official.checkpoint.convert",
    "official.data.pretraining.creation",
    "official.data.text.preparation",
    "official.data.pretraining.inspection",
    "official.data.squad.evaluation",
    "official.data.glue.files",
    "official.reporting.comparison",
    "official.reporting.convergence",
    "official.inference",
    "official.inference.verification",
    "tensorflow_text",
    "mlperf_logging.mllog",
    "mlperf_logging.rcp_checker.rcp_checker",
    "mlperf_logging.result_summarizer.result_summarizer",
    "matplotlib.figure",
    "matplotlib.backends.backend_agg",
    "sklearn.metrics",
    "scipy.stats",
    "onnx",
    "safetensors",
)
_MEMORY_BYTES = 16 << 30  # of address space: what takes more is an error, and not the end of the machine
_ROWS, _COLUMNS = 24, 100  # of the terminal


class _Running:
    """A command that runs: its process, our end of its terminal, and the file that this is copied to."""

    def __init__(self, request: dict, pid: int, terminal: int):
        self.request, self.pid, self.terminal = request, pid, terminal
        self.started = time.monotonic()
        self.file = open(os.path.join(request["output"], "stderr"), "wb")

    def read(self) -> bool:
        """Copies what is there; False at the end."""
        try:
            data = os.read(self.terminal, 1 << 16)
        except OSError:  # the other end is closed
            return False
        self.file.write(data)
        return bool(data)

    def is_late(self) -> bool:
        return time.monotonic() - self.started > self.request["limit_secs"]

    def finish(self, status: int | None) -> None:
        """Ends what the command left running, and answers."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        if status is None:
            os.waitpid(self.pid, 0)
        while select.select([self.terminal], [], [], 0)[0] and self.read():
            pass
        os.close(self.terminal)
        self.file.close()
        code = None if status is None else os.waitstatus_to_exitcode(status)
        print(
            json.dumps(
                {
                    "number": self.request["number"],
                    "code": code,
                    "secs": round(time.monotonic() - self.started, 2),
                }
            ),
            flush=True,
        )


def serve() -> dict | None:
    """Forks for every request. Returns it in the forked process, and None here when there are no more."""
    running, pending, is_open = [], b"", True
    while is_open or running:
        waiting = [one.terminal for one in running] + ([0] if is_open else [])
        readable = select.select(waiting, [], [], 0.02)[0]
        for one in running:
            if one.terminal in readable:
                one.read()
        if 0 in readable:
            data = os.read(0, 1 << 16)
            is_open = bool(data)
            *lines, pending = (pending + data).split(b"\n")
            for line in lines:
                request = json.loads(line)
                started = _start(request)
                if started is None:
                    return request
                running.append(started)
        for one in list(running):
            pid, status = os.waitpid(one.pid, os.WNOHANG)
            if pid or one.is_late():
                one.finish(status if pid else None)
                running.remove(one)
    return None


def _start(request: dict) -> _Running | None:
    """Forks; returns None in the new process, whose files and folder are then those of the command."""
    terminal, other_end = os.openpty()
    tty.setraw(other_end)
    fcntl.ioctl(other_end, termios.TIOCSWINSZ, struct.pack("HHHH", _ROWS, _COLUMNS, 0, 0))
    pid = os.fork()
    if pid:
        os.close(other_end)
        return _Running(request, pid, terminal)
    os.setsid()
    given = os.path.join(request["folder"], "stdin")
    source = os.open(given if os.path.exists(given) else os.devnull, os.O_RDONLY)
    target = os.open(os.path.join(request["output"], "stdout"), os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for number, descriptor in enumerate((source, target, other_end)):
        os.dup2(descriptor, number)
    os.closerange(3, 256)
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
    return None


def become(request: dict) -> int:
    """Runs the command as Python would run its file, with the end of all its objects. Returns the exit
    code."""
    sys.stdin = open(0, encoding="utf-8", closefd=False)
    sys.stdout = open(1, "w", encoding="utf-8", closefd=False)
    sys.stderr = open(2, "w", encoding="utf-8", errors="backslashreplace", buffering=1, closefd=False)
    os.chdir(request["folder"])
    sys.argv[:] = [request["script"], *request["arguments"]]
    code = 0
    try:
        runpy.run_path(request["script"], run_name="__main__")
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


if __name__ == "__main__":
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    for name in PRELOADED:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()  # the forked processes share these objects: nothing walks over them
    print(json.dumps({"ready": True}), flush=True)
    asked = serve()
    if asked is not None:
        os._exit(become(asked))
