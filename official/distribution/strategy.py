"""Makes the strategy of a run. Precision, seeds, threads and logical devices are set here and nowhere else."""

import os
import socket

import tensorflow as tf
from absl import logging

from official.config import ConfigError, replaced
from official.config.cluster import read_cluster
from official.distribution import peers
from official.io import quiet

POLICIES = {"fp32": "float32", "fp16": "mixed_float16", "bf16": "mixed_bfloat16"}
_CROSS_DEVICE_OPS = {
    "nccl": tf.distribute.NcclAllReduce,
    "hierarchical_copy": tf.distribute.HierarchicalCopyAllReduce,
}


def make_strategy(config) -> tf.distribute.Strategy:
    """Returns the strategy that the configuration asks for, after setting threads, seeds and precision.

    Raises:
      ConfigError: where a device that is asked for is missing.
      PeerError: where another process does not come.
    """
    _set_threads(config)
    tf.keras.utils.set_random_seed(config.seed)
    if config.deterministic:
        tf.config.experimental.enable_op_determinism()
    tf.keras.mixed_precision.set_global_policy(POLICIES[config.dtype])
    strategy = _strategy(config)
    # Grappler takes seconds for the graph of BERT-base and finds next to nothing in the fused path: steps
    # take the same time without it on CPUs, where that was measured.
    tf.config.optimizer.set_experimental_options(
        {"disable_meta_optimizer": config.fused_ops and _on_cpus(strategy)}
    )
    quiet.silence_compiler()  # after the strategy, which is to come before all operations
    return strategy


def distribute(host_dataset, strategy):
    """Returns what `next_batch` deals out: the batches of `host_dataset(tf.distribute.InputContext)`, a
    dataset of replica batches for each host.

    That is this host's dataset itself, but on TPUs. TensorFlow would put iterators for devices behind it that
    are autotuned whatever the dataset's options say, and that may take as long to end as they have lived
    (TensorFlow 2.15.1, Model::OptimizeLoop), a minute at most.
    Batches are small here: what they gain by being on the device beforehand cannot be seen in a step.
    """
    if isinstance(strategy, tf.distribute.TPUStrategy):
        return strategy.distribute_datasets_from_function(host_dataset)
    return host_dataset(_input_context(strategy))


def next_batch(iterator, strategy):
    """Returns the next batch of every replica of this process, from an iterator of what `distribute` returns.
    For graphs, too."""
    if isinstance(strategy, tf.distribute.TPUStrategy):
        return next(iterator)
    return strategy.experimental_distribute_values_from_function(lambda _: next(iterator))


def batches(distributed, strategy):
    """Yields all batches, for every replica of this process, of what `distribute` returns: a set that is read
    once."""
    iterator = iter(distributed)
    while True:
        try:
            batch = next_batch(iterator, strategy)
        except StopIteration:
            return
        yield batch


def _input_context(strategy) -> tf.distribute.InputContext:
    """Says which of the processes this one is, of how many, in the order of their replicas."""
    replicas = []
    strategy.experimental_distribute_values_from_function(
        lambda context: replicas.append(context.replica_id_in_sync_group) or 0
    )
    return tf.distribute.InputContext(
        strategy.num_replicas_in_sync // len(replicas),
        replicas[0] // len(replicas),
        strategy.num_replicas_in_sync,
    )


def _set_threads(config) -> None:
    """Sets how many threads compute on the CPU; this can be done once in a process, before its first
    operation."""
    threading = tf.config.threading
    for name, get, assign in (
        (
            "intra_op_threads",
            threading.get_intra_op_parallelism_threads,
            threading.set_intra_op_parallelism_threads,
        ),
        (
            "inter_op_threads",
            threading.get_inter_op_parallelism_threads,
            threading.set_inter_op_parallelism_threads,
        ),
    ):
        count = getattr(config, name)
        if count in (None, get()):
            continue
        try:
            assign(count)
        except RuntimeError:
            raise ConfigError(
                f"{name}={count}, but this process computes already, with {get() or os.cpu_count()}. Start a"
                " new process."
            ) from None


def _strategy(config) -> tf.distribute.Strategy:
    if config.distribution_strategy == "tpu":
        return _tpu_strategy(config)
    if config.distribution_strategy == "multi_worker_mirrored":
        return _multi_worker_strategy(config)
    devices = _devices(config)
    if config.all_reduce_alg == "nccl" and "gpu" not in devices[0]:
        raise ConfigError(
            "all_reduce_alg=nccl needs GPUs, this run is on the CPU. Use --all_reduce_alg=hierarchical_copy."
        )
    if config.dtype == "fp16" and "gpu" not in devices[0]:
        logging.warning("dtype=fp16 is very slow on CPUs. Use --dtype=bf16 or fp32.")
    if len(devices) == 1:
        return tf.distribute.OneDeviceStrategy(devices[0])
    algorithm = _CROSS_DEVICE_OPS.get(config.all_reduce_alg)
    return tf.distribute.MirroredStrategy(devices, cross_device_ops=algorithm() if algorithm else None)


def _devices(config) -> list[str]:
    """Returns the devices of the replicas."""
    if config.num_virtual_devices:
        _make_logical_cpus(config.num_virtual_devices)
        return [f"/cpu:{index}" for index in range(config.num_virtual_devices)]
    found = len(tf.config.list_physical_devices("GPU"))
    wanted = found if config.num_gpus is None else config.num_gpus
    if wanted > found:
        raise ConfigError(
            f"num_gpus={wanted} but this machine has {found} GPU{'s' * (found != 1)} that TensorFlow can use."
            f" Use --num_gpus={found}{' for the CPU' * (not found)}, or rehearse on CPUs with --num_gpus=0"
            f" --num_virtual_devices={wanted}."
        )
    if not wanted:
        return ["/cpu:0"]
    return [f"/gpu:{index}" for index in range(1 if config.distribution_strategy == "one_device" else wanted)]


def with_length_buckets(config, strategy):
    """Returns the configuration with --length_buckets=auto decided: on CPUs a shape costs a second to compile
    at most."""
    if config.length_buckets != "auto":
        return config
    return replaced(
        config, length_buckets="always" if _on_cpus(strategy) and not config.enable_xla else "never"
    )


def _on_cpus(strategy) -> bool:
    return all("cpu" in device.lower() for device in strategy.extended.worker_devices)


def is_chief(strategy) -> bool:
    """Tells whether this process is the one that writes files and talks to people."""
    # `peers` has made every process a worker: a chief of TF_CONFIG is the first.
    return (
        not isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy)
        or strategy.cluster_resolver.task_id == 0
    )


def _multi_worker_strategy(config) -> tf.distribute.Strategy:
    """Joins the other processes; waits until all are there. On CPUs there is one replica a process."""
    if config.num_gpus is not None:
        gpus = _devices(config)
        tf.config.set_visible_devices(
            tf.config.list_physical_devices("GPU")[: config.num_gpus] if "gpu" in gpus[0] else [], "GPU"
        )
    if config.all_reduce_alg == "nccl" and not tf.config.get_visible_devices("GPU"):
        raise ConfigError(
            "all_reduce_alg=nccl needs GPUs, this run is on the CPU. Use --all_reduce_alg=ring."
        )
    implementations = tf.distribute.experimental.CommunicationImplementation
    implementation = {"nccl": implementations.NCCL, "ring": implementations.RING, None: implementations.AUTO}[
        config.all_reduce_alg
    ]
    options = tf.distribute.experimental.CommunicationOptions(implementation=implementation)
    return peers.join(read_cluster(config), options, config.peer_timeout_secs)


def _make_logical_cpus(count: int) -> None:
    """Splits the CPU into logical devices. This can be done once in a process; later calls need at most as
    many."""
    cpu = tf.config.list_physical_devices("CPU")[0]
    configured = tf.config.get_logical_device_configuration(cpu)
    if configured is None:
        try:
            tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * count)
        except RuntimeError:
            configured = [None]
        else:
            return
    if len(configured) < count:
        raise ConfigError(
            f"num_virtual_devices={count} but this process already has {len(configured)} logical CPUs. Start"
            " a new process."
        )


def _tpu_strategy(config) -> tf.distribute.Strategy:
    """Connects to a TPU and initialises it. Not run on hardware yet."""
    address = config.tpu or ""
    if address in ("", "local") and not tf.config.list_physical_devices("TPU"):
        raise ConfigError(
            "distribution_strategy=tpu but this machine has no TPU. Give the name or address of one with "
            "--tpu=NAME|grpc://HOST:PORT."
        )
    try:
        if address.startswith("grpc://"):  # connecting to a cluster has no time limit of its own
            host, _, port = address.removeprefix("grpc://").rpartition(":")
            socket.create_connection((host, int(port)), timeout=10).close()
        resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu=address)
        if address not in ("", "local"):
            tf.config.experimental_connect_to_cluster(resolver)
        tf.tpu.experimental.initialize_tpu_system(resolver)
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
