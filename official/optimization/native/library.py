"""The operations of operations.cc: compiled when they are first used, loaded once in a process."""

from __future__ import annotations

import functools
import hashlib
import os
from typing import Any

import tensorflow as tf
from absl import logging

from official.config import Config, ConfigError
from official.config.backends import BACKENDS
from official.io import native_library
from official.io.native_library import NotBuilt
from official.optimization import gradients

_LONGEST_SECS = 180  # that compiling may take: 5 to 10 are usual
_FOLDER = os.path.dirname(os.path.abspath(__file__))
# No -ffast-math: what is not finite stays so, and roots and quotients are exact.
_KERNEL_FLAGS = ("-std=c++17", "-O3", "-march=native", "-fopenmp-simd", "-fno-math-errno")


def operations(config: Config) -> Any:
    """Returns the module with `bert_update` and `bert_global_norm`, or None where a run updates its weights
    with TensorFlow's operations, as --update_kernel says; called in the strategy's scope, by all processes of
    a run.

    Raises:
      ConfigError: where --update_kernel=native cannot be.
    """
    if config.update_kernel == "tensorflow":
        return None
    module, reason = None, what_is_against(config, _on_cpus())
    if reason is None:
        try:
            module = loaded()
        except NotBuilt as error:
            reason = str(error)
        if BACKENDS[config.distribution_strategy].several_processes and not _all_have(module):
            module, reason = None, reason or "the processes of the run do not all have the same one"
        if module is not None:
            return module
        _tell(f"Weights are updated by TensorFlow's operations, not by the native kernel: {reason}.")
    if config.update_kernel == "native":
        raise ConfigError(f"update_kernel=native is not possible here: {reason}. Use --update_kernel=auto.")
    return None


def what_is_against(config: Config, on_cpus: bool) -> str | None:
    """Returns why a run does not take the native kernel, even where it is built, if it does not; `on_cpus`
    tells whether all its devices are CPUs."""
    if BACKENDS[config.distribution_strategy].whole_step:
        return f"distribution_strategy={config.distribution_strategy} compiles a step as a whole"
    return None if on_cpus else "it computes on CPUs only"


def _all_have(module: Any) -> bool:
    """Tells whether all processes of the run have the same library as this one has, of the same sources,
    compiler and CPU: only then each computes the very weights that the others compute. Called by all, those
    whose `module` is None among them."""
    name = os.path.basename(_path()).encode() if module is not None else b""
    mark = int(hashlib.sha256(name).hexdigest()[:7], 16) if name else 0
    strategy = tf.distribute.get_strategy()

    @tf.function(autograph=False)
    def gathered():
        marks = strategy.run(lambda: gradients.gather({"mark": tf.constant([mark])}))
        return strategy.experimental_local_results(marks["mark"])[0]

    marks = set(gathered().numpy().tolist())  # also without one: the others wait for it
    return marks == {mark} and mark != 0


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
def _path() -> str:
    """Returns the path of the library, which is compiled where it is not there yet. Raises NotBuilt."""
    sources = {
        os.path.join(_FOLDER, "kernels.cc"): _KERNEL_FLAGS,
        os.path.join(_FOLDER, "operations.cc"): ["-O1", "-w", *tf.sysconfig.get_compile_flags()],
    }
    headers = [os.path.join(_FOLDER, "kernels.h")]
    build = f"{tf.version.GIT_VERSION} {tf.version.COMPILER_VERSION}"  # the one that it is loaded into
    recipe = native_library.Recipe("update", sources, headers, tf.sysconfig.get_link_flags(), build)
    return native_library.built(
        recipe,
        _LONGEST_SECS,
        before=lambda: logging.info("Compiling the kernel that updates weights, once for this machine."),
    )


@functools.lru_cache
def loaded() -> Any:
    """Returns the module of the operations. Raises NotBuilt."""
    try:
        return tf.load_op_library(_path())
    except (tf.errors.OpError, OSError) as error:
        raise NotBuilt(f"{_path()} cannot be loaded: {str(error).splitlines()[0]}") from None
