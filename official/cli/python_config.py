"""A configuration as a Python file: `get_config(ARGUMENT)` returns an ml_collections ConfigDict of settings.

The file is somebody's own program, and it runs. What goes wrong in it is told with its line.
"""

from __future__ import annotations

import os
import sys
import types
from collections.abc import Mapping
from typing import Any

from official.io import files
from official.io.errors import ConfigError, suggest

ENDING = ".py"
_MODULE = "bert_config_file"  # its name while it runs


def read(path: str, argument: str | None, changes: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the settings of a file.

    Args:
      path: of the file.
      argument: what `get_config` is called with; None: with nothing.
      changes: {field: value} of the command line, put into the ConfigDict, so that what refers to a field
        follows it. A name with dots is a field of a ConfigDict in it: `model.hidden_size`.

    Raises:
      ConfigError: for what is wrong in the file, with its line.
    """
    import ml_collections

    source = _content(path)
    shown = f"--config={path}"
    module = types.ModuleType(_MODULE)
    module.__file__ = path
    before = sys.modules.get(_MODULE)
    sys.modules[_MODULE] = module  # dataclasses look for theirs
    try:
        exec(compile(source, path, "exec"), module.__dict__)
        get_config = getattr(module, "get_config", None)
        if not callable(get_config):
            raise ConfigError(
                f"{shown} has no function get_config, which returns an ml_collections.ConfigDict."
            )
        config = get_config() if argument is None else get_config(argument)
        if not isinstance(config, ml_collections.ConfigDict):
            kind = type(config).__name__
            raise ConfigError(f"{shown}: get_config returns a {kind}, expected an ml_collections.ConfigDict.")
        config = ml_collections.ConfigDict(config)  # of a frozen one a copy that takes changes
        for name, value in changes.items():
            _change(config, name, value, shown)
        return config.to_dict()
    except (ConfigError, KeyboardInterrupt):
        raise
    except BaseException as error:  # SystemExit, too: the file ends nothing
        raise ConfigError(f"{shown}{_place(error, path)}: {type(error).__name__}: {_text(error)}") from None
    finally:
        del sys.modules[_MODULE]
        if before is not None:
            sys.modules[_MODULE] = before


def _content(path: str) -> bytes:
    try:
        with files.open_binary(path) as file:
            return file.read()
    except OSError as error:
        raise ConfigError(f"--config={path}: {error.strerror or error}.") from None


def _change(config: Any, name: str, value: Any, shown: str) -> None:
    """Sets a field of a ConfigDict, or of one in it. A setting that the file leaves alone may be set, too."""
    *groups, last = name.split(".")
    for group in groups:
        if not hasattr(config.get(group), "to_dict"):
            raise ConfigError(
                f"--config.{name}: {shown} has no group {group!r}{suggest(group, config.keys())}."
            )
        config = config[group]
    with config.unlocked(), config.ignore_type():
        config[last] = value


def _place(error: BaseException, path: str) -> str:
    """Returns ", line 3" of the file; and, of an error in what it calls, where that is."""
    if isinstance(error, SyntaxError) and error.filename == path:
        return f", line {error.lineno}"
    place, own, trace = "", "", error.__traceback__
    while trace:
        frame = trace.tb_frame.f_code.co_filename
        if frame == path:
            place, own = f", line {trace.tb_lineno}", ""
        elif place:
            own = f" (in {os.path.basename(frame)}, line {trace.tb_lineno})"
        trace = trace.tb_next
    return place + own


def _text(error: BaseException) -> str:
    text = error.msg if isinstance(error, SyntaxError) else str(error)
    return f"{text.rstrip('.')}." if text else "no message."
