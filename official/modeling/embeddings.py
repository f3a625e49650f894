"""Sum of word, position and segment embeddings, normalised."""

import tensorflow as tf

from official.config import BertConfig
from official.modeling import layers


class Embeddings(tf.keras.layers.Layer):
    """Token ids to vectors. Runs in float32: it is a small share of the time, and its output feeds every
    residual."""

    def __init__(self, config: BertConfig):
        super().__init__(name="embeddings", dtype="float32")
        self._dropout_rate = config.hidden_dropout_prob
        self._types = config.type_vocab_size
        tables = {
            "word_embeddings": config.vocab_size,
            "token_type_embeddings": config.type_vocab_size,
            "position_embeddings": config.max_position_embeddings,
        }
        with tf.name_scope("embeddings"):
            for name, rows in tables.items():
                setattr(
                    self,
                    name,
                    self.add_weight(
                        name=name,
                        shape=(rows, config.hidden_size),
                        initializer=layers.normal_initializer(config.initializer_range),
                    ),
                )
            self.layer_norm = layers.LayerNorm(config.hidden_size, config.layer_norm_eps)

    def call(self, input_ids_BL, segment_ids_BL, dropout_seed=None):
        """Returns float32 [B, L, D]."""
        words_BLD = layers.gather_rows(tf.convert_to_tensor(self.word_embeddings), input_ids_BL)
        # Two rows: a product with a one-hot matrix beats a gather whose gradient sums into two places.
        types_BLD = layers.matmul_2d(tf.one_hot(segment_ids_BL, self._types), self.token_type_embeddings)
        positions_LD = self.position_embeddings[: layers.sizes(input_ids_BL)[1]]
        x_BLD = self.layer_norm(words_BLD + types_BLD + positions_LD)
        return layers.dropout(x_BLD, self._dropout_rate, dropout_seed)
