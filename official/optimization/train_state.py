"""Everything a run changes: model, optimizer, loss scale, counters."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import tensorflow as tf

from official.config import Config, dynamic_loss_scale, initial_loss_scale, loss_scale_steps
from official.optimization import plain_optimizers, schedules
from official.optimization.loss_scale import LossScale
from official.optimization.schedules import ByStep


@dataclasses.dataclass(frozen=True)
class TrainState:
    """Model, optimizer with its slots and step counter, loss scale, and `samples`, int64: the sequences that
    the run has trained on, which is where in its data it stands."""

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


def build_state(
    config: Config,
    build_model: Callable[[], tf.keras.Model],
    build_optimizer: Callable[[Config, schedules.Schedule], plain_optimizers.Optimizer],
) -> TrainState:
    """Builds model and optimizer with all their variables, in the scope of the caller's strategy."""
    model = build_model()
    schedule = schedules.from_config(config)
    optimizer = build_optimizer(config, schedule)
    optimizer.create_slots(model.trainable_variables)
    initial = initial_loss_scale(config)
    steps = loss_scale_steps(config)
    by_step = ByStep(steps) if steps else None
    loss_scale = LossScale(initial, dynamic_loss_scale(config), by_step) if initial else None
    samples = tf.Variable(0, trainable=False, dtype=tf.int64, name="samples")
    return TrainState(model, optimizer, schedule, loss_scale, samples, config.optimizer_type)
