"""`mixed`'s AdamW, compiled: weights that decay and vectors go through the same function."""

from __future__ import annotations

import tensorflow as tf

from official.optimization import compiled
from official.optimization.mixed import ScaledMoment, loaded, stored


class CompiledAdamW(ScaledMoment, compiled.AdamW):
    """`compiled.AdamW` with the first moment in float16; vectors too go through the compiled function."""

    def _decayed_state(self, rate, beta_1_power, beta_2_power):
        return *super()._decayed_state(rate, beta_1_power, beta_2_power), tf.convert_to_tensor(self._scale)

    @staticmethod
    def _update_decayed(handles, grad, factor, state, constants):
        _update(handles, grad, factor, state, constants)

    def _update_excluded(self, handles, gradient, step) -> None:
        step_size, _, scale = step["decayed"]
        _update(handles, gradient, step["factor"], (step_size, tf.constant(1.0), scale), self._constants)


@compiled.jitted
def _update(handles, grad, factor, state, constants):
    """Updates a weight: `state` is its step size, the share of it that decay leaves, and the scale."""
    step_size, kept, scale = state
    weight, v = compiled.read((handles[0], handles[2]), grad.shape)
    kept_m = tf.raw_ops.ReadVariableOp(resource=handles[1], dtype=tf.float16)
    m = loaded(tf.ensure_shape(kept_m, grad.shape), scale)
    new_m, new_v = compiled.moments(m, v, grad * factor, constants)
    new_m = stored(new_m, scale)
    change = step_size * loaded(new_m, scale) / (tf.sqrt(new_v) + constants.epsilon)
    compiled.write(handles, (weight * kept - change, new_m, new_v))
