"""The pipeline of a model on IPUs: stages as functions of tensors, and the call of Graphcore's API."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from official.config import FIELDS
from official.config.table import Config
from official.distribution import pipeline_plan as plan_lib
from official.distribution.batch_plan import BatchPlan, check_divisible
from official.distribution.pipeline_plan import PipelinePlan
from official.graphcore.rules import memory_proportions
from official.io.errors import ConfigError
from official.modeling import blocks
from official.modeling import stages as stages_lib
from official.modeling.stages import Stage
from official.optimization.replica_step import stack_terms
from official.training.task import Task

# -----------------------------------------------------------------------------------------------------------
# The call of the API
#
# The functional API: a stage is a function of tensors, its outputs are the next one's arguments.


# Modes of recomputation that a schedule supports. Source: RecomputationMode of Graphcore's TensorFlow 2.6.
_RECOMPUTATION = {
    "grouped": "RecomputeAndBackpropagateInterleaved",
    "sequential": "RecomputeAndBackpropagateInterleaved",
    "interleaved": "RecomputeThenBackpropagate",
}


class Queues(NamedTuple):
    """Inputs of a pipeline from the host, and its outputs.

    Attributes:
      infeed: elements are tuples of tensors, the arguments of the first stage: one per micro batch and
        replica.
      outfeed: receives the outputs of the last stage.
    """

    infeed: Any
    outfeed: Any


class Training(NamedTuple):
    """Training by a pipeline: its optimizer, and the steps of a call.

    Attributes:
      optimizer_function: function from the outputs of the last stage to an OptimizerFunctionOutput.
      steps: updates per call.
      outfeed_mask: for each output of the last stage, whether it is not returned.
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
    """Adds the pipeline to the graph of the current tf.function.

    Args:
      config: configuration of the run.
      api: see `devices.load_api`.
      plan: stages, IPUs and schedule.
      stages: functions of the plan's stages, from tensors to a list of tensors.
      queues: see `make_queues`.
      training: training by the pipeline; None: it only computes the outputs.
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
        arguments.update(
            optimizer_function=training.optimizer_function,
            offload_weight_update_variables=config.ipu.optimizer_state_offchip,
            replicated_optimizer_state_sharding=config.ipu.replicated_tensor_sharding,
            reduction_method=api.gradient_accumulation.GradientAccumulationReductionMethod.SUM,
            outfeed_mask=list(training.outfeed_mask),
            accumulate_outfeed=True,
            repeat_count=training.steps,
            backward_propagation_stages_poplar_options=options,
        )
        if config.recompute != "none":
            mode = getattr(operations.RecomputationMode, _RECOMPUTATION[plan.schedule])
            arguments["recomputation_mode"] = mode
    operations.pipeline(**arguments)


def stage_options(config: Config, api: Any, devices: Sequence[int]) -> list[Any]:
    """Returns the PipelineStageOptions of each stage."""
    found = []
    for share in memory_proportions(config, tuple(devices)):
        products = {"partialsType": config.ipu.partials_type}
        if share is not None:
            products["availableMemoryProportion"] = share
        both = dict(matmul_options=products, convolution_options=dict(products))
        found.append(api.pipelining_ops.PipelineStageOptions(**both))
    return found


def evaluation_plan(config: Config, plan: PipelinePlan, batches: BatchPlan) -> tuple[PipelinePlan, BatchPlan]:
    """Returns the pipeline without a backward pass, and its batches. Its micro batches have the size of the
    training's, which is known to fit.

    --eval_batch_size is the number of rows per device call. Its default is rounded up to a number that the
    pipeline accepts.

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
    what = (
        f"replicas x micro batches x their rows = {replicas} x {turns} x {rows} = {unit}, which"
        f" pipeline_schedule={plan.schedule} needs for {len(plan.stages)} stages"
    )
    check_divisible("eval_batch_size", size, unit, what)
    return (
        dataclasses.replace(plan, micro_batches=size // (replicas * rows)),
        dataclasses.replace(batches, eval_batch_size=size),
    )


def check_plan(config: Config, plan: PipelinePlan) -> None:
    """Raises ConfigError for a plan of one stage, and for shares of memory that do not match the stages."""
    memory_proportions(config, plan.devices)
    if len(plan.stages) < 2:
        raise ConfigError(
            "pipeline_stages=1: a pipeline on IPUs needs two or more stages, also on one IPU. Give"
            " --pipeline_stages=2 --device_mapping=0,0."
        )


# -----------------------------------------------------------------------------------------------------------
# Stages
#
# Each stage passes on the tensors that later ones need: features of the batch, and outputs of earlier
# stages.


# Additional features of each micro batch of the training.
SEED, FACTORS, COUNTS = "dropout_seed", "loss_factors", "step_counts"
LOSS, SUMS, ROWS = "loss", "sums", "rows"
NUM_COUNTS = 2  # counts of a step: sequences and tokens
# {task: the model's stages after the encoder's blocks}
_HEADS = {
    "pretrain": ("pooler", "masked_lm", "next_sentence"),
    "squad": ("span",),
    "glue": ("pooler", "classifier"),
}


class Chain(NamedTuple):
    """Stages of a pipeline: those of a model, and a last one.

    Attributes:
      model: the model, with `stages` and `seeds`.
      last: the stage after the model's; its outputs are those of the pipeline.
      drops: whether it uses dropout.
    """

    model: Any
    last: Stage
    drops: bool = False


class Part(NamedTuple):
    """A stage of the pipeline.

    Attributes:
      stages: (number, stage) of its stages of the chain.
      features: names of the batch's features among its arguments, which come first.
      carried: names of the earlier parts' outputs among its arguments, which follow.
    """

    stages: tuple[tuple[int, Stage], ...]
    features: tuple[str, ...] = ()
    carried: tuple[str, ...] = ()


def names_of(config: Config) -> list[str]:
    """Returns the names of the model's stages, before it is built."""
    prenorm = blocks.find(config.model.block_type).IS_PRENORM
    layers = [f"layer_{index}" for index in range(config.model.num_hidden_layers)]
    return ["embeddings", *layers, *["final_norm"] * prenorm, *_HEADS[config.task]]


def training_chain(config: Config, task: Task, model: Any) -> Chain:
    """Returns the chain of a model and its training objective.

    The last stage returns `loss`, a scalar, and `sums` [2 x metrics + NUM_COUNTS]: the terms of the metrics,
    their weights, and the micro batch's share of the step's counts. All float32.
    """

    def run(weights, carried, features, seed):
        terms = task.terms(model.outputs_of(carried), features)
        factors = tf.unstack(features[FACTORS], num=len(task.losses))
        total = tf.add_n([terms[name][0] * factor for name, factor in zip(task.losses, factors)])
        return {LOSS: total, SUMS: tf.concat([stack_terms(terms, task.metrics), features[COUNTS]], axis=0)}

    drops = config.model.hidden_dropout_prob > 0 or config.model.attention_probs_dropout_prob > 0
    return Chain(model, _last("objective", model, run, (LOSS, SUMS)), drops)


def evaluation_chain(task: Task, model: Any) -> Chain:
    """Returns the chain of a model and a task's evaluation. The last stage returns `sums` float32 [2 x eval
    metrics + 1], see `step.make_eval_step`, and the task's outputs with `rows`."""

    def run(weights, carried, features, seed):
        terms, outputs = task.evaluate(lambda batch: model.outputs_of(carried), features)
        sequences = tf.reduce_sum(features["example_weights"])
        found = {SUMS: tf.concat([stack_terms(terms, task.eval_metrics), [sequences]], axis=0), **outputs}
        return {**found, ROWS: features[ROWS]} if outputs else found

    names = (*task.output_names, ROWS) if task.output_names else ()
    return Chain(model, _last("evaluation", model, run, (SUMS, *names)))


def prediction_chain(task: Task, model: Any) -> Chain:
    """Returns the chain of a model and its predictions. The last stage returns the task's outputs; for
    pre-training `predicted_ids` int32 [B, P], the most probable tokens at the masked positions, and
    `next_sentence_logits` float32 [B, 2], or [B, S, 2] for packed rows."""

    def run(weights, carried, features, seed):
        if task.output_names:
            return task.evaluate(lambda batch: model.outputs_of(carried), features)[1]
        logits_BPV, relation = model.outputs_of(carried)
        ids_BP = tf.argmax(logits_BPV, axis=-1, output_type=tf.int32)
        return {"predicted_ids": ids_BP, "next_sentence_logits": relation}

    gives = task.output_names or ("predicted_ids", "next_sentence_logits")
    return Chain(model, _last("prediction", model, run, gives))


def _last(name: str, model: Any, run: Callable, gives: tuple[str, ...]) -> Stage:
    """Returns a stage without weights after the model's stages. Its inputs are those of their outputs that
    none of them reads."""
    stages = model.stages()
    taken = {taken for stage in stages for taken in stage.takes}
    outputs = dict.fromkeys(given for stage in stages for given in stage.gives if given not in taken)
    return Stage(name, (), lambda: (), run, tuple(outputs), gives)


def make_parts(chain: Chain, plan: PipelinePlan, signature: dict[str, tf.TensorSpec]) -> list[Part]:
    """Returns the parts of a chain according to the plan. The last part includes the chain's last stage.

    Args:
      chain: the model and the last stage.
      plan: the model's stages in each part.
      signature: {feature: shape and type} of a micro batch.

    Raises:
      ConfigError: if the plan is for another model.
    """
    stages = chain.model.stages()
    planned = [name for part in plan.stages for name in part]
    if planned != [stage.name for stage in stages]:
        raise ConfigError(
            f"pipeline_stages holds {len(planned)} parts of a model, and this one has {len(stages)}:"
            f" {', '.join(stage.name for stage in stages)}. Change --pipeline_stages."
        )
    numbered = list(enumerate([*stages, chain.last]))
    parts, begin = [], 0
    for names in plan.stages:
        parts.append(numbered[begin : begin + len(names)])
        begin += len(names)
    parts[-1].append(numbered[-1])
    return _with_arguments(chain, parts, signature)


def make_functions(chain: Chain, parts: Sequence[Part]) -> list[Callable]:
    """Returns the function of each part, from its arguments to those of the next part; the last one returns
    the chain's outputs."""
    after = [(part.features, part.carried) for part in parts[1:]]
    return [
        _function(chain, part, *results) for part, results in zip(parts, [*after, ((), chain.last.gives)])
    ]


def _function(chain: Chain, part: Part, features_out: tuple, carried_out: tuple) -> Callable:
    def run_part(*tensors):
        batch = dict(zip(part.features, tensors))
        carried = dict(zip(part.carried, tensors[len(part.features) :]))
        _run_stages(chain, part.stages, batch, carried)
        return [batch[name] for name in features_out] + [carried[name] for name in carried_out]

    return run_part


def _run_stages(chain: Chain, stages: Sequence, batch: dict, carried: dict) -> None:
    """Runs stages of a chain, and adds their outputs to `carried`."""
    seeds = [*chain.model.seeds(batch[SEED] if chain.drops else None), None]
    for number, stage in stages:
        stages_lib.run_one(stage, carried, batch, seeds[number])


class _Recorded(dict):
    """A dict of features that records the reads in `asked`."""

    def __init__(self, features: dict):
        super().__init__(features)
        self.asked: set[str] = set()

    def __getitem__(self, name):
        self.asked.add(name)
        return super().__getitem__(name)

    def __contains__(self, name):
        found = super().__contains__(name)
        if found:
            self.asked.add(name)
        return found

    def get(self, name, default=None):
        if name not in self:
            return default
        return self[name]


def _with_arguments(chain: Chain, parts: list, signature: dict) -> list[Part]:
    """Returns the parts with the names of their arguments."""
    asked = _features_asked(chain, parts, signature)
    flat = [stage for part in parts for _, stage in part]
    found: list[Part] = []
    needed: set[str] = set()
    begin = len(flat)
    for part, own in zip(reversed(parts), reversed(asked)):
        needed, begin = needed | own, begin - len(part)
        carried = tuple(sorted(stages_lib.crossing(flat, begin)))
        found.insert(0, Part(tuple(part), tuple(sorted(needed)), carried))
    return found


def _features_asked(chain: Chain, parts: list, signature: dict) -> list[set]:
    """Traces each part to find the names of the features that it reads."""
    asked = []

    def trace(*tensors):
        carried: dict = {}
        for part in parts:
            batch = _Recorded(dict(zip(signature, tensors)))
            _run_stages(chain, part, batch, carried)
            asked.append(batch.asked)
        return [carried[name] for name in chain.last.gives]

    tf.function(trace, autograph=False).get_concrete_function(*signature.values())
    return asked
