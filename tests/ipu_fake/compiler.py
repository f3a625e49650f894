"""What the compiler of the IPU refuses, looked for in graphs that were traced for the CPU."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable
from typing import Any

import tensorflow as tf

from tests.ipu_fake import machine

HOST_OPERATIONS = ("PyFunc", "EagerPyFunc", "PyFuncStateless")
# Operations with this in their name are the fake's own work: queues and loops.
OWN = "ipu_fake_"


def refuse(message: str) -> Any:
    """Returns the error of a program that cannot be compiled (its kind: not in the sources read)."""
    return tf.errors.InvalidArgumentError(None, None, f"Function is not compilable: {message}")


def check_graph(graph: Any, what: str) -> None:
    """Refuses a graph that cannot run on the IPU: host operations, strings, float64, shapes that are not known.

    Args:
      graph: a function's graph.
      what: what it is, for the message.

    Raises:
      tf.errors.InvalidArgumentError: it cannot be compiled.
    """
    for operation in graph.get_operations():
        if OWN in operation.name:
            continue
        if operation.type in HOST_OPERATIONS:
            raise refuse(f"{what}: {operation.name} runs Python on the host")
        for tensor in operation.outputs:
            if tensor.dtype in (tf.string, tf.float64):
                raise refuse(f"{what}: {tensor.name} is {tensor.dtype.name}, which IPUs do not have")
            if tensor.dtype not in (tf.resource, tf.variant) and not tensor.shape.is_fully_defined():
                raise refuse(
                    f"{what}: {tensor.name} has the shape {tensor.shape}, which is not fully defined"
                )


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
    check_graph(compiled.graph, "the program")


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
