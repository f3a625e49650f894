"""State of a run: model, optimizer, loss scale and counters."""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Callable

import tensorflow as tf

from official.config import dynamic_loss_scale, initial_loss_scale
from official.config.table import Config
from official.config.values import read_by_step
from official.optimization import plain_optimizers, schedules

# -----------------------------------------------------------------------------------------------------------
# Loss scale
#
# Source: Micikevicius et al. 2017, "Mixed Precision Training"; growth and back-off of TensorFlow's
# LossScaleOptimizer.


GROWTH_STEPS = 2000


class LossScale:
    """A loss scale that is fixed, dynamic (doubled after 2,000 finite steps in a row, halved after a step
    that is not finite, at least 1), or changes at given steps.

    Make it inside the strategy's scope; `update` is called outside of replicas.
    """

    def __init__(self, initial: float, dynamic: bool, by_step: Callable | None = None):
        """Makes the scale.

        Args:
          initial: scale of the first step.
          dynamic: whether it adapts to the gradients.
          by_step: function step -> scale, float32, for changes at given steps.
        """
        self.dynamic, self._by_step, self._initial = dynamic, by_step, float(initial)
        self.scale = tf.Variable(float(initial), trainable=False, dtype=tf.float32, name="loss_scale/scale")
        self.good_steps = tf.Variable(0, trainable=False, dtype=tf.int64, name="loss_scale/good_steps")

    def told(self, step: int) -> float | None:
        """Returns the scale of a step (0-based) according to the settings; None for a dynamic one."""
        if self.dynamic:
            return None
        return self._initial if self._by_step is None else float(self._by_step(step))

    def at(self, step: tf.Tensor | tf.Variable) -> tf.Tensor:
        """Returns the scale of a step (0-based) according to the settings, float32, in a graph; not for a
        dynamic one."""
        return tf.constant(self._initial) if self._by_step is None else self._by_step(step)

    def go_on(self, step: int) -> None:
        """Sets the scale of the settings for the next step, since a checkpoint may have that of other
        settings. A dynamic scale continues from the checkpoint's."""
        scale = self.told(step)
        if scale is not None:
            self.scale.assign(scale)

    def update(self, finite: tf.Tensor, step: tf.Tensor | tf.Variable) -> None:
        """Updates the scale after a step: `finite`, whether the reduced gradient was finite (bool scalar),
        and the number of the next step (0-based)."""
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


# -----------------------------------------------------------------------------------------------------------
# State


@dataclasses.dataclass(frozen=True)
class TrainState:
    """Model, optimizer with its slots and step counter, loss scale, and `samples`, int64: number of sequences
    that the run has trained on, its position in the data."""

    model: tf.keras.Model
    optimizer: plain_optimizers.Optimizer
    schedule: schedules.Schedule
    loss_scale: LossScale | None
    samples: tf.Variable
    optimizer_type: str

    @property
    def step(self) -> int:
        return int(self.optimizer.iterations.numpy())

    @property
    def samples_done(self) -> int:
        return int(self.samples.numpy())

    def model_variables(self) -> dict[str, tf.Variable]:
        return {variable.name.split(":")[0]: variable for variable in self.model.variables}

    def variables(self) -> dict[str, tf.Variable]:
        """Returns {checkpoint name: variable} of the whole state."""
        state = self.model_variables()
        state.update(
            plain_optimizers.slot_variables(
                self.optimizer, self.optimizer_type, self.model.trainable_variables
            )
        )
        state.update({"global_step": self.optimizer.iterations, "samples": self.samples})
        state.update(self.optimizer.scalars())
        if self.loss_scale:
            state["loss_scale/scale"] = self.loss_scale.scale
            state["loss_scale/good_steps"] = self.loss_scale.good_steps
        return state


_LAYER = re.compile(r"/layer_(\d+)/")


def layer_share(decay: float, num_layers: int, name: str) -> float:
    """Returns the share of the learning rate of a variable with --layer_decay: decay^(L - i)
    for layer i of L, decay^(L + 1) for the embeddings, 1 for pooler and heads. Source: ELECTRA, arXiv
    2003.10555."""
    found = _LAYER.search(name)
    depth = num_layers - int(found[1]) if found else num_layers + 1 if "/embeddings/" in name else 0
    return decay**depth


def build_state(
    config: Config,
    build_model: Callable[[], tf.keras.Model],
    build_optimizer: Callable[[Config, schedules.Schedule], plain_optimizers.Optimizer],
) -> TrainState:
    """Builds model and optimizer with all their variables, in the scope of the caller's strategy."""
    model = build_model()
    schedule = schedules.from_config(config)
    if config.budget_hours:
        schedule = schedules.ByTime(schedule)
    optimizer = build_optimizer(config, schedule)
    optimizer.share_of = functools.partial(layer_share, config.layer_decay, config.model.num_hidden_layers)
    optimizer.create_slots(model.trainable_variables)
    initial = initial_loss_scale(config)
    steps = read_by_step(config.loss_scale or "", "loss_scale")
    by_step = schedules.by_step(steps) if steps else None
    loss_scale = LossScale(initial, dynamic_loss_scale(config), by_step) if initial else None
    samples = tf.Variable(0, trainable=False, dtype=tf.int64, name="samples")
    return TrainState(model, optimizer, schedule, loss_scale, samples, config.optimizer_type)
