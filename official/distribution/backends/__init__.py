"""The back ends: kinds of devices, a file each, called as --distribution_strategy calls them.

What a back end takes is its row in `official.config.backends`, which is read before TensorFlow is loaded. How
its devices are found and used is `BACKEND` in its file here.
"""

import importlib

import tensorflow as tf

from official.config import Config
from official.config.backends import BACKENDS
from official.distribution.backends.backend import Backend


def of_config(config: Config) -> Backend:
    """Returns the back end that a run asks for."""
    return _load(config.distribution_strategy)


def of_strategy(strategy: tf.distribute.Strategy) -> Backend:
    """Returns the back end whose strategies are of this kind."""
    for backend in map(_load, BACKENDS):
        if type(strategy) in backend.strategies:
            return backend
    raise TypeError(f"{type(strategy).__name__} is the strategy of no back end: {', '.join(BACKENDS)}.")


def _load(name: str) -> Backend:
    return importlib.import_module(f"{__name__}.{name}").BACKEND
