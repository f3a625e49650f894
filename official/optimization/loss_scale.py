"""Loss scaling for float16 gradients.

Source: Micikevicius et al. 2017, "Mixed Precision Training"; growth and back-off of TensorFlow's
LossScaleOptimizer.
"""

from __future__ import annotations

from collections.abc import Callable

import tensorflow as tf

GROWTH_STEPS = 2000


class LossScale:
    """A loss scale that is fixed, dynamic (doubled after 2,000 finite steps in a row, halved, not below 1,
    after one that is not), or changes at given steps.

    Make it inside the strategy's scope; `update` is called outside of replicas.
    """

    def __init__(self, initial: float, dynamic: bool, by_step: Callable | None = None):
        """Makes the scale.

        Args:
          initial: of the first step.
          dynamic: whether it follows the gradients.
          by_step: step -> scale, float32, where it changes at given steps.
        """
        self.dynamic, self._by_step = dynamic, by_step
        self.scale = tf.Variable(float(initial), trainable=False, dtype=tf.float32, name="loss_scale/scale")
        self.good_steps = tf.Variable(0, trainable=False, dtype=tf.int64, name="loss_scale/good_steps")

    def update(self, finite: tf.Tensor, step: tf.Tensor | tf.Variable) -> None:
        """Takes the outcome of one step: whether the reduced gradient was finite (bool scalar), and the
        number of the step that comes next (0-based)."""
        if self._by_step is not None:
            self.scale.assign(self._by_step(step))
        if not self.dynamic:
            return
        streak = tf.where(finite, self.good_steps + 1, 0)
        grow = streak >= GROWTH_STEPS
        lowered = tf.maximum(self.scale / 2, 1.0)
        raised = tf.where(tf.math.is_finite(self.scale * 2), self.scale * 2, self.scale)
        self.scale.assign(tf.where(finite, tf.where(grow, raised, self.scale), lowered))
        self.good_steps.assign(tf.where(grow, tf.zeros_like(streak), streak))
