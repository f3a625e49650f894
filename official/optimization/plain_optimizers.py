"""Optimizers in plain TensorFlow operations, with their arguments and the names of their slots.

LAMB, AdamW, AdamW with a first moment in float16, SGD and momentum. Compiled and native forms keep the
same state.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar, NamedTuple

import tensorflow as tf

from official.config import initial_loss_scale
from official.config.table import Config
from official.optimization import gradients as gradients_lib

jitted = tf.function(jit_compile=True, autograph=False)


# -----------------------------------------------------------------------------------------------------------
# Slots


class Constants(NamedTuple):
    """Constants of an optimizer: the weight decay, and Adam's hyperparameters."""

    weight_decay: float
    beta_1: float
    beta_2: float
    epsilon: float


class Optimizer:
    """Base of all optimizers: step counter, and slots of all variables.

    Attributes:
      iterations: int64 variable, counts the updates and drives the schedule.
      share_of: function from a variable's name to its share of the learning rate; default 1.
      SLOTS: {slot: its type, None for that of the variable}.
      compiles: whether XLA compiles the whole update, and the norm, to one program each. On a GPU, launching
        separate operations for hundreds of variables would take as long as computing the gradients.
    """

    compiles = False
    SLOTS: ClassVar[dict[str, tf.DType | None]] = {"m": None, "v": None}

    def __init__(self, learning_rate: Callable):
        """Makes the step counter, in the strategy's scope.

        Args:
          learning_rate: schedule: function of the step, float32.
        """
        first = tf.VariableAggregation.ONLY_FIRST_REPLICA
        self.iterations = tf.Variable(
            0, trainable=False, dtype=tf.int64, name="iterations", aggregation=first
        )
        self._learning_rate = learning_rate
        self._moments: dict[str, dict[str, tf.Variable]] = {}
        self.share_of: Callable[[str], float] = lambda name: 1.0
        self._share = 1.0
        self._finite: tf.Tensor | None = None

    def create_slots(self, variables: Sequence[tf.Variable]) -> None:
        """Creates the slots of variables, whose names must be unique, in the strategy's scope: before the
        first step, so that a checkpoint can be restored."""
        for variable in variables:
            zeros = functools.partial(tf.zeros, shape=variable.shape)
            with tf.distribute.get_strategy().extended.colocate_vars_with(variable):
                # For each distinct name TensorFlow would prepare a separate operation, which takes a
                # millisecond, 400 times for BERT-base.
                self._moments[variable.name] = {
                    slot: tf.Variable(
                        functools.partial(zeros, dtype=dtype or variable.dtype), trainable=False, name=slot
                    )
                    for slot, dtype in self.SLOTS.items()
                }

    def update(self, gradients, variables, factor, finite: tf.Tensor | None = None) -> None:
        """Updates variables with float32 gradients times `factor`; in replica context, with the same
        gradients on all replicas. Variables with other shares of the learning rate are updated separately. If
        the optimizer `compiles`, a false `finite` leaves variables and slots unchanged; the step is
        counted."""
        pairs = list(zip(gradients, variables))
        for share in sorted({self.share_of(variable.name) for variable in variables}):
            own = [pair for pair in pairs if self.share_of(pair[1].name) == share]
            own_gradients, own_variables = map(list, zip(*own))

            def update(gradients, factor, finite, share=share, own_variables=own_variables):
                self._share, self._finite = share, finite
                self._update(gradients, own_variables, factor)

            (jitted(update) if self.compiles else update)(own_gradients, factor, finite)
        self.iterations.assign_add(1)

    def _update(self, gradients, variables, factor) -> None:
        """Updates variables with the same learning rate."""
        raise NotImplementedError

    def _rate(self) -> tf.Tensor:
        """Returns the learning rate of the current variables, float32."""
        rate = self._learning_rate(self.iterations)
        return rate if self._share == 1.0 else rate * self._share

    def get_slot(self, variable: tf.Variable, slot: str) -> tf.Variable:
        return self._moments[variable.name][slot]

    def scalars(self) -> dict[str, tf.Variable]:
        """Returns {checkpoint name: variable} of the state other than the step counter and the slots."""
        return {}

    def global_norm(self, tensors: Sequence[tf.Tensor]) -> tf.Tensor:
        """Returns the norm, float32, of tensors on one device."""
        norm = tf.linalg.global_norm
        return (jitted(norm) if self.compiles else norm)(tensors)

    def _write(self, variable: tf.Variable, value: tf.Tensor) -> None:
        """Writes a replica's copy of a variable, unless the gradient is not finite."""
        if self._finite is not None:
            value = tf.where(self._finite, value, tf.convert_to_tensor(variable))
        write(variable, value)


class Moments(Optimizer):
    """Base of optimizers with moments `m` and `v` per variable, and weight decay."""

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
          learning_rate: schedule: function of the step, float32.
          weight_decay: decay of the weights that `excluded` does not match.
          beta_1, beta_2, epsilon: hyperparameters of Adam.
          excluded: regular expressions; variables whose name contains a match are not decayed.
          bias_correction: divide the moments by 1 - beta^step.
          decayed_only: for LAMB, a regular expression of excluded variables that decay nevertheless; empty:
            none.
        """
        super().__init__(learning_rate)
        self._constants = Constants(weight_decay, beta_1, beta_2, epsilon)
        self._excluded = re.compile("|".join(excluded))
        self._corrects = bias_correction
        self._decayed_only = re.compile(decayed_only) if decayed_only else None

    def decays(self, variable: tf.Variable) -> bool:
        """Returns whether a variable is decayed and, by LAMB, adapted."""
        return self._excluded.search(variable.name) is None

    def decay_apart(self, variables: Sequence[tf.Variable]) -> None:
        """Decays the variables that are decayed but not adapted, w -= rate * weight decay * w, before their
        update, which does not read the weight; in replica context."""
        apart = [each for each in variables if self._decayed_only and self._decayed_only.search(each.name)]
        if not apart:
            return
        kept = 1.0 - self._rate() * self._constants.weight_decay
        place = gradients_lib.beside(variables)
        for variable in apart:
            with place(variable):
                self._write(variable, tf.convert_to_tensor(variable) * kept)


def write(variable: tf.Variable, value: tf.Tensor) -> None:
    """Assigns to a replica's copy of a variable, for which `assign` would require an aggregation."""
    tf.raw_ops.AssignVariableOp(resource=variable.handle, value=value)


# -----------------------------------------------------------------------------------------------------------
# LAMB, AdamW and AdamW with clipped updates; the first two agree with those of tensorflow-addons to
# rounding


class PlainOptimizer(Moments):
    """Base of `AdamW`, `StableAdamW` and `Lamb`: updates moments and weights; a subclass computes the change
    of a weight."""

    def _update(self, gradients, variables, factor) -> None:
        _, beta_1, beta_2, _ = self._constants
        step = tf.cast(self.iterations + 1, tf.float32)
        corrections = (1 - tf.pow(beta_1, step), 1 - tf.pow(beta_2, step)) if self._corrects else (1.0, 1.0)
        rate = self._rate()
        self.decay_apart(variables)
        place = gradients_lib.beside(variables)
        for gradient, variable in zip(gradients, variables):
            with place(variable):
                m, v = self._moments[variable.name].values()
                gradient = gradient * factor
                new_m = beta_1 * self._loaded(m) + (1 - beta_1) * gradient
                new_v = beta_2 * v + (1 - beta_2) * tf.square(gradient)
                weight, stored_m = tf.convert_to_tensor(variable), self._stored(new_m)
                moments = self._loaded(stored_m), new_v
                change = self._change(weight, gradient, moments, corrections, rate, self.decays(variable))
                self._write(variable, weight - change)
                self._write(m, stored_m)
                self._write(v, new_v)

    def _stored(self, m):
        """Returns the stored form of a float32 first moment."""
        return m

    def _loaded(self, m):
        """Returns a stored first moment as float32."""
        return m

    def _change(self, weight, gradient, moments, corrections, rate, decays: bool):
        """Returns the tensor that is subtracted from a weight.

        Args:
          weight: tensor.
          gradient: of the weight's shape.
          moments: m and v, updated, of the weight's shape.
          corrections: 1 - beta_1^step and 1 - beta_2^step, float32 scalars.
          rate: learning rate, float32 scalar.
          decays: whether the weight is decayed and, by LAMB, adapted.
        """
        raise NotImplementedError


class AdamW(PlainOptimizer):
    """w -= rate * weight decay * w, then Adam in Keras' form, with epsilon added to the uncorrected root."""

    def _change(self, weight, gradient, moments, corrections, rate, decays: bool):
        m, v = moments
        of_m, of_v = corrections
        change = rate * tf.sqrt(of_v) / of_m * m / (tf.sqrt(v) + self._constants.epsilon)
        return change + rate * self._constants.weight_decay * weight if decays else change


class StableAdamW(PlainOptimizer):
    """AdamW whose rate for a variable is divided by the root mean square of g / sqrt(v), if that is above
    1: AdaFactor's clipping of updates. m and v are corrected; sqrt(v) is at least epsilon.

    Source: Wortsman et al. 2023, "Stable and low-precision training for large-scale vision-language models".
    """

    def _change(self, weight, gradient, moments, corrections, rate, decays: bool):
        constants = self._constants
        m, v = (moment / correction for moment, correction in zip(moments, corrections))
        rate = clipped_rate(rate, gradient, v, constants.epsilon)
        change = rate * m / (tf.sqrt(v) + constants.epsilon)
        return change + rate * constants.weight_decay * weight if decays else change


def clipped_rate(rate, gradient, v, epsilon: float):
    """Returns the rate of `StableAdamW` for a variable, float32; `v` is its corrected second moment."""
    square = tf.square(gradient) / tf.maximum(v, epsilon**2)
    return rate / tf.maximum(tf.sqrt(tf.reduce_mean(square)), 1.0)


class Lamb(PlainOptimizer):
    """u = m / (sqrt(v) + epsilon) + weight decay * w with corrected m and v, w -= rate * |w| / |u| * u.

    Variables that are not decayed are not adapted either: w -= rate * u. If one of the norms is 0, their
    ratio is 1, as in tensorflow-addons.
    Source: You et al. 2019, "Large Batch Optimization for Deep Learning".
    """

    def _change(self, weight, gradient, moments, corrections, rate, decays: bool):
        m, v = (moment / correction for moment, correction in zip(moments, corrections))
        direction = m / (tf.sqrt(v) + self._constants.epsilon)
        if not decays:
            return rate * direction
        direction += self._constants.weight_decay * weight
        weight_norm, norm = tf.norm(weight), tf.norm(direction)
        ratio = tf.where((weight_norm > 0) & (norm > 0), tf.math.divide_no_nan(weight_norm, norm), 1.0)
        return rate * ratio * direction


# -----------------------------------------------------------------------------------------------------------
# SGD and momentum
#
# Neither decays weights. Source: TensorFlow's GradientDescentOptimizer and MomentumOptimizer, as in
# Graphcore's TF1 BERT.


class Sgd(Optimizer):
    """w -= rate * g."""

    SLOTS: ClassVar[dict[str, tf.DType | None]] = {}

    def _update(self, gradients, variables, factor) -> None:
        rate = self._rate()
        place = gradients_lib.beside(variables)
        for gradient, variable in zip(gradients, variables):
            with place(variable):
                self._update_one(variable, gradient * factor, rate)

    def _update_one(self, variable, gradient, rate) -> None:
        self._write(variable, tf.convert_to_tensor(variable) - rate * gradient)


class Momentum(Sgd):
    """m = momentum * m + g, w -= rate * m; the momentum is not Nesterov's."""

    SLOTS: ClassVar[dict[str, tf.DType | None]] = {"m": None}

    def __init__(self, learning_rate: Callable, momentum: float):
        """Makes the optimizer, in the strategy's scope.

        Args:
          learning_rate: schedule: function of the step, float32.
          momentum: momentum, in [0, 1).
        """
        super().__init__(learning_rate)
        self._momentum = momentum

    def _update_one(self, variable, gradient, rate) -> None:
        m = self.get_slot(variable, "m")
        new_m = self._momentum * tf.convert_to_tensor(m) + gradient
        self._write(variable, tf.convert_to_tensor(variable) - rate * new_m)
        self._write(m, new_m)


# -----------------------------------------------------------------------------------------------------------
# AdamW with a first moment in float16
#
# The moment is multiplied by a scale, so that float16 can hold small values. The scale is the loss scale of
# the run's first step. A checkpoint holds it (`SCALE`), and it is constant even if the loss scale changes. A
# moment beyond the range of float16 is clipped. Source: mpadamw of Graphcore's TF1 BERT, which stores the
# moment of the scaled gradients. It also scales the second moment and epsilon, which makes no difference in
# float32.


SCALE = "adam_m_scale"


class MpAdamW(AdamW):
    """`AdamW` with the first moment in float16, times a scale."""

    SLOTS: ClassVar[dict[str, tf.DType | None]] = {"m": tf.float16, "v": None}

    def __init__(self, learning_rate: Callable, scale: float, **hyper):
        """Makes the optimizer; `scale` of the first moment, the others as in `Moments`."""
        super().__init__(learning_rate, **hyper)
        aggregation = tf.VariableAggregation.ONLY_FIRST_REPLICA
        self._scale = tf.Variable(
            scale, trainable=False, dtype=tf.float32, name=SCALE, aggregation=aggregation
        )

    def scalars(self) -> dict[str, tf.Variable]:
        return {SCALE: self._scale}

    def _stored(self, m):
        return tf.cast(tf.clip_by_value(m * self._scale, tf.float16.min, tf.float16.max), tf.float16)

    def _loaded(self, m):
        return tf.cast(m, tf.float32) / self._scale


# -----------------------------------------------------------------------------------------------------------
# Optimizers by name


# Neither decayed nor, by LAMB, adapted. The reference's AdamW list lacks LayerNorm's TF1 spelling, so that
# the gamma of the MLM head is decayed there; here both optimizers use the same list.
EXCLUDED = ("LayerNorm", "layer_norm", "bias")
GAMMA = "/gamma"  # LayerNorm's gamma

# Names of the slots in checkpoints, as in Google's and Graphcore's TF1 optimizers.
_ADAM_SLOTS = {"m": "adam_m", "v": "adam_v"}
SLOT_NAMES: dict[str, dict[str, str]] = {
    "lamb": {"m": "lamb_m", "v": "lamb_v"},
    "adam": _ADAM_SLOTS,
    "adamw": _ADAM_SLOTS,
    "mpadamw": _ADAM_SLOTS,
    "stable_adamw": _ADAM_SLOTS,
    "momentum": {"m": "Momentum"},
    "sgd": {},
}


_PLAIN: dict[str, Callable[..., Optimizer]] = {
    "lamb": Lamb,
    "adam": AdamW,
    "adamw": AdamW,
    "mpadamw": MpAdamW,
    "stable_adamw": StableAdamW,
    "momentum": Momentum,
    "sgd": Sgd,
}


def build_plain(config: Config, schedule: Callable) -> Optimizer:
    """Returns the optimizer in plain TensorFlow operations, made in the strategy's scope."""
    return _PLAIN[config.optimizer_type](learning_rate=schedule, **hyper_parameters(config))


def hyper_parameters(config: Config) -> dict[str, Any]:
    """Returns the arguments of an optimizer, except its schedule."""
    kind = config.optimizer_type
    if kind in ("sgd", "momentum"):
        return {"momentum": config.momentum} if kind == "momentum" else {}
    hyper: dict[str, Any] = dict(
        weight_decay=0.0 if kind == "adam" else config.weight_decay_rate,
        beta_1=config.beta_1,
        beta_2=config.beta_2,
        epsilon=config.epsilon,
        excluded=list(EXCLUDED),
        bias_correction=config.bias_correction,
    )
    if kind == "lamb" and config.lamb_decays_gamma:
        hyper["decayed_only"] = GAMMA
    if kind == "mpadamw":
        hyper["scale"] = initial_loss_scale(config) or 1.0
    return hyper


def slot_variables(optimizer: Optimizer, optimizer_type: str, variables) -> dict[str, tf.Variable]:
    """Returns {checkpoint name: slot variable}, e.g. bert/embeddings/word_embeddings/lamb_m."""
    return {
        f"{variable.name.split(':')[0]}/{saved}": optimizer.get_slot(variable, slot)
        for slot, saved in SLOT_NAMES[optimizer_type].items()
        for variable in variables
    }
