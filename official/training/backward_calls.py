"""Assigns the backward-pass calls in the graph of a training step to layers.

The forward pass of a layer is a call with the layer's name. TensorFlow gives the call of its gradient no such
name, but that call reads the tensors that the forward pass kept.
"""

from __future__ import annotations

import collections
from collections.abc import Sequence

import tensorflow as tf
from tensorflow.python.eager import context  # functions that are there have no public list

from official.reporting.profiles.trace import split


def stages_of(functions: set[str], stages: Sequence[str]) -> dict[str, str]:
    """Returns {name of a call without a stage in it: stage of which it reads the most tensors}.

    Args:
      functions: names of functions that Python has called; they and the functions that they call are
        searched. Functions that no longer exist are skipped.
      stages: names of stages.
    """
    known, found = frozenset(stages), {}
    for node in _nodes(functions):
        if node.op.endswith("PartitionedCall") and not split(node.name, known)[0]:
            read = collections.Counter(split(name.split(":")[0], known)[0] for name in node.input)
            del read[""]
            if read:
                found[node.name] = read.most_common(1)[0][0]
    return found


def _nodes(functions: set[str]):
    """Yields the nodes of functions, and of all functions that they call."""
    left, seen = list(functions), set()
    while left:
        name = left.pop()
        definition = _definition(name) if name not in seen else None
        seen.add(name)
        for node in definition.node_def if definition is not None else ():
            yield node
            for attribute in node.attr.values():
                left += [attribute.func.name] if attribute.func.name else []
                left += [each.name for each in attribute.list.func]


def _definition(name: str):
    try:
        return context.context().get_function_def(name)
    except tf.errors.OpError:  # an operation by itself
        return None
