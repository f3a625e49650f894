"""The machine of the fake, its configuration (`ipu.config`, `ipu.utils`), and `popdist`."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import enum
import os
import re
import weakref
from typing import Any

import tensorflow as tf


class DeviceConnectionType(enum.Enum):
    ALWAYS = 0
    ON_DEMAND = 1
    PRE_COMPILE = 2
    NEVER = 3


class SchedulingAlgorithm(enum.Enum):
    CHOOSE_BEST = 0
    CLUSTERING = 1
    POST_ORDER = 2
    LOOK_AHEAD = 3
    SHORTEST_PATH = 4


class StochasticRoundingBehaviour(enum.Enum):
    OFF = 0
    ON = 1
    REPLICA_IDENTICAL_ONLY = 2

    @staticmethod
    def from_bool(value: bool) -> StochasticRoundingBehaviour:
        return StochasticRoundingBehaviour.ON if value else StochasticRoundingBehaviour.OFF


# Category -> {attribute: default}; a value has exactly the type of the default: 1 is no float, true no int.
OPTIONS: dict[str, dict[str, Any]] = {
    "": {"allow_recompute": False, "auto_select_ipus": 0, "select_ipus": 0},
    "convolutions": {"poplar_options": {}},
    "matmuls": {"poplar_options": {}},
    "device_connection": {"type": DeviceConnectionType.ALWAYS, "version": "", "enable_remote_buffers": False},
    "floating_point_behaviour": {
        "inv": False,
        "div0": False,
        "oflo": False,
        "esr": StochasticRoundingBehaviour.OFF,
    },
    "multi_replica_distribution": {"process_index": 0, "process_count": 0},
    "optimizations": {"enable_graph_outlining": True, "minimum_remote_tensor_size": 128},
    "scheduling": {"algorithm": SchedulingAlgorithm.CHOOSE_BEST},
}


class Category:
    """A category of options, which refuses what does not exist, and values of another type."""

    def __init__(self, name: str):
        vars(self).update(copy.deepcopy(OPTIONS[name]), _defaults=OPTIONS[name])

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in self._defaults:
            raise ValueError(f"'{name}' is not a valid attribute of this config.")
        wanted = type(self._defaults[name])
        if type(value) is not wanted:
            raise TypeError(f"Trying to set {name} to {value}, but it must be of type {wanted.__name__}")
        vars(self)[name] = value


class IPUConfig(Category):
    """Configures the IPU devices of the process."""

    def __init__(self):
        super().__init__("")
        vars(self).update({name: Category(name) for name in OPTIONS if name})

    def configure_ipu_system(self) -> None:
        """Configures the machine. What is changed later has no effect.

        Raises:
          ValueError, TypeError: attributes that exclude or need each other.
          tf.errors.OpError: the machine has no such IPUs.
        """
        kind, version = self.device_connection.type.name, self.device_connection.version
        compiles_only = kind in ("PRE_COMPILE", "NEVER")
        if self.auto_select_ipus and self.select_ipus:
            raise ValueError("Only one of `auto_select_ipus` and `select_ipus` can be set.")
        if compiles_only != bool(version) or version not in ("", "ipu1", "ipu2", "ipu21"):
            raise ValueError(f"device_connection.version={version!r} with device_connection.type={kind}")
        if kind == "PRE_COMPILE" and "--executable_cache_path" not in os.environ.get("TF_POPLAR_FLAGS", ""):
            # The kind of the error is not in the sources read.
            raise tf.errors.InvalidArgumentError(None, None, "PRE_COMPILE needs --executable_cache_path")
        for category in (self.convolutions, self.matmuls):
            check_poplar_options(category.poplar_options)
        count = self.auto_select_ipus or 1
        if self.select_ipus:
            count = value_of("getNumIpusPerReplica") * value_of("getNumLocalReplicas")
        if count & (count - 1):
            raise tf.errors.InvalidArgumentError(
                None, None, f"{count} IPUs requested: the number of IPUs of a device must be a power of two"
            )
        if not compiles_only and count > current.ipus:
            raise tf.errors.NotFoundError(
                None, None, f"Could not find {count} IPUs: this machine has {current.ipus}"
            )
        current.config, current.configured_ipus = copy.deepcopy(self), count


def check_poplar_options(options: dict[str, str]) -> None:
    """Refuses options that are not strings (kind of error not in the sources read)."""
    if not all(isinstance(each, str) for row in options.items() for each in row):
        raise TypeError(f"{options!r}: names and values must be strings")


@dataclasses.dataclass
class Machine:
    """IPUs of the machine, their memory in bytes (None: no limit), and what happened to them."""

    ipus: int = 1
    bytes_per_ipu: int | None = None
    config: Any = None
    configured_ipus: int = 0
    compiled: list[Any] = dataclasses.field(default_factory=list)  # programs
    fed: list[Any] = dataclasses.field(default_factory=list)
    running: Any = None
    variables: dict[int, Any] = dataclasses.field(default_factory=dict)

    def register(self, variable: Any) -> None:
        """Remembers a variable that was created on the IPU, which is in the scope of a strategy."""
        self.variables[id(variable.handle)] = (variable.handle, weakref.ref(variable))

    def variable_of(self, handle: Any) -> Any:
        """Returns the variable with this resource handle, None where it was not created on the IPU."""
        found = self.variables.get(id(handle))
        return found[1]() if found else None

    def executes(self) -> bool:
        """Whether programs are run, and not only compiled."""
        return self.config.device_connection.type.name in ("ALWAYS", "ON_DEMAND")


current = Machine()


def configured() -> Machine:
    """Returns the machine. Raises RuntimeError where nothing has configured it yet (that this is refused so
    early: not in the sources read)."""
    if current.config is None:
        raise RuntimeError("The IPU system has not been configured: call configure_ipu_system() first.")
    return current


@contextlib.contextmanager
def program_of(owner: Any):
    """What is traced inside belongs to a program that a strategy, or an application, compiles."""
    here = configured()
    outer, here.running = here.running, owner
    try:
        yield here
    finally:
        here.running = outer


def reset_ipu_seed(seed: int) -> None:
    """Sets the seed of the random numbers of IPUs and of stochastic rounding."""
    configured()
    if type(seed) is not int:
        raise TypeError(f"seed={seed!r}: must be an int")


# -----------------------------------------------------------------------------------------------------------
# A process that poprun has started. With several instances programs cannot run here.


_GETTERS = (
    "NumTotalReplicas",
    "NumIpusPerReplica",
    "NumLocalReplicas",
    "ReplicaIndexOffset",
    "LocalInstanceIndex",
)
# Getter of popdist -> variable that poprun sets, such as POPDIST_NUM_TOTAL_REPLICAS.
VARIABLES = {f"get{name}": "POPDIST" + re.sub("([A-Z])", r"_\1", name).upper() for name in _GETTERS}


def value_of(getter: str) -> int:
    return int(os.environ[VARIABLES[getter]])


def popdist_names() -> dict[str, Any]:
    """Returns what the module popdist has."""
    return {
        **{name: lambda name=name: value_of(name) for name in VARIABLES},
        "isPopdistEnvSet": lambda: all(name in os.environ for name in VARIABLES.values()),
        "getNumInstances": lambda: value_of("getNumTotalReplicas") // value_of("getNumLocalReplicas"),
        "getInstanceIndex": lambda: value_of("getReplicaIndexOffset") // value_of("getNumLocalReplicas"),
    }


def set_ipu_config(cfg: IPUConfig, ipus_per_replica: int, configure_device: bool) -> None:
    """Sets what a configuration must say for a process of poprun. Raises ValueError for another number of
    IPUs than poprun was told."""
    popdist = popdist_names()
    told = value_of("getNumIpusPerReplica")
    if ipus_per_replica != told:
        raise ValueError(f"ipus_per_replica={ipus_per_replica}, but poprun was given {told}")
    part = cfg.multi_replica_distribution
    part.process_count, part.process_index = popdist["getNumInstances"](), popdist["getInstanceIndex"]()
    if configure_device:
        cfg.select_ipus = 1 + value_of("getLocalInstanceIndex")  # its number; how many it has, poprun knows
