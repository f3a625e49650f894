"""Stores of files: this machine, or a remote one (s3://, gs://, hdfs://, ..).

All have the same operations, and all fail with OSError. Stores are reached through fsspec; those that it
has no installed package for through TensorFlow, where that has one. Both are loaded for a store only: they
take seconds, and files of this machine do not need them.
"""

from __future__ import annotations

import functools
import glob
import importlib.util
import os
import shutil
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, BinaryIO, Protocol

from official.io import readable, store_paths
from official.io.errors import ConfigError, how_to_install

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
        base = store_paths.fixed_part(pattern)
        if base and not os.path.isdir(base):
            return []
        if base:
            return store_paths.matching(store_paths.files_below(self.walk, base), pattern)
        root = "/" if pattern.startswith("/") else "."
        found = [os.path.relpath(path, root) for path in store_paths.files_below(self.walk, root)]
        matched = store_paths.matching(found, pattern.lstrip("/"))
        return [f"/{path}" for path in matched] if root == "/" else matched

    def names_in(self, folder: str) -> list[str]:
        return os.listdir(folder)

    def open(self, path: str) -> BinaryIO:
        return readable.opened(path, _BUFFER_BYTES)

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
