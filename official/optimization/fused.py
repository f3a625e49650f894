"""LAMB and AdamW in few passes over memory, clipping and loss scaling among them.

An update of 110 M parameters is bound by memory. Weights that decay, nearly all, go through small compiled functions, one for each
shape, that read a gradient once and write the moments in place; norms stay outside, where they use all cores. The others, vectors, go
through ResourceApplyAdam.
"""

import functools
import re
from typing import NamedTuple

import tensorflow as tf

_compiled = tf.function(jit_compile=True, autograph=False)
_shared = tf.function(autograph=False, experimental_attributes={"_noinline": True})  # traced and optimised once for all variables of a shape


class _Constants(NamedTuple):
    """What stays the same from step to step; a compiled function has these numbers in it."""

    weight_decay: float
    beta_1: float
    beta_2: float
    epsilon: float


class Fused(tf.keras.optimizers.legacy.Optimizer):
    """What both optimizers share: hyper-parameters, moments `m` and `v`, and what does not decay.

    `factor`, float32, is what gradients are multiplied by before they are used: set it before `apply_gradients`.
    """

    _apply_decayed = None  # function of (handles, gradient, factor, what `_decayed_state` returns, constants) that updates a variable

    def __init__(self, learning_rate, weight_decay: float, beta_1: float, beta_2: float, epsilon: float, excluded):
        """Makes the optimizer.

        Args:
          learning_rate: schedule, float32 of the step.
          weight_decay: of the weights that `excluded` does not name.
          beta_1, beta_2, epsilon: of Adam.
          excluded: regular expressions; variables whose name one of them is found in are not decayed.
        """
        super().__init__(type(self).__name__)
        self._set_hyper("learning_rate", learning_rate)
        self._constants = _Constants(weight_decay, beta_1, beta_2, epsilon)
        self._excluded = excluded
        self.factor = tf.constant(1.0)

    def _create_slots(self, var_list):
        for slot in ("m", "v"):
            with tf.variable_creator_scope(functools.partial(_created_with_name, slot)):
                for variable in var_list:
                    self.add_slot(variable, slot)

    def _prepare_local(self, var_device, var_dtype, apply_state):
        """Computes what all updates of a step share, once a device: as operations of each variable these would be half of the graph."""
        step, rate = tf.cast(self.iterations + 1, var_dtype), self._decayed_lr(var_dtype)
        beta_1, beta_2, factor = (tf.convert_to_tensor(value, var_dtype) for value in (self._constants.beta_1, self._constants.beta_2, self.factor))
        beta_1_power, beta_2_power = tf.pow(beta_1, step), tf.pow(beta_2, step)
        apply_state[(var_device, var_dtype)] = {
            "factor": factor, "decayed": self._decayed_state(rate, beta_1_power, beta_2_power), "excluded": {
                "lr": rate, "beta1": beta_1, "beta2": beta_2, "beta1_power": beta_1_power, "beta2_power": beta_2_power,
                "epsilon": tf.convert_to_tensor(self._epsilon_beside_root(beta_2_power))}}

    def _resource_apply_dense(self, grad, var, apply_state):
        state = apply_state[(var.device, var.dtype.base_dtype)]
        m, v = (_on_device_of(var, self.get_slot(var, slot)) for slot in ("m", "v"))
        if any(re.search(pattern, var.name) for pattern in self._excluded):
            return tf.raw_ops.ResourceApplyAdam(var=var.handle, m=m.handle, v=v.handle, grad=grad * state["factor"], **state["excluded"])
        self._apply_decayed((var.handle, m.handle, v.handle), grad, state["factor"], state["decayed"], self._constants)
        return tf.no_op()  # Keras groups what updates return

    def _epsilon_beside_root(self, beta_2_power):
        """Returns the epsilon of m / (sqrt(v) + epsilon), in which v is not corrected."""
        raise NotImplementedError

    def _decayed_state(self, rate, beta_1_power, beta_2_power):
        """Returns the numbers of a step that `_apply_decayed` takes."""
        raise NotImplementedError

    def get_config(self):
        return {**super().get_config(), "learning_rate": self._serialize_hyperparameter("learning_rate"), **self._constants._asdict(),
                "excluded": self._excluded}


def _created_with_name(slot: str, next_creator, **settings):
    """Creates a variable. Where each has a name of its own, TensorFlow prepares an operation for each, a millisecond that BERT-base takes 400 times."""
    return next_creator(**{**settings, "name": slot})


def _on_device_of(var, slot):
    """Returns the part of a mirrored variable that lies on the device of `var`, or the variable where it is not mirrored."""
    return next((part for part in getattr(slot, "values", ()) if part.device == var.device), slot)


# Functions that are called for many variables take their handles, of weight, m and v: of a variable TensorFlow would keep a stand-in that
# does not live as long.
@_compiled
def _apply_adamw(handles, grad, factor, state, constants):
    step_size, kept = state
    weight, m, v = _read(handles, grad.shape)
    new_m, new_v = _moments(m, v, grad * factor, constants)
    _write(handles, (weight * kept - step_size * new_m / (tf.sqrt(new_v) + constants.epsilon), new_m, new_v))


@_shared
def _apply_lamb(handles, grad, factor, state, constants):
    with tf.name_scope("Lamb"):  # by which profiles tell the optimizer's operations from others
        rate, *corrections = state
        update = _lamb_update(handles, grad, factor, corrections, constants)
        weight, *_ = _read(handles[:1], grad.shape)
        weight_norm, update_norm = tf.sqrt(2 * tf.nn.l2_loss(weight)), tf.sqrt(2 * tf.nn.l2_loss(update))
        ratio = tf.where((weight_norm > 0) & (update_norm > 0), weight_norm / update_norm, 1.0)
        tf.raw_ops.ResourceApplyGradientDescent(var=handles[0], alpha=rate * ratio, delta=update)


@_compiled
def _lamb_update(handles, grad, factor, corrections, constants):
    """Updates the moments and returns u; `corrections` are what they are multiplied by."""
    weight, m, v = _read(handles, grad.shape)
    new_m, new_v = _moments(m, v, grad * factor, constants)
    _write(handles[1:], (new_m, new_v))
    m_correction, v_correction = corrections
    return new_m * m_correction / (tf.sqrt(new_v * v_correction) + constants.epsilon) + constants.weight_decay * weight


def _read(handles, shape):
    return [tf.ensure_shape(tf.raw_ops.ReadVariableOp(resource=handle, dtype=tf.float32), shape) for handle in handles]


def _write(handles, values):
    for handle, value in zip(handles, values):
        tf.raw_ops.AssignVariableOp(resource=handle, value=value)


def _moments(m, v, grad, constants):
    return m + (1 - constants.beta_1) * (grad - m), v + (1 - constants.beta_2) * (grad * grad - v)


class AdamW(Fused):
    """w -= rate * weight decay * w, then Adam in Keras' form, with epsilon beside the uncorrected root."""

    _apply_decayed = staticmethod(_apply_adamw)

    def _epsilon_beside_root(self, beta_2_power):
        return self._constants.epsilon

    def _decayed_state(self, rate, beta_1_power, beta_2_power):
        return rate * tf.sqrt(1 - beta_2_power) / (1 - beta_1_power), 1 - rate * self._constants.weight_decay


class Lamb(Fused):
    """m, v with bias correction, u = m / (sqrt(v) + epsilon) + weight decay * w, w -= rate * |w| / |u| * u.

    Variables that are not decayed are not adapted either: w -= rate * u. Source: You et al. 2019, "Large Batch Optimization for
    Deep Learning"; where one of the norms is 0 their ratio is 1, as in tensorflow-addons.
    """

    _apply_decayed = staticmethod(_apply_lamb)

    def _epsilon_beside_root(self, beta_2_power):
        return self._constants.epsilon * tf.sqrt(1 - beta_2_power)

    def _decayed_state(self, rate, beta_1_power, beta_2_power):
        return rate, 1 / (1 - beta_1_power), 1 / (1 - beta_2_power)
