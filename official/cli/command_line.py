"""Command line of all commands: flags in one form, and errors in one line with exit code 2."""

import argparse
import atexit
import gc
import itertools
import math
import os
import re
import shlex
import sys
from collections.abc import Callable
from typing import Any, NoReturn

from official.cli import aliases
from official.io import files, quiet, signals
from official.io.errors import ConfigError, check_arguments, report_error, suggest

_FLAG = re.compile(r"--\w[\w-]*")
_LARGEST = 2**63
_TRUTHS = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}


class _HelpFormatter(argparse.ArgumentDefaultsHelpFormatter):
    """Shows the defaults of flags, except None and false."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        return action.help if action.default in (None, False) else super()._get_help_string(action)


class Parser(argparse.ArgumentParser):
    """An argument parser that takes no abbreviations and raises ConfigError instead of printing its usage."""

    def __init__(self, text: str | None):
        """Makes a parser; the first paragraph of `text`, a module's docstring, is its description."""
        description = " ".join((text or "").split("\n\n")[0].split())
        super().__init__(description=description, allow_abbrev=False, formatter_class=_HelpFormatter)
        self._others: dict[str, str] = {}
        self.lists = set(aliases.LISTS)  # names of flags with commas between values
        self.given: set[str] = set()  # names of the flags that were given, after `parse`
        self.register("type", int, _whole_number)
        self.register("type", float, _finite_number)

    def add_bool(self, name: str, default: bool | None, text: str) -> None:
        """Adds a flag that is given as --name, --no-name or --name=true|false."""
        self.add_argument(f"--{name}", action=argparse.BooleanOptionalAction, default=default, help=text)

    def also(self, names: dict[str, str]) -> None:
        """Adds other names of flags: {theirs: ours}, without dashes."""
        self._others |= {f"--{name.replace('_', '-')}": f"--{ours}" for name, ours in names.items()}

    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{message.rstrip('.')}. See --help.")

    def parse(self, words: list[str] | None = None) -> argparse.Namespace:
        """Parses words, unset: sys.argv; flags may be spelled with hyphens, and a truth or each of several
        files may be a word of its own. Raises ConfigError for unknown, missing and malformed flags."""
        words = sys.argv[1:] if words is None else words
        check_arguments(words)
        for text in words:
            if text.startswith("--") and text.endswith("=--"):  # argparse takes it for the end of the flags
                raise ConfigError(f"{text[:-3]} needs a value, received '--'. See --help.")
        spellings = {name.replace("_", "-"): name for name in self._option_string_actions}
        spellings = self._others | spellings
        arguments = self._joined([_respelled(text, spellings) for text in words])
        arguments = [text for text in map(self._plain, arguments) if text]
        self.given = {text.split("=")[0].removeprefix("--") for text in arguments if text.startswith("--")}
        # First: argparse names what a misspelt flag should have been as missing.
        for argument in itertools.takewhile("--".__ne__, arguments):
            if _FLAG.fullmatch(argument.split("=")[0]):
                self._check_known(argument)
        flags, unknown = self.parse_known_args(arguments)
        for argument in unknown:
            self._check_known(argument)
        for name, value in vars(flags).items():
            setattr(flags, name, _with_homes(value))
        return flags

    def options(self) -> dict[str, tuple[str, ...]]:
        """Returns {flag: its values where they are a few known ones}, for completion."""
        return {
            name: tuple(map(str, action.choices or ()))
            for name, action in self._option_string_actions.items()
            if name.startswith("--")
        }

    def _joined(self, arguments: list[str]) -> list[str]:
        """Returns the arguments with values that are separate words joined to their flags, see
        `aliases.joined`."""
        flags = {name.removeprefix("--"): action for name, action in self._option_string_actions.items()}
        truths = [name for name, action in flags.items() if _is_on_or_off(action) or action.type is truth]
        return aliases.joined(arguments, truths, self.lists & set(flags))

    def _plain(self, text: str) -> str:
        """Returns --name for --name=true of an on/off flag, and --no-name for --name=false, or "" without
        such a flag. Flags with an optional value would swallow the argument after them."""
        name, equals, value = text.partition("=")
        action = self._option_string_actions.get(name)
        if not equals or action is None or not _is_on_or_off(action):
            return text
        if value.lower() not in _TRUTHS:
            raise ConfigError(f"{text[:100]}, expected {name}=true or {name}=false.")
        if _TRUTHS[value.lower()]:
            return name
        opposite = f"--no-{name.removeprefix('--')}"
        return opposite if opposite in self._option_string_actions else ""

    def _check_known(self, argument: str) -> None:
        name = argument.split("=")[0]
        if name not in self._option_string_actions:
            kind = "unknown flag" if name.startswith("-") else "unexpected argument"
            raise ConfigError(f"{kind} {name[:100]}{suggest(name, self._option_string_actions)}. See --help.")


def _with_homes(value: Any) -> Any:
    """Returns the value of a flag with ~ and ~user expanded, where it is text or a list of texts."""
    if isinstance(value, list):
        return [_with_homes(each) for each in value]
    return files.expanded(value) if isinstance(value, str) else value


def _is_on_or_off(action: argparse.Action) -> bool:
    return isinstance(action, argparse.BooleanOptionalAction) or action.nargs == 0 and action.const is True


def _whole_number(text: str) -> int:
    try:
        number = int(text)
    except ValueError:
        number = _LARGEST
    if abs(number) >= _LARGEST:
        raise argparse.ArgumentTypeError(f"{text[:100]!r} is not a whole number of 64 bits")
    return number


def _finite_number(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise argparse.ArgumentTypeError(f"{text[:100]!r} is not a finite number")
    return number


def _respelled(argument: str, spellings: dict[str, str]) -> str:
    name, equals, value = argument.partition("=")
    return spellings.get(name.replace("_", "-"), name) + equals + value if name.startswith("--") else argument


def add_length_flag(parser: argparse.ArgumentParser) -> None:
    """Adds --max_seq_length, for commands that ask a model about text."""
    parser.add_argument(
        "--max_seq_length",
        type=int,
        help="Tokens of a sequence; what is longer is cut, and said once. Unset: as the model was trained, or"
        " all that it and its tokenizer take (ask: at most 384, in windows).",
    )


def add_lower_case_flag(parser: argparse.ArgumentParser) -> None:
    """Adds --do_lower_case=true|false, for commands that tokenise text."""
    parser.add_argument(
        "--do_lower_case",
        type=truth,
        nargs="?",
        const=True,
        metavar="true|false",
        help=(
            "Text loses its capitals and accents, as an uncased vocabulary wants it. Unset: as"
            " tokenizer_config.json beside the vocabulary says, else yes."
        ),
    )


def truth(text: str) -> bool:
    """Reads true or false."""
    if text.lower() not in ("true", "false"):
        raise argparse.ArgumentTypeError(f"{text!r} is neither true nor false")
    return text.lower() == "true"


def check_counts(flags: argparse.Namespace, *names: str) -> None:
    """Raises ConfigError where one of the flags is below 1."""
    for name in names:
        if getattr(flags, name) < 1:
            raise ConfigError(f"--{name}={getattr(flags, name)}, expected 1 or more.")


def read_list(text: str, flag: str, allowed: tuple[str, ...]) -> list[str]:
    """Returns the values of a comma-separated list. Raises ConfigError where one is not allowed."""
    for value in text.split(","):
        if value not in allowed:
            raise ConfigError(
                f"--{flag}={text}: {value!r} is not one of {', '.join(allowed)}{suggest(value, allowed)}."
            )
    return text.split(",")


def program() -> str:
    """Returns the program's name, with which errors begin: the script's file name, or `bert` and the
    command."""
    return os.path.basename(sys.argv[0])


def words(arguments: list[str]) -> list[str]:
    """Returns the words of this process's command line: the program's file as typed, or `bert` and the
    command, then the arguments."""
    is_bert = sys.argv[0].startswith("bert ")
    return [*(sys.argv[0].split() if is_bert else sys.argv[:1]), *arguments]


def as_typed() -> str:
    """Returns this process's command line as typed in the repository."""
    is_script = program().endswith(".py")
    first = ["python", f"scripts/{program()}"] if is_script else program().split()
    return shlex.join([*first, *sys.argv[1:]])


def in_new_process(*words: str) -> list[str]:
    """Returns the words that run a command of `bert` in a new process; the caller adds its flags."""
    return [sys.executable, "-m", "official.cli", *words]


def run(main: Callable[[], int | None]) -> NoReturn:
    """Calls `main` and exits with its code; bad input ends with one line on stderr and code 2, a signal with
    129, 130 or 143."""
    quiet.quieten_libraries()
    atexit.register(gc.freeze)  # what is left goes with the process: nobody looks for cycles in it
    try:
        with signals.raising():  # an exception, so that files are cleaned up
            code = main()
    except ConfigError as error:
        code = fail(error)
    except KeyboardInterrupt as error:
        code = signals.report(error)
    sys.exit(code)


def fail(error: ConfigError) -> int:
    """Prints the line of an error and returns the exit code, 2."""
    report_error(program(), str(error))
    return 2
