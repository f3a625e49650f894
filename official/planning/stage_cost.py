"""What each stage of a model costs, read from its graph: FLOPs, and the bytes that it keeps of a micro batch.

The graph is that of the stage itself, its forward pass and then its backward pass; nothing in it runs.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import tensorflow as tf

from official.modeling.stages import Stage
from official.planning.flat_graph import FlatGraph
from official.planning.graph_cost import PlannedTask, model_of_whole_rows, symbolic_batch, symbolic_variable
from official.planning.memory import ALIASES, aliased, execution_order, needed_nodes, peak_bytes


@dataclasses.dataclass(frozen=True)
class StageCost:
    """What a stage of a model costs.

    Attributes:
      flops, backward_flops: multiplications and additions of all matrix products of a pass of a micro batch.
      kept_bytes: of a micro batch, from the forward pass to the backward pass.
      passing_bytes: most bytes that live while a pass runs, beside those.
      variables: {name: bytes} of its variables.
    """

    flops: int
    backward_flops: int
    kept_bytes: int
    passing_bytes: int
    variables: dict[str, int]


CARRIED = ("sequence", "seen", "pooled")  # what later stages take; all else is for a loss


def stage_costs(task: PlannedTask, rows: int, trains: bool = True) -> dict[str, StageCost]:
    """Returns the cost of each stage of a task's model.

    Blocks are alike: one of them is read. The mixed-precision policy must be that of the run.

    Args:
      task: the task.
      rows: of a micro batch.
      trains: False for forward passes alone.
    """
    spec = task.synthetic_dataset(1, for_evaluation=not trains).element_spec
    with tf.Graph().as_default(), tf.variable_creator_scope(symbolic_variable):
        features = symbolic_batch(spec, rows)
        model: Any = model_of_whole_rows(task)
        seeds = model.seeds(tf.compat.v1.placeholder(tf.int32, [2]) if trains else None)
        carried: dict[str, tf.Tensor] = {}
        costs: dict[str, StageCost] = {}
        block: StageCost | None = None
        for stage, seed in zip(model.stages(), seeds):
            if stage.name.startswith("layer_") and block is not None:
                costs[stage.name] = dataclasses.replace(block, variables=_variables(stage))
                continue
            last = stage.gives[0] not in CARRIED
            costs[stage.name], given = _cost(stage, carried, features, seed, last)
            carried.update({name: _stand_in(tensor) for name, tensor in given.items()})
            block = costs[stage.name] if stage.name.startswith("layer_") else block
    return costs


def _stand_in(value: Any) -> Any:
    """Returns tensors of the same types and shapes that come from nowhere."""
    return tf.nest.map_structure(lambda tensor: tf.compat.v1.placeholder(tensor.dtype, tensor.shape), value)


def _variables(stage: Stage) -> dict[str, int]:
    return {each.name: each.shape.num_elements() * each.dtype.size for each in stage.variables}


def _cost(stage: Stage, carried: dict, features: dict, seed: Any, last: bool) -> tuple[StageCost, dict]:
    """Returns the cost of a stage, and what it gives. `last`: whether a loss takes what it gives."""
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
    flat, forward, numbers = _flattened(graph, before, between)
    inputs = [
        numbers[tensor.name] for tensor in tf.nest.flatten((taken, features, seed)) if tensor is not None
    ]
    ends = [numbers[tensor.name] for tensor in wanted if tensor is not None]
    kept = sum(map(_size(flat), _kept(flat, inputs, forward, ends)))
    order = execution_order(flat, [*ends, *(numbers[tensor.name] for tensor in results)])
    of_loss = sum(tensor.shape.num_elements() * tensor.dtype.size for tensor in results) if last else 0
    cost = StageCost(
        flops=_flops(flat, forward),
        backward_flops=_flops(flat, range(forward.stop, len(flat.nodes))),
        kept_bytes=kept + of_loss,
        passing_bytes=max(0, peak_bytes(flat, order, ends) - kept),
        variables=_variables(stage),
    )
    return cost, given


def _flattened(graph: tf.Graph, before: int, between: int) -> tuple[FlatGraph, range, dict[str, int]]:
    """Returns (the graph in one level, the nodes of the forward pass, {name of a tensor: its number}).

    Args:
      graph: as it is after the backward pass, which changes calls of functions.
      before, between: how many operations it had before the forward pass, and before the backward pass.
    """
    flat = FlatGraph()
    numbers: dict[str, int] = {}
    operations = graph.get_operations()
    flat.add(graph, operations[:before], numbers)
    start = len(flat.nodes)
    flat.add(graph, operations[before:between], numbers)
    middle = len(flat.nodes)
    flat.add(graph, operations[between:], numbers)
    return flat, range(start, middle), numbers


def _flops(flat: FlatGraph, nodes: range) -> int:
    return sum(flat.nodes[index].flops * flat.nodes[index].runs for index in nodes)


def _size(flat: FlatGraph):
    return lambda number: flat.tensors[number][0].size * flat.tensors[number][1]


def _kept(flat: FlatGraph, inputs: list[int], forward: range, ends: list[int]) -> set[int]:
    """Returns the tensors of a micro batch that the backward pass reads of the forward pass.

    Weights in the type to compute in are none of them: all micro batches share these.
    """
    owner: dict[int, int] = {number: number for number in inputs}  # tensor -> whose memory it is in
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
