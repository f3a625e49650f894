"""A model as ONNX operations: TensorFlow's graph of it, translated by tf2onnx.

The weights are inputs of that graph. So it is small, a translation takes seconds whatever the sizes, and the
same graph computes the outputs that the result is compared with.
"""

import contextlib
import logging
import os
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from official.config import BertConfig
from official.inference.signatures import output_names
from official.inference.source import UNUSED_STAGES, make_network, name_of
from official.modeling import stages

NAME = "model.onnx"
OPSET = 18  # the newest that tf2onnx writes
_FEATURES = ("input_ids", "input_mask", "segment_ids")
_WEIGHTS = "weights"  # the scope of the inputs that are weights


class Traced(NamedTuple):
    """A graph of TensorFlow.

    Attributes:
      graph: with an input for each weight.
      inputs: names of those that are no weights: input_ids, input_mask and segment_ids, int32 [B, L]; for
        fill_mask also masked, int32 [M], in [0, B x L).
      outputs: of the head, as a network returns them, but [B, L, ...] where a network has [T, ...].
      shapes: of the weights, by the names of their variables.
    """

    graph: tf.Graph
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    shapes: dict[str, tuple[int, ...]]


def libraries() -> tuple[Any, Any]:
    """Returns the packages onnx and tf2onnx. Raises ImportError where one is not installed."""
    # Else it keeps a copy of the graph before each of its passes, which takes half of its time.
    os.environ.setdefault("TF2ONNX_CATCH_ERRORS", "FALSE")
    with silence():
        import onnx
        import tf2onnx.convert

    return onnx, tf2onnx


@contextlib.contextmanager
def silence() -> Iterator[None]:
    """Within it no package logs what it does, or calls outdated of what another one does."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(before)


def trace(bert: BertConfig, head: str, classes: int) -> Traced:
    """Makes the graph of a model; arguments as of `make_network`. No weight gets a value."""
    with tf.Graph().as_default() as graph:
        model = make_network(bert, head, classes)
        inputs = {name: tf.compat.v1.placeholder(tf.int32, [None, None], name) for name in _FEATURES}
        if head == "fill_mask":
            inputs["masked"] = tf.compat.v1.placeholder(tf.int32, [None], "masked")
        carried = _run(model, head, inputs)
        if head == "fill_mask":
            carried = {"logits": carried["masked_lm_logits"][0]}
        for name in output_names(head):
            tf.identity(carried[name], name)
        variables = {variable.handle.op.name: variable for variable in model.variables}
        graph_def, shapes = _with_weights_as_inputs(graph.as_graph_def(), variables, output_names(head))
    with tf.Graph().as_default() as fed:
        tf.import_graph_def(graph_def, name="")
    return Traced(fed, tuple(inputs), output_names(head), shapes)


def _run(model: Any, head: str, inputs: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
    """Returns the outputs of the stages that a head needs."""
    carried: dict = {}
    features = inputs
    for stage in model.stages():
        if stage.name in UNUSED_STAGES.get(head, ()):
            continue
        if stage.name == "masked_lm":  # all rows as one: no row is filled up to the most masks of another
            sequence_BLD = carried["sequence"]
            carried["sequence"] = tf.reshape(sequence_BLD, [1, -1, sequence_BLD.shape[-1]])
            features = {"masked_lm_positions": inputs["masked"][None]}
        stages.run_one(stage, carried, features, None)
    return carried


def _with_weights_as_inputs(
    graph_def: Any, variables: dict[str, tf.Variable], outputs: tuple[str, ...]
) -> tuple[Any, dict[str, tuple[int, ...]]]:
    """Returns the operations that outputs need, with an input in place of each variable, and the shapes of
    the variables that are read."""
    changed, shapes = tf.compat.v1.GraphDef(), {}
    changed.versions.CopyFrom(graph_def.versions)
    with silence():
        needed = tf.compat.v1.graph_util.extract_sub_graph(graph_def, list(outputs))
    for node in needed.node:
        if node.op == "ReadVariableOp":
            variable = variables[node.input[0]]
            name = name_of(variable)
            if name not in shapes:
                shapes[name] = tuple(variable.shape)
                place = changed.node.add(name=f"{_WEIGHTS}/{name}", op="Placeholder")
                place.attr["dtype"].CopyFrom(node.attr["dtype"])
                place.attr["shape"].shape.CopyFrom(variable.shape.as_proto())
            read = changed.node.add(name=node.name, op="Identity", input=[f"{_WEIGHTS}/{name}"])
            read.attr["T"].CopyFrom(node.attr["dtype"])
        elif node.op != "VarHandleOp":
            changed.node.add().CopyFrom(node)
    return changed, shapes


def translate(traced: Traced) -> Any:
    """Returns the graph as an onnx.ModelProto. Its inputs are those of the graph, of which the weights have
    the names of their variables; its initializers are small constants."""
    _, tf2onnx = libraries()
    weights = {f"{_WEIGHTS}/{name}:0": name for name in traced.shapes}
    inputs, outputs = ([f"{name}:0" for name in names] for names in (traced.inputs, traced.outputs))
    with silence():
        model, _ = tf2onnx.convert.from_graph_def(
            traced.graph.as_graph_def(), "bert", [*inputs, *weights], outputs, opset=OPSET
        )
    names, graph = weights | {name: name.split(":")[0] for name in (*inputs, *outputs)}, model.graph
    for node in graph.node:
        for listed in (node.input, node.output):
            listed[:] = [names.get(name, name) for name in listed]
    for value in (*graph.input, *graph.output, *graph.initializer, *graph.value_info):
        value.name = names.get(value.name, value.name)
    return model


def reference(
    traced: Traced, weights: dict[str, np.ndarray], feeds: dict[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """Returns the outputs of the graph as TensorFlow computes them, {name: values}.

    Args:
      traced: the graph.
      weights: {name of a variable: float32}.
      feeds: {name of an input: its values}.
    """
    fed = {f"{_WEIGHTS}/{name}:0": weights[name] for name in traced.shapes}
    fed |= {f"{name}:0": values for name, values in feeds.items()}
    options = tf.compat.v1.ConfigProto()
    # TensorFlow 2.15 breaks off when it optimises a graph of which so much is fed.
    options.graph_options.rewrite_options.disable_meta_optimizer = True
    with tf.compat.v1.Session(graph=traced.graph, config=options) as session:
        outputs = session.run([f"{name}:0" for name in traced.outputs], fed)
    return dict(zip(traced.outputs, outputs))
