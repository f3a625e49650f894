"""bfloat16 or float16 copies of the weights, which the native update writes along with the weights, so that
no step casts weights or gradients."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import NamedTuple

import tensorflow as tf

from official.config import Config
from official.distribution import strategy as strategy_lib
from official.distribution.backends.pipeline import as_pipeline
from official.modeling import low_precision_weights as copies_lib
from official.optimization.native.optimizers import NativeOptimizer
from official.optimization.optimizers import TrainState


class NarrowWeights(NamedTuple):
    """The two functions by which a training loop uses the copies.

    Attributes:
      reading: wraps a replica's function so that it reads the copies.
      renew: sets the copies to the weights' values, in a graph. Called first in each device call, so that the
        copies are right whatever has changed the weights before.
    """

    reading: Callable[[Callable], Callable]
    renew: Callable[[], None]


def make(config: Config, state: TrainState, strategy: tf.distribute.Strategy) -> NarrowWeights:
    """Makes the copies of a run; without effect where TensorFlow's operations update the weights, under XLA,
    and in a pipeline."""
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
