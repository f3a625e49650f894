"""Files of this machine that can be read as files: no pipe, device or folder, and no pointer of Git LFS.

A named pipe without a writer, or /dev/zero, would be read for ever; a pointer of Git LFS is a line of text in
place of the file that was meant. All are refused by an OSError whose text says what they are.
"""

from __future__ import annotations

import errno
import io
import os
import re
import stat
from typing import BinaryIO, cast

POINTER_START = b"version https://git-lfs.github.com/spec/v1"
_POINTER_BYTES = 1024  # a pointer is smaller, by its specification
_POINTER_SIZE = re.compile(rb"^size (\d{1,20})\s*$", re.MULTILINE)
# What a shell hands over, as <(COMMAND) does: open already, so that reading it ends with its writer.
_STREAMS = ("/dev/stdin", "/dev/fd/", "/proc/self/fd/")


def check(path: str) -> None:
    """Raises OSError for a path that is no file which can be read more than once, from any place on: to be
    called before another library opens it."""
    found = os.stat(path)
    _check_kind(path, found)
    if found.st_size <= _POINTER_BYTES:
        with open(path, "rb", buffering=0) as file:
            _check_head(path, found, file.read(_POINTER_BYTES))


def check_kind(path: str) -> None:
    """As `check`, without a look at what files hold that have a size; there may be very many."""
    found = os.stat(path)
    _check_kind(path, found)
    if not found.st_size:
        with open(path, "rb", buffering=0) as file:
            _check_head(path, found, file.read(1))


def opened(path: str, buffer_bytes: int) -> BinaryIO:
    """Opens a file for reading, buffered. Raises OSError as `check` does; a pipe that a shell hands over is
    opened, too."""
    found = os.stat(path)  # first: to open a pipe waits for its writer
    is_stream = path.startswith(_STREAMS) and not stat.S_ISDIR(found.st_mode)
    if not is_stream:
        _check_kind(path, found)
    file = cast(io.BufferedReader, open(path, "rb", buffering=buffer_bytes))
    if not is_stream and found.st_size <= _POINTER_BYTES:
        try:
            _check_head(path, found, file.peek(_POINTER_BYTES))
        except OSError:
            file.close()
            raise
    return file


def describe_pointer(head: bytes) -> str | None:
    """Returns a description of a pointer of Git LFS by its first bytes; None where it is none."""
    if not head.startswith(POINTER_START):
        return None
    size = _POINTER_SIZE.search(head)
    told = f" ({int(size[1]):,} bytes in the store)" if size else ""
    return f"is a Git LFS pointer{told}, not the file: git lfs pull"


def _check_kind(path: str, found: os.stat_result) -> None:
    mode = found.st_mode
    if stat.S_ISREG(mode):
        return
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    kind = "named pipe (FIFO)" if stat.S_ISFIFO(mode) else "socket" if stat.S_ISSOCK(mode) else "device"
    raise OSError(errno.EINVAL, f"it is a {kind}, not a file", path)


def _check_head(path: str, found: os.stat_result, head: bytes) -> None:
    if head and not found.st_size:
        raise OSError(
            errno.EINVAL, "it has no size and yet holds something, as files under /proc do: copy it", path
        )
    pointer = describe_pointer(head)
    if pointer:
        raise OSError(errno.EINVAL, f"it {pointer}", path)
