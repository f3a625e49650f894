"""`ipu.utils`: seeds."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tests.graphcore.ipu_fake import machine


def reset_ipu_seed(
    seed: int,
    device: str = "/device:IPU:0",
    cpu_device: str = "cpu",
    experimental_identical_replicas: bool = False,
) -> None:
    """Sets the seed of an IPU device's random numbers and of stochastic rounding: noted on the machine.

    Raises:
      RuntimeError: nothing is configured, or no such device.
      TypeError: no int.
    """
    if isinstance(seed, bool) or not isinstance(seed, int):
        raise TypeError(f"seed={seed!r}: must be an int")
    here = machine.configured()
    here.configured_ipus(tf.DeviceSpec.from_string(device).device_index or 0)
    here.seeds.append((seed, device, experimental_identical_replicas))


def modules() -> dict[str, dict[str, Any]]:
    """Returns the modules: dotted name below the package -> names in it."""
    return {
        "utils": {
            "reset_ipu_seed": reset_ipu_seed,
            "running_on_ipu_model": machine.running_on_ipu_model,
        },
    }
