"""Which operations of a graph have a kernel for GPUs, by what this TensorFlow has registered: known without
a GPU, too."""

import collections
import functools
from collections.abc import Iterator

import tensorflow as tf
from tensorflow.python.framework import kernels  # no public name

# Compiled by XLA as a whole: what is inside has no kernels.
_COMPILED = "_XlaMustCompile"


@functools.cache
def of_gpus(operation: str) -> list:
    """Returns the kernels of an operation that count on a GPU; those for any device do, too."""
    known = kernels.get_registered_kernels_for_op(operation).kernel
    return [kernel for kernel in known if kernel.device_type in ("GPU", "DEFAULT") and not kernel.label]


def runs_on_gpu(node) -> bool:
    """Tells whether a NodeDef has a kernel for GPUs with its types."""

    def takes(constraint) -> bool:
        given = node.attr[constraint.name]
        types = list(given.list.type) or [given.type]
        return all(each in constraint.allowed_values.list.type for each in types)

    return any(all(map(takes, kernel.constraint)) for kernel in of_gpus(node.op))


def types_of(node) -> str:
    """Returns the types of a NodeDef, such as uint32."""
    given = {value.type for value in node.attr.values() if value.WhichOneof("value") == "type"}
    return ", ".join(sorted(tf.dtypes.as_dtype(each).name for each in given))


def nodes(graph) -> Iterator:
    """Yields the NodeDefs of a GraphDef that run one by one: its own, and those of the functions that these
    call, unless XLA compiles them."""
    functions = {function.signature.name: function for function in graph.library.function}
    left, seen = [graph.node], set()
    while left:
        for node in left.pop():
            yield node
            for value in node.attr.values():
                for name in {value.func.name, *(each.name for each in value.list.func)} & functions.keys():
                    if name not in seen and not functions[name].attr[_COMPILED].b:
                        left.append(functions[name].node_def)
                    seen.add(name)


def without_kernel(graph) -> collections.Counter:
    """Returns {(operation, types): how many} of a GraphDef that a GPU has no kernel for."""
    return collections.Counter(
        (node.op, types_of(node))
        for node in nodes(graph)
        if node.op != "Placeholder" and not runs_on_gpu(node)
    )
