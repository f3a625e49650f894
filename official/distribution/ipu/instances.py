"""Replicas of a run that this process has: all, or by poprun its part of them."""

from __future__ import annotations

import dataclasses
from typing import Any

from official.config import Config, ConfigError
from official.distribution.pipeline_plan import power_of_two


@dataclasses.dataclass(frozen=True)
class Instances:
    """The replicas of a run and those of this process.

    Attributes:
      replicas: of the run.
      local_replicas: of this process.
      index: number of this process, from 0; the first one writes files.
      count: of processes.
      ipus_per_replica: a power of two.
      popdist: the module, where poprun has started this process; else None.
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


def find(config: Config, num_devices: int, popdist: Any) -> Instances:
    """Returns the replicas of a run.

    Args:
      config: of the run.
      num_devices: IPUs that the pipeline of a replica uses.
      popdist: see `api.load_popdist`.

    Raises:
      ConfigError: where poprun was told of other numbers than the configuration.
    """
    ipus, replicas = power_of_two(num_devices), config.ipu_replicas
    if popdist is None:
        return Instances(replicas, replicas, 0, 1, ipus)
    told = {
        "replicas": (popdist.getNumTotalReplicas(), replicas, "--num-replicas", "--ipu_replicas"),
        "IPUs a replica": (popdist.getNumIpusPerReplica(), ipus, "--ipus-per-replica", "--pipeline_stages"),
    }
    for what, (theirs, ours, their_flag, our_flag) in told.items():
        if theirs != ours:
            raise ConfigError(
                f"poprun was told of {theirs} {what} ({their_flag}), the configuration says {ours}. Change"
                f" poprun's {their_flag}, or {our_flag}."
            )
    count = popdist.getNumInstances()
    if count > 1 and config.replicated_tensor_sharding:
        raise ConfigError(
            f"replicated_tensor_sharding works within one instance, poprun has started {count}. Use"
            " --num-instances 1, or drop --replicated_tensor_sharding."
        )
    return Instances(
        replicas, popdist.getNumLocalReplicas(), popdist.getInstanceIndex(), count, ipus, popdist
    )
