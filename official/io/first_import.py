"""The first import of TensorFlow: quiet, whatever its C++ code writes to stderr while it is loaded."""

from __future__ import annotations

import contextlib
import gc
import importlib.util
import os
import re
import sys
from collections.abc import Iterator

from official.io import signals

# absl's log lines of level INFO, and what it says before it is set up.
_NOISE = re.compile(
    rb"^(I\d{4} .*|WARNING: All log messages before absl::InitializeLog\(\) .*)\n", re.MULTILINE
)


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
                with without_noise(), uncollected():
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


@contextlib.contextmanager
def without_noise() -> Iterator[None]:
    """Keeps back the log lines of level INFO that the process writes to its stderr, also from C++; all else
    is written when the block ends."""
    import tempfile  # late: who only asks for help does not wait for it

    if sys.stderr:
        sys.stderr.flush()
    try:
        kept = os.dup(2)
    except OSError:  # the process has no stderr
        yield
        return
    with tempfile.TemporaryFile() as file:
        os.dup2(file.fileno(), 2)
        try:
            with signals.telling_on(kept):
                yield
        finally:
            if sys.stderr:
                sys.stderr.flush()
            os.dup2(kept, 2)
            os.close(kept)
            file.seek(0)
            with contextlib.suppress(OSError):
                _write_all(2, _NOISE.sub(b"", file.read()))


def _write_all(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]
