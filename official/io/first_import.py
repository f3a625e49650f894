"""The first import of TensorFlow: without what its C++ code writes to stderr while it is loaded, and without
waiting for what nobody has asked for."""

from __future__ import annotations

import contextlib
import gc
import importlib.util
import sys
from collections.abc import Collection, Iterator

from official.io import late_modules

# What TensorFlow imports, if it is installed, for things that this project does not do: tables that are given
# to Keras, Keras' own files of weights, callbacks that post to a server, images, TensorBoard's file system
# without TensorFlow, and TensorFlow Lite, two thirds of which are one table of 18,000 lines.
LATE = (
    "pandas",
    "h5py",
    "requests",
    "scipy.ndimage",
    "boto3",
    "botocore.exceptions",
    "fsspec",
    *(f"tensorflow._api.v2.{name}" for name in ("lite", "compat.v1.lite", "compat.v2.lite")),
    "tensorflow._api.v2.compat.v1.compat",  # the same names again
)


class _Finder:
    """Finds a package as it is found without it, and loads it quietly and fast."""

    def __init__(self, package: str, late: Collection[str]):
        self._package, self._late = package, late

    def find_spec(self, fullname, path=None, target=None):
        if fullname != self._package:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is not None and spec.loader is not None:
            load = spec.loader.exec_module

            def load_well(module) -> None:
                from official.io import errors, quiet  # late: who only asks for help does not wait for them

                if sys.flags.optimize > 1:
                    sys.meta_path.insert(0, self)  # for whoever tries again
                    raise errors.ConfigError(
                        f"python -OO and PYTHONOPTIMIZE=2 take out the docstrings, which {self._package}"
                        " reads when it is imported. Unset PYTHONOPTIMIZE, or set it to 1."
                    )
                with quiet.without_noise(), late_modules.late(self._late), uncollected():
                    load(module)
                    gc.freeze()  # modules stay, whatever is looked for among the rest

            spec.loader.exec_module = load_well  # type: ignore[method-assign]
        return spec


def prepare(package: str, late: Collection[str] = ()) -> None:
    """Lets the first import of a package be quiet and fast; nothing where it is imported already.

    Args:
      package: its name.
      late: names of modules that it is to import as late ones, see `late_modules`.
    """
    if package not in sys.modules:
        sys.meta_path.insert(0, _Finder(package, late))


@contextlib.contextmanager
def uncollected() -> Iterator[None]:
    """Collects no garbage in its block, one that imports: modules stay, and looking through them again and
    again takes a tenth of the time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
