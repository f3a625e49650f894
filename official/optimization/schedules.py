"""Learning-rate schedules: pure functions of the step."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import tensorflow as tf

from official.config import BUDGET_PARTS, decay_length, schedule_steps
from official.config import values as by_step_lib
from official.config.table import Config

if TYPE_CHECKING:  # used only in annotations: invalid at run time in Python 3.8
    Schedule = Callable[[Any], tf.Tensor]  # step (0-based) of an update -> its learning rate, float32

# -----------------------------------------------------------------------------------------------------------
# Decays after the warm-up: the values of --lr_schedule except polynomial
#
# Each is a function (step, shape) -> rate, float32 scalars: `step` is the step of the update, from the end of
# the warm-up on. Source: Graphcore's TF1 BERT (cosine, natural exponential, custom) and TF2 BERT (up-down),
# whose floor of 1e-7 is --end_learning_rate=1e-7 here; Hu et al. 2024, "MiniCPM" (warm-up, stable, decay),
# and Haegele et al. 2024, "Scaling Laws and Compute-Optimal Training Beyond Fixed Training Durations" (its
# form 1 - sqrt).


class Shape(NamedTuple):
    """Numbers that define a decay.

    Attributes:
      peak: learning rate at the end of the warm-up.
      floor: minimum of the rate.
      begin: step at which the warm-up ends.
      total: step at which the schedule ends, one after the last.
      decay_steps: steps of the natural exponential and of the final decay, see --decay_steps.
      decay_rate: rate of the natural exponential, see --decay_rate.
    """

    peak: float
    floor: float
    begin: int
    total: int
    decay_steps: int = 1
    decay_rate: float = 0.0


def cosine(step: tf.Tensor, shape: Shape) -> tf.Tensor:
    """Half a cosine wave: peak * (1 + cos(pi * (t - W) / (T - W))) / 2."""
    done = (step - shape.begin) / max(shape.total - shape.begin, 1.0)
    return 0.5 * shape.peak * (1.0 + tf.cos(math.pi * tf.minimum(done, 1.0)))


def natural_exponential(step: tf.Tensor, shape: Shape) -> tf.Tensor:
    """Step function: peak * exp(-decay_rate * floor((t - W) / decay_steps))."""
    return shape.peak * tf.exp(-shape.decay_rate * tf.floor((step - shape.begin) / shape.decay_steps))


def up_down(step: tf.Tensor, shape: Shape) -> tf.Tensor:
    """Linear, to 0 in the last step: peak * (T - t - 1) / (T - W), and the peak at t = W."""
    falling = shape.peak * (shape.total - step - 1.0) / max(shape.total - shape.begin, 1.0)
    return tf.where(step <= shape.begin, shape.peak, falling)


def wsd_linear(step: tf.Tensor, shape: Shape) -> tf.Tensor:
    """Constant, then linear to 0 in the last D = decay_steps: peak * (T - t) / D."""
    return shape.peak * tf.minimum((shape.total - step) / shape.decay_steps, 1.0)


def wsd_sqrt(step: tf.Tensor, shape: Shape) -> tf.Tensor:
    """Constant, then peak * (1 - sqrt((t - T + D) / D)) in the last D = decay_steps."""
    done = tf.maximum(step - shape.total + shape.decay_steps, 0.0) / shape.decay_steps
    return shape.peak * (1.0 - tf.sqrt(tf.minimum(done, 1.0)))


DECAYS: dict[str, Callable[[tf.Tensor, Shape], tf.Tensor]] = {
    "cosine": cosine,
    "natural_exponential": natural_exponential,
    "up_down": up_down,
    "wsd_linear": wsd_linear,
    "wsd_sqrt": wsd_sqrt,
}


def by_step(values: dict[int, float]) -> Schedule:
    """Returns a piecewise constant schedule of {step: value}, which includes step 0; a value holds from its
    step on."""

    def value(step: Any) -> tf.Tensor:
        steps, all_values = tf.constant(list(values), tf.int64), tf.constant([*values.values()])
        return tf.gather(all_values, tf.reduce_sum(tf.cast(tf.cast(step, tf.int64) >= steps, tf.int32)) - 1)

    return value


def decay_of(config: Config) -> Schedule:
    """Returns the schedule of --lr_schedule, except polynomial: without its warm-up, and one of DECAYS not
    below its floor."""
    rates = by_step_lib.read_by_step(config.lr_schedule, "lr_schedule")
    if rates:
        return by_step(rates)
    warmup_steps = whole_warmup_steps(config)
    shape = Shape(
        config.learning_rate,
        config.end_learning_rate,
        config.start_warmup_step + warmup_steps if warmup_steps else 0,
        schedule_steps(config),
        decay_length(config),
        config.decay_rate or 0.0,
    )

    def rate(step: Any) -> tf.Tensor:
        step = tf.maximum(tf.cast(step, tf.float32), float(shape.begin))
        return tf.maximum(DECAYS[config.lr_schedule](step, shape), shape.floor)

    return rate


def whole_warmup_steps(config: Config) -> int:
    """Returns the steps of the warm-up of these schedules. A share of the steps is rounded down, as
    in Graphcore's code."""
    return int(config.warmup_steps)


# -----------------------------------------------------------------------------------------------------------
# The schedule of a run


_CURVE_POINTS = 50  # points of a curve that is not piecewise linear


def polynomial(config: Config) -> Schedule:
    """Returns a linear warm-up, then a polynomial decay, of a configuration.

        warm-up, t < start + W:  peak * max(t - start, 0) / W
        decay from step_0:       (peak - end) * (1 - min(t, N) / N) ** power + end
        decay from warmup_end:   the same with t - (start + W) and N - (start + W) in place of t and N

    W may be fractional. With `decay_from="step_0"` the rate drops at the end of the warm-up, from the peak to
    the current value of the decay.
    Source: step_0 is the MLPerf v0.7 reference's, with start_warmup_step and poly_power of its TF1 version;
    warmup_end is the shape of Graphcore's BERT and of most later recipes.
    """
    peak, end, total_steps = config.learning_rate, config.end_learning_rate, schedule_steps(config)
    start, warmup_steps = config.start_warmup_step, config.warmup_steps
    warmup_end = start + warmup_steps if warmup_steps else 0.0
    origin = warmup_end if config.decay_from == "warmup_end" else 0.0

    def rate(step: Any) -> tf.Tensor:
        step = tf.cast(step, tf.float32)
        done = tf.clip_by_value((step - origin) / max(total_steps - origin, 1.0), 0.0, 1.0)
        decayed = (peak - end) * tf.pow(1.0 - done, config.poly_power) + end
        if not warmup_steps:
            return decayed
        warming = peak * tf.maximum(step - start, 0.0) / warmup_steps
        return tf.where(step < warmup_end, warming, decayed)

    return rate


def from_config(config: Config) -> Schedule:
    """Returns the schedule of a configuration: the warm-up in front of a decay is
    peak * (max(t - start, 0) / W) ** power for t < start + W, W above 0. W may be fractional.

    Source: Graphcore's TF1 BERT, whose lr_power has separate powers for warm-up and decay.
    """
    if config.lr_schedule == "polynomial":
        after, steps = polynomial(config), config.warmup_steps
        if config.warmup_power == 1:  # it includes its warm-up
            return after
    else:
        after, steps = decay_of(config), whole_warmup_steps(config)
    if not steps:
        return after
    peak, start, power = config.learning_rate, config.start_warmup_step, config.warmup_power

    def rate(step: Any) -> tf.Tensor:
        done = tf.maximum(tf.cast(step, tf.float32) - start, 0.0) / steps
        return tf.where(done < 1.0, peak * tf.pow(done, power), after(step))

    return rate


class ByTime:
    """Learning rate of a run with a time budget: that of the time used at the start of a device call, for all
    steps of the call.

    Make it in the strategy's scope.

    Attributes:
      rate: float32 variable, the current rate.
    """

    def __init__(self, schedule: Schedule):
        """Makes the schedule; `schedule` counts BUDGET_PARTS of the time instead of steps."""
        first = tf.VariableAggregation.ONLY_FIRST_REPLICA
        self.rate = tf.Variable(
            0.0, trainable=False, dtype=tf.float32, name="learning_rate", aggregation=first
        )
        self._schedule = schedule

    def __call__(self, step: Any) -> tf.Tensor:
        return tf.convert_to_tensor(self.rate)

    def hold(self, share: float) -> float:
        """Sets and returns the rate for a used share of the time, 0 to 1."""
        self.rate.assign(self._schedule(share * BUDGET_PARTS))
        return float(self.rate.numpy())


def corners(config: Config, points: int = _CURVE_POINTS) -> dict[int, float]:
    """Returns {step: learning rate of that update} from the first to the last step of the schedule; for a
    time budget {one of its BUDGET_PARTS: learning rate}.

    Straight lines between these points draw the schedule: exactly if it is piecewise linear, otherwise
      through `points` points of a curve.
    """
    schedule, last = from_config(config), max(schedule_steps(config) - 1, 0)
    steps = _corner_steps(config, last, points)
    return {step: float(schedule(step)) for step in sorted(steps) if 0 <= step <= last}


def _corner_steps(config: Config, last: int, points: int) -> set[int]:
    changes = by_step_lib.read_by_step(config.lr_schedule, "lr_schedule")
    if changes:
        return {0, last, *changes, *(step - 1 for step in changes)}
    decay = math.ceil(config.start_warmup_step + config.warmup_steps) if config.warmup_steps else 0
    steps = {0, config.start_warmup_step, decay - 1, decay, last}
    if config.lr_schedule == "up_down":
        steps.add(decay + 1)  # the line starts one step after the peak
    if config.warmup_power != 1:
        steps |= _between(config.start_warmup_step, decay, points)
    if config.lr_schedule.startswith("wsd"):
        decay = last + 1 - decay_length(config)
        steps.add(decay)
    is_line = {"up_down": True, "wsd_linear": True, "polynomial": config.poly_power == 1}
    if not is_line.get(config.lr_schedule, False):
        steps |= _between(decay, last, points)
    return steps


def _between(first: int, last: int, points: int) -> set[int]:
    """Returns the steps at which a curve is sampled."""
    return {first + round((last - first) * part / points) for part in range(points)}
