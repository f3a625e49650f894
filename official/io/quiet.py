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


@contextlib.contextmanager
def telling() -> Iterator[None]:
    """A block that prints. Where nobody reads it any more (`| head`), the rest of it is left out without a
    word."""
    try:
        yield
        if sys.stdout:
            sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # for what is flushed when the process ends


@functools.lru_cache
def silence_compiler() -> None:
    """Compiles a first function with stderr closed: XLA announces its first one there, in two lines that no
    log level keeps back.

    To be called before anything is compiled, after the devices of the process are set up.
    """
    import tensorflow as tf  # late: who only asks for help does not wait for it

    with _without_stderr(), tf.init_scope(), tf.device("/cpu:0"):
        tf.function(lambda: tf.zeros([]), jit_compile=True)()


@contextlib.contextmanager
def _without_stderr() -> Iterator[None]:
    """Sends what the process writes to its stderr nowhere, also from C++."""
    if sys.stderr:
        sys.stderr.flush()
    kept = os.dup(2)
    try:
        with open(os.devnull, "wb") as nowhere:
            os.dup2(nowhere.fileno(), 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
