"""Placement of operations beside their variables, where a model lies on several devices."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import tensorflow as tf

if TYPE_CHECKING:  # alone in annotations: Python 3.8 could not make it
    Beside = Callable[[tf.Variable], contextlib.AbstractContextManager]


def beside(variables: Sequence[tf.Variable]) -> Beside:
    """Returns variable -> a context whose operations run on the variable's device; called by a replica.

    Of variables that are all on one device it changes nothing: TensorFlow knows where that is.
    """
    if len(set(map(device_of, variables))) < 2:
        return lambda variable: contextlib.nullcontext()
    return lambda variable: tf.device(device_of(variable))


def device_of(variable: tf.Variable) -> str:
    """Returns the device of a variable, in the context of a replica that of the replica's own copy."""
    return variable.device or ""


def by_device(tensors: Sequence[tf.Tensor]) -> list[list[int]]:
    """Returns the indices of tensors in their list, those of each device together."""
    places: dict[str, list[int]] = {}
    for place, tensor in enumerate(tensors):
        places.setdefault(tensor.device or "", []).append(place)
    return list(places.values())
