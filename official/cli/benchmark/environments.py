"""Virtual environments of other systems: made from the package index, then left alone until they lack a
package."""

import dataclasses
import os
import subprocess
import sys
from collections.abc import Iterable

import official
from official.io.errors import ConfigError

_MADE = "made"  # the file that a whole environment has


@dataclasses.dataclass(frozen=True)
class Environment:
    """A virtual environment of a system: its name, also that of its folder, and the requirements that pip
    installs."""

    name: str
    requirements: tuple[str, ...]


def add_flags(parser) -> None:
    """Adds --environments and --make_environments."""
    parser.add_argument(
        "--environments", default=".peers", help="Folder of the peers' virtual environments, about 2 GB each."
    )
    parser.add_argument(
        "--make_environments",
        action="store_true",
        help="Make those that are missing, from the package index.",
    )


def python_of(environment: str | None, folder: str) -> str:
    """Returns the interpreter of an environment; without one, that of this process."""
    if environment is None:
        return sys.executable
    return os.path.join(os.path.abspath(folder), environment, "bin", "python")


def packages_of(environment: str, folder: str) -> str:
    """Returns the site-packages folder of an environment, for a program that also uses those of this one."""
    version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    return os.path.join(os.path.abspath(folder), environment, "lib", version, "site-packages")


def prepare(wanted: Iterable[tuple[str, Environment]], folder: str, make: bool) -> None:
    """Makes the environments that are missing, and completes those that lack a package.

    Args:
      wanted: (name of a peer, its environment).
      folder: of all environments.
      make: whether to make them; else a missing one is an error.

    Raises:
      ConfigError: where one is missing, or cannot be made.
    """
    for name, environment in wanted:
        python = python_of(environment.name, folder)
        place = os.path.dirname(os.path.dirname(python))
        installed = _installed(place)
        missing = [text for text in environment.requirements if text not in (installed or ())]
        if not missing:
            continue
        if not make:
            lacks = (
                f"no environment in {folder}" if installed is None else f"no {', '.join(missing)} in {place}"
            )
            raise ConfigError(f"--peers: {name} has {lacks}. Make it with --make_environments.")
        print(f"Making {place} ({', '.join(environment.requirements)}) ...", file=sys.stderr)
        new = [[sys.executable, "-m", "venv", "--clear", place]] if installed is None else []
        for command in (*new, [python, "-m", "pip", "install", "-q", *environment.requirements]):
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                raise ConfigError(f"--make_environments: {name}: {' '.join(done.stderr.splitlines()[-3:])}")
        with open(os.path.join(place, _MADE), "w", encoding="utf-8") as file:
            file.write("\n".join([*(installed or ()), *missing]) + "\n")


def _installed(place: str) -> list[str] | None:
    """Returns the requirements installed in an environment; None where it is missing or incomplete."""
    path = os.path.join(place, _MADE)
    if not os.path.exists(path):
        return None
    with open(path, encoding="utf-8") as file:
        return file.read().splitlines()


def variables(environment: str | None) -> dict[str, str]:
    """Returns the environment variables of a system: those of this process without this project's settings.

    Ours finds this package; the others must not: "official" is the name of the Model Garden's package, too.
    """
    foreign = ("PYTHON", "TF_", "KERAS")
    kept = {key: value for key, value in os.environ.items() if not key.startswith(foreign)}
    ours = {} if environment else {"PYTHONPATH": os.path.dirname(os.path.dirname(official.__file__))}
    return {**kept, **ours, "TF_CPP_MIN_LOG_LEVEL": "3", "HF_HUB_OFFLINE": "1"}
