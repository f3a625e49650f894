"""Keeps back what libraries write to stderr and users can do nothing about. What goes wrong is raised, and
told in one line.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import sys
import warnings
from collections.abc import Iterator

from official.io import signals

# absl's log lines of level INFO, and what it says before it is set up.
_NOISE = r"(I\d{4} .*|WARNING: All log messages before absl::InitializeLog\(\) .*)\n"
_FILTER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "noise_filter.py")


def quieten_libraries() -> None:
    """Keeps back the log lines of TensorFlow's Python side, and the notices that packages give when they are
    imported."""
    tensorflow = logging.getLogger("tensorflow")
    tensorflow.setLevel(
        logging.CRITICAL
    )  # its errors, too: "Couldn't match files" is said of a folder in which we then find the checkpoint
    tensorflow.handlers.clear()
    warnings.filterwarnings("ignore", module="tensorflow_addons")  # the end of its life
    warnings.filterwarnings("ignore", message="pkg_resources is deprecated")  # tensorflow-hub imports it


@functools.lru_cache
def silence_compiler() -> None:
    """Compiles a first function `without_noise`: XLA announces its first one in two lines that no log level
    keeps back.

    To be called before anything is compiled, after the devices of the process are set up.
    """
    import tensorflow as tf  # late: who only asks for help does not wait for it

    with without_noise(), tf.init_scope(), tf.device("/cpu:0"):
        tf.function(lambda: tf.zeros([]), jit_compile=True)()


@contextlib.contextmanager
def without_noise() -> Iterator[None]:
    """Keeps back the log lines of level INFO that the process writes to its stderr in its block, also from
    C++.

    All else goes through a process of its own, and at once: where TensorFlow aborts this one, its last words
    are those that count.
    """
    import secrets
    import subprocess  # late: who only asks for help does not wait for it

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
                    [sys.executable, "-I", "-S", _FILTER, _NOISE, mark],
                    stdin=read_end,
                    stdout=subprocess.DEVNULL,
                    stderr=kept,
                    start_new_session=True,  # Ctrl-C of a terminal is for this process
                )
        except OSError:  # the process has no stderr, or there is no other: the noise is heard
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
