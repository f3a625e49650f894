"""TF2's object-based checkpoints: a bundle with a graph of Python objects, tensors by their variables' names.

`tf.train.Checkpoint.restore` finds a variable by following the names of attributes from the root; the graph
says which way leads to which tensor of the bundle. Source:
tensorflow/core/protobuf/trackable_object_graph.proto.
"""

import collections
import dataclasses
from typing import TypeAlias

import numpy as np
from google.protobuf.message import DecodeError
from tensorflow.core.protobuf import trackable_object_graph_pb2

from official.checkpoint import DamagedError
from official.checkpoint import tensors as tensors_lib
from official.checkpoint.bundle_reader import GRAPH
from official.checkpoint.containers import Progress, bundle
from official.checkpoint.tensors import Tensor, Tensors
from official.io.errors import shortened

Graph: TypeAlias = trackable_object_graph_pb2.TrackableObjectGraph
Node: TypeAlias = trackable_object_graph_pb2.TrackableObjectGraph.TrackableObject
# Ends the key of a variable's tensor; before it is the way to the variable.
_VALUE = "/.ATTRIBUTES/VARIABLE_VALUE"
_SAVE_COUNTER = "save_counter"

files, target, LAST, IS_FOLDER = bundle.files, bundle.target, bundle.LAST, bundle.IS_FOLDER


def locate(path: str) -> str | None:
    """Returns the prefix that a prefix, one of its files or a folder means; None where that is no
    object-based checkpoint.

    Their files are named like those of other bundles: the index tells them apart.
    """
    prefix = bundle.locate(path)
    try:
        return prefix if prefix and GRAPH in bundle.names_of(prefix) else None
    except DamagedError:
        return None


def read(prefix: str) -> Tensors:
    """Returns the tensors by the full names of their variables, optimizer slots as VARIABLE/OPTIMIZER/SLOT.

    What has no name, or one that another has too, goes by its way through the graph.

    Raises:
      DamagedError: also when a tensor is read.
    """
    by_key = bundle.read(prefix)
    if GRAPH not in by_key:
        raise DamagedError(f"{prefix} has no graph of objects; it is no object-based checkpoint")
    names = _names(_parse(by_key.pop(GRAPH)))
    missing = sorted(names.keys() - by_key.keys())
    if missing:
        raise DamagedError(f"its graph of objects has variables that the file has not: {shortened(missing)}")
    named = {names.get(key, key): tensor for key, tensor in by_key.items()}
    return {name: dataclasses.replace(tensor, sources=(name,)) for name, tensor in sorted(named.items())}


def _parse(tensor: Tensor) -> Graph:
    graph = trackable_object_graph_pb2.TrackableObjectGraph()
    try:
        graph.ParseFromString(tensor.read().tobytes())  # not item(), which takes off zeros at the end
    except DecodeError as error:
        raise DamagedError(f"{GRAPH}: {error}") from None
    numbers = [child.node_id for node in graph.nodes for child in node.children]
    for slot in (slot for node in graph.nodes for slot in node.slot_variables):
        numbers += (slot.original_variable_node_id, slot.slot_variable_node_id)
    if any(not 0 <= number < len(graph.nodes) for number in numbers):
        raise DamagedError(f"{GRAPH}: an object that is not there")
    return graph


def _names(graph: Graph) -> dict[str, str]:
    """Returns {key in the bundle: name}."""
    names = {}
    for node in graph.nodes:
        for attribute in node.attributes:
            key = attribute.checkpoint_key
            names[key] = attribute.full_name or key.removesuffix(_VALUE)
    names |= _slot_names(graph, names)
    counts = collections.Counter(names.values())
    return {key: name if counts[name] == 1 else key.removesuffix(_VALUE) for key, name in names.items()}


def _slot_names(graph: Graph, names: dict[str, str]) -> dict[str, str]:
    slots = {}
    for node in graph.nodes:
        optimizer = _optimizer_name(graph, node, names) if node.slot_variables else None
        for slot in node.slot_variables:
            keys = _keys(graph.nodes[slot.slot_variable_node_id])
            for key, variable in zip(keys, _keys(graph.nodes[slot.original_variable_node_id])):
                named = f"{names[variable]}/{optimizer}/{slot.slot_name}"
                slots[key] = named if optimizer else key.removesuffix(_VALUE)
    return slots


def _optimizer_name(graph: Graph, node: Node, names: dict[str, str]) -> str | None:
    """Returns LAMB for an optimizer whose counter of steps is called LAMB/iter; None where it has none."""
    for child in node.children:
        for key in _keys(graph.nodes[child.node_id]) if child.local_name == "iter" else ():
            return names[key].rpartition("/")[0] or None
    return None


def _keys(node: Node) -> list[str]:
    return [attribute.checkpoint_key for attribute in node.attributes]


def write(
    tensors: Tensors,
    prefix: str,
    progress: Progress = lambda size: None,
    paths: dict[str, tuple[str, ...]] | None = None,
) -> None:
    """Writes a checkpoint that `tf.train.Checkpoint(model=...)` restores into the model whose variables
    `tensors` has.

    Args:
      tensors: {full name of the variable: tensor}, read here one after the other.
      prefix: of the files, in a folder that is there.
      progress: called with the bytes written since the last call.
      paths: {full name: ways to the variable from `model`, of attributes' names}; the first way is its key.
        None: the name is the only way.
    """
    names = paths or {name: (name,) for name in tensors}
    ways = {name: tuple(f"model/{path}" for path in names[name]) for name in tensors}
    by_key = {ways[name][0] + _VALUE: tensor for name, tensor in tensors.items()}
    # `restore` looks for it, and assert_existing_objects_matched misses it
    ways[_SAVE_COUNTER] = (_SAVE_COUNTER,)
    by_key[_SAVE_COUNTER + _VALUE] = tensors_lib.of_array(np.array(1, np.int64), _SAVE_COUNTER)
    graph = np.array(_graph(ways).SerializeToString(), np.object_)
    by_key[GRAPH] = tensors_lib.of_array(graph, GRAPH)
    bundle.write(by_key, prefix, progress)


def _graph(paths: dict[str, tuple[str, ...]]) -> Graph:
    """Builds the graph of objects. `paths` is {full name of a variable: ways to it}; the first way is its
    key."""
    graph = trackable_object_graph_pb2.TrackableObjectGraph()
    graph.nodes.add()
    numbers = {"": 0}
    for name, (path, *others) in paths.items():
        number = _number_of(graph, numbers, path)
        graph.nodes[number].attributes.add(
            name="VARIABLE_VALUE", full_name=name, checkpoint_key=path + _VALUE
        )
        for other in others:
            _connect(graph, numbers, other, number)
    return graph


def _number_of(graph: Graph, numbers: dict[str, int], path: str) -> int:
    """Returns the number of the object at the end of a way; adds it and those before it where they are not
    there yet."""
    if path not in numbers:
        graph.nodes.add()
        _connect(graph, numbers, path, len(graph.nodes) - 1)
    return numbers[path]


def _connect(graph: Graph, numbers: dict[str, int], path: str, number: int) -> None:
    """Lets a way end at an object."""
    parent, _, name = path.rpartition("/")
    numbers[path] = number
    graph.nodes[_number_of(graph, numbers, parent)].children.add(node_id=number, local_name=name)
