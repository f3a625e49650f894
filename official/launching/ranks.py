"""One process of a job as the launcher sees it: started here or through ssh, its output, its end."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import selectors
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from typing import IO

from official.io.errors import ConfigError
from official.launching import hosts

# A host that is cut off kills its processes after so many seconds; ssh notices a cut before.
SILENCE_SECS = 30.0
SSH_OPTIONS = ("BatchMode=yes", "ConnectTimeout=10", "ServerAliveInterval=5", "ServerAliveCountMax=3")
_SSH_FAILED = 255
ALIVE_SECS = 5.0
_LONGEST_LINE_BYTES = 2**16
_GUARD = os.path.join(os.path.dirname(os.path.abspath(__file__)), "guard.py")


@dataclasses.dataclass(frozen=True)
class Order:
    """Command, folder and environment of the processes of a job.

    Attributes:
      command: its words.
      folder: its working directory, the same on every host.
      environment: variables beside those that its host has.
      ssh: words of the program that starts something on another host.
    """

    command: tuple[str, ...]
    folder: str
    environment: dict[str, str]
    ssh: tuple[str, ...] = ("ssh",)


class Rank:
    """A process that was started.

    Attributes:
      worker: its place in the job.
      code: its exit code once it has ended, 128 + N where signal N has ended it; else None.
    """

    def __init__(self, order: Order, workers: list[hosts.Worker], rank: int):
        """Starts the process. Raises ConfigError where that cannot even be tried."""
        self.worker = workers[rank]
        self.code: int | None = None
        try:
            self._process = subprocess.Popen(
                _words(order, self.worker),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                bufsize=0,
                start_new_session=True,  # Ctrl-C is for the launcher, which passes it on
            )
        except OSError as error:
            raise ConfigError(f"{self.worker.name} cannot be started: {error.strerror}.") from None
        assert self._process.stdout and self._process.stderr
        self.streams = [
            Stream(self._process.stdout, sys.stdout.buffer, rank, "stdout"),
            Stream(self._process.stderr, sys.stderr.buffer, rank, "stderr"),
        ]
        variables = {**order.environment, "TF_CONFIG": hosts.tf_config(workers, rank)}
        silence = None if self.worker.is_local else SILENCE_SECS
        values = {"command": order.command, "folder": order.folder, "environment": variables}
        self._tell(json.dumps({**values, "silence_secs": silence}))

    def send(self, number: int) -> None:
        """Sends a signal to the process."""
        if self.code is None:
            self._tell(f"signal {number}")

    def drop(self) -> None:
        """Kills the way to the process, which kills the process: at once here, and within `SILENCE_SECS` on a
        host that is cut off."""
        if self.code is None:
            self._process.kill()

    def keep_alive(self) -> None:
        """Tells a host elsewhere that the launcher is there; call it every `ALIVE_SECS`, in any thread."""
        if not self.worker.is_local and self.code is None:
            self._tell("alive")

    def poll(self) -> bool:
        """Returns whether the process has ended since the last call."""
        if self.code is not None or self._process.poll() is None:
            return False
        code = self._process.returncode
        self.code = 128 - code if code < 0 else code
        self._is_cut_off = not self.worker.is_local and (code < 0 or code == _SSH_FAILED)
        if self.worker.is_local:
            _kill_session(self._process.pid)
        assert self._process.stdin
        with contextlib.suppress(OSError):
            self._process.stdin.close()  # a guard that is left elsewhere ends by that
        for stream in self.streams:
            stream.pass_rest_on()
        return True

    def is_cut_off(self) -> bool:
        """Whether it has ended because its host could not be reached, any more or at all."""
        return self._is_cut_off

    def close(self) -> None:
        """Ends the process, where it runs still, and gives back what it took here."""
        self.drop()
        self._process.wait()
        for file in (self._process.stdin, self._process.stdout, self._process.stderr):
            assert file
            with contextlib.suppress(OSError):
                file.close()

    def how_it_ended(self) -> str:
        """Returns the end of the process in words: its exit code or signal, or that its host is lost."""
        assert self.code is not None
        if self.is_cut_off():
            return "cannot be reached: ssh has ended"
        if self.code > 128:
            with contextlib.suppress(ValueError):
                return f"was ended by {signal.Signals(self.code - 128).name}"
        return f"ended with exit code {self.code}"

    def _tell(self, line: str) -> None:
        assert self._process.stdin
        with contextlib.suppress(OSError, ValueError):  # where it has ended, `poll` finds out
            self._process.stdin.write(f"{line}\n".encode())


class Stream:
    """The standard output or error of a process, passed on line by line with its rank in front."""

    def __init__(self, source: IO[bytes], target: IO[bytes], rank: int, name: str):
        os.set_blocking(source.fileno(), False)
        self.source = source
        self._target = target
        self._tag = f"[1,{rank}]<{name}>:".encode()
        self._text = b""

    def pass_on(self) -> bool:
        """Passes on what is there. Returns False at the end."""
        try:
            data = os.read(self.source.fileno(), 2**16)
        except BlockingIOError:
            return True
        except (OSError, ValueError):
            data = b""
        *lines, self._text = (self._text + data).split(b"\n")
        if len(self._text) > _LONGEST_LINE_BYTES or (self._text and not data):
            lines, self._text = [*lines, self._text], b""
        if lines:
            self._target.write(b"".join(self._tag + line + b"\n" for line in lines))
            self._target.flush()
        return bool(data)

    def pass_rest_on(self) -> None:
        """Passes on what is there, without waiting for more, as if it were the end."""
        with selectors.DefaultSelector() as selector:
            selector.register(self.source, selectors.EVENT_READ)
            while selector.select(0) and self.pass_on():
                pass
        if self._text:
            self._target.write(self._tag + self._text + b"\n")
            self._target.flush()
            self._text = b""


def ssh_words(ssh: tuple[str, ...], host: str, command: str) -> list[str]:
    """Returns the words that run a command of a shell on another host; ssh never asks for anything."""
    options = [word for option in SSH_OPTIONS for word in ("-o", option)]
    return [*ssh, *options, host, command]


def answers(ssh: tuple[str, ...], host: str, stop: Callable[[], bool]) -> bool:
    """Returns whether a host can be reached through ssh. `stop` ends the wait for that."""
    with subprocess.Popen(
        ssh_words(ssh, host, "true"),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    ) as process:
        while process.poll() is None:
            if stop():
                process.kill()
            time.sleep(0.05)
        return process.returncode == 0


def _words(order: Order, worker: hosts.Worker) -> list[str]:
    guard = [sys.executable, "-I", "-S", _GUARD]
    if worker.is_local:
        return guard
    return ssh_words(order.ssh, worker.host, f"exec {shlex.join(guard)}")


def _kill_session(session: int) -> None:
    """Kills what is left of a guard's session: something, where the guard itself was killed."""
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError, IndexError, ValueError):
            with open(f"/proc/{name}/stat", "rb") as file:
                fields = file.read().rpartition(b")")[2].split()
            if int(fields[3]) == session and fields[0] != b"Z":
                os.kill(int(name), signal.SIGKILL)
