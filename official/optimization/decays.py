"""Learning rates after the warm-up, one function each: what --lr_schedule names beside the polynomial.

Each is (step, shape) -> rate, float32 scalars: `step` is that of the update, from the end of the warm-up on.
Source: Graphcore's TF1 BERT (cosine, natural exponential, custom) and TF2 BERT (up-down), whose floor of 1e-7
is --end_learning_rate=1e-7 here.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow as tf

from official.config import Config, schedule_steps
from official.config import by_step as by_step_lib


class Shape(NamedTuple):
    """Numbers that define a decay.

    Attributes:
      peak: learning rate at the end of the warm-up.
      floor: the rate does not fall below it.
      begin: step at which the warm-up ends.
      total: step at which the schedule ends, one after the last.
      decay_steps: of the natural exponential, see --decay_steps.
      decay_rate: of the natural exponential, see --decay_rate.
    """

    peak: float
    floor: float
    begin: int
    total: int
    decay_steps: int = 1
    decay_rate: float = 0.0


def cosine(step: tf.Tensor, shape: Shape) -> tf.Tensor:
    """Half a wave: peak * (1 + cos(pi * (t - W) / (T - W))) / 2."""
    done = (step - shape.begin) / max(shape.total - shape.begin, 1.0)
    return 0.5 * shape.peak * (1.0 + tf.cos(math.pi * tf.minimum(done, 1.0)))


def natural_exponential(step: tf.Tensor, shape: Shape) -> tf.Tensor:
    """Stairs: peak * exp(-decay_rate * floor((t - W) / decay_steps))."""
    return shape.peak * tf.exp(-shape.decay_rate * tf.floor((step - shape.begin) / shape.decay_steps))


def up_down(step: tf.Tensor, shape: Shape) -> tf.Tensor:
    """A straight line, at 0 after the last step: peak * (T - t - 1) / (T - W), and the peak at t = W."""
    falling = shape.peak * (shape.total - step - 1.0) / max(shape.total - shape.begin, 1.0)
    return tf.where(step <= shape.begin, shape.peak, falling)


DECAYS: dict[str, Callable[[tf.Tensor, Shape], tf.Tensor]] = {
    "cosine": cosine,
    "natural_exponential": natural_exponential,
    "up_down": up_down,
}


class Decaying(tf.keras.optimizers.schedules.LearningRateSchedule):
    """One of DECAYS, not below its floor; the warm-up comes before it.

    Args:
      decay: a name of DECAYS.
      shape: of the decay.
    """

    def __init__(self, decay: str, shape: Shape):
        self.decay, self.shape = decay, shape

    def __call__(self, step: Any) -> tf.Tensor:
        """Returns the learning rate, float32, of the update that is made at `step` (0-based)."""
        step = tf.maximum(tf.cast(step, tf.float32), float(self.shape.begin))
        return tf.maximum(DECAYS[self.decay](step, self.shape), self.shape.floor)

    def get_config(self) -> dict[str, Any]:
        return dict(vars(self))


class ByStep(tf.keras.optimizers.schedules.LearningRateSchedule):
    """Values that change at given steps.

    Args:
      values: {step: value}, one of them of step 0; a value holds from its step on.
    """

    def __init__(self, values: dict[int, float]):
        self.values = values

    def __call__(self, step: Any) -> tf.Tensor:
        """Returns the value, float32, of the greatest step that is `step` (0-based) or before it."""
        steps, values = tf.constant(list(self.values), tf.int64), tf.constant([*self.values.values()])
        return tf.gather(values, tf.reduce_sum(tf.cast(tf.cast(step, tf.int64) >= steps, tf.int32)) - 1)

    def get_config(self) -> dict[str, Any]:
        return dict(vars(self))


def from_config(config: Config) -> tf.keras.optimizers.schedules.LearningRateSchedule:
    """Returns the schedule that --lr_schedule names, without its warm-up; for all but the polynomial."""
    if config.lr_schedule == "custom":
        assert config.lr_schedule_by_step is not None  # validation demands it
        return ByStep(by_step_lib.read(config.lr_schedule_by_step, "lr_schedule_by_step"))
    warmup_steps = whole_warmup_steps(config)
    begin = config.start_warmup_step + warmup_steps if warmup_steps else 0
    shape = Shape(config.learning_rate, config.end_learning_rate, begin, schedule_steps(config))
    if config.decay_steps is not None and config.decay_rate is not None:
        shape = shape._replace(decay_steps=config.decay_steps, decay_rate=config.decay_rate)
    return Decaying(config.lr_schedule, shape)


def whole_warmup_steps(config: Config) -> int:
    """Returns the steps of the warm-up of these schedules. A share of the steps is cut to whole ones, as
    Graphcore's are."""
    return int(config.warmup_steps)
