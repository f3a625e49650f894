"""Logits of windows -> the answer to each question, as operations of TensorFlow.

It gives what `official.data.squad.answers` gives. Shapes: N questions, R windows of L places, K candidates,
D of them that are the first with their text.
"""

from __future__ import annotations

from typing import NamedTuple

import tensorflow as tf

from official.data.squad.answers import AnswerRules
from official.inference.graph import windows as windows_lib
from official.inference.graph.pieces import Decoded, Pieces
from official.inference.graph.windows import Windows


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
    may_start_RL = windows_lib.is_max_context(windows, width, tf.size(contexts.ids_T))
    starts = _best(start_RL, may_start_RL, rules.n_best_size)
    ends = _best(end_RL, windows_lib.is_context(windows, width), rules.n_best_size)
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
