"""The command `bert`: finds the command in the table, loads its module and nothing else, and runs it.

The programs of the repository (train.py, scripts/*.py, checkpoints_tools/*.py) come here, too, each with the
name of the command that it is. What they print names the program as it was typed.
"""

import sys
from typing import NoReturn

from official.io import signals, streams
from official.io.errors import ConfigError

_HELP = ("--help", "-h", "help")


def main() -> NoReturn:
    """Runs the command line of `bert` and exits with the command's code."""
    streams.settle()  # before the pipe of the signals, which would have the number of a closed stream
    signals.watch()  # before anything that takes time to import
    from official.cli import command_line, table

    arguments, sys.argv[:] = sys.argv[1:], ["bert"]
    if arguments and arguments[0] in _HELP:
        command_line.run(lambda: print(table.help_text()))
    if len(arguments) == 2 and arguments[0] in table.GROUPS and arguments[1] in _HELP:
        command_line.run(lambda: print(table.group_help(arguments[0])))
    try:
        command, rest = table.find(arguments)
    except ConfigError as error:
        sys.exit(command_line.fail(error))
    sys.argv[:] = [f"bert {command.name}", *rest]
    _start(command)


def script(name: str) -> NoReturn:
    """Runs a command for a program of the repository, whose name stays in sys.argv[0]."""
    streams.settle()
    signals.watch()
    from official.cli import table

    _start(table.COMMANDS[name])


def _start(command) -> NoReturn:
    from official.cli import command_line

    module = command.load()
    if hasattr(module, "start"):  # it answers for its own errors and signals
        module.start()
    command_line.run(module.main)
