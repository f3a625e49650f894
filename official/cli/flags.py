"""The command line of training: flags to configuration. Nothing below this module reads a flag."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from official import config as config_lib
from official.cli import command_line, configs, foreign
from official.config import ConfigError, process_rank
from official.io import files
from official.io.errors import check_arguments, suggest

_FIELD, _SIZE = "config.", "model."  # of --config.NAME, and of the sizes among these names
_TYPES = {name: field.type for name, field in config_lib.FIELDS.items()}
_TYPES |= {"config": str, "help": bool, "h": bool}
_TRUTHS = {name for name, kind in _TYPES.items() if kind is bool}
_BOOLEANS = {"true": True, "t": True, "1": True, "false": False, "f": False, "0": False}
_EXPECTED = {bool: "true or false", int: "an integer", float: "a number"}


class HelpRequested(Exception):
    """Raised for --help; carries the text to print."""


class Reading(NamedTuple):
    """A command line that has been read.

    Attributes:
      config: the frozen configuration.
      told: lines for the user, such as how the keys of Graphcore's configuration were translated.
    """

    config: config_lib.Config
    told: list[str]


def parse(argv: list[str]) -> config_lib.Config:
    """Returns the frozen configuration of a command line. See `read`."""
    return read(argv).config


def read(argv: list[str], environment: Mapping[str, str] | None = None) -> Reading:
    """Reads a command line.

    Precedence: defaults < --config < flags; of flags and flagfiles, later ones win. --config.NAME=VALUE sets
    a field of a configuration in Python. Options of Graphcore's commands that are not flags of ours override
    --config and flagfiles; flags typed on the command line override these options.

    Args:
      argv: the arguments, without the program's name.
      environment: environment variables, for the rank and addresses of a multi-process run; None: ignored.

    Raises:
      ConfigError: for an unknown flag, a bad value or settings that exclude each other.
      HelpRequested: for --help.
    """
    check_arguments(argv)
    flags, fields, options = _read_flags(argv)
    if flags.pop("help", False) or flags.pop("h", False):
        raise HelpRequested(help_text())
    name = flags.pop("config", None)
    source = foreign.find(name) if name else None
    if fields and not (source and source.path.endswith(configs.PYTHON_ENDING)):
        name, value = next(iter(fields.items()))
        why = f"{source.path} is not one" if source else "--config is not set"
        flag = "bert_config_file" if name.startswith(_SIZE) else name
        raise ConfigError(
            f"--{_FIELD}{name}={value} sets a field of a configuration in Python, but {why}. Give --{flag}."
        )
    settings, family = _read_source(source, fields) if source else ({}, None)
    given, told = foreign.layers_of(source, settings, family, options, flags, _typed(argv))
    if environment is not None:
        given, told_of_place = process_rank.placed(given, environment)
        told = [*told, *told_of_place]
    foreign.check_variables(given)
    return Reading(config_lib.build_config(given), told)


def _read_flags(arguments: list[str]) -> tuple[dict[str, Any], dict[str, Any], command_line.Options]:
    """Returns {flag: value}, {name: value} of --config.NAME, and the options of Graphcore's commands."""
    words = command_line.normalized(list(_expanded(arguments)))
    truths = _TRUTHS | {f"{_FIELD}{name}" for name in _TRUTHS}
    words = command_line.joined(words, truths, command_line.LISTS)
    words, options = command_line.split(words, foreign.options_of_theirs(words, _TYPES))
    return *_values(words), options


def _expanded(arguments: Iterable[str], inside: tuple[str, ...] = ()) -> Iterator[str]:
    """Yields arguments, with each --flagfile replaced by the file's lines; `inside` are the enclosing
    files."""
    words = iter(arguments)
    for word in words:
        name, equals, path = word.partition("=")
        if name not in ("--flagfile", "-flagfile"):
            yield word
            if word == "--":
                yield from words
            continue
        path = path if equals else next(words, "")
        found = configs.find(files.expanded(path))
        lines = map(str.strip, files.read_text(found, f"--flagfile={path}").split("\n"))
        if found not in inside:
            kept = (line for line in lines if line and not line.startswith(("#", "//")))
            yield from _expanded(kept, (*inside, found))


def _values(arguments: Iterable[str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns {flag: value} of arguments, and {name: value} of --config.NAME; the last value of a name wins.
    Raises ConfigError."""
    flags: dict[str, Any] = {}
    fields: dict[str, Any] = {}
    rest: list[str] = []
    words = iter(arguments)
    for word in words:
        name, equals, text = word.lstrip("-").partition("=")
        if not name or not word.startswith("-"):
            rest += words if word == "--" else [word]
            continue
        is_field = name.startswith(_FIELD)
        name = name.removeprefix(_FIELD)
        if name not in _TYPES and name.removeprefix("no") in _TRUTHS and not equals and not is_field:
            name, equals, text = name.removeprefix("no"), "=", "false"
        elif name in _TRUTHS and not equals:
            equals, text = "=", "true"
        if not is_field or not name.startswith(_SIZE):
            _check_known(name, is_field)
        shown = f"--{_FIELD}{name}" if is_field else f"--{name}"
        text = text if equals else next(words, "--")
        if not equals and text.startswith("--"):
            raise ConfigError(f"Missing value for flag {shown}.")
        found = fields if is_field else flags
        found |= configs.over(found, {name: _read_value(name, text, shown)})
    if rest and not (flags.get("help") or flags.get("h")):
        meant = f" (did you mean --flagfile={rest[0]}?)" if rest[0].endswith(".flags") else ""
        raise ConfigError(f"Unexpected argument {rest[0]!r}{meant}. Settings are given as --name=value.")
    return flags, fields


def _check_known(name: str, is_field: bool) -> None:
    if is_field and name not in config_lib.FIELDS:
        meant = suggest(name, config_lib.FIELDS).replace("mean ", f"mean --{_FIELD}")
        raise ConfigError(f"Unknown setting --{_FIELD}{name}{meant}.")
    removed = next((each for each in (name, name.removeprefix("no")) if each in config_lib.REMOVED), None)
    if not is_field and name not in _TYPES and removed:
        raise ConfigError(f"--{name} was removed. {config_lib.REMOVED[removed][1]}.")
    if name not in _TYPES:
        known = [*_TYPES, *foreign.options_of_theirs()]
        raise ConfigError(f"Unknown flag --{name}{suggest(name, known)}.")


def _read_value(name: str, text: str, shown: str) -> Any:
    """Returns the value of a flag; an empty text unsets an optional flag that a flagfile has set."""
    if name.startswith(_SIZE):  # parsed as JSON: a number if possible
        for number in (int, float):
            with contextlib.suppress(ValueError):
                return number(text)
        return text
    field, kind = config_lib.FIELDS.get(name), _TYPES[name]
    if kind is str:
        return _shipped(text) if field else text
    if text == "" and field and field.default is None:
        return None
    try:
        return _BOOLEANS[text.lower()] if kind is bool else kind(text)
    except (KeyError, ValueError):
        raise ConfigError(f"{shown}={text[:100]}, expected {_EXPECTED[kind]}.") from None


def _shipped(value: Any) -> Any:
    """Returns a value; if it is a missing path below configs/, the path of the shipped file."""
    return configs.find(files.expanded(value)) if isinstance(value, str) else value


def _typed(arguments: list[str]) -> dict[str, str]:
    """Returns {setting: text} of the command line itself, without those of its flagfiles."""
    typed: dict[str, str] = {}
    for word, text in command_line.given_values(command_line.normalized(arguments)):
        for name in {word, word.removeprefix("no")} & config_lib.FIELDS.keys():
            typed = configs.over(typed, {name: text})
    return typed


def read_config(name: str) -> dict:
    """Returns the settings of a JSON file such as a run's config.json, or of configs/NAME.flags."""
    source = foreign.find(name)
    values, family = _read_source(source, {})
    return foreign.layers_of(source, values, family, [], {}, {})[0][0][1] if family else values


def _read_source(source: foreign.Source, changes: Mapping[str, Any]) -> tuple[dict[str, Any], Any]:
    """Returns (keys and values of a --config file, of one in Python with changes of its fields; the family of
    Graphcore's programs whose keys they are, None for ours)."""
    if source.path.endswith(configs.PYTHON_ENDING):
        values = configs.read_python(source.path, source.entry, changes)
        return {name: _shipped(value) for name, value in values.items()}, None
    if source.path.endswith(".flags"):
        settings, *more = _read_flags([f"--flagfile={source.path}"])
        if any(more) or settings.keys() - config_lib.FIELDS:
            raise ConfigError(f"--config={source.path} has more than settings. Give it as --flagfile.")
        return settings, None
    return foreign.read_theirs(source)


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
            default = "unset" if field.default is None else field.default
            shown = str(default).lower() if isinstance(default, bool) else default
            lines += [f"  --{field.name}  ({kind}; {shown})", f"      {field.help}"]
    return "\n".join(lines)
