"""Network of an export: the stages of `official.modeling`, over weights that all methods share."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from official.config import BertConfig
from official.inference.rows import TOKENS
from official.inference.source import UNUSED_STAGES, make_network, name_of
from official.modeling import attention, layers, stages
from official.modeling.stages import Stage

# -----------------------------------------------------------------------------------------------------------
# Weights
#
# A variable is float32; with bf16 it is bfloat16 where it is read so, and the tables of the embeddings;
# with int8 dense kernels and the table of words are 8-bit integers, with a scale for each column, of the
# table for each word, in NAME/scale.


SCALE = "/scale"
WORDS = "bert/embeddings/word_embeddings"
TABLES = (WORDS, "bert/embeddings/token_type_embeddings", "bert/embeddings/position_embeddings")
EMBEDDING_NORM = ("bert/embeddings/LayerNorm/gamma", "bert/embeddings/LayerNorm/beta")
DTYPES = ("fp32", "bf16", "int8")
_LARGEST = 127


@dataclasses.dataclass(frozen=True)
class Leaf:
    """A weight of a stage: the variable that it is read from, and the type that it is read in."""

    name: str
    dtype: tf.DType


@dataclasses.dataclass(frozen=True)
class Read:
    """A stage of a model without variables, and its weights: as of `Stage.weights`, with a Leaf for each
    tensor."""

    stage: Stage
    leaves: Any


def stages_of(bert: BertConfig, head: str, classes: int, dtype: str) -> list[Read]:
    """Returns the stages of a model that the outputs of its head need; no weight gets a value.

    Args:
      bert, head, classes: as of `source.make_network`.
      dtype: one of DTYPES.
    """
    with tf.Graph().as_default():
        model = make_network(bert, head, classes, dtype)
        names = {variable.handle.op.name: name_of(variable) for variable in model.variables}
        used = [stage for stage in model.stages() if stage.name not in UNUSED_STAGES.get(head, ())]

        def leaf(tensor: tf.Tensor | None) -> Leaf | None:
            if tensor is None:
                return None
            operation = tensor.op
            while operation.type != "VarHandleOp":  # casts, and the reading
                operation = operation.inputs[0].op
            return Leaf(names[operation.name], tensor.dtype)

        return [Read(stage, tf.nest.map_structure(leaf, stage.weights())) for stage in used]


def leaves_of(reads: list[Read]) -> dict[str, tf.DType]:
    """Returns {name of a variable: the type that it is read in}, of what is read in several, float32."""
    found: dict[str, tf.DType] = {}
    for each in reads:
        for leaf in filter(None, tf.nest.flatten(each.leaves)):
            found[leaf.name] = leaf.dtype if found.get(leaf.name) in (None, leaf.dtype) else tf.float32
    return found


class Weights(tf.Module):
    """Variables by their names."""

    def __init__(self, leaves: dict[str, tf.DType], read: Callable[[str], np.ndarray], dtype: str):
        """Reads the weights, each once.

        Args:
          leaves: {name: the type that it is read in}.
          read: name -> float32 values. Raises ConfigError where there are none.
          dtype: one of DTYPES.
        """
        super().__init__(name="weights")
        self.compute_dtype = tf.bfloat16 if dtype == "bf16" else tf.float32
        self.variables_by_name: dict[str, tf.Variable] = {}
        for name, kind in leaves.items():
            values = read(name)
            if dtype == "int8" and (name == WORDS or name.endswith("/kernel")):
                whole, scale = quantise(values, axis=1 if name == WORDS else 0)
                self._add(name, whole, tf.int8)
                self._add(name + SCALE, scale, tf.float32)
            else:
                is_short = dtype == "bf16" and (kind == tf.bfloat16 or name in TABLES)
                self._add(name, values, tf.bfloat16 if is_short else tf.float32)

    def _add(self, name: str, values: np.ndarray, dtype: tf.DType) -> None:
        value = tf.cast(values, dtype)
        self.variables_by_name[name] = tf.Variable(value, trainable=False, name=name, dtype=dtype)

    def tensor(self, leaf: Leaf | None) -> tf.Tensor | None:
        """Returns a weight in the type of a leaf."""
        if leaf is None:
            return None
        value = tf.convert_to_tensor(self.variables_by_name[leaf.name])
        if value.dtype != tf.int8:
            return tf.cast(value, leaf.dtype)
        scale = tf.convert_to_tensor(self.variables_by_name[leaf.name + SCALE])
        return tf.cast(tf.cast(value, tf.float32) * scale, leaf.dtype)

    def rows(self, name: str, numbers: tf.Tensor) -> tf.Tensor:
        """Returns rows of a table, float32 [.., D]."""
        rows = tf.cast(tf.gather(self.variables_by_name[name], numbers), tf.float32)
        scale = self.variables_by_name.get(name + SCALE)
        return rows if scale is None else rows * tf.gather(scale, numbers)


def quantise(values: np.ndarray, axis: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns int8 values and the float32 scale that they are multiplied by, the same along an axis."""
    scale = np.abs(values).max(axis=axis, keepdims=True).astype(np.float32) / np.float32(_LARGEST)
    scale = np.where(scale > 0, scale, np.float32(1))
    return np.rint(values / scale).astype(np.int8), scale


# -----------------------------------------------------------------------------------------------------------
# Network
#
# Shapes: R rows of L places, B of them at once.


Features = dict[str, tf.Tensor]
_BY_PLACE = ("input_ids", "input_mask", "segment_ids")


class Network:
    """The stages of a model with a head."""

    def __init__(self, bert: BertConfig, weights: Weights, reads: list[Read]):
        """Takes the stages, the first of which are the embeddings."""
        self._bert, self._weights = bert, weights
        self._stages = reads[1:]

    def loaded(self) -> Callable[[Features], stages.Tensors]:
        """Returns a function of batches. The weights are read, and where they are integers multiplied out,
        once, here and not for each batch."""
        tensor = self._weights.tensor
        read = [(each.stage, tf.nest.map_structure(tensor, each.leaves)) for each in self._stages]

        def run(features: Features) -> stages.Tensors:
            carried = self._embedded(features)
            for stage, weights in read:
                stages.run_one(stage, carried, features, None, weights)
            return carried

        return run

    def _embedded(self, features: Features) -> stages.Tensors:
        """Returns the outputs of the first stage. Rows of the tables are read, whatever their type."""
        ids_BL = features["input_ids"]
        words, types, positions = TABLES
        x_BLD = self._weights.rows(words, ids_BL) + self._weights.rows(types, features["segment_ids"])
        x_BLD += self._weights.rows(positions, tf.range(tf.shape(ids_BL)[1]))
        gamma, beta = (self._weights.variables_by_name[name] for name in EMBEDDING_NORM)
        norm = layers.Norm(tf.convert_to_tensor(gamma), tf.convert_to_tensor(beta))
        x_BLD = layers.layer_norm(x_BLD, norm, self._bert.layer_norm_eps)
        seen = attention.seen(features, self._bert.num_attention_heads, by_sequence=False)
        return {"sequence": tf.cast(x_BLD, self._weights.compute_dtype), "seen": seen}


def in_batches(
    compute: Callable[[Features], Sequence[tf.Tensor]], features: Features, like: Sequence[tf.Tensor]
) -> list[tf.Tensor]:
    """Computes rows of all lengths, a few at a time: memory does not grow with their number.

    Args:
      compute: features of a batch, as long as its longest row -> tensors of B rows.
      features: int32 [R, ..]; `input_mask` has 1 for the tokens, from the first place on.
      like: tensors of no row, of the shapes and types that `compute` returns.

    Returns:
      The tensors of all rows, in their order.
    """
    lengths_R = tf.reduce_sum(features["input_mask"], axis=1)
    order_R = tf.argsort(-lengths_R, stable=True)

    def body(first: tf.Tensor, *done: tf.Tensor) -> tuple[tf.Tensor, ...]:
        width = lengths_R[order_R[first]]
        rows = order_R[first : first + tf.maximum(TOKENS // width, 1)]
        batch = {name: tf.gather(values, rows) for name, values in features.items()}
        batch |= {name: batch[name][:, :width] for name in _BY_PLACE}
        made = zip(done, compute(batch))
        return first + tf.size(rows), *(tf.concat([before, more], 0) for before, more in made)

    shapes = tf.TensorShape([]), *(tf.TensorShape([None, *each.shape[1:]]) for each in like)
    _, *found = tf.while_loop(
        lambda first, *_: first < tf.size(order_R), body, (0, *like), shapes, parallel_iterations=1
    )
    back_R = tf.math.invert_permutation(order_R)
    return [tf.gather(values, back_R) for values in found]
