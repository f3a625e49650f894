"""Back ends: how the devices of each value of --distribution_strategy are found and used.

What a back end takes is its row in `official.config.backends`, which is read before TensorFlow is loaded.
"""

from __future__ import annotations

import contextlib
import dataclasses
import socket
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NoReturn

import tensorflow as tf
from absl import logging

from official.config import Config, ConfigError, nearest_multiples
from official.config.backends import BACKENDS
from official.config.cluster import read_cluster
from official.distribution import heartbeat
from official.distribution import pipeline_plan as plan_lib
from official.distribution.batch_plan import make_batch_plan
from official.distribution.pipeline_plan import PipelinePlan

# -----------------------------------------------------------------------------------------------------------
# Devices of this machine


def replica_devices(config: Config) -> list[str]:
    """Returns the devices to compute on: GPUs, logical CPUs, or the CPU. Raises ConfigError where there are
    fewer than asked for."""
    found = len(tf.config.list_physical_devices("GPU"))
    wanted = found if config.num_gpus is None else config.num_gpus
    if config.dtype == "fp16" and (config.num_virtual_devices or not wanted):
        logging.warning("dtype=fp16 is very slow on CPUs. Use --dtype=bf16 or fp32.")
    if config.num_virtual_devices:
        _make_logical_cpus(config.num_virtual_devices)
        return [f"/cpu:{index}" for index in range(config.num_virtual_devices)]
    if wanted > found:
        raise ConfigError(
            f"num_gpus={wanted} but this machine has {found} GPU{'s' * (found != 1)} that TensorFlow can use."
            f" Use --num_gpus={found}{' for the CPU' * (not found)}, or rehearse on CPUs with --num_gpus=0"
            f" --num_virtual_devices={wanted}."
        )
    return [f"/gpu:{index}" for index in range(wanted)] or ["/cpu:0"]


def short_name(device: str) -> str:
    """Returns a device as people call it, such as GPU:0, of TensorFlow's full name."""
    return device.split("device:")[-1]


def planned_replicas(config: Config) -> int:
    """Returns the replicas that a run would have on a machine like this; GPUs asked for need not be here."""
    if config.num_virtual_devices:
        return config.num_virtual_devices
    gpus = len(tf.config.list_physical_devices("GPU")) if config.num_gpus is None else config.num_gpus
    return max(gpus, 1)


def check_allreduce_dtype(config: Config, on_gpus: bool) -> None:
    """Refuses sums in a type that TensorFlow's operations of NCCL do not know, which several GPUs take unless
    --all_reduce_alg says otherwise. Raises ConfigError."""
    if config.allreduce_dtype == "bfloat16" and on_gpus and config.all_reduce_alg in (None, "nccl"):
        algorithms = BACKENDS[config.distribution_strategy].all_reduce_algorithms
        others = " or ".join(alg for alg in algorithms if alg != "nccl")
        raise ConfigError(
            "allreduce_dtype=bfloat16 is none of the types that TensorFlow adds up with NCCL. Use"
            f" --allreduce_dtype=float16, with a loss scale, or --all_reduce_alg={others}."
        )


def _make_logical_cpus(count: int) -> None:
    """Splits the CPU into logical devices. This can be done once in a process; later calls need at most as
    many."""
    cpu = tf.config.list_physical_devices("CPU")[0]
    configured = tf.config.get_logical_device_configuration(cpu)
    if configured is None:
        try:
            tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * count)
        except RuntimeError:
            configured = [None]
        else:
            return
    if len(configured) < count:
        raise ConfigError(
            f"num_virtual_devices={count} but this process already has {len(configured)} logical CPUs. Start"
            " a new process."
        )


# -----------------------------------------------------------------------------------------------------------
# Interface of a back end, and the functions that most of them share


HostDataset = Callable[[tf.distribute.InputContext], tf.data.Dataset]


def host_batches(host_dataset: HostDataset, strategy: tf.distribute.Strategy) -> tf.data.Dataset:
    """Returns this host's dataset itself.

    TensorFlow would put iterators for devices behind it that are autotuned whatever the dataset's options
    say, and that may take as long to end as they have lived (TensorFlow 2.15.1, Model::OptimizeLoop), a
    minute at most. Batches are small here: what they gain by being on the device beforehand cannot be seen in
    a step.
    """
    return host_dataset(input_context(strategy))


def deal_out(iterator: Iterator, strategy: tf.distribute.Strategy) -> Any:
    """Returns the next batches of the host's dataset, one for every replica of this process."""
    return strategy.experimental_distribute_values_from_function(lambda _: next(iterator))


def input_context(strategy: tf.distribute.Strategy) -> tf.distribute.InputContext:
    """Returns the context of this process: its number, in the order of the replicas, and the number of
    processes."""
    replicas: list[int] = []

    def take_part(context: tf.distribute.ReplicaContext) -> int:
        replicas.append(context.replica_id_in_sync_group)
        return 0

    strategy.experimental_distribute_values_from_function(take_part)
    return tf.distribute.InputContext(
        strategy.num_replicas_in_sync // len(replicas),
        replicas[0] // len(replicas),
        strategy.num_replicas_in_sync,
    )


@dataclasses.dataclass(frozen=True)
class Backend:
    """A kind of devices: the functions that find and use them.

    Attributes:
      strategies: the kinds of strategies that are its own.
      make_strategy: config -> the strategy; raises ConfigError where a device is missing, PeerError where a
        process is.
      num_replicas: config -> the replicas that a run would have, as far as this machine can know before it
        connects to anything; raises ConfigError where it cannot.
      distribute: (host dataset, strategy) -> the batches of every replica, to be iterated over.
      next_batch: (iterator of them, strategy) -> the next batch of every replica; in graphs, too.
      is_chief: strategy -> whether this process writes files and talks to people.
      has_peers: whether other processes take part, and may be lost.
      devices: strategy -> the names of the devices that it computes on.
      noticing_lost_peers: strategy -> a context that raises PeerError where one is.
      note_passed: strategy -> None; notes that this process has come to a point that all pass together.
    """

    strategies: tuple[type, ...]
    make_strategy: Callable[[Config], tf.distribute.Strategy]
    num_replicas: Callable[[Config], int]
    distribute: Callable[[HostDataset, tf.distribute.Strategy], Iterable] = host_batches
    next_batch: Callable[[Iterator, tf.distribute.Strategy], Any] = deal_out
    is_chief: Callable[[tf.distribute.Strategy], bool] = lambda strategy: True
    has_peers: bool = False
    devices: Callable[[Any], Iterable[str]] = lambda strategy: strategy.extended.worker_devices
    noticing_lost_peers: Callable[[tf.distribute.Strategy], contextlib.AbstractContextManager] = (
        contextlib.nullcontext
    )
    note_passed: Callable[[tf.distribute.Strategy], None] = lambda strategy: None


# -----------------------------------------------------------------------------------------------------------
# One GPU, or the CPU


def _make_one_device(config: Config) -> tf.distribute.Strategy:
    return tf.distribute.OneDeviceStrategy(replica_devices(config)[0])


# -----------------------------------------------------------------------------------------------------------
# All GPUs of this machine, or logical CPUs, with a replica each


_CROSS_DEVICE_OPS = {
    "nccl": tf.distribute.NcclAllReduce,
    "hierarchical_copy": tf.distribute.HierarchicalCopyAllReduce,
}


def _make_mirrored(config: Config) -> tf.distribute.Strategy:
    devices = replica_devices(config)
    if config.all_reduce_alg == "nccl" and "gpu" not in devices[0]:
        raise ConfigError(
            "all_reduce_alg=nccl needs GPUs, this run is on the CPU. Use --all_reduce_alg=hierarchical_copy."
        )
    if len(devices) == 1:
        return tf.distribute.OneDeviceStrategy(devices[0])
    check_allreduce_dtype(config, "gpu" in devices[0])
    algorithm = _CROSS_DEVICE_OPS[config.all_reduce_alg]() if config.all_reduce_alg else None
    return tf.distribute.MirroredStrategy(devices, cross_device_ops=algorithm)


# -----------------------------------------------------------------------------------------------------------
# Devices of several processes, which wait for each other and go on together


_Implementation = tf.distribute.experimental.CommunicationImplementation
_IMPLEMENTATIONS = {"nccl": _Implementation.NCCL, "ring": _Implementation.RING, None: _Implementation.AUTO}


def _make_multi_worker(config: Config) -> tf.distribute.Strategy:
    """Joins the other processes; waits until all are there. On CPUs there is one replica a process."""
    if config.num_gpus is not None:
        on_gpus = "gpu" in replica_devices(config)[0]
        gpus = tf.config.list_physical_devices("GPU")[: config.num_gpus] if on_gpus else []
        tf.config.set_visible_devices(gpus, "GPU")
    if config.all_reduce_alg == "nccl" and not tf.config.get_visible_devices("GPU"):
        raise ConfigError(
            "all_reduce_alg=nccl needs GPUs, this run is on the CPU. Use --all_reduce_alg=ring."
        )
    check_allreduce_dtype(config, bool(tf.config.get_visible_devices("GPU")))
    options = tf.distribute.experimental.CommunicationOptions(
        implementation=_IMPLEMENTATIONS[config.all_reduce_alg]
    )
    return heartbeat.join(read_cluster(config), options, config.peer_timeout_secs)


# -----------------------------------------------------------------------------------------------------------
# Pipelines
#
# The stages of the model are on devices of their own, GPUs or logical CPUs of this machine, in one replica or
# more. A replica is a group of devices; replica r has devices r x N to r x N + N - 1.


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
        return [short_name(devices[device]) for devices in self.grid]

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
            # TensorFlow takes it for a variable to colocate with.
            together = types.SimpleNamespace(_devices=tuple(devices[number] for devices in self.grid))
            return next_creator(**arguments, colocate_with=together)

        with tf.variable_creator_scope(create):
            yield


def as_pipeline(strategy: tf.distribute.Strategy) -> PipelineStrategy | None:
    """Returns a strategy of this back end; None for another."""
    return strategy if isinstance(strategy, PipelineStrategy) else None


def _make_pipeline(config: Config) -> PipelineStrategy:
    """Deals this machine's devices out to replicas, a device of the pipeline each."""
    needed = plan_lib.num_devices(config)
    found = replica_devices(config)
    devices = [tf.DeviceSpec.from_string(name).to_string() for name in found]  # as TensorFlow names them
    _check_divisible(config, len(devices), needed)
    return PipelineStrategy([devices[first : first + needed] for first in range(0, len(devices), needed)])


def _planned_pipelines(config: Config) -> int:
    """Returns the replicas of a machine like this; GPUs asked for need not be here. One device, which is the
    default, plans one replica."""
    needed, found = plan_lib.num_devices(config), planned_replicas(config)
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


# -----------------------------------------------------------------------------------------------------------
# TPUs
#
# Of this machine or on the network. Not run on hardware yet.


_CONNECTION_SECS = 10
_MIN_TPU_CORES = 8  # v2-8 and v3-8


def _make_tpu(config: Config) -> tf.distribute.Strategy:
    """Connects to a TPU and initialises it, once the batches are known to fit --num_tpu_cores."""
    if config.num_tpu_cores:
        make_batch_plan(config, config.num_tpu_cores)
    address = config.tpu or ""
    if address in ("", "local") and not tf.config.list_physical_devices("TPU"):
        raise ConfigError(
            "distribution_strategy=tpu but this machine has no TPU. Give the name or address of one with "
            "--tpu=NAME|grpc://HOST:PORT."
        )
    try:
        resolver = _connect(address)
    except (ValueError, RuntimeError, tf.errors.OpError, OSError) as error:
        reason = str(error).strip().splitlines()[0][:200] if str(error).strip() else type(error).__name__
        raise ConfigError(f"tpu={address}: cannot reach this TPU ({reason}). Check --tpu.") from None
    strategy = tf.distribute.TPUStrategy(resolver)
    if config.num_tpu_cores not in (None, strategy.num_replicas_in_sync):
        raise ConfigError(
            f"num_tpu_cores={config.num_tpu_cores}, but tpu={address} has {strategy.num_replicas_in_sync}."
            " Change --num_tpu_cores."
        )
    return strategy


def _connect(address: str) -> tf.distribute.cluster_resolver.TPUClusterResolver:
    """Returns a TPU that is ready. Raises what sockets and TensorFlow raise where it cannot be reached."""
    if address.startswith("grpc://"):  # connecting to a cluster has no time limit of its own
        host, _, port = address.removeprefix("grpc://").rpartition(":")
        socket.create_connection((host, int(port)), timeout=_CONNECTION_SECS).close()
    resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu=address)
    if address not in ("", "local"):
        tf.config.experimental_connect_to_cluster(resolver)
    tf.tpu.experimental.initialize_tpu_system(resolver)
    return resolver


def _planned_cores(config: Config) -> int:
    """Returns the cores that a plan counts with: it does not connect to a TPU to ask."""
    if not config.num_tpu_cores:
        logging.log_first_n(
            logging.WARNING,
            "The plan is for a TPU of %d cores, the smallest there is: it does not connect to one. Say how"
            " many yours has: --num_tpu_cores=N.",
            1,
            _MIN_TPU_CORES,
        )
    return config.num_tpu_cores or _MIN_TPU_CORES


# -----------------------------------------------------------------------------------------------------------
# Back ends by name


def _make_ipu(config: Config) -> NoReturn:
    program = BACKENDS["ipu"].program.removesuffix(".__main__")
    raise ConfigError(
        f"distribution_strategy=ipu trains with train.py or python -m {program} alone. Use another"
        " --distribution_strategy here."
    )


_BACKENDS = {
    "one_device": Backend(
        strategies=(tf.distribute.OneDeviceStrategy,),
        make_strategy=_make_one_device,
        num_replicas=lambda config: 1,
    ),
    "mirrored": Backend(
        strategies=(tf.distribute.MirroredStrategy,),
        make_strategy=_make_mirrored,
        num_replicas=planned_replicas,
    ),
    "multi_worker_mirrored": Backend(
        strategies=(tf.distribute.MultiWorkerMirroredStrategy,),
        make_strategy=_make_multi_worker,
        num_replicas=lambda config: planned_replicas(config) * len(read_cluster(config).hosts),
        # `heartbeat` has made every process a worker: a chief of TF_CONFIG is the first.
        is_chief=lambda strategy: strategy.cluster_resolver.task_id == 0,
        has_peers=True,
        noticing_lost_peers=heartbeat.noticing_lost_peers,
        note_passed=heartbeat.note_passed,
    ),
    "pipeline": Backend(
        strategies=(PipelineStrategy,),
        make_strategy=_make_pipeline,
        num_replicas=_planned_pipelines,
        devices=lambda strategy: strategy.devices(),
    ),
    "tpu": Backend(
        strategies=(tf.distribute.TPUStrategy,),
        make_strategy=_make_tpu,
        num_replicas=_planned_cores,
        distribute=lambda host_dataset, strategy: strategy.distribute_datasets_from_function(host_dataset),
        next_batch=lambda iterator, strategy: next(iterator),
    ),
    "ipu": Backend(strategies=(), make_strategy=_make_ipu, num_replicas=lambda config: config.ipu.replicas),
}


def of_config(config: Config) -> Backend:
    """Returns the back end that a run asks for."""
    return _BACKENDS[config.distribution_strategy]


def of_strategy(strategy: tf.distribute.Strategy) -> Backend:
    """Returns the back end whose strategies are of this kind."""
    for backend in _BACKENDS.values():
        if type(strategy) in backend.strategies:
            return backend
    raise TypeError(f"{type(strategy).__name__} is the strategy of no back end: {', '.join(_BACKENDS)}.")
