"""LAMB and AdamW in few passes over memory, compiled, clipping and loss scaling among them."""

from __future__ import annotations

import re

import tensorflow as tf

from official.optimization import device_placement
from official.optimization.plain_optimizers import Moments, ScaledMoment, loaded, stored

# -----------------------------------------------------------------------------------------------------------
# LAMB and AdamW
#
# An update of 110 M parameters is bound by memory. Weights that decay, nearly all, go through small
# compiled functions, one for each shape, that read a gradient once and write the moments in place; norms
# stay outside, where they use all cores. The others, vectors, go through ResourceApplyAdam.


jitted = tf.function(jit_compile=True, autograph=False)
# Traced and optimised once for all layers that are alike.
_shared = tf.function(autograph=False, experimental_attributes={"_noinline": True})
_LAYER = re.compile(r".*/layer_\d+/")


class CompiledOptimizer(Moments):
    """Base of `AdamW` and `Lamb`: updates variables layer by layer, by one function that all layers share."""

    def update(self, gradients, variables, factor) -> None:
        """Updates variables that have slots with gradients times `factor`, float32 each; in the context of a
        replica, all with the same gradients."""
        place = device_placement.beside(variables)
        # Of a layer ("" for what is in none) and a device: one of its variables, the weights.
        layers: dict[tuple, tuple[tf.Variable, list[tuple]]] = {}
        for gradient, variable in zip(gradients, variables):
            match = _LAYER.match(variable.name)
            handles = tuple(each.handle for each in (variable, *self._moments[variable.name].values()))
            weight = (handles, gradient, self.decays(variable))
            layer = match.group() if match else "", device_placement.device_of(variable)
            layers.setdefault(layer, (variable, []))[1].append(weight)
        # By this name profiles tell the optimizer's operations from others.
        with tf.name_scope(type(self).__name__):
            step = self._shared_by_updates(factor)
            self.decay_apart(variables)
            for variable, weights in layers.values():
                with place(variable):
                    self._update_layer(*zip(*weights), step)
        self.iterations.assign_add(1)

    def _shared_by_updates(self, factor) -> dict:
        """Computes what all updates of a step share: as operations of each variable these would be half of
        the graph."""
        step, rate = tf.cast(self.iterations + 1, tf.float32), self._learning_rate(self.iterations)
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

    # It takes handles: of a variable TensorFlow would keep a stand-in that does not live as long.
    @_shared
    def _update_layer(self, handles, gradients, decays, step):
        with tf.name_scope(type(self).__name__):  # that of the caller ends at the call
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
        """Returns the numbers of a step that `_update_decayed` takes."""
        raise NotImplementedError

    def _epsilon_beside_root(self, beta_2_power):
        """Returns the epsilon of m / (sqrt(v) + epsilon), in which v is not corrected."""
        raise NotImplementedError


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
    """Updates the moments and returns u; `corrections` are their factors for bias correction."""
    weight, m, v = read(handles, grad.shape)
    new_m, new_v = moments(m, v, grad * factor, constants)
    write(handles[1:], (new_m, new_v))
    m_correction, v_correction = corrections
    return (
        new_m * m_correction / (tf.sqrt(new_v * v_correction) + constants.epsilon)
        + constants.weight_decay * weight
    )


# The compiled functions by name, for who measures what one of them takes.
COMPILED = {"update adamw": _update_adamw, "lamb direction": _lamb_direction}


def read(handles, shape):
    """Returns the values, float32, of variables of a shape, by their handles, which need not know it."""
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


class AdamW(CompiledOptimizer):
    """w -= rate * weight decay * w, then Adam in Keras' form, with epsilon beside the uncorrected root."""

    _update_decayed = staticmethod(_update_adamw)

    def _epsilon_beside_root(self, beta_2_power):
        return self._constants.epsilon

    def _decayed_state(self, rate, beta_1_power, beta_2_power):
        return rate * tf.sqrt(1 - beta_2_power) / (1 - beta_1_power), 1 - rate * self._constants.weight_decay


class Lamb(CompiledOptimizer):
    """m, v with bias correction, u = m / (sqrt(v) + epsilon) + weight decay * w, w -= rate * |w| / |u| * u.

    Variables that are not decayed are not adapted either: w -= rate * u. Where one of the norms is 0 their
    ratio is 1, as in tensorflow-addons.
    Source: You et al. 2019, "Large Batch Optimization for Deep Learning".
    """

    _update_decayed = staticmethod(_update_lamb)

    def _epsilon_beside_root(self, beta_2_power):
        return self._constants.epsilon * tf.sqrt(1 - beta_2_power)

    def _decayed_state(self, rate, beta_1_power, beta_2_power):
        return rate, 1 / (1 - beta_1_power), 1 / (1 - beta_2_power)


# -----------------------------------------------------------------------------------------------------------
# AdamW with a first moment in float16


class CompiledAdamW(ScaledMoment, AdamW):
    """`compiled.AdamW` with the first moment in float16; vectors too go through the compiled function."""

    def _decayed_state(self, rate, beta_1_power, beta_2_power):
        return *super()._decayed_state(rate, beta_1_power, beta_2_power), tf.convert_to_tensor(self._scale)

    @staticmethod
    def _update_decayed(handles, grad, factor, state, constants):
        _update(handles, grad, factor, state, constants)

    def _update_excluded(self, handles, gradient, step) -> None:
        step_size, _, scale = step["decayed"]
        _update(handles, gradient, step["factor"], (step_size, tf.constant(1.0), scale), self._constants)


@jitted
def _update(handles, grad, factor, state, constants):
    """Updates a weight: `state` is its step size, the share of it that decay leaves, and the scale."""
    step_size, kept, scale = state
    weight, v = read((handles[0], handles[2]), grad.shape)
    kept_m = tf.raw_ops.ReadVariableOp(resource=handles[1], dtype=tf.float16)
    m = loaded(tf.ensure_shape(kept_m, grad.shape), scale)
    new_m, new_v = moments(m, v, grad * factor, constants)
    new_m = stored(new_m, scale)
    change = step_size * loaded(new_m, scale) / (tf.sqrt(new_v) + constants.epsilon)
    write(handles, (weight * kept - change, new_m, new_v))
