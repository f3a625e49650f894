"""The operations of operations.cc: compiled when they are first used, loaded once in a process."""

from __future__ import annotations

import functools
import os
from typing import Any

import tensorflow as tf
from absl import logging

from official.config import Config, ConfigError
from official.config.backends import BACKENDS
from official.io import native_library
from official.io.native_library import NotBuilt

_LONGEST_SECS = 180  # that compiling may take: 5 to 10 are usual
_FOLDER = os.path.dirname(os.path.abspath(__file__))
# No -ffast-math: what is not finite stays so, and roots and quotients are exact.
_KERNEL_FLAGS = ("-std=c++17", "-O3", "-march=native", "-fopenmp-simd", "-fno-math-errno")


def operations(config: Config) -> Any:
    """Returns the module with `bert_update` and `bert_global_norm`, or None where a run updates its weights
    with TensorFlow's operations, as --update_kernel says; called in the strategy's scope.

    Raises:
      ConfigError: where --update_kernel=native cannot be.
    """
    if config.update_kernel == "tensorflow":
        return None
    reason = _what_is_against(config)
    if reason is None:
        try:
            return _loaded()
        except NotBuilt as error:
            reason = str(error)
            _tell(f"Weights are updated by TensorFlow's operations, not by the native kernel: {reason}.")
    if config.update_kernel == "native":
        raise ConfigError(f"update_kernel=native is not possible here: {reason}. Use --update_kernel=auto.")
    return None


def _what_is_against(config: Config) -> str | None:
    """Returns why a run does not take the native kernel, if it does not."""
    backend = BACKENDS[config.distribution_strategy]
    if backend.whole_step:
        return f"distribution_strategy={config.distribution_strategy} compiles a step as a whole"
    if not _on_cpus():
        return "it computes on CPUs only"
    if backend.several_processes and config.update_kernel == "auto":
        return "each process would choose by itself, and all must compute alike"
    return None


def _on_cpus() -> bool:
    """Tells whether the strategy, or without one TensorFlow, computes on CPUs."""
    if not tf.distribute.has_strategy():
        return not tf.config.list_logical_devices("GPU")
    devices = tf.distribute.get_strategy().extended.worker_devices
    return all("cpu" in device.lower() for device in devices)


@functools.lru_cache
def _tell(message: str) -> None:
    """Logs a line, once in a process."""
    logging.info(message)


@functools.lru_cache
def _loaded() -> Any:
    """Returns the module of the operations. Raises NotBuilt."""
    sources = {
        os.path.join(_FOLDER, "kernels.cc"): _KERNEL_FLAGS,
        os.path.join(_FOLDER, "operations.cc"): ["-O1", "-w", *tf.sysconfig.get_compile_flags()],
    }
    headers = [os.path.join(_FOLDER, "kernels.h")]
    build = f"{tf.version.GIT_VERSION} {tf.version.COMPILER_VERSION}"  # the one that it is loaded into
    recipe = native_library.Recipe("update", sources, headers, tf.sysconfig.get_link_flags(), build)
    path = native_library.built(
        recipe,
        _LONGEST_SECS,
        before=lambda: logging.info("Compiling the kernel that updates weights, once for this machine."),
    )
    try:
        return tf.load_op_library(path)
    except (tf.errors.OpError, OSError) as error:
        raise NotBuilt(f"{path} cannot be loaded: {str(error).splitlines()[0]}") from None
