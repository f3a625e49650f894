"""A TPU, of this machine or on the network. Not run on hardware yet."""

import socket

import tensorflow as tf
from absl import logging

from official.config import Config, ConfigError
from official.distribution.backends.backend import Backend
from official.distribution.batch_plan import make_batch_plan

_CONNECTION_SECS = 10
_SMALLEST_TPU_CORES = 8  # v2-8 and v3-8


def _make_strategy(config: Config) -> tf.distribute.Strategy:
    """Connects to a TPU and initialises it, once the batches are known to fit --num_tpu_cores."""
    if config.num_tpu_cores:
        make_batch_plan(config, config.num_tpu_cores)
    address = config.tpu or ""
    if address in ("", "local") and not tf.config.list_physical_devices("TPU"):
        raise ConfigError(
            "distribution_strategy=tpu but this machine has no TPU. Give the name or address of one with "
            "--tpu=NAME|grpc://HOST:PORT."
        )
    try:
        resolver = _connect(address)
    except (ValueError, RuntimeError, tf.errors.OpError, OSError) as error:
        reason = str(error).strip().splitlines()[0][:200] if str(error).strip() else type(error).__name__
        raise ConfigError(f"tpu={address}: cannot reach this TPU ({reason}). Check --tpu.") from None
    strategy = tf.distribute.TPUStrategy(resolver)
    if config.num_tpu_cores not in (None, strategy.num_replicas_in_sync):
        raise ConfigError(
            f"num_tpu_cores={config.num_tpu_cores}, but tpu={address} has {strategy.num_replicas_in_sync}."
            " Change --num_tpu_cores."
        )
    return strategy


def _connect(address: str) -> tf.distribute.cluster_resolver.TPUClusterResolver:
    """Returns a TPU that is ready. Raises what sockets and TensorFlow raise where it cannot be reached."""
    if address.startswith("grpc://"):  # connecting to a cluster has no time limit of its own
        host, _, port = address.removeprefix("grpc://").rpartition(":")
        socket.create_connection((host, int(port)), timeout=_CONNECTION_SECS).close()
    resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu=address)
    if address not in ("", "local"):
        tf.config.experimental_connect_to_cluster(resolver)
    tf.tpu.experimental.initialize_tpu_system(resolver)
    return resolver


def _planned_cores(config: Config) -> int:
    """Returns the cores that a plan counts with: it does not connect to a TPU to ask."""
    if not config.num_tpu_cores:
        logging.log_first_n(
            logging.WARNING,
            "The plan is for a TPU of %d cores, the smallest there is: it does not connect to one. Say how"
            " many yours has: --num_tpu_cores=N.",
            1,
            _SMALLEST_TPU_CORES,
        )
    return config.num_tpu_cores or _SMALLEST_TPU_CORES


BACKEND = Backend(
    strategies=(tf.distribute.TPUStrategy,),
    make_strategy=_make_strategy,
    num_replicas=_planned_cores,
    distribute=lambda host_dataset, strategy: strategy.distribute_datasets_from_function(host_dataset),
    next_batch=lambda iterator, strategy: next(iterator),
)
