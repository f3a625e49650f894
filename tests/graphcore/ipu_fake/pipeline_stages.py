"""The stages of a pipeline, traced one by one: their graphs, their variables, what depends on the batch."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tests.graphcore.ipu_fake import compiler, machine

CAPTURED = (
    "Trying to capture the tensor {} which is not a resource. This tensor needs to be passed as either part "
    "of the `input` or `infeed_queue` of the pipeline."
)


@dataclasses.dataclass
class Stage:
    """One traced stage: its function, its IPU and the variables that it uses."""

    function: Any
    ipu: int
    variables: list[Any]


@contextlib.contextmanager
def no_new_variables(what: str):
    """Variables cannot be created inside.

    Raises:
      ValueError: one is (strict: not in the sources read).
    """

    def refuse(next_creator: Callable, **kwargs: Any) -> Any:
        raise ValueError(
            f"{what} creates the variable {kwargs.get('name')}: create it in the strategy's scope before"
        )

    with tf.variable_creator_scope(refuse):
        yield


def outer_tensor(tensor: Any) -> Any:
    """Returns what a graph's captured tensor is outside of all graphs, or the tensor itself."""
    while hasattr(tensor, "graph"):
        found = None
        for outer, inner in _captures(tensor.graph):
            if inner is tensor:
                found = outer
        if found is None:
            break
        tensor = found
    return tensor


def _captures(graph: Any) -> list[tuple[Any, Any]]:
    captures = getattr(graph, "captures", [])
    return list(captures() if callable(captures) else captures)


def variables_captured(captured: list[Any], what: str, read: Any = ()) -> list[Any]:
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
        if tensor.dtype != tf.resource:
            raise ValueError(CAPTURED.format(getattr(outer_tensor(tensor), "name", tensor.dtype.name)))
        handle = outer_tensor(tensor)
        variable = machine.current.variable_of(handle)
        if variable is None:
            name = next((each.name for each in read if each.handle is handle), repr(handle))
            raise ValueError(f"{what} uses {name}, which is no variable created in the scope of the strategy")
        found.append(variable)
    return found


def flat_outputs(outputs: Any) -> list[tf.Tensor]:
    """Returns the tensors that a stage gives as a list.

    Raises:
      TypeError: nested structures (strict: not in the sources read).
    """
    if outputs is None or isinstance(outputs, tf.Operation):
        return []
    if isinstance(outputs, dict):
        outputs = [outputs[name] for name in sorted(outputs)]
    parts = list(outputs) if isinstance(outputs, (list, tuple)) else [outputs]
    if any(isinstance(each, (list, tuple, dict)) for each in parts):
        raise TypeError("a stage must give a tensor, or a flat list or tuple of tensors")
    return [tf.convert_to_tensor(each) for each in parts]


def spec_of(tensor: Any) -> tf.TensorSpec:
    return tf.TensorSpec(tensor.shape, tensor.dtype)


class Tracer:
    """Traces the stages in order, and keeps what they are.

    Attributes:
      stages: those traced so far, parallel ones one by one.
      structure: what the last stage gave, as it gave it.
      parallel: whether there are parallel stages.
    """

    def __init__(self) -> None:
        self.stages: list[Stage] = []
        self.structure: Any = None
        self.parallel = False

    def call(
        self, stage: Any, ipu: Any, values: list[tf.Tensor], arguments: Callable | None
    ) -> list[tf.Tensor]:
        """Returns the outputs of a stage, or of parallel stages one after the other.

        Args:
          stage: a function, or a list of them.
          ipu: its IPU, or a list of them.
          values: what the stage before gave.
          arguments: makes positional and named arguments of the values; None: they are positional.
        """
        if not isinstance(stage, list):
            return self._call_one(stage, ipu, values, arguments)
        self.parallel = True
        parts = [self._call_one(one, where, values, arguments) for one, where in zip(stage, ipu)]
        return [each for part in parts for each in part]

    def _call_one(
        self, stage: Callable, ipu: int, values: list[tf.Tensor], arguments: Any
    ) -> list[tf.Tensor]:
        what = f"stage {len(self.stages)} ({getattr(stage, '__name__', stage)})"

        def flat(*tensors: tf.Tensor) -> list[tf.Tensor]:
            positional, named = arguments(list(tensors)) if arguments else (list(tensors), {})
            self.structure = stage(*positional, **named)
            return flat_outputs(self.structure)

        with no_new_variables(what):
            traced = tf.function(flat, autograph=False).get_concrete_function(*map(spec_of, values))
        variables = variables_captured(list(traced.captured_inputs), what, traced.graph.variables)
        compiler.check_graph(traced.graph, what)
        compiler.check_shapes(traced.outputs, what)
        self.stages.append(Stage(traced, ipu, variables))
        outputs = traced(*values)
        return list(outputs) if isinstance(outputs, (list, tuple)) else [] if outputs is None else [outputs]

    def ipu_of_variables(self) -> dict[int, int]:
        """Returns the IPU of each variable by its id.

        Raises:
          tf.errors.UnimplementedError: two stages on different IPUs use one (kind: not in the sources read).
        """
        found: dict[int, int] = {}
        for stage in self.stages:
            for variable in stage.variables:
                if found.setdefault(id(variable), stage.ipu) != stage.ipu:
                    raise tf.errors.UnimplementedError(
                        None,
                        None,
                        f"The variable {variable.name} is used by pipeline stages on the IPUs "
                        f"{found[id(variable)]} and {stage.ipu}: stages that share a variable must be on the "
                        "same IPU (device_mapping).",
                    )
        return found

    def from_batch(self, inputs: list[bool]) -> list[bool]:
        """Returns for each output of the last stage whether it depends on the batch.

        Args:
          inputs: the same for the inputs of the first stage. With parallel stages all depend on it.
        """
        if self.parallel:
            return [True] * len(self.stages[-1].function.outputs)
        for stage in self.stages:
            graph = stage.function.graph
            inputs = inputs if len(inputs) <= len(graph.inputs) else inputs[: len(graph.inputs)]
            touched = {id(tensor) for tensor, depends in zip(graph.inputs, inputs) if depends}
            for operation in graph.get_operations():
                if any(id(each) in touched for each in operation.inputs):
                    touched |= {id(each) for each in operation.outputs}
            inputs = [id(each) in touched for each in stage.function.outputs]
        return inputs
