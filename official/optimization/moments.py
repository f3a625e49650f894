"""State that our own optimizers keep from step to step, whichever way they compute the update."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable, Sequence
from typing import ClassVar, NamedTuple

import tensorflow as tf

from official.optimization import spread


class Constants(NamedTuple):
    """Constants of an optimizer: the decay of the weights that do decay, and Adam's numbers."""

    weight_decay: float
    beta_1: float
    beta_2: float
    epsilon: float


class Slots:
    """Step counter, and the slots of every variable.

    Attributes:
      iterations: int64 variable, counts the updates.
      SLOTS: {slot: its type, None for that of the variable}.
    """

    SLOTS: ClassVar[dict[str, tf.DType | None]] = {"m": None, "v": None}

    def __init__(self, learning_rate: Callable):
        """Makes the step counter, in the strategy's scope.

        Args:
          learning_rate: schedule, float32 of the step.
        """
        self.iterations = tf.Variable(
            0,
            trainable=False,
            dtype=tf.int64,
            name="iterations",
            aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA,
        )
        self._learning_rate = learning_rate
        self._moments: dict[str, dict[str, tf.Variable]] = {}

    def create_slots(self, variables: Sequence[tf.Variable]) -> None:
        """Creates the slots of variables, no two of one name, in the strategy's scope."""
        for variable in variables:
            zeros = functools.partial(tf.zeros, shape=variable.shape)
            with tf.distribute.get_strategy().extended.colocate_vars_with(variable):
                # For each name of its own TensorFlow would prepare an operation of its own, a millisecond
                # that BERT-base would take 400 times.
                self._moments[variable.name] = {
                    slot: tf.Variable(
                        functools.partial(zeros, dtype=dtype or variable.dtype), trainable=False, name=slot
                    )
                    for slot, dtype in self.SLOTS.items()
                }

    def get_slot(self, variable: tf.Variable, slot: str) -> tf.Variable:
        return self._moments[variable.name][slot]

    def scalars(self) -> dict[str, tf.Variable]:
        """Returns {checkpoint name: variable} of the state beside the step counter and the slots."""
        return {}

    def global_norm(self, tensors: Sequence[tf.Tensor]) -> tf.Tensor:
        """Returns the norm, float32, of all numbers of tensors that are on one device."""
        return tf.linalg.global_norm(tensors)


class Moments(Slots):
    """Moments `m` and `v` of every variable, and which variables decay."""

    def __init__(
        self,
        learning_rate: Callable,
        weight_decay: float,
        beta_1: float,
        beta_2: float,
        epsilon: float,
        excluded: Iterable[str],
        bias_correction: bool = True,
        decayed_only: str = "",
    ):
        """Makes the optimizer, in the strategy's scope.

        Args:
          learning_rate: schedule, float32 of the step.
          weight_decay: of the weights that `excluded` does not name.
          beta_1, beta_2, epsilon: of Adam.
          excluded: regular expressions; variables whose name one of them is found in are not decayed.
          bias_correction: divides the moments by 1 - beta^step, which they are too small by.
          decayed_only: of LAMB, a regular expression of variables that `excluded` names and that decay all
            the same; empty: none.
        """
        super().__init__(learning_rate)
        self._constants = Constants(weight_decay, beta_1, beta_2, epsilon)
        self._excluded = re.compile("|".join(excluded))
        self._corrects = bias_correction
        self._decayed_only = re.compile(decayed_only) if decayed_only else None

    def decays(self, variable: tf.Variable) -> bool:
        """Tells whether a variable is decayed and, by LAMB, adapted."""
        return self._excluded.search(variable.name) is None

    def decay_apart(self, variables: Sequence[tf.Variable]) -> None:
        """Decays the variables that are decayed and not adapted, w -= rate * weight decay * w, before their
        update, which does not look at the weight; in the context of a replica."""
        apart = [each for each in variables if self._decayed_only and self._decayed_only.search(each.name)]
        if not apart:
            return
        kept = 1.0 - self._learning_rate(self.iterations) * self._constants.weight_decay
        place = spread.beside(variables)
        for variable in apart:
            with place(variable):
                write(variable, tf.convert_to_tensor(variable) * kept)


def write(variable: tf.Variable, value: tf.Tensor) -> None:
    """Writes a replica's own copy of a variable: `assign` would ask how the replicas' values are joined."""
    tf.raw_ops.AssignVariableOp(resource=variable.handle, value=value)
