"""The weights of a training step in bfloat16 or float16: copies that the native update writes along with the
weights, so that no step casts them, nor their gradients."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import NamedTuple

import tensorflow as tf

from official.config import Config
from official.distribution import strategy as strategy_lib
from official.distribution.backends.pipeline import as_pipeline
from official.modeling import copies as copies_lib
from official.optimization.native.optimizers import NativeOptimizer
from official.optimization.state import TrainState


class NarrowWeights(NamedTuple):
    """What a training loop does for the copies.

    Attributes:
      reading: makes of a replica's function one that reads them.
      renew: gives them the weights' values, in a graph. The first thing that a call of the devices does:
        whatever has changed the weights before, the copies are theirs.
    """

    reading: Callable[[Callable], Callable]
    renew: Callable[[], None]


def make(config: Config, state: TrainState, strategy: tf.distribute.Strategy) -> NarrowWeights:
    """Makes the copies of a run; none where TensorFlow's operations update its weights, or the step is
    compiled or spread as a whole."""
    optimizer, dtype = state.optimizer, tf.as_dtype(tf.keras.mixed_precision.global_policy().compute_dtype)
    if not isinstance(optimizer, NativeOptimizer) or config.enable_xla or as_pipeline(strategy) is not None:
        return NarrowWeights(lambda function: function, lambda: None)
    # The first values of a strategy's variables go from process to process, which TensorFlow does not do in
    # bfloat16. On CPUs, where copies are, a process has one replica: a variable of its own is all it needs.
    scope = contextlib.nullcontext() if strategy_lib.has_peers(strategy) else strategy.scope()
    with scope:
        variables = copies_lib.wanted(state.model, dtype)
        copies = optimizer.make_copies(variables, dtype)

    def reading(function: Callable) -> Callable:
        @functools.wraps(function)
        def with_copies(*arguments):
            with copies_lib.reading(copies):
                return function(*arguments)

        return with_copies

    def renew() -> None:
        strategy.run(lambda: optimizer.renew_copies(variables))

    return NarrowWeights(reading, renew)
