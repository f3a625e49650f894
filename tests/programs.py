"""Runs a program of the repository, or another command, in a process of its own."""

import os
import pathlib
import subprocess
import sys

from tests.fixtures import ROOT

FOLDERS = ("scripts", "checkpoints_tools")
PATHS = sorted(path for folder in FOLDERS for path in (ROOT / folder).glob("*.py"))
# The programs of the repository, beside train.py.
SCRIPTS = [str(path.relative_to(ROOT)) for path in PATHS if "__main__" in path.read_text(encoding="utf-8")]


def run(*arguments, **settings) -> subprocess.CompletedProcess:
    """Runs the file that is named first by this Python, with the rest as its arguments; see `call`."""
    return call(sys.executable, *arguments, **settings)


def call(*words, cwd=ROOT, without=(), timeout=None, text=True, **environment) -> subprocess.CompletedProcess:
    """Runs a command from the repository's folder.

    Args:
      *words: of the command.
      cwd: another folder.
      without: variables that its environment does not have.
      timeout, text: of subprocess.run.
      **environment: variables that it has besides.
    """
    kept = {name: value for name, value in os.environ.items() if name not in without}
    return subprocess.run(
        list(map(str, words)),
        cwd=cwd,
        capture_output=True,
        text=text,
        check=False,
        timeout=timeout,
        env={**kept, **environment},
    )


def stand_in(path: pathlib.Path, text: str) -> pathlib.Path:
    """Writes a program that stands for another one. Returns its path."""
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path
