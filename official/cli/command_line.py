"""What the command-line scripts share: flags of one form, whole files or none, and errors in one line with exit code 2."""

import os
import sys

from official.io import signals

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def _runs_a_command() -> bool:
    """Tells whether the program of this process is one of this repository's, and not, say, a test runner."""
    program = getattr(sys.modules["__main__"], "__file__", None) or ""
    return os.path.dirname(os.path.dirname(os.path.abspath(program))) == ROOT


if _runs_a_command():
    signals.watch()  # before anything that takes time to import

import argparse
import itertools
import json
import math
import re
import signal
from collections.abc import Callable

from official.io import quiet
from official.io.errors import ConfigError, check_arguments, report_error, suggest
from official.io.writing import check_output_file, naming_output, replace_file

_FLAG = re.compile(r"--\w[\w-]*")


class _HelpFormatter(argparse.ArgumentDefaultsHelpFormatter):
    """Shows the defaults that say something: not those of flags that are required, unset or off."""

    def _get_help_string(self, action):
        return action.help if action.default in (None, False) else super()._get_help_string(action)


_LARGEST = 2**63


class Parser(argparse.ArgumentParser):
    """An argument parser that takes no abbreviations and raises ConfigError instead of printing its usage."""

    def __init__(self, description: str):
        super().__init__(description=description, allow_abbrev=False, formatter_class=_HelpFormatter)
        self.register("type", int, _whole_number)
        self.register("type", float, _finite_number)

    def error(self, message: str):
        raise ConfigError(f"{message.rstrip('.')}. See --help.")

    def parse(self) -> argparse.Namespace:
        """Parses the command line; flags may be spelled with hyphens. Raises ConfigError for unknown, missing
        and malformed flags."""
        check_arguments(sys.argv[1:])
        valueless = next(
            (argument for argument in sys.argv[1:] if argument.startswith("--") and argument.endswith("=--")),
            None,
        )
        if valueless:  # argparse takes it for the end of the flags
            raise ConfigError(f"{valueless[:-3]} needs a value, received '--'. See --help.")
        spellings = {name.replace("_", "-"): name for name in self._option_string_actions}
        arguments = [_respelled(argument, spellings) for argument in sys.argv[1:]]
        for argument in itertools.takewhile(
            "--".__ne__, arguments
        ):  # first: argparse names what a misspelt flag should have been as missing
            if _FLAG.fullmatch(argument.split("=")[0]):
                self._check_known(argument)
        flags, unknown = self.parse_known_args(arguments)
        for argument in unknown:
            self._check_known(argument)
        return flags

    def _check_known(self, argument: str) -> None:
        name = argument.split("=")[0]
        if name not in self._option_string_actions:
            kind = "unknown flag" if name.startswith("-") else "unexpected argument"
            raise ConfigError(f"{kind} {name[:100]}{suggest(name, self._option_string_actions)}. See --help.")


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


def add_lower_case_flag(parser: argparse.ArgumentParser) -> None:
    """Adds --do_lower_case=true|false of what tokenises text."""
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


def check_counts(flags, *names: str) -> None:
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


def read_shapes(text: str) -> list[tuple[int, int]]:
    """Returns (tokens of a sequence, sequences) of each LENGTHxBATCH in a comma-separated list. Raises
    ConfigError."""
    try:
        shapes = [tuple(map(int, shape.split("x"))) for shape in text.split(",")]
    except ValueError:
        shapes = []
    if not shapes or any(len(shape) != 2 or min(shape) < 1 for shape in shapes):
        raise ConfigError(f"--shapes={text}, expected LENGTHxBATCH,LENGTHxBATCH,... such as 128x8,512x2.")
    return shapes


def stem(path: str) -> str:
    """Returns the name of a file without folder and ending, which charts call a model by."""
    return os.path.splitext(os.path.basename(path))[0]


PICTURE_ENDINGS = (".png", ".svg", ".pdf")


def check_picture_file(path: str, flag: str, overwrite: bool) -> None:
    """Checks before the work that a picture can be written, and makes its folder. Raises ConfigError, also
    for another kind of file."""
    if not path.lower().endswith(PICTURE_ENDINGS):
        raise ConfigError(f"--{flag}={path[:100]} does not end with one of {', '.join(PICTURE_ENDINGS)}.")
    check_output_file(path, flag, overwrite)


def picture_format(path: str) -> str:
    """Returns the format of a picture by the ending of its file: png, svg or pdf."""
    return path.rpartition(".")[2].lower()


def add_output_flags(parser: Parser) -> None:
    """Adds the flags of a benchmark that `write_results` serves."""
    parser.add_argument("--output", default=None, help="Also write OUTPUT.json and the chart OUTPUT.png.")
    parser.add_argument("--overwrite", action="store_true", help="Replace them where they are there.")


def check_results(flags) -> None:
    """Checks before a benchmark that its results can be written. Raises ConfigError."""
    for ending in (".json", ".png") if flags.output else ():
        check_output_file(flags.output + ending, "output", flags.overwrite)


def write_results(output: str | None, record: dict, draw: Callable[[], bytes]) -> None:
    """Writes what was measured, with the command and the machine, and the picture that `draw` makes (PNG);
    without `output` nothing."""
    if output is None:
        return
    from official.reporting import environment

    command = " ".join(["python", f"scripts/{os.path.basename(sys.argv[0])}", *sys.argv[1:]])
    write_file(
        output + ".json",
        json.dumps({"command": command, **record, "environment": environment.environment()}, indent=1) + "\n",
    )
    write_file(output + ".png", draw())
    print(f"{output}.json and {output}.png")


def write_file(path: str, data: str | bytes) -> None:
    """Writes a file whole or not at all. Raises ConfigError."""
    with naming_output(path):
        replace_file(path, data)


def run(main: Callable[[], int | None]) -> None:
    """Calls `main` and exits with the code it returns; bad input ends in one line on stderr and code 2, a
    signal in 130 or 143."""
    quiet.quieten_libraries()
    code = 128 + signal.SIGPIPE  # where nobody reads what it prints
    try:
        with quiet.telling(), signals.raising():  # an exception, so that files are cleaned up
            code = main()
    except ConfigError as error:
        code = _fail(str(error), 2)
    except KeyboardInterrupt as error:
        code = signals.report(error)
    sys.exit(code)


def _fail(message: str, code: int) -> int:
    report_error(os.path.basename(sys.argv[0]), message)
    return code
