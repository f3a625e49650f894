"""Configurations of --config: the shipped ones, in the checkout or the wheel, and Python files."""

from __future__ import annotations

import functools
import glob
import os
import sys
import traceback
import types
from collections.abc import Mapping
from typing import Any

from official.io import files
from official.io.errors import ConfigError, suggest

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_ENDING, _FOLDER = ".flags", "configs"
_THEIRS, _TESTS = "graphcore", "tests"  # folders in it: Graphcore's, and in theirs those of their tests
# Folders of theirs in the order in which a bare name is looked for, first that of the Kubernetes tutorial.
FAMILIES = ("pytorch", "tf1", "tf2", "popart", "packed")


def folder() -> str:
    """Returns the folder of the shipped configurations."""
    installed = os.path.join(_PACKAGE, _FOLDER)
    return installed if os.path.isdir(installed) else os.path.join(os.path.dirname(_PACKAGE), _FOLDER)


def _below(*parts: str) -> list[str]:
    """Returns the shipped files of a pattern, relative to their folder, sorted."""
    return sorted(glob.glob(os.path.join(*parts), root_dir=folder(), recursive=True), key=os.path.split)


def names() -> dict[str, str]:
    """Returns {name: path} of our shipped configurations: `quickstart` is configs/quickstart.flags."""
    found = sorted(path.removesuffix(_ENDING) for path in _below("**", f"*{_ENDING}"))
    return {name: os.path.join(folder(), name + _ENDING) for name in found}


@functools.cache
def theirs() -> dict[str, str]:
    """Returns {name: path} of Graphcore's shipped configurations: `graphcore/tf1/squad_base`. The order of
    the families decides which one an ambiguous name means."""
    return {
        os.path.splitext(path)[0]: os.path.join(folder(), path)
        for family in FAMILIES
        for path in _below(_THEIRS, family, "**", "*.*")
    }


def find_theirs(name: str) -> list[str]:
    """Returns the names of Graphcore's shipped configurations that match a name or a path of theirs, the one
    to use first.

    Args:
      name: `squad_base`, `graphcore/tf1/squad_base`, `configs/squad_base.json`, `configs/mk2/NAME.json`.
    """
    name = os.path.normpath(name)
    ending = os.path.splitext(name)[1] if name.endswith((".json", ".yml")) else ""
    plain = name.removesuffix(ending)
    is_path = plain.startswith(_FOLDER + os.sep)
    plain = plain.removeprefix(_FOLDER + os.sep)
    if plain in theirs():
        return [plain]
    ranked: list[tuple[int, str]] = []
    for each in theirs():
        rest = each.split(os.sep, 2)[2]
        meanings = (rest, None if is_path else os.path.basename(rest), rest.removeprefix(_TESTS + os.sep))
        if plain in meanings and theirs()[each].endswith(ending):
            ranked.append((meanings.index(plain), each))
    return [each for _, each in sorted(ranked, key=lambda pair: pair[0])]


def find(path: str) -> str:
    """Returns a path; for a missing file below configs/, the path of the shipped file."""
    twin = os.path.join(os.path.dirname(folder()), path)
    is_shipped = os.path.normpath(path).startswith(_FOLDER + os.sep) and os.path.exists(twin)
    return twin if is_shipped and not os.path.exists(path) else path


# -----------------------------------------------------------------------------------------------------------
# Python files: `get_config(ARGUMENT)` returns an ml_collections ConfigDict
#
# The file is the user's program, and it is executed. Errors in it are reported with their line.


PYTHON_ENDING = ".py"
_MODULE = "bert_config_file"  # its name while it runs


def read_python(path: str, argument: str | None, changes: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the settings of a file.

    Args:
      path: of the file.
      argument: what `get_config` is called with; None: with nothing.
      changes: {field: value} of the command line, set in the ConfigDict, so that references to a field follow
        it. A name with dots is a field of a nested ConfigDict: `model.hidden_size`.

    Raises:
      ConfigError: for an error in the file, with its line.
    """
    import ml_collections

    shown = f"--config={path}"
    source = files.read_bytes(path, shown)
    module = types.ModuleType(_MODULE)
    module.__file__ = path
    before = sys.modules.get(_MODULE)
    sys.modules[_MODULE] = module  # dataclasses look for theirs
    try:
        exec(compile(source, path, "exec"), module.__dict__)
        get_config, expected = getattr(module, "get_config", None), "an ml_collections.ConfigDict"
        if not callable(get_config):
            raise ConfigError(f"{shown} has no function get_config, which returns {expected}.")
        config = get_config() if argument is None else get_config(argument)
        if not isinstance(config, ml_collections.ConfigDict):
            kind = type(config).__name__
            raise ConfigError(f"{shown}: get_config returns a {kind}, expected {expected}.")
        config = ml_collections.ConfigDict(config)  # of a frozen one a copy that takes changes
        for name, value in changes.items():
            _change(config, name, value, shown)
        return config.to_dict()
    except (ConfigError, KeyboardInterrupt):
        raise
    except BaseException as error:  # SystemExit, too: the file ends nothing
        text = error.msg if isinstance(error, SyntaxError) else str(error)
        text = f"{text.rstrip('.')}." if text else "no message."
        raise ConfigError(f"{shown}{_place(error, path)}: {type(error).__name__}: {text}") from None
    finally:
        del sys.modules[_MODULE]
        if before is not None:
            sys.modules[_MODULE] = before


def over(settings: Mapping[str, Any], others: Mapping[str, Any]) -> dict[str, Any]:
    """Returns settings with others over them; options of IPUs are over those of the same name."""
    below, above = settings.get("ipu_options"), others.get("ipu_options")
    return {**settings, **others, **({"ipu_options": f"{below} {above}"} if below and above else {})}


def _change(config: Any, name: str, value: Any, shown: str) -> None:
    """Sets a field of a ConfigDict or of a nested one, also a setting that the file does not mention."""
    *groups, last = name.split(".")
    for group in groups:
        if not hasattr(config.get(group), "to_dict"):
            meant = suggest(group, config.keys())
            raise ConfigError(f"--config.{name}: {shown} has no group {group!r}{meant}.")
        config = config[group]
    with config.unlocked(), config.ignore_type():
        config[last] = over({last: config.get(last)}, {last: value})[last]


def _place(error: BaseException, path: str) -> str:
    """Returns ", line 3" of the file; for an error in a called function also that function's file and
    line."""
    if isinstance(error, SyntaxError) and error.filename == path:
        return f", line {error.lineno}"
    frames = traceback.extract_tb(error.__traceback__)
    own = next((frame for frame in reversed(frames) if frame.filename == path), None)
    if own is None:
        return ""
    last = frames[-1]
    called = "" if last is own else f" (in {os.path.basename(last.filename)}, line {last.lineno})"
    return f", line {own.lineno}{called}"
