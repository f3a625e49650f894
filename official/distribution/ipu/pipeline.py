"""A pipeline on IPUs from a plan: what `pipelining_ops.pipeline` is called with.

The functional API: a stage is a function of tensors, its outputs are the next one's arguments.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from official.config import FIELDS, Config, ConfigError, nearest_multiples
from official.config.ipu_rules import memory_proportions
from official.distribution import pipeline_plan as plan_lib
from official.distribution.batch_plan import BatchPlan
from official.distribution.pipeline_plan import PipelinePlan

# Modes of recomputation that a schedule has. Source: RecomputationMode of Graphcore's TensorFlow 2.6.
_RECOMPUTATION = {
    "grouped": "RecomputeAndBackpropagateInterleaved",
    "sequential": "RecomputeAndBackpropagateInterleaved",
    "interleaved": "RecomputeThenBackpropagate",
}


class Queues(NamedTuple):
    """Inputs of a pipeline from the host, and its outputs.

    Attributes:
      infeed: elements are tuples of tensors, the arguments of the first stage: one a micro batch and replica.
      outfeed: takes the outputs of the last stage.
    """

    infeed: Any
    outfeed: Any


class Training(NamedTuple):
    """Training by a pipeline: its optimizer, and the steps of a call.

    Attributes:
      optimizer_function: outputs of the last stage -> OptimizerFunctionOutput.
      steps: updates of one call.
      outfeed_mask: of the outputs of the last stage, true for those that do not go back.
    """

    optimizer_function: Callable
    steps: int
    outfeed_mask: Sequence[bool]


def make_queues(api: Any, dataset: Any) -> Queues:
    """Returns the queues of a pipeline that reads a dataset of fully defined shapes."""
    return Queues(api.ipu_infeed_queue.IPUInfeedQueue(dataset), api.ipu_outfeed_queue.IPUOutfeedQueue())


def add_pipeline(
    config: Config,
    api: Any,
    plan: PipelinePlan,
    stages: Sequence[Callable],
    queues: Queues,
    training: Training | None = None,
) -> None:
    """Adds the pipeline to the graph of the tf.function that is traced.

    Args:
      config: of the run.
      api: see `api.load`.
      plan: stages, IPUs and schedule.
      stages: functions of the plan's stages: tensors -> list of tensors.
      queues: see `make_queues`.
      training: None: it only computes the outputs.
    """
    operations = api.pipelining_ops
    options = stage_options(config, api, plan.devices)
    arguments = dict(
        computational_stages=list(stages),
        gradient_accumulation_count=plan.micro_batches,
        device_mapping=list(plan.devices),
        pipeline_schedule=getattr(operations.PipelineSchedule, plan.schedule.capitalize()),
        infeed_queue=queues.infeed,
        outfeed_queue=queues.outfeed,
        forward_propagation_stages_poplar_options=options,
        name="pipeline",
    )
    if training is not None:
        arguments.update(_training_arguments(config, api, plan, training), repeat_count=training.steps)
        arguments["backward_propagation_stages_poplar_options"] = options
    operations.pipeline(**arguments)


def _training_arguments(config: Config, api: Any, plan: PipelinePlan, training: Training) -> dict:
    arguments = dict(
        optimizer_function=training.optimizer_function,
        offload_weight_update_variables=config.optimizer_state_offchip,
        replicated_optimizer_state_sharding=config.replicated_tensor_sharding,
        reduction_method=api.gradient_accumulation.GradientAccumulationReductionMethod.SUM,
        outfeed_mask=list(training.outfeed_mask),
        accumulate_outfeed=True,
    )
    if config.recompute != "none":
        modes = api.pipelining_ops.RecomputationMode
        arguments["recomputation_mode"] = getattr(modes, _RECOMPUTATION[plan.schedule])
    return arguments


def stage_options(config: Config, api: Any, devices: Sequence[int]) -> list[Any]:
    """Returns the PipelineStageOptions of each stage."""
    found = []
    for share in memory_proportions(config, tuple(devices)):
        products = {"partialsType": config.partials_type}
        if share is not None:
            products["availableMemoryProportion"] = share
        found.append(
            api.pipelining_ops.PipelineStageOptions(
                matmul_options=products, convolution_options=dict(products)
            )
        )
    return found


def evaluation_plan(config: Config, plan: PipelinePlan, batches: BatchPlan) -> tuple[PipelinePlan, BatchPlan]:
    """Returns the pipeline without a backward pass, and its batches. Its micro batches are as large as those
    of the training, for which there is room.

    --eval_batch_size says how many rows a call of the devices takes. At its default that is the next number
    above which the pipeline takes.

    Raises:
      ConfigError: for another number of rows.
    """
    rows, replicas = max(1, batches.micro_batch_size), batches.num_replicas
    turns = len(plan.stages) if plan.schedule == "grouped" else 1
    turns = max(turns, plan_lib.micro_batch_divisor(plan.devices, plan.schedule, False))
    unit = replicas * turns * rows
    size = config.eval_batch_size
    if size == FIELDS["eval_batch_size"].default:
        size = -(-size // unit) * unit
    if size % unit:
        raise ConfigError(
            f"eval_batch_size={size} is not divisible by replicas x micro batches x their rows = {replicas} x"
            f" {turns} x {rows} = {unit}, which pipeline_schedule={plan.schedule} needs for"
            f" {len(plan.stages)} stages. Nearest valid: {nearest_multiples(size, unit)}."
        )
    return (
        dataclasses.replace(plan, micro_batches=size // (replicas * rows)),
        dataclasses.replace(batches, eval_batch_size=size),
    )


def check_plan(config: Config, plan: PipelinePlan) -> None:
    """Refuses, with ConfigError, a plan of one stage, and shares of memory for other stages."""
    memory_proportions(config, plan.devices)
    if len(plan.stages) < 2:
        raise ConfigError(
            "pipeline_stages=1: a pipeline on IPUs has two stages or more, of one IPU too. Give"
            " --pipeline_stages=2 --device_mapping=0,0."
        )
