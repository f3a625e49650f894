"""Reading a model in a process of its own, so that slow or damaged storage holds nothing else up.

The readers of TensorFlow and safetensors hold the interpreter while the storage works: a read of 1.5 s in a
server's own process would hold up every request for as long. Here another process finds the model, and hands
its weights over, each when it is asked for: there is no second copy of them, neither on a disk nor in memory.
A file that is cut while it is mapped, or storage that never answers, costs that process alone.
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
    """Starts the process of the next reading, which loads its modules while this one loads its own."""
    _ahead.append(_started())


@contextlib.contextmanager
def reading(
    path: str, vocab_file: str | None, do_lower_case: bool | None, max_seq_length: int | None
) -> Iterator[Source]:
    """Yields a model whose weights come from another process when they are read; in this block only.

    Args:
      path: that --export_dir gives, or a version in it.
      vocab_file, do_lower_case, max_seq_length: as of `source.find`.

    Raises:
      ConfigError: as `source.find`, for a file that is none, and where the other process is lost.
    """
    name = f"--export_dir={path}"
    for file in (os.path.join(folder, one) for folder, _, names in os.walk(path) for one in sorted(names)):
        if os.path.exists(file):  # links to nothing are left to the reader of the format
            try:  # what is no file, such as a pipe or a device, might never be read to its end
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
                told = "Perhaps there is not enough memory, or a file was cut while it was read."
                raise ConfigError(f"{name}: the process that reads its files ended {how}. {told}") from None
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
    """Starts a process that reads. Returns it, and this end of the connection to it."""
    ours, theirs = multiprocessing.Pipe()
    paths = os.pathsep.join(os.path.abspath(each) for each in sys.path)
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-c", "from official.serving.server import reading; reading.serve()"],
            stdin=theirs.fileno(),
            stdout=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": paths, "PYTHONSAFEPATH": "1"},
            # Ctrl-C on a terminal is for this process, which may have something to finish.
            start_new_session=True,
        )
    return process, ours


def _with_readers(found: Source, reader: Callable[[str], Any]) -> Source:
    """Returns a model with other readers of its tensors: `reader` makes one of a name."""
    tensors = {name: dataclasses.replace(tensor, read=reader(name)) for name, tensor in found.tensors.items()}
    return dataclasses.replace(found, tensors=tensors)


def serve() -> None:
    """Finds the model that the process at the other end of stdin asks for, and hands its tensors over until
    that one closes."""
    # The process ends with the thread that began it, also in the middle of a read; on Linux.
    if prctl := getattr(ctypes.CDLL(None), "prctl", None):
        prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    from official.inference import source

    quiet.quieten_libraries()
    with Connection(os.dup(0)) as connection, contextlib.suppress(EOFError, ConnectionError):
        arguments = connection.recv()
        try:
            found = source.find(*arguments)
            answer: Any = _with_readers(found, lambda name: None)
        except Exception as error:  # pylint: disable=broad-except  # it is raised in the other process
            told = f"--export_dir={arguments[0]} cannot be read: {type(error).__name__}"
            answer = _as_config_error(error, told)
        connection.send(answer)
        while True:
            name = connection.recv()
            try:
                answer = found.tensors[name].read()
            except Exception as error:  # pylint: disable=broad-except
                answer = _as_config_error(error, f"{found.name}: unreadable checkpoint")
            connection.send(answer)


def _as_config_error(error: Exception, otherwise: str) -> ConfigError:
    """Returns an error as the other process is to raise it; `otherwise` begins what is no ConfigError."""
    if isinstance(error, ConfigError):
        return ConfigError(str(error), error.details)
    return ConfigError(f"{otherwise} ({error or type(error).__name__}).")
