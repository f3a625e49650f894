"""The command line: flags to configuration. Nothing below this module reads a flag."""

import os

from absl import flags

from official import config as config_lib
from official.config import ConfigError
from official.io.errors import check_arguments

_CONFIGS = os.path.join(
    os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))), "configs"
)
_DEFINE = {
    bool: flags.DEFINE_bool,
    int: flags.DEFINE_integer,
    float: flags.DEFINE_float,
    str: flags.DEFINE_string,
}


class _Optional:
    """Of a parser for a setting that may be unset: an empty value unsets what a flagfile has set."""

    def parse(self, argument):
        return None if argument == "" else super().parse(argument)


class _OptionalInteger(_Optional, flags.IntegerParser):
    pass


class _OptionalFloat(_Optional, flags.FloatParser):
    pass


class _OptionalBoolean(_Optional, flags.BooleanParser):
    pass


_OPTIONAL = {int: _OptionalInteger, float: _OptionalFloat}


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
        rest = values(["train.py", *map(_with_underscores, values.read_flags_from_files(argv))])[1:]
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
    given = {name: values[name].value for name in config_lib.FIELDS if values[name].present}
    return config_lib.build_config([*layers, ("command line", given)])


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


def _with_underscores(argument: str) -> str:
    """Returns --wandb-name=x as --wandb_name=x: hyphens are the spelling of Graphcore's command lines."""
    name, equals, value = argument.partition("=")
    return name[:2] + name[2:].replace("-", "_") + equals + value if name.startswith("--") else argument


def read_config(name: str) -> dict:
    """Returns the settings of a JSON file such as a run's config.json, or of configs/NAME.flags."""
    if name.endswith(".json") or os.path.exists(name):
        return config_lib.read_json(name, "config")
    path = os.path.join(_CONFIGS, f"{name}.flags")
    if not os.path.exists(path):
        known = sorted(
            file.removesuffix(".flags") for file in os.listdir(_CONFIGS) if file.endswith(".flags")
        )
        raise ConfigError(
            f"--config={name} is neither a file nor one of"
            f" {', '.join(known)}{config_lib.suggest(name, known)}."
        )
    values = _define()
    values(["train.py", f"--flagfile={path}"])
    return {field: values[field].value for field in config_lib.FIELDS if values[field].present}


def help_text() -> str:
    """Returns every flag with its type, default and meaning, in sections."""
    lines = [
        "Trains BERT.  python train.py --flagfile=configs/NAME.flags [--name=value ...]",
        "",
        "  --flagfile=FILE  read flags from a file; later flags win, and --name= unsets what may be unset",
        "  --config=FILE.json|NAME  settings underneath the flags",
    ]
    for section in config_lib.SECTIONS:
        lines += ["", section.title]
        for field in section.fields:
            kind = "|".join(field.choices) or field.type.__name__
            default = (
                "unset"
                if field.default is None
                else str(field.default).lower()
                if field.type is bool
                else field.default
            )
            lines += [f"  --{field.name}  ({kind}; {default})", f"      {field.help}"]
    return "\n".join(lines)
