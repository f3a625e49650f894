"""A model's methods as functions of TensorFlow, from text to answers: what an export holds.

They need nothing of this package once they are saved, and give what `official.inference.Model` gives.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow as tf

from official.data.squad.answers import AnswerRules
from official.data.squad.features import WindowRules
from official.inference.graph_network import Features, Network, Weights, in_batches, leaves_of, stages_of
from official.inference.graph_tokenizer import Decoded, Pieces, Splitter
from official.inference.methods import (
    MASK,
    MIN_NORM,
    NUMBER,
    ONE,
    SEVERAL,
    Classes,
    answer_rules,
    classes_of,
    pooling_of_source,
)
from official.inference.signatures import (
    SIGNATURES,
    TENSOR_INPUTS,
    TENSORS,
    TOP_WORDS,
    Field,
    main_method,
    output_names,
)
from official.inference.source import Source
from official.io.model_folder import Pooling

# -----------------------------------------------------------------------------------------------------------
# Texts as rows
#
# Shapes: N texts of T word pieces in all, rows of L places.


def singles(pieces: Pieces, special: Special, most: int) -> Features:
    """Returns [CLS] text [SEP] of each text; what has more than `most` tokens is cut."""
    ids = ragged(pieces)[:, : most - 2]
    return padded([ids], special)


def pairs(first: Pieces, second: Pieces, has_second_N: tf.Tensor, special: Special, most: int) -> Features:
    """Returns [CLS] A [SEP] B [SEP], or [CLS] A [SEP] where there is no second text.

    The longer one of a pair (of equals: B) loses its last token until there are at most `most`, see
    `official.data.pretraining.examples.kept_lengths`.
    """
    room = max(most - 3, 0)
    a_N, b_N = first.lengths_N, second.lengths_N
    kept_a_N = tf.minimum(a_N, tf.maximum((room + 1) // 2, room - b_N))
    kept_a_N = tf.where(has_second_N, kept_a_N, tf.minimum(a_N, max(most - 2, 0)))
    kept_b_N = tf.minimum(b_N, tf.maximum(room // 2, room - a_N))
    b = _shortened(ragged(second), tf.where(has_second_N, kept_b_N, 0))
    return padded([_shortened(ragged(first), kept_a_N), b], special, has_second_N)


def ragged(pieces: Pieces) -> tf.RaggedTensor:
    """Returns the ids of the pieces of each text, ragged [N, ..]."""
    return _of_lengths(pieces.ids_T, pieces.lengths_N)


def _shortened(ids: tf.RaggedTensor, lengths_N: tf.Tensor) -> tf.RaggedTensor:
    """Returns the first ids of each row."""
    places = tf.ragged.range(tf.cast(ids.row_lengths(), tf.int32)).flat_values
    kept = places < tf.gather(lengths_N, ids.value_rowids())
    return _of_lengths(tf.boolean_mask(ids.flat_values, kept), lengths_N)


def _of_lengths(values_T: tf.Tensor, lengths_N: tf.Tensor) -> tf.RaggedTensor:
    return tf.RaggedTensor.from_row_lengths(values_T, tf.cast(lengths_N, tf.int64), validate=False)


def padded(parts: list[tf.RaggedTensor], special: Special, has_second_N: tf.Tensor | None = None) -> Features:
    """Returns rows of one text or two, as long as the longest one.

    Args:
      parts: ids of the first texts, ragged [N, ..], and of the second ones where there may be such.
      special: ids.
      has_second_N: bool: whether a row has a second text, which may be empty.

    Returns:
      `input_ids`, `input_mask` and `segment_ids`, int32 [N, L].
    """
    count = parts[0].nrows(tf.int32)
    cls_N1, sep_N1 = (tf.fill([count, 1], number) for number in (special.cls, special.sep))
    first = tf.concat([cls_N1, parts[0], sep_N1], 1)
    joined = first
    if has_second_N is not None:
        ends = tf.ragged.boolean_mask(sep_N1, has_second_N[:, None])
        joined = tf.concat([first, parts[1], ends], 1)
    lengths_N1, first_N1 = (tf.cast(each.row_lengths(), tf.int32)[:, None] for each in (joined, first))
    ids_NL = joined.to_tensor(0)
    places_L = tf.range(tf.shape(ids_NL)[1])
    is_token_NL = places_L < lengths_N1
    return {
        "input_ids": ids_NL,
        "input_mask": tf.cast(is_token_NL, tf.int32),
        "segment_ids": tf.cast(is_token_NL & (places_L >= first_N1), tf.int32),
    }


def masked(texts_N: tf.Tensor, split: Splitter, special: Special) -> Features:
    """Returns [CLS] text [SEP] with [MASK] where the text has it, and the places of the masks.

    Returns:
      As `padded`, and `masked_lm_positions` int32 [N, P]: those of the masks, then 0; at least one column.
    """
    between = tf.strings.split(texts_N, MASK)
    pieces = split(between.flat_values)
    ends = tf.fill([tf.size(pieces.lengths_N), 1], special.mask)
    with_ends = tf.concat([ragged(pieces), ends], 1)
    # A mask stands behind every part; the last one of a text is taken off again.
    of_texts = tf.RaggedTensor.from_row_splits(with_ends, between.row_splits, validate=False).merge_dims(1, 2)
    features = padded([of_texts[:, :-1]], special)
    found = tf.where(features["input_ids"] == special.mask)
    count = tf.size(texts_N, tf.int64)
    places = tf.cast(found[:, 1], tf.int32)
    by_text = tf.RaggedTensor.from_value_rowids(places, found[:, 0], count, validate=False)
    positions_NP = by_text.to_tensor(0)
    more = tf.maximum(1 - tf.shape(positions_NP)[1], 0)
    return {**features, "masked_lm_positions": tf.pad(positions_NP, [[0, 0], [0, more]])}


# -----------------------------------------------------------------------------------------------------------
# Windows
#
# It gives what `official.data.squad.features` and `official.data.squad.answers` give. Shapes: N questions,
# each with its context of T word pieces in all; R windows of L places.


_SPECIAL_TOKENS = 3  # [CLS] question [SEP] window [SEP]


class Special(NamedTuple):
    """The ids of special tokens."""

    cls: int
    sep: int
    mask: int


class Windows(NamedTuple):
    """[CLS] question [SEP] window [SEP], the windows of a question one after the other.

    Attributes:
      questions_R: int32, ascending: whose window it is.
      first_lengths_R: int32: tokens of [CLS] question [SEP].
      first_pieces_R: int32: the first piece, among those of all contexts.
      lengths_R: int32: pieces.
    """

    questions_R: tf.Tensor
    first_lengths_R: tf.Tensor
    first_pieces_R: tf.Tensor
    lengths_R: tf.Tensor

    @property
    def tokens_R(self) -> tf.Tensor:
        """int32: tokens of each row."""
        return self.first_lengths_R + self.lengths_R + 1


def cut_windows(questions: Pieces, contexts: Pieces, rules: WindowRules) -> Windows:
    """Cuts windows of as many pieces as fit beside the question; each begins `doc_stride` pieces behind the
    one before it. A question without text, or whose context has no piece, has none."""
    query_N = tf.minimum(questions.lengths_N, rules.max_query_length)
    room_N = rules.max_seq_length - query_N - _SPECIAL_TOKENS
    stride_N = tf.minimum(room_N, rules.doc_stride)
    more_N = tf.maximum(contexts.lengths_N - room_N + stride_N - 1, 0) // stride_N
    has_none_N = (contexts.lengths_N == 0) | questions.text.is_empty_N
    counts_N = tf.where(has_none_N, 0, 1 + more_N)
    of_R = tf.repeat(tf.range(tf.size(counts_N)), counts_N)
    number_R = tf.range(tf.size(of_R)) - tf.gather(tf.cumsum(counts_N, exclusive=True), of_R)
    shift_R = number_R * tf.gather(stride_N, of_R)
    left_R = tf.gather(contexts.lengths_N, of_R) - shift_R
    return Windows(
        of_R,
        tf.gather(query_N, of_R) + 2,
        tf.gather(contexts.firsts_N, of_R) + shift_R,
        tf.minimum(tf.gather(room_N, of_R), left_R),
    )


def rows_of(windows: Windows, questions: Pieces, contexts: Pieces, special: Special) -> dict[str, tf.Tensor]:
    """Returns `input_ids`, `input_mask` and `segment_ids` int32 [R, L], as long as the longest window."""
    places_L = tf.range(tf.reduce_max(tf.concat([windows.tokens_R, [1]], 0)))
    first_R1, tokens_R1 = windows.first_lengths_R[:, None], windows.tokens_R[:, None]
    firsts_R1 = tf.gather(questions.firsts_N, windows.questions_R)[:, None]
    queries_RL = _picked(questions.ids_T, firsts_R1 + places_L - 1)
    pieces_RL = _picked(contexts.ids_T, windows.first_pieces_R[:, None] + places_L - first_R1)
    ids_RL = tf.where(places_L < first_R1 - 1, queries_RL, pieces_RL)
    ids_RL = tf.where((places_L == first_R1 - 1) | (places_L == tokens_R1 - 1), special.sep, ids_RL)
    ids_RL = tf.where(places_L == 0, special.cls, ids_RL)
    is_token_RL = places_L < tokens_R1
    return {
        "input_ids": tf.where(is_token_RL, ids_RL, 0),
        "input_mask": tf.cast(is_token_RL, tf.int32),
        "segment_ids": tf.cast(is_token_RL & (places_L >= first_R1), tf.int32),
    }


def _picked(ids_T: tf.Tensor, places: tf.Tensor) -> tf.Tensor:
    """Returns the ids in some places, and any id for a place that there is not."""
    padded = tf.concat([ids_T, [0]], 0)
    return tf.gather(padded, tf.clip_by_value(places, 0, tf.size(ids_T)))


def is_context(windows: Windows, width: tf.Tensor) -> tf.Tensor:
    """Returns bool [R, L]: whether a token is a piece of the context."""
    places_L = tf.range(width)
    first_R1 = windows.first_lengths_R[:, None]
    return (places_L >= first_R1) & (places_L < first_R1 + windows.lengths_R[:, None])


def is_max_context(windows: Windows, width: tf.Tensor, pieces: tf.Tensor) -> tf.Tensor:
    """Returns bool [R, L]: whether a token is a piece of the context, and none of the question's other
    windows shows it better; see `official.data.squad.answers`.

    Args:
      windows: of all questions.
      width: L.
      pieces: T.
    """
    is_context_RL = is_context(windows, width)
    of_K = tf.cast(tf.where(is_context_RL), tf.int32)
    rows_K = of_K[:, 0]
    places_K = of_K[:, 1] - tf.gather(windows.first_lengths_R, rows_K)
    lengths_K = tf.gather(windows.lengths_R, rows_K)
    nearest_K = tf.cast(tf.minimum(places_K, lengths_K - 1 - places_K), tf.float64)
    scores_K = nearest_K + tf.constant(0.01, tf.float64) * tf.cast(lengths_K, tf.float64)
    pieces_K = tf.gather(windows.first_pieces_R, rows_K) + places_K
    best_K = tf.gather(tf.math.unsorted_segment_max(scores_K, pieces_K, pieces), pieces_K)
    candidates_K = tf.where(scores_K == best_K, rows_K, tf.int32.max)
    first_K = tf.gather(tf.math.unsorted_segment_min(candidates_K, pieces_K, pieces), pieces_K)
    shape = tf.shape(is_context_RL)
    return tf.scatter_nd(of_K, tf.cast(first_K == rows_K, tf.int32), shape) > 0


# -----------------------------------------------------------------------------------------------------------
# Answers
#
# It gives what `official.data.squad.answers` gives. Shapes: N questions, R windows of L places, K
# candidates, D of them that are the first with their text.


class Candidates(NamedTuple):
    """Stretches of the contexts, those of a question one after the other, best first.

    Attributes:
      questions: int32, ascending.
      begins, ends: int32: first characters, and those behind the last ones.
      scores: float64: sum of the two logits.
    """

    questions: tf.Tensor
    begins: tf.Tensor
    ends: tf.Tensor
    scores: tf.Tensor


def find(
    start_RL: tf.Tensor, end_RL: tf.Tensor, windows: Windows, contexts: Pieces, rules: AnswerRules
) -> dict[str, tf.Tensor]:
    """Finds the answers.

    Args:
      start_RL, end_RL: float32 logits.
      windows: of all questions.
      contexts: of N questions.
      rules: what counts as an answer.

    Returns:
      As `signatures.SIGNATURES` says: `text`, `start`, `end`, `score`, [N] each.
    """
    candidates = _search(start_RL, end_RL, windows, contexts, rules)
    firsts_D, texts_D = _distinct(candidates, contexts.text)
    best = Candidates(*(tf.gather(values, firsts_D) for values in candidates))
    count = tf.size(contexts.lengths_N)
    ranks_D = tf.range(tf.size(best.questions)) - tf.searchsorted(best.questions, best.questions)
    kept = tf.where(ranks_D < rules.n_best_size)[:, 0]
    best, texts_D = Candidates(*(tf.gather(values, kept) for values in best)), tf.gather(texts_D, kept)
    nulls_N = _nulls(start_RL, end_RL, windows, count) if rules.version_2_with_negative else None
    return _predicted(best, texts_D, nulls_N, count, rules)


def _search(
    start_RL: tf.Tensor, end_RL: tf.Tensor, windows: Windows, contexts: Pieces, rules: AnswerRules
) -> Candidates:
    """Returns every pair of one of the best starts and one of the best ends of a window that is an answer; of
    questions without such a pair, the best answer of one piece in each window."""
    width = tf.shape(start_RL)[1]
    may_start_RL = is_max_context(windows, width, tf.size(contexts.ids_T))
    starts = _best(start_RL, may_start_RL, rules.n_best_size)
    ends = _best(end_RL, is_context(windows, width), rules.n_best_size)
    pairs = _pairs(starts, ends, rules.max_answer_length)
    has_pair_N = tf.math.unsorted_segment_sum(
        tf.ones_like(pairs[0]), tf.gather(windows.questions_R, pairs[0]), tf.size(contexts.lengths_N)
    )
    is_without_R = tf.gather(has_pair_N, windows.questions_R) == 0
    singles = _singles(start_RL, end_RL, may_start_RL & is_without_R[:, None])
    rows_K, first_K, last_K = (tf.concat(both, 0) for both in zip(pairs, singles))
    scores_K = _sums(start_RL, end_RL, tf.stack([rows_K, first_K], 1), tf.stack([rows_K, last_K], 1))
    offsets_K = tf.gather(windows.first_pieces_R - windows.first_lengths_R, rows_K)
    return _sorted(
        Candidates(
            tf.gather(windows.questions_R, rows_K),
            tf.gather(contexts.begins_T, offsets_K + first_K),
            tf.gather(contexts.ends_T, offsets_K + last_K),
            scores_K,
        )
    )


def _best(logits_RL: tf.Tensor, may_RL: tf.Tensor, count: int) -> tf.Tensor:
    """Returns int32 [R, count at most]: the places of the greatest logits where `may` allows it; -1 for none
    left."""
    lowest = tf.constant(float("-inf"), logits_RL.dtype)
    found = tf.math.top_k(tf.where(may_RL, logits_RL, lowest), tf.minimum(count, tf.shape(logits_RL)[1]))
    return tf.where(tf.gather(may_RL, found.indices, batch_dims=1), found.indices, -1)


def _pairs(starts: tf.Tensor, ends: tf.Tensor, longest: int) -> tuple[tf.Tensor, ...]:
    """Returns rows, first places and last places of the pairs that are answers; in each row from the best
    start on."""
    lengths = ends[:, None, :] - starts[:, :, None] + 1
    is_there = (starts[:, :, None] >= 0) & (ends[:, None, :] >= 0)
    found = tf.cast(tf.where(is_there & (lengths >= 1) & (lengths <= longest)), tf.int32)
    rows, first, last = tf.unstack(found, num=3, axis=1)
    return (
        rows,
        tf.gather_nd(starts, tf.stack([rows, first], 1)),
        tf.gather_nd(ends, tf.stack([rows, last], 1)),
    )


def _singles(start_RL: tf.Tensor, end_RL: tf.Tensor, may_RL: tf.Tensor) -> tuple[tf.Tensor, ...]:
    """Returns rows and places, twice, of the best answer of one piece in each window that may have one."""
    rows = tf.cast(tf.where(tf.reduce_any(may_RL, axis=1))[:, 0], tf.int32)
    sums_RL = tf.cast(start_RL, tf.float64) + tf.cast(end_RL, tf.float64)
    lowest = tf.constant(float("-inf"), tf.float64)
    best = tf.argmax(tf.gather(tf.where(may_RL, sums_RL, lowest), rows), axis=1, output_type=tf.int32)
    return rows, best, best


def _sums(start_RL: tf.Tensor, end_RL: tf.Tensor, starts: tf.Tensor, ends: tf.Tensor) -> tf.Tensor:
    picked = tf.gather_nd(start_RL, starts), tf.gather_nd(end_RL, ends)
    return tf.cast(picked[0], tf.float64) + tf.cast(picked[1], tf.float64)


def _sorted(candidates: Candidates) -> Candidates:
    """Returns those of a question one after the other, best first; ties stand as they were found."""
    by_score = tf.argsort(candidates.scores, direction="DESCENDING", stable=True)
    order = tf.gather(by_score, tf.argsort(tf.gather(candidates.questions, by_score), stable=True))
    return Candidates(*(tf.gather(values, order) for values in candidates))


def _distinct(candidates: Candidates, text: Decoded) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the first candidate of each question with each text, int32 [D], and the texts."""
    lengths_K = candidates.ends - candidates.begins
    begins_K = tf.gather(text.splits_N1, candidates.questions) + candidates.begins
    number = tf.range(tf.reduce_sum(lengths_K)) - tf.repeat(tf.cumsum(lengths_K, exclusive=True), lengths_K)
    codes = tf.gather(text.codes_C, tf.repeat(begins_K, lengths_K) + number)
    ragged = tf.RaggedTensor.from_row_lengths(codes, lengths_K, validate=False)
    texts_K = tf.strings.unicode_encode(ragged, "UTF-8")
    text_numbers = tf.cast(tf.unique(texts_K).idx, tf.int64)
    keys = tf.cast(candidates.questions, tf.int64) * tf.size(texts_K, tf.int64) + text_numbers
    distinct = tf.unique(keys)
    count = tf.size(distinct.y)
    firsts_D = tf.math.unsorted_segment_min(tf.range(tf.size(keys)), distinct.idx, count)
    return firsts_D, tf.gather(texts_K, firsts_D)


def _nulls(start_RL: tf.Tensor, end_RL: tf.Tensor, windows: Windows, count: tf.Tensor) -> tf.Tensor:
    """Returns float64 [N]: the least score of [CLS] in the windows of a question; 0 without a window."""
    sums_R = tf.cast(start_RL[:, 0], tf.float64) + tf.cast(end_RL[:, 0], tf.float64)
    least_N = tf.math.unsorted_segment_min(sums_R, windows.questions_R, count)
    windows_N = tf.math.unsorted_segment_sum(tf.ones_like(windows.questions_R), windows.questions_R, count)
    return tf.where(windows_N > 0, least_N, 0.0)


def _predicted(
    best: Candidates, texts_D: tf.Tensor, nulls_N: tf.Tensor | None, count: tf.Tensor, rules: AnswerRules
) -> dict[str, tf.Tensor]:
    """Returns the answers, of the n-best candidates of all questions and the scores of "no answer"."""
    numbers_N = tf.range(count)
    firsts_N = tf.searchsorted(best.questions, numbers_N)
    counts_N = tf.searchsorted(best.questions, numbers_N, side="right") - firsts_N
    has_one_N = counts_N > 0
    scores = tf.RaggedTensor.from_row_lengths(best.scores, counts_N, validate=False)
    lowest = tf.constant(float("-inf"), tf.float64)
    scores_NE = tf.pad(scores.to_tensor(lowest), [[0, 0], [0, 1]], constant_values=lowest)
    chosen_N, is_answer_N, is_listed_N = scores_NE[:, 0], has_one_N, has_one_N
    if nulls_N is not None:
        is_answer_N &= nulls_N - chosen_N <= rules.null_score_diff_threshold
        chosen_N = tf.where(is_answer_N, chosen_N, nulls_N)
        scores_NE = _with_null(scores_NE, nulls_N, rules.n_best_size)
        is_listed_N = tf.ones_like(has_one_N)

    def picked(values: tf.Tensor, other: tf.Tensor) -> tf.Tensor:
        padded = tf.concat([values, other[None]], 0)
        return tf.gather(padded, tf.where(is_answer_N, firsts_N, tf.size(values)))

    return {
        "text": picked(texts_D, tf.constant("")),
        "start": picked(best.begins, tf.constant(0)),
        "end": picked(best.ends, tf.constant(0)),
        "score": tf.cast(_share(chosen_N, scores_NE, is_listed_N), tf.float32),
    }


def _with_null(scores_NE: tf.Tensor, nulls_N: tf.Tensor, size: int) -> tf.Tensor:
    """Returns the scores of the list with "no answer", which stands behind all that is no worse, however long
    the list becomes; else the last text makes room for it."""
    ranks_N1 = tf.reduce_sum(tf.cast(scores_NE >= nulls_N[:, None], tf.int32), axis=1, keepdims=True)
    places_E = tf.range(tf.shape(scores_NE)[1])
    is_pushed_out_NE = (ranks_N1 < size) & (places_E == size - 1)
    listed_NE = tf.where(is_pushed_out_NE, tf.constant(float("-inf"), tf.float64), scores_NE)
    return tf.concat([listed_NE, nulls_N[:, None]], 1)


def _share(chosen_N: tf.Tensor, listed_NE: tf.Tensor, is_there_N: tf.Tensor) -> tf.Tensor:
    """Returns the probability of a score among those of its list; 1 where there is no list."""
    most_N = tf.reduce_max(listed_NE, axis=1)
    most_N = tf.where(is_there_N, most_N, 0.0)
    sums_N = tf.reduce_sum(tf.exp(listed_NE - most_N[:, None]), axis=1)
    return tf.where(is_there_N, tf.exp(chosen_N - most_N) / sums_N, 1.0)


# -----------------------------------------------------------------------------------------------------------
# Methods
#
# Shapes: N texts, R rows of L places, P masks of a text, C classes.


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
        cut = cut_windows(questions, contexts, window_rules)
        features = rows_of(cut, questions, contexts, special)
        width = tf.shape(features["input_ids"])[1]
        run = network.loaded()

        def compute(batch: Features) -> list[tf.Tensor]:
            carried = run(batch)
            padding = [[0, 0], [0, width - tf.shape(batch["input_ids"])[1]]]
            return [tf.pad(carried[name], padding) for name in ("start_logits", "end_logits")]

        none = tf.zeros([0, width])
        start_RL, end_RL = in_batches(compute, features, [none, none])
        return find(start_RL, end_RL, cut, contexts, rules)

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
        features = pairs(first, second, has_second_N, special, classes.length)
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
        features = singles(split(text), special, most)
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
        vectors_BD /= tf.maximum(tf.norm(vectors_BD, axis=1, keepdims=True), MIN_NORM)
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
        features = masked(text, split, special)
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
        return {name: tf.cast(carried[names.get(name, name)], tf.float32) for name in output_names(head)}

    return call


# -----------------------------------------------------------------------------------------------------------
# Model


class GraphModel(tf.Module):
    """A model whose methods are functions of TensorFlow.

    Each method that it has is an attribute with the name of its signature, and so is `tensors`.
    """

    def __init__(self, source: Source, vocabulary_file: str, dtype: str = "fp32"):
        """Builds it.

        Args:
          source: the model.
          vocabulary_file: its words, a line each: what becomes an asset.
          dtype: one of `graph_network.DTYPES`.

        Raises:
          ConfigError: where a weight is missing or cannot be read, or the vocabulary cannot be taken.
        """
        super().__init__(name="bert")
        self.vocabulary = tf.saved_model.Asset(vocabulary_file)
        self.words = _words(vocabulary_file)
        reads = {
            method: stages_of(source.bert, method, source.classes, dtype) for method in source.abilities()
        }
        leaves = leaves_of([each for stages in reads.values() for each in stages])
        self.weights = Weights(leaves, source.values, dtype)
        networks = {method: Network(source.bert, self.weights, stages) for method, stages in reads.items()}
        functions = _functions(source, networks, self.words)
        self._names = tuple(functions)
        for name, function in functions.items():
            setattr(self, name, function)

    @property
    def functions(self) -> dict[str, Any]:
        """Returns {name of a signature: function of its inputs}."""
        return {name: getattr(self, name) for name in self._names}


def _words(vocabulary_file: str) -> Any:
    lines = tf.lookup.TextFileInitializer(
        vocabulary_file,
        tf.int64,
        tf.lookup.TextFileIndex.LINE_NUMBER,
        tf.string,
        tf.lookup.TextFileIndex.WHOLE_LINE,
    )
    return tf.lookup.StaticHashTable(lines, "[UNK]")


def _functions(source: Source, networks: dict[str, Network], words: Any) -> dict[str, Any]:
    """Returns {name of a signature: function}."""
    vocabulary = source.vocabulary
    special = Special(*map(vocabulary.id_of, ("[CLS]", "[SEP]", "[MASK]")))
    bert = source.bert
    sizes = Sizes(min(vocabulary.size, bert.vocab_size), bert.max_position_embeddings, bert.hidden_size)
    split = Splitter(vocabulary, bert.vocab_size)
    make: dict[str, Callable] = {
        "answer": lambda net: answer(net, split, special, *answer_rules(source)),
        "classify": lambda net: classify(net, split, special, classes_of(source), bert.type_vocab_size),
        "embed": lambda net: embed(net, split, special, pooling_of_source(source), sizes),
        "fill_mask": lambda net: fill_mask(net, split, special, words, sizes),
    }
    if "answer" in networks:
        source.check_pairs()
    functions = {
        name: _function(make[name](network), SIGNATURES[name].inputs) for name, network in networks.items()
    }
    main = main_method(list(networks))
    return {**functions, TENSORS: _function(tensors(networks[main], main), TENSOR_INPUTS)}


def _function(call: Callable, inputs: tuple[Field, ...]) -> Any:
    """Returns a function of N of everything, each input by its name."""
    kinds = [
        tf.TensorSpec([None, *field.shape], tf.dtypes.as_dtype(field.dtype), name=field.name)
        for field in inputs
    ]
    return tf.function(call, input_signature=kinds, autograph=False)
