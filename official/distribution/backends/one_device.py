"""One GPU, or the CPU."""

import tensorflow as tf

from official.config import Config
from official.distribution import strategy
from official.distribution.backends.backend import Backend


def _make_strategy(config: Config) -> tf.distribute.Strategy:
    devices = strategy.replica_devices(config)[:1]
    strategy.warn_of_slow_type(config, devices)
    return tf.distribute.OneDeviceStrategy(devices[0])


BACKEND = Backend(
    strategies=(tf.distribute.OneDeviceStrategy,),
    make_strategy=_make_strategy,
    num_replicas=lambda config: 1,
)
