"""Everything a run changes: model, optimizer, loss scale, counters."""

import contextlib
import dataclasses
from collections.abc import Callable, Iterator

import numpy as np
import tensorflow as tf

from official.config import Config, dynamic_loss_scale, initial_loss_scale, loss_scale_steps
from official.optimization import optimizers, schedules
from official.optimization.decays import ByStep
from official.optimization.loss_scale import LossScale


@dataclasses.dataclass(frozen=True)
class TrainState:
    """Model, optimizer with its slots and step counter, loss scale, and `samples`, int64: the sequences that
    the run has trained on, which is where in its data it stands."""

    model: tf.keras.Model
    optimizer: optimizers.Optimizer
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
        state |= optimizers.slot_variables(
            self.optimizer, self.optimizer_type, self.model.trainable_variables
        )
        state |= {"global_step": self.optimizer.iterations, "samples": self.samples}
        state |= self.optimizer.scalars()
        if self.loss_scale:
            state |= {
                "loss_scale/scale": self.loss_scale.scale,
                "loss_scale/good_steps": self.loss_scale.good_steps,
            }
        return state


def make_state(
    config: Config, build_model: Callable[[], tf.keras.Model], strategy: tf.distribute.Strategy
) -> TrainState:
    """Builds model and optimizer with all their variables, in the strategy's scope."""
    with strategy.scope():
        model = build_model()
        schedule = schedules.from_config(config)
        optimizer = optimizers.build_optimizer(config, schedule)
        optimizer.create_slots(model.trainable_variables)
        initial = initial_loss_scale(config)
        steps = loss_scale_steps(config)
        by_step = ByStep(steps) if steps else None
        loss_scale = LossScale(initial, dynamic_loss_scale(config), by_step) if initial else None
        samples = tf.Variable(0, trainable=False, dtype=tf.int64, name="samples")
    return TrainState(model, optimizer, schedule, loss_scale, samples, config.optimizer_type)


@contextlib.contextmanager
def restored(variables: list[tf.Variable]) -> Iterator[None]:
    """Gives the variables their values back after its block, bit for bit.

    Meanwhile these are in the host's memory, not on the device, and of a variable that is all zero, as a new
    optimizer's are, nothing is kept.
    """
    kept = []
    for variable in variables:
        value = variable.read_value().numpy()
        kept.append(value if np.atleast_1d(value).view(np.uint8).any() else None)
    yield
    for variable, value in zip(variables, kept):
        variable.assign(tf.zeros(variable.shape, variable.dtype) if value is None else value)
