"""Files in stores that fsspec reaches: s3:// (s3fs), gs:// (gcsfs), hdfs:// (pyarrow), memory://, and others.

An object store has no folders and no rename: an object appears as a whole when its last byte is there, so it
is written under its final name. hdfs:// and the like are file systems: there a file is written under a
temporary name and renamed.
"""

from __future__ import annotations

import contextlib
import datetime
import errno
import glob
import io
import os
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, BinaryIO

from official.io import stores

if TYPE_CHECKING:
    from official.io.stores import Walk

_BUFFER_BYTES = 1 << 20
_BLOCK_BYTES = 4 << 20  # is fetched at once where a file is read from its beginning to its end
_FEWEST_LISTED = 3  # files of a folder: from so many on it is listed once
# Schemes of file systems, whose files are seen while they grow, and can be renamed.
_FILE_SYSTEMS = ("file", "local", "hdfs", "viewfs", "arrow_hdfs", "webhdfs", "sftp", "ssh", "smb", "ftp")
# Names, in stores, of what is another one for another content.
_MARKS = ("ETag", "etag", "VersionId", "version_id", "generation", "md5Hash", "content_md5", "ino")
_TIMES = ("LastModified", "last_modified", "updated", "mtime", "modified", "created")


def has(scheme: str) -> bool:
    """Tells whether fsspec has a file system for a scheme, with all that it needs."""
    import fsspec

    try:
        fsspec.get_filesystem_class(scheme)
    except (ImportError, ValueError):
        return False
    return True


@contextlib.contextmanager
def _errors(path: str) -> Iterator[None]:
    """Makes OSErrors with a number and a text of what libraries of stores raise."""
    try:
        yield
    except FileNotFoundError:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path) from None
    except OSError as error:
        told = error.strerror or " ".join(str(error).split())[:300]
        # Libraries have subclasses that take other arguments, as aiohttp for gs://.
        kind = type(error) if type(error).__module__ == "builtins" else OSError
        raise kind(error.errno or errno.EIO, told, path) from None
    except (StopIteration, GeneratorExit):
        raise
    except Exception as error:  # each library has its own
        told = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
        raise OSError(errno.EIO, told, path) from None


class FsspecStore:
    """The files of a scheme."""

    def __init__(self, scheme: str):
        self._has_rename = scheme in _FILE_SYSTEMS

    def _at(self, path: str) -> tuple[Any, str]:
        """Returns the file system of a path, and the path there."""
        import fsspec

        return fsspec.core.url_to_fs(path, use_listings_cache=False)  # other processes write, too

    def exists(self, path: str) -> bool:
        with _errors(path):
            system, inner = self._at(path)
            return system.exists(inner)

    def is_file(self, path: str) -> bool:
        with _errors(path):
            system, inner = self._at(path)
            return system.isfile(inner)

    def is_folder(self, path: str) -> bool:
        with _errors(path):
            system, inner = self._at(path)
            return system.isdir(inner)

    def version(self, path: str) -> tuple[int, int]:
        return _version(self._info(path))

    def versions(self, paths: Iterable[str]) -> dict[str, tuple[int, int]]:
        return {path: _version(info) for path, info in self._infos(paths)}

    def states(self, paths: Iterable[str]) -> dict[str, str]:
        return {path: _state(info) for path, info in self._infos(paths)}

    def _info(self, path: str) -> dict[str, Any]:
        with _errors(path):
            system, inner = self._at(path)
            return system.info(inner)

    def _infos(self, paths: Iterable[str]) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yields (path, what the store says of it) of files, some folders of which are listed."""
        wanted: dict[str, set[str]] = {}
        for path in paths:
            wanted.setdefault(os.path.dirname(path), set()).add(path)
        for folder, here in wanted.items():
            found = dict(self._listed(folder)) if len(here) >= _FEWEST_LISTED else {}
            yield from ((path, found.get(path) or self._info(path)) for path in here)

    def _listed(self, folder: str) -> Iterator[tuple[str, dict[str, Any]]]:
        with _errors(folder):
            system, inner = self._at(folder)
            listed = system.ls(inner, detail=True)
        for info in listed:
            if info["type"] == "file":
                yield os.path.join(folder, os.path.basename(info["name"])), info

    def walk(self, folder: str) -> Walk:
        """As os.walk; all is listed at once, with as few requests as the store allows."""
        root = folder.rstrip("/")
        files: dict[str, list[str]] = {}
        folders: dict[str, set[str]] = {}
        for path in self._find(root):
            parent = os.path.dirname(path)
            files.setdefault(parent, []).append(os.path.basename(path))
            while parent != root:
                above, name = os.path.split(parent)
                beside = folders.setdefault(above, set())
                if name in beside:
                    break
                beside.add(name)
                parent = above
        left = [root]
        while left:
            parent = left.pop()
            names = sorted(folders.get(parent, ()))
            yield parent, names, sorted(files.get(parent, []))
            left += [os.path.join(parent, name) for name in reversed(names)]

    def _find(self, folder: str) -> list[str]:
        """Returns all files below a folder."""
        with _errors(folder):
            system, inner = self._at(folder)
            found = system.find(inner)
        start = len(inner.rstrip("/"))
        return [folder.rstrip("/") + path[start:] for path in found]

    def glob(self, pattern: str) -> list[str]:
        base = stores.fixed_part(pattern)
        if glob.has_magic(os.path.dirname(pattern)[len(base) :]) or "**" in pattern:
            return stores.matching(self._find(base), pattern)
        try:
            return stores.matching([path for path, _ in self._listed(base)], pattern)
        except FileNotFoundError:
            return []

    def names_in(self, folder: str) -> list[str]:
        try:
            with _errors(folder):
                system, inner = self._at(folder)
                listed = system.ls(inner, detail=False)
        except FileNotFoundError:
            if self._has_rename:
                raise
            return []  # a folder of objects is there with the first of them
        own = inner.rstrip("/")  # some stores list the folder itself, as an object without bytes
        return [os.path.basename(path.rstrip("/")) for path in listed if path.rstrip("/") != own]

    def open(self, path: str) -> BinaryIO:
        with _errors(path):
            system, inner = self._at(path)
            return io.BufferedReader(
                _File(path, system.open(inner, "rb", block_size=_BLOCK_BYTES)), _BUFFER_BYTES
            )

    def read_range(self, path: str, start: int, size: int) -> bytes:
        if not size:
            return b""
        with _errors(path):
            system, inner = self._at(path)
            return system.cat_file(inner, start=start, end=start + size)

    def write(self, path: str, data: bytes) -> None:
        with _errors(path), self._final(path) as (system, inner):
            system.pipe_file(inner, data)

    def put(self, local: str, path: str) -> None:
        with _errors(path), self._final(path) as (system, inner):
            system.put_file(local, inner)

    @contextlib.contextmanager
    def _final(self, path: str) -> Iterator[tuple[Any, str]]:
        """Yields the file system and the name under which a file is to be written that becomes `path`."""
        system, inner = self._at(path)
        if not self._has_rename:
            yield system, inner
            return
        temporary = stores.temporary(inner)
        try:
            yield system, temporary
            system.mv(temporary, inner)
        except BaseException:
            with contextlib.suppress(Exception):
                system.rm_file(temporary)
            raise

    def rename(self, before: str, after: str) -> None:
        with _errors(before):
            system, inner = self._at(before)
            system.mv(inner, self._at(after)[1])

    def remove(self, path: str) -> None:
        with _errors(path):
            system, inner = self._at(path)
            system.rm_file(inner)

    def make_folder(self, path: str) -> None:
        """An object store has no folders, only names."""
        if self._has_rename:
            with _errors(path):
                system, inner = self._at(path)
                system.makedirs(inner, exist_ok=True)

    def remove_folder(self, path: str) -> None:
        with _errors(path):
            system, inner = self._at(path)
            # Without objects in it, it is not there.
            with contextlib.nullcontext() if self._has_rename else contextlib.suppress(FileNotFoundError):
                system.rm(inner, recursive=True)

    def sync(self, path: str) -> None:
        """A store has what was closed."""


def _version(info: dict[str, Any]) -> tuple[int, int]:
    """Returns the bytes of a file and the time of its last change in nanoseconds, 0 where nothing says it."""
    changed = next((info[name] for name in _TIMES if info.get(name) is not None), 0)
    if isinstance(changed, str):
        changed = datetime.datetime.fromisoformat(changed.replace("Z", "+00:00"))
    if isinstance(changed, datetime.datetime):
        changed = changed.timestamp()
    return int(info["size"] or 0), int(changed * 1e9)


def _state(info: dict[str, Any]) -> str:
    """Returns the state of a file: size, time, and the version or digest that the store keeps."""
    size, changed = _version(info)
    marks = [f"{name} {info[name]}" for name in _MARKS if info.get(name) is not None]
    return ", ".join([f"{size:,} bytes", f"changed {changed}", *marks])


class _File(io.RawIOBase):
    """A file of a store as Python's own input and output want it, with OSErrors."""

    def __init__(self, path: str, file: Any):
        super().__init__()
        self._path, self._file = path, file

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def readinto(self, buffer) -> int:
        with _errors(self._path):
            data = self._file.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        with _errors(self._path):
            return self._file.seek(offset, whence)

    def tell(self) -> int:
        return self._file.tell()

    def close(self) -> None:
        if not self.closed:
            self._file.close()
        super().close()
