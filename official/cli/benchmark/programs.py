"""A program of a measured system: a process that answers each line of JSON with a line of JSON."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Mapping
from typing import NoReturn

from official.io.errors import ConfigError


class Program:
    """A process of a program. A context manager, which ends it."""

    def __init__(self, name: str, command: list[str], folder: str, env: Mapping[str, str], advice: str = ""):
        """Starts it.

        Args:
          name: in messages, its flag and the system, such as "--peers: huggingface".
          command: its words.
          folder: that it works in; is made. Its standard error goes into log.txt there.
          env: its environment.
          advice: for a message that it was killed.
        """
        self._name, self._log, self._advice = name, os.path.join(folder, "log.txt"), advice
        os.makedirs(folder, exist_ok=True)
        with open(self._log, "w", encoding="utf-8") as log:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                cwd=folder,
                env=dict(env),
            )
        assert self.process.stdin and self.process.stdout
        self._input, self._output = self.process.stdin, self.process.stdout

    def ask(self, question: dict) -> None:
        """Sends a question; `answer` waits for what comes back. Raises ConfigError where the process has
        ended."""
        try:
            self._input.write(json.dumps(question) + "\n")
            self._input.flush()
        except BrokenPipeError:
            self._fail()

    def answer(self) -> dict:
        """Returns the next answer. Raises ConfigError where the process has ended."""
        line = self._output.readline()
        return json.loads(line) if line else self._fail()

    def _fail(self) -> NoReturn:
        code = self.process.wait()
        with open(self._log, encoding="utf-8", errors="replace") as log:
            last = [line for line in log.read().splitlines() if line.strip()][-1:]
        advice = f" It was killed, most likely for want of memory{self._advice}." * (code == -signal.SIGKILL)
        raise ConfigError(f"{self._name} ended with code {code}: {' '.join(last)}{advice}")

    def __enter__(self) -> Program:
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(BrokenPipeError):  # it has ended, with a question unread
            self._input.close()
        self.process.terminate()
        self.process.wait()
        self._output.close()
