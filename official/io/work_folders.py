"""Folders for files that are needed for a while. A process that is killed leaves its folder, and the next one
removes it."""

from __future__ import annotations

import contextlib
import fcntl
import functools
import os
import shutil
import tempfile
from collections.abc import Iterator
from typing import IO

from official.io import store_paths

_PREFIX = "bert-work-"  # and the machine's name


@contextlib.contextmanager
def new_folder(parent: str | None = None) -> Iterator[str]:
    """Yields a new folder, which is removed after the block.

    As long as the process lives, it holds a lock on the folder; the system takes it away when the process
    ends, however it ends. What is not locked is nobody's: it is removed by the first call of a process of the
    same machine. Where a file system has no locks, everything stays.

    Args:
      parent: None: the folder of temporary files.

    Raises:
      OSError: where it cannot be made.
    """
    parent = parent or tempfile.gettempdir()
    _remove_left(parent)
    folder, lock = _made(parent)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def open_lock(path: str, mode: int = 0o666) -> IO[bytes]:
    """Opens a lock file, which is made where it is not there: never through a link, and without a change to
    what is in it. Raises OSError."""
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    return open(path, "r+b", buffering=0, opener=lambda name, _: os.open(name, flags, mode))


def _made(parent: str) -> tuple[str, int]:
    """Makes a folder and returns it with its lock; once more where another process has taken it for left
    before it was locked."""
    while True:
        folder = tempfile.mkdtemp(prefix=_own_prefix(), dir=parent)
        with contextlib.suppress(FileNotFoundError):
            lock = os.open(folder, os.O_RDONLY)
            with contextlib.suppress(OSError):  # the file system has no locks
                fcntl.flock(lock, fcntl.LOCK_EX)
            if os.path.isdir(folder):
                return folder, lock
            os.close(lock)


@functools.lru_cache(maxsize=16)  # once a process
def _remove_left(parent: str) -> None:
    for name in os.listdir(parent):
        if name.startswith(_own_prefix()):
            with contextlib.suppress(OSError):  # it is locked, somebody else's, or gone
                _remove_unlocked(os.path.join(parent, name))


def _remove_unlocked(folder: str) -> None:
    lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(folder)
    finally:
        os.close(lock)


def _own_prefix() -> str:
    return f"{_PREFIX}{store_paths.host()}-"
