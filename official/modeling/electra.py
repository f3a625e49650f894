"""Pre-training of ELECTRA: a generator fills in masked tokens, and a discriminator predicts which tokens were
replaced.

Source: Clark et al. 2020, "ELECTRA: Pre-training Text Encoders as Discriminators Rather Than Generators"
(arXiv 2003.10555), and google-research/electra.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import tensorflow as tf

from official.config import BertConfig
from official.config.model import generator_of
from official.modeling import layers
from official.modeling.layers import ACTIVATIONS, sizes
from official.modeling.models import (
    BertEncoder,
    BertModel,
    MaskedLanguageModelHead,
    masked_lm_stage,
    of_masked_lm,
    stage_of,
)
from official.modeling.stages import Stage, Tensors


class DiscriminatorWeights(NamedTuple):
    """The weights of the discriminator's head: a dense layer [D, D], in the compute dtype, and the logit's
    kernel [D, 1] and bias [1], float32."""

    dense: layers.Affine
    kernel: tf.Tensor
    bias: tf.Tensor


class DiscriminatorHead(tf.keras.layers.Layer):
    """The variables of the discriminator's head."""

    def __init__(self, config: BertConfig):
        super().__init__(name="discriminator_predictions", dtype="float32")
        size, stddev = config.hidden_size, config.initializer_range
        with tf.name_scope("discriminator_predictions"):
            self.dense = layers.Dense("dense", size, size, stddev)
            with tf.name_scope("dense_prediction"):
                normal = layers.normal_initializer(stddev)
                self.kernel = self.add_weight(name="kernel", shape=(size, 1), initializer=normal)
                self.bias = self.add_weight(name="bias", shape=(1,), initializer="zeros")

    def tensors(self) -> DiscriminatorWeights:
        parts = tf.convert_to_tensor(self.kernel), tf.convert_to_tensor(self.bias)
        return DiscriminatorWeights(self.dense.tensors(), *parts)


def replaced(weights: DiscriminatorWeights, sequence_BLD: tf.Tensor, config: BertConfig) -> tf.Tensor:
    """Returns a logit per token, float32 [B, L], above 0 if it was more likely replaced by the generator than
    not."""
    x_BLD = ACTIVATIONS[config.hidden_act].function(layers.dense(sequence_BLD, weights.dense))
    logits_BL1 = layers.exact_matmul_2d(tf.cast(x_BLD, tf.float32), weights.kernel) + weights.bias
    return logits_BL1[..., 0]


def uniform(features: Tensors, positions_BP: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
    """Returns a number in [0, 1) for each predicted token, float32 [B, P]: a hash of the seed, int32 [N], the
    tokens of its sequence, and its position there.

    A sequence has the same numbers in any row, alone or packed, with or without padding, and in any micro
    batch or replica.
    """
    ids_BL = features["input_ids"]
    batch, length = sizes(ids_BL)
    everywhere_BL = tf.zeros_like(ids_BL)
    places_BL = features.get("position_ids", tf.range(length) + everywhere_BL)
    numbers_BL = features.get("sequence_ids", features["input_mask"])  # 0: padding
    counted = sizes(features["cls_positions"])[1] if "cls_positions" in features else 1
    segments_BL = tf.range(batch)[:, None] * (counted + 1) + numbers_BL
    words_BL = tf.bitcast(layers.hashed(seed, ids_BL, places_BL), tf.int32)
    flat = tf.reshape(words_BL, [-1]), tf.reshape(segments_BL, [-1])
    sums = tf.math.unsorted_segment_sum(*flat, batch * (counted + 1))
    sums_BP = tf.gather(sums, tf.gather(segments_BL, positions_BP, batch_dims=1))
    places_BP = tf.gather(places_BL, positions_BP, batch_dims=1)
    words_BP = tf.bitwise.right_shift(layers.hashed(seed, sums_BP, places_BP), tf.constant(8, tf.uint32))
    return tf.cast(words_BP, tf.float32) * 2.0**-24


def sampled(logits_BPV: tf.Tensor, numbers_BP: tf.Tensor) -> tf.Tensor:
    """Returns words, int32 [B, P], drawn with the probabilities softmax(logits) by uniform numbers in [0, 1):
    the first word whose cumulative probability is above the number. It has no gradient."""
    sums_BPV = tf.cumsum(tf.nn.softmax(tf.stop_gradient(logits_BPV)), axis=-1)
    is_below_BPV = sums_BPV <= numbers_BP[..., None] * sums_BPV[..., -1:]
    words_BP = tf.reduce_sum(tf.cast(is_below_BPV, tf.int32), axis=-1)
    return tf.minimum(words_BP, sizes(logits_BPV)[-1] - 1)


class ElectraPretrainer(BertModel):
    """ELECTRA's generator and discriminator: masked-LM logits [B, P, V] of the generator, the input ids of
    the discriminator, int32 [B, L], and its logits [B, L].

    The discriminator is `encoder`. The generator shares its embeddings: the tables and their LayerNorm. The
    inputs are those of `MaskedLMModel`. Sampling depends on the run's seed and the step, the first two of
    `dropout_seed`, and on the tokens, see `uniform`; without a seed only on the tokens.
    """

    GIVES = ("masked_lm_logits", "replaced_logits", "sampled_ids")

    def __init__(self, config: BertConfig, *options: Any, generator_share: float, **named_options: Any):
        """Makes both; `generator_share`: see `generator_of`; the options are those of `BertEncoder`."""
        super().__init__("electra_pretrainer", config, *options, **named_options)
        self._generator_config = own = generator_of(config, generator_share)
        with tf.name_scope("generator"):
            named_options["tables"] = self.encoder.embeddings
            self.generator = BertEncoder(own, *options, **named_options)
            self.masked_lm = MaskedLanguageModelHead(own)
        self.discriminator_head = DiscriminatorHead(config)

    @property
    def encoders(self) -> list[BertEncoder]:
        return [self.generator, self.encoder]

    def stages(self) -> list[Stage]:
        """Returns the generator's stages, `sampled`, those of the encoder without the pooler, and
        `replaced`."""
        masked = masked_lm_stage(self.generator, self.masked_lm, self._generator_config)
        generator = [*self.generator.stages(of_masked_lm)[:-1], masked]
        embeddings, *others = self.encoder.stages()[:-1]
        return [
            *(stage._replace(name=f"generator_{stage.name}") for stage in generator),
            self._sampled_stage(),
            _reading_samples(embeddings),
            *others,
            self._replaced_stage(),
        ]

    def seeds(self, dropout_seed: tf.Tensor | None) -> list:
        of_step, own_seeds = None, [None, None]
        if dropout_seed is not None:
            of_step, own_seeds = dropout_seed[:2], layers.split_seed(dropout_seed, 2)
        generator, encoder = (each.seeds(seed)[:-1] for each, seed in zip(self.encoders, own_seeds))
        return [*generator, None, of_step, *encoder, None]

    def _sampled_stage(self) -> Stage:
        def run(weights, carried, features, seed):
            positions_BP, logits_BPV = features.get("masked_lm_positions"), carried["masked_lm_logits"]
            if positions_BP is None:
                positions_BP = of_masked_lm(features).positions_BR
            numbers_BP = uniform(features, positions_BP, tf.zeros([2], tf.int32) if seed is None else seed)
            words_BP = sampled(logits_BPV, numbers_BP)
            is_put_BP = features.get("masked_lm_weights", tf.ones_like(numbers_BP)) > 0
            ids_BL = layers.put_at_positions(features["input_ids"], positions_BP, words_BP, is_put_BP)
            return {"sampled_ids": ids_BL}

        return stage_of("sampled", None, run, ("masked_lm_logits",), ("sampled_ids",))

    def _replaced_stage(self) -> Stage:
        def run(weights, carried, features, seed):
            return {"replaced_logits": replaced(weights, carried["sequence"], self._config)}

        return stage_of("replaced", self.discriminator_head, run, ("sequence",), ("replaced_logits",))


def _reading_samples(stage: Stage) -> Stage:
    """Returns the stage of the embeddings with the sampled ids as its input."""

    def run(weights, carried, features, seed):
        return stage.run(weights, carried, {**features, "input_ids": carried["sampled_ids"]}, seed)

    return stage._replace(run=run, takes=("sampled_ids",))
