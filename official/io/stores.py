"""Where files lie: on this machine, or in a store that TensorFlow reaches (gs://, hdfs://, ram://).

Both have the same operations, and all fail with OSError. TensorFlow is loaded for a store only: it takes
seconds, and files of this machine do not need it.
"""

from __future__ import annotations

import contextlib
import errno
import fnmatch
import glob
import io
import os
import shutil
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, BinaryIO, Protocol

_BUFFER_BYTES = 1 << 20

if TYPE_CHECKING:  # alone in annotations: Python 3.8 could not make it
    # As os.walk; a folder taken out of the second is not visited.
    _Walk = Iterator[tuple[str, list[str], list[str]]]


class Store(Protocol):
    """The operations on files and folders, by their paths."""

    def exists(self, path: str) -> bool: ...
    def is_file(self, path: str) -> bool: ...
    def is_folder(self, path: str) -> bool: ...
    def version(self, path: str) -> tuple[int, int]:
        """Returns the bytes of a file and the time of its last change in nanoseconds."""

    def walk(self, folder: str) -> _Walk: ...
    def glob(self, pattern: str) -> list[str]: ...
    def names_in(self, folder: str) -> list[str]: ...
    def open(self, path: str) -> BinaryIO:
        """Opens a file for reading, buffered."""

    def write(self, path: str, data: bytes) -> None: ...
    def rename(self, before: str, after: str) -> None: ...
    def remove(self, path: str) -> None: ...
    def make_folder(self, path: str) -> None: ...
    def remove_folder(self, path: str) -> None: ...
    def sync(self, path: str) -> None:
        """Waits until a file, or the names in a folder, are on the disk."""


def is_remote(path: str) -> bool:
    """Tells whether a path is in a store that only TensorFlow reaches."""
    return "://" in path


def store_of(path: str) -> Store:
    """Returns the store that a path is in."""
    return _TENSORFLOW if is_remote(path) else _LOCAL


def files_below(walk: Callable[[str], _Walk], folder: str) -> Iterator[str]:
    """Yields the files in a folder and below, hidden ones (.name) left out."""
    for parent, folders, names in walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        yield from (os.path.join(parent, name) for name in names if not name.startswith("."))


# ------------------------------------------------------------------------------------------------------------
# This machine


class _Local:
    def exists(self, path: str) -> bool:
        return os.path.lexists(path)

    def is_file(self, path: str) -> bool:
        return os.path.isfile(path)

    def is_folder(self, path: str) -> bool:
        return os.path.isdir(path)

    def version(self, path: str) -> tuple[int, int]:
        found = os.stat(path)
        return found.st_size, found.st_mtime_ns

    def walk(self, folder: str) -> _Walk:
        """As os.walk, but follows links, enters each folder once, and does not pass over one that cannot be
        read."""

        def fail(error: OSError) -> None:
            raise error

        entered = set()
        for parent, folders, names in os.walk(folder, followlinks=True, onerror=fail):
            if os.path.realpath(parent) in entered:
                folders.clear()
                continue
            entered.add(os.path.realpath(parent))
            folders.sort()
            yield parent, folders, names

    def glob(self, pattern: str) -> list[str]:
        return glob.glob(pattern, recursive=True)

    def names_in(self, folder: str) -> list[str]:
        return os.listdir(folder)

    def open(self, path: str) -> BinaryIO:
        return open(path, "rb", buffering=_BUFFER_BYTES)

    def write(self, path: str, data: bytes) -> None:
        with open(path, "wb") as file:
            file.write(data)

    def rename(self, before: str, after: str) -> None:
        os.replace(before, after)

    def remove(self, path: str) -> None:
        os.remove(path)

    def make_folder(self, path: str) -> None:
        os.makedirs(path, exist_ok=True)

    def remove_folder(self, path: str) -> None:
        shutil.rmtree(path)

    def sync(self, path: str) -> None:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


# ------------------------------------------------------------------------------------------------------------
# Stores that TensorFlow reaches


@contextlib.contextmanager
def _gfile(path: str) -> Iterator:
    """Yields tf.io.gfile for one path; its errors become OSErrors."""
    import tensorflow as tf  # late: see above

    try:
        yield tf.io.gfile
    except tf.errors.OpError as error:
        number = errno.ENOENT if isinstance(error, tf.errors.NotFoundError) else errno.EIO
        raise OSError(number, error.message, path) from None


class _TensorFlow:
    def exists(self, path: str) -> bool:
        with _gfile(path) as gfile:
            return gfile.exists(path)

    def is_file(self, path: str) -> bool:
        with _gfile(path) as gfile:
            return gfile.exists(path) and not gfile.isdir(path)

    def is_folder(self, path: str) -> bool:
        with _gfile(path) as gfile:
            return gfile.isdir(path)

    def version(self, path: str) -> tuple[int, int]:
        with _gfile(path) as gfile:
            found = gfile.stat(path)
            return found.length, found.mtime_nsec

    def walk(self, folder: str) -> _Walk:
        with _gfile(folder) as gfile:
            yield from gfile.walk(folder)

    def glob(self, pattern: str) -> list[str]:
        """tf.io.gfile.glob, and `**` for any folders."""
        if "**" not in pattern:
            with _gfile(pattern) as gfile:
                return gfile.glob(pattern)
        parts = pattern.split("/")
        fixed = next(number for number, part in enumerate(parts) if glob.has_magic(part))
        base = "/".join(parts[:fixed])
        return [
            path
            for path in files_below(self.walk, base)
            if _fits(path[len(base) :].strip("/").split("/"), parts[fixed:])
        ]

    def names_in(self, folder: str) -> list[str]:
        with _gfile(folder) as gfile:
            return gfile.listdir(folder)

    def open(self, path: str) -> BinaryIO:
        return io.BufferedReader(_RemoteFile(path), _BUFFER_BYTES)

    def write(self, path: str, data: bytes) -> None:
        with _gfile(path) as gfile, gfile.GFile(path, "wb") as file:
            file.write(data)

    def rename(self, before: str, after: str) -> None:
        with _gfile(before) as gfile:
            gfile.rename(before, after, overwrite=True)

    def remove(self, path: str) -> None:
        with _gfile(path) as gfile:
            gfile.remove(path)

    def make_folder(self, path: str) -> None:
        with _gfile(path) as gfile:
            gfile.makedirs(path)

    def remove_folder(self, path: str) -> None:
        with _gfile(path) as gfile:
            gfile.rmtree(path)

    def sync(self, path: str) -> None:
        """A store has what was closed."""


def _fits(names: list[str], pattern: list[str]) -> bool:
    """Says whether the parts of a path fit those of a glob; `**` stands for any number of folders."""
    if not names or not pattern:
        return not names and pattern in ([], ["**"])
    if pattern[0] == "**":
        return _fits(names, pattern[1:]) or _fits(names[1:], pattern)
    return fnmatch.fnmatchcase(names[0], pattern[0]) and _fits(names[1:], pattern[1:])


class _RemoteFile(io.RawIOBase):
    """A remote file as Python's own input and output want it."""

    def __init__(self, path: str):
        super().__init__()
        self._path = path
        self._position = 0
        with _gfile(path) as gfile:
            self._size = gfile.stat(path).length
            self._file = gfile.GFile(path, "rb")

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def readinto(self, buffer) -> int:
        with _gfile(self._path):
            data = self._file.read(len(buffer))
        buffer[: len(data)] = data
        self._position += len(data)
        return len(data)

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        origins = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._size}
        self._position = offset + origins[whence]
        with _gfile(self._path):
            self._file.seek(self._position)
        return self._position

    def tell(self) -> int:
        return self._position


_LOCAL, _TENSORFLOW = _Local(), _TensorFlow()
