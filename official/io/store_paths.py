"""Names of files in any store: temporary ones, and those that a glob stands for."""

from __future__ import annotations

import fnmatch
import functools
import glob
import os
import re
import secrets
import socket
from collections.abc import Callable, Iterable, Iterator

TEMPORARY = ".tmp-"  # in the names of files that are not finished


@functools.lru_cache(maxsize=1)
def host() -> str:
    """Returns the name of this machine, without hyphens."""
    return re.sub(r"[^A-Za-z0-9.]", "_", socket.gethostname()) or "host"


def new_tag() -> str:
    """Returns HOST-PROCESS-CHANCE, a name that nobody else has, on whatever machine."""
    return f"{host()}-{os.getpid()}-{secrets.token_hex(4)}"


def is_dead(tag: str) -> bool:
    """Tells whether the process of a tag has ended. One of another machine may live."""
    parts = tag.split("-")
    if len(parts) > 1 and parts[0] != host():
        return False
    try:
        os.kill(int(parts[len(parts) > 1]), 0)
    except (ProcessLookupError, ValueError, OverflowError):
        return True
    except PermissionError:  # somebody else's
        pass
    return False


def temporary(path: str) -> str:
    """Returns a new name beside `path` for what is to become it."""
    return f"{path}{TEMPORARY}{new_tag()}"


def files_below(walk: Callable[[str], Iterator], folder: str) -> Iterator[str]:
    """Yields the files in a folder and below, hidden ones (.name) left out."""
    for parent, folders, names in walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        yield from (os.path.join(parent, name) for name in names if not name.startswith("."))


def fixed_part(pattern: str) -> str:
    """Returns the folders of a glob before the first part with a wildcard."""
    parts = pattern.split("/")
    fixed = next((number for number, part in enumerate(parts) if glob.has_magic(part)), len(parts) - 1)
    return "/".join(parts[:fixed])


def matching(paths: Iterable[str], pattern: str) -> list[str]:
    """Returns the paths, below its fixed part, that a glob stands for; `**` is any number of folders."""
    base = fixed_part(pattern)
    wanted = pattern[len(base) :].strip("/").split("/")
    return [path for path in paths if _fits(path[len(base) :].strip("/").split("/"), wanted)]


def _fits(names: list[str], pattern: list[str]) -> bool:
    """Says whether the parts of a path fit those of a glob; `**` stands for any number of folders."""
    if not names or not pattern:
        return not names and pattern in ([], ["**"])
    if pattern[0] == "**":
        return _fits(names, pattern[1:]) or _fits(names[1:], pattern)
    return fnmatch.fnmatchcase(names[0], pattern[0]) and _fits(names[1:], pattern[1:])
