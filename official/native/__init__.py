"""Operations in C++ for CPUs, and the choice of the kernels that a run takes (--kernels).

blocks.cc, attention.cc and update.cc are plain loops compiled for all instructions of the CPU: what an
encoder block does between its matrix products, attention with rotary positions as a whole, and the
optimizer's update. The files *_operations.cc are what TensorFlow calls, compiled quickly. All are one
library, compiled when it is first used on a machine, loaded once in a process.
"""

from __future__ import annotations

import functools
import glob
import os
from typing import Any

from absl import logging

from official.io import native_library
from official.io.errors import ConfigError
from official.io.native_library import NotBuilt

_MAX_SECS = 180  # that compiling may take: 10 to 25 are usual
_FOLDER = os.path.dirname(os.path.abspath(__file__))
# No -ffast-math: what is not finite stays so, and roots and quotients are exact.
_FLAGS = ("-std=c++17", "-O3", "-march=native", "-fopenmp-simd", "-fno-math-errno")
# Of the blocks: products and sums as one instruction, and choices without branches.
_BLOCK_FLAGS = ("-ffp-contract=fast", "-fno-trapping-math")


def choose(kernels: str) -> str:
    """Returns plain, fused or native: the kernels of what is made now, in the scope of its strategy.

    Args:
      kernels: the value of --kernels; with auto and native XLA must not compile the step as a whole.

    Raises:
      ConfigError: where --kernels=native cannot be.
    """
    if kernels in ("plain", "fused"):
        return kernels
    reason = unavailable()
    if reason is None:
        log_choice("native")
        return "native"
    fall_back(kernels, reason)
    return "fused"


def fall_back(kernels: str, reason: str) -> None:
    """Logs that fused kernels run in place of the native ones. Raises ConfigError for --kernels=native."""
    if kernels == "native":
        raise ConfigError(f"kernels=native is not possible here: {reason}. Use --kernels=auto or fused.")
    log_choice(f"fused, not native: {reason}")


def unavailable() -> str | None:
    """Returns why the operations cannot be used on the devices of the strategy; None where they can."""
    if not on_cpus():
        return "they are for CPUs only"
    return _not_built()


@functools.lru_cache
def _not_built() -> str | None:
    try:
        operations()
    except NotBuilt as error:
        return str(error)
    return None


def on_cpus(strategy: Any = None) -> bool:
    """Tells whether a strategy computes on CPUs: the given one, or that in whose scope this is called.

    Without any, TensorFlow's usual device decides.
    """
    return all("cpu" in device for device in _devices(strategy))


def on_gpus(strategy: Any = None) -> bool:
    """Tells whether a strategy computes on GPUs; as `on_cpus`."""
    return all("gpu" in device for device in _devices(strategy))


def _devices(strategy: Any) -> list[str]:
    import tensorflow as tf  # late: the ground floor loads in milliseconds

    if strategy is None:
        if not tf.distribute.has_strategy():
            return ["gpu" if tf.config.list_logical_devices("GPU") else "cpu"]
        strategy = tf.distribute.get_strategy()
    return [device.lower() for device in strategy.extended.worker_devices]


def uses_gpus(config: Any) -> bool:
    """Tells whether a run of this process's devices computes on GPUs, before its strategy is made."""
    import tensorflow as tf

    if config.num_virtual_devices or config.num_gpus == 0:
        return False
    return bool(config.num_gpus or tf.config.list_physical_devices("GPU"))


@functools.lru_cache
def log_choice(choice: str) -> None:
    """Logs the kernels that run, once in a process."""
    logging.info("Kernels: %s (--kernels).", choice)


@functools.lru_cache
def library_path() -> str:
    """Returns the path of the library, which is compiled where it is not there yet. Its name tells the
    sources, the compiler and the CPU that it is made of. Raises NotBuilt."""
    import tensorflow as tf

    def path(name: str) -> str:
        return os.path.join(_FOLDER, name)

    operation_flags = ("-O1", "-w", *tf.sysconfig.get_compile_flags())
    recipe = native_library.Recipe(
        "kernels",
        {
            path("attention.cc"): (*_FLAGS, *_BLOCK_FLAGS),
            path("blocks.cc"): (*_FLAGS, *_BLOCK_FLAGS),
            path("blocks_operations.cc"): operation_flags,
            path("update.cc"): _FLAGS,
            path("update_operations.cc"): operation_flags,
        },
        sorted(glob.glob(os.path.join(glob.escape(_FOLDER), "*.h"))),
        tf.sysconfig.get_link_flags(),
        f"{tf.version.GIT_VERSION} {tf.version.COMPILER_VERSION}",
    )
    message = "Compiling the native kernels, once for this machine."
    return native_library.built(recipe, _MAX_SECS, before=lambda: logging.info(message))


@functools.lru_cache
def operations() -> Any:
    """Returns the module of the operations, each a function. Raises NotBuilt."""
    import tensorflow as tf

    path = library_path()
    try:
        return tf.load_op_library(path)
    except (tf.errors.OpError, OSError) as error:
        raise NotBuilt(f"{path} cannot be loaded: {str(error).splitlines()[0]}") from None
