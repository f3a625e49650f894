"""LAMB and AdamW in few passes over memory, clipping and loss scaling among them.

An update of 110 M parameters is bound by memory. Weights that decay, nearly all, go through small compiled functions, one for each
shape, that read a gradient once and write the moments in place; norms stay outside, where they use all cores. The others, vectors, go
through ResourceApplyAdam.
"""

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
            for variable in var_list:
                self.add_slot(variable, slot)

    def _prepare_local(self, var_device, var_dtype, apply_state):
        step = tf.cast(self.iterations + 1, var_dtype)
        apply_state[(var_device, var_dtype)] = {
            "rate": self._decayed_lr(var_dtype), "beta_1_power": tf.pow(self._constants.beta_1, step),
            "beta_2_power": tf.pow(self._constants.beta_2, step)}

    def _resource_apply_dense(self, grad, var, apply_state):
        state = apply_state[(var.device, var.dtype.base_dtype)]
        m, v = (_on_device_of(var, self.get_slot(var, slot)) for slot in ("m", "v"))
        if any(re.search(pattern, var.name) for pattern in self._excluded):
            return tf.raw_ops.ResourceApplyAdam(
                var=var.handle, m=m.handle, v=v.handle, beta1_power=state["beta_1_power"], beta2_power=state["beta_2_power"], lr=state["rate"],
                beta1=self._constants.beta_1, beta2=self._constants.beta_2, epsilon=self._epsilon_beside_root(state), grad=grad * self.factor)
        self._apply_decayed(grad, (var.handle, m.handle, v.handle), state)
        return tf.no_op()  # Keras groups what updates return

    def _epsilon_beside_root(self, state):
        """Returns the epsilon of m / (sqrt(v) + epsilon), in which v is not corrected."""
        raise NotImplementedError

    def _apply_decayed(self, grad, handles, state):
        """Updates a variable that decays, and its moments; `handles` are those of the three."""
        raise NotImplementedError

    def get_config(self):
        return {**super().get_config(), "learning_rate": self._serialize_hyperparameter("learning_rate"), **self._constants._asdict(),
                "excluded": self._excluded}


def _on_device_of(var, slot):
    """Returns the part of a mirrored variable that lies on the device of `var`, or the variable where it is not mirrored."""
    return next((part for part in getattr(slot, "values", ()) if part.device == var.device), slot)


class AdamW(Fused):
    """w -= rate * weight decay * w, then Adam in Keras' form, with epsilon beside the uncorrected root."""

    def _epsilon_beside_root(self, state):
        return self._constants.epsilon

    def _apply_decayed(self, grad, handles, state):
        step_size = state["rate"] * tf.sqrt(1 - state["beta_2_power"]) / (1 - state["beta_1_power"])
        _apply_adamw(handles, grad, self.factor, step_size, 1 - state["rate"] * self._constants.weight_decay, self._constants)


class Lamb(Fused):
    """m, v with bias correction, u = m / (sqrt(v) + epsilon) + weight decay * w, w -= rate * |w| / |u| * u.

    Variables that are not decayed are not adapted either: w -= rate * u. Source: You et al. 2019, "Large Batch Optimization for
    Deep Learning"; where one of the norms is 0 their ratio is 1, as in tensorflow-addons.
    """

    def _epsilon_beside_root(self, state):
        return self._constants.epsilon * tf.sqrt(1 - state["beta_2_power"])

    def _apply_decayed(self, grad, handles, state):
        corrections = 1 / (1 - state["beta_1_power"]), 1 / (1 - state["beta_2_power"])
        _apply_lamb(handles, grad, self.factor, state["rate"], corrections, self._constants)


# Functions that are called for many variables take their handles: of a variable TensorFlow would keep a stand-in that does not live as long.
@_compiled
def _apply_adamw(handles, grad, factor, step_size, kept, constants):
    weight, m, v = _read(handles, grad.shape)
    new_m, new_v = _moments(m, v, grad * factor, constants)
    _write(handles, (weight * kept - step_size * new_m / (tf.sqrt(new_v) + constants.epsilon), new_m, new_v))


@_shared
def _apply_lamb(handles, grad, factor, rate, corrections, constants):
    with tf.name_scope("Lamb"):  # by which profiles tell the optimizer's operations from others
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
