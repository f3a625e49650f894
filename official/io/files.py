"""Finds and opens files, of this machine or of a store (`official.io.stores`)."""

from __future__ import annotations

import contextlib
import fnmatch
import functools
import hashlib
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import BinaryIO

from official.io import stores
from official.io.errors import ConfigError
from official.io.stores import is_remote, store_of

_DIGEST_BYTES = 1 << 16  # of the beginning of a file


def find_files(patterns: str, flag: str, in_folders: str = "*") -> list[str]:
    """Returns the files that comma-separated names of files and folders, and globs, stand for: sorted, each
    once.

    Args:
      patterns: a folder stands for the files in it and below, hidden ones (.name) left out; `**` in a glob
        for any folders; NAME@3.tfrecord for NAME-00000-of-00003.tfrecord to NAME-00002-of-00003.tfrecord,
        which are not looked for.
      flag: name of the flag that gave them, for messages; '' for an argument without one.
      in_folders: glob of the names that are taken from a folder.

    Raises:
      ConfigError: naming a pattern that stands for no file, or for a pipe, a device, or a file under /proc.
    """
    found = set()
    for pattern in filter(None, (part.strip() for part in patterns.split(","))):
        source = f"--{flag}={pattern}" if flag else pattern
        try:
            matched = _match(pattern, in_folders)
            if not is_remote(pattern):
                for path in matched:
                    with contextlib.suppress(FileNotFoundError):  # NAME@3 stands for names
                        stores.check_kind(path)
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


def _match(pattern: str, in_folders: str) -> list[str]:
    """Returns the files that a name or a glob stands for; a name that exists is never taken for a glob."""
    found = _look_up(store_of(pattern), pattern, in_folders)
    return found if is_remote(pattern) else [os.path.normpath(path) for path in found]


def _look_up(store: stores.Store, pattern: str, in_folders: str) -> list[str]:
    if store.is_folder(pattern):
        found = stores.files_below(store.walk, pattern)
        if in_folders == "*":
            return list(found)
        return [path for path in found if fnmatch.fnmatchcase(os.path.basename(path), in_folders)]
    if store.is_file(pattern):
        return [pattern]
    sharded = re.fullmatch(r"(.*)@([1-9][0-9]{0,4})((?:\.\w+)*)", pattern)
    if sharded:
        name, count, ending = sharded[1], int(sharded[2]), sharded[3]
        return [f"{name}-{number:05d}-of-{count:05d}{ending}" for number in range(count)]
    return store.glob(pattern)


def is_file(path: str) -> bool:
    """Tells whether a path is that of a file. Raises OSError where the store does not answer."""
    return store_of(path).is_file(path)


def is_folder(path: str) -> bool:
    """Tells whether a path is that of a folder. Raises OSError where the store does not answer."""
    return store_of(path).is_folder(path)


def sizes(paths: Iterable[str]) -> list[int]:
    """Returns the bytes of each file. Raises ConfigError for one that is not there."""
    return [size for size, _ in versions(paths)]


def versions(paths: Iterable[str]) -> list[tuple[int, int]]:
    """Returns the `version` of each file; in a store their folders are listed. Raises ConfigError for
    one that is not there."""
    paths = list(paths)
    found: dict[str, tuple[int, int]] = {}
    with _naming_any():
        for store, some in _by_store(paths):
            found.update(store.versions(some))
    return [found[path] for path in paths]


def version(path: str) -> tuple[int, int]:
    """Returns the bytes of a file and the time of its last change in nanoseconds. Raises OSError."""
    return store_of(path).version(path)


def states(paths: Iterable[str]) -> dict[str, str]:
    """Returns {path: size, time, and inode or version in its store}, for `check_unchanged`. Raises
    ConfigError for a file that is not there."""
    paths = list(paths)
    found: dict[str, str] = {}
    with _naming_any():
        for store, some in _by_store(paths):
            found.update(store.states(some))
    return {path: found[path] for path in paths}


def _by_store(paths: Iterable[str]) -> Iterable[tuple[stores.Store, list[str]]]:
    by_store: dict[stores.Store, list[str]] = {}
    for path in paths:
        by_store.setdefault(store_of(path), []).append(path)
    return by_store.items()


@contextlib.contextmanager
def _naming_any() -> Iterator[None]:
    """Makes of an OSError in its block a ConfigError that names the file of the error."""
    try:
        yield
    except OSError as error:
        raise ConfigError(f"{error.filename} cannot be read: {error.strerror or error}.") from None


def check_unchanged(before: Mapping[str, str]) -> None:
    """Raises ConfigError where a file is not any more as `states` found it: what was read of it may be parts
    of two files."""
    for path, state in states(before).items():
        if state != before[path]:
            raise ConfigError(
                f"{path} was changed while it was read: {before[path]}; now {state}. Run this again, with"
                " --overwrite, when nothing writes to it any more."
            )


def digest(paths: Iterable[str]) -> dict[str, int | str]:
    """Returns {files, bytes, sha256}; the digest is of the files' names, sizes and first 64 KiB, so that it
    costs little. Raises OSError."""
    count, total, sha = 0, 0, hashlib.sha256()
    for path in paths:
        size = version(path)[0]
        with open_binary(path) as file:
            sha.update(f"{os.path.basename(path)} {size} ".encode() + file.read(_DIGEST_BYTES))
        count, total = count + 1, total + size
    return {"files": count, "bytes": total, "sha256": sha.hexdigest()}


def open_binary(path: str) -> BinaryIO:
    """Opens a file for reading, buffered. Raises OSError, here and later, whatever keeps the file."""
    return store_of(path).open(path)


def read_text(path: str, source: str) -> str:
    """Returns the text of a file, with line feeds between lines, and without the byte order mark that may
    begin it. Raises ConfigError, which `source` begins, for a file that cannot be read or is no UTF-8."""
    try:
        with open_binary(path) as file:
            return file.read().decode("utf-8-sig").replace("\r\n", "\n").replace("\r", "\n")
    except OSError as error:
        raise ConfigError(f"{source}: {error.strerror or error}.") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{source} is not UTF-8 text ({error.reason} at byte {error.start}).") from None


def check_readable(path: str) -> None:
    """Raises OSError for a file of this machine that another library is not to be given: a pipe, a device, a
    folder, or a pointer of Git LFS."""
    if not is_remote(path):
        stores.check(path)


@contextlib.contextmanager
def reading_parts(path: str) -> Iterator[Callable[[int, int], bytes]]:
    """Yields a reader of parts of a file, (start, bytes) -> the bytes; it raises ValueError where the file
    ends before. Raises OSError, here and later."""
    with contextlib.ExitStack() as stack:
        read_some: Callable[[int, int], bytes]
        if is_remote(path):
            read_some = functools.partial(store_of(path).read_range, path)
        else:
            stores.check(path)
            file = stack.enter_context(open(path, "rb", buffering=0))
            read_some = lambda start, size: os.pread(file.fileno(), size, start)

        def read(start: int, size: int) -> bytes:
            data = read_some(start, size)
            while len(data) < size and (more := read_some(start + len(data), size - len(data))):
                data += more  # a call reads 2 GiB at most
            if len(data) != size:
                raise ValueError("it is cut off")
            return data

        yield read


@contextlib.contextmanager
def naming(path: str) -> Iterator[None]:
    """Makes of an OSError in its block a ConfigError that names the file."""
    try:
        yield
    except OSError as error:
        raise unreadable(path, error) from None


def unreadable(path: str, error: OSError) -> ConfigError:
    """Returns the ConfigError that names a file."""
    return ConfigError(f"{path} cannot be read: {error.strerror or error}.")
