"""The stages of a pipeline, traced one by one: their graphs, variables, and what IPUs do not compile."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from typing import Any

import tensorflow as tf

from tests.graphcore.ipu_fake import machine

HOST_OPERATIONS = ("PyFunc", "EagerPyFunc", "PyFuncStateless")
# Operations whose results have shapes that depend on values.
DATA_SHAPED = ("Where", "Unique", "UniqueV2", "UniqueWithCounts", "DynamicPartition", "SetDiff1D", "ListDiff")
# Operations with this in their name are the fake's own work: queues and loops.
OWN = "ipu_fake_"


def refuse(message: str) -> Any:
    """Returns the error of a program that cannot be compiled (its kind: not in the sources read)."""
    return tf.errors.InvalidArgumentError(None, None, f"Function is not compilable: {message}")


def check_graph(graph: Any, what: str, inner: bool = True) -> None:
    """Refuses a graph that cannot run on the IPU: host operations, strings, float64, shapes made by data;
    `inner`: also in the functions that it calls."""
    operations = [each for each in graph.get_operations() if OWN not in each.name]
    kinds = [(each.type, each.name) for each in operations]
    for function in graph.as_graph_def().library.function if inner else []:
        kinds += [(node.op, node.name) for node in function.node_def]
    for kind, name in kinds:
        if kind in HOST_OPERATIONS:
            raise refuse(f"{what}: {name} runs Python on the host")
        if kind in DATA_SHAPED:
            raise refuse(f"{what}: the shape of {name} ({kind}) depends on values")
    for tensor in (tensor for operation in operations for tensor in operation.outputs):
        if tensor.dtype in (tf.string, tf.float64):
            raise refuse(f"{what}: {tensor.name} is {tensor.dtype.name}, which IPUs do not have")


def outer_tensor(tensor: Any) -> Any:
    """Returns what a graph's captured tensor is outside of all graphs, or the tensor itself."""
    while hasattr(tensor, "graph"):
        outer = [outer for outer, inner in getattr(tensor.graph, "captures", ()) if inner is tensor]
        if not outer:
            break
        tensor = outer[-1]
    return tensor


def variables_captured(captured: Iterable[Any], what: str, read: Any = ()) -> list[Any]:
    """Returns the variables behind the tensors that a function captures.

    Args:
      captured: the tensors.
      what: the function, for messages.
      read: variables that it reads, for messages.

    Raises:
      ValueError: it captures anything else, or a variable from outside of the strategy's scope.
    """
    found = []
    for tensor in captured:
        handle = outer_tensor(tensor)
        if tensor.dtype != tf.resource:
            raise ValueError(
                f"Trying to capture the tensor {getattr(handle, 'name', tensor.dtype.name)} which is not a"
                " resource. This tensor needs to be passed as part of the `infeed_queue` of the pipeline."
            )
        found.append(machine.current.variable_of(handle))
        if found[-1] is None:
            name = next((each.name for each in read if each.handle is handle), repr(handle))
            raise ValueError(f"{what} uses {name}, which is no variable created in the scope of the strategy")
    return found


@dataclasses.dataclass
class Stage:
    """One traced stage: its function, its IPU and the variables that it uses."""

    function: Any
    ipu: int
    variables: list[Any]


class Tracer:
    """Traces the stages in order, and keeps what they are."""

    def __init__(self) -> None:
        self.stages: list[Stage] = []

    def call(self, stage: Callable, ipu: int, values: list[tf.Tensor]) -> list[tf.Tensor]:
        """Returns the outputs of a stage; `values` are those of the stage before. Raises TypeError for nested
        ones (strict: not in the sources read)."""
        what = f"stage {len(self.stages)}"

        def flat(*tensors: tf.Tensor) -> list[tf.Tensor]:
            given = stage(*tensors)
            parts = list(given) if isinstance(given, (list, tuple)) else [given]
            if any(isinstance(each, (list, tuple, dict)) for each in parts):
                raise TypeError("a stage must give a tensor, or a flat list or tuple of tensors")
            return [tf.convert_to_tensor(each) for each in parts]

        specs = [tf.TensorSpec(each.shape, each.dtype) for each in values]
        traced = tf.function(flat, autograph=False).get_concrete_function(*specs)
        variables = variables_captured(traced.captured_inputs, what, traced.graph.variables)
        check_graph(traced.graph, what)
        for each in traced.outputs:
            if not each.shape.is_fully_defined():
                raise refuse(f"{what}: {each.name} has the shape {each.shape}, which is not fully defined")
        self.stages.append(Stage(traced, ipu, variables))
        return list(traced(*values))

    def ipu_of_variables(self) -> dict[int, int]:
        """Returns the IPU of each variable by its id. Raises tf.errors.UnimplementedError where stages on
        different IPUs use one (kind: not in the sources read)."""
        found: dict[int, int] = {}
        for stage in self.stages:
            for variable in stage.variables:
                if found.setdefault(id(variable), stage.ipu) != stage.ipu:
                    raise tf.errors.UnimplementedError(
                        None,
                        None,
                        f"The variable {variable.name} is used by pipeline stages on the IPUs"
                        f" {found[id(variable)]} and {stage.ipu}: stages that share a variable must be on the"
                        " same IPU (device_mapping).",
                    )
        return found
