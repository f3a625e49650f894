"""Models for fine-tuning: the encoder with a head for spans (SQuAD) or for classes and scores (GLUE)."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from official.config import BertConfig
from official.modeling import heads, read_positions
from official.modeling.dropout import dropout, split_seed
from official.modeling.encoder import BertEncoder
from official.modeling.stages import Stage, Tensors


class SpanModel(tf.keras.Model):
    """BERT that tells where an answer begins and ends.

    Its pooler takes no part, is not trained, and is kept in the checkpoint as it was.
    Variables of the head: cls/squad/output_weights [2, D], cls/squad/output_bias [2]; names of Google's
    run_squad.py.
    """

    def __init__(self, config: BertConfig, *options: Any, **named_options: Any):
        """Makes a model; the options are those of `BertEncoder`."""
        super().__init__(name="bert_span_model")
        self.encoder = BertEncoder(config, *options, **named_options)
        self.encoder.pooler.trainable = False
        with tf.name_scope("cls/squad"):
            self.head = heads.LinearHead("squad", config, outputs=2)

    def stages(self) -> list[Stage]:
        """Returns the encoder's stages without the pooler, then `span`."""

        def run(weights, carried, features, seed):
            logits_BL2 = heads.linear(weights, carried["sequence"])
            return {"start_logits": logits_BL2[..., 0], "end_logits": logits_BL2[..., 1]}

        gives = ("start_logits", "end_logits")
        span = Stage("span", self.head.variables, self.head.tensors, run, ("sequence",), gives)
        return [*self.encoder.stages()[:-1], span]

    def seeds(self, dropout_seed: tf.Tensor | None) -> list:
        return [*self.encoder.seeds(dropout_seed)[:-1], None]

    def call(self, features, dropout_seed=None):
        """Scores every token as the first and as the last of the answer.

        Args:
          features: {input_ids, input_mask, segment_ids: int32 [B, L]}, and what else `BertEncoder.stages`
            reads; more are ignored.
          dropout_seed: int32 [N], or None to switch dropout off.

        Returns:
          (start logits [B, L], end logits [B, L]), float32.
        """
        return self.outputs_of(self.encoder.run(self, features, dropout_seed))

    def outputs_of(self, carried: Tensors) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the outputs of `call`, picked from the tensors that the stages gave."""
        return carried["start_logits"], carried["end_logits"]


class SequenceModel(tf.keras.Model):
    """BERT that gives a sequence, or a pair of them, a class or a score.

    Variables of the head: output_weights [C, D], output_bias [C]; names of Google's run_classifier.py.
    """

    def __init__(self, config: BertConfig, outputs: int, *options: Any, **named_options: Any):
        """Makes a model of `outputs` classes, or of one score; the options are those of `BertEncoder`."""
        super().__init__(name="bert_sequence_model")
        self._dropout_rate = config.hidden_dropout_prob
        self.encoder = BertEncoder(config, *options, **named_options)
        self.head = heads.LinearHead("classifier", config, outputs)

    def stages(self) -> list[Stage]:
        """Returns the encoder's stages, then `classifier`."""

        def run(weights, carried, features, seed):
            pooled = dropout(carried["pooled"], self._dropout_rate, seed)
            return {"logits": heads.linear(weights, pooled)}

        head = self.head
        classifier = Stage("classifier", head.variables, head.tensors, run, ("pooled",), ("logits",))
        return [*self.encoder.stages(read_positions.of_sequences), classifier]

    def seeds(self, dropout_seed: tf.Tensor | None) -> list:
        encoder_seed, head_seed = split_seed(dropout_seed, 2)
        return [*self.encoder.seeds(encoder_seed), head_seed]

    def call(self, features, dropout_seed=None):
        """Returns logits float32 [B, C], or [B, S, C] where `cls_positions` tells where S sequences a row
        begin; arguments as in `SpanModel.call`."""
        return self.outputs_of(self.encoder.run(self, features, dropout_seed))

    def outputs_of(self, carried: Tensors) -> tf.Tensor:
        """Returns the outputs of `call`, picked from the tensors that the stages gave."""
        return carried["logits"]
