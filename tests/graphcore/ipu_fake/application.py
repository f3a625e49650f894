"""`ipu.application_compile_op` and `ipu.embedded_runtime`: a pipeline as a file, and the engine that runs it.

The file begins with the real one's eight bytes. What follows is the fake's own: a signature and a graph.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from typing import Any

import tensorflow as tf
from tensorflow.python.framework.convert_to_constants import convert_variables_to_constants_v2

from tests.graphcore.ipu_fake import machine, stages

MAGIC = b"GCTF\xf0\x9f\x91\x8d"
# Types that can be streamed.
STREAMED = ("int8", "int32", "float16", "float32")


class Recorder:
    """Stands for the strategy while an application is compiled; keeps its pipeline, one in inference."""

    program: Any = None

    def keep(self, program: Any) -> None:
        if self.program is not None or program.settings.training:
            raise NotImplementedError("this fake compiles applications of one pipeline in inference")
        self.program = program


def experimental_application_compile_op(
    func: Callable[[], None], output_path: str, freeze_variables: bool
) -> None:
    """Compiles a function with a pipeline into a file; the variables' values go into it."""
    if not freeze_variables:
        raise NotImplementedError("this fake compiles applications with their variables")
    recorder = Recorder()
    with machine.program_of(recorder):
        tf.function(lambda: func() and None, autograph=False).get_concrete_function()
        micro = recorder.program.trace()  # again, outside of all graphs, so that the variables have values
    for each in [*recorder.program.settings.infeed_queue.flat_spec(), *micro.outputs]:
        if each.dtype.name not in STREAMED:
            raise stages.refuse(f"{each.dtype.name} cannot be streamed: {', '.join(STREAMED)} can")
    frozen = convert_variables_to_constants_v2(micro)
    content = {
        "inputs": [[each.name, each.shape.as_list(), each.dtype.name] for each in frozen.inputs],
        "outputs": [each.name for each in frozen.outputs],
        "graph": base64.b64encode(frozen.graph.as_graph_def().SerializeToString()).decode(),
    }
    with open(output_path, "wb") as file:
        file.write(MAGIC + json.dumps(content).encode())


def embedded_runtime_start(
    executable_file: str, inputs: list[Any], name: str, timeout: int
) -> dict[str, Any]:
    """Starts an engine.

    Args:
      executable_file: of an application, which takes no inputs at its start.
      inputs: of that.
      name: the engine's name.
      timeout: microseconds that a pipelined application waits for the next batch.

    Raises:
      Exception: not the file of an application.
    """
    if inputs != [] or type(timeout) is not int or timeout < 1:
        raise ValueError(f"inputs={inputs!r}, timeout={timeout!r}")
    with open(executable_file, "rb") as file:
        data = file.read()
    if not data.startswith(MAGIC):
        raise Exception(f"Executable file '{executable_file}' is not a TensorFlow Poplar binary.")
    return json.loads(data[len(MAGIC) :].decode())


@tf.autograph.experimental.do_not_convert
def embedded_runtime_call(inputs: list[tf.Tensor], context: dict[str, Any]) -> list[tf.Tensor]:
    """Returns what the application gives for one batch; several threads may call it. Raises Exception for
    other numbers, shapes or types of inputs."""
    given = [[list(each.shape), each.dtype.name] for each in inputs]
    if given != [row[1:] for row in context["inputs"]]:
        raise Exception(f"Embedded application call expects {context['inputs']}, but {given} were provided.")
    graph_def = tf.compat.v1.GraphDef.FromString(base64.b64decode(context["graph"]))
    by_node = {row[0]: tensor for row, tensor in zip(context["inputs"], inputs)}
    return tf.import_graph_def(graph_def, input_map=by_node, return_elements=context["outputs"], name="")
