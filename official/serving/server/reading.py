"""Reads a model in a separate process, so that slow or damaged storage does not block the server.

The readers of TensorFlow and safetensors hold the interpreter lock while they wait for storage: a read of 1.5
s in the server's own process would delay every request by as much. Here another process finds the model, and
sends each weight on request: there is no second copy of them, neither on a disk nor in memory. A file that is
truncated while it is mapped, or storage that never answers, affects only that process.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import functools
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any

from official.io import files, quiet
from official.io.errors import ConfigError

if TYPE_CHECKING:  # it loads TensorFlow
    from official.inference.source import Source

_ahead: list[tuple[subprocess.Popen, Connection]] = []


def start_ahead() -> None:
    """Starts the process of the next reading early, so that both processes load their modules in parallel."""
    _ahead.append(_started())


@contextlib.contextmanager
def reading(
    path: str, vocab_file: str | None, do_lower_case: bool | None, max_seq_length: int | None
) -> Iterator[Source]:
    """Yields a model whose weights are read by another process; valid only in this block.

    Args:
      path: path of --export_dir, or of a version in it.
      vocab_file, do_lower_case, max_seq_length: as in `source.find`.

    Raises:
      ConfigError: as `source.find`; also for a path that is not a regular file, and if the other process is
        lost.
    """
    name = f"--export_dir={path}"
    for file in (os.path.join(folder, one) for folder, _, names in os.walk(path) for one in sorted(names)):
        if os.path.exists(file):  # the reader of the format reports dangling links
            try:  # reading a pipe or a device might never end
                files.check_readable(file, every_small_one=False)
            except OSError as error:
                raise ConfigError(f"{name}: {file}: {error.strerror or error}.") from None
    process, connection = _ahead.pop() if _ahead else _started()
    lock = threading.Lock()

    def ask(what: Any) -> Any:
        with lock:
            try:
                connection.send(what)
                answer = connection.recv()
            except (EOFError, OSError):
                code = process.wait()
                how = f"by {signal.Signals(-code).name}" if code < 0 else f"with exit code {code}"
                cause = "Perhaps memory ran out, or a file was truncated while it was read."
                raise ConfigError(f"{name}: the process that reads its files ended {how}. {cause}") from None
        if isinstance(answer, Exception):
            raise answer
        return answer

    try:
        with connection:
            found = ask((path, vocab_file, do_lower_case, "export_dir", max_seq_length))
            yield _with_readers(found, lambda tensor: functools.partial(ask, tensor))
    finally:
        process.kill()
        process.wait()


def _started() -> tuple[subprocess.Popen, Connection]:
    """Starts a reading process. Returns it, and the connection to it."""
    ours, theirs = multiprocessing.Pipe()
    paths = os.pathsep.join(os.path.abspath(each) for each in sys.path)
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-c", "from official.serving.server import reading; reading.serve()"],
            stdin=theirs.fileno(),
            stdout=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": paths, "PYTHONSAFEPATH": "1"},
            # Ctrl-C on a terminal must reach only the server, which may have requests to finish.
            start_new_session=True,
        )
    return process, ours


def _with_readers(found: Source, reader: Callable[[str], Any]) -> Source:
    """Returns a model with other readers of its tensors: `reader` maps a name to one."""
    tensors = {name: dataclasses.replace(tensor, read=reader(name)) for name, tensor in found.tensors.items()}
    return dataclasses.replace(found, tensors=tensors)


def serve() -> None:
    """Finds the model that the parent requests over stdin, and sends its tensors on request until the parent
    closes the connection."""
    # On Linux this process ends with the thread that started it, also in the middle of a read.
    if prctl := getattr(ctypes.CDLL(None), "prctl", None):
        prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    from official.inference import source

    quiet.quieten_libraries()
    with Connection(os.dup(0)) as connection, contextlib.suppress(EOFError, ConnectionError):
        arguments = connection.recv()
        try:
            found = source.find(*arguments)
            answer: Any = _with_readers(found, lambda name: None)
        except Exception as error:  # pylint: disable=broad-except  # raised again in the parent
            problem = f"--export_dir={arguments[0]} cannot be read: {type(error).__name__}"
            answer = _as_config_error(error, problem)
        connection.send(answer)
        while True:
            name = connection.recv()
            try:
                answer = found.tensors[name].read()
            except Exception as error:  # pylint: disable=broad-except
                answer = _as_config_error(error, f"{found.name}: unreadable checkpoint")
            connection.send(answer)


def _as_config_error(error: Exception, otherwise: str) -> ConfigError:
    """Returns an error for the parent to raise; `otherwise` begins the message if it is not a ConfigError."""
    if isinstance(error, ConfigError):
        return ConfigError(str(error), error.details)
    return ConfigError(f"{otherwise} ({error or type(error).__name__}).")
