"""Sum of word, position and segment embeddings, normalised."""

from __future__ import annotations

from typing import NamedTuple

import tensorflow as tf

from official.config import BertConfig
from official.modeling import layers
from official.modeling.dropout import dropout
from official.modeling.initializers import normal_initializer
from official.modeling.shapes import sizes


class Weights(NamedTuple):
    """The tables [rows, D] and the LayerNorm over their sum, float32."""

    words: tf.Tensor
    types: tf.Tensor
    positions: tf.Tensor
    norm: layers.Norm


class Embeddings(tf.keras.layers.Layer):
    """The variables of the embeddings; `run` is what they do."""

    def __init__(self, config: BertConfig):
        super().__init__(name="embeddings", dtype="float32")
        tables = {
            "word_embeddings": config.vocab_size,
            "token_type_embeddings": config.type_vocab_size,
            "position_embeddings": config.max_position_embeddings,
        }
        with tf.name_scope("embeddings"):
            for name, rows in tables.items():
                table = self.add_weight(
                    name=name,
                    shape=(rows, config.hidden_size),
                    initializer=normal_initializer(config.initializer_range),
                )
                setattr(self, name, table)
            self.layer_norm = layers.LayerNorm(config.hidden_size)

    def tensors(self) -> Weights:
        tables = (self.word_embeddings, self.token_type_embeddings, self.position_embeddings)
        words, types, positions = map(tf.convert_to_tensor, tables)
        return Weights(words, types, positions, self.layer_norm.tensors())


def run(
    weights: Weights, features: dict[str, tf.Tensor], seed: tf.Tensor | None, config: BertConfig
) -> tf.Tensor:
    """Token ids to vectors. In float32: it is a small share of the time, and the result feeds every residual.

    Args:
      weights: of the embeddings.
      features: `input_ids` and `segment_ids` int32 [B, L]; `position_ids` int32 [B, L], of each token in its
        own sequence, in [0, max_position_embeddings). Without the latter a token's position is its place in
        the row.
      seed: of dropout.
      config: of the model.

    Returns:
      float32 [B, L, D].
    """
    input_ids_BL = features["input_ids"]
    words_BLD = layers.gather_rows(weights.words, input_ids_BL)
    # Two rows: a product with a one-hot matrix beats a gather whose gradient sums into two places.
    is_type_BLT = tf.one_hot(features["segment_ids"], config.type_vocab_size)
    types_BLD = layers.exact_matmul_2d(is_type_BLT, weights.types)
    if "position_ids" in features:
        positions = layers.gather_rows(weights.positions, features["position_ids"])  # [B, L, D]
    else:
        positions = weights.positions[: sizes(input_ids_BL)[1]]  # [L, D]
    x_BLD = layers.layer_norm(words_BLD + types_BLD + positions, weights.norm, config.layer_norm_eps)
    return dropout(x_BLD, config.hidden_dropout_prob, seed)
