"""Pipelined model: its stages run on several devices, on successive micro batches."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import tensorflow as tf
from absl import logging

from official.distribution import pipeline_plan as plan_lib
from official.distribution.pipeline_plan import PipelinePlan, Work
from official.distribution.strategy import as_pipeline
from official.modeling import stages as stages_lib
from official.modeling.stages import Stage, Tensors
from official.optimization import gradients as gradients_lib
from official.optimization import optimizers as state_lib
from official.optimization import replica_step
from official.optimization.gradients import device_of

if TYPE_CHECKING:
    from official.config.table import Config
    from official.optimization.optimizers import TrainState
    from official.optimization.replica_step import Accumulate, Batch, Objective, Shared
    from official.training.task import Task

# -----------------------------------------------------------------------------------------------------------
# A round of micro batches
#
# A part is the section of the model on one pipeline stage. Each part passes on the tensors that later parts
# need, and receives their gradients.


@dataclasses.dataclass(frozen=True)
class Part:
    """The section of the model on one pipeline stage.

    Attributes:
      stages: (number in the model, stage) of the model's stages in this part.
      device: name of its device.
      variables: trained variables placed on its device.
      tied: trained variables of an earlier part, of which this one uses a copy.
      outputs: names of the tensors that later parts take.
    """

    stages: list[tuple[int, Stage]]
    device: str
    variables: list[tf.Variable]
    tied: list[tf.Variable]
    outputs: list[str]


def make_parts(model: Any, plan: PipelinePlan) -> list[Part]:
    """Returns the parts of a model, each on the device of its variables; called in a replica context."""
    numbered = list(enumerate(model.stages()))
    all_stages = [stage for _, stage in numbered]
    trained = {variable.name for variable in model.trainable_variables}
    known: set[str] = set()
    parts = []
    for names in plan.stages:
        own = [(number, stage) for number, stage in numbered if stage.name in names]
        used = {variable.name: variable for _, stage in own for variable in stage.variables}
        new = [variable for name, variable in used.items() if name not in known]
        tied = [variable for name, variable in used.items() if name in known]
        outputs = sorted(stages_lib.crossing(all_stages, own[-1][0] + 1))
        here, copied = ([each for each in some if each.name in trained] for some in (new, tied))
        parts.append(Part(own, device_of(new[0]), here, copied, outputs))
        known |= set(used)
    return parts


@dataclasses.dataclass
class _Kept:
    """The tape and tensors of a part's forward pass, kept for its backward pass.

    Attributes:
      inputs, outputs: the floating-point tensors among the part's inputs and outputs.
      total: the objective, in the last part; None in the others.
    """

    tape: tf.GradientTape
    inputs: dict[str, tf.Tensor]
    outputs: dict[str, tf.Tensor]
    total: tf.Tensor | None = None


@dataclasses.dataclass
class PipelineRound:
    """One filling of the pipeline: the micro batches of a replica that pass through it before it runs empty.

    Attributes:
      batches: features [micro batches, rows, ...].
      copied: {name: copy} of each part's tied variables on its device, shared by all micro batches.
      shared: values shared by all micro batches of the step.
      first: number of the round's first micro batch in the step.
    """

    config: Config
    objective: Objective
    model: Any
    parts: list[Part]
    copied: list[dict[str, tf.Tensor]]
    batches: Batch
    shared: Shared
    first: tf.Tensor

    def __post_init__(self) -> None:
        self._sent: dict[tuple[int, int], Tensors] = {}  # inputs of a part, by (part, micro batch)
        self._upstream: dict[tuple[int, int], Tensors] = {}  # gradients of a part's outputs
        self._kept: dict[tuple[int, int], _Kept] = {}
        self._seeds: dict[int, list] = {}
        self._gradients: list[list] = [[None] * len(part.variables + part.tied) for part in self.parts]
        self._sums: list[tf.Tensor] = []
        self._done: dict[str, list] = {}  # the last operations of each device

    def run(self, works: Iterable[Work]) -> tuple[list[list[tf.Tensor]], tf.Tensor]:
        """Runs the forward and backward passes of all micro batches.

        Args:
          works: the passes, each after those that it depends on.

        Returns:
          (per part the gradients of its own and its tied variables, on its device; the terms as stacked by
          `replica_step.stack_terms`), both summed over the micro batches.
        """
        for work in works:
            device = self.parts[work.stage].device
            with tf.device(device), tf.control_dependencies(self._done.get(device, [])):
                results = self._backward(work) if work.backward else self._forward(work)
                with tf.control_dependencies(tf.nest.flatten(results)):
                    self._done[device] = [tf.no_op()]
        return self._gradients, tf.add_n(self._sums)

    def _forward(self, work: Work) -> Any:
        """Runs the forward pass of a micro batch through a part. Returns the tensors that complete it."""
        part, key = self.parts[work.stage], (work.stage, work.micro_batch)
        sent = tf.nest.map_structure(tf.identity, self._sent.pop(key, {}))
        kept = _Kept(tf.GradientTape(), _with_gradients(sent), {})
        with kept.tape as tape:
            tape.watch([*kept.inputs.values(), *self.copied[work.stage].values()])
            carried = self._run_stages(part, work, sent)
            handed = {name: tf.nest.map_structure(tf.identity, carried[name]) for name in part.outputs}
            kept.outputs = _with_gradients(handed)
            if work.stage == len(self.parts) - 1:
                kept.total = self._finish(carried, work.micro_batch)
        self._sent[work.stage + 1, work.micro_batch], self._kept[key] = handed, kept
        return [handed, kept.total] if kept.total is not None else handed

    def _run_stages(self, part: Part, work: Work, sent: Tensors) -> Tensors:
        carried, features = dict(sent), self._features(work.micro_batch)
        if work.micro_batch not in self._seeds:
            self._seeds[work.micro_batch] = self.model.seeds(self.shared.seeds[self.first + work.micro_batch])
        seeds = self._seeds[work.micro_batch]
        for number, stage in part.stages:
            weights = stage.weights()
            for field, variable in stage.tied.items():
                copy = self.copied[work.stage].get(variable.name)
                if copy is not None:
                    value = tf.cast(copy, getattr(weights, field).dtype)
                    weights = weights._replace(**{field: value})
            stages_lib.run_one(stage, carried, features, seeds[number], weights)
        return carried

    def _features(self, micro_batch: int) -> Batch:
        return {name: value[micro_batch] for name, value in self.batches.items()}

    def _finish(self, carried: Tensors, micro_batch: int) -> tf.Tensor:
        """Returns the objective of a micro batch, and records its terms."""
        terms = self.objective.terms(self.model.outputs_of(carried), self._features(micro_batch))
        self._sums.append(replica_step.stack_terms(terms, self.objective.metrics))
        return replica_step.objective_of(self.config, self.objective, terms, self.shared)

    def _backward(self, work: Work) -> Any:
        """Runs the backward pass of a micro batch through a part. Returns the tensors that complete it."""
        part, kept = self.parts[work.stage], self._kept.pop((work.stage, work.micro_batch))
        sources = [*part.variables, *self.copied[work.stage].values(), *kept.inputs.values()]
        if kept.total is not None:
            gradients = kept.tape.gradient(kept.total, sources)
        else:
            upstream = self._upstream.pop((work.stage, work.micro_batch))
            targets = [kept.outputs[name] for name in upstream]
            gradients = kept.tape.gradient(targets, sources, output_gradients=list(upstream.values()))
        of_inputs = gradients[len(gradients) - len(kept.inputs) :]
        back = {name: each for name, each in zip(kept.inputs, of_inputs) if each is not None}
        self._upstream[work.stage - 1, work.micro_batch] = back
        totals = self._gradients[work.stage]
        for number, (total, new) in enumerate(zip(totals, gradients)):
            totals[number] = new if total is None else gradients_lib.add(total, new)
        return [*totals, *back.values()]


def _with_gradients(tensors: Tensors) -> dict[str, tf.Tensor]:
    """Returns the floating-point tensors, which can have gradients."""
    found = ((name, value) for name, value in tensors.items() if isinstance(value, tf.Tensor))
    return {name: value for name, value in found if value.dtype.is_floating}


# -----------------------------------------------------------------------------------------------------------
# Pipeline
#
# The graph of a step has a piece for each work item of the schedule: the forward or backward pass of a
# micro batch through one part, on the part's device. A piece waits for its inputs, and for the previous piece
# on its device. So the devices work in parallel, in the schedule's order, and hold no more activations than
# the schedule requires.


def make_state(config: Config, task: Task, strategy: tf.distribute.Strategy) -> TrainState:
    """Builds the state of a run; in a pipeline, each variable is on the device of its stage.

    Raises:
      ConfigError: if the requested stages do not fit the model.
    """
    pipeline = as_pipeline(strategy)
    if pipeline is None:
        return state_lib.make_state(config, task.build_model, strategy)
    stages = stages_lib.symbolic_model(task.build_model).stages()
    pipeline.plan = plan = plan_lib.make_plan(config, [stage.name for stage in stages])
    placed = zip(plan.notation.split(" / "), map(pipeline.names_of, plan.devices))
    where = ", ".join(f"{stage} on {'+'.join(names)}" for stage, names in placed)
    note = "Pipeline (%s, bubble %.1f %% if all stages take the same time): %s"
    logging.info(note, plan.schedule, 100 * plan_lib.make_timeline(plan).bubble, where)
    device_of_name: dict[str, int] = {}
    for stage in stages:
        for variable in stage.variables:  # a shared variable belongs to the first of its stages
            device_of_name.setdefault(variable.name.split(":")[0], plan.device_of(stage.name))

    def build_model() -> tf.keras.Model:
        with pipeline.placing(device_of_name):
            return task.build_model()

    return state_lib.make_state(config, build_model, strategy)


def on_devices(model: Any, strategy: tf.distribute.Strategy) -> Callable:
    """Returns a function with the model's call signature that runs each stage on its pipeline device; the
    model itself without a pipeline."""
    if as_pipeline(strategy) is None:
        return model

    def call(features: Batch, dropout_seed: tf.Tensor | None = None) -> Any:
        carried: Tensors = {}
        device = None
        for stage, seed in zip(model.stages(), model.seeds(dropout_seed)):
            # A stage without weights runs on the device of the stage before it.
            device = device_of(stage.variables[0]) if stage.variables else device
            with tf.device(device):
                stages_lib.run_one(stage, carried, features, seed)
        return model.outputs_of(carried)

    return call


def make_accumulate(
    config: Config, objective: Objective, model: Any, strategy: tf.distribute.Strategy
) -> Accumulate | None:
    """Returns the function that accumulates gradients and terms over a replica's micro batches in a pipeline;
    None without a pipeline."""
    pipeline = as_pipeline(strategy)
    if pipeline is None or pipeline.plan is None:
        return None
    plan, size = pipeline.plan, pipeline.plan.round_size
    works = list(itertools.chain.from_iterable(plan_lib.works_by_time(plan)))

    def accumulate(batch: Batch, shared: Shared) -> tuple[list[tf.Tensor], tf.Tensor]:
        parts, copied = make_parts(model, plan), []
        for part in parts:
            with tf.device(part.device):
                copied.append({variable.name: tf.identity(variable) for variable in part.tied})

        def one_round(number: tf.Tensor, rows: Batch) -> tuple[list[list[tf.Tensor]], tf.Tensor]:
            batches = {name: gradients_lib.cut(value, size) for name, value in rows.items()}
            own = PipelineRound(config, objective, model, parts, copied, batches, shared, number * size)
            return own.run(works)

        totals, sums = _in_rounds(batch, plan.micro_batches // size, one_round, parts)
        return _in_order(model.trainable_variables, parts, totals), sums

    return accumulate


def _in_rounds(batch: Batch, rounds: int, one_round: Callable, parts: list[Part]) -> tuple:
    """Returns the sums of `one_round` over the rounds of a replica's batch, each part's on its device."""
    if rounds == 1:
        return one_round(tf.constant(0), batch)
    slices = {name: gradients_lib.cut(value, rounds) for name, value in batch.items()}
    first = one_round(tf.constant(0), {name: value[0] for name, value in slices.items()})

    def body(index: tf.Tensor, total: tuple) -> tuple:
        gradients, sums = one_round(index, {name: value[index] for name, value in slices.items()})
        added = []
        for part, old, new in zip(parts, total[0], gradients):
            with tf.device(part.device):
                added.append([gradients_lib.add(*pair) for pair in zip(old, new)])
        return index + 1, (added, total[1] + sums)

    limits = {"parallel_iterations": 1, "maximum_iterations": rounds - 1}
    return tf.while_loop(lambda index, _: index < rounds, body, (tf.constant(1), first), **limits)[1]


def _in_order(
    variables: list[tf.Variable], parts: list[Part], totals: list[list[tf.Tensor]]
) -> list[tf.Tensor]:
    """Returns the gradient of each variable, on its device; for a tied variable summed over its parts."""
    found: dict[str, tf.Tensor] = {}
    for part, gradients in zip(parts, totals):
        for variable, gradient in zip([*part.variables, *part.tied], gradients):
            known = found.get(variable.name)
            with tf.device(device_of(variable)):
                found[variable.name] = tf.identity(gradient) if known is None else known + gradient
    return [found[variable.name] for variable in variables]
