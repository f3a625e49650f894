"""The methods of a model over text, as functions that an export is made of; see `signatures.SIGNATURES`.

Shapes: N texts, R rows of L places, P masks of a text, C classes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow as tf

from official.data.squad.answers import AnswerRules
from official.data.squad.features import WindowRules
from official.inference.embedding import SMALLEST_NORM
from official.inference.graph import answers, rows, windows
from official.inference.graph.network import Features, Network, in_batches
from official.inference.graph.pieces import Splitter
from official.inference.graph.windows import Special
from official.inference.sentences import NUMBER, ONE, SEVERAL, Classes
from official.inference.signatures import TENSOR_OUTPUTS, TOP_WORDS
from official.io.model_folder import Pooling

Outputs = dict[str, tf.Tensor]
_ONE_TEXT = "sentence_b must be '': the model takes single sentences."
_TOO_LONG = "Too many word pieces with [CLS] and [SEP]. Shorten the text:"


class Sizes(NamedTuple):
    """Sizes of a model: words of its vocabulary that have a row, positions, hidden size."""

    words: int
    positions: int
    hidden: int


def answer(
    network: Network, split: Splitter, special: Special, window_rules: WindowRules, rules: AnswerRules
) -> Callable[[tf.Tensor, tf.Tensor], Outputs]:
    """Returns (question, context), string [N] each -> text, start, end, score."""

    def call(question: tf.Tensor, context: tf.Tensor) -> Outputs:
        questions, contexts = split(question), split(context)
        cut = windows.cut(questions, contexts, window_rules)
        features = windows.rows_of(cut, questions, contexts, special)
        width = tf.shape(features["input_ids"])[1]
        run = network.loaded()

        def compute(batch: Features) -> list[tf.Tensor]:
            carried = run(batch)
            padding = [[0, 0], [0, width - tf.shape(batch["input_ids"])[1]]]
            return [tf.pad(carried[name], padding) for name in ("start_logits", "end_logits")]

        none = tf.zeros([0, width])
        start_RL, end_RL = in_batches(compute, features, [none, none])
        return answers.find(start_RL, end_RL, cut, contexts, rules)

    return call


def classify(
    network: Network, split: Splitter, special: Special, classes: Classes, segments: int
) -> Callable[[tf.Tensor, tf.Tensor], Outputs]:
    """Returns (sentence_a, sentence_b), string [N] each -> label, score, labels, scores. '' as second
    sentence is none, but where the model was trained with pairs. `segments` are the model's segment types."""

    def call(sentence_a: tf.Tensor, sentence_b: tf.Tensor) -> Outputs:
        has_second_N = tf.fill(tf.shape(sentence_b), classes.texts == 2)
        if classes.texts is None:
            has_second_N = sentence_b != ""
        checks = []
        if classes.texts == 1 or segments < 2:
            checks = [tf.debugging.Assert(tf.reduce_all(sentence_b == ""), [_ONE_TEXT])]
        with tf.control_dependencies(checks):
            first, second = split(sentence_a), split(sentence_b)
        features = rows.pairs(first, second, has_second_N, special, classes.length)
        run = network.loaded()
        none = tf.zeros([0, len(classes.labels)])
        (logits_NC,) = in_batches(lambda batch: [run(batch)["logits"]], features, [none])
        return _labels(logits_NC, classes)

    return call


def _labels(logits_NC: tf.Tensor, classes: Classes) -> Outputs:
    values_NC = {ONE: tf.nn.softmax, SEVERAL: tf.sigmoid, NUMBER: tf.identity}[classes.kind](logits_NC)
    labels_NC = tf.broadcast_to(tf.constant(classes.labels), tf.shape(values_NC))
    best_N = tf.argmax(values_NC, axis=1)
    if classes.kind == NUMBER:
        best_N = tf.zeros_like(best_N)
    label_N = tf.gather(labels_NC, best_N, batch_dims=1)
    return {
        "label": tf.fill(tf.shape(best_N), "") if classes.kind == NUMBER else label_N,
        "score": tf.gather(values_NC, best_N, batch_dims=1),
        "labels": labels_NC,
        "scores": values_NC,
    }


def embed(
    network: Network, split: Splitter, special: Special, pooling: Pooling, sizes: Sizes
) -> Callable[[tf.Tensor], Outputs]:
    """Returns text, string [N] -> embedding."""
    most = min(pooling.max_length or sizes.positions, sizes.positions)

    def call(text: tf.Tensor) -> Outputs:
        features = rows.singles(split(text), special, most)
        run = network.loaded()

        def compute(batch: Features) -> list[tf.Tensor]:
            sequence_BLD = tf.cast(run(batch)["sequence"], tf.float32)
            return [_pooled(sequence_BLD, batch["input_mask"], pooling)]

        (vectors_ND,) = in_batches(compute, features, [tf.zeros([0, sizes.hidden])])
        return {"embedding": vectors_ND}

    return call


def _pooled(sequence_BLD: tf.Tensor, mask_BL: tf.Tensor, pooling: Pooling) -> tf.Tensor:
    if pooling.mode == "cls":
        vectors_BD = sequence_BLD[:, 0]
    else:
        is_token_BL1 = tf.cast(mask_BL, tf.float32)[..., None]
        vectors_BD = tf.reduce_sum(sequence_BLD * is_token_BL1, 1) / tf.reduce_sum(is_token_BL1, 1)
    if pooling.normalized:
        vectors_BD /= tf.maximum(tf.norm(vectors_BD, axis=1, keepdims=True), SMALLEST_NORM)
    return vectors_BD


def fill_mask(
    network: Network, split: Splitter, special: Special, words: Any, sizes: Sizes
) -> Callable[[tf.Tensor], Outputs]:
    """Returns text, string [N] -> tokens, scores.

    Args:
      network, split, special: of the model.
      words: a table of words by their ids, int64 -> string.
      sizes: of the model.
    """

    def call(text: tf.Tensor) -> Outputs:
        features = rows.masked(text, split, special)
        width = tf.shape(features["input_ids"])[1]
        check = tf.debugging.Assert(width <= sizes.positions, [_TOO_LONG, width, "of", sizes.positions])
        with tf.control_dependencies([check]):
            positions_NP = tf.identity(features["masked_lm_positions"])
        features["masked_lm_positions"], count = positions_NP, tf.shape(positions_NP)[1]
        run = network.loaded()

        def compute(batch: Features) -> list[tf.Tensor]:
            logits_BPV = run(batch)["masked_lm_logits"][..., : sizes.words]
            found = tf.math.top_k(tf.nn.softmax(logits_BPV), TOP_WORDS)
            return [found.values, found.indices]

        like = [tf.zeros([0, count, TOP_WORDS]), tf.zeros([0, count, TOP_WORDS], tf.int32)]
        shares_NPT, ids_NPT = in_batches(compute, features, like)
        tokens_NPT = words.lookup(tf.cast(ids_NPT, tf.int64))
        is_mask_NP1 = positions_NP[..., None] > 0  # in the first place is [CLS]
        tokens_NPT, shares_NPT = tf.where(is_mask_NP1, tokens_NPT, ""), tf.where(is_mask_NP1, shares_NPT, 0.0)
        masks = tf.reduce_max(tf.reduce_sum(tf.cast(is_mask_NP1, tf.int32), [1, 2]))
        return {"tokens": tokens_NPT[:, :masks], "scores": shares_NPT[:, :masks]}

    return call


def tensors(network: Network, head: str) -> Callable[[tf.Tensor, tf.Tensor, tf.Tensor], Outputs]:
    """Returns (input_ids, input_mask, segment_ids), int32 [N, L] each -> the outputs of a head, see
    `signatures.TENSOR_OUTPUTS`."""

    def call(input_ids: tf.Tensor, input_mask: tf.Tensor, segment_ids: tf.Tensor) -> Outputs:
        features = {"input_ids": input_ids, "input_mask": input_mask, "segment_ids": segment_ids}
        if head == "fill_mask":
            places_L = tf.range(tf.shape(input_ids)[1])
            features["masked_lm_positions"] = tf.broadcast_to(places_L, tf.shape(input_ids))
        carried = network.loaded()(features)
        names = {"fill_mask": {"logits": "masked_lm_logits"}}.get(head, {})
        outputs = [field.name for field in TENSOR_OUTPUTS[head]]
        return {name: tf.cast(carried[names.get(name, name)], tf.float32) for name in outputs}

    return call
