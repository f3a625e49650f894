"""What the compiler of the IPU refuses, looked for in graphs that were traced for the CPU."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable
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
    """Refuses a graph that cannot run on the IPU: host operations, strings, float64, shapes made by data.

    Args:
      graph: a function's graph.
      what: what it is, for the message.
      inner: whether to look into the functions that it calls, too.

    Raises:
      tf.errors.InvalidArgumentError: it cannot be compiled.
    """
    for operation in graph.get_operations():
        if OWN in operation.name:
            continue
        check_operation(operation.type, operation.name, what)
        for tensor in operation.outputs:
            if tensor.dtype in (tf.string, tf.float64):
                raise refuse(f"{what}: {tensor.name} is {tensor.dtype.name}, which IPUs do not have")
    for function in graph.as_graph_def().library.function if inner else []:
        for node in function.node_def:
            check_operation(node.op, node.name, what)


def check_operation(kind: str, name: str, what: str) -> None:
    """Refuses an operation that is not for the IPU.

    Raises:
      tf.errors.InvalidArgumentError: it is one.
    """
    if kind in HOST_OPERATIONS:
        raise refuse(f"{what}: {name} runs Python on the host")
    if kind in DATA_SHAPED:
        raise refuse(f"{what}: the shape of {name} ({kind}) depends on values")


def check_shapes(tensors: Iterable[Any], what: str) -> None:
    """Refuses tensors whose shapes are not fully defined.

    Raises:
      tf.errors.InvalidArgumentError: one is not.
    """
    for tensor in tensors:
        if tensor.dtype not in (tf.resource, tf.variant) and not tensor.shape.is_fully_defined():
            raise refuse(f"{what}: {tensor.name} has the shape {tensor.shape}, which is not fully defined")


def check_program(compiled: Any) -> None:
    """Refuses what goes into or comes out of a program, or is in it beside pipelines.

    Raises:
      TypeError: float64 goes in or out.
      tf.errors.InvalidArgumentError: it cannot be compiled.
    """
    for name, tensors in (("input", compiled.inputs), ("output", compiled.outputs)):
        for each in tensors:
            if each.dtype == tf.float64:
                raise TypeError(f"Unsupported data type for {name}: {each.dtype.name}")
        check_shapes(tensors, f"{name} of the program")
    check_graph(compiled.graph, "the program", inner=False)


def bytes_of(tensors: Iterable[Any]) -> int:
    """Returns the bytes of tensors or variables."""
    return sum(each.shape.num_elements() * each.dtype.size for each in tensors)


def check_memory(bytes_per_ipu: dict[int, int]) -> None:
    """Refuses a program whose weights and states alone do not fit.

    Raises:
      tf.errors.ResourceExhaustedError: an IPU has too little memory; says which, how much and by how much.
    """
    limit = machine.current.bytes_per_ipu
    over = {ipu: size for ipu, size in bytes_per_ipu.items() if limit is not None and size > limit}
    if over:
        worst = max(over, key=lambda ipu: over[ipu])
        raise tf.errors.ResourceExhaustedError(
            None,
            None,
            f"Out of memory on IPU {worst}: {over[worst]} bytes used by variables, {limit} bytes available, "
            f"{over[worst] - limit} bytes too many (IPUs over their limit: {sorted(over)})",
        )


def executable(graphs: list[Any], settings: dict[str, Any]) -> tuple[str, bool]:
    """Writes the executable of a program to the cache, if there is one.

    Args:
      graphs: what was compiled.
      settings: what else decides about the executable.

    Returns:
      Its file ("" without a cache), and whether it was there already.
    """
    folder = machine.current.flags.get("executable_cache_path", "")
    if not folder:
        return "", False
    digest = hashlib.sha256(json.dumps(settings, sort_keys=True, default=str).encode())
    for graph in graphs:
        digest.update("\n".join(f"{each.type} {each.outputs}" for each in graph.get_operations()).encode())
    path = os.path.join(folder, digest.hexdigest()[:20] + ".poplar_exec")
    if os.path.exists(path):
        return path, True
    os.makedirs(folder, exist_ok=True)
    with open(path, "w", encoding="utf-8") as file:
        json.dump(settings, file, default=str)
    return path, False
