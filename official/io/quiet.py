"""Suppresses noise of libraries: log lines of TensorFlow and XLA, notices of packages, and the stderr of
TensorFlow's C++ code while it is loaded.

This file is also the program that filters stderr meanwhile; it runs alone, so it imports nothing of the
project at its top.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence

# absl's log lines of level INFO, and its notice before it is set up.
_NOISE = rb"(I\d{4} .*|WARNING: All log messages before absl::InitializeLog\(\) .*)\n"


def quieten_libraries() -> None:
    """Suppresses the log lines of TensorFlow's Python code, and the notices of packages on import."""
    import logging
    import warnings

    tensorflow = logging.getLogger("tensorflow")
    # Errors, too: TensorFlow logs "Couldn't match files" for folders in which we then find the checkpoint.
    tensorflow.setLevel(logging.CRITICAL)
    tensorflow.handlers.clear()
    warnings.filterwarnings("ignore", module="tensorflow_addons")  # its end-of-life notice
    warnings.filterwarnings("ignore", message="pkg_resources is deprecated")  # tensorflow-hub imports it


@contextlib.contextmanager
def silence() -> Iterator[None]:
    """Within it no package logs or warns. Handlers that one adds to the root logger, by which later messages
    would appear twice, are taken off again."""
    import logging
    import warnings

    root, disabled = logging.getLogger(), logging.root.manager.disable
    handlers = list(root.handlers)
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(disabled)
        root.handlers[:] = handlers


@functools.lru_cache
def silence_compiler() -> None:
    """Compiles a first function `without_noise`: XLA logs two lines on its first compilation that no log
    level suppresses.

    To be called before anything is compiled, after the devices of the process are set up.
    """
    import tensorflow as tf  # late: who only asks for help does not wait for it

    with without_noise(), tf.init_scope(), tf.device("/cpu:0"):
        tf.function(lambda: tf.zeros([]), autograph=False, jit_compile=True)()


@contextlib.contextmanager
def without_noise() -> Iterator[None]:
    """Suppresses the log lines of level INFO on stderr in its block, also from C++.

    Other lines pass through a separate process without delay: if TensorFlow aborts this one, its last lines
    matter.
    """
    import secrets
    import subprocess  # late: who only asks for help does not wait for it

    from official.io import signals

    if sys.stderr:
        sys.stderr.flush()
    with contextlib.ExitStack() as stack:
        mark = secrets.token_hex(16)
        try:
            kept = os.dup(2)
            stack.callback(os.close, kept)
            reader, writer = os.pipe()
            stack.callback(os.close, writer)
            with open(reader, "rb") as read_end:
                process = subprocess.Popen(
                    [sys.executable, "-I", "-S", os.path.abspath(__file__), mark],
                    stdin=read_end,
                    stdout=subprocess.DEVNULL,
                    stderr=kept,
                    start_new_session=True,  # Ctrl-C of a terminal is for this process
                )
        except OSError:  # without stderr, or if no process can be started, nothing is suppressed
            yield
            return
        os.dup2(writer, 2)
        try:
            with signals.telling_on(kept):
                yield
        finally:
            if sys.stderr:
                sys.stderr.flush()
            os.dup2(kept, 2)
            with contextlib.suppress(OSError):
                os.write(writer, mark.encode())
            process.wait()


def _pass_on(mark: bytes) -> None:
    """Copies lines from stdin to stderr, except noise, up to a mark or the end."""
    text, is_over = b"", False
    while not is_over:
        data = os.read(0, 65536)
        *lines, text = (text + data).split(b"\n")
        is_over = not data or text.endswith(mark)
        lines = [line + b"\n" for line in lines] + ([text.replace(mark, b"")] if is_over else [])
        data = b"".join(line for line in lines if not re.match(_NOISE, line))
        with contextlib.suppress(OSError):  # a full disk, or nobody who reads
            while data:
                data = data[os.write(2, data) :]


# -----------------------------------------------------------------------------------------------------------
# The first import of TensorFlow


class _Finder:
    """Finder of a package that loads it without noise and then removes itself."""

    def __init__(self, package: str, before: Callable[[], object]):
        self._package, self._before = package, before

    def find_spec(self, fullname, path=None, target=None):
        if fullname != self._package:
            return None
        import importlib.util

        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is not None and spec.loader is not None:
            spec.loader.exec_module = functools.partial(self._load, spec.loader.exec_module)  # type: ignore[method-assign]
        return spec

    def _load(self, load, module) -> None:
        if sys.flags.optimize > 1:
            from official.io import errors  # late: who only asks for help does not wait for them

            sys.meta_path.insert(0, self)  # in case the import is tried again
            errors.check_docstrings(f"{self._package} reads when it is imported")
        with without_noise(), uncollected(), _hidden(_left_out):
            self._before()
            load(module)
            gc.freeze()  # modules stay alive, so later collections need not scan them


def prepare_import(package: str, before: Callable[[], object] = lambda: None) -> None:
    """Makes the first import of a package quiet, and calls `before` first; immediately if the package is
    imported already."""
    if package in sys.modules:
        before()
    else:
        sys.meta_path.insert(0, _Finder(package, before))


_left_out: list[str] = []


def leave_out(*packages: str) -> None:
    """Makes the import that is prepared take these packages for not installed. Later imports find them."""
    _left_out.extend(packages)


@contextlib.contextmanager
def _hidden(packages: Sequence[str]) -> Iterator[None]:
    hidden = [package for package in packages if package not in sys.modules]
    sys.modules.update(dict.fromkeys(hidden))  # type: ignore[arg-type]  # None stops an import
    try:
        yield
    finally:
        for package in hidden:
            del sys.modules[package]


@contextlib.contextmanager
def uncollected() -> Iterator[None]:
    """Disables garbage collection in its block, for imports: modules stay alive, and scanning them repeatedly
    takes a tenth of the time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


if __name__ == "__main__":
    _pass_on(os.fsencode(sys.argv[1]))
