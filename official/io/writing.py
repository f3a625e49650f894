"""Writes files: complete ones under a temporary name that are then renamed, and files that grow line by
line."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import functools
import itertools
import os
import shutil
import signal
import stat
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator
from typing import IO

from absl import logging

from official.io import files, signals
from official.io.errors import ConfigError, first_line
from official.io.files import is_remote, store_of

# -----------------------------------------------------------------------------------------------------------
# Temporary folders


@contextlib.contextmanager
def new_folder(parent: str | None = None) -> Iterator[str]:
    """Yields a new folder, which is removed after the block.

    The process holds a lock on the folder, which the system releases when the process ends in any way.
    Unlocked folders are removed by the next call of any process on the same machine. On file systems without
    locks, they stay.

    Args:
      parent: None: the folder of temporary files.

    Raises:
      OSError: where it cannot be made.
    """
    parent, prefix = parent or tempfile.gettempdir(), f"bert-work-{files.host()}-"
    _remove_left(parent, prefix)
    folder, lock = _made(parent, prefix)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def _made(parent: str, prefix: str) -> tuple[str, int]:
    """Makes a folder and returns it with its lock; retries if another process removed it before it was
    locked."""
    while True:
        folder = tempfile.mkdtemp(prefix=prefix, dir=parent)
        with contextlib.suppress(FileNotFoundError):
            lock = os.open(folder, os.O_RDONLY)
            with contextlib.suppress(OSError):  # the file system has no locks
                fcntl.flock(lock, fcntl.LOCK_EX)
            if os.path.isdir(folder):
                return folder, lock
            os.close(lock)


@functools.lru_cache(maxsize=16)  # once a process
def _remove_left(parent: str, prefix: str) -> None:
    for name in os.listdir(parent):
        if not name.startswith(prefix):
            continue
        with contextlib.suppress(OSError):  # it is locked, another user's, or gone
            folder = os.path.join(parent, name)
            lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder)
            finally:
                os.close(lock)


_NO_LOCKS = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP)  # Lustre without -o flock, NFS without lockd


@functools.lru_cache(maxsize=16)  # once a process
def _warn_of_no_locks(folder: str, reason: str) -> None:
    warning = "The file system of %s has no locks (%s): make sure that no other process writes there."
    logging.warning(warning, folder, reason)


@contextlib.contextmanager
def locked(path: str, wait_secs: float = 0.0, mode: int = 0o666) -> Iterator[IO[bytes]]:
    """Holds a lock on a local file without changing its content; creates a missing file, and follows no
    links. The system releases the lock when the process ends. On a file system without locks it only warns.

    Raises:
      BlockingIOError: if another process still holds the lock after `wait_secs`.
      OSError: if the file cannot be opened or locked.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    until = time.monotonic() + wait_secs
    with open(path, "r+b", buffering=0, opener=lambda name, _: os.open(name, flags, mode)) as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > until:
                    raise
                time.sleep(0.1)
            except OSError as error:
                if error.errno not in _NO_LOCKS:
                    raise
                _warn_of_no_locks(os.path.dirname(path), str(error.strerror))
                break
        yield file


# -----------------------------------------------------------------------------------------------------------
# Cache of the user


def folder() -> str:
    """Returns the folder: $BERT_CACHE_DIR, else bert-tf2 in $XDG_CACHE_HOME, else in ~/.cache; without a home
    folder, a private one among the temporary files."""
    if asked := os.environ.get("BERT_CACHE_DIR"):
        return files.expanded(asked)
    caches, home = os.environ.get("XDG_CACHE_HOME", ""), files.home()
    if os.path.isabs(caches):
        return os.path.join(caches, "bert-tf2")
    return os.path.join(home, ".cache", "bert-tf2") if home else _temporary(tempfile.gettempdir())


def private(name: str) -> str:
    """Makes a private folder in the cache. Raises OSError if it is another user's."""
    path = os.path.join(folder(), name)
    for each in (folder(), path):
        os.makedirs(each, mode=0o700, exist_ok=True)
    if os.stat(path).st_uid == os.geteuid():
        os.chmod(path, 0o700)
    for found in (os.lstat(path), os.stat(path)):  # a link to it is this user's, too
        check_owner(path, found)
    return path


def check_owner(path: str, found: os.stat_result) -> None:
    """Raises OSError for a file that belongs to another user than this one or root, or that others may write
    to."""
    if found.st_uid not in (os.geteuid(), 0):
        raise OSError(errno.EPERM, f"belongs to another user (number {found.st_uid})", path)
    if found.st_mode & 0o022 and not stat.S_ISLNK(found.st_mode):
        raise OSError(errno.EPERM, f"others may write to it (mode {stat.S_IMODE(found.st_mode):o})", path)


@functools.lru_cache(maxsize=4)  # the same for the whole process
def _temporary(parent: str) -> str:
    """Returns the user's folder among the temporary files, or a new one if that is not private."""
    path = os.path.join(parent, f"bert-tf2-{os.geteuid()}")
    with contextlib.suppress(OSError):
        os.makedirs(path, 0o700, exist_ok=True)
        found = os.lstat(path)
        if found.st_uid == os.geteuid() and stat.S_ISDIR(found.st_mode) and not found.st_mode & 0o077:
            return path
    return tempfile.mkdtemp(prefix="bert-tf2-", dir=parent)


# -----------------------------------------------------------------------------------------------------------
# Files
#
# Existing files are never lost: a name is replaced in one step, by a file that is complete and on the disk.


@contextlib.contextmanager
def replacing(path: str, durable: bool = True) -> Iterator[str]:
    """Yields the name of a new file of this machine, which the block writes and closes, and which becomes
    `path` after it.

    It is in the same folder, and renamed once its bytes are on the disk; for a remote `path` it is a
    temporary file that is copied there. If the block fails, or a signal interrupts it, it is removed and
    `path` stays unchanged. `durable`: as of `publish`. Raises OSError.
    """
    if is_remote(path):
        with new_folder() as folder:
            temporary = os.path.join(folder, os.path.basename(path))
            yield temporary
            store_of(path).put(temporary, path)
        return
    temporary = files.temporary(path)
    try:
        yield temporary
        publish(temporary, path, durable)
    except BaseException:
        with contextlib.suppress(OSError):  # it may not have been made
            os.remove(temporary)
        raise


def publish(complete: str, path: str, durable: bool = True) -> None:
    """Renames a complete file to its final name, in the same folder, once its bytes are on the disk.

    Without `durable`, it does not wait for the disk: the file outlives its process, but a power failure may
    damage it. Raises OSError.
    """
    store = store_of(path)
    if durable:
        store.sync(complete)
    store.rename(complete, path)
    if durable:
        store.sync(os.path.dirname(path) or ".")


def set_aside(path: str, ending: str = "") -> None:
    """Renames an existing file to NAME-1.EXT, or NAME<ending>-1.EXT, or the next free number. Raises
    OSError."""
    store, (stem, extension) = store_of(path), os.path.splitext(path)
    names = (f"{stem}{ending}-{number}{extension}" for number in itertools.count(1))
    if store.exists(path):
        store.rename(path, next(name for name in names if not store.exists(name)))


def sync(path: str) -> None:
    """Waits until a file, or the names in a folder, are on the disk. Raises OSError."""
    store_of(path).sync(path)


def replace_file(path: str, content: bytes | str, durable: bool = True) -> None:
    """Writes a whole file, of this machine or of a store. Readers find the old or the new one, also after a
    crash. Half a surrogate pair in a text, which UTF-8 does not have, becomes its escape, as in JSON.
    `durable`: as of `publish`. Raises OSError."""
    with replacing(path, durable) as temporary, open(temporary, "wb") as file:
        file.write(content.encode("utf-8", "backslashreplace") if isinstance(content, str) else content)


def put_file(path: str, content: bytes | str) -> None:
    """As `replace_file`, in a folder that is made where it is not there."""
    store_of(path).make_folder(os.path.dirname(path))
    replace_file(path, content)


# ------------------------------------------------------------------------------------------------------------
# Several files that belong together

_WORK, _REPLACED = ".unpublished-", ".replaced-"  # + the tag of the process


@contextlib.contextmanager
def unpublished(folder: str) -> Iterator[str]:
    """Yields an empty work folder in `folder`, which is created if missing, and removes it after the block.

    Work folders of killed processes are removed, and files that they had moved away are restored. Raises
    OSError.
    """
    store = store_of(folder)
    store.make_folder(folder)
    if not is_remote(folder):
        _clean_up_after_killed_ones(folder)
    work = os.path.join(folder, f"{_WORK}{files.new_tag()}")
    store.make_folder(work)
    try:
        yield work
    finally:
        store.remove_folder(work)


def publish_all(work: str, folder: str, last: str, obsolete: Iterable[str] = ()) -> None:
    """Moves all files of a work folder, and of folders in it, into `folder`, over files of the same names,
    and removes files that they make obsolete.

    Moves all files or none, also if a signal arrives meanwhile. A process that is killed here leaves the old
    files in a folder next to them, from which the next call of `unpublished` restores them.

    Args:
      work: of `unpublished`, with complete files.
      folder: where they go.
      last: ending of the file that makes the others valid; it is removed first and added last.
      obsolete: paths in `folder`.

    Raises:
      OSError: after the old files have been restored.
    """
    store = store_of(folder)
    new = sorted(_files_in(work), key=lambda name: (name.endswith(last), name))
    replaced = os.path.join(folder, os.path.basename(work).replace(_WORK, _REPLACED))
    known = {*new, *(os.path.relpath(path, folder) for path in obsolete)}
    old = [name for name in known if store.is_file(os.path.join(folder, name))]
    first = sorted(old, key=lambda name: (not name.endswith(last), os.path.dirname(name)))
    moves = [(os.path.join(folder, name), os.path.join(replaced, name)) for name in first]
    moves += [(os.path.join(work, name), os.path.join(folder, name)) for name in new]
    for name in new:
        store.sync(os.path.join(work, name))
    with signals_held():
        store.make_folder(replaced)
        for below in {os.path.dirname(name) for name in known} - {""}:
            store.make_folder(os.path.join(replaced, below))
            store.make_folder(os.path.join(folder, below))
        _move_all(moves)
        store.sync(folder)
        store.remove_folder(replaced)


def _move_all(moves: list[tuple[str, str]]) -> None:
    """Renames files one after the other, and undoes all if one fails."""
    done = []
    try:
        for before, after in moves:
            store_of(after).make_folder(os.path.dirname(after))
            store_of(before).rename(before, after)
            done.append((before, after))
    except BaseException:
        for before, after in reversed(done):
            store_of(after).rename(after, before)
        raise


@contextlib.contextmanager
def signals_held() -> Iterator[None]:
    """Delays signals until the end of its block, which should be short."""
    if threading.current_thread() is not threading.main_thread():  # Python handles signals in the main one
        yield
        return
    received: list[int] = []
    handlers = {
        number: signal.signal(number, lambda number, _: received.append(number))
        for number in signals.handled()
    }
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        for first in received[:1]:
            handler = handlers[signal.Signals(first)]
            if callable(handler):
                handler(first, None)  # sent again, it would count as a second one
            else:
                signal.raise_signal(first)


def _clean_up_after_killed_ones(folder: str) -> None:
    """Restores the old files of processes that were killed while publishing, and removes their folders."""
    left = [name for name in os.listdir(folder) if name.startswith((_WORK, _REPLACED))]
    dead = [os.path.join(folder, name) for name in left if files.is_dead(name.partition("-")[2])]
    for path in (path for path in dead if os.path.basename(path).startswith(_REPLACED)):
        work = os.path.join(folder, os.path.basename(path).replace(_REPLACED, _WORK))
        if work in dead and _files_in(work):
            for file in sorted(_files_in(path)):
                os.replace(os.path.join(path, file), os.path.join(folder, file))
    for path in dead:
        shutil.rmtree(path)


def _files_in(folder: str) -> list[str]:
    """Returns the names of the files in a folder, and of those in folders in it with these before them."""
    store, found = store_of(folder), []
    for name in store.names_in(folder):
        path = os.path.join(folder, name)
        found += [name] if store.is_file(path) else [f"{name}/{each}" for each in _files_in(path)]
    return found


# ------------------------------------------------------------------------------------------------------------
# Output files named by flags, and files that grow


@contextlib.contextmanager
def naming_output(
    path: str, flag: str = "", kinds: tuple[type[Exception], ...] = (OSError,)
) -> Iterator[None]:
    """Turns an OSError in its block, or an error of other `kinds`, into a ConfigError that names the file and
    its flag."""
    try:
        yield
    except kinds as error:
        where = f"--{flag}={path}" if flag else f"{path} cannot be written"
        raise ConfigError(f"{where}: {getattr(error, 'strerror', None) or first_line(error)}.") from None


def check_output_file(path: str, flag: str, overwrite: bool) -> None:
    """Makes the folder of an output file. Raises ConfigError if the file exists, or cannot be written."""
    if os.path.isdir(path):
        raise ConfigError(f"--{flag}={path} is a folder. Give the name of a file.")
    if os.path.exists(path) and not overwrite:
        raise ConfigError(f"--{flag}={path} exists. Give another --{flag}, or replace it with --overwrite.")
    with naming_output(path, flag):
        os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
        trial = files.temporary(path)
        with open(trial, "wb"):  # permissions alone are not reliable: for root, or on /proc
            pass
        os.remove(trial)


def check_not_read(path: str, flag: str, inputs: Iterable[str], read: str) -> None:
    """Raises ConfigError if an output file is one of the inputs, which the flag `read` gave."""
    if os.path.realpath(path) in map(os.path.realpath, inputs):
        raise ConfigError(f"--{flag}={path} is one of --{read}, and would be replaced. Give another name.")


def read_lines(path: str) -> list[bytes]:
    """Returns the lines of a file with their line ends; none for a missing file. Raises OSError."""
    try:
        with store_of(path).open(path) as file:
            return file.read().splitlines(keepends=True)
    except FileNotFoundError:
        return []


class LineFile:
    """A file of lines that grows.

    `write` hands each line to the operating system, so a killed process loses none. Remote file systems
    (gs://, ram://) may not append: there the lines stay in memory and `flush` writes the whole file.
    """

    def __init__(self, path: str, kept: list[bytes]):
        """Opens `path`, whose lines are then `kept`, with their ends."""
        self._path, self._lines = path, list(kept)
        if read_lines(path) != kept:
            replace_file(path, b"".join(kept))
        self._file = None if is_remote(path) else open(path, "ab")

    def write(self, line: bytes) -> None:
        """Adds a line, which ends with a newline."""
        if self._file:
            self._file.write(line)
            self._file.flush()
        else:
            self._lines.append(line)

    def flush(self) -> None:
        """Writes out what is still in memory."""
        if not self._file:
            replace_file(self._path, b"".join(self._lines))

    def close(self) -> None:
        self.flush()
        if self._file:
            self._file.close()
