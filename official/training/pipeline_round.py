"""Forward and backward passes of a round of micro batches through the parts of a pipeline.

A part is the section of the model on one pipeline stage. Each part passes on the tensors that later parts
need, and receives their gradients.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf

from official.config import Config
from official.distribution.pipelining.plan import PipelinePlan, Work, before
from official.modeling import stages as stages_lib
from official.modeling.stages import Stage, Tensors
from official.optimization import gradients as gradients_lib
from official.optimization import replica_step
from official.optimization.device_placement import device_of
from official.optimization.replica_step import Batch, Objective, Shared


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


def copies(part: Part) -> dict[str, tf.Tensor]:
    """Returns {name: copy} of a part's tied variables on its device, shared by all micro batches."""
    with tf.device(part.device):
        return {variable.name: tf.identity(variable) for variable in part.tied}


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
      copied: copies of each part's tied variables, see `copies`.
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
        self._sent: dict[tuple[int, int], Tensors] = {}  # to a part, by (part, micro batch)
        self._upstream: dict[tuple[int, int], Tensors] = {}  # gradients for a part
        self._kept: dict[tuple[int, int], _Kept] = {}
        self._seeds: dict[int, list] = {}
        self._gradients: list[list] = [[None] * len(part.variables + part.tied) for part in self.parts]
        self._sums: list[tf.Tensor] = []
        self._done: dict[str, list] = {}  # the last operations of each device

    def run(self, orders: Sequence[Sequence[Work]]) -> tuple[list[list[tf.Tensor]], tf.Tensor]:
        """Runs the forward and backward passes of all micro batches.

        Args:
          orders: the passes of each device, in its order.

        Returns:
          (per part the gradients of its own and its tied variables, on its device; the terms as stacked by
          `replica_step.stack_terms`), both summed over the micro batches.
        """
        for work in one_after_the_other(orders, len(self.parts)):
            device = self.parts[work.stage].device
            with tf.device(device), tf.control_dependencies(self._done.get(device, [])):
                results = self._backward(work) if work.backward else self._forward(work)
                with tf.control_dependencies(tf.nest.flatten(results)):
                    self._done[device] = [tf.no_op()]
        return self._gradients, tf.add_n(self._sums)

    def _forward(self, work: Work) -> Any:
        """Runs the forward pass of a micro batch through a part. Returns the tensors that complete it."""
        part, place = self.parts[work.stage], (work.stage, work.micro_batch)
        sent = tf.nest.map_structure(tf.identity, self._sent.pop(place, {}))
        kept = _Kept(tf.GradientTape(), _with_gradients(sent), {})
        with kept.tape as tape:
            tape.watch([*kept.inputs.values(), *self.copied[work.stage].values()])
            carried = self._run_stages(part, work, sent)
            handed = {name: tf.nest.map_structure(tf.identity, carried[name]) for name in part.outputs}
            kept.outputs = _with_gradients(handed)
            if work.stage == len(self.parts) - 1:
                kept.total = self._finish(carried, work.micro_batch)
        self._sent[work.stage + 1, work.micro_batch], self._kept[place] = handed, kept
        return [handed, kept.total] if kept.total is not None else handed

    def _run_stages(self, part: Part, work: Work, sent: Tensors) -> Tensors:
        carried, seeds = dict(sent), self._seeds_of(work.micro_batch)
        features = self._features(work.micro_batch)
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

    def _seeds_of(self, micro_batch: int) -> list:
        """Returns the seed of each stage of the model for a micro batch."""
        if micro_batch not in self._seeds:
            self._seeds[micro_batch] = self.model.seeds(self.shared.seeds[self.first + micro_batch])
        return self._seeds[micro_batch]

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
        for place, (total, new) in enumerate(zip(totals, gradients)):
            totals[place] = new if total is None else gradients_lib.add(total, new)
        return [*totals, *back.values()]


def _with_gradients(tensors: Tensors) -> dict[str, tf.Tensor]:
    """Returns the floating-point tensors, which can have gradients."""
    return {
        name: value
        for name, value in tensors.items()
        if isinstance(value, tf.Tensor) and value.dtype.is_floating
    }


def one_after_the_other(orders: Sequence[Sequence[Work]], num_stages: int) -> Iterator[Work]:
    """Yields the passes of all devices, each after those that it depends on, and each device's in its
    order."""
    left = [list(order) for order in orders]
    done: set[Work] = set()
    while any(left):
        for order in left:
            while order and done.issuperset(before(order[0], num_stages)):
                done.add(order[0])
                yield order.pop(0)
