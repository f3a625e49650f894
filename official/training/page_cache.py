"""Dropping files from the system's page cache, so that a measured run reads its data from the disk."""

import os

from official.io.files import is_remote


def drop(paths: list[str]) -> int:
    """Drops local files from the page cache. Needs no privileges; other files stay.

    Returns:
      Number of files that the system was told to drop; 0 for remote ones and where it has no such call.
    """
    if not hasattr(os, "posix_fadvise"):
        return 0
    dropped = 0
    for path in paths:
        if is_remote(path):
            continue
        try:
            file = os.open(path, os.O_RDONLY)
        except OSError:
            continue
        try:
            os.fsync(file)  # pages that are not written yet would stay
            os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
            dropped += 1
        except OSError:
            pass  # a file system without a cache of its own
        finally:
            os.close(file)
    return dropped
