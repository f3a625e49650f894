"""Runs a command with a limit of time, and ends it with all processes that it has started."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence

_GRACE_SECS = 2.0  # between SIGTERM and SIGKILL; a signal to this process leaves it five in all
_POLL_SECS = 0.2
NOT_FOUND = 127  # exit code, as of a shell


@dataclasses.dataclass(frozen=True)
class Ended:
    """Exit code of a process, and the seconds of the timeout that ended it, else None."""

    code: int
    timeout: float | None = None


def run(
    words: Sequence[str],
    folder: str,
    env: Mapping[str, str],
    logs: tuple[str, str],
    timeout: float | None = None,
    waiting: Callable[[float], None] = lambda secs: None,
) -> Ended:
    """Runs a command without a shell, and returns how it ended: code 127 where there is no such program.

    Args:
      words: of the command.
      folder: to run in.
      env: its environment.
      logs: files for stdout and stderr.
      timeout: seconds after which all its processes are ended, or None.
      waiting: called with the seconds since the start, now and then.

    Where an exception passes through, as a signal becomes one, all its processes are ended, too.
    """
    with open(logs[0], "wb") as out, open(logs[1], "wb") as err:
        try:
            process = subprocess.Popen(
                words,
                cwd=folder,
                env=dict(env),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
            )
        except OSError as error:
            err.write(f"{words[0]}: {error.strerror or error}\n".encode())
            return Ended(NOT_FOUND)
        try:
            code = _wait(process, timeout, waiting)
        except BaseException:
            end_tree(process)
            raise
        if code is not None:
            return Ended(code)
        end_tree(process)
        err.seek(0, os.SEEK_END)
        err.write(f"\nTimeout ({timeout:g})\n".encode())
        return Ended(process.returncode or 1, timeout)


def _wait(process: subprocess.Popen, timeout: float | None, waiting: Callable[[float], None]) -> int | None:
    """Returns the exit code, or None after the timeout."""
    started = time.monotonic()
    while True:
        with contextlib.suppress(subprocess.TimeoutExpired):
            return process.wait(_POLL_SECS)
        secs = time.monotonic() - started
        if timeout is not None and secs >= timeout:
            return None
        waiting(secs)


def end_tree(process: subprocess.Popen) -> None:
    """Ends a session leader and all processes that it has started: by SIGTERM, then by SIGKILL."""
    everyone = {process.pid, *_descendants(process.pid)}
    _send(signal.SIGTERM, process.pid, everyone)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_GRACE_SECS)
    _send(signal.SIGKILL, process.pid, everyone | set(_descendants(process.pid)))
    process.wait()


def _send(number: int, leader: int, everyone: set[int]) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, number)
    for pid in everyone - {leader}:  # those that lead a session of their own
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def _descendants(pid: int) -> list[int]:
    """Returns the processes below one, where /proc tells."""
    parents: dict[int, int] = {}
    for name in os.listdir("/proc") if os.path.isdir("/proc/self") else ():
        if name.isdigit():
            with (
                contextlib.suppress(OSError, ValueError, IndexError),
                open(f"/proc/{name}/stat", "rb") as file,
            ):
                parents[int(name)] = int(file.read().rpartition(b")")[2].split()[1])
    found, level = [], [pid]
    while level:
        level = [child for child, parent in parents.items() if parent in level]
        found += level
    return found
