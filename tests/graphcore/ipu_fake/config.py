"""`ipu.config`: IPUConfig with its categories and attributes, their types, defaults and conditions."""

from __future__ import annotations

import copy
import difflib
import enum
import importlib
import logging
from typing import Any

import tensorflow as tf

from tests.graphcore.ipu_fake import machine

log = logging.getLogger("ipu_fake")


class SelectionOrder(enum.Enum):
    AUTO = 0
    ZIGZAG = 1
    SNAKE = 2
    HOOF = 3


class DeviceConnectionType(enum.Enum):
    ALWAYS = 0
    ON_DEMAND = 1
    PRE_COMPILE = 2
    NEVER = 3


class MergeRemoteBuffersBehaviour(enum.Enum):
    IF_BENEFICIAL = 0
    NO_MERGING = 1
    MERGE = 2


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


# The numbers of IPUs: an int, a list of ints or a tuple of ints.
IPUS = "typing.Union[int, typing.List[int], typing.Tuple[int, ...]]"
# True or False, or a behaviour.
ROUNDING = "typing.Union[StochasticRoundingBehaviour, bool]"

# Category -> {attribute: default, or (default, type)}. The type is that of the default where none is given.
OPTIONS: dict[str, dict[str, Any]] = {
    "": {
        "allow_recompute": False,
        "selection_order": SelectionOrder.AUTO,
        "serialization_output_folder": "",
        "compilation_poplar_options": {},
        "gcl_poplar_options": {},
        "auto_select_ipus": ([], IPUS),
        "select_ipus": ([], IPUS),
    },
    "convolutions": {"poplar_options": {}},
    "device_connection": {
        "type": DeviceConnectionType.ALWAYS,
        "version": "",
        "enable_remote_buffers": False,
    },
    "slices": {"poplar_options": {}},
    "experimental": {
        "always_rearrange_copies_on_the_host": False,
        "enable_remote_buffer_embedding": False,
        "enable_prng_stability": False,
    },
    "experimental.multi_replica_distribution": {"process_index": 0, "process_count": 0},
    "floating_point_behaviour": {
        "inv": False,
        "div0": False,
        "oflo": False,
        "esr": (StochasticRoundingBehaviour.OFF, ROUNDING),
        "nanoo": False,
        "set_all": False,
    },
    "io_tiles": {"num_io_tiles": 0, "place_ops_on_io_tiles": False, "available_memory_proportion": 0.9},
    "ipu_model": {"compile_ipu_code": True, "tiles_per_ipu": 0, "version": "ipu2"},
    "matmuls": {"clear_pass_type": False, "poplar_options": {}},
    "norms": {"use_stable_statistics": False},
    "norms.experimental": {"distributed_batch_norm_replica_group_size": 1},
    "optimizations": {
        "prefetch_data_streams": True,
        "combine_embedding_lookups": False,
        "combine_matmuls": False,
        "enable_graph_outlining": True,
        "merge_infeed_io_copies": True,
        "maximum_cross_replica_sum_buffer_size": 0,
        "maximum_reduce_scatter_buffer_size": 0,
        "maximum_inter_ipu_copies_buffer_size": 0,
        "maximum_send_recv_cluster_size": 0,
        "maximum_reduce_many_buffer_size": 0,
        "maximum_all_gather_buffer_size": 0,
        "minimum_remote_tensor_size": 128,
        "merge_remote_buffers": MergeRemoteBuffersBehaviour.IF_BENEFICIAL,
        "enable_gather_simplifier": True,
        "triangular_solve_expander_block_size": 0,
        "cholesky_block_size": 0,
        "enable_dynamic_slice_replacement": True,
        "enable_fast_math": False,
    },
    "optimizations.math": {"fast": False, "dot_strength": True},
    "pooling": {"poplar_options": {}},
    "scheduling": {
        "algorithm": SchedulingAlgorithm.CHOOSE_BEST,
        "maximum_scheduler_lookahead_depth": 5,
        "maximum_scheduler_search_space_size": 64,
    },
}


ENUMS = (
    SelectionOrder,
    DeviceConnectionType,
    MergeRemoteBuffersBehaviour,
    SchedulingAlgorithm,
    StochasticRoundingBehaviour,
)


class AttributeMetadata:
    """Name, type, default and deprecation of one attribute or category of a configuration."""

    def __init__(self, name: str, default: Any = None, type_name: Any = None):
        self.name = name
        self.default = default
        self.type = type_name

    def check_type(self, value: Any) -> None:
        """Raises TypeError where a value has not exactly one of the attribute's types: 1 is no float."""
        if not is_of_type(value, self.type):
            raise TypeError(f"Trying to set {self.name} to {value}, but it must be of type {self.type}")


def is_of_type(value: Any, type_name: str) -> bool:
    """Whether a value has exactly the type with this name; bool is no int."""
    if type_name == IPUS:
        return type(value) is int or (
            type(value) in (list, tuple) and all(type(each) is int for each in value)
        )
    if type_name == ROUNDING:
        return type(value) in (StochasticRoundingBehaviour, bool)
    return type(value).__name__ == type_name


class Category:
    """A category of options: holds attributes and further categories, and refuses all that does not exist."""

    def __init__(self, path: str = ""):
        self.__dict__["_values"] = {}
        self.__dict__["_metadata"] = {}
        prefix = path + "." if path else ""
        for name, row in OPTIONS[path].items():
            default, type_name = row if isinstance(row, tuple) else (row, type(row).__name__)
            self._metadata[name] = AttributeMetadata(prefix + name, copy.deepcopy(default), type_name)
            self._values[name] = copy.deepcopy(default)
        for child in OPTIONS:
            if child.startswith(prefix) and child != path and "." not in child[len(prefix) :]:
                self._metadata[child[len(prefix) :]] = AttributeMetadata(child)
                self._values[child[len(prefix) :]] = Category(child)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name in self._values:
            return self._values[name]
        close = difflib.get_close_matches(name, list(self._metadata))
        advice = f"Did you mean '{self._metadata[close[0]].name}'?" if close else ""
        raise ValueError(f"'{name}' is not a valid attribute of this config. {advice}")

    def __setattr__(self, name: str, value: Any) -> None:
        present = getattr(self, name)
        metadata = self._metadata[name]
        if isinstance(present, Category):
            raise Exception(f"{metadata.name} is a category and cannot be assigned to.")
        metadata.check_type(value)
        self._values[name] = value

    def __deepcopy__(self, memo: Any) -> Any:
        new = type(self)()
        new.__dict__.update({name: copy.deepcopy(each, memo) for name, each in self.__dict__.items()})
        return new

    def attributes(self) -> list[tuple[str, Any]]:
        """Returns the full names and the values of all attributes in and below this category."""
        found = []
        for name, value in self._values.items():
            found += (
                value.attributes() if isinstance(value, Category) else [(self._metadata[name].name, value)]
            )
        return found


class IPUConfig(Category):
    """Configures the IPU devices of the process."""

    def __init__(self):
        super().__init__("")

    def to_dict(self) -> dict[str, Any]:
        """Returns every attribute by its full name."""
        return dict(copy.deepcopy(self.attributes()))

    def configure_ipu_system(self, device: str = "cpu") -> None:
        """Configures the machine; see the function of this name."""
        configure_ipu_system(self, device)

    def ipus_of_devices(self, attached: int) -> list[int]:
        """Returns the number of IPUs of each TensorFlow device, of a machine with so many IPUs."""
        if self.select_ipus:
            return [_ipus_of_id(index, attached) for index in _as_list(self.select_ipus)]
        return _as_list(self.auto_select_ipus) or [1]


def _as_list(value: Any) -> list[int]:
    return [value] if isinstance(value, int) else list(value)


def _ipus_of_id(index: int, attached: int) -> int:
    """Returns how many IPUs the device with this id has: first ids of single ones, then of pairs, fours."""
    first, size = 0, 1
    while size <= attached:
        if first <= index < first + attached // size:
            return size
        first, size = first + attached // size, 2 * size
    raise tf.errors.InvalidArgumentError(None, None, f"select_ipus: there is no device with id {index}")


def configure_ipu_system(config: IPUConfig, device: str = "cpu", reset_configuration: bool = True) -> None:
    """Configures the machine.

    Args:
      config: the configuration. What is changed in it later has no effect.
      device: the CPU device beside the IPUs.
      reset_configuration: whether an earlier, different configuration is replaced.

    Raises:
      TypeError: not a configuration.
      ValueError, Exception: attributes that exclude or need each other.
      tf.errors.OpError: the machine has no such IPUs.
    """
    if not isinstance(config, IPUConfig):
        raise TypeError("`config` must be an IpuOptions instance.")
    here = machine.current
    here.flags = machine.poplar_flags()
    _check(config)
    _check_devices(config, here)
    if here.config is not None and here.config.to_dict() != config.to_dict():
        if not reset_configuration:
            raise RuntimeError("The IPU system is already configured in another way.")
        log.warning("Resetting existing IPU configuration before applying new configuration")
    here.config = copy.deepcopy(config)
    here.configurations.append(here.config)


def _check(config: IPUConfig) -> None:
    if config.auto_select_ipus and config.select_ipus:
        raise Exception("Only one of `auto_select_ipus` and `select_ipus` can be set.")
    selected = _as_list(config.select_ipus)
    if len(set(selected)) != len(selected):
        raise ValueError("All MultiIPU indices in `select_ipus` must be unique.")
    if selected and machine.running_on_ipu_model():
        raise Exception("When using the IPUModel, the devices can only be specified with `auto_select_ipus`.")
    group = config.norms.experimental.distributed_batch_norm_replica_group_size
    if group < 1:
        raise ValueError("norms.experimental.distributed_batch_norm_replica_group_size must be at least 1")
    if group > 1 and config.io_tiles.num_io_tiles > 0:
        raise ValueError(
            "norms.experimental.distributed_batch_norm_replica_group_size is not supported with I/O tiles."
        )
    if config.io_tiles.place_ops_on_io_tiles and config.io_tiles.num_io_tiles == 0:
        raise ValueError("Cannot place ops on I/O tiles when io_tiles.num_io_tiles == 0")
    _check_connection(config)
    _check_processes(config)
    _check_poplar_options(config)


def _check_connection(config: IPUConfig) -> None:
    kind, version = config.device_connection.type, config.device_connection.version
    compiles_only = kind in (DeviceConnectionType.PRE_COMPILE, DeviceConnectionType.NEVER)
    if compiles_only and not version:
        raise ValueError(f"device_connection.version must be set when device_connection.type is {kind}")
    if version and not compiles_only:
        raise ValueError(f"device_connection.version must not be set when device_connection.type is {kind}")
    if version and version not in ("ipu1", "ipu2", "ipu21"):
        raise ValueError(f"device_connection.version must be ipu1, ipu2 or ipu21, but is {version}")
    if kind == DeviceConnectionType.PRE_COMPILE and "executable_cache_path" not in machine.current.flags:
        # The kind of the error is not in the sources read.
        raise tf.errors.InvalidArgumentError(
            None,
            None,
            "PRE_COMPILE needs --executable_cache_path in TF_POPLAR_FLAGS, or nothing would be kept",
        )


def _check_processes(config: IPUConfig) -> None:
    part = config.experimental.multi_replica_distribution
    if part.process_count and machine.running_on_ipu_model():
        raise Exception("Multi-replica distribution is not supported on the IPU model.")
    if part.process_count and not 0 <= part.process_index < part.process_count:
        raise ValueError(
            "experimental.multi_replica_distribution.process_index must be in the range"
            " [0, experimental.multi_replica_distribution.process_count)."
        )


def _check_poplar_options(config: IPUConfig) -> None:
    for name, value in config.attributes():
        if name.endswith("poplar_options"):
            for key, each in value.items():
                if not isinstance(key, str) or not isinstance(each, str):
                    raise TypeError(f"{name}: {key!r}: {each!r}: names and values must be strings")


def _check_devices(config: IPUConfig, here: machine.Machine) -> None:
    counts = config.ipus_of_devices(here.ipus)
    for count in counts:
        if count < 1 or count & (count - 1):
            raise tf.errors.InvalidArgumentError(
                None, None, f"{count} IPUs requested: the number of IPUs of a device must be a power of two"
            )
    if here.executes_with(config) and sum(counts) > here.ipus:
        raise tf.errors.NotFoundError(
            None, None, f"Could not find {sum(counts)} IPUs: this machine has {here.ipus}"
        )


def reset_ipu_configuration() -> None:
    """Takes the configuration back; nothing happens where there is none."""
    machine.current.config = None


def get_ipu_config(session: Any = None) -> list[IPUConfig]:
    """Returns one configuration for each device.

    Raises:
      RuntimeError: nothing is configured.
    """
    here = machine.configured()
    return [copy.deepcopy(here.config) for _ in here.config.ipus_of_devices(here.ipus)]


def module_names() -> dict[str, Any]:
    """Returns what the module ipu.config has."""
    here = importlib.import_module(__name__)
    names = "AttributeMetadata IPUConfig configure_ipu_system reset_ipu_configuration get_ipu_config".split()
    found = {name: getattr(here, name) for name in names}
    return {**found, **{group.__name__: group for group in ENUMS}}
