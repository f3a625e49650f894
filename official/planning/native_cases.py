"""What is timed of the native update: its operations, beside what plans count them as."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from official.io.native_library import NotBuilt
from official.optimization.moments import Constants
from official.optimization.native import library
from official.planning.machine_kernels import TYPES, Case, make_case, num_sets
from official.planning.native_update import StandIn

_SHAPES = ((768, 3072), (30522, 768))
_CONSTANTS = Constants(0.01, 0.9, 0.999, 1e-6)


def native_cases(dtype: str) -> list[Case]:
    """Returns the updates and the norm with gradients of a type, and copies in it; none where there is no
    compiler."""
    try:
        operations = library.loaded()
    except NotBuilt:
        return []
    return [case for shape in _SHAPES for case in _of_shape(operations, shape, TYPES[dtype])]


def _of_shape(operations: Any, shape: tuple[int, int], dtype: tf.DType) -> list[Case]:
    gradient = tf.cast(tf.random.stateless_normal(shape, [1, 2], stddev=0.02), dtype)
    variables = [_variables(shape, dtype) for _ in range(num_sets(16 * shape[0] * shape[1]))]
    handles = [[each.handle for each in own] for own in variables]

    def kept(update: Callable) -> Callable:
        return lambda *given: (variables, update(*given))[1]  # they live as long as it

    counted = StandIn(dtype)
    cases = [make_case(_norm(operations), [gradient], None, _norm(counted))]
    for layerwise in (False, True):
        update = kept(_updated(operations, layerwise))
        cases.append(make_case(update, [gradient], handles, _updated(counted, layerwise)))
    return cases


def _variables(shape: tuple[int, int], dtype: tf.DType) -> list[tf.Variable]:
    """Returns a weight, its moments and, of another type than float32, its copy."""
    types = [tf.float32] * 3 + [dtype] * (dtype != tf.float32)
    return [tf.Variable(tf.ones(shape, each)) for each in types]


def _norm(operations: Any) -> Callable:
    return lambda x: operations.bert_global_norm(tensors=[x])


def _updated(operations: Any, layerwise: bool) -> Callable:
    """Returns (handles of a weight, its moments and copy, gradient) -> the operation that updates it."""

    def update(handles: list, gradient: tf.Tensor) -> Any:
        weight, m, v, *copies = handles
        return operations.bert_update(
            weights=[weight],
            m=[m],
            v=[v],
            copies=copies,
            gradients=[gradient],
            step=tf.ones([7]),
            layerwise=layerwise,
            decays=[True],
            copy_of=list(range(len(copies))),
            **_CONSTANTS._asdict(),
        )

    return update
