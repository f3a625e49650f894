"""Making the state of a run, and giving it its values back."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import numpy as np
import tensorflow as tf

from official.config import Config
from official.optimization import optimizers
from official.optimization.train_state import TrainState, build_state


def make_state(
    config: Config, build_model: Callable[[], tf.keras.Model], strategy: tf.distribute.Strategy
) -> TrainState:
    """Builds model and optimizer with all their variables, in the strategy's scope."""
    with strategy.scope():
        return build_state(config, build_model, optimizers.build_optimizer)


@contextlib.contextmanager
def restored(variables: list[tf.Variable]) -> Iterator[None]:
    """Context that restores the values of the variables at its end, bit for bit.

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
