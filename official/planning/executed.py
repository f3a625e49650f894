"""Finds the operations that ran, as a profile names them, in the graph of the function that was traced: there
their shapes are."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any, NamedTuple

import tensorflow as tf

from official.planning import kernels
from official.planning.flat_graph import function_of, is_compiled, work_of
from official.planning.kernels import Work

_FUNCTIONS = ("f", "body", "cond", "then_branch", "else_branch")  # attributes that are functions
_IN_PLACE = re.compile(r"^(body|cond|then|else)/_\d+/")  # before the names of a loop's or branch's operations
_NUMBER = re.compile(r"_\d+$")
_PRODUCT = re.compile("MatMul|gemm", re.IGNORECASE)
_MOST_FUSED = 3  # operations that one product takes along


class Asked(NamedTuple):
    """What an operation that ran was asked for.

    Attributes:
      work: kernel, bytes and shape of a product; `kernels.NOTHING` where the operation is not known.
      shape: of the largest tensor that it reads or writes; () where none is known.
      is_known: whether the operation is in the graph with all its sizes: TensorFlow makes some when it
        optimises it.
    """

    work: Work = kernels.NOTHING
    shape: tuple[int, ...] = ()
    is_known: bool = False


class Executed:
    """The operations of a function and of all that it calls, by the names that the executor gives them."""

    def __init__(
        self, graph: Any, roots: Collection[int | None], callers: Mapping[int | None, tuple[int | None, str]]
    ):
        """Args: graph: of the function; roots: numbers of its calls; callers: {number of a call: (number of
        the call, node) that it was called from}."""
        self._graphs: dict[int | None, Any] = dict.fromkeys(roots, graph)
        self._graph, self._callers = graph, callers
        self._names: dict[int, dict[str, tf.Operation]] = {}
        self._known: dict[tuple[int | None, str, str], Asked] = {}

    def asked(self, run: int | None, node: str, kind: str) -> Asked:
        """Returns what the operation `node` of type `kind` was asked for in the call `run`."""
        key = (run, node, kind)
        if key not in self._known:
            graph = self._graph_of(run)
            found = self._find(graph, node) or self._find_renamed(graph, node, kind)
            self._known[key] = Asked() if found is None else _asked(*found, kind)
        return self._known[key]

    def _graph_of(self, run: int | None) -> Any:
        """Returns the graph that a call runs; that of the whole function where nothing says which."""
        if run not in self._graphs:
            self._graphs[run] = self._graph  # also where calls lead back to this one
            caller = self._callers.get(run)
            found = self._find(self._graph_of(caller[0]), caller[1]) if caller else None
            inner = next(_bodies(*found), None) if found else None
            self._graphs[run] = self._graph if inner is None else inner
        return self._graphs[run]

    def _find(self, graph: Any, node: str) -> tuple[Any, tf.Operation] | None:
        """Returns (the graph that it is in, an operation); None where there is none of that name.

        TensorFlow puts functions in place of their calls: call/name, and loops: loop/body/_1/name.
        """
        names = self._names_of(graph)
        if node in names:
            return graph, names[node]
        parts = node.split("/")
        for count in range(len(parts) - 1, 0, -1):
            call = names.get("/".join(parts[:count]))
            if call is not None:
                rest = _IN_PLACE.sub("", "/".join(parts[count:]))
                for body in _bodies(graph, call):
                    found = self._find(body, rest)
                    if found is not None:
                        return found
        return None

    def _find_renamed(self, graph: Any, node: str, kind: str) -> tuple[Any, tf.Operation] | None:
        """Returns what `_find` does of an operation that TensorFlow has put in place of one of the same type:
        it has a number behind that one's name."""
        found = self._find(graph, _NUMBER.sub("", node))
        return found if found and found[1].type == kind else None

    def _names_of(self, graph: Any) -> dict[str, tf.Operation]:
        if id(graph) not in self._names:
            self._names[id(graph)] = {operation.name: operation for operation in graph.get_operations()}
        return self._names[id(graph)]


def _bodies(graph: Any, operation: tf.Operation) -> Iterator[Any]:
    """Yields the graphs of the functions that an operation calls."""
    for name in _FUNCTIONS:
        if name in operation.node_def.attr and operation.node_def.attr[name].HasField("func"):
            yield function_of(graph, operation, name).graph


def _asked(graph: Any, operation: tf.Operation, kind: str) -> Asked:
    """Returns what an operation asks for that ran as one of type `kind`."""
    if _PRODUCT.search(kind):
        operation = _product_within(operation)
    if not is_compiled(operation) and next(_bodies(graph, operation), None) is not None:
        return Asked(is_known=True)  # a call: what it calls is listed by itself
    tensors = (*operation.inputs, *operation.outputs)
    shapes = [tensor.shape for tensor in tensors if tensor.dtype not in (tf.resource, tf.variant)]
    if not all(shape.is_fully_defined() for shape in shapes):
        return Asked()  # a size that is known only when it runs
    return Asked(work_of(graph, operation), max(map(tuple, shapes), key=math.prod, default=()), True)


def _product_within(operation: tf.Operation) -> tf.Operation:
    """Returns the product of what ran as one with it: that goes by the name of the last of its operations."""
    found = operation
    for _ in range(_MOST_FUSED):
        if kernels.product_of(found) is not None:
            return found
        if not found.inputs:
            break
        found = found.inputs[0].op
    return operation
