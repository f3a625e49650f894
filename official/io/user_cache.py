"""The folder of what belongs to a user and a machine and is kept between runs: what was measured, exported
and compiled."""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import stat
import tempfile

from official.io import store_paths


def folder() -> str:
    """Returns the folder: $BERT_CACHE_DIR, else bert-tf2 in $XDG_CACHE_HOME, else in ~/.cache; without a home
    folder, a private one among the temporary files."""
    if asked := os.environ.get("BERT_CACHE_DIR"):
        return store_paths.expanded(asked)
    caches, home = os.environ.get("XDG_CACHE_HOME", ""), store_paths.home()
    if not os.path.isabs(caches):
        if home is None:
            return _temporary(tempfile.gettempdir())
        caches = os.path.join(home, ".cache")
    return os.path.join(caches, "bert-tf2")


def private(name: str) -> str:
    """Makes a folder of the cache that nobody else reads. Raises OSError where it is another user's."""
    path = os.path.join(folder(), name)
    for each in (folder(), path):
        os.makedirs(each, mode=0o700, exist_ok=True)
    if os.stat(path).st_uid == os.geteuid():
        os.chmod(path, 0o700)
    for found in (os.lstat(path), os.stat(path)):  # a link to it is this user's, too
        check_owner(path, found)
    return path


def check_owner(path: str, found: os.stat_result) -> None:
    """Raises OSError for what is neither this user's nor root's, and for what others may write to."""
    if found.st_uid not in (os.geteuid(), 0):
        raise OSError(errno.EPERM, f"belongs to another user (number {found.st_uid})", path)
    if found.st_mode & 0o022 and not stat.S_ISLNK(found.st_mode):
        raise OSError(errno.EPERM, f"others may write to it (mode {stat.S_IMODE(found.st_mode):o})", path)


@functools.lru_cache(maxsize=4)  # the same for the whole process
def _temporary(parent: str) -> str:
    """Returns the user's folder in that of temporary files, or a new one where that one is not private."""
    path = os.path.join(parent, f"bert-tf2-{os.geteuid()}")
    with contextlib.suppress(OSError):
        os.makedirs(path, 0o700, exist_ok=True)
        found = os.lstat(path)
        if found.st_uid == os.geteuid() and stat.S_ISDIR(found.st_mode) and not found.st_mode & 0o077:
            return path
    return tempfile.mkdtemp(prefix="bert-tf2-", dir=parent)
