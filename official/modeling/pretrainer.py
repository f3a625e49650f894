"""The pre-training model: encoder, masked-LM head, next-sentence head."""

import tensorflow as tf

from official.config import BertConfig
from official.modeling.encoder import BertEncoder
from official.modeling.heads import LinearHead, MaskedLanguageModelHead


class BertPretrainer(tf.keras.Model):
    """BERT with both pre-training heads: 336,226,108 parameters in 398 variables for BERT-large."""

    def __init__(self, config: BertConfig, fused: bool = False, shared: bool = False):
        super().__init__(name="bert_pretrainer")
        self.encoder = BertEncoder(config, fused, shared)
        self.masked_lm = MaskedLanguageModelHead(config)
        with tf.name_scope(
            "cls/seq_relationship"
        ):  # class 0: the second segment follows the first; class 1: it is a random one
            self.next_sentence = LinearHead("seq_relationship", config, outputs=2)

    def call(self, features, dropout_seed=None):
        """Predicts masked tokens and the relation of the two segments.

        Args:
          features: {input_ids, input_mask, segment_ids: int32 [B, L], masked_lm_positions: int32 [B, P]};
            more are ignored.
          dropout_seed: int32 [N], or None to switch dropout off.

        Returns:
          (masked-LM logits [B, P, V], next-sentence logits [B, 2]), float32.
        """
        sequence_BLD, pooled_BD = self.encoder(
            features["input_ids"], features["input_mask"], features["segment_ids"], dropout_seed=dropout_seed
        )
        logits_BPV = self.masked_lm(
            sequence_BLD, features["masked_lm_positions"], self.encoder.word_embeddings
        )
        return logits_BPV, self.next_sentence(pooled_BD)
