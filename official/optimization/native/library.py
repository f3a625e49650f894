"""The operations of operations.cc: compiled when they are first used, loaded once in a process."""

from __future__ import annotations

import os
from typing import Any

from official.config import Config, ConfigError
from official.config.backends import BACKENDS
from official.io import native_operations
from official.io.native_library import NotBuilt

_FOLDER = os.path.dirname(os.path.abspath(__file__))


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
            native_operations.tell(
                f"Weights are updated by TensorFlow's operations, not by the native kernel: {reason}."
            )
    if config.update_kernel == "native":
        raise ConfigError(f"update_kernel=native is not possible here: {reason}. Use --update_kernel=auto.")
    return None


def _what_is_against(config: Config) -> str | None:
    """Returns why a run does not take the native kernel, if it does not."""
    backend = BACKENDS[config.distribution_strategy]
    if backend.whole_step:
        return f"distribution_strategy={config.distribution_strategy} compiles a step as a whole"
    if not native_operations.on_cpus():
        return "it computes on CPUs only"
    if backend.several_processes and config.update_kernel == "auto":
        return "each process would choose by itself, and all must compute alike"
    return None


def _loaded() -> Any:
    """Returns the module of the operations. Raises NotBuilt."""
    return native_operations.load("update", _FOLDER, "the kernel that updates weights")
