"""The configurations that are shipped: configs/ of the checkout; of the wheel, official/configs."""

import functools
import os

from official.io.errors import ConfigError, suggest

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_ENDING, _FOLDER = ".flags", "configs"
_THEIRS, _TESTS = "graphcore", "tests"  # folders in it: Graphcore's, and in theirs those of their tests
_ENDINGS = (".json", ".yml")
# Folders of theirs in the order in which a bare name is looked for, first that of the Kubernetes tutorial.
FAMILIES = ("pytorch", "tf1", "tf2", "popart", "packed")


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


@functools.cache
def theirs() -> dict[str, str]:
    """Returns {name: path} of Graphcore's shipped configurations: `graphcore/tf1/squad_base`, by families in
    the order in which a name that several have is looked for."""
    found = {}
    for family in FAMILIES:
        top = os.path.join(folder(), _THEIRS, family)
        for parent, _, files in sorted(os.walk(top)):
            for file in sorted(files):
                path = os.path.join(parent, file)
                found[os.path.splitext(os.path.relpath(path, folder()))[0]] = path
    return found


def find_theirs(name: str) -> list[str]:
    """Returns the names of Graphcore's shipped configurations that a name or a path of theirs may mean, the
    one that it means first.

    Args:
      name: `squad_base`, `graphcore/tf1/squad_base`, `configs/squad_base.json`, `configs/mk2/NAME.json`.
    """
    plain, ending = os.path.splitext(os.path.normpath(name))
    if ending not in _ENDINGS:
        plain, ending = os.path.normpath(name), ""
    is_path = plain.startswith(_FOLDER + os.sep)
    plain = plain.removeprefix(_FOLDER + os.sep)
    if plain in theirs():
        return [plain]
    ranked: list[tuple[int, str]] = []
    for each in theirs():
        _, family, rest = each.split(os.sep, 2)
        if ending and not theirs()[each].endswith(ending):
            continue
        if rest == plain:
            ranked.append((0, each))
        elif rest == os.path.join(_TESTS, plain):
            ranked.append((2, each))
        elif not is_path and os.path.basename(rest) == plain:
            ranked.append((1, each))
    return [each for _, each in sorted(ranked, key=lambda pair: pair[0])]


def locate(name: str) -> str:
    """Returns the file of a shipped configuration, ours before theirs. Raises ConfigError for a name that
    there is not."""
    if name in names():
        return os.path.join(folder(), name + _ENDING)
    if found := find_theirs(name):
        return theirs()[found[0]]
    nearest = suggest(name, [*names(), *theirs(), *map(os.path.basename, theirs())])
    raise ConfigError(
        f"--config={name} is neither a file nor a configuration of this package{nearest}. Graphcore's are"
        f" graphcore/FAMILY/NAME, the others {', '.join(names())}."
    )


def find(path: str) -> str:
    """Returns a path, or, where it begins with configs/ and nothing is there, its shipped twin."""
    twin = os.path.join(os.path.dirname(folder()), path)
    is_shipped = os.path.normpath(path).startswith(_FOLDER + os.sep) and os.path.exists(twin)
    return twin if is_shipped and not os.path.exists(path) else path
