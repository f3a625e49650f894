"""Access to IPUs: the API of the Poplar SDK, its environment variables, the replicas of a process, IPUConfig.

TensorFlow is not imported before the environment is prepared. Not tested on hardware yet.
"""

from __future__ import annotations

import dataclasses
import importlib
import os
import shlex
from collections.abc import MutableMapping
from typing import Any

from official.config.table import Config
from official.distribution.pipeline_plan import power_of_two
from official.graphcore.rules import IPU_VERSION
from official.io.errors import ConfigError, first_line

# -----------------------------------------------------------------------------------------------------------
# The API of the SDK


def load_api() -> Any:
    """Returns `tensorflow.python.ipu`, which only Graphcore's TensorFlow has.

    Raises:
      ConfigError: if it is not installed.
    """
    try:
        return importlib.import_module("tensorflow.python.ipu")
    except ImportError as error:
        raise ConfigError(
            "distribution_strategy=ipu needs Graphcore's TensorFlow 2.6 of the Poplar SDK, and this Python"
            f" has none ({first_line(error, 80)}). Here --distribution_strategy=pipeline runs the same"
            " stages, and --plan shows the run."
        ) from None


def load_popdist() -> Any:
    """Returns the module `popdist` if poprun has started this process, otherwise None."""
    try:
        popdist = importlib.import_module("popdist")
    except ImportError:
        return None
    return popdist if popdist.isPopdistEnvSet() else None


# -----------------------------------------------------------------------------------------------------------
# Environment


FLAGS = "TF_POPLAR_FLAGS"


def prepare_environment(config: Config, environment: MutableMapping[str, str] = os.environ) -> None:
    """Sets TF_POPLAR_FLAGS for a run, before TensorFlow is loaded. Flags that are already set keep their
    values."""
    words = shlex.split(environment.get(FLAGS, ""))
    known = {word.partition("=")[0] for word in words}
    for name, value in poplar_flags(config).items():
        if name not in known:
            words.append(f"{name}={value}" if value else name)
    if words:
        environment[FLAGS] = " ".join(map(shlex.quote, words))


def poplar_flags(config: Config) -> dict[str, str]:
    """Returns {flag of TF_POPLAR_FLAGS: value, "" for none} of a run."""
    flags = {}
    if config.ipu.executable_cache_path:
        flags["--executable_cache_path"] = config.ipu.executable_cache_path
    if config.synthetic_input:  # numbers are generated on the device, not sent
        flags["--use_synthetic_data"] = ""
        flags["--synthetic_data_initializer"] = "0"
    return flags


# -----------------------------------------------------------------------------------------------------------
# Replicas of this process


@dataclasses.dataclass(frozen=True)
class Instances:
    """The replicas of a run and those of this process.

    Attributes:
      replicas: number of replicas of the run.
      local_replicas: number of replicas of this process.
      index: number of this process, from 0; the first one writes files.
      count: number of processes.
      ipus_per_replica: IPUs per replica, a power of two.
      popdist: the module, if poprun has started this process; otherwise None.
    """

    replicas: int
    local_replicas: int
    index: int
    count: int
    ipus_per_replica: int
    popdist: Any | None = None

    @property
    def first_replica(self) -> int:
        """The number of this process's first replica."""
        return self.index * self.local_replicas

    @property
    def is_chief(self) -> bool:
        return self.index == 0


def find_instances(config: Config, num_devices: int, popdist: Any) -> Instances:
    """Returns the replicas of a run.

    Args:
      config: configuration of the run.
      num_devices: IPUs in the pipeline of a replica.
      popdist: see `load_popdist`.

    Raises:
      ConfigError: if poprun's numbers differ from the configuration.
    """
    ipus, replicas = power_of_two(num_devices), config.ipu.replicas
    if popdist is None:
        return Instances(replicas, replicas, 0, 1, ipus)
    numbers = {
        "replicas": (popdist.getNumTotalReplicas(), replicas, "--num-replicas", "--ipu_options=replicas=N"),
        "IPUs per replica": (popdist.getNumIpusPerReplica(), ipus, "--ipus-per-replica", "--pipeline_stages"),
    }
    for what, (theirs, ours, their_flag, our_flag) in numbers.items():
        if theirs != ours:
            raise ConfigError(
                f"poprun has {theirs} {what} ({their_flag}), the configuration has {ours}. Change"
                f" poprun's {their_flag}, or {our_flag}."
            )
    count = popdist.getNumInstances()
    if count > 1 and config.ipu.replicated_tensor_sharding:
        raise ConfigError(
            f"replicated_tensor_sharding needs a single instance, but poprun has started {count}. Use"
            " --num-instances 1, or drop the option from --ipu_options."
        )
    return Instances(
        replicas, popdist.getNumLocalReplicas(), popdist.getInstanceIndex(), count, ipus, popdist
    )


# -----------------------------------------------------------------------------------------------------------
# IPUConfig and strategy


def configure(config: Config, api: Any, instances: Instances) -> Any:
    """Makes the IPUConfig for the configuration and applies it to this process. Returns it.

    Args:
      config: configuration of the run.
      api: see `load_api`.
      instances: the run's replicas.
    """
    options = api.config.IPUConfig()
    options.allow_recompute = config.recompute != "none"
    if config.compile_only:  # for IPUs that this machine does not have
        device = options.device_connection
        device.type = api.config.DeviceConnectionType.PRE_COMPILE
        device.version = IPU_VERSION
        device.enable_remote_buffers = config.ipu.optimizer_state_offchip
    floats = options.floating_point_behaviour
    floats.inv = floats.div0 = floats.oflo = config.ipu.fp_exceptions
    floats.esr = api.config.StochasticRoundingBehaviour.from_bool(config.ipu.stochastic_rounding)
    for products in (options.matmuls, options.convolutions):
        products.poplar_options = {"partialsType": config.ipu.partials_type}
    options.optimizations.minimum_remote_tensor_size = config.ipu.min_remote_tensor_size
    options.optimizations.enable_graph_outlining = not config.ipu.no_outlining
    options.scheduling.algorithm = getattr(api.config.SchedulingAlgorithm, config.ipu.scheduler.upper())
    if instances.popdist is None:
        options.auto_select_ipus = instances.local_replicas * instances.ipus_per_replica
    else:  # poprun assigns the IPUs
        tensorflow = importlib.import_module("popdist.tensorflow")
        tensorflow.set_ipu_config(options, instances.ipus_per_replica, configure_device=True)
    options.configure_ipu_system()
    return options


def make_strategy(api: Any, instances: Instances) -> Any:
    """Returns the strategy in whose scope variables are created."""
    if instances.count > 1:  # copies the first instance's variables to the others
        distributed = importlib.import_module(f"{api.__name__}.distributed.popdist_strategy")
        return distributed.PopDistStrategy(add_ipu_cross_replica_reductions=False)
    return api.ipu_strategy.IPUStrategyV1(enable_keras_extensions=False)
