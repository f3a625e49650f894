"""Command lines of all commands: flag classes, alternative spellings of flags, and one-line errors."""

from __future__ import annotations

import argparse
import atexit
import dataclasses
import gc
import itertools
import math
import os
import re
import shlex
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Literal, NoReturn, TypeVar, get_args, get_origin, get_type_hints

from official.io import files, quiet, signals
from official.io.errors import (
    ConfigError,
    attribute_texts,
    check_arguments,
    check_docstrings,
    check_one_of,
    report_error,
    suggest,
)

_FLAG = re.compile(r"--\w[\w-]*")
_LARGEST = 2**63
COUNT = (1, math.inf)  # range of flags that count something
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
        self.of: type[Flags] = Flags  # the class of what `parse` returns
        self.ranges: Mapping[str, tuple[float, float]] = {}  # {name: (smallest, largest)}
        self.given: set[str] = set()  # names of the flags that were given, after `parse`
        self.register("type", int, _whole_number)
        self.register("type", float, _finite_number)

    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{message.rstrip('.')}. See --help.")

    def parse(self, words: list[str] | None = None) -> Any:
        """Parses words (unset: sys.argv). Flags may have hyphens; true, false and each of several files may
        be separate words. Raises ConfigError for unknown, missing and malformed flags."""
        words = sys.argv[1:] if words is None else words
        check_arguments(words)
        for text in words:
            if text.startswith("--") and text.endswith("=--"):  # argparse takes it for the end of the flags
                raise ConfigError(f"{text[:-3]} needs a value, received '--'. See --help.")
        actions = {name.removeprefix("--"): each for name, each in self._option_string_actions.items()}
        names = self.of.ALIASES | {name.replace("-", "_"): name for name in actions}
        truths = [name for name, each in actions.items() if _is_on_or_off(each)]
        arguments = joined(normalized(words, names), truths, {*LISTS, *self.of.LISTS} & set(actions))
        arguments = [text for text in map(self._plain, arguments) if text]
        self.given = {text.split("=")[0].removeprefix("--") for text in arguments if text.startswith("--")}
        # First: for a misspelt required flag, argparse would only report the required one as missing.
        for argument in itertools.takewhile("--".__ne__, arguments):
            if _FLAG.fullmatch(argument.split("=")[0]):
                self._check_known(argument)
        flags, unknown = self.parse_known_args(arguments)
        for argument in unknown:
            self._check_known(argument)
        flags = self.of(**{name: _with_homes(value) for name, value in vars(flags).items()})
        for name, (smallest, largest) in self.ranges.items():
            value = getattr(flags, name)
            if value is not None and not smallest <= value <= largest:
                allowed = f"{smallest:g} or more" if largest == math.inf else f"{smallest:g} to {largest:,}"
                raise ConfigError(f"--{name}={value} is out of range. Allowed: {allowed}.")
        return flags

    def options(self) -> list[str]:
        """Returns the names of the flags."""
        return [name for name in self._option_string_actions if name.startswith("--")]

    def _plain(self, text: str) -> str:
        """Returns --name for --name=true of an on/off flag, and --no-name for --name=false, or "" without
        such a flag. Flags with an optional value would swallow the argument after them."""
        name, equals, value = text.partition("=")
        action = self._option_string_actions.get(name)
        if not equals or action is None or not _is_on_or_off(action):
            return text
        if value.lower() not in _TRUTHS:
            raise ConfigError(f"{text[:100]}, expected {name}=true or {name}=false.")
        opposite = f"--no-{name.removeprefix('--')}"
        return name if _TRUTHS[value.lower()] else opposite * (opposite in self._option_string_actions)

    def _check_known(self, argument: str) -> None:
        name = argument.split("=")[0]
        if name not in self._option_string_actions:
            kind = "unknown flag" if name.startswith("-") else "unexpected argument"
            raise ConfigError(f"{kind} {name[:100]}{suggest(name, self._option_string_actions)}. See --help.")


_Flags = TypeVar("_Flags", bound="Flags")
_Made = TypeVar("_Made")


class Flags(argparse.Namespace):
    """Flags of a command; each subclass has an attribute for each flag, with its type and its default.

    The first paragraph of the subclass's docstring, of its module's for a class `Main`, describes the
    command; the "Attributes:" of the class are the help of the flags. A bool is given as --name, --no-name
    or --name=true|false; a Literal holds the allowed values; a list of texts with a default is a flag that
    may be repeated, one without takes one or more words. A field of a dataclass in OF is a flag, too, where
    the docstring has help for it.
    """

    OF: ClassVar[tuple[type, ...]] = ()  # see `make`
    POSITIONAL: ClassVar[tuple[str, ...]] = ()  # names of the arguments without dashes
    ALIASES: ClassVar[dict[str, str]] = {}  # {another name: ours}
    SHORT: ClassVar[dict[str, str]] = {}  # {name: letter}
    LISTS: ClassVar[tuple[str, ...]] = ()  # names of more flags with commas between values
    RANGES: ClassVar[dict[str, tuple[float, float]]] = {}  # {name: (smallest, largest)}

    @classmethod
    def parser(cls) -> Parser:
        """Returns the parser of the flags, whose result is of this class. Raises ConfigError where Python
        runs without docstrings, which are the help."""
        check_docstrings("hold the help of the flags")
        parser = Parser(sys.modules[cls.__module__].__doc__ if cls.__name__ == "Main" else cls.__doc__)
        parser.of, parser.ranges = cls, cls.RANGES
        texts: dict[str, str] = {}
        for each in reversed(cls.__mro__):
            texts |= attribute_texts(each.__doc__)
        fields = {name: each for each in cls.OF for name in get_type_hints(each) if name in texts}
        fields |= {
            name: cls for name, hint in get_type_hints(cls).items() if get_origin(hint) is not ClassVar
        }
        for name in sorted(fields, key=list(texts).index):
            owner = fields[name]
            hint, has_default = get_type_hints(owner)[name], hasattr(owner, name)
            hint = get_args(hint)[0] if type(None) in get_args(hint) else hint
            settings: dict[str, Any] = {"type": hint}
            if hint is bool:
                settings = {"action": argparse.BooleanOptionalAction}
            elif get_origin(hint) is Literal:
                settings = {"choices": get_args(hint), "type": type(get_args(hint)[0])}
            elif get_origin(hint) is list and has_default and name not in cls.POSITIONAL:
                settings = {"action": "append"}
            elif get_origin(hint) is list:
                settings = {"nargs": "*" if has_default else "+"}
            if has_default:
                settings["default"] = getattr(owner, name)
            if name in cls.POSITIONAL:
                names = [name]
                settings["metavar"] = name.upper()
            else:
                names = [*(f"-{letter}" for letter in cls.SHORT.get(name, "")), f"--{name}"]
                settings["required"] = not has_default
            text = texts[name].replace("%", "%%")
            parser.add_argument(*names, help=text, **settings).help = text  # without what argparse adds
        return parser

    @classmethod
    def parse(cls: type[_Flags], words: list[str] | None = None) -> _Flags:
        """Parses words, unset: sys.argv. Raises ConfigError."""
        return cls.parser().parse(words)

    def make(self, kind: Callable[..., _Made], **others: Any) -> _Made:
        """Returns a dataclass whose fields have the values of the flags of their names, or of `others`."""
        names = {field.name for field in dataclasses.fields(kind)}  # type: ignore[arg-type]
        return kind(**{name: value for name, value in vars(self).items() if name in names} | others)


class LengthFlag(Flags):
    """Flag of commands that ask a model about text.

    Attributes:
      max_seq_length: Maximum number of tokens of a sequence; longer texts are truncated, with one warning.
        Unset: the length that the model was trained with, or the maximum of model and tokenizer (ask: at most
        384, in windows).
    """

    max_seq_length: int | None = None


class LowerCaseFlag(Flags):
    """Flag of commands that tokenise text.

    Attributes:
      do_lower_case: Lower-case the text and strip accents, for uncased vocabularies. Unset: as the
        tokenizer_config.json or tokenizer.json next to the vocabulary says, else true.
    """

    do_lower_case: bool | None = None


class EngineFlags(Flags):
    """Flags of jobs with tasks.

    Attributes:
      num_workers: Number of concurrent tasks; the output does not depend on it. Unset: one per core, fewer
        for small jobs; with --engine=ray one per CPU of the cluster.
      engine: local: run tasks in processes of this machine. ray: on the nodes of a Ray cluster. The output is
        the same.
      ray_address: With --engine=ray: address of an existing cluster, HOST:PORT or ray://HOST:PORT. Unset:
        start a cluster on this machine, and stop it with the job.
    """

    num_workers: int | None = None
    engine: Literal["local", "ray"] = "local"
    ray_address: str | None = None


class TextFlags(Flags):
    """Flags of commands that read text.

    Attributes:
      input_files: Text: comma-separated files, globs or folders, on this machine or in a store (s3://, gs://,
        hdfs://), also compressed as .gz .bz2 .xz .zst. Formats: lines with blank lines between documents,
        WikiExtractor output, JSON lines or arrays, Parquet, WikiText, MediaWiki dumps.
      text_field: For JSON and Parquet: field, or column, with the text of a document.
    """

    input_files: str
    text_field: str = "text"


def configure_logging() -> None:
    """Enables the log lines of a job: its resources, its engine, and the work that it resumes."""
    from official.reporting import progress  # late: who only asks for help does not wait for it

    progress.configure_logging()


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


def read_list(text: str, flag: str, allowed: tuple[str, ...]) -> list[str]:
    """Returns the values of a comma-separated list. Raises ConfigError where one is not allowed."""
    for value in text.split(","):
        check_one_of(f"--{flag}={text}: {value!r}", value, allowed)
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


def given_values(words: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yields (name, value) of --name=value and --name value among the words of a command."""
    for word, following in zip(words, [*words[1:], ""]):
        name, equals, value = word.lstrip("-").partition("=")
        if word.startswith("-"):
            yield name.replace("-", "_"), value if equals else following


def as_typed() -> str:
    """Returns this process's command line as typed in the repository."""
    first = program().split()
    if program().endswith(".py"):
        folder = os.path.basename(os.path.dirname(os.path.abspath(sys.argv[0])))
        first = ["python", f"{folder if folder == 'benchmarks' else 'scripts'}/{program()}"]
    return shlex.join([*first, *sys.argv[1:]])


def run(main: Callable[[], int | None]) -> NoReturn:
    """Calls `main` and exits with its code; bad input ends with one line on stderr and code 2, a signal with
    129, 130 or 143."""
    quiet.quieten_libraries()
    atexit.register(gc.freeze)  # no garbage collection at exit: the process frees its memory anyway
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


# -----------------------------------------------------------------------------------------------------------
# Spellings of flags in other programs, translated to ours before parsing
#
# Only the command line accepts them: configurations, shipped flagfiles and saved runs have our names only.
# Options that are not just another name of a setting, such as --micro-batch-size, are in
# `official.graphcore.configurations`.


# Another name -> ours. Names are compared with underscores: hyphens are the spelling of Graphcore's commands.
_OTHERS = {
    "do_eval": "do_evaluation",
    "do_train": "squad_do_training",
    "generated_data": "generated_dataset",
    "init_checkpoint": "checkpoint_input_dir onnx_checkpoint pretrained_checkpoint pretrained_ckpt_path"
    " tf_checkpoint",
    "learning_rate": "base_learning_rate",
    "loss_scale": "loss_scaling loss_scaling_by_step",
    "max_predictions_per_seq": "mask_tokens",
    "max_seq_length": "seq_length sequence_length",
    "model_dir": "checkpoint_dir checkpoint_output_dir output_dir save_ckpt_path save_path",
    "seed": "random_seed",
    "steps_per_loop": "steps_per_log steps_per_logs",
    "synthetic_input": "synthetic_data",
    "wandb": "enable_wandb",
}
NAMES: dict[str, str] = {other: ours for ours, others in _OTHERS.items() for other in others.split()}
LISTS = ("input_files", "eval_files", "train_file", "predict_file")  # flags with commas between values
Options = list[tuple[str, str | list[str] | None]]


def normalized(arguments: list[str], names: Mapping[str, str] = NAMES) -> list[str]:
    """Returns arguments in our spelling: --wandb-name=x is --wandb_name=x. What follows -- stays as it is.

    Args:
      arguments: as typed.
      names: {another name, with underscores: ours}.
    """
    ours, rest = before_dashes(arguments)
    for place, argument in enumerate(ours):
        if argument.startswith("--"):
            name, equals, value = argument[2:].partition("=")
            name = name.replace("-", "_")
            ours[place] = f"--{names.get(name, name)}{equals}{value}"
    return ours + rest


def before_dashes(words: list[str]) -> tuple[list[str], list[str]]:
    """Returns the words before the first --, and those from it on."""
    end = words.index("--") if "--" in words else len(words)
    return words[:end], words[end:]


def joined(arguments: list[str], truths: Collection[str], lists: Collection[str]) -> list[str]:
    """Returns normalised arguments, with separate words joined to their flag: `--wandb True` becomes
    --wandb=true, and `--input_files a b`, as from a shell's glob, --input_files=a,b.

    Args:
      arguments: as `normalized` returns them.
      truths: names of the flags that are true or false.
      lists: names of those that take a comma-separated list.

    What follows -- stays as it is.
    """
    result: list[str] = []
    left, rest = before_dashes(arguments)
    while left:
        argument = left.pop(0)
        name, equals, _ = argument.removeprefix("--").partition("=")
        words = [] if equals or not argument.startswith("--") else _values(left)
        if name in truths:
            words = [word.lower() for word in words[:1] if word.lower() in ("true", "false")]
        is_joined = words and (name in truths or name in lists)
        # The word after a flag with one value is no flag, whatever it looks like.
        words = words if is_joined else words[:1]
        result += [f"--{name}={','.join(words)}"] if is_joined else [argument, *words]
        del left[: len(words)]
    return result + rest


def split(arguments: list[str], theirs: Collection[str]) -> tuple[list[str], Options]:
    """Splits normalised arguments into our flags and the options of other programs.

    Args:
      arguments: as `joined` returns them.
      theirs: names of options that are not flags of ours.

    Returns:
      The remaining arguments, and (name, value) of each option: its value, None without one, or a list of
      several.
    """
    left: list[str] = []
    found: Options = []
    words, rest = before_dashes(arguments)
    while words:
        argument = words.pop(0)
        name, equals, value = argument.removeprefix("--").partition("=")
        if not argument.startswith("--") or name not in theirs:
            left.append(argument)
            continue
        values = [value] if equals else _values(words)
        del words[: 0 if equals else len(values)]
        found.append((name, values if len(values) > 1 else values[0] if values else None))
    return left + rest, found


def _values(words: list[str]) -> list[str]:
    """Returns the words before the next flag."""
    return list(itertools.takewhile(lambda word: not word.startswith("--") and word != "-h", words))
