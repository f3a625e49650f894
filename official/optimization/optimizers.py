"""Optimizers by name, with the exclusions of the MLPerf v0.7 recipe: native, compiled, plain, addons'."""

from __future__ import annotations

import contextlib
import importlib.util
import re
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from official.config.table import Config
from official.optimization import compiled_optimizers, plain_optimizers
from official.optimization.gradients import scaled
from official.optimization.native import library
from official.optimization.native import optimizers as native
from official.optimization.plain_optimizers import Optimizer, build_plain, hyper_parameters
from official.optimization.schedules import Scaled
from official.optimization.train_state import TrainState, build_state

# -----------------------------------------------------------------------------------------------------------
# tensorflow-addons


with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # the end-of-life notice: the version is pinned
    import tensorflow_addons as tfa


class _AdamW(tfa.optimizers.AdamW):
    """tensorflow-addons' AdamW, choosing what to decay by name.

    The parent compares variable objects, which under a mirrored strategy are never the replica's own: with an
    exclusion list it would decay nothing there.
    """

    def _do_use_weight_decay(self, var):
        return not any(re.search(pattern, var.name) for pattern in self.exclude_from_weight_decay)


class Addons:
    """An optimizer of tensorflow-addons with the methods of `kinds.Optimizer`."""

    def __init__(self, optimizer):
        self._optimizer = optimizer
        self.get_slot = optimizer.get_slot

    @property
    def iterations(self):
        return self._optimizer.iterations

    def create_slots(self, variables) -> None:
        # What apply_gradients calls.
        self._optimizer._create_all_weights(variables)  # pylint: disable=protected-access

    def scalars(self) -> dict:
        return {}

    def global_norm(self, tensors) -> tf.Tensor:
        return tf.linalg.global_norm(tensors)

    def update(self, gradients, variables, factor) -> None:
        self._optimizer.apply_gradients(
            zip(scaled(gradients, factor), variables), experimental_aggregate_gradients=False
        )


def make_lamb(excluded, decayed_only="", **hyper):
    """Returns LAMB; arguments as those of `compiled.Lamb`."""
    undecayed = [f"{each}(?!.*{decayed_only})" for each in excluded] if decayed_only else excluded
    return Addons(
        tfa.optimizers.LAMB(
            exclude_from_weight_decay=undecayed, exclude_from_layer_adaptation=excluded, **hyper
        )
    )


def make_adamw(learning_rate, weight_decay, excluded, **hyper):
    """Returns AdamW; arguments as those of `compiled.AdamW`."""
    return Addons(
        _AdamW(
            learning_rate=learning_rate,
            weight_decay=Scaled(learning_rate, weight_decay),
            exclude_from_weight_decay=excluded,
            **hyper,
        )
    )


# -----------------------------------------------------------------------------------------------------------
# Optimizers by name


_COMPILED: dict[str, Callable[..., Optimizer]] = {
    "lamb": compiled_optimizers.Lamb,
    "adam": compiled_optimizers.AdamW,
    "adamw": compiled_optimizers.AdamW,
    "mpadamw": compiled_optimizers.CompiledAdamW,
    "momentum": plain_optimizers.Momentum,
    "sgd": plain_optimizers.Sgd,
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
        pass  # a second of start-up

        del hyper["bias_correction"]  # they always do
        makers: dict[str, Callable[..., Optimizer]] = {"lamb": make_lamb, "adamw": make_adamw}
        return makers[kind](learning_rate=schedule, **hyper)
    return build_plain(config, schedule)


def has_addons() -> bool:
    """Returns whether tensorflow-addons is installed, which came to its end with TensorFlow 2.15."""
    return importlib.util.find_spec("tensorflow_addons") is not None


# -----------------------------------------------------------------------------------------------------------
# State of a run


def make_state(
    config: Config, build_model: Callable[[], tf.keras.Model], strategy: tf.distribute.Strategy
) -> TrainState:
    """Builds model and optimizer with all their variables, in the strategy's scope."""
    with strategy.scope():
        return build_state(config, build_model, build_optimizer)


@contextlib.contextmanager
def restored(variables: list[tf.Variable]) -> Iterator[None]:
    """Context that restores the values of the variables at its end, bit for bit.

    Meanwhile these are in the host's memory, not on the device, and of a variable that is all zero, as a new
    optimizer's are, nothing is kept.
    """
    kept = []
    for variable in variables:
        value = variable.read_value().numpy()
        kept.append(value if np.atleast_1d(value).view(np.uint8).any() else None)
    yield
    for variable, value in zip(variables, kept):
        variable.assign(tf.zeros(variable.shape, variable.dtype) if value is None else value)
