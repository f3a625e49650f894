"""A model as a list of stages (embeddings, blocks, heads) that a pipeline distributes, and their weights."""

from __future__ import annotations

import contextlib
import contextvars
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import tensorflow as tf
from tensorflow.python.ops import resource_variable_ops

# -----------------------------------------------------------------------------------------------------------
# Stages
#
# A stage is a function of tensors and explicit weights. The model runs them one after the other:
#
#     carried = {}
#     for stage, seed in zip(model.stages(), model.seeds(dropout_seed)):
#         carried |= stage.run(stage.weights(), carried, features, seed)
#
# A runner may cut the list between any two stages, put the parts on different devices, or recompute a stage
# in the backward pass: `carried` is the only connection between stages.


Tensors = dict  # {name: tensor}


class Stage(NamedTuple):
    """A part of a model: a pure function of weights and tensors.

    Attributes:
      name: unique name; profiles show its operations under it.
      variables: the variables that it reads. Two stages that share an embedding table both list it.
      weights: () -> NamedTuple of its weights as tensors, in the compute dtype.
      run: (weights, carried, features, seed) -> {name: tensor} with the names of `gives`. `carried` holds at
        least the tensors of `takes`, `features` is a batch, `seed` is int32 [2] for dropout, or None to
        switch it off. The result depends only on these arguments.
      takes: names of the tensors that it reads from earlier stages.
      gives: names of the tensors that it returns; they replace earlier tensors of the same name.
      tied: {field of its weights: variable} for weights that it shares with an earlier stage. A pipeline that
        places the two stages on different devices replaces the field by a copy.
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
        """Returns the stages in execution order."""

    def seeds(self, dropout_seed: tf.Tensor | None) -> list:
        """Returns the seed of each stage, int32 [2], drawn from one, int32 [N]; None for a stage without
        dropout, and for all if `dropout_seed` is None."""


def run(model: Staged, features: Tensors, dropout_seed: tf.Tensor | None) -> Tensors:
    """Runs all stages one after the other. Returns all their tensors, {name: tensor}."""
    carried: Tensors = {}
    for stage, seed in zip(model.stages(), model.seeds(dropout_seed)):
        run_one(stage, carried, features, seed)
    return carried


def run_one(stage: Stage, carried: Tensors, features: Tensors, seed: Any, weights: Any = None) -> None:
    """Runs a stage and adds its tensors to `carried`; `weights` defaults to the stage's own."""
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
    """Returns a model whose variables have names and shapes, but no values."""
    with tf.Graph().as_default(), tf.variable_creator_scope(symbolic_variable):
        return build_model()


def symbolic_variable(next_creator: Any, **arguments: Any) -> Any:
    """Creates a variable without its initializer, whose operations would outnumber those of a small model."""
    known = getattr(arguments["initial_value"], "keywords", {})  # arguments of the partial that Keras passes
    shape, dtype = (arguments.get(name) or known.get(name) for name in ("shape", "dtype"))
    if shape is None or dtype is None:
        return next_creator(**arguments)
    return _without_value(shape, dtype, arguments["name"], arguments["trainable"])


def _without_value(shape: Any, dtype: Any, name: str, trainable: bool) -> tf.Variable:
    return resource_variable_ops.UninitializedVariable(
        shape=tf.TensorShape(shape), dtype=tf.as_dtype(dtype), name=name, trainable=trainable
    )


# -----------------------------------------------------------------------------------------------------------
# Copies of weights in the compute dtype


if TYPE_CHECKING:  # used only in annotations: invalid at run time in Python 3.8
    Copies = Mapping[str, tf.Variable]  # {name of the variable: its copy}

# Per thread: replicas are traced in separate threads, in turns.
_in_use: contextvars.ContextVar[Copies] = contextvars.ContextVar(
    "copies in use", default=types.MappingProxyType({})
)
# {name of a variable that is read in the compute dtype: (the variable, whether it is also read otherwise)}
_asked: contextvars.ContextVar[dict[str, tuple[tf.Variable, bool]] | None] = contextvars.ContextVar(
    "asked", default=None
)


@contextlib.contextmanager
def reading_copies(copies: Copies) -> Iterator[None]:
    """Context manager in which traced code reads the low-precision copies of variables."""
    before = _in_use.set(copies)
    try:
        yield
    finally:
        _in_use.reset(before)


def variables_to_copy(model: Staged, dtype: tf.DType, with_shared: bool = True) -> list[tf.Variable]:
    """Returns the trained variables of a model that are read in another type than their own; without
    `with_shared`, those that are only read so."""
    asked: dict[str, tuple[tf.Variable, bool]] = {}

    @tf.function(autograph=False)
    def read() -> None:  # only traced: nothing is cast
        for stage in model.stages():
            stage.weights()

    before = _asked.set(asked)
    try:
        read.get_concrete_function()
    finally:
        _asked.reset(before)
    return [
        each
        for each, is_shared in asked.values()
        if each.trainable and each.dtype != dtype and (with_shared or not is_shared)
    ]


def copies_without_values(model: Staged, dtype: tf.DType) -> dict[str, tf.Variable]:
    """Returns copies, still to be assigned, of the variables that are only read in another type than their
    own: where nothing trains, these need no values."""
    variables = variables_to_copy(model, dtype, with_shared=False)
    return {each.name: _without_value(each.shape, dtype, "copy", False) for each in variables}


def read_as(variable: tf.Variable, dtype: str, is_shared: bool) -> tf.Tensor:
    """Returns the value of a variable in a type. If a low-precision copy is read, its gradient has that type,
    too, unless it is added to the gradient of another read of the variable (`is_shared`)."""
    asked = _asked.get()
    if asked is not None:
        asked[variable.name] = variable, is_shared
    copy = _in_use.get().get(variable.name)
    if copy is None or copy.dtype != dtype:
        # tf.cast alone would return the variable itself if it already has the type.
        return tf.cast(tf.convert_to_tensor(variable), dtype)
    # Read by its handle: Keras would cast the variable.
    value = tf.raw_ops.ReadVariableOp(resource=variable.handle, dtype=tf.float32)

    @tf.custom_gradient
    def copied(value, copy):
        def gradient(upstream):
            return tf.cast(upstream, value.dtype) if is_shared else upstream, None

        return tf.identity(copy), gradient

    return copied(value, copy.read_value())
