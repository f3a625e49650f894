"""`ipu.pipelining_ops`: the pipeline, its options, and the checks of its arguments."""

from __future__ import annotations

import dataclasses
import enum
import logging
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from tests.graphcore.ipu_fake import gradient_accumulation, machine, queues

log = logging.getLogger("ipu_fake")
Reduction = gradient_accumulation.GradientAccumulationReductionMethod
CHECKPOINT = "ipu_fake_recomputation_checkpoint"


class PipelineSchedule(enum.IntEnum):
    Grouped = 0
    Interleaved = 1
    Sequential = 2


class RecomputationMode(enum.Enum):
    Auto = 0
    RecomputeThenBackpropagate = 1
    RecomputeAndBackpropagateInterleaved = 2


class PipelineStageOptions:
    """Options of the compiler for one stage.

    Args:
      convolution_options, matmul_options, slice_options: dicts of strings, or None.

    Raises:
      TypeError: anything else.
    """

    def __init__(
        self,
        convolution_options: dict[str, str] | None = None,
        matmul_options: dict[str, str] | None = None,
        slice_options: dict[str, str] | None = None,
    ):
        self.convolution_options = _options("convolution_options", convolution_options)
        self.matmul_options = _options("matmul_options", matmul_options)
        self.slice_options = _options("slice_options", slice_options)


def _options(name: str, options: Any) -> dict[str, str]:
    options = options if options else {}
    if not isinstance(options, dict):
        raise TypeError(f"PipelineStageOptions.{name} must be dictionary.")
    for key, value in options.items():
        if not isinstance(key, str) or not isinstance(value, str):
            raise TypeError(
                f"PipelineStageOptions.{name}: {key!r}: {value!r}: names and values must be strings"
            )
    return dict(options)


def is_optimizer_v2(opt: Any) -> bool:
    """Whether an object is an optimizer of Keras, as TensorFlow 2.6 knew them."""
    legacy = getattr(tf.keras.optimizers, "legacy", tf.keras.optimizers)
    return isinstance(opt, (legacy.Optimizer, tf.keras.optimizers.Optimizer))


class OptimizerFunctionOutput:
    """What an optimizer function gives back: the optimizer, the loss, and what its methods get.

    Raises:
      TypeError: opt is no optimizer, or loss no tensor.
      ValueError: arguments that exclude or need each other.
    """

    def __init__(
        self,
        opt: Any,
        loss: tf.Tensor,
        compute_gradients_args: tuple | None = None,
        compute_gradients_kwargs: dict[str, Any] | None = None,
        apply_gradients_args: tuple | None = None,
        apply_gradients_kwargs: dict[str, Any] | None = None,
        variables: list[tf.Variable] | None = None,
        tape: tf.GradientTape | None = None,
        gradient_capture_context: Any = None,
        captured_gradient_outfeed: Any = None,
    ):
        if not isinstance(opt, tf.compat.v1.train.Optimizer) and not is_optimizer_v2(opt):
            raise TypeError("OptimizerFunctionOutput.opt must be a TensorFlow Optimizer object.")
        if not isinstance(loss, tf.Tensor):
            raise TypeError("OptimizerFunctionOutput.loss must be a TensorFlow Tensor object.")
        if is_optimizer_v2(opt) and (compute_gradients_args or compute_gradients_kwargs):
            raise ValueError("OptimizerFunctionOutput.compute_gradients_* may not be used with OptimizerV2.")
        if variables and tape:
            raise ValueError(
                "OptimizerFunctionOutput.variables and OptimizerFunctionOutput.tape exclude each other."
            )
        if tape and gradient_capture_context:
            raise ValueError("OptimizerFunctionOutput.tape and .gradient_capture_context exclude each other.")
        if gradient_capture_context or captured_gradient_outfeed:
            raise NotImplementedError("this fake captures no gradients")
        self.opt, self.loss, self.variables, self.tape = opt, loss, variables, tape
        self.compute_gradients_args = compute_gradients_args or ()
        self.compute_gradients_kwargs = compute_gradients_kwargs or {}
        self.apply_gradients_args = apply_gradients_args or ()
        self.apply_gradients_kwargs = apply_gradients_kwargs or {}


@dataclasses.dataclass
class Settings:
    """The arguments of `pipeline`, after its checks; see there."""

    computational_stages: list[Any]
    gradient_accumulation_count: Any = None
    gradient_accumulation_dtype: Any = None
    gradient_accumulation_for_captured_grads: bool = True
    repeat_count: int = 1
    batch_serialization_iterations: int = 1
    inputs: Any = None
    infeed_queue: Any = None
    outfeed_queue: Any = None
    optimizer_function: Callable | None = None
    device_mapping: Any = None
    pipeline_schedule: Any = None
    recomputation_mode: Any = None
    forward_propagation_stages_poplar_options: Any = None
    backward_propagation_stages_poplar_options: Any = None
    weight_update_poplar_options: Any = None
    offload_weight_update_variables: bool | None = None
    replicated_optimizer_state_sharding: bool = False
    offload_activations: bool | None = None
    offload_gradient_accumulation_buffers: bool | None = None
    replicated_weight_sharding: bool | None = None
    offload_weights: bool | None = None
    continuous_weight_updates: bool = False
    outfeed_loss: bool = False
    accumulate_outfeed: bool = False
    accumulate_outfeed_dtype: Any = None
    outfeed_mask: list[bool] | None = None
    reduction_method: Any = Reduction.SUM
    name: str | None = None

    @property
    def training(self) -> bool:
        return self.optimizer_function is not None

    def ipus(self) -> list[int]:
        """Returns the IPUs of all stages, those of parallel stages one by one."""
        return flat(self.device_mapping)


def flat(mapping: Any) -> list[Any]:
    """Returns the members of nested lists."""
    if isinstance(mapping, (list, tuple, range)):
        return [each for part in mapping for each in flat(part)]
    return [mapping]


def check(settings: Settings) -> None:
    """Completes and checks the arguments of a pipeline, in the order in which the real one looks at them."""
    _check_count(settings)
    if settings.training:
        settings.reduction_method = Reduction.parse(settings.reduction_method)
    if settings.reduction_method != Reduction.SUM and settings.batch_serialization_iterations != 1:
        raise ValueError("batch_serialization_iterations != 1 is only supported when reduction_method is SUM")
    if settings.continuous_weight_updates:
        raise NotImplementedError("Continuous weight updates are currently not supported.")
    _check_schedule(settings)
    _check_stages(settings)
    _check_mapping(settings)
    _check_options(settings)
    _check_outfeed(settings)
    _check_offloading(settings)


def _check_count(settings: Settings) -> None:
    count = settings.gradient_accumulation_count
    if count is None:
        raise ValueError("gradient_accumulation_count must be specified.")
    if isinstance(count, int) and count < 0:
        raise ValueError("gradient_accumulation_count must be >= 0.")
    if isinstance(count, int) and count > np.iinfo(np.int32).max:
        raise ValueError("gradient_accumulation_count must be < max int32.")
    for name in ("repeat_count", "batch_serialization_iterations"):
        value = getattr(settings, name)
        if not isinstance(value, int) or value < 1:
            raise ValueError(
                f"{name}={value}: must be an int of at least 1"
            )  # kind of error not in the sources read


def _check_schedule(settings: Settings) -> None:
    serial = settings.batch_serialization_iterations > 1
    if settings.pipeline_schedule is None:
        settings.pipeline_schedule = PipelineSchedule.Sequential if serial else PipelineSchedule.Grouped
    if not isinstance(settings.pipeline_schedule, PipelineSchedule):
        raise TypeError("The given pipeline_schedule is not a member of the PipelineSchedule enumeration.")
    if serial and settings.pipeline_schedule != PipelineSchedule.Sequential:
        raise NotImplementedError("Batch serialization is only supported with the `Sequential` schedule.")
    if settings.recomputation_mode is None:
        settings.recomputation_mode = RecomputationMode.Auto
    if not isinstance(settings.recomputation_mode, RecomputationMode):
        raise TypeError("The given recomputation_mode is not a member of the RecomputationMode enumeration.")


def _check_stages(settings: Settings) -> None:
    stages, infeed, outfeed = settings.computational_stages, settings.infeed_queue, settings.outfeed_queue
    if not isinstance(stages, (list, tuple)):
        raise TypeError("computational_stages argument needs to be a list or a tuple.")
    if infeed is not None and not isinstance(infeed, queues.IPUInfeedQueue):
        raise TypeError("infeed_queue is not an instance of ipu_infeed_queue.IPUInfeedQueue")
    if outfeed is not None and not isinstance(outfeed, queues.IPUOutfeedQueue):
        raise TypeError("outfeed_queue is not an instance of ipu_outfeed_queue.IPUOutfeedQueue")
    if len(stages) < 2:
        raise ValueError("Pipeline requires at least two computational stages.")
    for each in flat(list(stages)):
        if not callable(each):
            raise TypeError(f"computational_stages: {each!r} is not a function")  # not in the sources read


def _check_mapping(settings: Settings) -> None:
    stages, serial = settings.computational_stages, settings.batch_serialization_iterations > 1
    if settings.device_mapping is None:
        settings.device_mapping = [0] * len(stages) if serial else list(range(len(stages)))
    mapping = settings.device_mapping
    if not isinstance(mapping, (list, tuple)):
        raise TypeError("device_mapping argument needs to be a list or a tuple.")
    if len(mapping) != len(stages):
        raise ValueError(
            f"Each stage must be mapped to an IPU: {len(mapping)} mappings != {len(stages)} stages"
        )
    ipus = settings.ipus()
    if any(isinstance(each, bool) or not isinstance(each, int) or each < 0 for each in ipus):
        raise TypeError(f"device_mapping: {mapping}: IPUs are ints from 0")  # not in the sources read
    interleaved = settings.pipeline_schedule == PipelineSchedule.Interleaved
    if interleaved and settings.training and len(set(ipus)) != len(ipus):
        raise NotImplementedError(
            "The pipelining schedule 'Interleaved' does not currently support multiple pipeline stages on "
            "the same device for training graphs. Please use a different pipeline schedule."
        )
    if serial and len(set(ipus)) != 1:
        raise NotImplementedError(
            "When using batch serialization, all the pipeline stages need to be mapped to a single IPU."
        )
    _check_parallel(stages, mapping)


def _check_parallel(stages: Any, mapping: Any) -> None:
    for stage, ipus in zip(stages, mapping):
        if not isinstance(stage, list):
            if isinstance(ipus, (list, tuple)):
                raise ValueError("device_mapping: several IPUs for one stage")  # not in the sources read
            continue
        if not isinstance(ipus, list):
            raise ValueError(
                "When the pipeline stage is a list of functions, the device mapping must also be a list."
            )
        if len(stage) != len(ipus):
            raise ValueError("Pipeline stage list and device_id list must be the same length.")
        if any(isinstance(each, list) for each in stage):
            raise NotImplementedError("Multiple nested levels of pipeline stages is not supported.")


def _check_options(settings: Settings) -> None:
    names = ["forward_propagation_stages_poplar_options"]
    names += ["backward_propagation_stages_poplar_options"] if settings.training else []
    for name in names:
        _check_stage_options(name, getattr(settings, name), len(settings.computational_stages))
    update = settings.weight_update_poplar_options
    if settings.training and update is not None and not isinstance(update, PipelineStageOptions):
        raise TypeError(
            f"weight_update_poplar_options to be of type PipelineStageOptions, but got {update} instead."
        )


def _check_stage_options(name: str, options: Any, stages: int) -> None:
    if options is None:
        return
    if not isinstance(options, (list, tuple)):
        raise TypeError(f"{name} must be a list or a tuple of PipelineStageOptions objects.")
    if len(options) != stages:
        raise ValueError(
            f"{name} must be a list or a tuple of PipelineStageOptions objects of length {stages} (same "
            f"number as the number of computational stages) but is {len(options)}."
        )
    for each in options:
        if not isinstance(each, PipelineStageOptions):
            raise TypeError(
                f"Expected all elements of {name} to be of type PipelineStageOptions, but got {each} instead."
            )


def _check_outfeed(settings: Settings) -> None:
    if settings.outfeed_mask and not settings.training:
        raise ValueError("An optimizer_function must be provided when outfeed_mask is set.")
    if settings.outfeed_loss and not settings.training:
        raise ValueError("An optimizer_function must be provided when outfeed_loss is True.")
    if settings.outfeed_loss and settings.outfeed_mask:
        raise ValueError("Only one of `outfeed_loss` and `outfeed_mask` can be set.")
    if settings.accumulate_outfeed:
        if settings.outfeed_queue is None:
            raise ValueError("An outfeed_queue must be provided when accumulate_outfeed is True.")
        if settings.outfeed_queue._outfeed_mode != queues.IPUOutfeedMode.ALL:
            raise ValueError("To accumulate the outfeed, it must be in IPUOutfeedMode ALL.")
    if settings.outfeed_loss and settings.outfeed_queue is None:
        raise ValueError("An outfeed_queue must be provided when outfeed_loss is True")


def _check_offloading(settings: Settings) -> None:
    if settings.offload_weights is None:
        settings.offload_weights = settings.replicated_weight_sharding
    for name in (
        "offload_weight_update_variables",
        "offload_activations",
        "offload_gradient_accumulation_buffers",
        "replicated_weight_sharding",
        "offload_weights",
    ):
        if getattr(settings, name) not in (None, True, False):
            raise TypeError(f"{name} must be True, False or None")  # not in the sources read
    if not settings.training and settings.replicated_optimizer_state_sharding:
        log.warning(
            "replicated_optimizer_state_sharding will have no effect since this pipeline is in inference."
        )
    if not settings.training and settings.offload_weight_update_variables is not False:
        log.warning(
            "offload_weight_update_variables will have no effect since this pipeline is in inference."
        )


@tf.autograph.experimental.do_not_convert
def pipeline(computational_stages: Any, *args: Any, **kwargs: Any) -> tf.Operation:
    """Builds a pipeline of stages, which runs as part of a program.

    Args: those of Settings, in that order.

    Returns:
      The operation that runs it.
    """
    from tests.graphcore.ipu_fake import pipeline_program

    settings = Settings(computational_stages, *args, **kwargs)
    check(settings)
    if machine.current.running is None or tf.executing_eagerly():
        # Not in the sources read: outside of a program there is no device to compile for.
        raise RuntimeError("pipeline() must be called in a tf.function that strategy.run runs")
    return pipeline_program.build(settings)


@tf.autograph.experimental.do_not_convert
def recomputation_checkpoint(tensors: Any, name: str | None = None) -> Any:
    """Returns the tensors, which are kept where all else of a stage is computed again."""
    return tf.nest.map_structure(lambda each: tf.identity(each, name=CHECKPOINT), tensors)


def module_names() -> dict[str, Any]:
    """Returns what the module ipu.pipelining_ops has."""
    return {
        "PipelineSchedule": PipelineSchedule,
        "RecomputationMode": RecomputationMode,
        "PipelineStageOptions": PipelineStageOptions,
        "OptimizerFunctionOutput": OptimizerFunctionOutput,
        "pipeline": pipeline,
        "recomputation_checkpoint": recomputation_checkpoint,
    }
