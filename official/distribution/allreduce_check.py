"""Times an all-reduce before a run on several GPUs, to check that they reach each other and how fast.

NCCL hangs, or fails with an error that names no cause, if GPUs or machines cannot reach each other over the
links that it chose. A run would hang in its first step.
"""

from __future__ import annotations

import dataclasses
import time

import tensorflow as tf
from absl import logging

from official.config import Config, ConfigError
from official.config.backends import BACKENDS
from official.distribution import heartbeat
from official.io.errors import first_line

LIMIT_SECS = 120  # NCCL takes tens of seconds to set up many machines
_BYTES = 64 * 2**20  # of gradients: enough to measure bandwidth and not latency
_REPEATS = 3


@dataclasses.dataclass(frozen=True)
class AllReduce:
    """Time of an all-reduce.

    Attributes:
      replicas: number of replicas.
      bytes: size of each replica's tensor.
      secs: time of the fastest repetition.
      gb_per_sec: GB (1e9 bytes) that a replica sends per second, 2 (n - 1) / n of its bytes. This is the bus
        bandwidth of nccl-tests, which does not depend on the number of replicas.
    """

    replicas: int
    bytes: int
    secs: float
    gb_per_sec: float


def measure(strategy: tf.distribute.Strategy, dtype: str = "float32", size_bytes: int = _BYTES) -> AllReduce:
    """Sums a tensor over all replicas, with the strategy's operations for gradients.

    Args:
      strategy: strategy with two or more replicas.
      dtype: type of the tensor.
      size_bytes: size of each replica's tensor.

    Raises:
      ValueError: if the sum is wrong.
      tf.errors.OpError: if the operations fail.
    """
    replicas, number = strategy.num_replicas_in_sync, tf.as_dtype(dtype)
    shape = [size_bytes // number.size]

    def of_replica():
        ones = tf.ones(shape, number)
        total = tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, ones)
        return tf.reduce_max(tf.abs(tf.cast(total, tf.float32) - replicas))

    run = tf.function(lambda: strategy.run(of_replica), autograph=False)
    secs = []
    for _ in range(1 + _REPEATS):  # the first one sets up the links
        since = time.monotonic()
        wrong_by = max(float(error) for error in strategy.experimental_local_results(run()))
        secs.append(time.monotonic() - since)
        if not wrong_by < 0.1 * replicas:  # bfloat16 rounds the sum of many replicas
            raise ValueError(f"the sum of {replicas} ones is wrong by {wrong_by:g}")
    fastest = min(secs[1:])
    return AllReduce(
        replicas, size_bytes, fastest, 2 * (replicas - 1) / replicas * size_bytes / fastest / 1e9
    )


def check(strategy: tf.distribute.Strategy, config: Config) -> AllReduce:
    """Measures the all-reduce of a run and logs its speed.

    If it takes longer than `LIMIT_SECS`, the process ends with exit code 2, or with 4 if other processes take
    part, one of which may be the one that hangs.

    Raises:
      ConfigError: if it fails, or its sum is wrong.
      tf.errors.OpError: if it fails because another process is lost.
    """
    several = BACKENDS[config.distribution_strategy].several_processes
    what = f"the all-reduce of {strategy.num_replicas_in_sync} GPUs"
    late = f"bert: {what} is not done after {LIMIT_SECS:g} s. {_advice(config)}"
    try:
        with heartbeat.ending(LIMIT_SECS, 4 if several else 2, late):
            found = measure(strategy, config.allreduce_dtype)
    except (tf.errors.OpError, ValueError) as error:
        if several and isinstance(error, tf.errors.OpError) and "nccl" not in str(error).lower():
            raise
        raise ConfigError(f"{what} fails ({first_line(error, 60)}). {_advice(config)}") from None
    logging.info(
        "All-reduce of %d MiB: %.1f GB/s, %.1f ms", found.bytes >> 20, found.gb_per_sec, found.secs * 1e3
    )
    return found


def _advice(config: Config) -> str:
    """Returns the advice on an all-reduce that does not work."""
    algorithms = BACKENDS[config.distribution_strategy].all_reduce_algorithms
    others = [name for name in algorithms if name not in ("nccl", config.all_reduce_alg)]
    use = f"Use --all_reduce_alg={' or '.join(others)}. " if others else ""
    return (
        f"{use}NCCL_DEBUG=INFO in the environment logs more; NCCL_P2P_DISABLE=1 or"
        " NCCL_IB_DISABLE=1 avoids a faulty link of that kind."
    )
