"""The server as a process of its own."""

import json
import os
import pathlib
import re
import subprocess
import sys

from tests.fixtures import ROOT
from tests.serving.server.servers import Client, write_model


class Process(Client):
    """`scripts/serve.py` over a small model, version 1 of a folder; for a `with` statement, which ends it.

    Attributes:
      process: itself.
    """

    def __init__(self, folder, *flags: str, environment: dict[str, str] | None = None):
        write_model(pathlib.Path(folder, "models", "1"), "answer")
        self._errors = open(os.path.join(str(folder), "stderr"), "w+", encoding="utf-8")
        command = [sys.executable, "scripts/serve.py", f"--export_dir={folder}/models", "--port=0", *flags]
        streams = {"stdout": subprocess.PIPE, "stderr": self._errors, "text": True}
        own = {**os.environ, **(environment or {})}
        self.process = subprocess.Popen(command, cwd=ROOT, env=own, **streams)
        line = self.process.stdout.readline()
        found = re.match(r"http://127\.0\.0\.1:(\d+)/ serves bert version 1 ", line)
        assert found, line + self.errors()
        self.port = int(found[1])

    def errors(self) -> str:
        """Returns what it has written to stderr."""
        self._errors.seek(0)
        return self._errors.read()

    def lines(self) -> list[dict]:
        """Returns its log."""
        return [json.loads(line) for line in self.errors().splitlines()]

    def __enter__(self) -> "Process":
        return self

    def __exit__(self, *_) -> None:
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()
        self._errors.close()
