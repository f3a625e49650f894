"""The machine that the fake pretends to have: its IPUs, their configuration, their memory, what was compiled.

One process has one machine. `installed()` sets it up, `IPUConfig.configure_ipu_system` configures it,
strategies, queues and pipelines ask it. Tests may read it: what was configured and compiled stays listed.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import weakref
from typing import Any

# Launch options of the plug-in, given in the environment as TF_POPLAR_FLAGS.
POPLAR_FLAGS = frozenset(
    "disable_poplar_version_check dump_schedule_as_dot executable_cache_path fallback_scheduler help "
    "ipu_model_tiles log_cycle_count max_compilation_threads max_infeed_threads null_data_feed "
    "on_demand_device_poll_time on_demand_device_timeout show_progress_bar sync_replica_start "
    "synthetic_data_categories synthetic_data_initializer tensor_map_file_path use_ipu_model "
    "use_synthetic_data while_loop_brute_force_max_trip_count".split()
)


@dataclasses.dataclass
class Compiled:
    """What one pipeline became when it was compiled.

    Attributes:
      replicas: how many copies of the pipeline run.
      ipus_per_replica: IPUs of one copy, a power of two.
      bytes_per_ipu: bytes of weights, accumulators and optimizer state on each IPU of one replica.
      settings: the arguments of the pipeline that only the compiler reads.
      from_cache: whether the executable was found in the cache.
    """

    replicas: int
    ipus_per_replica: int
    bytes_per_ipu: dict[int, int]
    settings: dict[str, Any]
    from_cache: bool = False


@dataclasses.dataclass
class Machine:
    """IPUs of the machine, their memory in bytes (None: no limit), and what happened to them."""

    ipus: int = 16
    bytes_per_ipu: int | None = None
    config: Any = None
    configurations: list[Any] = dataclasses.field(default_factory=list)
    compiled: list[Compiled] = dataclasses.field(default_factory=list)
    fed: list[Any] = dataclasses.field(default_factory=list)
    seeds: list[tuple[int, str, bool]] = dataclasses.field(default_factory=list)
    running: Any = None
    variables: dict[int, Any] = dataclasses.field(default_factory=dict)
    engines: dict[str, Any] = dataclasses.field(default_factory=dict)
    flags: dict[str, str] = dataclasses.field(default_factory=dict)

    def register(self, variable: Any) -> None:
        """Remembers a variable that was created on the IPU, which is in the scope of a strategy."""
        handle = variable.handle
        self.variables[id(handle)] = (handle, weakref.ref(variable))

    def variable_of(self, handle: Any) -> Any:
        """Returns the variable with this resource handle, None where it was not created on the IPU."""
        found = self.variables.get(id(handle))
        return found[1]() if found else None

    def configured_ipus(self, ordinal: int = 0) -> int:
        """Returns the number of IPUs of the device /device:IPU:ordinal."""
        counts = self.config.ipus_of_devices(self.ipus)
        if ordinal >= len(counts):
            raise RuntimeError(
                f"/device:IPU:{ordinal} is not configured: there are {len(counts)} IPU devices"
            )
        return counts[ordinal]

    def remote_buffers(self) -> bool:
        """Whether variables can live in memory outside of the IPUs.

        With the connection type ALWAYS the attached device says so, otherwise the configuration does.
        """
        connection = self.config.device_connection
        return connection.type.name == "ALWAYS" or connection.enable_remote_buffers

    def executes(self) -> bool:
        """Whether programs are run, and not only compiled."""
        return self.executes_with(self.config)

    def executes_with(self, config: Any) -> bool:
        """Whether programs are run with this configuration."""
        return config.device_connection.type.name in ("ALWAYS", "ON_DEMAND")


current = Machine()


def poplar_flags() -> dict[str, str]:
    """Returns the options of TF_POPLAR_FLAGS, a flag without a value as "true".

    Raises:
      RuntimeError: an option that does not exist (how the real one refuses it: not in the sources read).
    """
    found = {}
    for word in os.environ.get("TF_POPLAR_FLAGS", "").split():
        name, _, value = word.partition("=")
        if not name.startswith("--") or name[2:] not in POPLAR_FLAGS:
            raise RuntimeError(f"TF_POPLAR_FLAGS: unknown option {word}")
        found[name[2:]] = value or "true"
    if "use_synthetic_data" in found and "synthetic_data_categories" in found:
        raise RuntimeError(
            "TF_POPLAR_FLAGS: --use_synthetic_data and --synthetic_data_categories exclude each other"
        )
    return found


def running_on_ipu_model() -> bool:
    """Whether the IPUs are simulated."""
    return "--use_ipu_model" in os.environ.get("TF_POPLAR_FLAGS", "")


def set_up(ipus: int, bytes_per_ipu: int | None) -> Machine:
    """Replaces the machine by a fresh one, nothing configured."""
    global current
    if ipus < 1 or ipus & (ipus - 1):
        raise ValueError(f"ipus={ipus}: a machine has a power of two of IPUs")
    current = Machine(ipus=ipus, bytes_per_ipu=bytes_per_ipu)
    return current


def configured() -> Machine:
    """Returns the machine.

    Raises:
      RuntimeError: nothing configured it yet (that this is refused so early: not in the sources read).
    """
    if current.config is None:
        raise RuntimeError(
            "The IPU system has not been configured: call IPUConfig.configure_ipu_system() first."
        )
    return current


@contextlib.contextmanager
def program_of(strategy: Any):
    """What is traced inside belongs to a program that the strategy compiles for the IPU."""
    machine = configured()
    outer, machine.running = machine.running, strategy
    try:
        yield machine
    finally:
        machine.running = outer
