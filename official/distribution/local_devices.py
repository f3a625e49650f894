"""The devices of this machine: GPUs, the CPU, or logical parts of it."""

import tensorflow as tf
from absl import logging

from official.config import Config, ConfigError
from official.config.backends import BACKENDS


def replica_devices(config: Config) -> list[str]:
    """Returns the devices to compute on: GPUs, logical CPUs, or the CPU. Raises ConfigError where there are
    fewer than asked for."""
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
    return [f"/gpu:{index}" for index in range(wanted)] or ["/cpu:0"]


def short_name(device: str) -> str:
    """Returns a device as people call it, such as GPU:0, of TensorFlow's full name."""
    return device.split("device:")[-1]


def planned_replicas(config: Config) -> int:
    """Returns the replicas that a run would have on a machine like this; GPUs asked for need not be here."""
    if config.num_virtual_devices:
        return config.num_virtual_devices
    gpus = len(tf.config.list_physical_devices("GPU")) if config.num_gpus is None else config.num_gpus
    return max(gpus, 1)


def warn_of_slow_type(config: Config, devices: list[str]) -> None:
    """Warns of a compute type that CPUs are slow in."""
    if config.dtype == "fp16" and "gpu" not in devices[0]:
        logging.warning("dtype=fp16 is very slow on CPUs. Use --dtype=bf16 or fp32.")


def check_allreduce_dtype(config: Config, on_gpus: bool) -> None:
    """Refuses sums in a type that TensorFlow's operations of NCCL do not know, which several GPUs take unless
    --all_reduce_alg says otherwise. Raises ConfigError."""
    if config.allreduce_dtype == "bfloat16" and on_gpus and config.all_reduce_alg in (None, "nccl"):
        others = " or ".join(
            alg for alg in BACKENDS[config.distribution_strategy].all_reduce_algorithms if alg != "nccl"
        )
        raise ConfigError(
            "allreduce_dtype=bfloat16 is none of the types that TensorFlow adds up with NCCL. Use"
            f" --allreduce_dtype=float16, with a loss scale, or --all_reduce_alg={others}."
        )


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
