"""Objectives, from a model's outputs and a batch: {metric: (weighted sum, weight)}, the losses first.

A row of a batch is one sequence; rows of several have a label, a weight and a [CLS] for each of them.
"""

from __future__ import annotations

import tensorflow as tf

from official.modeling import counted, losses, spans

Terms = dict  # {metric: (weighted sum, weight)}, float32 scalars
Batch = dict  # {feature: tensor}

PRETRAINING_LOSSES = ("mlm_loss", "nsp_loss")
PRETRAINING_METRICS = (*PRETRAINING_LOSSES, "mlm_accuracy", "nsp_accuracy")
# Added to the weight of a micro batch with --loss_normalization=local: sum(w * CE) / (sum(w) + 1e-5), and a
# plain mean. Source: the MLPerf v0.7 reference.
PRETRAINING_LOCAL_EPSILON = {"mlm_loss": 1e-5, "nsp_loss": 0.0}


def pretraining_weights(batch: Batch, basis: str) -> dict[str, tf.Tensor]:
    """Returns the weight of every loss of pre-training; `basis` as in `masked_weights`."""
    return {
        "mlm_loss": tf.reduce_sum(masked_weights(batch, basis)),
        "nsp_loss": tf.reduce_sum(batch["example_weights"]),
    }


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
    outputs: tuple[tf.Tensor, tf.Tensor], batch: Batch, basis: str, fused: bool | str = False
) -> Terms:
    """Returns the terms of pre-training, see `PRETRAINING_METRICS`.

    Args:
      outputs: masked-LM logits [B, P, V], or [Q, V] of the predictions that `counted.find` finds, and
        next-sentence logits [B, 2] or [B, S, 2], float32.
      batch: with `masked_lm_ids`, `masked_lm_weights`, `next_sentence_labels` and `example_weights`.
      basis: as in `masked_weights`.
      fused: as in `losses.cross_entropy`.
    """
    logits, relation_logits = outputs
    weights, labels = pretraining_weights(batch, basis), batch["next_sentence_labels"]
    predicted = (batch["masked_lm_ids"], masked_weights(batch, basis), batch["masked_lm_weights"])
    if logits.shape.rank == 2:
        numbers_Q = counted.find(batch["masked_lm_weights"])
        predicted = tuple(counted.pick(values, numbers_Q) for values in predicted)
    ids, loss_weights, token_weights = predicted
    relation = (
        relation_logits,
        labels if relation_logits.shape.rank == 3 else labels[:, 0],
        batch["example_weights"],
    )
    return {
        "mlm_loss": (
            losses.cross_entropy(logits, ids, loss_weights, fused=fused),
            weights["mlm_loss"],
        ),
        "nsp_loss": (losses.cross_entropy(*relation), weights["nsp_loss"]),
        "mlm_accuracy": (
            losses.correct(logits, ids, token_weights),
            tf.reduce_sum(batch["masked_lm_weights"]),
        ),
        "nsp_accuracy": (losses.correct(*relation), weights["nsp_loss"]),
    }


def span_terms(outputs: tuple[tf.Tensor, tf.Tensor], batch: Batch, whole_rows: bool = False) -> Terms:
    """Returns the terms of answers as spans: `span_loss`, `start_accuracy`, `end_accuracy`.

    Args:
      outputs: start and end logits float32 [B, L].
      batch: with `start_positions` and `end_positions`, and what `spans.of_sequences` reads.
      whole_rows: whether padding is among the places where an answer could be; with one sequence a row, which
        then costs the more the longer its batch is. Else padding is no answer. Source: compute_loss of
        Google's run_squad.py, and BertForQuestionAnswering of Hugging Face's Transformers, both with padding.
    """
    logits = outputs if whole_rows else [spans.of_sequences(part, batch) for part in outputs]
    parts = [
        (part, spans.in_row(batch[name], batch), batch["example_weights"])
        for part, name in zip(logits, ("start_positions", "end_positions"))
    ]
    weight = tf.reduce_sum(batch["example_weights"])
    return {
        "span_loss": (sum(losses.cross_entropy(*part) for part in parts) / 2.0, weight),
        "start_accuracy": (losses.correct(*parts[0]), weight),
        "end_accuracy": (losses.correct(*parts[1]), weight),
    }


def label_terms(logits: tf.Tensor, batch: Batch, is_regression: bool) -> Terms:
    """Returns the terms of classes, `label_loss` and `label_accuracy`, or of scores, `label_loss`.

    Args:
      logits: float32 [B, C], or [B, S, C] of rows of several sequences; of scores C is 1.
      batch: with `labels` and `example_weights`.
      is_regression: whether labels are scores.
    """
    weight = tf.reduce_sum(batch["example_weights"])
    if is_regression:
        error = losses.squared_error(logits[..., 0], batch["labels"], batch["example_weights"])
        return {"label_loss": (error, weight)}
    labelled = (logits, batch["labels"], batch["example_weights"])
    return {
        "label_loss": (losses.cross_entropy(*labelled), weight),
        "label_accuracy": (losses.correct(*labelled), weight),
    }
