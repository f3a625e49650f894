"""Finds the package that the programs in this folder wrap."""

import os
import sys

try:
    from official.cli.main import script
except ModuleNotFoundError as error:
    if error.name not in ("official", "official.cli"):
        raise
    program = os.path.basename(sys.argv[0])
    print(
        f"{program}: the package official is not installed in {sys.executable}. Run ./scripts/setup_env.sh"
        " and take .venv/bin/python, or run pip install -e . here.",
        file=sys.stderr,
    )
    sys.exit(2)

__all__ = ["script"]
