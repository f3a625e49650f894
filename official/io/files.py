"""Finds and opens files, of this machine or of a store that TensorFlow can reach (gs://, ram://).

TensorFlow is loaded for paths with "://" only.
"""

import contextlib
import errno
import fnmatch
import functools
import glob
import io
import os
from collections.abc import Callable, Iterable, Iterator
from typing import BinaryIO, NamedTuple

from official.io.errors import ConfigError

_BUFFER_BYTES = 1 << 20


def find_files(patterns: str, flag: str, in_folders: str = "*") -> list[str]:
    """Returns the files that comma-separated names of files and folders, and globs, stand for: sorted, each
    once.

    Args:
      patterns: a folder stands for the files in it and below, hidden ones (.name) left out; `**` in a glob
        for any folders.
      flag: name of the flag that gave them, for messages; '' for an argument without one.
      in_folders: glob of the names that are taken from a folder.

    Raises:
      ConfigError: naming a pattern that stands for no file.
    """
    found = set()
    for pattern in filter(None, (part.strip() for part in patterns.split(","))):
        source = f"--{flag}={pattern}" if flag else pattern
        try:
            matched = _match(pattern, in_folders)
        except OSError as error:
            raise ConfigError(
                f"{source}: {error.filename or pattern} cannot be read: {error.strerror or error}."
            ) from None
        if not matched:
            raise ConfigError(f"{source} matches no file.")
        found.update(matched)
    if not found:
        raise ConfigError(
            f"{f'--{flag}' if flag else 'the list of files'} is empty. Give files, folders or globs,"
            " separated by commas."
        )
    return sorted(found)


def sizes(paths: Iterable[str]) -> list[int]:
    """Returns the bytes of each file. Raises ConfigError for one that is not there."""
    return [_size(path) for path in paths]


def version(path: str) -> tuple[int, int]:
    """Returns the bytes of a file and the time of its last change in nanoseconds. Raises OSError."""
    if not is_remote(path):
        found = os.stat(path)
        return found.st_size, found.st_mtime_ns
    with tensorflow_files(path) as gfile:
        found = gfile.stat(path)
        return found.length, found.mtime_nsec


def open_binary(path: str) -> BinaryIO:
    """Opens a file for reading, buffered. Raises OSError, here and later, whatever keeps the file."""
    if not is_remote(path):
        return open(path, "rb", buffering=_BUFFER_BYTES)
    return io.BufferedReader(_RemoteFile(path), _BUFFER_BYTES)


@contextlib.contextmanager
def naming(path: str) -> Iterator[None]:
    """Makes of an OSError in its block a ConfigError that names the file."""
    try:
        yield
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror or error}.") from None


def _size(path: str) -> int:
    with naming(path):
        if not is_remote(path):
            return os.path.getsize(path)
        with tensorflow_files(path) as gfile:
            return gfile.stat(path).length


# ------------------------------------------------------------------------------------------------------------
# Patterns


class _FileSystem(NamedTuple):
    is_file: Callable[[str], bool]
    is_folder: Callable[[str], bool]
    walk: Callable[
        [str], Iterator[tuple[str, list[str], list[str]]]
    ]  # as os.walk; what is taken out of the folders is not visited
    glob: Callable[[str], list[str]]


def _match(pattern: str, in_folders: str) -> list[str]:
    if not is_remote(pattern):
        system = _FileSystem(
            os.path.isfile, os.path.isdir, _walk, functools.partial(glob.glob, recursive=True)
        )
        return [os.path.normpath(path) for path in _look_up(system, pattern, in_folders)]
    with tensorflow_files(pattern) as gfile:
        system = _FileSystem(
            lambda path: gfile.exists(path) and not gfile.isdir(path),
            gfile.isdir,
            gfile.walk,
            functools.partial(_glob_remote, gfile),
        )
        return _look_up(system, pattern, in_folders)


def _look_up(system: _FileSystem, pattern: str, in_folders: str) -> list[str]:
    """Returns files; a name that exists is never taken for a glob."""
    if system.is_folder(pattern):
        return [
            path
            for path in _files_below(system.walk, pattern)
            if fnmatch.fnmatchcase(os.path.basename(path), in_folders)
        ]
    if system.is_file(pattern):
        return [pattern]
    return [path for path in system.glob(pattern) if not system.is_folder(path)]


def _files_below(walk: Callable, folder: str) -> Iterator[str]:
    """Yields the files in a folder and below, hidden ones left out."""
    for parent, folders, names in walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        yield from (os.path.join(parent, name) for name in names if not name.startswith("."))


def _walk(folder: str) -> Iterator[tuple[str, list[str], list[str]]]:
    """As os.walk, but follows links, enters each folder once, and does not pass over a folder that cannot be
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


# ------------------------------------------------------------------------------------------------------------
# Stores that TensorFlow reaches


def is_remote(path: str) -> bool:
    """Tells whether a path is in a store that only TensorFlow reaches."""
    return "://" in path


@contextlib.contextmanager
def tensorflow_files(path: str) -> Iterator:
    """Yields tf.io.gfile for one path; its errors become OSErrors."""
    import tensorflow as tf  # late: it loads for seconds, and local files do not need it

    try:
        yield tf.io.gfile
    except tf.errors.OpError as error:
        raise OSError(errno.EIO, error.message, path) from None


def _glob_remote(gfile, pattern: str) -> list[str]:
    """tf.io.gfile.glob with `**`."""
    if "**" not in pattern:
        return gfile.glob(pattern)
    parts = pattern.split("/")
    fixed = next(number for number, part in enumerate(parts) if glob.has_magic(part))
    base = "/".join(parts[:fixed])
    return [
        path
        for path in _files_below(gfile.walk, base)
        if _fits(path.removeprefix(base).strip("/").split("/"), parts[fixed:])
    ]


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
        with tensorflow_files(path) as gfile:
            self._size = gfile.stat(path).length
            self._file = gfile.GFile(path, "rb")

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def readinto(self, buffer) -> int:
        with tensorflow_files(self._path):
            data = self._file.read(len(buffer))
        buffer[: len(data)] = data
        self._position += len(data)
        return len(data)

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._position = (
            offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._size}[whence]
        )
        with tensorflow_files(self._path):
            self._file.seek(self._position)
        return self._position

    def tell(self) -> int:
        return self._position
