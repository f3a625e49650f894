"""The first import of TensorFlow: quiet, whatever its C++ code writes to stderr while it is loaded."""

from __future__ import annotations

import contextlib
import gc
import importlib.util
import sys
from collections.abc import Iterator


class _Finder:
    """Finds a package as it is found without it, and loads it quietly."""

    def __init__(self, package: str):
        self._package = package

    def find_spec(self, fullname, path=None, target=None):
        if fullname != self._package:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is not None and spec.loader is not None:
            load = spec.loader.exec_module

            def load_well(module) -> None:
                from official.io import errors  # late: who only asks for help does not wait for them

                if sys.flags.optimize > 1:
                    sys.meta_path.insert(0, self)  # for whoever tries again
                    raise errors.ConfigError(
                        f"python -OO and PYTHONOPTIMIZE=2 take out the docstrings, which {self._package}"
                        " reads when it is imported. Unset PYTHONOPTIMIZE, or set it to 1."
                    )
                with errors.without_noise(), uncollected():
                    load(module)
                    gc.freeze()  # modules stay, whatever is looked for among the rest

            spec.loader.exec_module = load_well  # type: ignore[method-assign]
        return spec


def prepare(package: str) -> None:
    """Lets the first import of a package be quiet; nothing where it is imported already."""
    if package not in sys.modules:
        sys.meta_path.insert(0, _Finder(package))


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
