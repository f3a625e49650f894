"""The operations of operations.cc: compiled when they are first used, loaded once in a process."""

from __future__ import annotations

import hashlib
import os
from typing import Any

import tensorflow as tf

from official.config import Config, ConfigError
from official.config.backends import BACKENDS
from official.io import native_operations
from official.io.native_library import NotBuilt
from official.optimization import gradients

_FOLDER = os.path.dirname(os.path.abspath(__file__))


def operations(config: Config) -> Any:
    """Returns the module with `bert_update` and `bert_global_norm`, or None where a run updates its weights
    with TensorFlow's operations, as --update_kernel says; called in the strategy's scope, by all processes of
    a run.

    Raises:
      ConfigError: where --update_kernel=native cannot be.
    """
    if config.update_kernel == "tensorflow":
        return None
    module, reason = None, what_is_against(config, native_operations.on_cpus())
    if reason is None:
        try:
            module = loaded()
        except NotBuilt as error:
            reason = str(error)
        if BACKENDS[config.distribution_strategy].several_processes and not _all_have(module):
            module, reason = None, reason or "the processes of the run do not all have the same one"
        if module is not None:
            return module
        native_operations.tell(
            f"Weights are updated by TensorFlow's operations, not by the native kernel: {reason}."
        )
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


def _path() -> str:
    """Returns the path of the library. Raises NotBuilt."""
    return native_operations.build("update", _FOLDER, "the kernel that updates weights")


def loaded() -> Any:
    """Returns the module of the operations. Raises NotBuilt."""
    return native_operations.load(_path())
