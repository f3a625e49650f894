"""The command line: flags to configuration. Nothing below this module reads a flag."""

import contextlib
import functools
from collections.abc import Mapping
from typing import Any, NamedTuple

from absl import flags

from official import config as config_lib
from official.cli import command_line, configs, foreign
from official.config import ConfigError, process_rank
from official.io import files
from official.io.errors import check_arguments
from official.io.files import expanded

_FIELD, _SIZE = "config.", "model."  # of --config.NAME, and of the sizes among these names
_PROGRAM = "train.py"  # absl wants a name; no message has it
_BYTE_ORDER_MARK = "\ufeff"


@functools.cache
def _optional(parser: type[flags.ArgumentParser]) -> flags.ArgumentParser:
    """Returns a parser for a setting that may be unset: an empty value unsets what a flagfile has set."""

    class Optional(parser):  # type: ignore[misc, valid-type]
        def parse(self, argument: Any) -> Any:
            return None if argument == "" else super().parse(argument)

    return Optional()


# Flags whose values other parsers take as words of their own: `--flag True`, `--flag FILE FILE`.
_TRUTHS = {name for name, field in config_lib.FIELDS.items() if field.type is bool}
_PARSERS: dict[type, type[flags.ArgumentParser]] = {
    bool: flags.BooleanParser,
    int: flags.IntegerParser,
    float: flags.FloatParser,
    str: flags.ArgumentParser,
}


class HelpRequested(Exception):
    """Raised for --help; carries the text to print."""


class Reading(NamedTuple):
    """A command line that has been read.

    Attributes:
      config: the frozen configuration.
      told: lines for people: what a configuration of other people's became.
    """

    config: config_lib.Config
    told: list[str]


def parse(argv: list[str]) -> config_lib.Config:
    """Returns the frozen configuration of a command line. See `read`."""
    return read(argv).config


def read(argv: list[str], environment: Mapping[str, str] | None = None) -> Reading:
    """Reads a command line.

    Precedence: defaults < --config < flags; of flags and flagfiles, later ones win. --config.NAME=VALUE sets
    a field of what --config names. Options of Graphcore's
    commands that are no flags of ours stand above --config and flagfiles, and below the flags of the command
    line itself.

    Args:
      argv: the arguments, without the program's name.
      environment: of a process that may train together with others; None: it is by itself.

    Raises:
      ConfigError: for an unknown flag, a bad value or settings that exclude each other.
      HelpRequested: for --help.
    """
    check_arguments(argv)
    values = _define()
    rest, options, fields = _read_flags(argv, values)
    if values.help:
        raise HelpRequested(help_text())
    if rest:
        meant = f" (did you mean --flagfile={rest[0]}?)" if rest[0].endswith(".flags") else ""
        raise ConfigError(f"Unexpected argument {rest[0]!r}{meant}. Settings are given as --name=value.")
    source = foreign.find(values.config) if values.config else None
    settings, family = _read_source(source, _changes(fields)) if source else ({}, None)
    if fields and (family or not source):
        name, text = next(iter(fields.items()))
        why = f"{source.path} is another program's" if source else "there is no --config"
        raise ConfigError(
            f"--{_FIELD}{name}={text} sets a field of a configuration of ours, and {why}. Give --{name}."
        )
    given, told = foreign.layers_of(source, settings, family, options, _given(values), _typed(argv))
    if environment is not None:
        own_folder, told_of_folder = process_rank.with_folder_of_rank(given, environment)
        told = [*told, *process_rank.keeps_to_itself(given, environment), *told_of_folder]
        given = [*process_rank.chosen_by_place(given, environment), *given, *own_folder]
    foreign.check_variables(given)
    return Reading(config_lib.build_config(given), told)


def _read_flags(
    argv: list[str], values: flags.FlagValues
) -> tuple[list[str], command_line.Options, dict[str, str]]:
    """Sets the flags of a command line. Returns its words that belong to none, options of theirs, and {name:
    text} of --config.NAME=TEXT."""
    try:
        truths = _TRUTHS | {f"{_FIELD}{name}" for name in _TRUTHS} | {"help"}
        arguments = command_line.joined(_expanded(argv, values), truths, command_line.LISTS)
        arguments, fields = _split_fields(arguments)
        arguments, options = command_line.split(arguments, foreign.options_of_theirs(arguments, set(values)))
        return values([_PROGRAM, *arguments])[1:], options, fields
    except flags.UnrecognizedFlagError as error:
        if error.flagname in config_lib.REMOVED:
            _, now = config_lib.REMOVED[error.flagname]
            raise ConfigError(f"--{error.flagname} is of earlier versions. Now {now}.") from None
        known = [*values, *foreign.options_of_theirs()]
        raise ConfigError(
            f"Unknown flag --{error.flagname}{config_lib.suggest(error.flagname, known)}."
        ) from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"A flagfile is not UTF-8 text ({error.reason} at byte {error.start}).") from None
    except flags.Error as error:
        raise ConfigError(_in_plain_words(error)) from None


def _split_fields(arguments: list[str]) -> tuple[list[str], dict[str, str]]:
    """Takes --config.NAME=TEXT, and --config.NAME TEXT, out of normalised arguments. Returns the others, and
    {name: text}; the last one of a name counts."""
    left: list[str] = []
    fields: dict[str, str] = {}
    words = iter(arguments)
    for word in words:
        if word == "--":
            return [*left, word, *words], fields
        name, equals, text = word.removeprefix("--").partition("=")
        if not word.startswith("--") or not name.startswith(_FIELD):
            left.append(word)
            continue
        name = name.removeprefix(_FIELD)
        if not equals:
            text = "true" if name in _TRUTHS else next(words, "--")
            if text.startswith("--"):
                raise ConfigError(f"Missing value for flag --{_FIELD}{name}.")
        fields[name] = text
    return left, fields


def _changes(fields: Mapping[str, str]) -> dict[str, Any]:
    """Returns {name: value} of the fields of --config.NAME=TEXT, each read as the flag of its name is. Raises
    ConfigError."""
    found: dict[str, Any] = {}
    for name, text in fields.items():
        if name.startswith(_SIZE):  # as JSON would have it: a number where it is one
            found[name] = text
            for kind in (float, int):
                with contextlib.suppress(ValueError):
                    found[name] = kind(text)
            continue
        if name not in config_lib.FIELDS:
            meant = config_lib.suggest(name, config_lib.FIELDS).replace("mean ", f"mean --{_FIELD}")
            raise ConfigError(f"Unknown setting --{_FIELD}{name}{meant}.")
        values = _define()
        try:
            values([_PROGRAM, f"--{name}={text}"])
        except flags.Error as error:
            raise ConfigError(_in_plain_words(error).replace("--", f"--{_FIELD}", 1)) from None
        found |= _given(values)
    return found


_EXPECTED = {bool: "true or false", int: "an integer", float: "a number"}


def _in_plain_words(error: flags.Error) -> str:
    """Returns one line for what absl finds wrong with a value or a flagfile; its own lines hold the words of
    Python's exceptions."""
    cause = error.__context__
    if isinstance(error, flags.CantOpenFlagFileError) and isinstance(cause, OSError):
        return f"--flagfile={cause.filename}: {cause.strerror}."
    name, _, value = str(error).removesuffix(f": {cause}").removeprefix("flag --").partition("=")
    if isinstance(error, flags.IllegalFlagValueError):
        kind = config_lib.FIELDS[name].type if name in config_lib.FIELDS else bool  # --help
        return f"--{name}={value[:100]}, expected {_EXPECTED[kind]}."
    return f"{error}.".replace("\n", " ")


def _define() -> flags.FlagValues:
    """Defines one flag per field in a set of its own, so that libraries' flags neither clash nor show."""
    values = flags.FlagValues()
    for field in config_lib.FIELDS.values():
        parser = _PARSERS[field.type]()
        if field.default is None and field.type is not str:
            parser = _optional(_PARSERS[field.type])
        if field.type is bool:
            flag = flags.BooleanFlag(field.name, field.default, field.help)  # --name and --noname, too
            flag.parser = parser
            flags.DEFINE_flag(flag, flag_values=values)
        else:
            flags.DEFINE(parser, field.name, field.default, field.help, flag_values=values)
    flags.DEFINE_string(
        "config",
        None,
        "Settings underneath the flags: a JSON file of ours or Graphcore's, FILE.yml:NAME, FILE.py:ARGUMENT, "
        "or a name in configs/.",
        flag_values=values,
    )
    flags.DEFINE_bool("help", False, "Show every flag.", short_name="h", flag_values=values)
    return values


def _expanded(arguments: list[str], values: flags.FlagValues) -> list[str]:
    """Returns arguments with the flags of flagfiles in their places, in our spelling."""
    found = [_with_shipped_file(argument) for argument in arguments]
    found = values.read_flags_from_files(found)
    while any(argument.startswith(_BYTE_ORDER_MARK) for argument in found):  # the first line of a flagfile
        plain = [argument.removeprefix(_BYTE_ORDER_MARK) for argument in found]
        is_flag = [new == old or new.startswith("-") for new, old in zip(plain, found)]  # and no comment
        found = values.read_flags_from_files([line for line, kept in zip(plain, is_flag) if kept])
    return command_line.normalized(found)


def _with_shipped_file(argument: str) -> str:
    """Returns --flagfile=configs/X with the path of the shipped file where no such file exists here. Raises
    ConfigError for an unreadable file."""
    name, equals, path = argument.partition("=")
    if not equals or name.lstrip("-") != "flagfile":
        return argument
    found = configs.find(expanded(path))
    try:
        with files.open_binary(found):
            return f"{name}={found}"
    except OSError as error:
        raise ConfigError(f"--flagfile={path}: {error.strerror or error}.") from None


def _typed(arguments: list[str]) -> set[str]:
    """Returns the names of the settings given on the command line itself, without those of its flagfiles."""
    words = [argument.lstrip("-").partition("=")[0] for argument in command_line.normalized(arguments)]
    return {name for word in words for name in (word, word.removeprefix("no")) if name in config_lib.FIELDS}


def _given(values: flags.FlagValues) -> dict:
    """Returns {setting: value} of the flags that were given, with paths below configs/ replaced by those of
    the shipped files."""
    return _with_shipped_files(
        {name: values[name].value for name in config_lib.FIELDS if values[name].present}
    )


def _with_shipped_files(given: dict) -> dict:
    return {
        name: configs.find(expanded(value)) if isinstance(value, str) else value
        for name, value in given.items()
    }


def read_config(name: str) -> dict:
    """Returns the settings of a JSON file such as a run's config.json, or of configs/NAME.flags."""
    source = foreign.find(name)
    values, family = _read_source(source)
    return foreign.layers_of(source, values, family, [], {})[0][0][1] if family else values


def _read_source(
    source: foreign.Source, changes: Mapping[str, Any] | None = None
) -> tuple[dict[str, Any], Any]:
    """Returns (keys and values of a --config file with changes of its fields, the family of Graphcore's
    programs whose keys they are, None for ours)."""
    changes = changes or {}
    if source.path.endswith(configs.PYTHON_ENDING):
        return _with_shipped_files(configs.read_python(source.path, source.entry, changes)), None
    family = None
    if source.path.endswith(".flags"):
        values = _define()
        values([_PROGRAM, *_expanded([f"--flagfile={source.path}"], values)])
        settings = _given(values)
    else:
        settings, family = foreign.read_theirs(source)
    if not family:
        sizes = {name.removeprefix(_SIZE): value for name, value in changes.items() if name.startswith(_SIZE)}
        if sizes and not isinstance(settings.get("model"), dict):
            raise ConfigError(
                f"--{_FIELD}{_SIZE}{next(iter(sizes))}: --config={source.path} has no sizes of a model. Give"
                " --bert_config_file."
            )
        settings = settings | {name: value for name, value in changes.items() if not name.startswith(_SIZE)}
        settings |= {"model": settings["model"] | sizes} if sizes else {}
    return settings, family


def help_text() -> str:
    """Returns every flag with its type, default and meaning, in sections."""
    program = " ".join(command_line.words([]))
    lines = [
        f"Trains BERT.  {program} --flagfile=configs/NAME.flags [--name=value ...]",
        "",
        "  --flagfile=FILE  read flags from a file; later flags win, and --name= unsets what may be unset",
        "  --config=FILE|NAME  settings underneath the flags: ours, or one of Graphcore's programs,",
        "      whose options are understood, too (docs/coming_from.md)",
        "  --config=FILE.py[:ARGUMENT]  those of its get_config(ARGUMENT), an ml_collections.ConfigDict",
        "  --config.NAME=VALUE  sets a field of it",
    ]
    for section in config_lib.SECTIONS:
        lines += ["", section.title]
        for field in section.fields:
            kind = "|".join(field.choices) or field.type.__name__
            lines += [f"  --{field.name}  ({kind}; {_shown(field.default)})", f"      {field.help}"]
    return "\n".join(lines)


def _shown(default: object) -> str:
    if default is None:
        return "unset"
    return str(default).lower() if isinstance(default, bool) else str(default)
