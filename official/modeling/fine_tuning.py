"""Models for fine-tuning: the encoder with a head for spans (SQuAD) or for classes and scores (GLUE)."""

import tensorflow as tf

from official.config import BertConfig
from official.modeling import layers
from official.modeling.encoder import BertEncoder
from official.modeling.heads import LinearHead


class SpanModel(tf.keras.Model):
    """BERT that tells where an answer begins and ends.

    Its pooler takes no part, is not trained, and is kept in the checkpoint as it was.
    Variables of the head: cls/squad/output_weights [2, D], cls/squad/output_bias [2]; names of Google's
      run_squad.py.
    """

    def __init__(self, config: BertConfig, fused: bool = False, shared: bool = False):
        super().__init__(name="bert_span_model")
        self.encoder = BertEncoder(config, fused, shared)
        self.encoder.pooler.trainable = False
        with tf.name_scope("cls/squad"):
            self.head = LinearHead("squad", config, outputs=2)

    def call(self, features, dropout_seed=None):
        """Scores every token as the first and as the last of the answer.

        Args:
          features: {input_ids, input_mask, segment_ids: int32 [B, L]}; more are ignored.
          dropout_seed: int32 [N], or None to switch dropout off.

        Returns:
          (start logits [B, L], end logits [B, L]), float32.
        """
        sequence_BLD, _ = self.encoder(
            features["input_ids"], features["input_mask"], features["segment_ids"], dropout_seed=dropout_seed
        )
        logits_BL2 = self.head(sequence_BLD)
        return logits_BL2[..., 0], logits_BL2[..., 1]


class SequenceModel(tf.keras.Model):
    """BERT that gives a sequence, or a pair of them, a class or a score.

    Variables of the head: output_weights [C, D], output_bias [C]; names of Google's run_classifier.py.
    """

    def __init__(self, config: BertConfig, outputs: int, fused: bool = False, shared: bool = False):
        """Makes a model of `outputs` classes, or of one score."""
        super().__init__(name="bert_sequence_model")
        self._dropout_rate = config.hidden_dropout_prob
        self.encoder = BertEncoder(config, fused, shared)
        self.head = LinearHead("classifier", config, outputs)

    def call(self, features, dropout_seed=None):
        """Returns logits float32 [B, C]; arguments as in `SpanModel.call`."""
        encoder_seed, head_seed = layers.split_seed(dropout_seed, 2)
        _, pooled_BD = self.encoder(
            features["input_ids"], features["input_mask"], features["segment_ids"], dropout_seed=encoder_seed
        )
        return self.head(layers.dropout(pooled_BD, self._dropout_rate, head_seed))
