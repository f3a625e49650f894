"""Files in stores that only TensorFlow reaches: ram:// of this process, and those whose package for fsspec is
not installed."""

from __future__ import annotations

import contextlib
import errno
import io
import os
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, BinaryIO

from official.io import stores

if TYPE_CHECKING:
    from official.io.stores import Walk

_BUFFER_BYTES = 1 << 20


@contextlib.contextmanager
def _gfile(path: str) -> Iterator:
    """Yields tf.io.gfile for one path; its errors become OSErrors."""
    import tensorflow as tf  # late: see above

    try:
        yield tf.io.gfile
    except tf.errors.OpError as error:
        number = errno.ENOENT if isinstance(error, tf.errors.NotFoundError) else errno.EIO
        raise OSError(number, error.message, path) from None


def schemes() -> list[str]:
    """Returns the schemes that TensorFlow has a file system for: "gs", "ram", .."""
    import tensorflow as tf

    registered = getattr(tf.io.gfile, "get_registered_schemes", None)  # not in TensorFlow 2.6
    return list(registered()) if registered else ["gs", "hdfs", "ram"]


class TensorFlowStore:
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

    def versions(self, paths: Iterable[str]) -> dict[str, tuple[int, int]]:
        return {path: self.version(path) for path in paths}

    def states(self, paths: Iterable[str]) -> dict[str, str]:
        found = self.versions(paths)
        return {path: f"{size:,} bytes, changed {changed}" for path, (size, changed) in found.items()}

    def walk(self, folder: str) -> Walk:
        with _gfile(folder) as gfile:
            yield from gfile.walk(folder)

    def glob(self, pattern: str) -> list[str]:
        """tf.io.gfile.glob, and `**` for any folders."""
        if "**" not in pattern:
            with _gfile(pattern) as gfile:
                return [path for path in gfile.glob(pattern) if not gfile.isdir(path)]
        base = stores.fixed_part(pattern)
        return stores.matching(stores.files_below(self.walk, base), pattern)

    def names_in(self, folder: str) -> list[str]:
        with _gfile(folder) as gfile:
            return gfile.listdir(folder)

    def open(self, path: str) -> BinaryIO:
        return io.BufferedReader(_RemoteFile(path), _BUFFER_BYTES)

    def read_range(self, path: str, start: int, size: int) -> bytes:
        with _gfile(path) as gfile, gfile.GFile(path, "rb") as file:
            file.seek(start)
            return file.read(size)

    def put(self, local: str, path: str) -> None:
        temporary = stores.temporary(path)
        with _gfile(path) as gfile:
            gfile.copy(local, temporary, overwrite=True)
            gfile.rename(temporary, path, overwrite=True)

    def write(self, path: str, data: bytes) -> None:
        temporary = stores.temporary(path)
        with _gfile(path) as gfile:
            with gfile.GFile(temporary, "wb") as file:
                file.write(data)
            gfile.rename(temporary, path, overwrite=True)

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
