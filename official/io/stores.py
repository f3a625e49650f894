"""Stores of files: this machine, s3://, gs://, hdfs://, and names in any of them."""

from __future__ import annotations

import contextlib
import errno
import fnmatch
import functools
import glob
import importlib.util
import io
import os
import pwd
import re
import secrets
import shutil
import socket
import stat
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, BinaryIO, Protocol, cast

from official.io.errors import ConfigError, how_to_install

# -----------------------------------------------------------------------------------------------------------
# Names


_HOME = re.compile(r"(^|,\s*)(~[^/,]*)(?=[/,]|$)")
TEMPORARY = ".tmp-"  # in the names of files that are not finished


@functools.lru_cache(maxsize=1)
def host() -> str:
    """Returns the name of this machine, without hyphens."""
    return re.sub(r"[^A-Za-z0-9.]", "_", socket.gethostname()) or "host"


def home() -> str | None:
    """Returns the home folder of this user; None where there is none."""
    found = os.environ.get("HOME")
    with contextlib.suppress(KeyError):  # a number without a name
        found = found or pwd.getpwuid(os.getuid()).pw_dir
    return found if found and os.path.isabs(found) and os.path.isdir(found) else None


def expanded(paths: str) -> str:
    """Returns a path, or several with commas between them, with the home folders that ~ and ~user in front
    stand for, as a shell puts them there. It does not for --flag=~/path, and nobody does in a file. Raises
    ConfigError for ~ where this user has no home folder."""

    def with_home(match: re.Match[str]) -> str:
        found = home() if match[2] == "~" else os.path.expanduser(match[2])
        if found is None:
            raise ConfigError(
                f"{paths[:100]}: ~ is the home folder, and this user has none. Give a whole path."
            )
        return match[1] + (found.rstrip("/") or "/")

    return _HOME.sub(with_home, paths)


def new_tag() -> str:
    """Returns HOST-PROCESS-CHANCE, a name that nobody else has, on whatever machine."""
    return f"{host()}-{os.getpid()}-{secrets.token_hex(4)}"


def is_dead(tag: str) -> bool:
    """Tells whether the process of a tag has ended. One of another machine may live."""
    parts = tag.split("-")
    if len(parts) > 1 and parts[0] != host():
        return False
    try:
        os.kill(int(parts[len(parts) > 1]), 0)
    except (ProcessLookupError, ValueError, OverflowError):
        return True
    except PermissionError:  # somebody else's
        pass
    return False


def temporary(path: str) -> str:
    """Returns a new name beside `path` for what is to become it."""
    return f"{path}{TEMPORARY}{new_tag()}"


def files_below(walk: Callable[[str], Iterator], folder: str) -> Iterator[str]:
    """Yields the files in a folder and below, hidden ones (.name) left out."""
    for parent, folders, names in walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        yield from (os.path.join(parent, name) for name in names if not name.startswith("."))


def fixed_part(pattern: str) -> str:
    """Returns the folders of a glob before the first part with a wildcard."""
    parts = pattern.split("/")
    fixed = next((number for number, part in enumerate(parts) if glob.has_magic(part)), len(parts) - 1)
    return "/".join(parts[:fixed])


def matching(paths: Iterable[str], pattern: str) -> list[str]:
    """Returns the paths, below its fixed part, that a glob stands for; `**` is any number of folders."""
    base = fixed_part(pattern)
    wanted = pattern[len(base) :].strip("/").split("/")
    return [path for path in paths if _fits(path[len(base) :].strip("/").split("/"), wanted)]


def _fits(names: list[str], pattern: list[str]) -> bool:
    """Says whether the parts of a path fit those of a glob; `**` stands for any number of folders."""
    if not names or not pattern:
        return not names and pattern in ([], ["**"])
    if pattern[0] == "**":
        return _fits(names, pattern[1:]) or _fits(names[1:], pattern)
    return fnmatch.fnmatchcase(names[0], pattern[0]) and _fits(names[1:], pattern[1:])


# -----------------------------------------------------------------------------------------------------------
# Readable files
#
# A named pipe without a writer, or /dev/zero, would be read for ever; a pointer of Git LFS is a line of
# text in place of the file that was meant. All are refused by an OSError whose text says what they are.


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


# -----------------------------------------------------------------------------------------------------------
# Stores
#
# All have the same operations, and all fail with OSError. Stores are reached through fsspec; those that it
# has no installed package for through TensorFlow, where that has one. Both are loaded for a store only:
# they take seconds, and files of this machine do not need them.


_BUFFER_BYTES = 1 << 20
_OF_TENSORFLOW = ("ram",)  # no other process, and no other library, sees what is there
_EXTRAS = {"gs": "gcs", "gcs": "gcs", "s3": "s3", "s3a": "s3", "hdfs": "hdfs"}  # of setup.py

if TYPE_CHECKING:  # alone in annotations: Python 3.8 could not make it
    # As os.walk; a folder taken out of the second is not visited.
    Walk = Iterator[tuple[str, list[str], list[str]]]


class Store(Protocol):
    """The operations on files and folders, by their paths."""

    def exists(self, path: str) -> bool: ...
    def is_file(self, path: str) -> bool: ...
    def is_folder(self, path: str) -> bool: ...
    def version(self, path: str) -> tuple[int, int]:
        """Returns the bytes of a file and the time of its last change in nanoseconds."""

    def versions(self, paths: Iterable[str]) -> dict[str, tuple[int, int]]:
        """As `version`, for many files, with few requests."""

    def states(self, paths: Iterable[str]) -> dict[str, str]:
        """Returns a text for each file that is another one when the file was changed or replaced."""

    def walk(self, folder: str) -> Walk: ...
    def glob(self, pattern: str) -> list[str]:
        """Returns the files, and no folders, that a glob stands for."""

    def names_in(self, folder: str) -> list[str]: ...
    def open(self, path: str) -> BinaryIO:
        """Opens a file for reading, buffered."""

    def read_range(self, path: str, start: int, size: int) -> bytes:
        """Returns bytes of a file from `start` on, fewer where it ends before."""

    def write(self, path: str, data: bytes) -> None:
        """Writes a file. In a store it appears as a whole, under its name."""

    def put(self, local: str, path: str) -> None:
        """Copies a file of this machine to a store, where it appears as a whole."""

    def rename(self, before: str, after: str) -> None: ...
    def remove(self, path: str) -> None: ...
    def make_folder(self, path: str) -> None: ...
    def remove_folder(self, path: str) -> None: ...
    def sync(self, path: str) -> None:
        """Waits until a file, or the names in a folder, are on the disk."""


def is_remote(path: str) -> bool:
    """Tells whether a path is in a store, and not on this machine."""
    return "://" in path


def store_of(path: str) -> Store:
    """Returns the store that a path is in. Raises ConfigError where nothing reaches it."""
    return _store_of(path.partition("://")[0].lower()) if is_remote(path) else _LOCAL


@functools.lru_cache(maxsize=64)
def _store_of(scheme: str) -> Store:
    from official.io import tensorflow_store

    if scheme not in _OF_TENSORFLOW and importlib.util.find_spec("fsspec"):
        from official.io import fsspec_store

        if fsspec_store.has(scheme):
            return fsspec_store.FsspecStore(scheme)
    if importlib.util.find_spec("tensorflow") and scheme in tensorflow_store.schemes():
        return tensorflow_store.TensorFlowStore()
    extra = _EXTRAS.get(scheme, "storage")
    raise ConfigError(f"{scheme}:// cannot be reached. For it: {how_to_install(extra)}.")


def tensorflow_reads(path: str) -> bool:
    """Tells whether TensorFlow itself opens files of the store that a path is in."""
    from official.io import tensorflow_store

    return not is_remote(path) or path.partition("://")[0].lower() in tensorflow_store.schemes()


# ------------------------------------------------------------------------------------------------------------
# This machine


class _Local:
    def exists(self, path: str) -> bool:
        return os.path.lexists(path)

    def is_file(self, path: str) -> bool:
        """A pipe, a device or a link that leads nowhere is none to be read, which `open` says."""
        return os.path.lexists(path) and not os.path.isdir(path)

    def is_folder(self, path: str) -> bool:
        return os.path.isdir(path)

    def version(self, path: str) -> tuple[int, int]:
        found = os.stat(path)
        return found.st_size, found.st_mtime_ns

    def versions(self, paths: Iterable[str]) -> dict[str, tuple[int, int]]:
        return {path: self.version(path) for path in paths}

    def states(self, paths: Iterable[str]) -> dict[str, str]:
        return {path: self._state(os.stat(path)) for path in paths}

    def _state(self, found: os.stat_result) -> str:
        return f"{found.st_size:,} bytes, changed {found.st_mtime_ns}, inode {found.st_ino}"

    def walk(self, folder: str) -> Walk:
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
        """As glob.glob, but `**` enters each folder once: links may lead back to a folder above."""
        if "**" not in pattern:
            return [path for path in glob.glob(pattern) if not os.path.isdir(path)]
        base = fixed_part(pattern)
        if base and not os.path.isdir(base):
            return []
        if base:
            return matching(files_below(self.walk, base), pattern)
        root = "/" if pattern.startswith("/") else "."
        found = [os.path.relpath(path, root) for path in files_below(self.walk, root)]
        matched = matching(found, pattern.lstrip("/"))
        return [f"/{path}" for path in matched] if root == "/" else matched

    def names_in(self, folder: str) -> list[str]:
        return os.listdir(folder)

    def open(self, path: str) -> BinaryIO:
        return opened(path, _BUFFER_BYTES)

    def read_range(self, path: str, start: int, size: int) -> bytes:
        with open(path, "rb", buffering=0) as file:
            file.seek(start)
            return file.read(size)

    def put(self, local: str, path: str) -> None:
        os.replace(local, path)

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


_LOCAL = _Local()
