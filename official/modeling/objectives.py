"""Losses and accuracies of a model's outputs and a batch: {metric: (weighted sum, weight)}, float32."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import tensorflow as tf

from official.modeling import layers, operations, varlen

# -----------------------------------------------------------------------------------------------------------
# Losses
#
# Losses are (sum, weight) pairs, divided only in `mean_metrics`: so replicas, micro batches and a ragged last
# batch do not matter.


def cross_entropy(
    logits: tf.Tensor, labels: tf.Tensor, weights: tf.Tensor, kernels: str = "plain"
) -> tf.Tensor:
    """Returns sum(weights * -log softmax(logits)[labels]).

    Args:
      logits: float32 [..., C].
      labels: int32 [...], in [0, C).
      weights: float32 [...].
      kernels: implementation of the operations, see `operations.choose`. All but the plain ones take fewer
        passes over the logits, which matters if C is the vocabulary size.
    """
    return tf.reduce_sum(operations.choose(kernels).cross_entropy(logits, labels) * weights)


def correct(logits: tf.Tensor, labels: tf.Tensor, weights: tf.Tensor) -> tf.Tensor:
    """Returns the summed weight of the correct predictions; arguments as in `cross_entropy`."""
    hits = tf.equal(tf.argmax(logits, axis=-1, output_type=labels.dtype), labels)
    return tf.reduce_sum(tf.cast(hits, tf.float32) * weights)


# -----------------------------------------------------------------------------------------------------------
# Logits of spans
#
# Shapes: B rows, L tokens per row, S sequences per row. Packed rows have
# `cls_positions` int32 [B, S], the starts of their sequences, and `sequence_ids` int32 [B, L], from 1, with 0
# for padding.


def of_sequences(logits_BL: tf.Tensor, features: dict[str, tf.Tensor]) -> tf.Tensor:
    """Returns the logits of each sequence, with the lowest float32 number at positions outside of it.

    Args:
      logits_BL: float32.
      features: the batch; `input_mask` int32 [B, L] is 0 for padding.

    Returns:
      float32 [B, L], or [B, S, L] for packed rows; L counts positions of the row.
    """
    if "cls_positions" in features:
        return tf.where(_is_own(features), logits_BL[:, None], logits_BL.dtype.min)
    return tf.where(features["input_mask"] > 0, logits_BL, logits_BL.dtype.min)


def in_row(positions: tf.Tensor, features: dict[str, tf.Tensor]) -> tf.Tensor:
    """Converts positions within a sequence to positions within its row; int32 [B], or [B, S]."""
    return positions + features.get("cls_positions", 0)


def cut_out(logits_BL: tf.Tensor, features: dict[str, tf.Tensor]) -> tf.Tensor:
    """Returns the logits of each sequence of packed rows, shifted to start at its first token, and 0 after
    its last one: float32 [B, S, L]."""
    length = logits_BL.shape[1]
    places_BSL = features["cls_positions"][:, :, None] + tf.range(length)
    own_BSL = tf.where(_is_own(features), logits_BL[:, None], 0.0)
    shifted_BSL = tf.gather(own_BSL, tf.minimum(places_BSL, length - 1), batch_dims=2)
    return tf.where(places_BSL < length, shifted_BSL, 0.0)


def _is_own(features: dict[str, tf.Tensor]) -> tf.Tensor:
    """Returns a mask, bool [B, S, L], of the tokens of each sequence."""
    numbers_S = 1 + tf.range(features["cls_positions"].shape[1])
    return tf.equal(features["sequence_ids"][:, None, :], numbers_S[:, None])


# -----------------------------------------------------------------------------------------------------------
# Objectives
#
# A row of a batch is one sequence; packed rows have a label, a weight and a [CLS] per sequence.


Terms = dict  # {metric: (weighted sum, weight)}, float32 scalars
Batch = dict  # {feature: tensor}

# By --objective: {loss: factor of its mean in the minimized sum}. Source of ELECTRA's: Clark et al. 2020.
PRETRAINING_LOSSES = {
    "mlm_nsp": {"mlm_loss": 1.0, "nsp_loss": 1.0},
    "mlm": {"mlm_loss": 1.0},
    "electra": {"mlm_loss": 1.0, "rtd_loss": 50.0},
}
# Added to the weight of a micro batch with --loss_normalization=local: sum(w * CE) / (sum(w) + 1e-5), and a
# plain mean. Source: the MLPerf v0.7 reference; for rtd_loss google-research/electra.
PRETRAINING_LOCAL_EPSILON = {"mlm_loss": 1e-5, "nsp_loss": 0.0, "rtd_loss": 1e-6}


def pretraining_weights(batch: Batch, basis: str, losses: Iterable[str]) -> dict[str, tf.Tensor]:
    """Returns the weights of the pre-training losses; `basis` as in `masked_weights`."""
    weight_of = {
        "mlm_loss": lambda: masked_weights(batch, basis),
        "nsp_loss": lambda: batch["example_weights"],
        "rtd_loss": lambda: token_weights(batch),
    }
    return {name: tf.reduce_sum(weight_of[name]()) for name in losses}


def token_weights(batch: Batch) -> tf.Tensor:
    """Returns the weight of each token, float32 [B, L]: that of its sequence, 0 for padding."""
    weights = batch["example_weights"]
    if "sequence_ids" not in batch:
        return weights[:, None] * tf.cast(batch["input_mask"], tf.float32)
    return tf.gather(tf.pad(weights, [[0, 0], [1, 0]]), batch["sequence_ids"], batch_dims=1)


def masked_weights(batch: Batch, basis: str) -> tf.Tensor:
    """Returns the weight of each predicted token in the loss, float32 [B, P].

    Args:
      batch: with `masked_lm_weights` float32 [B, P], and for rows of several sequences
        `masked_lm_sequences` int32 [B, P], the number of its sequence, from 1.
      basis: `pertoken`: 1; `persequence`: 1 / predicted tokens of its sequence.
    """
    weights_BP = batch["masked_lm_weights"]
    if basis == "pertoken":
        return weights_BP
    if "masked_lm_sequences" not in batch:
        return tf.math.divide_no_nan(weights_BP, tf.reduce_sum(weights_BP, axis=1, keepdims=True))
    is_own_BPS = tf.one_hot(batch["masked_lm_sequences"] - 1, batch["example_weights"].shape[1])
    counts_BS = tf.linalg.matvec(is_own_BPS, weights_BP, transpose_a=True)
    return tf.math.divide_no_nan(weights_BP, tf.linalg.matvec(is_own_BPS, counts_BS))


def pretraining_terms(
    outputs: tf.Tensor | tuple[tf.Tensor, ...], batch: Batch, basis: str, kernels: str = "plain"
) -> Terms:
    """Returns the pre-training terms: `mlm_loss` and `mlm_accuracy`; with a next-sentence head also
    `nsp_loss` and `nsp_accuracy`, with replaced-token detection also `rtd_loss` and `rtd_accuracy`.

    Args:
      outputs: float32 masked-LM logits [B, P, V], or [Q, V] for the tokens of `varlen.find_predicted`; then
        next-sentence logits [B, 2] or [B, S, 2] if the model has them, or for ELECTRA the discriminator's
        logits [B, L] and its input ids.
      batch: with `masked_lm_ids`, `masked_lm_weights`, `next_sentence_labels` and `example_weights`.
      basis: as in `masked_weights`.
      kernels: as in `cross_entropy`.
    """
    logits, *others = outputs if isinstance(outputs, tuple) else (outputs,)
    predicted = (batch["masked_lm_ids"], masked_weights(batch, basis), batch["masked_lm_weights"])
    if logits.shape.rank == 2:
        numbers_Q = varlen.find_predicted(batch["masked_lm_weights"])
        predicted = tuple(varlen.pick_predicted(values, numbers_Q) for values in predicted)
    ids, loss_weights, hit_weights = predicted
    terms = {
        "mlm_loss": (
            cross_entropy(logits, ids, loss_weights, kernels=kernels),
            tf.reduce_sum(masked_weights(batch, basis)),
        ),
        "mlm_accuracy": (correct(logits, ids, hit_weights), tf.reduce_sum(batch["masked_lm_weights"])),
    }
    if len(others) == 1:
        terms.update(_relation_terms(others[0], batch))
    elif others:
        terms.update(_replaced_terms(others[0], others[1], batch))
    return terms


def _relation_terms(logits: tf.Tensor, batch: Batch) -> Terms:
    labels, weight = batch["next_sentence_labels"], tf.reduce_sum(batch["example_weights"])
    relation = logits, labels if logits.shape.rank == 3 else labels[:, 0], batch["example_weights"]
    return {"nsp_loss": (cross_entropy(*relation), weight), "nsp_accuracy": (correct(*relation), weight)}


def _replaced_terms(logits_BL: tf.Tensor, sampled_ids_BL: tf.Tensor, batch: Batch) -> Terms:
    """Returns the terms of replaced-token detection. A token counts as replaced only if its id differs from
    the original one, since the generator may sample the original."""
    is_masked_BP, positions_BP = batch["masked_lm_weights"] > 0, batch.get("masked_lm_positions")
    if positions_BP is None:  # they are the first tokens
        positions_BP = tf.range(is_masked_BP.shape[1]) + tf.zeros_like(batch["masked_lm_ids"])
    ids_BL = layers.put_at_positions(batch["input_ids"], positions_BP, batch["masked_lm_ids"], is_masked_BP)
    is_replaced_BL, weights_BL = tf.not_equal(sampled_ids_BL, ids_BL), token_weights(batch)
    losses_BL = tf.nn.sigmoid_cross_entropy_with_logits(tf.cast(is_replaced_BL, tf.float32), logits_BL)
    hits_BL = tf.cast(tf.equal(logits_BL > 0, is_replaced_BL), tf.float32)
    weight = tf.reduce_sum(weights_BL)
    return {
        "rtd_loss": (tf.reduce_sum(losses_BL * weights_BL), weight),
        "rtd_accuracy": (tf.reduce_sum(hits_BL * weights_BL), weight),
    }


def span_terms(outputs: tuple[tf.Tensor, tf.Tensor], batch: Batch, whole_rows: bool = False) -> Terms:
    """Returns the terms of answers as spans: `span_loss`, `start_accuracy`, `end_accuracy`.

    Args:
      outputs: start and end logits float32 [B, L].
      batch: with `start_positions` and `end_positions`, and the features that `of_sequences` reads.
      whole_rows: take the softmax over all positions of a row, including padding (one sequence per row); the
        loss then grows with the padding. False: over the sequence's tokens. Source of True: compute_loss of
        Google's run_squad.py, and BertForQuestionAnswering of Hugging Face's Transformers.
    """
    logits = outputs if whole_rows else [of_sequences(part, batch) for part in outputs]
    names = ("start_positions", "end_positions")
    parts = [
        (part, in_row(batch[name], batch), batch["example_weights"]) for part, name in zip(logits, names)
    ]
    weight = tf.reduce_sum(batch["example_weights"])
    return {
        "span_loss": (sum(cross_entropy(*part) for part in parts) / 2.0, weight),
        "start_accuracy": (correct(*parts[0]), weight),
        "end_accuracy": (correct(*parts[1]), weight),
    }


def label_weights(batch: Batch) -> tf.Tensor:
    """Returns the weight of each label in the loss: the weight of its sequence, times `class_weights` (a
    weight per sequence) if the batch has them."""
    weights = batch["example_weights"]
    return weights * batch["class_weights"] if "class_weights" in batch else weights


class Distillation(NamedTuple):
    """Settings of distillation: temperature of the distributions, and the teacher's share of the loss, 0
    to 1."""

    temperature: float
    share: float


def teacher_losses(logits: tf.Tensor, teacher_logits: tf.Tensor, kind: str, temperature: float) -> tf.Tensor:
    """Returns the loss of each sequence against a teacher, float32 of the shape of `logits` without C.

    The loss is temperature^2 * KL(teacher, student) of the distributions softmax(logits / temperature); for
    multi-label the mean over the labels' Bernoulli distributions. The factor temperature^2 makes the size of
    the gradient independent of the temperature. For regression it is the squared difference.
    Source: Hinton et al. 2015, arXiv 1503.02531, section 2.

    Args:
      logits, teacher_logits: float32 [..., C].
      kind: as in `label_terms`.
    """
    if kind == "number":
        return tf.math.squared_difference(logits[..., 0], teacher_logits[..., 0])
    own, wanted = logits / temperature, teacher_logits / temperature
    if kind == "several":
        chances = tf.sigmoid(wanted)
        crossed = tf.nn.sigmoid_cross_entropy_with_logits(chances, own)
        divergences = crossed - tf.nn.sigmoid_cross_entropy_with_logits(chances, wanted)
        return temperature**2 * tf.reduce_mean(divergences, axis=-1)
    ratios = tf.nn.log_softmax(wanted) - tf.nn.log_softmax(own)
    return temperature**2 * tf.reduce_sum(tf.nn.softmax(wanted) * ratios, axis=-1)


def label_terms(
    logits: tf.Tensor,
    batch: Batch,
    kind: str,
    smoothing: float = 0.0,
    distillation: Distillation | None = None,
) -> Terms:
    """Returns the terms of classification and regression: `label_loss`, and for single labels
    `label_accuracy`.

    Args:
      logits: float32 [B, C], or [B, S, C] for packed rows; for regression C is 1.
      batch: with `labels`, `example_weights` and the features that `label_weights` reads. Labels are int32
        [B] for single labels, float32 [B, C] for multi-label, float32 [B] for regression.
      kind: one: cross-entropy. several: binary cross-entropy averaged over the classes. number: squared
        error. choice: like one.
      smoothing: label smoothing, the share of a label that is spread over all classes.
      distillation: settings of distillation; the batch then has `teacher_logits` of the shape of `logits`.
        None: no teacher.
    """
    weights = label_weights(batch)
    terms: Terms = {}
    if kind == "number":
        loss = tf.reduce_sum(tf.math.squared_difference(logits[..., 0], batch["labels"]) * weights)
    elif kind == "several":
        wanted = batch["labels"] * (1.0 - smoothing) + 0.5 * smoothing
        losses = tf.nn.sigmoid_cross_entropy_with_logits(wanted, logits)
        loss = tf.reduce_sum(tf.reduce_mean(losses, axis=-1) * weights)
    else:
        loss = cross_entropy(logits, batch["labels"], weights)
        if smoothing:
            others = tf.reduce_sum(-tf.reduce_mean(tf.nn.log_softmax(logits), axis=-1) * weights)
            loss = (1.0 - smoothing) * loss + smoothing * others
        hits = correct(logits, batch["labels"], batch["example_weights"])
        terms["label_accuracy"] = (hits, tf.reduce_sum(batch["example_weights"]))
    if distillation is not None:
        losses = teacher_losses(logits, batch["teacher_logits"], kind, distillation.temperature)
        loss = (1.0 - distillation.share) * loss + distillation.share * tf.reduce_sum(losses * weights)
    return {"label_loss": (loss, tf.reduce_sum(weights)), **terms}


def tag_weights(batch: Batch) -> tf.Tensor:
    """Returns float32 [B, L]: 1 for word pieces with a tag (tag id 0 or more), otherwise 0."""
    return tf.cast(batch["tags"] >= 0, tf.float32)


def tag_terms(logits_BLC: tf.Tensor, batch: Batch, smoothing: float = 0.0) -> Terms:
    """Returns the terms of token classification, `tag_loss` and `tag_accuracy`; all words have equal weight.

    Args:
      logits_BLC: float32.
      batch: with `tags` int32 [B, L], negative for word pieces without a tag.
      smoothing: as in `label_terms`.
    """
    weights_BL = tag_weights(batch)
    tags = {"labels": tf.maximum(batch["tags"], 0), "example_weights": weights_BL}
    terms = label_terms(logits_BLC, tags, "one", smoothing)
    return {name.replace("label", "tag"): term for name, term in terms.items()}


# -----------------------------------------------------------------------------------------------------------
# Vectors of texts
#
# Shapes: B rows of a step, of all replicas; G texts per row; D numbers per vector; P passages, B x (G - 1).
# Vectors are compared by their cosines. With sizes, the losses of the first so many numbers of each vector
# are summed (Matryoshka representations, Kusupati et al. 2022, arXiv 2205.13147).


def ranking_terms(
    vectors_BGD: tf.Tensor, batch: Batch, temperature: float, sizes: tuple[int, ...] = ()
) -> Terms:
    """Returns the terms of a contrastive loss with in-batch negatives: `embedding_loss`, the cross-entropy of
    the positive passage among the passages of all rows, and `embedding_accuracy`.

    A passage is not used as a negative if its text equals the positive or the query, or if it is a positive
    of the same query in another row. Source: InfoNCE, van den Oord et al. 2018, arXiv 1807.03748; in-batch
    negatives, Henderson et al. 2017, arXiv 1705.00652.

    Args:
      vectors_BGD: float32, vectors of a query, its positive, and any number of hard negatives.
      batch: with `example_weights` float32 [B], 0 for filler rows, and `text_ids` [B, G], equal for equal
        texts.
      temperature: cosines are divided by it.
      sizes: the loss is the sum over these.
    """
    weights_B, ids_BG = batch["example_weights"], batch["text_ids"]
    count = layers.sizes(weights_B)[0]
    ids_P = _passages_first(ids_BG)
    queries_B1 = ids_BG[:, :1]
    is_right_BB = tf.equal(queries_B1, queries_B1[:, 0])
    is_right_BP = tf.pad(is_right_BB, [[0, 0], [0, tf.size(ids_P) - count]])
    is_right_BP |= tf.equal(ids_BG[:, 1:2], ids_P) | tf.equal(queries_B1, ids_P)
    is_filling_P = tf.tile(weights_B, [tf.size(ids_P) // count]) <= 0
    own_B = tf.range(count)
    left_out_BP = (is_right_BP | is_filling_P) & (own_B[:, None] != tf.range(tf.size(ids_P)))
    losses, hits = [], tf.constant(0.0)
    for size in sizes or (vectors_BGD.shape[-1],):
        unit_BGD = unit(vectors_BGD[..., :size])
        cosines_BP = layers.exact_matmul_2d(unit_BGD[:, 0], tf.transpose(_passages_first(unit_BGD)))
        logits_BP = tf.where(left_out_BP, tf.float32.min, cosines_BP / temperature)
        losses.append(cross_entropy(logits_BP, own_B, weights_B))
        hits = correct(logits_BP, own_B, weights_B) if size == max(sizes, default=size) else hits
    weight = tf.reduce_sum(weights_B)
    return {"embedding_loss": (tf.add_n(losses), weight), "embedding_accuracy": (hits, weight)}


def _passages_first(values_BGX: tf.Tensor) -> tf.Tensor:
    """Returns [P, ...]: the positives of all rows, then the first hard negatives, and so on."""
    return tf.concat(tf.unstack(values_BGX, axis=1)[1:], axis=0)


def similarity_terms(
    vectors_BGD: tf.Tensor, batch: Batch, kind: str, temperature: float, sizes: tuple[int, ...] = ()
) -> Terms:
    """Returns the loss of text pairs with similarity scores, `embedding_loss`.

    Args:
      vectors_BGD: float32, G is 2.
      batch: with `example_weights` float32 [B], 0 for filler rows, and `labels` float32 [B].
      kind: cosine: squared difference of cosine and score. cosent: log(1 + sum of exp((cosine of a pair -
        cosine of another) / temperature) over all two pairs of which the first has the smaller score), which
        counts for each row of a step. Source: J. Su 2022, https://kexue.fm/archives/8847.
      temperature, sizes: as in `ranking_terms`.
    """
    weights_B, scores_B = batch["example_weights"], batch["labels"]
    weight, losses = tf.reduce_sum(weights_B), []
    for size in sizes or (vectors_BGD.shape[-1],):
        unit_BGD = unit(vectors_BGD[..., :size])
        cosines_B = tf.reduce_sum(unit_BGD[:, 0] * unit_BGD[:, 1], axis=-1)
        if kind == "cosine":
            squares_B = tf.math.squared_difference(cosines_B, scores_B)
            losses.append(tf.reduce_sum(squares_B * weights_B))
            continue
        # [i, j]: whether pair i should be below pair j.
        counts_BB = (scores_B[:, None] < scores_B) & (weights_B[:, None] > 0) & (weights_B > 0)
        differences_BB = (cosines_B[:, None] - cosines_B) / temperature
        exponents = tf.reshape(tf.where(counts_BB, differences_BB, tf.float32.min), [-1])
        losses.append(tf.reduce_logsumexp(tf.concat([[0.0], exponents], axis=0)) * weight)
    return {"embedding_loss": (tf.add_n(losses), weight)}


def unit(vectors: tf.Tensor) -> tf.Tensor:
    """Returns vectors divided by their lengths; zero vectors stay."""
    return tf.math.l2_normalize(vectors, axis=-1, epsilon=1e-24)
