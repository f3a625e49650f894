"""Files of this machine and of remote stores: names, search, opening, and the operations of a store.

A path with a scheme (s3://, gs://, hdfs://, memory://) is in a store, which fsspec reaches, or TensorFlow
where fsspec has no installed package for it. Both take seconds to load, and are loaded for remote paths only.
Failures are OSErrors in all stores.
"""

from __future__ import annotations

import contextlib
import datetime
import errno
import fnmatch
import functools
import glob
import hashlib
import importlib.util
import io
import os
import pwd
import re
import secrets
import shutil
import socket
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, BinaryIO, NamedTuple

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


def expanded(paths: str | os.PathLike[str]) -> str:
    """Expands ~ and ~user at the start of each of several comma-separated paths: shells do not expand
    --flag=~/path, nor paths in files. Raises ConfigError for ~ if this user has no home folder."""
    given = os.fspath(paths)

    def with_home(match: re.Match[str]) -> str:
        found = home() if match[2] == "~" else os.path.expanduser(match[2])
        if found is None:
            raise ConfigError(f"{given[:100]}: this user has no home folder for ~. Give an absolute path.")
        return match[1] + (found.rstrip("/") or "/")

    return _HOME.sub(with_home, given)


def new_tag() -> str:
    """Returns HOST-PROCESS-RANDOM, a name that is unique across machines."""
    return f"{host()}-{os.getpid()}-{secrets.token_hex(4)}"


def is_dead(tag: str) -> bool:
    """Tells whether the process of a tag has ended; false for one of another machine, which is unknown."""
    parts = tag.split("-")
    if len(parts) > 1 and parts[0] != host():
        return False
    try:
        os.kill(int(parts[len(parts) > 1]), 0)
    except (ProcessLookupError, ValueError, OverflowError):
        return True
    except PermissionError:  # a process of another user
        pass
    return False


def temporary(path: str) -> str:
    """Returns a new temporary name in the folder of `path`."""
    return f"{path}{TEMPORARY}{new_tag()}"


def _fixed_part(pattern: str) -> str:
    """Returns the folders of a glob before the first part with a wildcard."""
    parts = pattern.split("/")
    fixed = next((number for number, part in enumerate(parts) if glob.has_magic(part)), len(parts) - 1)
    return "/".join(parts[:fixed])


def _matching(paths: Iterable[str], pattern: str) -> list[str]:
    """Returns the paths that match a glob, below its fixed part; `**` matches any number of folders."""
    base = _fixed_part(pattern)
    wanted = pattern[len(base) :].strip("/").split("/")
    return [path for path in paths if _fits(path[len(base) :].strip("/").split("/"), wanted)]


def _fits(names: list[str], pattern: list[str]) -> bool:
    if not names or not pattern:
        return not names and pattern in ([], ["**"])
    if pattern[0] == "**":
        return _fits(names, pattern[1:]) or _fits(names[1:], pattern)
    return fnmatch.fnmatchcase(names[0], pattern[0]) and _fits(names[1:], pattern[1:])


# -----------------------------------------------------------------------------------------------------------
# Readable files of this machine
#
# Reading a named pipe without a writer, or /dev/zero, would never end; a Git LFS pointer is a short text in
# place of the file. All are refused with an OSError that names the kind of file.


POINTER_START = b"version https://git-lfs.github.com/spec/v1"
_POINTER_BYTES = 1024  # a pointer is smaller, by its specification
_POINTER_SIZE = re.compile(rb"^size (\d{1,20})\s*$", re.MULTILINE)
# File descriptors from a shell's <(COMMAND), which are open already, so that reading ends with the writer.
_STREAMS = ("/dev/stdin", "/dev/fd/", "/proc/self/fd/")


def check_readable(path: str, every_small_one: bool = True) -> None:
    """Raises OSError for a path of this machine that is not a regular, seekable file. Call it before another
    library opens the path.

    Args:
      path: of a file; remote ones are not checked.
      every_small_one: check every file that is small enough for a Git LFS pointer; else, for very many files,
        only those of size 0.
    """
    if is_remote(path):
        return
    found = os.stat(path)
    mode = found.st_mode
    if stat.S_ISDIR(mode):
        raise OSError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    if not stat.S_ISREG(mode):
        kind = "named pipe (FIFO)" if stat.S_ISFIFO(mode) else "socket" if stat.S_ISSOCK(mode) else "device"
        raise OSError(errno.EINVAL, f"it is a {kind}, not a file", path)
    if found.st_size > (_POINTER_BYTES if every_small_one else 0):
        return
    with open(path, "rb", buffering=0) as file:
        head = file.read(_POINTER_BYTES)
    pointer = describe_pointer(head)
    if head and not found.st_size:
        pointer = "has no size and yet holds something, as files under /proc do: copy it"
    if pointer:
        raise OSError(errno.EINVAL, f"it {pointer}", path)


def describe_pointer(head: bytes) -> str | None:
    """Returns a description of a Git LFS pointer by its first bytes; None for another file."""
    if not head.startswith(POINTER_START):
        return None
    size = _POINTER_SIZE.search(head)
    stored = f" ({int(size[1]):,} bytes in the store)" if size else ""
    return f"is a Git LFS pointer{stored}, not the file: git lfs pull"


# -----------------------------------------------------------------------------------------------------------
# Stores


_BUFFER_BYTES = 1 << 20
_EXTRAS = {"gs": "gcs", "gcs": "gcs", "s3": "s3", "s3a": "s3", "hdfs": "hdfs"}  # of setup.py
# Schemes of file systems, whose files are visible while they grow, and can be renamed.
_FILE_SYSTEMS = ("file", "local", "hdfs", "viewfs", "arrow_hdfs", "webhdfs", "sftp", "ssh", "smb", "ftp")
# Keys of a store's metadata that change with the content.
_MARKS = ("ETag", "etag", "VersionId", "version_id", "generation", "md5Hash", "content_md5", "ino")
_TIMES = ("LastModified", "last_modified", "updated", "mtime", "modified", "created")


def is_remote(path: str) -> bool:
    """Tells whether a path is in a store, and not on this machine."""
    return "://" in path


def store_of(path: str) -> Store:
    """Returns the store that a path is in. Raises ConfigError where nothing reaches it."""
    return _remote_store(path.partition("://")[0].lower()) if is_remote(path) else _LOCAL


@functools.lru_cache(maxsize=64)
def _remote_store(scheme: str) -> Store:
    # Only TensorFlow in this process can access ram://.
    if scheme != "ram" and importlib.util.find_spec("fsspec"):
        import fsspec

        with contextlib.suppress(ImportError, ValueError):  # fsspec, or its package for the store, is missing
            fsspec.get_filesystem_class(scheme)
            return RemoteStore(fsspec.core.url_to_fs, scheme in _FILE_SYSTEMS)
    if importlib.util.find_spec("tensorflow") and scheme in _schemes_of_tensorflow():
        system = _TensorFlowFiles()
        return RemoteStore(lambda path, **_: (system, path), has_rename=True)
    extra = _EXTRAS.get(scheme, "storage")
    raise ConfigError(f"{scheme}:// cannot be reached. For it: {how_to_install(extra)}.")


def tensorflow_reads(path: str) -> bool:
    """Tells whether TensorFlow can open a path of a store itself."""
    return not is_remote(path) or path.partition("://")[0].lower() in _schemes_of_tensorflow()


def _schemes_of_tensorflow() -> list[str]:
    import tensorflow as tf

    registered = getattr(tf.io.gfile, "get_registered_schemes", None)  # not in TensorFlow 2.6
    return list(registered()) if registered else ["gs", "hdfs", "ram"]


class FileState(NamedTuple):
    """State of a file, which differs after the file was changed or replaced.

    Attributes:
      bytes: its size.
      changed: time of its last change in nanoseconds; 0 if unknown.
      marks: inode, or the store's version and digest, as text.
    """

    bytes: int
    changed: int
    marks: tuple[str, ...] = ()


class Store:
    """Operations on files and folders by path; this class is for local ones."""

    def exists(self, path: str) -> bool:
        return os.path.lexists(path)

    def is_file(self, path: str) -> bool:
        """True also for pipes, devices and dangling links, which `open` refuses with the reason."""
        return os.path.lexists(path) and not os.path.isdir(path)

    def is_folder(self, path: str) -> bool:
        return os.path.isdir(path)

    def states(self, paths: Iterable[str]) -> dict[str, FileState]:
        """Returns the states of files, with as few requests as the store allows."""
        found = ((path, os.stat(path)) for path in paths)
        return {path: FileState(s.st_size, s.st_mtime_ns, (f"inode {s.st_ino}",)) for path, s in found}

    def files_below(self, folder: str) -> list[str]:
        """Returns the files in a folder and below, hidden ones (.name) left out. Links are followed, and each
        folder is entered once. A folder that cannot be read is an error."""

        def fail(error: OSError) -> None:
            raise error

        entered, found = set(), []
        for parent, folders, names in os.walk(folder, followlinks=True, onerror=fail):
            if os.path.realpath(parent) in entered:
                folders.clear()
                continue
            entered.add(os.path.realpath(parent))
            folders[:] = [name for name in folders if not name.startswith(".")]
            found += [os.path.join(parent, name) for name in names if not name.startswith(".")]
        return found

    def glob(self, pattern: str) -> list[str]:
        """Returns the files, not folders, that match a glob; `**` skips hidden ones, and enters each folder
        once, as links may lead back to a parent."""
        if "**" not in pattern:
            return [path for path in glob.glob(pattern) if not os.path.isdir(path)]
        pattern = pattern if pattern.startswith("/") else os.path.join(".", pattern)
        base = _fixed_part(pattern) or "/"
        return _matching(self.files_below(base), pattern) if os.path.isdir(base) else []

    def names_in(self, folder: str) -> list[str]:
        return os.listdir(folder)

    def open(self, path: str) -> BinaryIO:
        """Opens a file for reading, buffered; also a pipe that a shell hands over."""
        if not path.startswith(_STREAMS) or os.path.isdir(path):
            check_readable(path)  # first, since opening a pipe waits for its writer
        return open(path, "rb", buffering=_BUFFER_BYTES)

    def read_range(self, path: str, start: int, size: int) -> bytes:
        """Returns bytes of a file from `start` on, fewer at its end."""
        with open(path, "rb", buffering=0) as file:
            file.seek(start)
            return file.read(size)

    def put(self, local: str, path: str) -> None:
        """Copies a local file to the store, where it appears complete."""
        os.replace(local, path)

    def rename(self, before: str, after: str) -> None:
        os.replace(before, after)

    def remove(self, path: str) -> None:
        os.remove(path)

    def make_folder(self, path: str) -> None:
        os.makedirs(path, exist_ok=True)

    def remove_folder(self, path: str) -> None:
        shutil.rmtree(path)

    def sync(self, path: str) -> None:
        """Waits until a file, or the names in a folder, are on the disk."""
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


_LOCAL = Store()


@contextlib.contextmanager
def _os_errors(path: str) -> Iterator[None]:
    """Turns errors of store libraries into OSErrors with a number and a text."""
    try:
        yield
    except Exception as error:  # each library has its own
        # 5: the code of TensorFlow's NotFoundError.
        is_missing = isinstance(error, FileNotFoundError) or getattr(error, "error_code", None) == 5
        usual = errno.EACCES if isinstance(error, PermissionError) else errno.EIO
        own = getattr(error, "errno", None)
        number = errno.ENOENT if is_missing else own if isinstance(own, int) and own else usual
        reason = getattr(error, "strerror", None) or " ".join(str(error).split())[:300]
        if not isinstance(error, OSError):
            reason = f"{type(error).__name__}: {reason}"
        raise OSError(number, os.strerror(number) if is_missing else reason, path) from None


class RemoteStore(Store):
    """Files of a scheme, in a file system of fsspec or one with the same methods.

    An object store has no folders and no rename: an object appears complete with its last byte, so it is
    written under its final name. In file systems a file is written under a temporary name and renamed.
    """

    def __init__(self, find: Callable[..., tuple[Any, str]], has_rename: bool):
        """Takes a function that returns the file system of a path, and the path in it."""
        self._find_system, self._has_rename = find, has_rename

    @contextlib.contextmanager
    def _at(self, path: str) -> Iterator[tuple[Any, str]]:
        """Yields the file system of a path, and the path in it; errors become OSErrors."""
        with _os_errors(path):
            yield self._find_system(path, use_listings_cache=False)  # other processes write, too

    def _do(self, operation: str, path: str, **options: Any) -> Any:
        """Returns the result of an operation of the file system on a path."""
        with self._at(path) as (system, inner):
            return getattr(system, operation)(inner, **options)

    def exists(self, path: str) -> bool:
        return self._do("exists", path)

    def is_file(self, path: str) -> bool:
        return self._do("isfile", path)

    def is_folder(self, path: str) -> bool:
        return self._do("isdir", path)

    def states(self, paths: Iterable[str]) -> dict[str, FileState]:
        wanted: dict[str, list[str]] = {}
        for path in paths:
            wanted.setdefault(os.path.dirname(path), []).append(path)
        found: dict[str, FileState] = {}
        for folder, here in wanted.items():
            if len(here) >= 3:  # else each is asked for
                found.update(self._listed(folder))
            found.update({path: _state(self._do("info", path)) for path in here if path not in found})
        return found

    def _listed(self, folder: str) -> dict[str, FileState]:
        """Returns the states of the files in a folder."""
        return {
            os.path.join(folder, os.path.basename(info["name"])): _state(info)
            for info in self._do("ls", folder, detail=True)
            if info["type"] == "file"
        }

    def _all_below(self, folder: str) -> list[str]:
        with self._at(folder) as (system, inner):
            found = system.find(inner)
        start = len(inner.rstrip("/"))
        return [folder.rstrip("/") + path[start:] for path in found]

    def files_below(self, folder: str) -> list[str]:
        start = len(folder.rstrip("/"))
        return [path for path in self._all_below(folder) if "/." not in path[start:]]

    def glob(self, pattern: str) -> list[str]:
        base = _fixed_part(pattern)
        has_folders = glob.has_magic(os.path.dirname(pattern)[len(base) :])
        find = self.files_below if "**" in pattern else self._all_below if has_folders else self._listed
        with contextlib.suppress(FileNotFoundError):
            return _matching(find(base), pattern)
        return []

    def names_in(self, folder: str) -> list[str]:
        try:
            with self._at(folder) as (system, inner):
                listed = system.ls(inner, detail=False)
        except FileNotFoundError:
            if self._has_rename:
                raise
            return []  # in an object store, a folder exists from its first object on
        own = inner.rstrip("/")  # some stores list the folder itself, as an object without bytes
        return [os.path.basename(path.rstrip("/")) for path in listed if path.rstrip("/") != own]

    def open(self, path: str) -> BinaryIO:
        with self._at(path) as (system, inner):
            # Sequential reads fetch a block at once.
            file = _RemoteFile(path, system.open(inner, "rb", block_size=4 << 20))
            return io.BufferedReader(file, _BUFFER_BYTES)

    def read_range(self, path: str, start: int, size: int) -> bytes:
        return self._do("cat_file", path, start=start, end=start + size) if size else b""

    def put(self, local: str, path: str) -> None:
        with self._at(path) as (system, inner):
            if not self._has_rename:
                system.put_file(local, inner)
                return
            unfinished = temporary(inner)
            try:
                system.put_file(local, unfinished)
                system.mv(unfinished, inner)
            except BaseException:
                with contextlib.suppress(Exception):
                    system.rm_file(unfinished)
                raise

    def rename(self, before: str, after: str) -> None:
        with self._at(before) as (system, inner), self._at(after) as (_, inner_after):
            system.mv(inner, inner_after)

    def remove(self, path: str) -> None:
        self._do("rm_file", path)

    def make_folder(self, path: str) -> None:
        """An object store has no folders, only names."""
        if self._has_rename:
            self._do("makedirs", path, exist_ok=True)

    def remove_folder(self, path: str) -> None:
        # Without objects, a folder does not exist.
        with contextlib.suppress(*() if self._has_rename else (FileNotFoundError,)):
            self._do("rm", path, recursive=True)

    def sync(self, path: str) -> None:
        """Does nothing: a store has every closed file."""


def _state(info: dict[str, Any]) -> FileState:
    """Returns the state of a file from a store's `info`."""
    changed = next((info[name] for name in _TIMES if info.get(name) is not None), 0)
    if isinstance(changed, str):
        changed = datetime.datetime.fromisoformat(changed.replace("Z", "+00:00"))
    if isinstance(changed, datetime.datetime):
        changed = changed.timestamp()
    marks = tuple(f"{name} {info[name]}" for name in _MARKS if info.get(name) is not None)
    return FileState(int(info["size"] or 0), int(changed * 1e9), marks)


class Raw(io.RawIOBase):
    """A seekable stream for reading."""

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True


class _RemoteFile(Raw):
    """A remote file with the interface of Python's io classes, with OSErrors."""

    def __init__(self, path: str, file: Any):
        super().__init__()
        self._path, self._file = path, file

    def readinto(self, buffer) -> int:
        with _os_errors(self._path):
            data = self._file.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        with _os_errors(self._path):
            self._file.seek(offset, whence)
            return self._file.tell()

    def close(self) -> None:
        if not self.closed:
            self._file.close()
        super().close()


class _TensorFlowFiles:
    """The fsspec methods that a store calls, on top of tf.io.gfile, for ram:// and for schemes without an
    installed fsspec package."""

    def __init__(self):
        import tensorflow as tf

        self._gfile = gfile = tf.io.gfile
        self.exists, self.isdir, self.rm_file = gfile.exists, gfile.isdir, gfile.remove

    def isfile(self, path: str) -> bool:
        return self._gfile.exists(path) and not self._gfile.isdir(path)

    def info(self, path: str) -> dict[str, Any]:
        found = self._gfile.stat(path)
        kind = "directory" if found.is_directory else "file"
        return {"name": path, "type": kind, "size": found.length, "mtime": found.mtime_nsec / 1e9}

    def ls(self, path: str, detail: bool) -> list:
        found = [os.path.join(path, name.rstrip("/")) for name in self._gfile.listdir(path)]
        return [self.info(each) for each in found] if detail else found

    def find(self, path: str) -> list[str]:
        walked = self._gfile.walk(path)
        return [os.path.join(parent, name) for parent, _, names in walked for name in names]

    def open(self, path: str, mode: str, **options: Any) -> Any:  # pylint: disable=unused-argument
        self._gfile.stat(path)  # opening it makes no request yet
        return self._gfile.GFile(path, mode)

    def cat_file(self, path: str, start: int, end: int) -> bytes:
        with self._gfile.GFile(path, "rb") as file:
            file.seek(start)
            return file.read(end - start)

    def put_file(self, local: str, path: str) -> None:
        self._gfile.copy(local, path, overwrite=True)

    def mv(self, before: str, after: str) -> None:
        self._gfile.rename(before, after, overwrite=True)

    def makedirs(self, path: str, exist_ok: bool) -> None:  # pylint: disable=unused-argument
        self._gfile.makedirs(path)

    def rm(self, path: str, recursive: bool) -> None:  # pylint: disable=unused-argument
        self._gfile.rmtree(path)


# -----------------------------------------------------------------------------------------------------------
# Searching and reading


def find_files(patterns: str, flag: str, in_folders: str = "*") -> list[str]:
    """Expands comma-separated files, folders and globs to files: sorted, each once.

    Args:
      patterns: a folder stands for the files in it and below, hidden ones (.name) left out; `**` in a glob
        for any folders; NAME@3.tfrecord for NAME-00000-of-00003.tfrecord to NAME-00002-of-00003.tfrecord,
        without checking that these exist.
      flag: name of the flag that gave them, for messages; '' for an argument without one.
      in_folders: glob of the names that are taken from a folder.

    Raises:
      ConfigError: names a pattern that matches no file, or a pipe, a device, or a file under /proc.
    """
    found = set()
    for pattern in filter(None, (part.strip() for part in patterns.split(","))):
        source = f"--{flag}={pattern}" if flag else pattern
        try:
            matched = _match(pattern, in_folders)
            for path in matched:
                with contextlib.suppress(FileNotFoundError):  # NAME@3 stands for names
                    check_readable(path, every_small_one=False)
        except OSError as error:
            problem = f"{error.filename or pattern} cannot be read: {error.strerror or error}"
            raise ConfigError(f"{source}: {problem}.") from None
        if not matched:
            raise ConfigError(f"{source} matches no file.")
        found.update(matched)
    if not found:
        what = f"--{flag}" if flag else "the list of files"
        raise ConfigError(f"{what} is empty. Give files, folders or globs, separated by commas.")
    return sorted(found)


def _match(pattern: str, in_folders: str) -> list[str]:
    """Returns the files of a name or a glob; an existing name is never a glob."""
    store = store_of(pattern)
    if store.is_folder(pattern):
        below = store.files_below(pattern)
        found = [path for path in below if fnmatch.fnmatchcase(os.path.basename(path), in_folders)]
    elif store.is_file(pattern):
        found = [pattern]
    elif sharded := re.fullmatch(r"(.*)@([1-9][0-9]{0,4})((?:\.\w+)*)", pattern):
        count = int(sharded[2])
        found = [f"{sharded[1]}-{number:05d}-of-{count:05d}{sharded[3]}" for number in range(count)]
    else:
        found = store.glob(pattern)
    return found if is_remote(pattern) else [os.path.normpath(path) for path in found]


def is_file(path: str) -> bool:
    """Tells whether a path is that of a file. Raises OSError where the store does not answer."""
    return store_of(path).is_file(path)


def is_folder(path: str) -> bool:
    """Tells whether a path is that of a folder. Raises OSError where the store does not answer."""
    return store_of(path).is_folder(path)


def _states(paths: Iterable[str]) -> list[tuple[str, FileState]]:
    """Returns (path, state) of files. Raises ConfigError for a missing one."""
    paths = list(paths)
    found: dict[str, FileState] = {}
    with naming():
        for store in dict.fromkeys(map(store_of, paths)):
            found.update(store.states(path for path in paths if store_of(path) is store))
    return [(path, found[path]) for path in paths]


def versions(paths: Iterable[str]) -> list[tuple[int, int]]:
    """Returns the `version` of each file; in a store by listing their folders. Raises ConfigError for a
    missing one."""
    return [state[:2] for _, state in _states(paths)]


def sizes(paths: Iterable[str]) -> list[int]:
    """Returns the size of each file in bytes. Raises ConfigError for a missing one."""
    return [size for size, _ in versions(paths)]


def version(path: str) -> tuple[int, int]:
    """Returns the bytes of a file and the time of its last change in nanoseconds. Raises OSError."""
    return store_of(path).states([path])[path][:2]


def states(paths: Iterable[str]) -> dict[str, str]:
    """Returns {path: size, time, and inode or version in its store}, for `check_unchanged`. Raises
    ConfigError for a missing file."""
    return {
        path: ", ".join([f"{state.bytes:,} bytes", f"changed {state.changed}", *state.marks])
        for path, state in _states(paths)
    }


def check_unchanged(before: Mapping[str, str]) -> None:
    """Raises ConfigError if a file changed since `states`: the data read may mix two versions."""
    for path, state in states(before).items():
        if state != before[path]:
            raise ConfigError(
                f"{path} was changed while it was read: {before[path]}; now {state}. Run this again, with"
                " --overwrite, when nothing writes to it any more."
            )


def digest(paths: Iterable[str]) -> dict[str, int | str]:
    """Returns {files, bytes, sha256}; the digest covers the files' names, sizes and first 64 KiB only, to be
    fast. Raises OSError."""
    count, total, sha = 0, 0, hashlib.sha256()
    for path in paths:
        size = version(path)[0]
        with open_binary(path) as file:
            sha.update(f"{os.path.basename(path)} {size} ".encode() + file.read(1 << 16))
        count, total = count + 1, total + size
    return {"files": count, "bytes": total, "sha256": sha.hexdigest()}


def sha256_of(path: str) -> str:
    """Returns the sha256 of a file's content, in hexadecimal digits. Raises OSError."""
    sha = hashlib.sha256()
    with open_binary(path) as file:
        while block := file.read(1 << 22):
            sha.update(block)
    return sha.hexdigest()


def open_binary(path: str) -> BinaryIO:
    """Opens a file of any store for buffered reading. Raises OSError, here and later."""
    return store_of(path).open(path)


def read_bytes(path: str, source: str) -> bytes:
    """Returns the content of a file. Raises ConfigError if it cannot be read; `source` begins the message."""
    try:
        with open_binary(path) as file:
            return file.read()
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        reason = str(getattr(error, "strerror", None) or error).rstrip(".")
        raise ConfigError(f"{source}: {reason}.") from None


def read_text(path: str, source: str) -> str:
    """Returns the text of a file, with line feeds between lines and without a byte order mark. Raises
    ConfigError if the file cannot be read or is not UTF-8; `source` begins the message."""
    content = read_bytes(path, source)
    try:
        return content.decode("utf-8-sig").replace("\r\n", "\n").replace("\r", "\n")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{source} is not UTF-8 text ({error.reason} at byte {error.start}).") from None


@contextlib.contextmanager
def reading_parts(path: str) -> Iterator[Callable[[int, int], bytes]]:
    """Yields a function (start, size) -> bytes of a file. It raises ValueError if the file ends before.
    Raises OSError, here and later."""
    with contextlib.ExitStack() as stack:
        read_some: Callable[[int, int], bytes]
        if is_remote(path):
            read_some = functools.partial(store_of(path).read_range, path)
        else:
            check_readable(path)
            file = stack.enter_context(open(path, "rb", buffering=0))
            read_some = lambda start, size: os.pread(file.fileno(), size, start)

        def read(start: int, size: int) -> bytes:
            data = read_some(start, size)
            while len(data) < size and (more := read_some(start + len(data), size - len(data))):
                data += more  # one call reads at most 2 GiB
            if len(data) != size:
                raise ValueError("it is cut off")
            return data

        yield read


def samples(path: str, size: int, whole: int) -> bytes:
    """Returns the content of a file of `size` bytes; of one of more than `whole` bytes, 64 KiB at its
    beginning, in its middle and at its end. Raises ConfigError for one that cannot be read or is shorter."""
    length = 1 << 16 if size > whole else size
    starts = (0, size // 2, size - length) if size > whole else (0,)
    with naming(path), reading_parts(path) as read:
        try:
            return b"".join(read(start, length) for start in starts)
        except ValueError as error:
            raise ConfigError(f"{path} was changed while it was read ({error}).") from None


@contextlib.contextmanager
def naming(path: str | None = None) -> Iterator[None]:
    """Turns an OSError in its block into a ConfigError that names the file; None: the file of the error."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or error
        raise ConfigError(f"{path or error.filename} cannot be read: {reason}.") from None
