"""Learning-rate schedules: pure functions of the step."""

from __future__ import annotations

import math

import tensorflow as tf

from official.config import Config, schedule_steps

_DECAY_POINTS = 50  # of a decay that is no straight line


class WarmupPolynomialDecay(tf.keras.optimizers.schedules.LearningRateSchedule):
    """Linear warm-up, then polynomial decay.

        warm-up, t < start + W:  peak * max(t - start, 0) / W
        decay from step_0:       (peak - end) * (1 - min(t, N) / N) ** power + end
        decay from warmup_end:   the same with t - (start + W) and N - (start + W) in place of t and N

    With `decay_from="step_0"` the rate drops at the end of the warm-up, from the peak to the value that the
    decay has by then.
    Source: step_0 is the MLPerf v0.7 reference's, with start_warmup_step and poly_power of its TF1 version;
    warmup_end is the shape of Graphcore's BERT and of most later recipes.

    Args:
      peak, end: learning rates at the start and the end of the decay.
      total_steps: N, the horizon of the decay.
      warmup_steps: W, may be fractional; 0 for no warm-up.
      start_warmup_step: first step of the warm-up; the rate is 0 before it.
      power: of the decay.
      decay_from: "step_0" or "warmup_end".
    """

    def __init__(
        self,
        peak: float,
        total_steps: int,
        warmup_steps: float = 0.0,
        start_warmup_step: int = 0,
        end: float = 0.0,
        power: float = 1.0,
        decay_from: str = "step_0",
    ):
        self.peak, self.end, self.power = peak, end, power
        self.total_steps, self.warmup_steps, self.start_warmup_step = (
            total_steps,
            warmup_steps,
            start_warmup_step,
        )
        self.decay_from = decay_from

    def __call__(self, step):
        """Returns the learning rate, float32, of the update that is made at `step` (0-based)."""
        step = tf.cast(step, tf.float32)
        warmup_end = (self.start_warmup_step + self.warmup_steps) if self.warmup_steps else 0.0
        origin = warmup_end if self.decay_from == "warmup_end" else 0.0
        done = tf.clip_by_value((step - origin) / max(self.total_steps - origin, 1.0), 0.0, 1.0)
        rate = (self.peak - self.end) * tf.pow(1.0 - done, self.power) + self.end
        if not self.warmup_steps:
            return rate
        warming = self.peak * tf.maximum(step - self.start_warmup_step, 0.0) / self.warmup_steps
        return tf.where(step < warmup_end, warming, rate)

    def get_config(self):
        return dict(vars(self))


class Scaled(tf.keras.optimizers.schedules.LearningRateSchedule):
    """A schedule times a constant: decoupled weight decay follows the learning rate."""

    def __init__(self, schedule, factor: float):
        self.schedule, self.factor = schedule, factor

    def __call__(self, step):
        return self.factor * self.schedule(step)

    def get_config(self):
        return dict(vars(self))


def from_config(config: Config) -> WarmupPolynomialDecay:
    """Returns the schedule that the configuration describes."""
    return WarmupPolynomialDecay(
        config.learning_rate,
        schedule_steps(config),
        config.warmup_steps,
        config.start_warmup_step,
        config.end_learning_rate,
        config.poly_power,
        config.decay_from,
    )


def corners(config: Config) -> dict[int, float]:
    """Returns {step: learning rate of the update made there} from the first to the last step of the schedule.

    Straight lines from one to the next draw the schedule: exactly where it decays linearly, else through
      _DECAY_POINTS points.
    """
    schedule, last = from_config(config), max(schedule_steps(config) - 1, 0)
    decay = math.ceil(config.start_warmup_step + config.warmup_steps) if config.warmup_steps else 0
    steps = {0, config.start_warmup_step, decay - 1, decay, last}
    if config.poly_power != 1:
        steps |= {decay + round((last - decay) * part / _DECAY_POINTS) for part in range(_DECAY_POINTS)}
    return {step: float(schedule(step)) for step in sorted(steps) if 0 <= step <= last}
