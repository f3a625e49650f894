"""The optimizers by name, with the exclusions of the MLPerf v0.7 recipe: our own, compiled or plain, and
tensorflow-addons'."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any

from official.config import Config
from official.optimization import compiled, compiled_mixed, descent
from official.optimization.kinds import Optimizer, build_plain, hyper_parameters
from official.optimization.native import library
from official.optimization.native import optimizers as native

_COMPILED: dict[str, Callable[..., Optimizer]] = {
    "lamb": compiled.Lamb,
    "adam": compiled.AdamW,
    "adamw": compiled.AdamW,
    "mpadamw": compiled_mixed.CompiledAdamW,
    "momentum": descent.Momentum,
    "sgd": descent.Sgd,
}
_NATIVE: dict[str, Callable[..., Optimizer]] = {
    "lamb": native.Lamb,
    "adam": native.AdamW,
    "adamw": native.AdamW,
}


def build_optimizer(config: Config, schedule: Callable, operations: Any = None) -> Optimizer:
    """Returns the optimizer, made in the strategy's scope. Updates are float32.

    lamb (You et al. 2019): m, v with bias correction, u = m / (sqrt(v) + epsilon) + weight_decay * w,
      w -= rate * |w| / |u| * u.
    adamw: w -= rate * weight_decay * w, then Adam (Keras form: epsilon beside the uncorrected root).
    adam: adamw without decay. mpadamw: adamw, see `mixed`. sgd, momentum: see `descent`.
    --update_kernel says whether the first three are one operation of our own on CPUs, see `native`.
    --fused_ops=false takes tensorflow-addons' LAMB and AdamW, or where it is not installed, or they are asked
    for without bias correction, our own in plain TensorFlow operations: all are the same to rounding.

    Args:
      config: of the run.
      schedule: step -> learning rate.
      operations: of the native update; None: those that the run takes, if any, see `library.operations`.
    """
    kind, hyper = config.optimizer_type, hyper_parameters(config)
    if config.fused_ops:
        if kind in _NATIVE and operations is None:
            operations = library.operations(config)
        if kind in _NATIVE and operations is not None:
            return _NATIVE[kind](operations, learning_rate=schedule, **hyper)
        return _COMPILED[kind](learning_rate=schedule, **hyper)
    if kind in ("lamb", "adamw") and hyper["bias_correction"] and has_addons():
        from official.optimization import addons  # a second of start-up

        del hyper["bias_correction"]  # they always do
        makers: dict[str, Callable[..., Optimizer]] = {"lamb": addons.make_lamb, "adamw": addons.make_adamw}
        return makers[kind](learning_rate=schedule, **hyper)
    return build_plain(config, schedule)


def has_addons() -> bool:
    """Returns whether tensorflow-addons is installed, which came to its end with TensorFlow 2.15."""
    return importlib.util.find_spec("tensorflow_addons") is not None
