"""Models: the encoder with the heads of pre-training, for spans, for tagged words, or for classes and
scores."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from official.config import BertConfig
from official.modeling import encoder
from official.modeling.encoder import BertEncoder
from official.modeling.layers import dropout, sizes, split_seed
from official.modeling.stages import Stage, Tensors

# -----------------------------------------------------------------------------------------------------------
# Pre-training


class BertPretrainer(tf.keras.Model):
    """BERT with both pre-training heads: 336,226,108 parameters in 398 variables for BERT-large."""

    def __init__(self, config: BertConfig, *options: Any, **named_options: Any):
        """Makes a model; the options are those of `BertEncoder`."""
        super().__init__(name="bert_pretrainer")
        self._config = config
        self.encoder = BertEncoder(config, *options, **named_options)
        self.masked_lm = encoder.MaskedLanguageModelHead(config)
        # Class 0: the second segment follows the first; class 1: it is a random one.
        with tf.name_scope("cls/seq_relationship"):
            self.next_sentence = encoder.LinearHead("seq_relationship", config, outputs=2)

    def stages(self) -> list[Stage]:
        """Returns the encoder's stages, then `masked_lm`, which shares the embeddings' table, and
        `next_sentence`."""
        return [
            *self.encoder.stages(encoder.of_pretraining),
            self._masked_lm_stage(),
            self._next_sentence_stage(),
        ]

    def seeds(self, dropout_seed: tf.Tensor | None) -> list:
        return [*self.encoder.seeds(dropout_seed), None, None]

    def call(self, features, dropout_seed=None):
        """Predicts masked tokens and the relation of the two segments.

        Args:
          features: {input_ids, input_mask, segment_ids: int32 [B, L], masked_lm_positions: int32 [B, P]}, and
            what else `BertEncoder.stages` reads; more are ignored. Without `masked_lm_positions`, see
            `varlen.predicted_first`.
          dropout_seed: int32 [N], or None to switch dropout off.

        Returns:
          (masked-LM logits [B, P, V], next-sentence logits [B, 2]), float32; the latter [B, S, 2] where
          `cls_positions` tells where S sequences a row begin. Without padding the former are [Q, V] where the
          batch has `masked_lm_weights`, see `varlen.run`.
        """
        return self.outputs_of(self.encoder.run(self, features, dropout_seed))

    def outputs_of(self, carried: Tensors) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the outputs of `call`, picked from the tensors that the stages gave."""
        return carried["masked_lm_logits"], carried["next_sentence_logits"]

    def _masked_lm_stage(self) -> Stage:
        head, table_VD = self.masked_lm, self.encoder.word_embeddings

        def run(weights, carried, features, seed):
            positions_BP = self.encoder.predicted(features)
            logits_BPV = encoder.masked_lm(weights, carried["sequence"], positions_BP, self._config)
            return {"masked_lm_logits": logits_BPV}

        return Stage(
            "masked_lm",
            [*head.variables, table_VD],
            lambda: head.tensors(table_VD),
            run,
            ("sequence",),
            ("masked_lm_logits",),
            {"table": table_VD},
        )

    def _next_sentence_stage(self) -> Stage:
        def run(weights, carried, features, seed):
            return {"next_sentence_logits": encoder.linear(weights, carried["pooled"])}

        head = self.next_sentence
        return Stage(
            "next_sentence", head.variables, head.tensors, run, ("pooled",), ("next_sentence_logits",)
        )


# -----------------------------------------------------------------------------------------------------------
# Fine-tuning


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
            self.head = encoder.LinearHead("squad", config, outputs=2)

    def stages(self) -> list[Stage]:
        """Returns the encoder's stages without the pooler, then `span`."""

        def run(weights, carried, features, seed):
            logits_BL2 = encoder.linear(weights, carried["sequence"])
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
        self.head = encoder.LinearHead("classifier", config, outputs)

    def stages(self) -> list[Stage]:
        """Returns the encoder's stages, then `classifier`."""

        def run(weights, carried, features, seed):
            pooled = dropout(carried["pooled"], self._dropout_rate, seed)
            return {"logits": encoder.linear(weights, pooled)}

        head = self.head
        classifier = Stage("classifier", head.variables, head.tensors, run, ("pooled",), ("logits",))
        return [*self.encoder.stages(encoder.of_sequences), classifier]

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


class ChoiceModel(SequenceModel):
    """BERT that scores the G sequences of an example, of which one is right. Its head is that of one
    score."""

    def __init__(self, config: BertConfig, *options: Any, **named_options: Any):
        """Makes a model; the options are those of `BertEncoder`."""
        super().__init__(config, 1, *options, **named_options)

    def call(self, features, dropout_seed=None):
        """Returns logits float32 [B, G] of features int32 [B, G, L]; arguments as in `SpanModel.call`."""
        batch, group, length = sizes(features["input_ids"])
        flat = {
            name: tf.reshape(features[name], [-1, length])
            for name in ("input_ids", "input_mask", "segment_ids")
        }
        return tf.reshape(super().call({**features, **flat}, dropout_seed), [batch, group])


class TagModel(tf.keras.Model):
    """BERT that gives every token a class.

    Its pooler takes no part, is not trained, and is kept in the checkpoint as it was.
    Variables of the head: output_weights [C, D], output_bias [C], as of `SequenceModel`.
    """

    def __init__(self, config: BertConfig, outputs: int, *options: Any, **named_options: Any):
        """Makes a model of `outputs` classes; the options are those of `BertEncoder`."""
        super().__init__(name="bert_tag_model")
        self._dropout_rate = config.hidden_dropout_prob
        self.encoder = BertEncoder(config, *options, **named_options)
        self.encoder.pooler.trainable = False
        self.head = encoder.LinearHead("classifier", config, outputs)

    def stages(self) -> list[Stage]:
        """Returns the encoder's stages without the pooler, then `tags`."""

        def run(weights, carried, features, seed):
            return {
                "tag_logits": encoder.linear(weights, dropout(carried["sequence"], self._dropout_rate, seed))
            }

        tags = Stage("tags", self.head.variables, self.head.tensors, run, ("sequence",), ("tag_logits",))
        return [*self.encoder.stages()[:-1], tags]

    def seeds(self, dropout_seed: tf.Tensor | None) -> list:
        encoder_seed, head_seed = split_seed(dropout_seed, 2)
        return [*self.encoder.seeds(encoder_seed)[:-1], head_seed]

    def call(self, features, dropout_seed=None):
        """Returns logits float32 [B, L, C]; arguments as in `SpanModel.call`."""
        return self.outputs_of(self.encoder.run(self, features, dropout_seed))

    def outputs_of(self, carried: Tensors) -> tf.Tensor:
        """Returns the outputs of `call`, picked from the tensors that the stages gave."""
        return carried["tag_logits"]
