"""Names of files in any store: temporary ones, and those that a glob stands for."""

from __future__ import annotations

import contextlib
import fnmatch
import functools
import glob
import os
import pwd
import re
import secrets
import socket
from collections.abc import Callable, Iterable, Iterator

from official.io.errors import ConfigError

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


def expanded(paths: str) -> str:
    """Returns a path, or several with commas between them, with the home folders that ~ and ~user in front
    stand for, as a shell puts them there. It does not for --flag=~/path, and nobody does in a file. Raises
    ConfigError for ~ where this user has no home folder."""

    def with_home(match: re.Match[str]) -> str:
        found = home() if match[2] == "~" else os.path.expanduser(match[2])
        if found is None:
            raise ConfigError(
                f"{paths[:100]}: ~ is the home folder, and this user has none. Give a whole path."
            )
        return match[1] + (found.rstrip("/") or "/")

    return _HOME.sub(with_home, paths)


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
