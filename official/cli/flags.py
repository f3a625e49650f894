"""The command line: flags to configuration. Nothing below this module reads a flag."""

import os
from typing import Any

from absl import flags

from official import config as config_lib
from official.cli import aliases, command_line, configs
from official.config import ConfigError
from official.io.errors import check_arguments

_PROGRAM = "train.py"  # absl wants a name; no message has it
_DEFINE: dict[type, Any] = {
    bool: flags.DEFINE_bool,
    int: flags.DEFINE_integer,
    float: flags.DEFINE_float,
    str: flags.DEFINE_string,
}


class _Optional:
    """Of a parser for a setting that may be unset: an empty value unsets what a flagfile has set."""

    def parse(self, argument: Any) -> Any:
        return None if argument == "" else super().parse(argument)  # type: ignore[misc]


class _OptionalInteger(_Optional, flags.IntegerParser):
    pass


class _OptionalFloat(_Optional, flags.FloatParser):
    pass


class _OptionalBoolean(_Optional, flags.BooleanParser):
    pass


_OPTIONAL: dict[type, type[flags.ArgumentParser]] = {int: _OptionalInteger, float: _OptionalFloat}


class HelpRequested(Exception):
    """Raised for --help; carries the text to print."""


def parse(argv: list[str]):
    """Returns the frozen configuration of a command line.

    Precedence: defaults < --config < flags; of flags and flagfiles, later ones win.

    Args:
      argv: the arguments, without the program's name.

    Raises:
      ConfigError: for an unknown flag, a bad value or settings that exclude each other.
      HelpRequested: for --help.
    """
    check_arguments(argv)
    values = _define()
    try:
        rest = values([_PROGRAM, *_expanded(argv, values)])[1:]
    except flags.UnrecognizedFlagError as error:
        raise ConfigError(
            f"Unknown flag --{error.flagname}{config_lib.suggest(error.flagname, values)}."
        ) from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"A flagfile is not UTF-8 text ({error.reason} at byte {error.start}).") from None
    except flags.Error as error:
        raise ConfigError(_in_plain_words(error)) from None
    if values.help:
        raise HelpRequested(help_text())
    if rest:
        meant = f" (did you mean --flagfile={rest[0]}?)" if rest[0].endswith(".flags") else ""
        raise ConfigError(f"Unexpected argument {rest[0]!r}{meant}. Settings are given as --name=value.")
    layers = [(f"--config={values.config}", read_config(values.config))] if values.config else []
    return config_lib.build_config([*layers, ("command line", _given(values))])


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
        if field.default is None and field.type in _OPTIONAL:
            flags.DEFINE(_OPTIONAL[field.type](), field.name, None, field.help, flag_values=values)
        elif field.default is None and field.type is bool:
            flag = flags.BooleanFlag(field.name, None, field.help)  # --name and --noname, too
            flag.parser = _OptionalBoolean()
            flags.DEFINE_flag(flag, flag_values=values)
        else:
            _DEFINE[field.type](field.name, field.default, field.help, flag_values=values)
    flags.DEFINE_string(
        "config",
        None,
        "Settings underneath the flags: a JSON file, or a name in configs/.",
        flag_values=values,
    )
    flags.DEFINE_bool("help", False, "Show every flag.", short_name="h", flag_values=values)
    return values


def _expanded(arguments: list[str], values: flags.FlagValues) -> list[str]:
    """Returns arguments with the flags of flagfiles in their places, in our spelling."""
    found = [_with_shipped_file(argument) for argument in arguments]
    return aliases.normalized(values.read_flags_from_files(found))


def _with_shipped_file(argument: str) -> str:
    """Returns --flagfile=configs/X with the shipped file where there is none of that name here."""
    name, equals, path = argument.partition("=")
    return f"{name}={configs.find(path)}" if equals and name.lstrip("-") == "flagfile" else argument


def _given(values: flags.FlagValues) -> dict:
    """Returns {setting: value} of the flags that were given; what is under configs/ is found where it is
    shipped."""
    given = {name: values[name].value for name in config_lib.FIELDS if values[name].present}
    return {name: configs.find(value) if isinstance(value, str) else value for name, value in given.items()}


def read_config(name: str) -> dict:
    """Returns the settings of a JSON file such as a run's config.json, or of configs/NAME.flags."""
    path = configs.find(name)
    if name.endswith(".json") or os.path.isfile(path):
        return config_lib.read_json(path, "config")
    values = _define()
    values([_PROGRAM, *_expanded([f"--flagfile={configs.locate(name)}"], values)])
    return _given(values)


def help_text() -> str:
    """Returns every flag with its type, default and meaning, in sections."""
    program = " ".join(command_line.words([]))
    lines = [
        f"Trains BERT.  {program} --flagfile=configs/NAME.flags [--name=value ...]",
        "",
        "  --flagfile=FILE  read flags from a file; later flags win, and --name= unsets what may be unset",
        "  --config=FILE.json|NAME  settings underneath the flags",
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
