"""All GPUs of this machine, or logical CPUs, with a replica each."""

import tensorflow as tf

from official.config import Config, ConfigError
from official.distribution import strategy
from official.distribution.backends.backend import Backend

_CROSS_DEVICE_OPS = {
    "nccl": tf.distribute.NcclAllReduce,
    "hierarchical_copy": tf.distribute.HierarchicalCopyAllReduce,
}


def _make_strategy(config: Config) -> tf.distribute.Strategy:
    devices = strategy.replica_devices(config)
    if config.all_reduce_alg == "nccl" and "gpu" not in devices[0]:
        raise ConfigError(
            "all_reduce_alg=nccl needs GPUs, this run is on the CPU. Use --all_reduce_alg=hierarchical_copy."
        )
    strategy.warn_of_slow_type(config, devices)
    if len(devices) == 1:
        return tf.distribute.OneDeviceStrategy(devices[0])
    strategy.check_allreduce_dtype(config, "gpu" in devices[0])
    algorithm = _CROSS_DEVICE_OPS[config.all_reduce_alg]() if config.all_reduce_alg else None
    return tf.distribute.MirroredStrategy(devices, cross_device_ops=algorithm)


BACKEND = Backend(
    strategies=(tf.distribute.MirroredStrategy,),
    make_strategy=_make_strategy,
    num_replicas=strategy.planned_replicas,
)
