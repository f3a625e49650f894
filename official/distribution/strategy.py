"""Strategy of a run. Precision, seeds, threads and logical devices are set here and nowhere else."""

import contextlib
import dataclasses
import os
from collections.abc import Iterable, Iterator
from typing import Any

import tensorflow as tf
from absl import logging

from official import native
from official.config import replaced
from official.config.table import Config
from official.config.values import POLICIES
from official.distribution import backends
from official.distribution.backends import HostDataset, input_context, short_name
from official.io import quiet

# -----------------------------------------------------------------------------------------------------------
# Strategy
#
# What differs between kinds of devices is in `official.distribution.backends`.


def make_strategy(config: Config) -> tf.distribute.Strategy:
    """Returns the strategy that the configuration asks for, after setting threads, seeds and precision.

    Raises:
      ConfigError: where a device that is asked for is missing.
      PeerError: where another process does not come.
    """
    tf.keras.utils.set_random_seed(config.seed)
    if config.deterministic:
        tf.config.experimental.enable_op_determinism()
    tf.keras.mixed_precision.set_global_policy(POLICIES[config.dtype])
    strategy = backends.of_config(config).make_strategy(config)
    _set_matmul_precision(strategy)
    if config.allreduce_dtype != "float32" and strategy.num_replicas_in_sync == 1:
        told = "--allreduce_dtype=%s changes nothing: there is one replica, whose gradients go nowhere."
        logging.info(told, config.allreduce_dtype)
    # Grappler takes seconds for the graph of BERT-base and finds next to nothing in the fused path: steps
    # take the same time without it on CPUs, where that was measured.
    tf.config.optimizer.set_experimental_options(
        {"disable_meta_optimizer": config.kernels != "plain" and native.on_cpus(strategy)}
    )
    quiet.silence_compiler()  # after the strategy, which is to come before all operations
    return strategy


def device_names(strategy: tf.distribute.Strategy) -> list[str]:
    """Returns the devices that a run computes on, such as GPU:0, of all replicas."""
    return [short_name(name) for name in backends.of_strategy(strategy).devices(strategy)]


def num_replicas(config: Config) -> int:
    """Returns the number of replicas that the run would have, as far as this machine can know. Raises
    ConfigError where it cannot."""
    return backends.of_config(config).num_replicas(config)


def distribute(host_dataset: HostDataset, strategy: tf.distribute.Strategy) -> Iterable:
    """Returns the batches that `next_batch` deals out: those of `host_dataset(tf.distribute.InputContext)`, a
    dataset of replica batches for each host."""
    return backends.of_strategy(strategy).distribute(host_dataset, strategy)


@dataclasses.dataclass(frozen=True, eq=False)
class HeldBatch:
    """A batch of every replica of this process that stays on its devices: the iterator of no pipeline."""

    batch: Any

    def __iter__(self) -> "HeldBatch":
        return self

    def __next__(self) -> Any:
        return self.batch


def held(iterator: Iterator, strategy: tf.distribute.Strategy) -> HeldBatch:
    """Copies the next batch of an iterator onto the devices; `next_batch` returns it again and again."""

    @tf.function(autograph=False)
    def copied(batch):
        return strategy.run(lambda own: tf.nest.map_structure(tf.identity, own), args=(batch,))

    return HeldBatch(copied(next_batch(iterator, strategy)))


def next_batch(iterator: Iterator, strategy: tf.distribute.Strategy) -> Any:
    """Returns the next batch of every replica of this process, from an iterator of the batches that
    `distribute` returns, or one that is `held`. For graphs, too."""
    if isinstance(iterator, HeldBatch):
        return next(iterator)
    return backends.of_strategy(strategy).next_batch(iterator, strategy)


def batches(distributed: Iterable, strategy: tf.distribute.Strategy) -> Iterator:
    """Yields all batches of a set that is read once, as `distribute` returns it, for every replica of this
    process."""
    iterator = iter(distributed)
    while True:
        try:
            batch = next_batch(iterator, strategy)
        except StopIteration:
            return
        yield batch


def is_chief(strategy: tf.distribute.Strategy) -> bool:
    """Tells whether this process is the one that writes files and talks to people."""
    return backends.of_strategy(strategy).is_chief(strategy)


def has_peers(strategy: tf.distribute.Strategy) -> bool:
    """Tells whether other processes take part in the run."""
    return backends.of_strategy(strategy).has_peers


def num_workers(strategy: tf.distribute.Strategy) -> int:
    """Returns the number of processes that take part in the run, this one among them."""
    return input_context(strategy).num_input_pipelines if has_peers(strategy) else 1


def noticing_lost_peers(strategy: tf.distribute.Strategy) -> contextlib.AbstractContextManager:
    """Returns a context that raises PeerError, in one line, where another process is gone."""
    return backends.of_strategy(strategy).noticing_lost_peers(strategy)


def note_passed(strategy: tf.distribute.Strategy) -> None:
    """Notes that this process has come to the next point that all processes of the run pass together."""
    backends.of_strategy(strategy).note_passed(strategy)


def with_length_buckets(config: Config, strategy: tf.distribute.Strategy) -> Config:
    """Returns the configuration with --length_buckets=auto decided: on CPUs a shape costs a second to compile
    at most. Packed rows have one length, and --unpad leaves no padding that sorted batches would save."""
    if config.length_buckets != "auto":
        return config
    any_length = native.on_cpus(strategy) and not (config.enable_xla or config.pack or config.unpad)
    return replaced(config, length_buckets="always" if any_length else "never")


def _on_gpus(strategy: tf.distribute.Strategy) -> bool:
    return any("gpu" in device.lower() for device in strategy.extended.worker_devices)


_NO_TF32 = "NVIDIA_TF32_OVERRIDE"  # NVIDIA's variable: 0 forbids to round


def _set_matmul_precision(strategy: tf.distribute.Strategy) -> None:
    """Sets whether float32 products are rounded; false where the devices cannot, so that the model may ask
    whether they are."""
    gpus = _gpus_with_tf32() if _on_gpus(strategy) else []
    can_round = bool(gpus) if _on_gpus(strategy) else not native.on_cpus(strategy)
    rounds = can_round and os.environ.get(_NO_TF32) != "0"
    tf.config.experimental.enable_tensor_float_32_execution(rounds)
    if gpus:
        how = "rounded to TensorFloat-32" if rounds else "in full float32"
        logging.info("float32 products on %s: %s (%s=0 forbids to round).", ", ".join(gpus), how, _NO_TF32)


def _gpus_with_tf32() -> list[str]:
    """Returns the names of the GPUs that know TensorFloat-32."""
    details = map(tf.config.experimental.get_device_details, tf.config.list_physical_devices("GPU"))
    found = (each for each in details if each.get("compute_capability", (0, 0)) >= (8, 0))
    return sorted({each.get("device_name", "a GPU") for each in found})
