"""Reading a version in a process of its own, so that slow or damaged storage stops no answers.

The readers of TensorFlow and safetensors hold the interpreter while the storage works: a read of 1.5 s in the
server's own process would hold up every request for as long. Here another process finds the model, and hands
its weights over, one when it is asked for: neither disk space nor memory for a second copy is needed. A file
that is cut while it is mapped, or storage that never answers, costs that process alone.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from io import BufferedRWPair
from typing import TYPE_CHECKING, Any

import numpy as np

from official.io import readable
from official.io.errors import ConfigError

if TYPE_CHECKING:  # it loads TensorFlow
    from official.inference.source import Source

_PROGRAM = "import sys; sys.path[:] = {path!r}; from official.serving.server import reading; reading.serve()"
_DIES_WITH_PARENT = 1  # PR_SET_PDEATHSIG of prctl(2)


def check_files(path: str) -> None:
    """Raises ConfigError for a version with a file that is none, such as a pipe or a device: to read it might
    never end. Links to nothing are left to the reader of their format."""
    for folder, _, names in os.walk(path):
        for name in sorted(names):
            file = os.path.join(folder, name)
            if os.path.exists(file):
                try:
                    readable.check_kind(file)
                except OSError as error:
                    raise ConfigError(f"--export_dir={path}: {file}: {error.strerror or error}.") from None


@contextlib.contextmanager
def reading(path: str, *arguments: Any) -> Iterator[Source]:
    """Yields a model whose weights come from another process when they are read; in this block only.

    Args:
      path, arguments: of `source.find`.

    Raises:
      ConfigError: as `source.find`, and where the other process is lost.
    """
    check_files(path)
    process, ours = _ahead.pop() if _ahead else _started()
    try:
        with ours, ours.makefile("rwb") as stream:
            reader = _Reader(stream, process, path)
            found = reader.ask((path, *arguments))
            tensors = {
                name: dataclasses.replace(tensor, read=_Values(reader, name))
                for name, tensor in found.tensors.items()
            }
            yield dataclasses.replace(found, tensors=tensors)
    finally:
        process.kill()
        process.wait()


_ahead: list[tuple[subprocess.Popen, socket.socket]] = []


def start_ahead() -> None:
    """Starts the process of the next reading, which loads its modules while this one loads its own."""
    _ahead.append(_started())


def _started() -> tuple[subprocess.Popen, socket.socket]:
    """Starts a process that reads. Returns it, and this end of the connection to it."""
    ours, theirs = socket.socketpair()
    program = _PROGRAM.format(path=[os.path.abspath(each) for each in sys.path])
    with theirs:
        # Of its own session: Ctrl-C on a terminal is for the server, which answers what it has accepted.
        process = subprocess.Popen(
            [sys.executable, "-c", program],
            stdin=theirs.fileno(),
            stdout=subprocess.DEVNULL,
            start_new_session=True,
        )
    return process, ours


class _Reader:
    """The other process, as this one sees it: asked by one thread at a time."""

    def __init__(self, stream: BufferedRWPair, process: subprocess.Popen, path: str):
        self._stream, self._process, self._path, self._lock = stream, process, path, threading.Lock()

    def ask(self, what: Any) -> Any:
        """Returns what the other process answers. Raises what it raises, and ConfigError where it is lost."""
        with self._lock:
            try:
                pickle.dump(what, self._stream)
                self._stream.flush()
                answer = pickle.load(self._stream)
                if isinstance(answer, _Coming):
                    answer = answer.receive(self._stream)
            except (EOFError, OSError, ValueError, pickle.UnpicklingError):
                raise ConfigError(f"--export_dir={self._path}: {self._how_it_ended()}") from None
        if isinstance(answer, Exception):
            raise answer
        return answer

    def _how_it_ended(self) -> str:
        code = self._process.wait()
        how = f"by signal {signal.Signals(-code).name}" if code < 0 else f"with exit code {code}"
        return (
            f"the process that reads its files ended {how}: there is not enough memory, or a file was cut"
            " while it was read."
        )


@dataclasses.dataclass(frozen=True)
class _Values:
    """Reads a weight through the other process."""

    reader: _Reader
    name: str

    def __call__(self) -> np.ndarray:
        return self.reader.ask(self.name)


@dataclasses.dataclass(frozen=True)
class _Coming:
    """Says which array follows as bytes."""

    dtype: np.dtype
    shape: tuple[int, ...]

    def receive(self, stream: BufferedRWPair) -> np.ndarray:
        values = np.empty(self.shape, self.dtype)
        content = values.reshape(-1).view(np.uint8).data
        if stream.readinto(content) != len(content):
            raise EOFError
        return values


def _unread() -> np.ndarray:
    """Stands for the values of a weight on its way from one process to the other."""
    raise NotImplementedError


def serve() -> None:
    """Finds the model that the process at the other end of stdin asks for, and hands its weights over until
    that one closes."""
    _die_with_parent()
    from official.inference import source
    from official.io import quiet

    quiet.quieten_libraries()
    connection = socket.socket(fileno=0)
    with connection.makefile("rwb") as stream, contextlib.suppress(EOFError, BrokenPipeError):
        arguments = pickle.load(stream)
        try:
            found = source.find(*arguments)
            tensors = {
                name: dataclasses.replace(tensor, read=_unread) for name, tensor in found.tensors.items()
            }
            answer: Any = dataclasses.replace(found, tensors=tensors)
        except Exception as error:  # pylint: disable=broad-except  # raised in the other process
            answer = _told(error, arguments[0])
        _send(stream, answer)
        while True:
            name = pickle.load(stream)
            try:
                answer = np.ascontiguousarray(found.tensors[name].read())
            except Exception as error:  # pylint: disable=broad-except
                answer = _told(error, arguments[0])
            _send(stream, answer)


def _send(stream: BufferedRWPair, answer: Any) -> None:
    if isinstance(answer, np.ndarray):
        pickle.dump(_Coming(answer.dtype, answer.shape), stream)
        stream.write(answer.reshape(-1).view(np.uint8).data)
    else:
        pickle.dump(answer, stream)
    stream.flush()


def _told(error: Exception, path: str) -> Exception:
    """Returns an error as the other process is to raise it."""
    from official.checkpoint.errors import DamagedError
    from official.serving.server.batcher import place_of

    if isinstance(error, ConfigError):
        return ConfigError(str(error), error.details)
    if isinstance(error, DamagedError):
        return DamagedError(str(error))
    if isinstance(error, MemoryError):
        return ConfigError(f"--export_dir={path}: there is not enough memory for it.")
    return ConfigError(f"--export_dir={path} cannot be loaded: {place_of(error)}.")


def _die_with_parent() -> None:
    """Ends this process with the one that began it, also in the middle of a read; on Linux."""
    import ctypes

    prctl = getattr(ctypes.CDLL(None), "prctl", None)
    if prctl:
        prctl(_DIES_WITH_PARENT, signal.SIGKILL)
