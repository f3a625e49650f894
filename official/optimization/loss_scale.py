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
        self.dynamic, self._by_step, self._initial = dynamic, by_step, float(initial)
        self.scale = tf.Variable(float(initial), trainable=False, dtype=tf.float32, name="loss_scale/scale")
        self.good_steps = tf.Variable(0, trainable=False, dtype=tf.int64, name="loss_scale/good_steps")

    def told(self, step: int) -> float | None:
        """Returns the scale of a step (0-based) by the settings; None for a dynamic one."""
        if self.dynamic:
            return None
        return self._initial if self._by_step is None else float(self._by_step(step))

    def at(self, step: tf.Tensor | tf.Variable) -> tf.Tensor:
        """Returns the scale of a step (0-based) by the settings, float32, in a graph; not of a dynamic
        one."""
        return tf.constant(self._initial) if self._by_step is None else self._by_step(step)

    def go_on(self, step: int) -> None:
        """Takes the scale of the settings for the step that comes next: a checkpoint may have that of
        others. A dynamic one goes on from the checkpoint's."""
        told = self.told(step)
        if told is not None:
            self.scale.assign(told)

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
