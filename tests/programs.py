"""Runs a program of the repository in a process of its own."""

import subprocess
import sys

from tests.conftest import ROOT


def run(*arguments) -> subprocess.CompletedProcess:
    """Runs the file that is named first, from the repository's folder, with the rest as its arguments."""
    return subprocess.run(
        [sys.executable, *map(str, arguments)], cwd=ROOT, capture_output=True, text=True, check=False
    )
