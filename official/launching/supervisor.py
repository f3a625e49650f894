"""Supervises one process of a job, on its host: starts it, and at its end kills all descendants.

The launcher starts this file as a plain Python script, here or through ssh. So it imports no module of the
project, and runs on every host with Python 3.8 or later. The launcher writes to its standard input: first an
order, one line of JSON (`command`, `environment`, `folder`, `silence_secs`), then lines `alive` and
`signal NUMBER`. If the input ends, or is silent for `silence_secs`, the launcher or its connection is lost;
then the process is killed with all its descendants. The exit code is that of the process, or 128 + N after
signal N.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import signal
import subprocess
import sys
import time
from typing import Any, NoReturn

# Options of Linux's prctl.
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_LONGEST_ORDER_BYTES = 2**22
_CANNOT_START = 2
_LEFT_OVER_SECS = 5.0  # for killed processes to end


def main() -> NoReturn:
    """Runs the command of the launcher's order and exits with its exit code."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)  # orphans of the process become children of this one
    line = _Line()
    order = line.order()
    watched = _Watched(order, libc)
    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, lambda number, frame: watched.send(number))
    signal.signal(signal.SIGHUP, lambda number, frame: watched.send(signal.SIGKILL))
    while watched.code is None:
        for number in line.signals(order.get("silence_secs")):
            watched.send(number)
        watched.reap()
    watched.kill_all()
    os._exit(watched.code)  # pylint: disable=protected-access  # skips exit handlers, which may block


class _Line:
    """Connection to the launcher, on standard input."""

    def __init__(self) -> None:
        self._text = b""
        self._ended = False
        self._heard = time.monotonic()
        self._child_ended, writer = os.pipe()
        os.set_blocking(self._child_ended, False)
        os.set_blocking(writer, False)
        signal.set_wakeup_fd(writer)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)  # the wake-up is enough

    def order(self) -> dict[str, Any]:
        """Returns the order, the first line. Exits without one."""
        while b"\n" not in self._text:
            data = os.read(0, 65536)
            if not data or len(self._text) > _LONGEST_ORDER_BYTES:
                os._exit(_CANNOT_START)  # pylint: disable=protected-access
            self._text += data
        first, _, self._text = self._text.partition(b"\n")
        self._heard = time.monotonic()
        return json.loads(first)

    def signals(self, silence_secs: float | None) -> list[int]:
        """Waits for the launcher or the end of a process, and returns the signals to send: SIGKILL if the
        launcher is lost."""
        if b"\n" not in self._text and not self._wait(silence_secs):
            self._ended = True
            _say("lost the launcher; the process is killed")
            return [signal.SIGKILL]
        *lines, self._text = self._text.split(b"\n")
        found = [int(line.split()[1]) for line in lines if line.startswith(b"signal ")]
        return [*found, signal.SIGKILL] if self._ended else found

    def _wait(self, silence_secs: float | None) -> bool:
        """Waits for input or the end of a process. Returns False if the launcher was silent for too long."""
        left = None
        if silence_secs and not self._ended:
            left = max(0.0, self._heard + silence_secs - time.monotonic())
        inputs = [self._child_ended] if self._ended else [self._child_ended, 0]
        readable, _, _ = select.select(inputs, [], [], left)
        if self._child_ended in readable:
            os.read(self._child_ended, 4096)
        if 0 in readable:
            data = os.read(0, 65536)
            self._heard, self._ended = time.monotonic(), not data
            self._text += data
        return bool(readable)


class _Watched:
    """The process, in a process group of its own. `code` is None while it runs."""

    def __init__(self, order: dict[str, Any], libc: ctypes.CDLL) -> None:
        self.code: int | None = None
        self._process: subprocess.Popen | None = None
        own = os.getpid()

        def prepare() -> None:
            os.setpgid(0, 0)
            libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            if os.getppid() != own:  # the parent died before prctl
                os.kill(os.getpid(), signal.SIGKILL)

        command, environment = order["command"], {**os.environ, **order["environment"]}
        folder, nothing = order.get("folder"), subprocess.DEVNULL
        try:  # there are no threads here
            self._process = subprocess.Popen(  # noqa: PLW1509
                command, stdin=nothing, preexec_fn=prepare, cwd=folder, env=environment
            )
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            _say(f"{getattr(error, 'filename', None) or command[0]}: {reason}")
            self.code = _CANNOT_START

    def send(self, number: int) -> None:
        """Sends a signal to the process and the others of its group."""
        if self._process is not None and self.code is None:
            _signal_group(self._process.pid, number)

    def reap(self) -> None:
        """Reaps the process and its orphans that have ended."""
        while self._process is not None:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid == self._process.pid:
                is_killed = os.WIFSIGNALED(status)
                self.code = 128 + os.WTERMSIG(status) if is_killed else os.WEXITSTATUS(status)
                self._process.returncode = self.code  # Popen must not wait for it again

    def kill_all(self) -> None:
        """Kills the remaining processes: the group of the process, and orphans outside of it."""
        if self._process is None:
            return
        deadline = time.monotonic() + _LEFT_OVER_SECS
        _signal_group(self._process.pid, signal.SIGKILL)
        while time.monotonic() < deadline:
            try:
                if os.waitpid(-1, os.WNOHANG)[0] == 0:
                    for pid in _children():
                        with contextlib.suppress(ProcessLookupError, PermissionError):
                            os.kill(pid, signal.SIGKILL)
                    time.sleep(0.01)
            except ChildProcessError:
                return


def _children() -> list[int]:
    """Returns the children of this process."""
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError, IndexError), open(f"/proc/{name}/stat", "rb") as file:
            if int(file.read().rpartition(b")")[2].split()[1]) == os.getpid():
                found.append(int(name))
    return found


def _signal_group(group: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)


def _say(text: str) -> None:
    sys.stderr.write(f"launch: {text}\n")
    sys.stderr.flush()


if __name__ == "__main__":
    main()
