"""`python -m official.graphcore`, on the fake of Graphcore's API: a program.

PYTHON -m tests.graphcore.old_stack_ipu_run CONFIG.json [--export FILE | --run FILE]
"""

import sys

from tests.graphcore import ipu_fake


def main(arguments: list) -> int:
    """Returns the exit code of the command."""
    with ipu_fake.installed(ipus=8):
        from official.graphcore import __main__ as command

        return command.main(arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
