"""Cost of a training step, and of each stage of a model, read from the graph: FLOPs of matrix products, and
the maximum of bytes alive at once.

It is the graph of the actual program: the task's model and loss, the replica's step, the optimizer. Its
variables are symbolic and it never runs, so a large model takes no more memory than a small one.
"""

import dataclasses
import functools
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

import tensorflow as tf

from official import native
from official.config import Config, kernels_of
from official.config.backends import BACKENDS
from official.config.values import DEVICE_BYTES
from official.distribution.batch_plan import BatchPlan
from official.io import native_library
from official.modeling import stages as copies_lib
from official.modeling.stages import Stage, symbolic_variable
from official.optimization import gradients as gradients_lib
from official.optimization import optimizers, plain_optimizers, replica_step
from official.optimization.optimizers import NativeOptimizer, TrainState
from official.optimization.train_state import build_state
from official.planning.graph import ALIASES, FlatGraph, aliased, execution_order, needed_nodes, peak_bytes


class PlannedTask(replica_step.Objective, Protocol):
    """The methods of a task that a plan needs."""

    def build_model(self) -> tf.keras.Model:
        """Builds the model."""

    def synthetic_dataset(self, batch_size: int, for_evaluation: bool = False) -> tf.data.Dataset:
        """Returns random records with the shapes of the training or evaluation data."""

    def evaluate(self, model: tf.keras.Model, batch: dict[str, tf.Tensor]) -> tuple:
        """Returns the evaluation terms of a batch."""

    @property
    def sequences_per_row(self) -> float | None:
        """Returns the expected number of sequences per packed row; None if every row is a sequence."""


@dataclasses.dataclass(frozen=True)
class Cost:
    """Cost of one optimizer step of one replica, or one batch of an evaluation.

    Attributes:
      tensors, parameters: number of the model's trainable variables, and their parameters.
      parameter_bytes: bytes of these variables.
      slot_bytes: bytes of the optimizer's slots.
      flops: multiplications and additions of all matrix products, forward and backward, all micro batches.
      peak_bytes: maximum of bytes alive at once, without variables: gradients and activations.
      gradient_bytes: bytes of their gradients.
      copy_bytes: bytes of copies of the weights in the compute dtype.
    """

    tensors: int
    parameters: int
    parameter_bytes: int
    slot_bytes: int
    flops: int
    peak_bytes: int
    gradient_bytes: int = 0
    copy_bytes: int = 0

    @property
    def total_bytes(self) -> int:
        """Returns the maximum of bytes alive at once, variables included."""
        return self.parameter_bytes + self.slot_bytes + self.copy_bytes + self.peak_bytes


def step_cost(config: Config, task: PlannedTask, plan: BatchPlan, native_update: bool = False) -> Cost:
    """Builds the training step of one replica and reads its cost.

    Args:
      config: the configuration; the mixed-precision policy must be that of its dtype.
      task: the task.
      plan: batch plan of the run.
      native_update: whether the native kernels update the weights; the blocks are plain or fused.
    """
    # Only the shapes of the data matter: one row is enough.
    spec = task.synthetic_dataset(1).element_spec
    dtype = tf.as_dtype(tf.keras.mixed_precision.global_policy().compute_dtype)
    operations = StandIn(dtype) if native_update else None
    build_optimizer = functools.partial(optimizers.build_optimizer, operations=operations)
    count = plan.num_accumulation_steps

    def accumulate_to_send(batch: replica_step.Batch, shared: replica_step.Shared) -> tuple:
        """Accumulates gradients for one of several replicas: cast to the all-reduce dtype and back."""
        accumulate = replica_step.one_after_the_other(config, task, state.model, count)
        gradients, sums = accumulate(batch, shared)
        sent = [tf.cast(gradient, config.allreduce_dtype) for gradient in gradients]
        return gradients_lib.as_float32(sent), sums

    with tf.Graph().as_default() as graph, tf.variable_creator_scope(symbolic_variable):
        batch = symbolic_batch(spec, plan.replica_batch_size)
        state = build_state(config, lambda: model_of_whole_rows(task), build_optimizer)
        optimizer, copies = state.optimizer, {}
        if isinstance(optimizer, NativeOptimizer):
            copies = optimizer.make_copies(copies_lib.variables_to_copy(state.model, dtype), dtype)
        accumulate = accumulate_to_send if plan.num_replicas > 1 else None
        step = replica_step.make_replica_gradients(config, task, state, count, accumulate)
        with copies_lib.reading_copies(copies):
            # Without AutoGraph: there is no Python control flow, and searching for it takes seconds.
            gradients, factor, sums, norm = tf.autograph.experimental.do_not_convert(step)(batch)
        flat = FlatGraph()
        flat.add(graph, graph.get_operations())
        _add_update(flat, state, gradients, factor, norm)
    variables = state.model.trainable_variables
    slots = plain_optimizers.slot_variables(state.optimizer, config.optimizer_type, variables).values()
    cost = _cost(variables, slots, flat, [sums, norm])
    return dataclasses.replace(cost, gradient_bytes=_bytes(gradients), copy_bytes=_bytes(copies.values()))


def evaluation_cost(task: PlannedTask, rows: int) -> Cost:
    """Builds the forward pass of an evaluation or prediction and reads its cost.

    Args:
      task: the task; the mixed-precision policy must be that of its dtype.
      rows: rows per batch of one replica.
    """
    spec = task.synthetic_dataset(1, for_evaluation=True).element_spec
    return forward_cost(
        lambda: model_of_whole_rows(task), lambda model: task.evaluate(model, symbolic_batch(spec, rows))
    )


def forward_cost(build_model: Callable[[], Any], run: Callable[[Any], Any]) -> Cost:
    """Builds a forward pass and reads its cost.

    Args:
      build_model: function that builds the model.
      run: (model) -> nested tensors, all required results.
    """
    with tf.Graph().as_default() as graph, tf.variable_creator_scope(symbolic_variable):
        model = build_model()
        given = tf.nest.flatten(tf.autograph.experimental.do_not_convert(run)(model))
        results = [each for each in given if each is not None]
        flat = FlatGraph()
        flat.add(graph, graph.get_operations())
    return _cost(model.trainable_variables, (), flat, results)


def model_of_whole_rows(task: PlannedTask) -> tf.keras.Model:
    """Returns the task's model with static sizes only: all scores and padding are computed."""
    model: Any = task.build_model()
    for encoder in model.encoders:
        encoder.by_sequence = encoder.unpad = False
    return model


def _cost(variables: list, slots: Iterable, flat: FlatGraph, results: list[tf.Tensor]) -> Cost:
    """Returns the cost of a graph whose `results` stay alive to its end."""
    kept = [flat.numbers[result.name] for result in results]
    return Cost(
        len(variables),
        sum(variable.shape.num_elements() for variable in variables),
        _bytes(variables),
        _bytes(slots),
        flat.flops(),
        peak_bytes(flat, execution_order(flat, kept), kept),
    )


def symbolic_batch(spec: dict[str, tf.TensorSpec], rows: int) -> dict[str, tf.Tensor]:
    """Returns a batch with the shapes of `spec` in the current graph."""
    return {
        name: tf.compat.v1.placeholder(feature.dtype, [rows, *feature.shape[1:]])
        for name, feature in spec.items()
    }


def _bytes(variables: Any) -> int:
    return sum(variable.shape.num_elements() * variable.dtype.size for variable in variables)


def _add_update(flat: FlatGraph, state: TrainState, gradients: list, factor: Any, norm: tf.Tensor) -> None:
    """Adds the update of every variable.

    The native update is one operation. Otherwise TensorFlow builds one of each kind, such as
    layer_{}/output/dense/kernel, and the others are copied from it, since hundreds of equal updates would
    take longer to build than the model.
    """
    graph, variables = norm.graph, state.model.trainable_variables

    def add(gradients: list, variables: list) -> None:
        known = len(graph.get_operations())
        # With loss scaling the update is a branch, which starts when the norm has been found finite.
        with tf.control_dependencies([norm] if state.loss_scale else []):
            state.optimizer.update(gradients, variables, factor)
        flat.add(graph, graph.get_operations()[known:])

    if isinstance(state.optimizer, NativeOptimizer):
        add(gradients, variables)
        return
    built: dict[tuple, tuple] = {}
    for variable, gradient in zip(variables, gradients):
        kind, start = (re.sub(r"layer_\d+", "layer_{}", variable.name), variable.shape), len(flat.nodes)
        if kind in built:
            first, begin, end = built[kind]
            flat.repeat(begin, end, {flat.numbers[first.name]: flat.numbers[gradient.name]})
        else:
            add([gradient], [variable])
            built[kind] = gradient, start, len(flat.nodes)


def updates_natively(config: Config) -> bool:
    """Returns whether a run updates its weights with the native kernels, as far as known on this machine.

    With --plan_device, the run is not on a CPU of this machine.
    """
    names_another = (config.plan_device or "").strip().lower() in DEVICE_BYTES
    has_others = BACKENDS[config.distribution_strategy].spread_replicas
    if kernels_of(config) in ("plain", "fused") or has_others or native.uses_gpus(config) or names_another:
        return False
    if config.kernels != "native":
        try:
            native_library.find_compiler()
        except native_library.NotBuilt:
            return False
    return True


class StandIn:
    """Placeholder of the native operations in a graph that never runs, so that a plan needs no compiler. It
    reads and writes the same tensors."""

    def __init__(self, dtype: tf.DType):
        """`dtype`: type of the copies of the weights."""
        self._dtype = dtype

    def bert_global_norm(self, tensors: Sequence[tf.Tensor]) -> tf.Tensor:
        return _native_norm(list(tensors))

    def bert_update(
        self, weights: list, m: list, v: list, gradients: list, step: tf.Tensor, **arguments: Any
    ):
        written = self._dtype, tuple(arguments["copy_of"])
        _native_update(list(zip(weights, m, v)), arguments["copies"], gradients, step, written)


@optimizers.jitted
def _native_norm(tensors: list) -> tf.Tensor:
    return tf.add_n([tf.cast(tf.reshape(tensor, [-1])[0], tf.float32) for tensor in tensors])


@optimizers.jitted
def _native_update(handles: list, copies: list, gradients: list, step: tf.Tensor, written: tuple) -> None:
    dtype, places = written
    for three, gradient in zip(handles, gradients):
        optimizers.write(three, optimizers.read(three, gradient.shape))
    optimizers.write(copies, [tf.zeros(gradients[place].shape, dtype) for place in places])


@dataclasses.dataclass(frozen=True)
class StageCost:
    """Cost of a stage of a model.

    Attributes:
      flops, backward_flops: multiplications and additions of all matrix products per pass of a micro batch.
      kept_bytes: bytes per micro batch from the forward pass to the backward pass.
      passing_bytes: maximum of additional bytes alive during a pass.
      variables: {name: bytes} of the stage's variables.
    """

    flops: int
    backward_flops: int
    kept_bytes: int
    passing_bytes: int
    variables: dict[str, int]


CARRIED = ("sequence", "seen", "pooled")  # input of later stages; all other outputs are inputs of a loss


def stage_costs(task: PlannedTask, rows: int, trains: bool = True) -> dict[str, StageCost]:
    """Returns the cost of each stage of a task's model.

    Blocks with the same attention span cost the same: only the first of each kind is built. The
    mixed-precision policy must be that of the run.

    Args:
      task: the task.
      rows: rows per micro batch.
      trains: False for forward passes only.
    """
    spec = task.synthetic_dataset(1, for_evaluation=not trains).element_spec
    with tf.Graph().as_default(), tf.variable_creator_scope(symbolic_variable):
        features = symbolic_batch(spec, rows)
        model: Any = model_of_whole_rows(task)
        seeds = model.seeds(tf.compat.v1.placeholder(tf.int32, [2]) if trains else None)
        carried: dict[str, tf.Tensor] = {}
        costs: dict[str, StageCost] = {}
        sees_whole = {block.name: getattr(block, "sees_whole", True) for block in model.encoder.blocks}
        alike: dict[bool, str] = {}  # {whether blocks see whole sequences: the first such block}
        for stage, seed in zip(model.stages(), seeds):
            if sees_whole.get(stage.name) in alike:
                first = costs[alike[sees_whole[stage.name]]]
                costs[stage.name] = dataclasses.replace(first, variables=_variables(stage))
                continue
            last = stage.gives[0] not in CARRIED
            costs[stage.name], given = _stage_cost(stage, carried, features, seed, last)
            carried.update({name: _stand_in(tensor) for name, tensor in given.items()})
            if stage.name in sees_whole:
                alike[sees_whole[stage.name]] = stage.name
    return costs


def _stand_in(value: Any) -> Any:
    """Returns placeholder tensors with the same types and shapes."""
    return tf.nest.map_structure(lambda tensor: tf.compat.v1.placeholder(tensor.dtype, tensor.shape), value)


def _variables(stage: Stage) -> dict[str, int]:
    return {each.name: each.shape.num_elements() * each.dtype.size for each in stage.variables}


def _stage_cost(stage: Stage, carried: dict, features: dict, seed: Any, last: bool) -> tuple[StageCost, dict]:
    """Returns the cost of a stage, and its outputs. `last`: whether the outputs are inputs of a loss."""
    graph = tf.compat.v1.get_default_graph()
    taken = {name: carried[name] for name in stage.takes}
    sources = [tensor for tensor in tf.nest.flatten(taken) if tensor.dtype.is_floating]
    before = len(graph.get_operations())
    with tf.GradientTape() as tape:
        tape.watch(sources)
        given = stage.run(stage.weights(), taken, features, seed)
    results = [tensor for tensor in tf.nest.flatten(given) if tensor.dtype.is_floating]
    upstream = [_stand_in(tensor) for tensor in results]
    between = len(graph.get_operations())
    found = tf.nest.flatten(tape.gradient(results, [sources, list(stage.variables)], upstream))
    wanted = [tensor.values if isinstance(tensor, tf.IndexedSlices) else tensor for tensor in found]
    # Flattened after the backward pass, since building that changes function calls.
    flat, ends = FlatGraph(), []
    operations = graph.get_operations()
    for part in (operations[:before], operations[before:between], operations[between:]):
        flat.add(graph, part)
        ends.append(len(flat.nodes))
    numbers, forward, backward = flat.numbers, range(*ends[:2]), range(*ends[1:])
    given_to = [each for each in tf.nest.flatten((taken, features, seed)) if each is not None]
    gradients = [numbers[tensor.name] for tensor in wanted if tensor is not None]
    read = _kept(flat, [numbers[tensor.name] for tensor in given_to], forward, gradients)
    kept = sum(flat.tensors[number][0].size * flat.tensors[number][1] for number in read)
    order = execution_order(flat, [*gradients, *(numbers[tensor.name] for tensor in results)])
    flops, backward_flops = (
        sum(flat.nodes[index].flops * flat.nodes[index].runs for index in nodes)
        for nodes in (forward, backward)
    )
    passing = max(0, peak_bytes(flat, order, gradients) - kept)
    kept += _bytes(results) if last else 0  # inputs of the loss
    return StageCost(flops, backward_flops, kept, passing, _variables(stage)), given


def _kept(flat: FlatGraph, inputs: list[int], forward: range, ends: list[int]) -> set[int]:
    """Returns the tensors of the forward pass of a micro batch that the backward pass reads.

    Weights cast to the compute dtype are excluded: all micro batches share them.
    """
    owner: dict[int, int] = {number: number for number in inputs}  # tensor -> owner of its memory
    for index in forward:
        node = flat.nodes[index]
        if node.type in ALIASES:
            sources = [aliased(node, place) for place in range(len(node.outputs))]
            owner.update({to: owner[source] for to, source in zip(node.outputs, sources) if source in owner})
        elif any(number in owner for number in node.inputs):
            owner.update({number: number for number in node.outputs})
    backward = [flat.nodes[index] for index in needed_nodes(flat, ends) if index >= forward.stop]
    read = {owner[number] for node in backward for number in node.inputs if number in owner}
    return {number for number in read if flat.tensors[number][0].is_floating or number not in inputs}
