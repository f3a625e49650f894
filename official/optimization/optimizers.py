"""Optimizers by name, with native, XLA-compiled or plain kernels."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import re
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from official import native
from official.config import Config, kernels_of
from official.config.backends import BACKENDS
from official.optimization import gradients as gradients_lib
from official.optimization.plain_optimizers import (
    Moments,
    Optimizer,
    build_plain,
    clipped_rate,
    hyper_parameters,
    jitted,
)
from official.optimization.plain_optimizers import write as write_variable
from official.optimization.train_state import TrainState, build_state

# -----------------------------------------------------------------------------------------------------------
# LAMB, AdamW and AdamW with clipped updates
#
# An update of 110 M parameters is memory-bound. Weights that decay, nearly all, go through small compiled
# functions, one per shape, that read a gradient once and write the moments in place; norms are computed
# outside, on all cores. The others, vectors, go through ResourceApplyAdam.

_LAYER = re.compile(r".*/layer_\d+/")


class CompiledOptimizer(Moments):
    """Base of `CompiledAdamW` and `CompiledLamb`: updates variables layer by layer, with a function that all
    layers share."""

    def _update(self, gradients, variables, factor) -> None:
        place = gradients_lib.beside(variables)
        # (layer, "" for others; device): a variable, and the weights.
        layers: dict[tuple, tuple[tf.Variable, list[tuple]]] = {}
        for gradient, variable in zip(gradients, variables):
            match = _LAYER.match(variable.name)
            handles = tuple(each.handle for each in (variable, *self._moments[variable.name].values()))
            weight = (handles, gradient, self.decays(variable))
            layer = match.group() if match else "", gradients_lib.device_of(variable)
            layers.setdefault(layer, (variable, []))[1].append(weight)
        # Profiles identify the optimizer's operations by this name.
        with tf.name_scope(type(self).__name__):
            step = self._shared_by_updates(factor)
            self.decay_apart(variables)
            for variable, weights in layers.values():
                with place(variable):
                    self._update_layer(*zip(*weights), step)

    def _shared_by_updates(self, factor) -> dict:
        """Computes the values that all variable updates of a step share. If they were repeated per variable,
        they would be half of the graph."""
        step, rate = tf.cast(self.iterations + 1, tf.float32), self._rate()
        beta_1, beta_2 = tf.constant(self._constants.beta_1), tf.constant(self._constants.beta_2)
        if self._corrects:
            beta_1_power, beta_2_power = tf.pow(beta_1, step), tf.pow(beta_2, step)
        else:
            beta_1_power = beta_2_power = tf.constant(0.0)
        return {
            "factor": factor,
            "decayed": self._decayed_state(rate, beta_1_power, beta_2_power),
            "excluded": {
                "lr": rate,
                "beta1": beta_1,
                "beta2": beta_2,
                "beta1_power": beta_1_power,
                "beta2_power": beta_2_power,
                "epsilon": tf.convert_to_tensor(self._epsilon_beside_root(beta_2_power)),
            },
        }

    # Traced and optimized once for all equal layers. It takes handles, since for a variable TensorFlow would
    # keep a placeholder with a shorter lifetime.
    @tf.function(autograph=False, experimental_attributes={"_noinline": True})
    def _update_layer(self, handles, gradients, decays, step):
        with tf.name_scope(type(self).__name__):  # the caller's scope ends at the call
            for (weight, m, v), gradient, does_decay in zip(handles, gradients, decays):
                if does_decay:
                    self._update_decayed(
                        (weight, m, v), gradient, step["factor"], step["decayed"], self._constants
                    )
                else:
                    self._update_excluded((weight, m, v), gradient, step)

    def _update_excluded(self, handles, gradient, step) -> None:
        """Updates a weight that does not decay; `step` is the result of `_shared_by_updates`."""
        weight, m, v = handles
        gradient = gradient * step["factor"]
        tf.raw_ops.ResourceApplyAdam(var=weight, m=m, v=v, grad=gradient, **step["excluded"])

    @staticmethod
    def _update_decayed(handles, grad, factor, state, constants):
        """Updates a weight that decays: `handles` are those of weight, m and v, `state` is the result of
        `_decayed_state`."""
        raise NotImplementedError

    def _decayed_state(self, rate, beta_1_power, beta_2_power):
        """Returns the values of a step for `_update_decayed`."""
        raise NotImplementedError

    def _epsilon_beside_root(self, beta_2_power):
        """Returns the epsilon of m / (sqrt(v) + epsilon), with an uncorrected v."""
        return self._constants.epsilon


@jitted
def _update_adamw(handles, grad, factor, state, constants):
    step_size, kept = state
    weight, m, v = read(handles, grad.shape)
    new_m, new_v = moments(m, v, grad * factor, constants)
    write(handles, (weight * kept - step_size * new_m / (tf.sqrt(new_v) + constants.epsilon), new_m, new_v))


def _update_lamb(handles, grad, factor, state, constants):
    rate, *corrections = state
    update = _lamb_direction(handles, grad, factor, corrections, constants)
    weight, *_ = read(handles[:1], grad.shape)
    weight_norm, update_norm = tf.sqrt(2 * tf.nn.l2_loss(weight)), tf.sqrt(2 * tf.nn.l2_loss(update))
    ratio = tf.where((weight_norm > 0) & (update_norm > 0), weight_norm / update_norm, 1.0)
    tf.raw_ops.ResourceApplyGradientDescent(var=handles[0], alpha=rate * ratio, delta=update)


@jitted
def _lamb_direction(handles, grad, factor, corrections, constants):
    """Updates the moments and returns the update direction u; `corrections` are the bias-correction
    factors."""
    weight, m, v = read(handles, grad.shape)
    new_m, new_v = moments(m, v, grad * factor, constants)
    write(handles[1:], (new_m, new_v))
    m_correction, v_correction = corrections
    return (
        new_m * m_correction / (tf.sqrt(new_v * v_correction) + constants.epsilon)
        + constants.weight_decay * weight
    )


def read(handles, shape):
    """Returns the values, float32, of variables of a shape, which their handles may lack."""
    values = [tf.raw_ops.ReadVariableOp(resource=handle, dtype=tf.float32) for handle in handles]
    for value in values:
        value.set_shape(shape)
    return values


def write(handles, values):
    """Writes values to variables, by their handles."""
    for handle, value in zip(handles, values):
        tf.raw_ops.AssignVariableOp(resource=handle, value=value)


def moments(m, v, grad, constants):
    """Returns the moments after a gradient, float32."""
    return m + (1 - constants.beta_1) * (grad - m), v + (1 - constants.beta_2) * (grad * grad - v)


class CompiledAdamW(CompiledOptimizer):
    """w -= rate * weight decay * w, then Adam in Keras' form, with epsilon added to the uncorrected root."""

    _update_decayed = staticmethod(_update_adamw)

    def _decayed_state(self, rate, beta_1_power, beta_2_power):
        return rate * tf.sqrt(1 - beta_2_power) / (1 - beta_1_power), 1 - rate * self._constants.weight_decay


class CompiledLamb(CompiledOptimizer):
    """m, v with bias correction, u = m / (sqrt(v) + epsilon) + weight decay * w, w -= rate * |w| / |u| * u.

    Variables that are not decayed are not adapted either: w -= rate * u. If one of the norms is 0, their
    ratio is 1, as in tensorflow-addons.
    Source: You et al. 2019, "Large Batch Optimization for Deep Learning".
    """

    _update_decayed = staticmethod(_update_lamb)

    def _epsilon_beside_root(self, beta_2_power):
        return self._constants.epsilon * tf.sqrt(1 - beta_2_power)

    def _decayed_state(self, rate, beta_1_power, beta_2_power):
        return rate, 1 / (1 - beta_1_power), 1 / (1 - beta_2_power)


@jitted
def _update_stable(handles, grad, factor, state, constants):
    """Updates a weight: `state` is the rate, the decay, and the bias-correction factors of the moments."""
    rate, decay, m_correction, v_correction = state
    grad = grad * factor
    weight, m, v = read(handles, grad.shape)
    new_m, new_v = moments(m, v, grad, constants)
    corrected_v = new_v * v_correction
    rate = clipped_rate(rate, grad, corrected_v, constants.epsilon)
    update = new_m * m_correction / (tf.sqrt(corrected_v) + constants.epsilon) + decay * weight
    write(handles, (weight - rate * update, new_m, new_v))


class CompiledStableAdamW(CompiledOptimizer):
    """AdamW with clipped updates, `plain_optimizers.StableAdamW`; vectors, too, go through the compiled
    function."""

    _update_decayed = staticmethod(_update_stable)

    def _decayed_state(self, rate, beta_1_power, beta_2_power):
        decay = tf.constant(self._constants.weight_decay)
        return rate, decay, 1 / (1 - beta_1_power), 1 / (1 - beta_2_power)

    def _update_excluded(self, handles, gradient, step) -> None:
        rate, _, *corrections = step["decayed"]
        state = rate, tf.constant(0.0), *corrections
        _update_stable(handles, gradient, step["factor"], state, self._constants)


# -----------------------------------------------------------------------------------------------------------
# Native: LAMB and AdamW in one operation
#
# It reads and writes each number once; for LAMB, weights and moments twice.


class NativeOptimizer(CompiledOptimizer):
    """Base of `NativeAdamW` and `NativeLamb`: updates the variables of a device, and their copies in another
    type, by one call of a custom operation."""

    _LAYERWISE = False

    def __init__(self, operations: Any, **arguments):
        """Makes the optimizer; `operations` are those of `official.native`, the others as in `Moments`."""
        super().__init__(**arguments)
        self._operations = operations
        self._copies: dict[str, tf.Variable] = {}

    def make_copies(self, variables, dtype: tf.DType) -> dict[str, tf.Variable]:
        """Creates copies of variables in a type, in the strategy's scope; `update` keeps them equal to the
        variables. They are not part of a checkpoint. Returns {variable name: copy}; `renew_copies` sets their
        values."""
        for variable in variables:
            if variable.name in self._copies:
                continue
            with tf.distribute.get_strategy().extended.colocate_vars_with(variable):
                zeros = functools.partial(tf.zeros, shape=variable.shape, dtype=dtype)
                self._copies[variable.name] = tf.Variable(zeros, trainable=False, name="copy")
        return self._copies

    def renew_copies(self, variables) -> None:
        """Sets all copies by casting their variables; in replica context."""
        for variable in variables:
            copy = self._copies.get(variable.name)
            if copy is not None:
                write_variable(copy, tf.cast(tf.convert_to_tensor(variable), copy.dtype))

    def _update(self, gradients, variables, factor) -> None:
        """Updates variables with gradients of float32, bfloat16 or float16."""
        place = gradients_lib.beside(variables)
        devices: dict[str, list[tuple]] = {}
        for gradient, variable in zip(gradients, variables):
            devices.setdefault(gradients_lib.device_of(variable), []).append((gradient, variable))
        with tf.name_scope(type(self).__name__):  # profiles identify its operations by this name
            step = self._numbers(factor)
            self.decay_apart(variables)
            for pairs in devices.values():
                with place(pairs[0][1]):
                    self._update_all(step, *zip(*pairs))

    def global_norm(self, tensors) -> tf.Tensor:
        return self._operations.bert_global_norm(tensors=tensors)

    def _update_all(self, step, gradients, variables) -> None:
        """Updates the variables of a device."""
        moments = [self._moments[variable.name] for variable in variables]
        copied = [place for place, variable in enumerate(variables) if variable.name in self._copies]
        self._operations.bert_update(
            weights=[variable.handle for variable in variables],
            m=[each["m"].handle for each in moments],
            v=[each["v"].handle for each in moments],
            copies=[self._copies[variables[place].name].handle for place in copied],
            gradients=list(gradients),
            step=step,
            layerwise=self._LAYERWISE,
            decays=[self.decays(variable) for variable in variables],
            copy_of=copied,
            **self._constants._asdict(),
        )

    def _numbers(self, factor) -> tf.Tensor:
        """Returns float32 [7]: see `Numbers` in update.h."""
        shared = self._shared_by_updates(factor)
        adam = shared["excluded"]
        step_size = adam["lr"] * tf.sqrt(1 - adam["beta2_power"]) / (1 - adam["beta1_power"])
        kept = 1 - adam["lr"] * self._constants.weight_decay
        corrections = [1 / (1 - adam[name]) for name in ("beta1_power", "beta2_power")]
        return tf.stack([factor, step_size, kept, adam["epsilon"], adam["lr"], *corrections])


class NativeAdamW(NativeOptimizer, CompiledAdamW):
    """`CompiledAdamW` by a custom operation."""


class NativeLamb(NativeOptimizer, CompiledLamb):
    """`CompiledLamb` by a custom operation."""

    _LAYERWISE = True


# -----------------------------------------------------------------------------------------------------------
# Optimizers by name


_COMPILED: dict[str, Callable[..., Optimizer]] = {
    "lamb": CompiledLamb,
    "adam": CompiledAdamW,
    "adamw": CompiledAdamW,
    "stable_adamw": CompiledStableAdamW,
}
_NATIVE: dict[str, Callable[..., Optimizer]] = {"lamb": NativeLamb, "adam": NativeAdamW, "adamw": NativeAdamW}


def build_optimizer(config: Config, schedule: Callable, operations: Any = None) -> Optimizer:
    """Returns the optimizer, made in the strategy's scope by all processes of a run. Updates are float32.

    lamb (You et al. 2019): m, v with bias correction, u = m / (sqrt(v) + epsilon) + weight_decay * w,
      w -= rate * |w| / |u| * u.
    adamw: w -= rate * weight_decay * w, then Adam (Keras form: epsilon added to the uncorrected root).
    adam: adamw without decay. mpadamw: adamw with a first moment in float16. stable_adamw: adamw with clipped
      updates. sgd, momentum: without decay.
    All kernels agree to rounding; stable_adamw has no native form, and mpadamw, sgd and momentum only the
    plain one.

    Args:
      config: configuration of the run.
      schedule: step -> learning rate.
      operations: replacement of the native operations; None: according to --kernels.
    """
    kind, hyper = config.optimizer_type, hyper_parameters(config)
    kernels = "native" if operations is not None else update_kernels(config)
    if kernels == "plain":
        return build_plain(config, schedule)
    if kernels == "native" and kind in _NATIVE:
        return _NATIVE[kind](operations or native.operations(), learning_rate=schedule, **hyper)
    on_gpus = native.on_gpus() and not BACKENDS[config.distribution_strategy].spread_replicas
    if kind in _COMPILED and not on_gpus:
        return _COMPILED[kind](learning_rate=schedule, **hyper)
    optimizer = build_plain(config, schedule)
    optimizer.compiles = on_gpus
    return optimizer


def update_kernels(config: Config) -> str:
    """Returns the kernels that update the weights: plain, fused or native. Called in the strategy's scope.

    The processes of a run use the native kernels only if all have the same library, since only then all
    compute bit-identical weights. Raises ConfigError if --kernels=native is not possible.
    """
    asked = kernels_of(config)
    has_peers = BACKENDS[config.distribution_strategy].several_processes
    if asked in ("plain", "fused"):
        native.log_choice(asked)
        return asked
    if not has_peers or not native.on_cpus():
        return native.choose(asked)
    reason = native.unavailable()
    if not _all_have(None if reason else native.library_path()):
        native.fall_back(asked, reason or "the processes of the run do not all have the same library")
        return "fused"
    return native.choose(asked)


def _all_have(path: str | None) -> bool:
    """Returns whether all processes of the run have the same library as this one (sources, compiler and CPU).
    All processes must call it, even without a library (`path` is None), since the others wait."""
    name = os.path.basename(path).encode() if path else b""
    mark = int(hashlib.sha256(name).hexdigest()[:7], 16) if name else 0
    strategy = tf.distribute.get_strategy()

    @tf.function(autograph=False)
    def gathered():
        marks = strategy.run(lambda: gradients_lib.gather({"mark": tf.constant([mark])}))
        return strategy.experimental_local_results(marks["mark"])[0]

    marks = set(gathered().numpy().tolist())
    return marks == {mark} and mark != 0


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
    """Context manager that restores the values of variables at its end, bit by bit.

    The values are saved in host memory. For a variable that is all zero, such as a new optimizer's, nothing
    is saved.
    """
    kept = []
    for variable in variables:
        value = variable.read_value().numpy()
        kept.append(value if np.atleast_1d(value).view(np.uint8).any() else None)
    yield
    for variable, value in zip(variables, kept):
        variable.assign(tf.zeros(variable.shape, variable.dtype) if value is None else value)
