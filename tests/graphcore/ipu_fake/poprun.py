"""`popdist`, `popdist.tensorflow` and `ipu.distributed.popdist_strategy`: a process that poprun started.

The fake runs one instance. With several, configurations can be made and looked at, but programs cannot run.
"""

from __future__ import annotations

import os
import re
from typing import Any

from tensorflow.python.distribute import distribute_lib

from tests.graphcore.ipu_fake import config, machine, strategy

# Getter of popdist -> variable that poprun sets.
VARIABLES = {
    "getNumTotalReplicas": "POPDIST_NUM_TOTAL_REPLICAS",
    "getNumIpusPerReplica": "POPDIST_NUM_IPUS_PER_REPLICA",
    "getNumLocalReplicas": "POPDIST_NUM_LOCAL_REPLICAS",
    "getReplicaIndexOffset": "POPDIST_REPLICA_INDEX_OFFSET",
    "getLocalInstanceIndex": "POPDIST_LOCAL_INSTANCE_INDEX",
}


def is_popdist_env_set() -> bool:
    """Whether poprun started this process."""
    return all(name in os.environ for name in VARIABLES.values())


def value_of(getter: str) -> int:
    """Returns what a getter of popdist gives.

    Raises:
      RuntimeError: poprun did not start this process (strict: not in the sources read).
    """
    text = os.environ.get(VARIABLES[getter])
    if text is None or not re.fullmatch(r"\d+", text):
        raise RuntimeError(
            f"popdist.{getter}: {VARIABLES[getter]}={text}: the program must be started with poprun"
        )
    return int(text)


def num_instances() -> int:
    """Returns the number of processes, all with as many replicas.

    Raises:
      RuntimeError: replicas that are not shared out evenly.
    """
    total, local = value_of("getNumTotalReplicas"), value_of("getNumLocalReplicas")
    if local < 1 or total % local:
        raise RuntimeError(f"popdist: {total} replicas cannot be {local} in each instance")
    return total // local


def instance_index() -> int:
    """Returns the number of this process, from 0."""
    return value_of("getReplicaIndexOffset") // value_of("getNumLocalReplicas")


def device_id(num_ipus_per_replica: int | None = None) -> int:
    """Returns the id of the device with the IPUs of this process."""
    per_replica = num_ipus_per_replica or value_of("getNumIpusPerReplica")
    needed, here = per_replica * value_of("getNumLocalReplicas"), machine.current
    first, size = 0, 1
    while size < needed:
        first, size = first + here.ipus // size, 2 * size
    if size > here.ipus or size != needed:
        raise RuntimeError(f"popdist: no device of {needed} IPUs on a machine of {here.ipus}")
    return first + value_of("getLocalInstanceIndex")


def init() -> None:
    """Prepares the process.

    Raises:
      RuntimeError: poprun did not start it.
    """
    num_instances()


def set_ipu_config(cfg: Any, ipus_per_replica: int | None = None, configure_device: bool = True) -> Any:
    """Sets what a configuration must say for a process of poprun.

    Args:
      cfg: the configuration, changed here.
      ipus_per_replica: must be what poprun was told; None: take that.
      configure_device: whether to choose the device too.

    Raises:
      TypeError: no configuration.
      ValueError: another number of IPUs than poprun was told.
    """
    if not isinstance(cfg, config.IPUConfig):
        raise TypeError("popdist.tensorflow.set_ipu_config: an IPUConfig is needed")
    told = value_of("getNumIpusPerReplica")
    if ipus_per_replica is not None and ipus_per_replica != told:
        raise ValueError(
            f"ipus_per_replica={ipus_per_replica}, but poprun was given --ipus-per-replica {told}"
        )
    part = cfg.experimental.multi_replica_distribution
    part.process_count, part.process_index = num_instances(), instance_index()
    if configure_device:
        cfg.select_ipus = device_id(told)
    return cfg


class PopDistStrategy(strategy.IPUStrategyV1):
    """The strategy of a process that poprun started.

    Args:
      ipu_device: the IPU device.
      add_ipu_cross_replica_reductions: whether optimizers of TensorFlow reduce over the replicas.
      enable_dataset_iterators, enable_keras_extensions: bools, without effect here.
    """

    def __init__(
        self,
        ipu_device: str = "/device:IPU:0",
        add_ipu_cross_replica_reductions: bool = True,
        enable_dataset_iterators: bool = True,
        enable_keras_extensions: bool = True,
    ):
        init()
        self._set_device(ipu_device)
        extended = PopDistExtended(self, add_ipu_cross_replica_reductions)
        distribute_lib.StrategyV1.__init__(self, extended)

    def update_ipu_config(self, config: Any) -> None:
        """Says in a configuration how many processes there are, and which this is."""
        part = config.experimental.multi_replica_distribution
        part.process_count, part.process_index = num_instances(), instance_index()

    def check_replicas(self, local: int) -> None:
        """Refuses a program with other replicas than poprun was told.

        Raises:
          RuntimeError: it has others (kind of error not in the sources read).
          NotImplementedError: there are several instances.
        """
        told = value_of("getNumLocalReplicas")
        if local != told:
            raise RuntimeError(f"the program has {local} replicas, but poprun gave this instance {told}")
        part = machine.current.config.experimental.multi_replica_distribution
        if num_instances() > 1 and part.process_count != num_instances():
            raise RuntimeError(
                "IPUConfig: experimental.multi_replica_distribution is not set for these instances"
            )
        if num_instances() > 1:
            raise NotImplementedError("this fake runs programs in one instance only")

    def check_sharding(self, sharded: bool) -> None:
        """Refuses replicated optimizer state sharding (kind of error not in the sources read)."""
        if sharded:
            raise NotImplementedError(
                "replicated_optimizer_state_sharding is not supported with PopDistStrategy"
            )


class PopDistExtended(strategy.IPUExtended):
    """Counts the replicas of all instances."""

    @property
    def _num_replicas_in_sync(self) -> int:
        return value_of("getNumTotalReplicas")


def popdist_names() -> dict[str, Any]:
    """Returns what the module popdist has."""
    getters = {name: (lambda name=name: value_of(name)) for name in VARIABLES}
    return {
        **getters,
        "isPopdistEnvSet": is_popdist_env_set,
        "getNumInstances": num_instances,
        "getInstanceIndex": instance_index,
        "getDeviceId": device_id,
        "init": init,
    }


def modules() -> dict[str, dict[str, Any]]:
    """Returns the modules below the package ipu."""
    return {"distributed": {}, "distributed.popdist_strategy": {"PopDistStrategy": PopDistStrategy}}
