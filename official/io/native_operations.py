"""Operations of our own for TensorFlow, in C++: compiled when they are first used, loaded once in a process.

A folder of them has kernels.cc, plain loops compiled for all instructions of the CPU; operations.cc, what
TensorFlow calls, compiled quickly; and kernels.h, their header. Headers that all share are in `native`.
"""

from __future__ import annotations

import functools
import glob
import os
from typing import Any

from absl import logging

from official.io import native_library
from official.io.native_library import NotBuilt

_LONGEST_SECS = 180  # that compiling may take: 5 to 15 are usual
_SHARED = os.path.join(os.path.dirname(os.path.abspath(__file__)), "native")
# No -ffast-math: what is not finite stays so, and roots and quotients are exact.
_KERNEL_FLAGS = ("-std=c++17", "-O3", "-march=native", "-fopenmp-simd", "-fno-math-errno")


@functools.lru_cache
def build(name: str, folder: str, what: str, flags: tuple[str, ...] = ()) -> str:
    """Returns the path of a library of operations, which is compiled where it is not there yet.

    Its name tells the sources, the compiler and the CPU that it is made of.

    Args:
      name: of the library.
      folder: path of the sources.
      what: the operations, for the line that says that they are compiled.
      flags: more flags of the compiler for kernels.cc.

    Raises:
      NotBuilt: where they cannot be compiled.
    """
    import tensorflow as tf  # late: the ground floor loads in milliseconds

    shared = f"-I{_SHARED}"
    sources = {
        os.path.join(folder, "kernels.cc"): (*_KERNEL_FLAGS, *flags, shared),
        os.path.join(folder, "operations.cc"): ["-O1", "-w", shared, *tf.sysconfig.get_compile_flags()],
    }
    headers = [
        os.path.join(folder, "kernels.h"),
        *sorted(glob.glob(os.path.join(glob.escape(_SHARED), "*.h"))),
    ]
    into = f"{tf.version.GIT_VERSION} {tf.version.COMPILER_VERSION}"
    recipe = native_library.Recipe(name, sources, headers, tf.sysconfig.get_link_flags(), into)
    return native_library.built(
        recipe,
        _LONGEST_SECS,
        before=lambda: logging.info("Compiling %s, once for this machine.", what),
    )


@functools.lru_cache
def load(path: str) -> Any:
    """Returns the module of the operations of a library, each a function. Raises NotBuilt where it cannot be
    loaded."""
    import tensorflow as tf

    try:
        return tf.load_op_library(path)
    except (tf.errors.OpError, OSError) as error:
        raise NotBuilt(f"{path} cannot be loaded: {str(error).splitlines()[0]}") from None


def on_cpus() -> bool:
    """Tells whether the strategy, or without one TensorFlow, computes on CPUs."""
    import tensorflow as tf

    if not tf.distribute.has_strategy():
        return not tf.config.list_logical_devices("GPU")
    devices = tf.distribute.get_strategy().extended.worker_devices
    return all("cpu" in device.lower() for device in devices)


@functools.lru_cache
def tell(message: str) -> None:
    """Logs a line, once in a process."""
    logging.info(message)
