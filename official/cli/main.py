"""The command `bert`: finds the command in the table, loads only its module, and runs it.

The programs of the repository (train.py, scripts/*.py, checkpoints_tools/*.py) call this module with the name
of their command. Their messages show the program's name as typed.
"""

import os
import sys
from typing import NoReturn

from official.io import quiet, signals, streams
from official.io.errors import ConfigError, describe_missing, installed_versions, report_error

_HELP = ("--help", "-h", "help")


def main() -> NoReturn:
    """Runs the command line of `bert` and exits with the command's code."""
    streams.settle()  # before the pipe of the signals, which would have the number of a closed stream
    signals.watch()  # before anything that takes time to import
    from official.cli import command_line, table

    arguments, sys.argv[:] = sys.argv[1:], ["bert"]
    first, second, *_ = *arguments[:2], "", ""
    if arguments == ["--version"]:
        command_line.run(lambda: print(_version()))
    if first in _HELP:
        command_line.run(lambda: print(table.help_text()))
    if first in table.GROUPS and second in _HELP and len(arguments) == 2:
        command_line.run(lambda: print(table.group_help(first)))
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
    # Keras imports it to take DataFrames, which no command has: a quarter of the time of TensorFlow's import,
    # and 70 MB.
    quiet.leave_out("pandas")
    try:
        from official.cli import command_line

        function = command.load()
        if command.function.startswith("start"):  # training handles its own errors and signals
            function()
        command_line.run(function)
    except ModuleNotFoundError as error:  # outside of the environment, or without an extra
        message = describe_missing(error)
        if message is None:
            raise
        report_error(os.path.basename(sys.argv[0]), message)
        sys.exit(2)


def _version() -> str:
    """Returns the versions of this package, TensorFlow and Python; imports neither of the two."""
    found = installed_versions("bert-tf2", "tensorflow")
    own, tensorflow = (found.get(package, "not installed") for package in ("bert-tf2", "tensorflow"))
    python = ".".join(map(str, sys.version_info[:3]))
    return f"bert {own} (TensorFlow {tensorflow}, Python {python})"
