"""Converts logits of windows to answers to questions."""

from __future__ import annotations

import dataclasses
import functools
import json
import os
from typing import NamedTuple

import numpy as np

from official.data.squad.features import Features
from official.data.squad.squad_files import SquadData
from official.io import writing
from official.io.errors import ConfigError, check_counts

# -----------------------------------------------------------------------------------------------------------
# Windows with the most context


_CONTEXT_BLOCK_ROWS = 4096  # rows that are compared at once


def is_max_context(features: Features) -> np.ndarray:
    """Returns bool [N, L]: whether a token is a piece of the context that has no more context in any other
    window of the question.

    The score of a piece in a window is the smaller of the numbers of pieces on its left and right, plus 0.01
    of the window's length; the first of the best windows counts.

    Source: https://github.com/google-research/bert, run_squad.py, _check_is_max_context.
    """
    result = features.is_context()
    for distance in range(1, len(features)):
        numbers = features.question_numbers
        earlier = np.flatnonzero(numbers[distance:] == numbers[:-distance])
        window_ends = features.first_pieces[earlier] + features.window_lengths[earlier]
        earlier = earlier[features.first_pieces[earlier + distance] < window_ends]
        if not earlier.size:
            break
        for first in range(0, len(earlier), _CONTEXT_BLOCK_ROWS):
            rows = earlier[first : first + _CONTEXT_BLOCK_ROWS]
            later = rows + distance
            scores = functools.partial(_context_scores, features)
            result[rows] &= scores(rows, rows) >= scores(later, rows)
            result[later] &= scores(later, later) > scores(rows, later)
    return result


def _context_scores(features: Features, windows: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Returns the scores of the tokens of rows [B] in windows [B]: float64 [B, L], -inf for tokens outside
    the window."""
    places = (
        np.arange(features.input_ids.shape[1])
        - features.first_lengths[rows, None]
        + (features.first_pieces[rows] - features.first_pieces[windows])[:, None]
    )
    lengths = features.window_lengths[windows, None]
    scores = np.minimum(places, lengths - 1 - places) + 0.01 * lengths
    return np.where((places >= 0) & (places < lengths), scores, -np.inf)


# -----------------------------------------------------------------------------------------------------------
# Answers
#
# Source: https://github.com/google-research/bert, run_squad.py, write_predictions. Three differences, which
# can only improve the answers:
#   - The best starts and ends are chosen among the tokens that an answer may have, so tokens of the question,
#     padding, and pieces with more context in another window do not displace candidates.
#   - An answer's text is the span of the context from its first to its last word piece. The source takes the
#     words and strips what it can by comparing texts; if that fails, it gives whole words, with their
#     punctuation.
#   - A question with a window always has an answer in its n-best list; the source writes "empty" or fails.


PREDICTIONS, NBEST_PREDICTIONS, NULL_ODDS = "predictions.json", "nbest_predictions.json", "null_odds.json"
NO_WINDOW_ODDS = 1e6  # score of "no answer" for a question without a window: above any threshold
_BLOCK_ROWS = 2048  # rows that are searched at once
_FIRST_UNIQUE_ID = 1_000_000_000  # first id of features, as published


@dataclasses.dataclass(frozen=True)
class AnswerRules:
    """Rules for choosing answers; the fields are the flags of the same names."""

    n_best_size: int = 20
    max_answer_length: int = 30  # word pieces
    version_2_with_negative: bool = False
    null_score_diff_threshold: float = 0.0

    def check(self) -> None:
        """Raises ConfigError for values out of range."""
        check_counts(n_best_size=self.n_best_size, max_answer_length=self.max_answer_length)


class Entry(NamedTuple):
    """An entry of an n-best list; the fields have the published names."""

    text: str
    probability: float
    start_logit: float
    end_logit: float


@dataclasses.dataclass(frozen=True)
class Answers:
    """The answers to all questions of the data, in its order, by question id."""

    predictions: dict[str, str]  # '' for no answer
    nbest: dict[str, list[Entry]]  # never empty, best first
    best_texts: dict[str, str]  # the best non-empty answer; '' for a question without a window
    null_odds: dict[str, float] | None  # score of no answer minus that of the best one; None for version 1
    # {text: (first character in the context, end)} of all candidates
    spans: dict[str, dict[str, tuple[int, int]]] = dataclasses.field(default_factory=dict)


def answer_questions(
    start_logits: np.ndarray, end_logits: np.ndarray, features: Features, data: SquadData, rules: AnswerRules
) -> Answers:
    """Finds the answers to all questions.

    Args:
      start_logits, end_logits: float [N, L] of the features, in their order; last columns may be missing if
        they are padding in all rows.
      features: features of the data.
      rules: rules for choosing answers.

    Raises:
      ConfigError: for rules out of range, logits of another shape, or a logit that is not finite.
    """
    rules.check()
    longest, (rows, columns) = int(features.lengths.max(initial=0)), features.input_ids.shape
    for name, logits in (("start", start_logits), ("end", end_logits)):
        if logits.ndim != 2 or len(logits) != rows or not longest <= logits.shape[1] <= columns:
            raise ConfigError(
                f"{name} logits have the shape {logits.shape}. Expected {rows} rows, one per feature, of"
                f" {longest} to {columns} columns."
            )
        finite = np.isfinite(logits).all(axis=1)
        if not finite.all():
            raise ConfigError(
                f"{name} logits of feature {_FIRST_UNIQUE_ID + np.argmin(finite)} are not finite, nor those"
                f" of {(~finite).sum() - 1:,} others: the model has diverged."
            )
    questions, *found = _search(start_logits, end_logits, features, rules)
    bounds = np.searchsorted(questions, np.arange(len(data.questions) + 1)).tolist()
    begins, ends, starts, stops = (values.tolist() for values in found)  # faster for single values
    answers = Answers({}, {}, {}, {} if rules.version_2_with_negative else None)
    nulls = _null_logits(start_logits, end_logits, features, len(data.questions))
    for number, question in enumerate(data.questions):
        context, texts, spans = data.contexts[question.context], {}, {}
        for at in range(bounds[number], bounds[number + 1]):
            text = context[begins[at] : ends[at]]
            if text not in texts:
                texts[text], spans[text] = (starts[at], stops[at]), (begins[at], ends[at])
                if len(texts) == rules.n_best_size:
                    break
        ranked = list(texts.items())
        best = ranked[0][0] if ranked else ""
        if answers.null_odds is not None:
            null = nulls[number]
            odds = sum(null) - sum(ranked[0][1]) if ranked else NO_WINDOW_ODDS
            answers.null_odds[question.id] = odds
            # "No answer" comes after all entries with an equal or better score, and is always in the list.
            rank = sum(sum(logits) >= sum(null) for _, logits in ranked)
            ranked.insert(rank, ("", null))
            del ranked[max(rules.n_best_size, rank + 1) :]
        has_none = answers.null_odds is not None and odds > rules.null_score_diff_threshold
        answers.predictions[question.id] = "" if has_none else best
        answers.best_texts[question.id], answers.spans[question.id] = best, spans
        ranked = ranked or [("", (0.0, 0.0))]
        scores = np.array([sum(logits) for _, logits in ranked])
        powers = np.exp(scores - scores.max())
        probabilities = (powers / powers.sum()).tolist()
        answers.nbest[question.id] = [
            Entry(text, probability, *logits) for (text, logits), probability in zip(ranked, probabilities)
        ]
    return answers


def write_answers(answers: Answers, folder: str) -> list[str]:
    """Writes predictions.json, nbest_predictions.json and, for version 2, null_odds.json; returns their
    paths. Raises ConfigError."""
    nbest = {identity: [entry._asdict() for entry in entries] for identity, entries in answers.nbest.items()}
    values: dict[str, dict] = {PREDICTIONS: answers.predictions, NBEST_PREDICTIONS: nbest}
    if answers.null_odds is not None:
        values[NULL_ODDS] = answers.null_odds
    paths = [os.path.join(folder, name) for name in values]
    for path, by_question in zip(paths, values.values()):
        # One line per question.
        lines = (f"  {json.dumps(identity)}: {json.dumps(value)}" for identity, value in by_question.items())
        with writing.naming_output(path):
            writing.put_file(path, "{\n" + ",\n".join(lines) + "\n}\n")
    return paths


def _search(
    start_logits: np.ndarray, end_logits: np.ndarray, features: Features, rules: AnswerRules
) -> list[np.ndarray]:
    """Finds the candidates of all windows: the valid pairs of one of the best starts and one of the best
    ends, from the best start on; for a question without such a pair, the best answer of one piece in each
    window.

    Returns:
      For K spans of the contexts, those of a question together, best first (ties in the order of the
      search): the questions' numbers, the first characters, the ends, and the logits of start and end,
      float64.
    """
    columns = start_logits.shape[1]
    may_start, may_end = is_max_context(features)[:, :columns], features.is_context()[:, :columns]
    blocks: list[tuple[np.ndarray, ...]] = [(np.zeros(0, np.int64),) * 3]
    for first in range(0, len(features), _BLOCK_ROWS):
        block = slice(first, first + _BLOCK_ROWS)
        starts = _best(start_logits[block], may_start[block], rules.n_best_size)[:, :, None]
        ends = _best(end_logits[block], may_end[block], rules.n_best_size)[:, None, :]
        lengths = ends - starts + 1
        is_answer = (lengths >= 1) & (lengths <= rules.max_answer_length) & (starts >= 0) & (ends >= 0)
        rows, start, end = np.nonzero(is_answer)
        blocks.append((rows + first, starts[rows, start, 0], ends[rows, 0, end]))
    rows, start_tokens, end_tokens = map(np.concatenate, zip(*blocks))

    is_without = ~np.isin(features.question_numbers, features.question_numbers[rows])
    without = np.flatnonzero(is_without & may_start.any(axis=1))
    if without.size:
        sums = start_logits[without].astype(np.float64) + end_logits[without]
        tokens = np.where(may_start[without], sums, -np.inf).argmax(axis=1)
        rows = np.append(rows, without)
        start_tokens, end_tokens = np.append(start_tokens, tokens), np.append(end_tokens, tokens)

    questions = features.question_numbers[rows]
    starts = start_logits[rows, start_tokens].astype(np.float64)
    stops = end_logits[rows, end_tokens].astype(np.float64)
    order = np.lexsort((-(starts + stops), questions))  # stable
    offsets = features.first_pieces[rows] - features.first_lengths[rows]
    begins, ends = features.piece_begins[offsets + start_tokens], features.piece_ends[offsets + end_tokens]
    return [values[order] for values in (questions, begins, ends, starts, stops)]


def _best(logits: np.ndarray, may: np.ndarray, count: int) -> np.ndarray:
    """Returns int [B, count]: the tokens with the greatest logits among those that `may` allows, greatest
    first, padded with -1."""
    masked = np.where(may, logits, -np.inf)
    tokens = np.argsort(-masked, axis=1, kind="stable")[:, :count]
    return np.where(np.take_along_axis(may, tokens, axis=1), tokens, -1)


def _null_logits(
    start_logits: np.ndarray, end_logits: np.ndarray, features: Features, questions: int
) -> list[tuple[float, float]]:
    """Returns the start and end logits of [CLS] for each question, from the window with the smallest sum;
    zeros without a window."""
    nulls = np.stack([start_logits[:, 0], end_logits[:, 0]], axis=1).astype(np.float64)
    order = np.lexsort((nulls.sum(axis=1), features.question_numbers))  # stable: the first of the least
    numbers, first = np.unique(features.question_numbers[order], return_index=True)
    result = np.zeros((questions, 2))
    result[numbers] = nulls[order[first]]
    return [(start, end) for start, end in result.tolist()]
