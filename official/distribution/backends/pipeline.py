"""Stages of the model on devices of their own, GPUs or logical CPUs of this machine, in one replica or more.

A replica is a group of devices, one a device of the pipeline. Replica r has devices r x N to r x N + N - 1.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import tensorflow as tf

from official.config import Config, ConfigError, nearest_multiples
from official.distribution import strategy as strategy_lib
from official.distribution.backends.backend import Backend
from official.distribution.pipelining import plan as plan_lib
from official.distribution.pipelining.plan import PipelinePlan


class PipelineStrategy(tf.distribute.MirroredStrategy):
    """Replicas of several devices each.

    To TensorFlow it mirrors replicas on the first device of each. A variable of the model is on its stage's
    device in every replica, and its gradients are reduced among these.

    Attributes:
      grid: the devices of each replica.
      plan: which stages are on which device; None before the model is known.
    """

    def __init__(self, grid: list[list[str]]):
        leads = [devices[0] for devices in grid]
        # Both reduce where the values are; TensorFlow's usual way brings all to the first devices.
        on_gpus = "gpu" in leads[0].lower()
        reduce = tf.distribute.NcclAllReduce() if on_gpus else tf.distribute.ReductionToOneDevice()
        super().__init__(leads, cross_device_ops=reduce)
        self.grid = grid
        self.plan: PipelinePlan | None = None

    def devices(self) -> list[str]:
        """Returns the full names of all devices, those of a replica one after the other."""
        return [name for devices in self.grid for name in devices]

    def names_of(self, device: int) -> list[str]:
        """Returns a device of the pipeline as people call it, such as GPU:0, in each replica."""
        return [strategy_lib.short_name(devices[device]) for devices in self.grid]

    @contextlib.contextmanager
    def placing(self, device_of: Mapping[str, int]) -> Iterator[None]:
        """Puts variables on devices for the time of a block in the strategy's scope.

        Args:
          device_of: {name of a variable: its device of the pipeline}; others go to the first device.
        """

        def create(next_creator, **arguments: Any) -> Any:
            scope = tf.get_current_name_scope()
            name = f"{scope}/{arguments['name']}" if scope else arguments["name"]
            number = device_of.get(name)
            if number is None or arguments.get("colocate_with") is not None:
                return next_creator(**arguments)
            together = _Together(tuple(devices[number] for devices in self.grid))
            return next_creator(**arguments, colocate_with=together)

        with tf.variable_creator_scope(create):
            yield


def as_pipeline(strategy: tf.distribute.Strategy) -> PipelineStrategy | None:
    """Returns a strategy of this back end; None for another."""
    return strategy if isinstance(strategy, PipelineStrategy) else None


@dataclasses.dataclass(frozen=True)
class _Together:
    """Devices to put a variable on, one a replica; TensorFlow takes it for a variable to colocate with."""

    _devices: tuple[str, ...]


def _make_strategy(config: Config) -> PipelineStrategy:
    """Deals this machine's devices out to replicas, a device of the pipeline each."""
    needed = plan_lib.num_devices(config)
    found = strategy_lib.replica_devices(config)
    devices = [tf.DeviceSpec.from_string(name).to_string() for name in found]  # as TensorFlow names them
    _check_divisible(config, len(devices), needed)
    strategy_lib.warn_of_slow_type(config, found)
    return PipelineStrategy(
        [devices[first : first + needed] for first in range(0, len(devices), needed)],
    )


def _planned_replicas(config: Config) -> int:
    """Returns the replicas of a machine like this; GPUs asked for need not be here. One device, which is the
    default, plans one replica."""
    needed, found = plan_lib.num_devices(config), strategy_lib.planned_replicas(config)
    if found > 1:
        _check_divisible(config, found, needed)
    return max(found // needed, 1)


def _check_divisible(config: Config, found: int, needed: int) -> None:
    if found % needed:
        flag = "num_virtual_devices" if config.num_virtual_devices else "num_gpus"
        raise ConfigError(
            f"{flag}={found} is not divisible by the {needed} devices that a replica of"
            f" pipeline_stages={config.pipeline_stages} takes. Nearest valid:"
            f" {nearest_multiples(found, needed)}."
        )


BACKEND = Backend(
    strategies=(PipelineStrategy,),
    make_strategy=_make_strategy,
    num_replicas=_planned_replicas,
    devices=lambda strategy: strategy.devices(),
)
