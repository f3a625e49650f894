"""The configurations that are shipped: configs/ of the checkout; of the wheel, official/configs."""

import os

from official.io.errors import ConfigError, suggest

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_ENDING, _FOLDER = ".flags", "configs"


def folder() -> str:
    """Returns the folder of the shipped configurations."""
    installed = os.path.join(_PACKAGE, _FOLDER)
    return installed if os.path.isdir(installed) else os.path.join(os.path.dirname(_PACKAGE), _FOLDER)


def names() -> list[str]:
    """Returns the names that --config takes: `quickstart` for configs/quickstart.flags, sorted."""
    found = []
    for parent, _, files in os.walk(folder()):
        found += [
            os.path.relpath(os.path.join(parent, file), folder()).removesuffix(_ENDING)
            for file in files
            if file.endswith(_ENDING)
        ]
    return sorted(found)


def locate(name: str) -> str:
    """Returns the flagfile of a shipped configuration. Raises ConfigError for a name that there is not."""
    if name not in names():
        raise ConfigError(
            f"--config={name} is neither a file nor one of {', '.join(names())}{suggest(name, names())}."
        )
    return os.path.join(folder(), name + _ENDING)


def find(path: str) -> str:
    """Returns a path, or, where it begins with configs/ and nothing is there, its shipped twin."""
    twin = os.path.join(os.path.dirname(folder()), path)
    is_shipped = os.path.normpath(path).startswith(_FOLDER + os.sep) and os.path.exists(twin)
    return twin if is_shipped and not os.path.exists(path) else path
