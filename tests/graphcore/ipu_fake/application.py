"""`ipu.application_compile_op` and `ipu.embedded_runtime`: a pipeline as a file, and the engine that runs it.

The file begins with the real one's eight bytes. What follows is the fake's own: a signature and a graph.
"""

from __future__ import annotations

import base64
import json
import os
import tempfile
from collections.abc import Callable
from typing import Any

import tensorflow as tf
from tensorflow.python.framework.convert_to_constants import convert_variables_to_constants_v2

from tests.graphcore.ipu_fake import compiler, machine, pipeline_stages

MAGIC = b"GCTF\xf0\x9f\x91\x8d"
# Types that can be streamed.
STREAMED = ("int8", "int32", "float16", "float32")


class Recorder:
    """Stands for the strategy while an application is compiled; keeps its pipeline.

    Attributes:
      program: the pipeline, once it was built.
    """

    _device_ordinal = 0

    def __init__(self) -> None:
        self.program: Any = None

    def check_replicas(self, local: int) -> None:
        """An application has one replica here, whatever is configured."""

    def check_sharding(self, sharded: bool) -> None:
        """Nothing is sharded in inference."""

    def keep(self, program: Any) -> None:
        """Takes the pipeline of the application.

        Raises:
          NotImplementedError: a second one, or one that trains.
        """
        if self.program is not None or program.settings.training:
            raise NotImplementedError("this fake compiles applications of one pipeline in inference")
        self.program = program


def experimental_application_compile_op(
    func: Callable,
    inputs: Any = None,
    output_path: str | None = None,
    freeze_variables: bool = False,
    name: str | None = None,
) -> tf.Tensor:
    """Compiles a function with a pipeline.

    Args:
      func: called as func(*inputs); a Python function or a tf.function.
      inputs: tensors that are given when an engine starts. This fake: none.
      output_path: the file to write, None: a temporary one.
      freeze_variables: whether the variables' values go into the file; if not, they are inputs of the start.
      name: a name.

    Returns:
      string scalar, the file.
    """
    here = machine.configured()
    if inputs:
        raise NotImplementedError("this fake compiles applications without inputs")
    if output_path is None:
        handle, output_path = tempfile.mkstemp(prefix=name or "application_compile", suffix=".poplar_exec")
        os.close(handle)
    recorder = Recorder()
    outer, here.running = here.running, recorder
    try:
        function = func if not hasattr(func, "python_function") else func.python_function
        tf.function(lambda: function() and None, autograph=False).get_concrete_function()
        if recorder.program is None:
            raise NotImplementedError("this fake compiles applications of one pipeline in inference")
        _write(output_path, recorder.program, freeze_variables)
    finally:
        here.running = outer
    return tf.constant(output_path)


def _write(path: str, program: Any, freeze: bool) -> None:
    micro = program.trace()  # again, outside of all graphs, so that the variables have values
    streamed = program.settings.infeed_queue.flat_spec() if program.settings.infeed_queue is not None else []
    for each in [*streamed, *micro.outputs]:
        if each.dtype.name not in STREAMED:
            raise compiler.refuse(f"{each.dtype.name} cannot be streamed: {', '.join(STREAMED)} can")
    frozen = convert_variables_to_constants_v2(micro)
    variables = {
        inner.op.name: pipeline_stages.variables_captured([outer], "")[0] for outer, inner in _captures(micro)
    }
    content = {
        "inputs": []
        if freeze
        else [
            {"node": node, **_row(variable.name.split(":")[0], variable)}
            for node, variable in variables.items()
        ],
        "streamed_inputs": [
            {"node": tensor.name, **_row(tensor.op.name, tensor)} for tensor in frozen.inputs
        ],
        "streamed_outputs": [
            {"node": tensor.name, **_row(f"output_{index}", tensor)}
            for index, tensor in enumerate(frozen.outputs)
        ],
        "batches": int(program.settings.gradient_accumulation_count) * program.settings.repeat_count,
        "graph": base64.b64encode(frozen.graph.as_graph_def().SerializeToString()).decode(),
    }
    with open(path, "wb") as file:
        file.write(MAGIC + json.dumps(content).encode())


def _captures(function: Any) -> list[tuple[Any, Any]]:
    """Returns the tensors that a function captures, and what they are in its graph."""
    captured = list(function.captured_inputs)
    return list(zip(captured, function.graph.inputs[len(function.graph.inputs) - len(captured) :]))


def _row(name: str, tensor: Any) -> dict[str, Any]:
    return {"name": name, "shape": list(tensor.shape), "dtype": tensor.dtype.name}


class Shape:
    """Shape of a tensor in a signature."""

    def __init__(self, row: dict[str, Any]):
        self.dimensions = row["shape"]
        self.element_type = row["dtype"]


class Entry:
    """One tensor of a signature."""

    def __init__(self, row: dict[str, Any]):
        self.name, self.shape, self.node = row["name"], Shape(row), row["node"]


class Signature:
    """The tensors that an application takes and gives."""

    def __init__(self, content: dict[str, Any]):
        self.inputs = [Entry(row) for row in content["inputs"]]
        self.streamed_inputs = [Entry(row) for row in content["streamed_inputs"]]
        self.streamed_outputs = [Entry(row) for row in content["streamed_outputs"]]


class RuntimeContext:
    """A started engine; made by embedded_runtime_start."""

    def __init__(self, name: str, path: str, content: dict[str, Any], inputs: list[Any]):
        self._name, self._signature = name, Signature(content)
        self.function = _load(content, self._signature, inputs)
        self.executable_file = path

    def start_output(self) -> tf.Tensor:
        """Returns the tensor that stands for the start."""
        return tf.constant(0)

    def name(self) -> str:
        return self._name

    def signature(self) -> Signature:
        return self._signature

    def output_types(self) -> list[Any]:
        return [tf.as_dtype(each.shape.element_type) for each in self._signature.streamed_outputs]


def _load(content: dict[str, Any], signature: Signature, inputs: list[Any]) -> Callable:
    """Returns the application as a function of one batch."""
    graph_def = tf.compat.v1.GraphDef.FromString(base64.b64decode(content["graph"]))

    def run(*batch: tf.Tensor) -> Any:
        given = {each.node: tensor for each, tensor in zip(signature.streamed_inputs, batch)}
        given.update(
            {each.node + ":0": tf.identity(tensor) for each, tensor in zip(signature.inputs, inputs)}
        )
        wanted = [each.node for each in signature.streamed_outputs]
        return tf.import_graph_def(graph_def, input_map=given, return_elements=wanted, name="")

    specs = [
        tf.TensorSpec(each.shape.dimensions, each.shape.element_type) for each in signature.streamed_inputs
    ]
    return tf.function(run, input_signature=specs, autograph=False)


def read_executable(executable_file: Any) -> dict[str, Any]:
    """Returns what is in the file of an application.

    Raises:
      Exception: not such a file.
    """
    path = (
        executable_file.numpy().decode()
        if isinstance(executable_file, tf.Tensor)
        else os.fspath(executable_file)
    )
    with open(path, "rb") as file:
        data = file.read()
    if not data.startswith(MAGIC):
        raise Exception(f"Executable file '{path}' is not a TensorFlow Poplar binary.")
    return json.loads(data[len(MAGIC) :].decode())


def embedded_runtime_start(
    executable_file: Any, inputs: Any, name: str, timeout: int | None = None
) -> RuntimeContext:
    """Starts an engine.

    Args:
      executable_file: the file.
      inputs: what it takes at its start: list, tuple, or dict by name.
      name: the engine's name.
      timeout: microseconds that a pipelined application waits for the next batch, None for 5000.

    Raises:
      Exception: number, shapes or types of the inputs differ; not the file of an application.
    """
    if timeout is not None and (isinstance(timeout, bool) or not isinstance(timeout, int) or timeout < 1):
        raise ValueError(
            f"timeout={timeout!r}: microseconds, an int of at least 1"
        )  # not in the sources read
    if not isinstance(name, str) or not name:
        raise TypeError("embedded_runtime_start: name must be a string")  # not in the sources read
    content = read_executable(executable_file)
    _check_engine(name, content)
    wanted = Signature(content).inputs
    if isinstance(inputs, dict):
        for each in wanted:
            if each.name not in inputs:
                raise Exception(f"Failed to find input tensor with name '{each.name}' in input dictionary.")
        inputs = [inputs[each.name] for each in wanted]
    if not isinstance(inputs, (list, tuple)):
        raise Exception("Expected the inputs to be a list.")
    _check_inputs(list(inputs), wanted, "Embedded application runtime", Exception)
    return RuntimeContext(
        name, str(executable_file), content, [tf.convert_to_tensor(each) for each in inputs]
    )


def _check_engine(name: str, content: dict[str, Any]) -> None:
    """Keeps the name of an engine; a second start with the same application is the same engine.

    Raises:
      Exception: the engine of this name runs another application (strict: not in the sources read).
    """
    if machine.current.engines.setdefault(name, content) != content:
        raise Exception(f"The engine '{name}' runs another executable already.")


def _check_inputs(inputs: list[Any], wanted: list[Entry], who: str, wrong_type: Any) -> None:
    if len(inputs) != len(wanted):
        raise Exception(f"{who} expects {len(wanted)} inputs, but {len(inputs)} were provided.")
    for index, (tensor, entry) in enumerate(zip(inputs, wanted)):
        if list(tensor.shape) != entry.shape.dimensions:
            raise Exception(
                f"Mismatched input shape at position {index} ('{entry.name}'). Expected "
                f"{entry.shape.dimensions}, but input {index} has shape {list(tensor.shape)}."
            )
        if tf.as_dtype(tensor.dtype).name != entry.shape.element_type:
            raise wrong_type(
                f"Mismatched input dtype at position {index} ('{entry.name}'). Expected "
                f"{entry.shape.element_type}, but input {index} has dtype {tf.as_dtype(tensor.dtype).name}."
            )


@tf.autograph.experimental.do_not_convert
def embedded_runtime_call(inputs: Any, context: RuntimeContext) -> list[tf.Tensor]:
    """Returns what the application gives for one batch; several threads may call it.

    Raises:
      Exception: number or shapes of the inputs differ.
      TypeError: their types differ.
    """
    _check_inputs(list(inputs), context.signature().streamed_inputs, "Embedded application call", TypeError)
    return list(context.function(*[tf.convert_to_tensor(each) for each in inputs]))


def embedded_runtime_stop(context: RuntimeContext) -> None:
    raise NotImplementedError("Embedded runtime doesn't support stopping an engine.")


def embedded_runtime_start_and_call(
    executable_file: Any, startup_inputs: Any, call_inputs: Any, name: str
) -> tuple[list[tf.Tensor], RuntimeContext]:
    """Starts an engine, and gives it the first batch."""
    context = embedded_runtime_start(executable_file, startup_inputs, name)
    return embedded_runtime_call(call_inputs, context), context


def modules() -> dict[str, dict[str, Any]]:
    """Returns the modules: dotted name below the package -> names in it."""
    runtime = (
        RuntimeContext,
        embedded_runtime_start,
        embedded_runtime_call,
        embedded_runtime_stop,
        embedded_runtime_start_and_call,
    )
    return {
        "ops.application_compile_op": {
            "experimental_application_compile_op": experimental_application_compile_op
        },
        "ops.embedded_runtime": {each.__name__: each for each in runtime},
    }
