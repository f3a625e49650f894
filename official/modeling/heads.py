"""Pooler and output layers over the encoder. Logits are float32."""

from __future__ import annotations

from typing import NamedTuple

import tensorflow as tf

from official.config import BertConfig
from official.modeling import layers
from official.modeling.layers import ACTIVATIONS, normal_initializer, sizes


class MaskedLMWeights(NamedTuple):
    """The weights of the masked-LM head: a dense layer with LayerNorm, then the word embedding table.

    Attributes:
      dense: [D, D], in the compute dtype; None for a head without the layer and its LayerNorm.
      norm: float32.
      table: the word embeddings [V, D], in the compute dtype.
      output_bias: float32 [V]; None for a head without.
    """

    dense: layers.Affine | None
    norm: layers.Norm | None
    table: tf.Tensor
    output_bias: tf.Tensor | None


class LinearWeights(NamedTuple):
    """The weights of `linear`: output_weights [C, D] and output_bias [C], float32."""

    output_weights: tf.Tensor
    output_bias: tf.Tensor


class MaskedLanguageModelHead(tf.keras.layers.Layer):
    """The variables of `masked_lm` but the table, which the embeddings have."""

    def __init__(self, config: BertConfig):
        super().__init__(name="predictions")
        with tf.name_scope("cls/predictions"):
            self.dense = self.layer_norm = None
            if config.use_cls_layer:
                with tf.name_scope("transform"):
                    hidden = config.hidden_size
                    self.dense = layers.Dense("dense", hidden, hidden, config.initializer_range)
                    self.layer_norm = layers.LayerNorm(hidden)
            self.output_bias = None
            if config.use_prediction_bias:  # not cast with the kernels: it is added to float32 logits
                self.output_bias = self.add_weight(
                    name="output_bias",
                    shape=(config.vocab_size,),
                    initializer="zeros",
                    experimental_autocast=False,
                )

    def tensors(self, word_embeddings_VD: tf.Variable) -> MaskedLMWeights:
        return MaskedLMWeights(
            None if self.dense is None else self.dense.tensors(),
            None if self.layer_norm is None else self.layer_norm.tensors(),
            layers.read(word_embeddings_VD, self.compute_dtype, is_shared=True),
            None if self.output_bias is None else tf.convert_to_tensor(self.output_bias),
        )


class LinearHead(tf.keras.layers.Layer):
    """The variables of `linear`, under the scope of the caller, as Google's heads have them."""

    def __init__(self, name: str, config: BertConfig, outputs: int):
        super().__init__(name=name, dtype="float32")
        self.output_weights = self.add_weight(
            name="output_weights",
            shape=(outputs, config.hidden_size),
            initializer=normal_initializer(config.initializer_range),
        )
        self.output_bias = self.add_weight(name="output_bias", shape=(outputs,), initializer="zeros")

    def tensors(self) -> LinearWeights:
        return LinearWeights(
            tf.convert_to_tensor(self.output_weights), tf.convert_to_tensor(self.output_bias)
        )


def predicted_first(features: dict[str, tf.Tensor]) -> int:
    """Returns how many slots at the start of each row are those of predicted tokens, with [CLS] behind them:
    0 but for a batch that has `masked_lm_ids` [B, P] and does not say in `masked_lm_positions` where they
    are."""
    if "masked_lm_positions" in features or "masked_lm_ids" not in features:
        return 0
    return features["masked_lm_ids"].shape[1]


def pool(weights: layers.Affine, first: tf.Tensor) -> tf.Tensor:
    """Makes a vector of each sequence, float32 [..., D], from that of its first token, [CLS], in the compute
    dtype; `weights` are those of the pooler, [D, D] and [D]."""
    return tf.tanh(tf.cast(layers.dense(first, weights), tf.float32))


def masked_lm(
    weights: MaskedLMWeights, sequence_BLD: tf.Tensor, positions_BP: tf.Tensor | int, config: BertConfig
) -> tf.Tensor:
    """Predicts the tokens at `positions_BP` (int32, in [0, L)), or in the first so many places of a row (a
    number, or int32 []).

    Returns:
      Logits float32 [B, P, V].
    """
    if isinstance(positions_BP, int) or not len(positions_BP.shape):
        x_BPD = sequence_BLD[:, :positions_BP]
    else:
        x_BPD = layers.gather_positions(sequence_BLD, positions_BP)
    if weights.dense is not None and weights.norm is not None:
        x_BPD = layers.dense(x_BPD, weights.dense)
        x_BPD = tf.cast(ACTIVATIONS[config.hidden_act].function(x_BPD), tf.float32)
        x_BPD = layers.layer_norm(x_BPD, weights.norm, config.layer_norm_eps)
    batch, predictions, hidden = sizes(x_BPD)
    x_ND = tf.cast(tf.reshape(x_BPD, [-1, hidden]), sequence_BLD.dtype)
    # The product is in the compute dtype; bias, log-softmax and loss are float32.
    logits_NV = tf.cast(tf.matmul(x_ND, weights.table, transpose_b=True), tf.float32)
    if weights.output_bias is not None:
        logits_NV += weights.output_bias
    return tf.reshape(logits_NV, [batch, predictions, weights.table.shape[0]])


def linear(weights: LinearWeights, x: tf.Tensor) -> tf.Tensor:
    """Returns logits float32 [..., C] of x [..., D]: x @ output_weights^T + output_bias, in full float32."""
    product = layers.exact_matmul_2d(tf.cast(x, tf.float32), tf.transpose(weights.output_weights))
    return product + weights.output_bias
