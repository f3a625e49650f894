"""Makes the standard streams of a process safe, so that it runs the same wherever they are redirected.

A closed stream is redirected to /dev/null, so that no file opened later gets its number and its output.
Output that cannot be written (full disk, pipe without reader) is dropped: the work continues, and the exit
code is the work's. Characters that the encoding lacks are escaped.
"""

from __future__ import annotations

import errno
import io
import os
import select
import sys
from typing import Any

from official.io.errors import report_error

_unwritable: dict[str, OSError] = {}  # the first error of a stream, by its name


class _Stream(io.FileIO):
    """The bytes of stdout or stderr. No write fails; the first error is noted."""

    def __init__(self, descriptor: int, name: str):
        super().__init__(descriptor, "w", closefd=False)
        self.name = f"<{name}>"
        self._stream = name

    def write(self, data: Any) -> int:
        left = memoryview(data).cast("B")
        size = len(left)
        while left:
            try:
                written = super().write(left)
            except OSError as error:
                self._note(error)
                break
            if written is None:  # another process made the pipe or the terminal non-blocking
                select.select([], [self.fileno()], [])
            else:
                left = left[written:]
        return size

    def _note(self, error: OSError) -> None:
        if self._stream in _unwritable:
            return
        _unwritable[self._stream] = error
        if self._stream == "stdout" and error.errno != errno.EPIPE:  # EPIPE is normal: `| head`
            message = f"stdout cannot be written ({error.strerror}); the rest of the output is lost."
            report_error(os.path.basename(sys.argv[0]), message)


def settle() -> None:
    """Makes the standard streams of this process safe to write to. To be called before a file is opened."""
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:  # closed; the lowest free number is the one that is opened
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
    if sys.stdin is None:
        sys.stdin = open(0, encoding="utf-8", closefd=False)
    for descriptor, name in ((1, "stdout"), (2, "stderr")):
        stream = getattr(sys, name)
        if stream is getattr(sys, f"__{name}__"):  # otherwise other code has replaced the stream
            setattr(sys, name, _settled(stream, descriptor, name))


def _settled(stream: Any, descriptor: int, name: str) -> io.TextIOWrapper:
    raw = _Stream(descriptor, name)
    if stream is None:  # was closed
        return io.TextIOWrapper(io.BufferedWriter(raw), "utf-8", "backslashreplace", line_buffering=True)
    stream.flush()
    is_unbuffered = isinstance(stream.buffer, io.RawIOBase)  # python -u
    buffer = raw if is_unbuffered else io.BufferedWriter(raw)
    how = dict(line_buffering=stream.line_buffering, write_through=is_unbuffered)
    return io.TextIOWrapper(buffer, stream.encoding, "backslashreplace", "\n", **how)


def is_unread() -> bool:
    """Tells whether the reader of this process's output has ended (`| head`)."""
    return any(error.errno == errno.EPIPE for error in _unwritable.values())


def has_all_letters() -> bool:
    """Tells whether stdout can encode every character, without escapes."""
    return "utf" in (getattr(sys.stdout, "encoding", None) or "utf-8").lower()
