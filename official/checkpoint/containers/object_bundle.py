"""TF2's object-based checkpoints: a bundle with a graph of Python objects, tensors by their variables' names.

`tf.train.Checkpoint.restore` finds a variable by following attribute names from the root; the graph maps each
path to a tensor of the bundle. Source: tensorflow/core/protobuf/trackable_object_graph.proto.
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
# Suffix of the key of a variable's tensor, after the path to the variable.
_VALUE = "/.ATTRIBUTES/VARIABLE_VALUE"

files, target, LAST, IS_FOLDER = bundle.files, bundle.target, bundle.LAST, bundle.IS_FOLDER


def locate(path: str) -> str | None:
    """Returns the prefix for a path: a prefix, one of its files, or a folder; None if it is not an
    object-based checkpoint.

    Their files are named like those of other bundles; only the index distinguishes them.
    """
    prefix = bundle.locate(path)
    try:
        return prefix if prefix and GRAPH in bundle.names_of(prefix) else None
    except DamagedError:
        return None


def read(prefix: str) -> Tensors:
    """Returns the tensors by the full names of their variables, optimizer slots as VARIABLE/OPTIMIZER/SLOT.

    A variable without a unique name is named by its path through the graph.

    Raises:
      DamagedError: also when a tensor is read.
    """
    by_key = bundle.read(prefix)
    if GRAPH not in by_key:
        raise DamagedError(f"{prefix} is not an object-based checkpoint: it has no object graph")
    names = _names(_parse(by_key.pop(GRAPH)))
    missing = sorted(names.keys() - by_key.keys())
    if missing:
        raise DamagedError(f"the file lacks variables of its object graph: {shortened(missing)}")
    named = {names.get(key, key): tensor for key, tensor in by_key.items()}
    return {name: dataclasses.replace(tensor, sources=(name,)) for name, tensor in sorted(named.items())}


def _parse(tensor: Tensor) -> Graph:
    graph = trackable_object_graph_pb2.TrackableObjectGraph()
    try:
        graph.ParseFromString(tensor.read().tobytes())  # not item(), which strips zeros at the end
    except DecodeError as error:
        raise DamagedError(f"{GRAPH}: {error}") from None
    numbers = [child.node_id for node in graph.nodes for child in node.children]
    for slot in (slot for node in graph.nodes for slot in node.slot_variables):
        numbers += (slot.original_variable_node_id, slot.slot_variable_node_id)
    if any(not 0 <= number < len(graph.nodes) for number in numbers):
        raise DamagedError(f"{GRAPH}: a child that does not exist")
    return graph


def _names(graph: Graph) -> dict[str, str]:
    """Returns {key in the bundle: name}."""

    def keys_of(number: int) -> list[str]:
        return [attribute.checkpoint_key for attribute in graph.nodes[number].attributes]

    attributes = [attribute for node in graph.nodes for attribute in node.attributes]
    keys = {one.checkpoint_key: one.full_name for one in attributes}
    names = {key: name or key.removesuffix(_VALUE) for key, name in keys.items()}
    slots = {}
    for node in graph.nodes:
        # An optimizer whose step counter is LAMB/iter is LAMB.
        counters = [
            key for child in node.children if child.local_name == "iter" for key in keys_of(child.node_id)
        ]
        optimizer = names[counters[0]].rpartition("/")[0] if counters else ""
        for slot in node.slot_variables:
            variables = keys_of(slot.original_variable_node_id)
            for key, variable in zip(keys_of(slot.slot_variable_node_id), variables):
                named = f"{names[variable]}/{optimizer}/{slot.slot_name}"
                slots[key] = named if optimizer else key.removesuffix(_VALUE)
    names |= slots
    counts = collections.Counter(names.values())
    return {key: name if counts[name] == 1 else key.removesuffix(_VALUE) for key, name in names.items()}


def write(
    tensors: Tensors,
    prefix: str,
    progress: Progress = lambda size: None,
    paths: dict[str, tuple[str, ...]] | None = None,
) -> None:
    """Writes a checkpoint that `tf.train.Checkpoint(model=...)` restores into the model with these variables.

    Args:
      tensors: {full name of the variable: lazy tensor}, read one after the other.
      prefix: prefix of the files, in an existing folder.
      progress: called with the bytes written since the last call.
      paths: {full name: paths of attribute names from `model` to the variable}; the first path is its key.
        None: the name is the only path.
    """
    names = paths or {name: (name,) for name in tensors}
    ways = {name: [f"model/{path}" for path in names[name]] for name in tensors}
    by_key = {ways[name][0] + _VALUE: tensor for name, tensor in tensors.items()}
    # required by `restore` and assert_existing_objects_matched
    ways["save_counter"] = ["save_counter"]
    by_key["save_counter" + _VALUE] = tensors_lib.of_array(np.array(1, np.int64), "save_counter")
    graph = trackable_object_graph_pb2.TrackableObjectGraph()
    graph.nodes.add()
    numbers = {"": 0}
    for name, (path, *others) in ways.items():
        number = _number_of(graph, numbers, path)
        kind = "VARIABLE_VALUE"
        graph.nodes[number].attributes.add(name=kind, full_name=name, checkpoint_key=path + _VALUE)
        for other in others:
            _connect(graph, numbers, other, number)
    by_key[GRAPH] = tensors_lib.of_array(np.array(graph.SerializeToString(), np.object_), GRAPH)
    bundle.write(by_key, prefix, progress)


def _number_of(graph: Graph, numbers: dict[str, int], path: str) -> int:
    """Returns the number of the object at a path; adds missing objects."""
    if path not in numbers:
        graph.nodes.add()
        _connect(graph, numbers, path, len(graph.nodes) - 1)
    return numbers[path]


def _connect(graph: Graph, numbers: dict[str, int], path: str, number: int) -> None:
    """Adds an object at a path."""
    parent, _, name = path.rpartition("/")
    numbers[path] = number
    graph.nodes[_number_of(graph, numbers, parent)].children.add(node_id=number, local_name=name)
