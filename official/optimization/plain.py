"""LAMB and AdamW as their formulas read, one TensorFlow operation after the other.

--fused_ops=false takes them where tensorflow-addons is not installed. They equal its optimizers to rounding.
"""

from __future__ import annotations

import tensorflow as tf

from official.optimization import spread
from official.optimization.moments import Moments, write


class PlainOptimizer(Moments):
    """Base of `AdamW` and `Lamb`: updates moments and weights; a subclass computes the change of a weight."""

    def update(self, gradients, variables, factor) -> None:
        """Updates variables that have slots with gradients times `factor`, float32 each; in the context of a
        replica, all with the same gradients."""
        _, beta_1, beta_2, _ = self._constants
        step = tf.cast(self.iterations + 1, tf.float32)
        corrections = (1 - tf.pow(beta_1, step), 1 - tf.pow(beta_2, step)) if self._corrects else (1.0, 1.0)
        rate = self._learning_rate(self.iterations)
        self.decay_apart(variables)
        place = spread.beside(variables)
        for gradient, variable in zip(gradients, variables):
            with place(variable):
                m, v = self._moments[variable.name].values()
                gradient = gradient * factor
                new_m = beta_1 * self._loaded(m) + (1 - beta_1) * gradient
                new_v = beta_2 * v + (1 - beta_2) * tf.square(gradient)
                weight, stored_m = tf.convert_to_tensor(variable), self._stored(new_m)
                moments = self._loaded(stored_m), new_v
                change = self._change(weight, moments, corrections, rate, self.decays(variable))
                write(variable, weight - change)
                write(m, stored_m)
                write(v, new_v)
        self.iterations.assign_add(1)

    def _stored(self, m):
        """Returns a first moment, float32, as it is kept."""
        return m

    def _loaded(self, m):
        """Returns a first moment that is kept as float32."""
        return m

    def _change(self, weight, moments, corrections, rate, decays: bool):
        """Returns the tensor that is subtracted from a weight.

        Args:
          weight: tensor.
          moments: m and v, updated, of the weight's shape.
          corrections: 1 - beta_1^step and 1 - beta_2^step, float32 scalars.
          rate: learning rate, float32 scalar.
          decays: whether the weight is decayed and, by LAMB, adapted.
        """
        raise NotImplementedError


class AdamW(PlainOptimizer):
    """w -= rate * weight decay * w, then Adam in Keras' form, with epsilon beside the uncorrected root."""

    def _change(self, weight, moments, corrections, rate, decays: bool):
        m, v = moments
        of_m, of_v = corrections
        change = rate * tf.sqrt(of_v) / of_m * m / (tf.sqrt(v) + self._constants.epsilon)
        return change + rate * self._constants.weight_decay * weight if decays else change


class Lamb(PlainOptimizer):
    """u = m / (sqrt(v) + epsilon) + weight decay * w with corrected m and v, w -= rate * |w| / |u| * u.

    Variables that are not decayed are not adapted either: w -= rate * u. Where one of the norms is 0 their
    ratio is 1, as in tensorflow-addons.
    Source: You et al. 2019, "Large Batch Optimization for Deep Learning".
    """

    def _change(self, weight, moments, corrections, rate, decays: bool):
        m, v = (moment / correction for moment, correction in zip(moments, corrections))
        direction = m / (tf.sqrt(v) + self._constants.epsilon)
        if not decays:
            return rate * direction
        direction += self._constants.weight_decay * weight
        weight_norm, norm = tf.norm(weight), tf.norm(direction)
        ratio = tf.where((weight_norm > 0) & (norm > 0), tf.math.divide_no_nan(weight_norm, norm), 1.0)
        return rate * ratio * direction
