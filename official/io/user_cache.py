"""The folder of what belongs to a user and a machine and is kept between runs: what was measured, exported
and compiled."""

from __future__ import annotations

import atexit
import contextlib
import errno
import functools
import os
import shutil
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
    """Returns a folder within that of the user in which nobody else writes or reads, and makes it. Raises
    OSError, also where it is another user's."""
    path = os.path.join(folder(), name)
    for each in (folder(), path):
        os.makedirs(each, mode=0o700, exist_ok=True)
    for found in (os.lstat(path), os.stat(path)):  # a link to it is this user's, too
        check_owner(path, found)
    if stat.S_IMODE(found.st_mode) != 0o700 and found.st_uid == os.geteuid():
        os.chmod(path, 0o700)
    return path


def check_owner(path: str, found: os.stat_result) -> None:
    """Raises OSError for a file or a folder that is neither this user's nor root's, and for one that others
    may write to, unless it is this user's folder, which can be closed to them."""
    if found.st_uid not in (os.geteuid(), 0):
        raise OSError(errno.EPERM, f"belongs to another user (number {found.st_uid})", path)
    is_own_folder = stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()
    if found.st_mode & 0o022 and not stat.S_ISLNK(found.st_mode) and not is_own_folder:
        raise OSError(errno.EPERM, f"others may write to it (mode {stat.S_IMODE(found.st_mode):o})", path)


@functools.lru_cache(maxsize=4)  # the same for the whole process
def _temporary(parent: str) -> str:
    """Returns the user's folder in that of temporary files: the one of earlier processes where it is private,
    else one that ends with this process."""
    path = os.path.join(parent, f"bert-tf2-{os.geteuid()}")
    with contextlib.suppress(OSError):
        with contextlib.suppress(FileExistsError):
            os.mkdir(path, 0o700)
        found = os.lstat(path)
        is_own = stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()
        if is_own and not found.st_mode & 0o077:
            return path
    path = tempfile.mkdtemp(prefix="bert-tf2-", dir=parent)
    atexit.register(shutil.rmtree, path, ignore_errors=True)
    return path
