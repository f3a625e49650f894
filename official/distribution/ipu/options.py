"""IPUConfig from the configuration, and the strategy of a process."""

from __future__ import annotations

import importlib
from typing import Any

from official.config import Config
from official.config.ipu_rules import WITHOUT_DEVICE, connection
from official.distribution.ipu.instances import Instances


def configure(config: Config, api: Any, instances: Instances) -> Any:
    """Makes the configuration of the IPUs and applies it to this process. Returns it.

    Args:
      config: of the run.
      api: see `api.load`.
      instances: the run's replicas.
    """
    options = make_options(config, api, instances)
    if instances.popdist is not None:  # which IPUs they are, only poprun knows
        tensorflow = importlib.import_module("popdist.tensorflow")
        tensorflow.set_ipu_config(options, instances.ipus_per_replica, configure_device=True)
    options.configure_ipu_system()
    return options


def make_options(config: Config, api: Any, instances: Instances) -> Any:
    """Returns an IPUConfig, not applied yet; arguments as of `configure`."""
    options = api.config.IPUConfig()
    if instances.popdist is None:
        options.auto_select_ipus = instances.local_replicas * instances.ipus_per_replica
    options.allow_recompute = config.recompute != "none"
    _set_connection(config, api, options)
    _set_numbers(config, api, options)
    _set_optimizations(config, api, options)
    return options


def make_strategy(api: Any, instances: Instances) -> Any:
    """Returns the strategy in whose scope variables are made."""
    if instances.count > 1:  # copies the first instance's variables to the others
        distributed = importlib.import_module(f"{api.__name__}.distributed.popdist_strategy")
        return distributed.PopDistStrategy(add_ipu_cross_replica_reductions=False)
    return api.ipu_strategy.IPUStrategyV1(enable_keras_extensions=False)


def _set_connection(config: Config, api: Any, options: Any) -> None:
    name, device = connection(config), options.device_connection
    device.type = getattr(api.config.DeviceConnectionType, name.upper())
    if name in WITHOUT_DEVICE:
        device.version = config.ipu_version
    if name != "always":  # of IPUs that are there, it is known
        device.enable_remote_buffers = config.optimizer_state_offchip


def _set_numbers(config: Config, api: Any, options: Any) -> None:
    floats = options.floating_point_behaviour
    floats.inv = floats.div0 = floats.oflo = config.fp_exceptions
    floats.esr = api.config.StochasticRoundingBehaviour.from_bool(config.stochastic_rounding)
    for products in (options.matmuls, options.convolutions):
        products.poplar_options = {"partialsType": config.partials_type}


def _set_optimizations(config: Config, api: Any, options: Any) -> None:
    optimizations = options.optimizations
    optimizations.minimum_remote_tensor_size = config.min_remote_tensor_size
    optimizations.maximum_cross_replica_sum_buffer_size = config.max_cross_replica_sum_buffer_size
    optimizations.maximum_reduce_scatter_buffer_size = config.max_reduce_scatter_buffer_size
    optimizations.enable_graph_outlining = not config.no_outlining
    options.scheduling.algorithm = getattr(api.config.SchedulingAlgorithm, config.scheduler.upper())
