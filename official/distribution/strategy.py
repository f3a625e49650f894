"""Strategy of a run: devices, precision, seeds and threads, set here and nowhere else.

`official.config.backends`, which needs no TensorFlow, has the settings that each back end accepts.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import os
import socket
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NoReturn

import tensorflow as tf
from absl import logging

from official import native
from official.config import Config, ConfigError, replaced
from official.config.backends import BACKENDS
from official.config.cluster import read_cluster
from official.config.setting import EMBED
from official.config.values import POLICIES, gpu_memory_bytes
from official.distribution import heartbeat
from official.distribution import pipeline_plan as plan_lib
from official.distribution.batch_plan import check_divisible, make_batch_plan
from official.distribution.pipeline_plan import PipelinePlan
from official.io import quiet
from official.io.errors import first_line

# -----------------------------------------------------------------------------------------------------------
# Devices of this machine


def replica_devices(config: Config) -> list[str]:
    """Returns the devices to compute on: GPUs, logical CPUs, or the CPU, configured by --num_virtual_devices
    and --gpu_memory. Raises ConfigError for too few devices, too little memory, or if TensorFlow sees none of
    the machine's GPUs."""
    found = _count_gpus(config)
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
    _limit_gpu_memory(config.gpu_memory, wanted)
    return [f"/gpu:{index}" for index in range(wanted)] or ["/cpu:0"]


def _count_gpus(config: Config) -> int:
    """Returns the number of GPUs that TensorFlow sees. Raises ConfigError if the run asks for GPUs and
    TensorFlow sees none of the machine's; logs those that stay unused."""
    from official.distribution import machine_checks  # late: not needed on import

    found = len(tf.config.list_physical_devices("GPU"))
    if not found or not machine_checks.asks_for_gpus(config):
        machine_checks.check_unseen(config)
    return found


def short_name(device: str) -> str:
    """Returns the short form, such as GPU:0, of TensorFlow's full name of a device."""
    return device.split("device:")[-1]


def planned_replicas(config: Config) -> int:
    """Returns the number of replicas for a plan; the GPUs of --num_gpus need not be in this machine."""
    if config.num_virtual_devices:
        return config.num_virtual_devices
    found = len(tf.config.list_physical_devices("GPU")) if config.num_gpus is None else config.num_gpus
    return max(found, 1)


def check_all_reduce(config: Config, on_gpus: bool) -> None:
    """Raises ConfigError for NCCL on CPUs, and for an --allreduce_dtype that NCCL, the default on several
    GPUs, cannot reduce."""
    algorithms = BACKENDS[config.distribution_strategy].all_reduce_algorithms
    others = " or ".join(alg for alg in algorithms if alg != "nccl")
    if config.all_reduce_alg == "nccl" and not on_gpus:
        raise ConfigError(
            f"all_reduce_alg=nccl needs GPUs, this run is on the CPU. Use --all_reduce_alg={others}."
        )
    if config.allreduce_dtype == "bfloat16" and on_gpus and config.all_reduce_alg in (None, "nccl"):
        raise ConfigError(
            "allreduce_dtype=bfloat16 is not a type that TensorFlow can reduce with NCCL. Use"
            f" --allreduce_dtype=float16, with a loss scale, or --all_reduce_alg={others}."
        )


_GROWTH = "TF_FORCE_GPU_ALLOW_GROWTH"  # read when TensorFlow sets up its GPUs; true by `official/__init__.py`


def _limit_gpu_memory(gpu_memory: str, count: int) -> None:
    """Limits the GPU memory that TensorFlow takes. Call it before TensorFlow sets up the GPUs.

    Args:
      gpu_memory: the value of --gpu_memory.
      count: GPUs that the run uses, the first ones; with 0 nothing is set.

    Raises:
      ConfigError: for more memory than a GPU has, or if the process has already set up its GPUs differently.
    """
    if not count:
        return
    grows = "false" if gpu_memory == "all" else "true"
    if os.environ.get(_GROWTH, grows) != grows:
        if grows == "true":  # else only our own default changes
            logging.warning("--gpu_memory=%s overrides %s=%s.", gpu_memory, _GROWTH, os.environ[_GROWTH])
        os.environ[_GROWTH] = grows
    limit = gpu_memory_bytes(gpu_memory)
    if limit is None:
        return
    for number, has in enumerate(_gpu_memory_bytes()[:count]):
        if limit > has:
            raise ConfigError(
                f"gpu_memory={gpu_memory} but GPU {number} has {has / 1e9:.1f} GB. Use --gpu_memory=grow, or"
                f" a number up to {has // 10**8 / 10:g}."
            )
    wanted = [tf.config.LogicalDeviceConfiguration(memory_limit=limit >> 20)]
    for gpu in tf.config.list_physical_devices("GPU")[:count]:
        if tf.config.get_logical_device_configuration(gpu) == wanted:
            continue
        try:
            tf.config.set_logical_device_configuration(gpu, wanted)
        except (RuntimeError, ValueError) as error:
            raise ConfigError(
                f"gpu_memory={gpu_memory}, but this process has set up its GPUs already"
                f" ({first_line(error)}). Start a new process."
            ) from None


def _gpu_memory_bytes() -> list[int]:
    """Returns the driver's memory size of each GPU in bytes, in TensorFlow's order; [] if unknown. Asking
    TensorFlow would set up the GPUs.

    Source: cuInit, cuDeviceGetCount, cuDeviceGet and cuDeviceTotalMem of the CUDA driver API; they respect
    CUDA_VISIBLE_DEVICES.
    """
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return []
    count, device, total = ctypes.c_int(), ctypes.c_int(), ctypes.c_size_t()
    if driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count)):
        return []
    found = []
    for number in range(count.value):
        if driver.cuDeviceGet(ctypes.byref(device), number):
            return []
        if driver.cuDeviceTotalMem_v2(ctypes.byref(total), device):
            return []
        found.append(total.value)
    return found


def _make_logical_cpus(count: int) -> None:
    """Splits the CPU into logical devices. This can be done once in a process; later calls need at most as
    many."""
    cpu = tf.config.list_physical_devices("CPU")[0]
    configured = tf.config.get_logical_device_configuration(cpu)
    if configured is None:
        configured = [tf.config.LogicalDeviceConfiguration()] * count
        try:
            tf.config.set_logical_device_configuration(cpu, configured)
        except RuntimeError:
            configured = [None]
    if len(configured) < count:
        raise ConfigError(
            f"num_virtual_devices={count} but this process already has {len(configured)} logical CPUs. Start"
            " a new process."
        )


# -----------------------------------------------------------------------------------------------------------
# One device; all GPUs of this machine, or logical CPUs, with a replica each; or those of several processes
# that train synchronously


_CROSS_DEVICE_OPS = {
    "nccl": tf.distribute.NcclAllReduce,
    "hierarchical_copy": tf.distribute.HierarchicalCopyAllReduce,
    None: lambda: None,
}
_Implementation = tf.distribute.experimental.CommunicationImplementation
_IMPLEMENTATIONS = {"nccl": _Implementation.NCCL, "ring": _Implementation.RING, None: _Implementation.AUTO}


def _make_mirrored(config: Config) -> tf.distribute.Strategy:
    devices = replica_devices(config)
    on_gpus = "gpu" in devices[0]
    if len(devices) > 1 or not on_gpus:
        check_all_reduce(config, on_gpus)
    if len(devices) == 1:
        return tf.distribute.OneDeviceStrategy(devices[0])
    return tf.distribute.MirroredStrategy(devices, _CROSS_DEVICE_OPS[config.all_reduce_alg]())


def _make_multi_worker(config: Config) -> tf.distribute.Strategy:
    """Joins the other processes, and waits until all have connected. On CPUs each process has one replica."""
    on_gpus = "gpu" in replica_devices(config)[0]
    if config.num_gpus is not None:
        tf.config.set_visible_devices(tf.config.list_physical_devices("GPU")[: config.num_gpus], "GPU")
    check_all_reduce(config, on_gpus)
    options = tf.distribute.experimental.CommunicationOptions(
        implementation=_IMPLEMENTATIONS[config.all_reduce_alg]
    )
    return heartbeat.join(read_cluster(config), options, config.peer_timeout_secs)


# -----------------------------------------------------------------------------------------------------------
# Pipelines
#
# Each stage of the model has its own device, a GPU or logical CPU of this machine, in one or more replicas. A
# replica is a group of N devices; replica r has devices r x N to r x N + N - 1.


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
        # Both reduce on the devices of the values; TensorFlow's default copies all to the first devices.
        on_gpus = "gpu" in leads[0].lower()
        reduce = tf.distribute.NcclAllReduce() if on_gpus else tf.distribute.ReductionToOneDevice()
        super().__init__(leads, cross_device_ops=reduce)
        self.grid = grid
        self.plan: PipelinePlan | None = None

    def devices(self) -> list[str]:
        """Returns the full names of all devices, those of a replica one after the other."""
        return [name for devices in self.grid for name in devices]

    def names_of(self, device: int) -> list[str]:
        """Returns the short name, such as GPU:0, of a device of the pipeline in each replica."""
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
            # TensorFlow would treat it as a variable to colocate with.
            together = types.SimpleNamespace(_devices=tuple(devices[number] for devices in self.grid))
            return next_creator(**arguments, colocate_with=together)

        with tf.variable_creator_scope(create):
            yield


def as_pipeline(strategy: tf.distribute.Strategy) -> PipelineStrategy | None:
    """Returns a strategy of this back end; None for another."""
    return strategy if isinstance(strategy, PipelineStrategy) else None


def _make_pipeline(config: Config) -> PipelineStrategy:
    """Groups this machine's devices into replicas, with one device for each of the pipeline's."""
    needed = plan_lib.num_devices(config)
    found = replica_devices(config)
    devices = [tf.DeviceSpec.from_string(name).to_string() for name in found]  # as TensorFlow names them
    _check_devices(config, len(devices), needed)
    return PipelineStrategy([devices[first : first + needed] for first in range(0, len(devices), needed)])


def _planned_pipelines(config: Config) -> int:
    """Returns the number of replicas for a plan; the GPUs of --num_gpus need not be in this machine. A single
    device, the default, is planned as one replica."""
    needed, found = plan_lib.num_devices(config), planned_replicas(config)
    if found > 1:
        _check_devices(config, found, needed)
    return max(found // needed, 1)


def _check_devices(config: Config, found: int, needed: int) -> None:
    flag = "num_virtual_devices" if config.num_virtual_devices else "num_gpus"
    what = f"the {needed} devices that a replica of pipeline_stages={config.pipeline_stages} takes"
    check_divisible(flag, found, needed, what)


# -----------------------------------------------------------------------------------------------------------
# TPUs
#
# Of this machine or on the network. Not run on hardware yet.


_CONNECTION_SECS = 10
_MIN_TPU_CORES = 8  # v2-8 and v3-8


def _make_tpu(config: Config) -> tf.distribute.Strategy:
    """Checks the batches against --num_tpu_cores, then connects to a TPU and initialises it."""
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
    """Returns an initialised TPU. Raises the errors of sockets and TensorFlow if it cannot be reached."""
    if address.startswith("grpc://"):  # connecting to a cluster has no time limit of its own
        host, _, port = address.removeprefix("grpc://").rpartition(":")
        socket.create_connection((host, int(port)), timeout=_CONNECTION_SECS).close()
    resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu=address)
    if address not in ("", "local"):
        tf.config.experimental_connect_to_cluster(resolver)
    tf.tpu.experimental.initialize_tpu_system(resolver)
    return resolver


def _planned_cores(config: Config) -> int:
    """Returns the number of cores for a plan, which does not connect to a TPU."""
    if not config.num_tpu_cores:
        logging.log_first_n(
            logging.WARNING,
            "The plan assumes %d cores, the smallest TPU, since planning does not connect to yours. Set"
            " --num_tpu_cores=N.",
            1,
            _MIN_TPU_CORES,
        )
    return config.num_tpu_cores or _MIN_TPU_CORES


def _make_ipu(config: Config) -> NoReturn:
    program = BACKENDS["ipu"].program.removesuffix(".__main__")
    raise ConfigError(
        f"distribution_strategy=ipu trains only with train.py or python -m {program}. Use another"
        " --distribution_strategy here."
    )


# -----------------------------------------------------------------------------------------------------------
# Strategy


_MAKE: dict[str, Callable[[Config], tf.distribute.Strategy]] = {
    "one_device": lambda config: tf.distribute.OneDeviceStrategy(replica_devices(config)[0]),
    "mirrored": _make_mirrored,
    "multi_worker_mirrored": _make_multi_worker,
    "pipeline": _make_pipeline,
    "tpu": _make_tpu,
    "ipu": _make_ipu,
}
_NUM_REPLICAS: dict[str, Callable[[Config], int]] = {
    "one_device": lambda config: 1,
    "mirrored": planned_replicas,
    "multi_worker_mirrored": lambda config: planned_replicas(config) * len(read_cluster(config).hosts),
    "pipeline": _planned_pipelines,
    "tpu": _planned_cores,
    "ipu": lambda config: config.ipu.replicas,
}


def make_strategy(config: Config) -> tf.distribute.Strategy:
    """Returns the strategy of the configuration, after setting threads, seeds and precision.

    Raises:
      ConfigError: if a requested device is missing.
      PeerError: if another process does not connect.
    """
    tf.keras.utils.set_random_seed(config.seed)
    if config.deterministic:
        tf.config.experimental.enable_op_determinism()
    tf.keras.mixed_precision.set_global_policy(POLICIES[config.dtype])
    strategy = _MAKE[config.distribution_strategy](config)
    _set_matmul_precision(strategy)
    if config.allreduce_dtype != "float32" and strategy.num_replicas_in_sync == 1:
        note = "--allreduce_dtype=%s has no effect: with one replica there is no all-reduce."
        logging.info(note, config.allreduce_dtype)
    # Grappler takes seconds for the graph of BERT-base and finds almost nothing to optimize in the fused
    # path: steps on CPUs take the same time without it, as measured.
    tf.config.optimizer.set_experimental_options(
        {"disable_meta_optimizer": config.kernels != "plain" and native.on_cpus(strategy)}
    )
    quiet.silence_compiler()  # after the strategy, which must be created before all operations
    return strategy


_NO_TF32 = "NVIDIA_TF32_OVERRIDE"  # NVIDIA's variable: 0 turns rounding off


def _set_matmul_precision(strategy: tf.distribute.Strategy) -> None:
    """Sets whether float32 products are rounded to TensorFloat-32; false on devices without it, so that the
    model can read the setting."""
    names = _gpus_with_tf32() if native.on_gpus(strategy) else []
    can_round = bool(names) if native.on_gpus(strategy) else not native.on_cpus(strategy)
    rounds = can_round and os.environ.get(_NO_TF32) != "0"
    tf.config.experimental.enable_tensor_float_32_execution(rounds)
    if names:
        how = "rounded to TensorFloat-32" if rounds else "in full float32"
        logging.info("float32 products on %s: %s (%s=0 turns rounding off).", ", ".join(names), how, _NO_TF32)


def _gpus_with_tf32() -> list[str]:
    """Returns the names of the GPUs that support TensorFloat-32."""
    details = map(tf.config.experimental.get_device_details, tf.config.list_physical_devices("GPU"))
    found = (each for each in details if each.get("compute_capability", (0, 0)) >= (8, 0))
    return sorted({each.get("device_name", "a GPU") for each in found})


def num_replicas(config: Config) -> int:
    """Returns the number of replicas of a run without connecting to other processes or TPUs. Raises
    ConfigError if it cannot be known."""
    return _NUM_REPLICAS[config.distribution_strategy](config)


def device_names(strategy: tf.distribute.Strategy) -> list[str]:
    """Returns the devices that a run computes on, such as GPU:0, of all replicas."""
    pipeline = as_pipeline(strategy)
    names = pipeline.devices() if pipeline else strategy.extended.worker_devices
    return [short_name(name) for name in names]


def has_peers(strategy: tf.distribute.Strategy) -> bool:
    """Tells whether other processes take part in the run, and may be lost."""
    return isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy)


def is_chief(strategy: tf.distribute.Strategy) -> bool:
    """Tells whether this process writes the files and the log for users."""
    # `heartbeat` has made every process a worker: a chief of TF_CONFIG is the first.
    return not has_peers(strategy) or strategy.cluster_resolver.task_id == 0


def num_workers(strategy: tf.distribute.Strategy) -> int:
    """Returns the number of processes that take part in the run, this one among them."""
    return _input_context(strategy).num_input_pipelines if has_peers(strategy) else 1


def noticing_lost_peers(strategy: tf.distribute.Strategy) -> contextlib.AbstractContextManager:
    """Returns a context that raises a one-line PeerError if another process is lost."""
    return heartbeat.noticing_lost_peers(strategy) if has_peers(strategy) else contextlib.nullcontext()


note_passed = heartbeat.note_passed


def with_choices_of_devices(config: Config, strategy: tf.distribute.Strategy) -> Config:
    """Returns the configuration with --enable_xla, if unset, and --length_buckets=auto resolved for the
    devices.

    On CPUs a shape takes at most a second to compile, on GPUs a minute and more. Packed rows have one length,
    with --unpad there is no padding to save by sorting, and a loss over padding (--span_places=row) is the
    same on every device. --unpad is for tasks that do not sort their batches."""
    one_size = not config.unpad and config.length_buckets != "always" and config.kernels != "plain"
    on_one_device = not BACKENDS[config.distribution_strategy].spread_replicas
    if config.enable_xla is None and native.on_gpus(strategy) and one_size and on_one_device:
        config = replaced(config, enable_xla=True)
    if config.length_buckets != "auto":
        return config
    whole_rows = config.pack or config.do_train and config.span_places == "row"
    any_length = native.on_cpus(strategy) and not (config.enable_xla or whole_rows or config.unpad)
    if any_length and config.task in EMBED:  # whose batches are not sorted: see EmbedTask.train_dataset
        return replaced(config, length_buckets="never", unpad=True)
    return replaced(config, length_buckets="always" if any_length else "never")


# -----------------------------------------------------------------------------------------------------------
# Batches of the replicas


HostDataset = Callable[[tf.distribute.InputContext], tf.data.Dataset]


def distribute(host_dataset: HostDataset, strategy: tf.distribute.Strategy) -> Iterable:
    """Returns the batches for `next_batch`, from `host_dataset(tf.distribute.InputContext)`, a dataset of
    replica batches of one host.

    Except on TPUs this is the host's dataset itself. TensorFlow would add device iterators that are autotuned
    despite the dataset's options, and that may take up to a minute to shut down (TensorFlow 2.15.1,
    Model::OptimizeLoop). Batches are small: prefetching to the device has no measurable effect on a step.
    """
    # No function of a dataset needs AutoGraph, and converting them takes a quarter of a short run's time.
    host_dataset = tf.autograph.experimental.do_not_convert(host_dataset)
    if isinstance(strategy, tf.distribute.TPUStrategy):
        return strategy.distribute_datasets_from_function(host_dataset)
    return host_dataset(_input_context(strategy))


def _input_context(strategy: tf.distribute.Strategy) -> tf.distribute.InputContext:
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


@dataclasses.dataclass(frozen=True, eq=False)
class HeldBatch:
    """An iterator that repeats one batch of every replica of this process, kept on its devices."""

    batch: Any

    def __iter__(self) -> HeldBatch:
        return self

    def __next__(self) -> Any:
        return self.batch


def held(iterator: Iterator, strategy: tf.distribute.Strategy) -> HeldBatch:
    """Copies the next batch of an iterator onto the devices; `next_batch` returns it again and again."""

    @tf.function(autograph=False)
    def copied(batch):
        return strategy.run(lambda own: tf.nest.map_structure(tf.identity, own), args=(batch,))

    return HeldBatch(copied(next_batch(iterator, strategy)))


def next_batch(iterator: Iterator, strategy: tf.distribute.Strategy) -> Any:
    """Returns the next batch of every replica of this process, from an iterator over the batches of
    `distribute`, or a HeldBatch. Also works in graphs."""
    if isinstance(iterator, HeldBatch) or isinstance(strategy, tf.distribute.TPUStrategy):
        return next(iterator)
    return strategy.experimental_distribute_values_from_function(lambda _: next(iterator))


def batches(distributed: Iterable, strategy: tf.distribute.Strategy) -> Iterator:
    """Yields all batches of one pass over a set, from `distribute`, for every replica of this process."""
    iterator = iter(distributed)
    with contextlib.suppress(StopIteration):
        while True:
            yield next_batch(iterator, strategy)
