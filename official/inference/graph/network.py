"""A model's network in an export: the stages of `official.modeling`, over weights that all methods share.

Shapes: R rows of L places, B of them at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import tensorflow as tf

from official.config import BertConfig
from official.inference.batching import TOKENS
from official.inference.graph import weights as weights_lib
from official.inference.graph.weights import Weights
from official.modeling import attention, layers, stages

Features = dict[str, tf.Tensor]
Compute = Callable[[Features], Sequence[tf.Tensor]]
_BY_PLACE = ("input_ids", "input_mask", "segment_ids")


class Network:
    """The stages of a model with a head."""

    def __init__(self, bert: BertConfig, weights: Weights, reads: list[weights_lib.Read]):
        """Takes the stages, the first of which are the embeddings."""
        self._bert, self._weights = bert, weights
        self._stages = reads[1:]

    def loaded(self) -> Callable[[Features], stages.Tensors]:
        """Returns a function of batches. The weights are read, and where they are integers multiplied out,
        once, here and not for each batch."""
        read = [(each.stage, self._weights.of(each)) for each in self._stages]

        def run(features: Features) -> stages.Tensors:
            carried = self._embedded(features)
            for stage, weights in read:
                stages.run_one(stage, carried, features, None, weights)
            return carried

        return run

    def _embedded(self, features: Features) -> stages.Tensors:
        """Returns the outputs of the first stage. Rows of the tables are read, whatever their type."""
        ids_BL = features["input_ids"]
        words, types, positions = weights_lib.TABLES
        x_BLD = self._weights.rows(words, ids_BL) + self._weights.rows(types, features["segment_ids"])
        x_BLD += self._weights.rows(positions, tf.range(tf.shape(ids_BL)[1]))
        gamma, beta = (self._weights.variables_by_name[name] for name in weights_lib.EMBEDDING_NORM)
        norm = layers.Norm(tf.convert_to_tensor(gamma), tf.convert_to_tensor(beta))
        x_BLD = layers.layer_norm(x_BLD, norm, self._bert.layer_norm_eps)
        seen = attention.seen(features, self._bert.num_attention_heads, by_sequence=False)
        return {"sequence": tf.cast(x_BLD, self._weights.compute_dtype), "seen": seen}


def in_batches(compute: Compute, features: Features, like: Sequence[tf.Tensor]) -> list[tf.Tensor]:
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

    _, *found = tf.while_loop(
        lambda first, *_: first < tf.size(order_R),
        body,
        (0, *like),
        shape_invariants=(tf.TensorShape([]), *(tf.TensorShape([None, *each.shape[1:]]) for each in like)),
        parallel_iterations=1,
    )
    back_R = tf.math.invert_permutation(order_R)
    return [tf.gather(values, back_R) for values in found]
