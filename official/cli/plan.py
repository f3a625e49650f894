"""Shows what a run will be: `bert train --plan`, with the flags of `bert train`."""

import sys
from typing import NoReturn

from official.cli import train


def start() -> NoReturn:
    """Runs the command line of this process, and ends it."""
    sys.argv.append("--plan")
    train.start()
