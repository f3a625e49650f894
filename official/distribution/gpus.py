"""Memory of this machine's GPUs: how much each has, and how much a run takes (--gpu_memory)."""

from __future__ import annotations

import ctypes
import os

import tensorflow as tf
from absl import logging

from official.config import ConfigError
from official.config.values import gpu_memory_bytes
from official.io.errors import first_line

_GROWTH = "TF_FORCE_GPU_ALLOW_GROWTH"  # read when TensorFlow sets up its GPUs; true by `official/__init__.py`


def limit_memory(gpu_memory: str, count: int) -> None:
    """Sets how much memory of the GPUs TensorFlow takes. To be called before it sets them up.

    Args:
      gpu_memory: the value of --gpu_memory.
      count: GPUs that the run uses, the first ones; with 0 nothing is set.

    Raises:
      ConfigError: for more than a GPU has, or where the process has set up its GPUs otherwise.
    """
    if not count:
        return
    grows = "false" if gpu_memory == "all" else "true"
    if os.environ.get(_GROWTH, grows) != grows:
        if grows == "true":  # else it is our own default that changes
            logging.warning("--gpu_memory=%s stands over %s=%s.", gpu_memory, _GROWTH, os.environ[_GROWTH])
        os.environ[_GROWTH] = grows
    limit = gpu_memory_bytes(gpu_memory)
    if limit is None:
        return
    for number, has in enumerate(memory_bytes()[:count]):
        if limit > has:
            raise ConfigError(
                f"gpu_memory={gpu_memory} but GPU {number} has {has / 1e9:.1f} GB. Use --gpu_memory=grow, or"
                f" a number up to {has // 10**8 / 10:g}."
            )
    wanted = [tf.config.LogicalDeviceConfiguration(memory_limit=limit >> 20)]
    for gpu in tf.config.list_physical_devices("GPU")[:count]:
        if tf.config.get_logical_device_configuration(gpu) == wanted:
            continue
        try:
            tf.config.set_logical_device_configuration(gpu, wanted)
        except (RuntimeError, ValueError) as error:
            raise ConfigError(
                f"gpu_memory={gpu_memory}, but this process has set up its GPUs already"
                f" ({first_line(error)}). Start a new process."
            ) from None


def memory_bytes() -> list[int]:
    """Returns the bytes of memory of each GPU, in TensorFlow's order, as the driver says it; [] where it says
    nothing. TensorFlow itself would have to set them up first.

    Source: cuInit, cuDeviceGetCount, cuDeviceGet and cuDeviceTotalMem of the CUDA driver API; they heed
    CUDA_VISIBLE_DEVICES.
    """
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return []
    count, device, total = ctypes.c_int(), ctypes.c_int(), ctypes.c_size_t()
    if driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count)):
        return []
    found = []
    for number in range(count.value):
        if driver.cuDeviceGet(ctypes.byref(device), number):
            return []
        if driver.cuDeviceTotalMem_v2(ctypes.byref(total), device):
            return []
        found.append(total.value)
    return found
