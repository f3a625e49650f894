"""`ipu.pipelining_ops` and `ipu.gradient_accumulation`: the pipeline and its options, the checks of its
arguments, and what has to hold when it is compiled: micro batches of a schedule, IPUs, recomputation, memory.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tests.graphcore.ipu_fake import machine, queues

NAMES = [
    "PipelineSchedule", "RecomputationMode", "PipelineStageOptions", "OptimizerFunctionOutput", "pipeline",
]  # fmt: skip


class PipelineSchedule(enum.IntEnum):
    Grouped = 0
    Interleaved = 1
    Sequential = 2


class RecomputationMode(enum.Enum):
    Auto = 0
    RecomputeThenBackpropagate = 1
    RecomputeAndBackpropagateInterleaved = 2


class GradientAccumulationReductionMethod(enum.Enum):
    SUM = 0


# Schedule -> the mode of recomputation that it does not have.
_WITHOUT_MODE = {
    PipelineSchedule.Sequential: RecomputationMode.RecomputeThenBackpropagate,
    PipelineSchedule.Interleaved: RecomputationMode.RecomputeAndBackpropagateInterleaved,
}


class PipelineStageOptions:
    """Options of the compiler for one stage: dicts of strings."""

    def __init__(self, convolution_options: dict[str, str], matmul_options: dict[str, str]):
        self.convolution_options, self.matmul_options = convolution_options, matmul_options
        for options in (convolution_options, matmul_options):
            machine.check_poplar_options(options)


class OptimizerFunctionOutput:
    """What an optimizer function gives back: the optimizer, the loss, and what `compute_gradients` gets.

    Raises:
      TypeError: opt is no optimizer of TensorFlow 1, or loss no tensor.
    """

    def __init__(self, opt: Any, loss: tf.Tensor, compute_gradients_kwargs: dict[str, Any]):
        if not isinstance(opt, tf.compat.v1.train.Optimizer):
            raise TypeError("OptimizerFunctionOutput.opt must be a TensorFlow Optimizer object.")
        if not isinstance(loss, tf.Tensor):
            raise TypeError("OptimizerFunctionOutput.loss must be a TensorFlow Tensor object.")
        self.opt, self.loss, self.compute_gradients_kwargs = opt, loss, compute_gradients_kwargs


@dataclasses.dataclass
class Settings:
    """The arguments of `pipeline`."""

    computational_stages: list[Callable]
    gradient_accumulation_count: int
    device_mapping: list[int]
    infeed_queue: queues.IPUInfeedQueue
    outfeed_queue: queues.IPUOutfeedQueue
    pipeline_schedule: PipelineSchedule = PipelineSchedule.Grouped
    recomputation_mode: RecomputationMode = RecomputationMode.Auto
    forward_propagation_stages_poplar_options: Any = None
    backward_propagation_stages_poplar_options: Any = None
    optimizer_function: Callable | None = None
    offload_weight_update_variables: bool = True
    replicated_optimizer_state_sharding: bool = False
    reduction_method: GradientAccumulationReductionMethod = GradientAccumulationReductionMethod.SUM
    outfeed_mask: list[bool] | None = None
    accumulate_outfeed: bool = False
    repeat_count: int = 1
    name: str | None = None

    @property
    def training(self) -> bool:
        return self.optimizer_function is not None

    @property
    def ipus_per_replica(self) -> int:
        """IPUs of one copy of the pipeline, rounded up to a power of two."""
        return 1 << max(self.device_mapping).bit_length()


def check(settings: Settings) -> None:
    """Checks the arguments of a pipeline. Raises TypeError, ValueError or NotImplementedError."""
    stages, mapping = settings.computational_stages, settings.device_mapping
    types: dict[str, type] = {
        "computational_stages": list,
        "device_mapping": list,
        "gradient_accumulation_count": int,
        "repeat_count": int,
        "infeed_queue": queues.IPUInfeedQueue,
        "outfeed_queue": queues.IPUOutfeedQueue,
        "pipeline_schedule": PipelineSchedule,
        "recomputation_mode": RecomputationMode,
        "reduction_method": GradientAccumulationReductionMethod,
        "offload_weight_update_variables": bool,
        "replicated_optimizer_state_sharding": bool,
    }
    for name, kind in types.items():
        if type(getattr(settings, name)) is not kind:
            raise TypeError(f"{name}={getattr(settings, name)!r} must be of type {kind.__name__}")
    if len(stages) < 2:
        raise ValueError("Pipeline requires at least two computational stages.")
    if len(mapping) != len(stages):
        raise ValueError(
            f"Each stage must be mapped to an IPU: {len(mapping)} mappings != {len(stages)} stages"
        )
    interleaved = settings.pipeline_schedule == PipelineSchedule.Interleaved
    if interleaved and settings.training and len(set(mapping)) != len(mapping):
        raise NotImplementedError(
            "The pipelining schedule 'Interleaved' does not support multiple pipeline stages on one device"
        )
    for name in ("forward_propagation_stages_poplar_options", "backward_propagation_stages_poplar_options"):
        options = getattr(settings, name)
        if options is not None and [type(each) for each in options] != [PipelineStageOptions] * len(stages):
            raise ValueError(f"{name} must be a list of {len(stages)} PipelineStageOptions")
    if settings.outfeed_mask and not settings.training:
        raise ValueError("An optimizer_function must be provided when outfeed_mask is set.")


@tf.autograph.experimental.do_not_convert
def pipeline(**kwargs: Any) -> tf.Operation:
    """Builds a pipeline of stages, which runs as part of a program; see `Settings`."""
    from tests.graphcore.ipu_fake import program

    settings = Settings(**kwargs)
    check(settings)
    if machine.current.running is None or tf.executing_eagerly():
        # Not in the sources read: outside of a program there is no device to compile for.
        raise RuntimeError("pipeline() must be called in a tf.function that strategy.run runs")
    return program.build(settings)


# -----------------------------------------------------------------------------------------------------------
# Limits


def unit_of(settings: Settings) -> int:
    """Returns the number that the micro batches of an update must be a multiple of (of an interleaved
    schedule: not in the sources read, so any)."""
    if settings.pipeline_schedule != PipelineSchedule.Grouped:
        return 1
    return (2 if settings.training else 1) * len(settings.computational_stages)


def _precondition(message: str) -> Any:
    return tf.errors.FailedPreconditionError(None, None, message)


def check_limits(settings: Settings) -> None:
    """Refuses what a schedule cannot run, and offloading to where there is no memory (kinds of errors but the
    first not in the sources read). Raises tf.errors.FailedPreconditionError."""
    count, unit, config = settings.gradient_accumulation_count, unit_of(settings), machine.current.config
    schedule, mode, connection = (
        settings.pipeline_schedule,
        settings.recomputation_mode,
        config.device_connection,
    )
    if count < unit or count % unit:
        raise _precondition(
            f"gradient_accumulation_count is {count}, which must be a multiple of {unit}, at least {unit}:"
            f" schedule {schedule.name}, {len(settings.computational_stages)} stages"
        )
    if settings.training and config.allow_recompute and mode == _WITHOUT_MODE.get(schedule):
        raise _precondition(f"{mode} is not supported by the schedule {schedule.name}")
    has_buffers = connection.type.name == "ALWAYS" or connection.enable_remote_buffers
    if settings.training and settings.offload_weight_update_variables and not has_buffers:
        raise _precondition("offload_weight_update_variables needs device_connection.enable_remote_buffers")


def replicas_of(settings: Settings) -> int:
    """Returns how many copies of a pipeline the configured IPUs run. Raises tf.errors.InvalidArgumentError
    for fewer than one (kind of error not in the sources read)."""
    have, need = machine.current.configured_ipus, settings.ipus_per_replica
    if have < need:
        raise tf.errors.InvalidArgumentError(
            None, None, f"device_mapping {settings.device_mapping} needs {need} IPUs, but {have} are there"
        )
    return have // need


def check_memory(settings: Settings, program: Any) -> None:
    """Adds up the bytes of variables and of gradient sums on each IPU.

    Raises:
      tf.errors.ResourceExhaustedError: an IPU has too little memory; says which, how much and by how much.
    """
    ipus, found = program.tracer.ipu_of_variables(), dict.fromkeys(range(settings.ipus_per_replica), 0)
    used = {id(each): each for stage in program.tracer.stages for each in stage.variables}
    for variable in [*used.values(), *program.variables]:
        found[ipus.get(id(variable), 0)] += variable.shape.num_elements() * variable.dtype.size
    limit, worst = machine.current.bytes_per_ipu, max(found, key=found.__getitem__)
    if limit is not None and found[worst] > limit:
        told = f"Out of memory on IPU {worst}: {found[worst]} bytes used by variables, {limit} available"
        raise tf.errors.ResourceExhaustedError(None, None, told)
