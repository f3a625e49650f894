"""Gradient descent, with momentum and without: in TensorFlow's fused operations, and as the formulas read.

Neither decays weights.
Source: TensorFlow's GradientDescentOptimizer and MomentumOptimizer, as Graphcore's TF1 BERT takes them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import tensorflow as tf

from official.optimization import spread
from official.optimization.moments import Slots, write


class PlainSgd(Slots):
    """w -= rate * g."""

    SLOTS: ClassVar[dict[str, tf.DType | None]] = {}

    def update(self, gradients, variables, factor) -> None:
        """Updates variables with gradients times `factor`, float32 each; in the context of a replica, all
        with the same gradients."""
        rate = self._learning_rate(self.iterations)
        place = spread.beside(variables)
        for gradient, variable in zip(gradients, variables):
            with place(variable):
                self._update_one(variable, gradient * factor, rate)
        self.iterations.assign_add(1)

    def _update_one(self, variable, gradient, rate) -> None:
        write(variable, tf.convert_to_tensor(variable) - rate * gradient)


class Sgd(PlainSgd):
    """`PlainSgd`, one operation a variable."""

    def _update_one(self, variable, gradient, rate) -> None:
        tf.raw_ops.ResourceApplyGradientDescent(var=variable.handle, alpha=rate, delta=gradient)


class PlainMomentum(PlainSgd):
    """m = momentum * m + g, w -= rate * m; the momentum is not Nesterov's."""

    SLOTS: ClassVar[dict[str, tf.DType | None]] = {"m": None}

    def __init__(self, learning_rate: Callable, momentum: float):
        """Makes the optimizer, in the strategy's scope.

        Args:
          learning_rate: schedule, float32 of the step.
          momentum: in [0, 1).
        """
        super().__init__(learning_rate)
        self._momentum = momentum

    def _update_one(self, variable, gradient, rate) -> None:
        m = self.get_slot(variable, "m")
        new_m = self._momentum * tf.convert_to_tensor(m) + gradient
        write(variable, tf.convert_to_tensor(variable) - rate * new_m)
        write(m, new_m)


class Momentum(PlainMomentum):
    """`PlainMomentum`, one operation a variable."""

    def _update_one(self, variable, gradient, rate) -> None:
        tf.raw_ops.ResourceApplyMomentum(
            var=variable.handle,
            accum=self.get_slot(variable, "m").handle,
            lr=rate,
            grad=gradient,
            momentum=tf.constant(self._momentum),
        )
