"""Versions of the model: which there are, which one is served, and how a newer one takes its place.

A folder whose folders are numbers holds versions, as TensorFlow Serving has them; anything else is one
version. Files, and links to nothing, to themselves or to a folder that they lie in, are no versions. A newer
one is loaded when its files have not changed for one look: it may be being copied still.
"""

import asyncio
import functools
import os
import threading
from collections.abc import Callable
from typing import NamedTuple

from official.io.errors import ConfigError
from official.serving.server.logs import Log
from official.serving.server.served import Served, free_memory

_MOST_TOLD = 16  # versions of a status; a server may see many
Load = Callable[[int, str], tuple[Served, float]]


class Location(NamedTuple):
    """A version's number, and where its files are."""

    version: int
    path: str


class State(NamedTuple):
    """A version's state in TensorFlow Serving's words: LOADING, AVAILABLE or END, and the error that ended
    it."""

    state: str
    error: str = ""


def find(export_dir: str) -> list[Location]:
    """Returns the versions of a folder, the newest first; one, of its own number or 1, of anything else."""
    found = _numbered(export_dir)
    if found:
        return found
    name = os.path.basename(os.path.normpath(export_dir))
    return [Location(int(name) if _is_number(name) else 1, export_dir)]


def _numbered(export_dir: str) -> list[Location]:
    try:
        numbers = [int(name) for name in os.listdir(export_dir) if _is_number(name)]
    except OSError:
        return []
    found = [Location(number, os.path.join(export_dir, str(number))) for number in sorted(numbers)[::-1]]
    return [location for location in found if os.path.isdir(location.path) and not _is_around(location.path)]


def _is_around(path: str) -> bool:
    """Tells whether a path is a link to a folder that it lies in: versions without end, and none of them
    one."""
    above = os.path.realpath(os.path.dirname(path))
    return os.path.commonpath([above, target := os.path.realpath(path)]) == target


def _is_number(name: str) -> bool:
    return name.isascii() and name.isdigit() and len(name) < 19 and (name == "0" or not name.startswith("0"))


def look(path: str) -> frozenset[tuple[str, int, int]]:
    """Returns the files of a version with their sizes and times: what changes while it is being copied."""
    found = set()
    for folder, _, names in os.walk(path):
        for name in names:
            try:
                status = os.stat(os.path.join(folder, name))
            except OSError:
                continue  # gone, or a link to nothing: it is there when it can be read
            found.add((os.path.relpath(os.path.join(folder, name), path), status.st_size, status.st_mtime_ns))
    return frozenset(found)


class Versions:
    """The version that is served, and the states of those that were. Belongs to the event loop.

    Attributes:
      served: None before the first one is ready.
      states: {version: its state}, the newest last.
    """

    def __init__(self, export_dir: str, load: Load, log: Log):
        self.served: Served | None = None
        self.states: dict[int, State] = {}
        self.is_loading = False
        self._export_dir, self._load, self._log = export_dir, load, log
        self._seen: dict[str, frozenset] = {}  # of each newer version: its files at the last look
        self._failed: dict[str, frozenset] = {}  # and where it could not be loaded, its files then

    async def start(self) -> float:
        """Loads the newest version that can be. Returns the seconds that it took.

        Raises:
          ConfigError: the newest one's, where none can be loaded.
        """
        failures: list[tuple[Location, ConfigError]] = []
        for location in await in_thread(lambda: find(self._export_dir)):
            self._failed[location.path] = await in_thread(functools.partial(look, location.path))
            try:
                secs = await self._take(location)
            except ConfigError as error:
                failures.append((location, error))
                continue
            for failure in failures:
                self._note_failure(*failure)
            return secs
        raise failures[0][1]

    async def refresh(self, is_used: Callable[[Served], bool]) -> None:
        """Looks for a newer version. Where there is one that is complete, loads it, lets it serve, and frees
        the old one when `is_used` says that nobody uses it any more."""
        location = await in_thread(self._newer)
        if location is None:
            return
        old = self.served
        try:
            await self._take(location)
        except ConfigError as error:
            self._failed[location.path] = self._seen[location.path]
            self._note_failure(location, error)
            return
        while old is not None and is_used(old):
            await asyncio.sleep(0.05)
        old = None
        await in_thread(free_memory)

    async def _take(self, location: Location) -> float:
        """Loads a version and lets it serve. Raises ConfigError."""
        self._tell(location.version, State("LOADING"))
        served, secs = await in_thread(lambda: self._loaded(location))
        old, self.served = self.served, served
        if old is not None:
            self._tell(old.version, State("END"))
        self._tell(location.version, State("AVAILABLE"))
        replaced = old and old.version
        self._log.info("serving", version=location.version, replaced=replaced, secs=round(secs, 2))
        return secs

    def _loaded(self, location: Location) -> tuple[Served, float]:
        self.is_loading = True
        try:
            return self._load(*location)
        finally:  # when the thread is done with it, whoever waits for that
            self.is_loading = False

    def _newer(self) -> Location | None:
        """Returns the newest version, where it is newer than the one that is served, has stood still since
        the last look, and has not failed with the same files."""
        for location in _numbered(self._export_dir):
            if self.served and location.version <= self.served.version:
                return None
            files = look(location.path)
            before, self._seen[location.path] = self._seen.get(location.path), files
            if files and files == before and files != self._failed.get(location.path):
                return location
        return None

    def _note_failure(self, location: Location, error: ConfigError) -> None:
        self._tell(location.version, State("END", str(error)))
        self._log.error("version not loaded", version=location.version, error=str(error))

    def _tell(self, version: int, state: State) -> None:
        self.states.pop(version, None)
        self.states[version] = state
        while len(self.states) > _MOST_TOLD:
            self.states.pop(next(iter(self.states)))


def in_thread(function: Callable) -> asyncio.Future:
    """Calls a function in a thread of its own, which nobody waits for when the process ends."""
    loop = asyncio.get_running_loop()
    future = loop.create_future()

    def settle(method: Callable, value: object) -> None:
        if not future.done():
            method(value)

    def run() -> None:
        try:
            outcome, method = function(), future.set_result
        except BaseException as error:  # pylint: disable=broad-except  # raised where it is awaited
            outcome, method = error, future.set_exception
        if not loop.is_closed():
            loop.call_soon_threadsafe(settle, method, outcome)

    threading.Thread(target=run, daemon=True).start()
    return future
