"""Logits of windows -> answers to questions."""

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
from official.io.errors import ConfigError

# -----------------------------------------------------------------------------------------------------------
# Windows with the most context


_CONTEXT_BLOCK_ROWS = 4096  # are compared at once


def is_max_context(features: Features) -> np.ndarray:
    """Returns bool [N, L]: whether a token is a piece of the context, and none of the question's other
    windows shows it better.

    A window shows a piece by the smaller of the numbers of pieces on its left and right, plus 0.01 of the
    window's length; the first of the best windows counts.

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
    """Returns how well each of the windows [B] shows the tokens of each of the rows [B]: float64 [B, L], -inf
    where it does not."""
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
# Source: https://github.com/google-research/bert, run_squad.py, write_predictions. Three differences, all of
# which can only help:
#   - The best starts and ends are looked for among the tokens that an answer may have, so tokens of the
#     question, padding and pieces that another window shows better do not take the places of the best.
#   - An answer's text is the stretch of the context from its first to its last word piece. The source takes
#     the
#     words and strips what it can by comparing texts, and gives whole words, with their punctuation, where
#     that
#     fails.
#   - A question with a window always has an answer in its n-best list; the source writes "empty" or fails.


PREDICTIONS, NBEST_PREDICTIONS, NULL_ODDS = "predictions.json", "nbest_predictions.json", "null_odds.json"
NO_WINDOW_ODDS = 1e6  # of "no answer", for a question that cannot be asked: above any threshold
_BLOCK_ROWS = 2048  # are searched at once


@dataclasses.dataclass(frozen=True)
class AnswerRules:
    """Rules for choosing answers; the fields are the flags of the same names."""

    n_best_size: int = 20
    max_answer_length: int = 30  # word pieces
    version_2_with_negative: bool = False
    null_score_diff_threshold: float = 0.0

    def check(self) -> None:
        """Raises ConfigError for values out of range."""
        for name in ("n_best_size", "max_answer_length"):
            if getattr(self, name) < 1:
                raise ConfigError(f"--{name}={getattr(self, name)} is out of range. Allowed: 1 or more.")


class Entry(NamedTuple):
    """A line of an n-best list; the fields are the published names."""

    text: str
    probability: float
    start_logit: float
    end_logit: float


@dataclasses.dataclass(frozen=True)
class Answers:
    """The answers to all questions of the data, in its order, by question id."""

    predictions: dict[str, str]  # '' for no answer
    nbest: dict[str, list[Entry]]  # never empty, best first
    best_texts: dict[str, str]  # the best answer that is one; '' for a question without a window
    null_odds: dict[str, float] | None  # score of no answer minus that of the best one; None for version 1
    # {text: (its first character in the context, the one behind its last)} of all candidates
    spans: dict[str, dict[str, tuple[int, int]]] = dataclasses.field(default_factory=dict)


def answer_questions(
    start_logits: np.ndarray, end_logits: np.ndarray, features: Features, data: SquadData, rules: AnswerRules
) -> Answers:
    """Finds the answers to all questions.

    Args:
      start_logits, end_logits: float [N, L] of the features, in their order; columns may be missing where all
        rows are padding.
      features: of the data.
      rules: as above.

    Raises:
      ConfigError: for rules out of range, logits of another shape, or a logit that is not finite.
    """
    rules.check()
    _check_logits(start_logits, end_logits, features)
    candidates = _search(start_logits, end_logits, features, rules)
    starts = np.searchsorted(candidates.questions, np.arange(len(data.questions) + 1)).tolist()
    nulls: list[tuple[float, float] | None] = [None] * len(data.questions)
    if rules.version_2_with_negative:
        nulls = _null_logits(start_logits, end_logits, features, len(data.questions))
    answers = Answers({}, {}, {}, {} if rules.version_2_with_negative else None)
    columns = candidates.lists()
    for number, question in enumerate(data.questions):
        found, answers.spans[question.id] = _distinct(
            columns, starts[number], starts[number + 1], data.contexts[question.context], rules.n_best_size
        )
        _add(answers, question.id, found, nulls[number], rules)
    return answers


def write_answers(answers: Answers, folder: str) -> list[str]:
    """Writes predictions.json, nbest_predictions.json and, for version 2, null_odds.json; returns their
    paths. Raises ConfigError."""
    nbest = {identity: [entry._asdict() for entry in entries] for identity, entries in answers.nbest.items()}
    values: dict[str, dict] = {PREDICTIONS: answers.predictions, NBEST_PREDICTIONS: nbest}
    if answers.null_odds is not None:
        values[NULL_ODDS] = answers.null_odds
    for name, by_question in values.items():
        path = os.path.join(folder, name)
        # A line per question.
        lines = (f"  {json.dumps(identity)}: {json.dumps(value)}" for identity, value in by_question.items())
        try:
            os.makedirs(folder, exist_ok=True)
            writing.replace_file(path, "{\n" + ",\n".join(lines) + "\n}\n")
        except OSError as error:
            raise ConfigError(f"{path} cannot be written: {error.strerror or error}.") from None
    return [os.path.join(folder, name) for name in values]


def _check_logits(start_logits: np.ndarray, end_logits: np.ndarray, features: Features) -> None:
    longest = int(features.lengths.max(initial=0))
    for name, logits in (("start", start_logits), ("end", end_logits)):
        rows, columns = features.input_ids.shape
        if logits.ndim != 2 or len(logits) != rows or not longest <= logits.shape[1] <= columns:
            raise ConfigError(
                f"{name} logits have the shape {logits.shape}. Expected {rows} rows, one per feature, of"
                f" {longest} to {columns} columns."
            )
        finite = np.isfinite(logits).all(axis=1)
        if not finite.all():
            raise ConfigError(
                f"{name} logits of feature {features.unique_ids[np.argmin(finite)]} are not finite, nor those"
                f" of {(~finite).sum() - 1:,} others: the model has diverged."
            )


# ------------------------------------------------------------------------------------------------------------
# Candidates


class _Candidates(NamedTuple):
    """Stretches of the contexts, those of a question one after the other, best first; ties stand as they were
    found."""

    questions: np.ndarray  # [K] their numbers, ascending
    begins: np.ndarray  # [K] first characters
    ends: np.ndarray  # [K] the characters behind the last ones
    starts: np.ndarray  # [K] float64: logits
    stops: np.ndarray  # [K] float64

    def lists(self) -> tuple[list, ...]:
        """Returns begins, ends, starts and stops as lists: much faster to look at one by one."""
        return tuple(values.tolist() for values in self[1:])


def _search(
    start_logits: np.ndarray, end_logits: np.ndarray, features: Features, rules: AnswerRules
) -> _Candidates:
    """Finds the candidates of all windows: every pair of one of the best starts and one of the best ends that
    is an answer, from the best start of a window on; in each window of a question that has no such pair, the
    best answer of one piece."""
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
    return _Candidates(questions[order], begins[order], ends[order], starts[order], stops[order])


def _best(logits: np.ndarray, may: np.ndarray, count: int) -> np.ndarray:
    """Returns int [B, count]: the tokens of the greatest logits where `may` allows it, in their order; -1 for
    none left."""
    masked = np.where(may, logits, -np.inf)
    tokens = np.argsort(-masked, axis=1, kind="stable")[:, :count]
    return np.where(np.take_along_axis(may, tokens, axis=1), tokens, -1)


# ------------------------------------------------------------------------------------------------------------
# One question


def _distinct(
    columns: tuple[list, ...], first: int, last: int, context: str, count: int
) -> tuple[dict[str, tuple[float, float]], dict[str, tuple[int, int]]]:
    """Returns {text: (start logit, end logit)} of the best candidates `first` up to `last` with different
    texts, at most `count`, and {text: (first character, the one behind the last)}."""
    begins, ends, starts, stops = columns
    found, spans = {}, {}
    for number in range(first, last):
        text = context[begins[number] : ends[number]]
        if text not in found:
            found[text], spans[text] = (starts[number], stops[number]), (begins[number], ends[number])
            if len(found) == count:
                break
    return found, spans


def _add(
    answers: Answers,
    identity: str,
    found: dict[str, tuple[float, float]],
    null: tuple[float, float] | None,
    rules: AnswerRules,
) -> None:
    """Adds a question's n-best list and prediction."""
    texts = list(found.items())
    answers.best_texts[identity] = answers.predictions[identity] = texts[0][0] if texts else ""
    if null is not None and answers.null_odds is not None:
        odds = sum(null) - sum(texts[0][1]) if texts else NO_WINDOW_ODDS
        answers.null_odds[identity] = odds
        if odds > rules.null_score_diff_threshold:
            answers.predictions[identity] = ""
        texts = _with_null(texts, null, rules.n_best_size)
    answers.nbest[identity] = _with_probabilities(texts or [("", (0.0, 0.0))])


def _with_null(texts: list, null: tuple[float, float], count: int) -> list:
    """Puts "no answer" behind all that is no worse; it stands in the list, however long the list becomes."""
    rank = sum(sum(logits) >= sum(null) for _, logits in texts)
    ranked = [*texts[:rank], ("", null), *texts[rank:]]
    return ranked[: max(count, rank + 1)]


def _with_probabilities(texts: list) -> list[Entry]:
    """Adds the softmax of the scores."""
    scores = np.array([sum(logits) for _, logits in texts])
    powers = np.exp(scores - scores.max())
    return [
        Entry(text, probability, *logits)
        for (text, logits), probability in zip(texts, (powers / powers.sum()).tolist())
    ]


def _null_logits(
    start_logits: np.ndarray, end_logits: np.ndarray, features: Features, questions: int
) -> list[tuple[float, float] | None]:
    """Returns start and end logit of [CLS] in the window of each question where their sum is least; zeros
    without a window."""
    starts, ends = (logits[:, 0].astype(np.float64) for logits in (start_logits, end_logits))
    order = np.lexsort((starts + ends, features.question_numbers))  # stable: the first of the least
    numbers, first = np.unique(features.question_numbers[order], return_index=True)
    least = order[first]
    result = np.zeros((questions, 2))
    result[numbers] = np.stack([starts[least], ends[least]], axis=1)
    return [(start, end) for start, end in result.tolist()]
