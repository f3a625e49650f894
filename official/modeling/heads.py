"""Output layers over the encoder. Logits are float32."""

import tensorflow as tf

from official.config import BertConfig
from official.modeling import layers


class MaskedLanguageModelHead(tf.keras.layers.Layer):
    """Predicts the tokens at given positions; the output matrix is the word embedding table."""

    def __init__(self, config: BertConfig):
        super().__init__(name="predictions")
        self._activation = layers.ACTIVATIONS[config.hidden_act]
        with tf.name_scope("cls/predictions"):
            with tf.name_scope("transform"):
                self.dense = layers.Dense(
                    "dense", config.hidden_size, config.hidden_size, config.initializer_range
                )
                self.layer_norm = layers.LayerNorm(config.hidden_size, config.layer_norm_eps)
            # Not cast with the kernels: it is added to float32 logits.
            self.output_bias = self.add_weight(
                name="output_bias",
                shape=(config.vocab_size,),
                initializer="zeros",
                experimental_autocast=False,
            )

    def call(self, sequence_BLD, positions_BP, word_embeddings_VD):
        """Returns logits float32 [B, P, V] for the tokens at `positions_BP` (int32, in [0, L))."""
        batch, length, hidden = tf.shape(sequence_BLD)[0], sequence_BLD.shape[1], sequence_BLD.shape[2]
        flat_positions_BP = positions_BP + tf.range(batch)[:, None] * length
        x_BPD = layers.gather_rows(tf.reshape(sequence_BLD, [batch * length, hidden]), flat_positions_BP)
        x_BPD = self.layer_norm(tf.cast(self._activation(self.dense(x_BPD)), tf.float32))
        table_VD = tf.cast(word_embeddings_VD, self.compute_dtype)
        x_ND = tf.cast(tf.reshape(x_BPD, [-1, hidden]), self.compute_dtype)
        # The product is in the compute dtype; bias, log-softmax and loss are float32.
        logits_NV = tf.cast(tf.matmul(x_ND, table_VD, transpose_b=True), tf.float32) + self.output_bias
        return tf.reshape(logits_NV, [batch, positions_BP.shape[1], table_VD.shape[0]])


class LinearHead(tf.keras.layers.Layer):
    """x @ output_weights^T + output_bias over the last axis, in float32. Variables under the scope of the
    caller, as Google's heads have them."""

    def __init__(self, name: str, config: BertConfig, outputs: int):
        super().__init__(name=name, dtype="float32")
        self.output_weights = self.add_weight(
            name="output_weights",
            shape=(outputs, config.hidden_size),
            initializer=layers.normal_initializer(config.initializer_range),
        )
        self.output_bias = self.add_weight(name="output_bias", shape=(outputs,), initializer="zeros")

    def call(self, x):
        """Returns logits float32 [..., outputs] of x [..., D]."""
        return layers.matmul_2d(x, tf.transpose(self.output_weights)) + self.output_bias
