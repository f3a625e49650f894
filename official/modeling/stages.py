"""A model as a list of stages: embeddings, block 1..N, pooler, heads.

A stage is a function of tensors and explicit weights. One after the other they are the model:

    carried = {}
    for stage, seed in zip(model.stages(), model.seeds(dropout_seed)):
        carried |= stage.run(stage.weights(), carried, features, seed)

Whoever runs the list may cut it between any two stages, put the parts on different devices, or compute a
stage again in the backward pass: nothing passes from one stage to another but `carried`.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import tensorflow as tf
from tensorflow.python.ops import (
    resource_variable_ops,
)  # for variables without initial values, which have no public name

Tensors = dict  # {name: tensor}


class Stage(NamedTuple):
    """A part of a model.

    Attributes:
      name: of the stage, no two of a model the same; its operations are found under it in profiles.
      variables: that it reads. A table that two stages share stands in both.
      weights: () -> its variables as tensors, a NamedTuple of them, in the type to compute in.
      run: (weights, carried, features, seed) -> {name: tensor} of `gives`. `carried` holds at least `takes`,
        `features` is a batch, `seed` int32 [2] of the stage's dropout, or None to switch it off. It reads
        nothing else: what it gives follows from its arguments.
      takes: names of the tensors that it needs from stages before it.
      gives: names of the tensors that it makes; one of the same name is replaced.
      tied: {field of its weights: variable} of those that a stage before it has, too: whoever puts the two
        apart replaces the field with a copy.
    """

    name: str
    variables: Sequence[tf.Variable]
    weights: Callable[[], Any]
    run: Callable[[Any, Tensors, Tensors, Any], Tensors]
    takes: tuple[str, ...]
    gives: tuple[str, ...]
    tied: Mapping[str, tf.Variable] = types.MappingProxyType({})


class Staged(Protocol):
    """A model, or the encoder, as a list of stages."""

    def stages(self) -> list[Stage]:
        """Returns the stages in the order in which they run."""

    def seeds(self, dropout_seed: tf.Tensor | None) -> list:
        """Returns the seed of each stage, int32 [2], drawn from one, int32 [N]; None for a stage without
        dropout, and for all where `dropout_seed` is None."""


def run(model: Staged, features: Tensors, dropout_seed: tf.Tensor | None) -> Tensors:
    """Runs all stages one after the other. Returns all that they gave, {name: tensor}."""
    carried: Tensors = {}
    for stage, seed in zip(model.stages(), model.seeds(dropout_seed)):
        run_one(stage, carried, features, seed)
    return carried


def run_one(stage: Stage, carried: Tensors, features: Tensors, seed: Any, weights: Any = None) -> None:
    """Runs a stage and adds what it gives to `carried`; `weights` are its own where none are given."""
    with tf.name_scope(stage.name):
        own = stage.weights() if weights is None else weights
        carried.update(stage.run(own, carried, features, seed))


def crossing(stages: Sequence[Stage], cut: int) -> set[str]:
    """Returns the names of the tensors that stages[cut:] need from stages[:cut]."""
    needed: set[str] = set()
    for stage in reversed(stages[cut:]):
        needed = needed.difference(stage.gives).union(stage.takes)
    return needed


def symbolic_model(build_model: Callable[[], tf.keras.Model]) -> tf.keras.Model:
    """Returns a model whose variables have names and shapes and no values."""
    with tf.Graph().as_default(), tf.variable_creator_scope(symbolic_variable):
        return build_model()


def symbolic_variable(next_creator: Any, **arguments: Any) -> Any:
    """Makes a variable without the operations that would fill it, which are more than those of a small
    model."""
    known = getattr(arguments["initial_value"], "keywords", {})  # of a partial, which is what Keras passes
    shape, dtype = (arguments.get(name) or known.get(name) for name in ("shape", "dtype"))
    if shape is None or dtype is None:
        return next_creator(**arguments)
    return resource_variable_ops.UninitializedVariable(
        trainable=arguments["trainable"],
        name=arguments["name"],
        shape=tf.TensorShape(shape),
        dtype=tf.as_dtype(dtype),
    )
