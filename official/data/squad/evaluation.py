"""The official measures of SQuAD v1.1 and v2.0, to the last digit, and scores by kind of question.

A prediction and an answer are compared in lower case, without punctuation and articles. A question's score
is the best over its answers; all results are in percent. Sums are taken in the order of the file, as in the
published scripts.

Source: https://rajpurkar.github.io/SQuAD-explorer/, evaluate-v1.1.py and evaluate-v2.0.py.
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Callable, Container, Iterable, Mapping
from typing import NamedTuple

from official.io.errors import ConfigError

AcceptedAnswers = Mapping  # {question id: answers, empty if it cannot be answered}

_ARTICLE = re.compile(r"\b(a|an|the)\b")
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)
_QUESTION_WORDS = ("what", "who", "when", "where", "which", "how", "why")
_FORMS = {**{word: word for word in _QUESTION_WORDS}, "whom": "who", "whose": "who"}
_LENGTHS = {1: "1", 2: "2", 4: "3-4", 8: "5-8", 16: "9-16"}  # {maximum number of words: name}
_OTHER, _LONGER, _NO_ANSWER = "other", "17+", "no answer"


class Scores(NamedTuple):
    """Scores from 0 to 1 of the questions with a prediction, in the order of the file."""

    exact: dict[str, float]
    f1: dict[str, float]


def normalize(text: str) -> str:
    """Returns a text in lower case, without ASCII punctuation, English articles and redundant white space."""
    return " ".join(_ARTICLE.sub(" ", text.lower().translate(_NO_PUNCTUATION)).split())


def f1_of(same: int, predicted: int, gold: int) -> float:
    """Returns the harmonic mean of precision and recall, given the number of common tokens; 0 without any."""
    if same == 0:
        return 0
    precision, recall = same / predicted, same / gold
    return 2 * precision * recall / (precision + recall)


def word_f1(gold: str, predicted: str) -> float:
    """Returns the F1 of the words of two normalized texts; 0 without a common word."""
    words, called = gold.split(), predicted.split()
    return f1_of(sum((Counter(words) & Counter(called)).values()), len(called), len(words))


def missing_predictions(gold: Iterable[str], predictions: Container[str]) -> list[str]:
    """Returns the question ids in `gold` without a prediction."""
    return [identity for identity in gold if identity not in predictions]


# ------------------------------------------------------------------------------------------------------------
# Version 1


def score_v1(gold: AcceptedAnswers, predictions: Mapping[str, str]) -> Scores:
    """Scores every question that has a prediction. Raises ConfigError for a question without an answer."""
    without = next((identity for identity, answers in gold.items() if not answers), None)
    if without is not None:
        raise ConfigError(
            f"question {without} has no answer, as in SQuAD v2.0. Evaluate its file with"
            " scripts/evaluate_squad_v2.py."
        )
    return _score(gold, predictions, normalize, word_f1)


def evaluate_v1(gold: AcceptedAnswers, predictions: Mapping[str, str]) -> dict[str, float]:
    """Returns exact_match and f1 over all questions; one without a prediction counts as 0."""
    scores = score_v1(gold, predictions)
    if not gold:
        raise ConfigError("the data hold no question, so there is nothing to evaluate.")
    return of_all(gold, scores)


def of_all(gold: AcceptedAnswers, scores: Scores) -> dict[str, float]:
    """Returns exact_match and f1 over all questions, in percent; one without a score counts as 0."""
    means = (100.0 * sum(values.values()) / len(gold) for values in scores)
    return dict(zip(("exact_match", "f1"), means))


def _score(
    gold: AcceptedAnswers,
    predictions: Mapping[str, str],
    plain: Callable[[str], str],
    f1: Callable[[str, str], float],
) -> Scores:
    """Scores predictions; `plain` normalizes a text, and `f1` compares two normalized texts."""
    scores = Scores({}, {})
    for identity, answers in gold.items():
        if identity in predictions:
            predicted, wanted = plain(predictions[identity]), list(map(plain, answers))
            scores.exact[identity] = int(predicted in wanted)
            scores.f1[identity] = max(f1(answer, predicted) for answer in wanted)
    return scores


# ------------------------------------------------------------------------------------------------------------
# By characters
#
# Source: the evaluation script of CMRC 2018, https://github.com/ymcui/cmrc2018. Ideographs and words of other
# scripts are tokens, the punctuation in its list is ignored, and F1 is based on the longest common substring.
# A regular expression replaces nltk's tokenizer.


WORDS, CHARACTERS = ("words", "characters")
_SKIPPED = set("-:_*^/\\~`+=\u00b7\u2019\u201c\u201d\u3001\u3002\u300a\u300b\u300c\u300d\u300e\u300f")
_SKIPPED |= set("\uff01\uff08\uff09\uff0c\uff0d\uff1a\uff1b\uff1f\uff5e")
_CJK_TOKENS = re.compile(r"[\u4e00-\u9fa5]|\d+(?:[.,]\d+)*|[^\W\u4e00-\u9fa5]+|[^\w\s]")
_CJK = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af\uf900-\ufaff]")


def unit_of(gold: AcceptedAnswers) -> str:
    """Returns the unit of scoring: characters if most letters of the answers are Chinese, Japanese or Korean,
    else words."""
    text = "".join(answer for answers in gold.values() for answer in answers[:1])
    letters = sum(character.isalpha() for character in text)
    return CHARACTERS if 2 * len(_CJK.findall(text)) > letters else WORDS


def score_characters(gold: AcceptedAnswers, predictions: Mapping[str, str]) -> Scores:
    """Scores every question that has a prediction; '' is right for a question without an answer."""
    kept = {identity: answers or [""] for identity, answers in gold.items()}
    return _score(kept, predictions, _plain, _stretch_f1)


def _plain(text: str) -> str:
    return "".join(character for character in text.lower().strip() if character not in _SKIPPED)


def _stretch_f1(answer: str, predicted: str) -> float:
    if not answer or not predicted:
        return float(answer == predicted)
    wanted, called = _CJK_TOKENS.findall(answer), _CJK_TOKENS.findall(predicted)
    longest, row = 0, [0] * (len(called) + 1)
    for token in wanted:
        row = [0, *(before + 1 if token == other else 0 for before, other in zip(row, called))]
        longest = max(longest, *row)
    return f1_of(longest, len(called), len(wanted))


# ------------------------------------------------------------------------------------------------------------
# Version 2


def score_v2(gold: AcceptedAnswers, predictions: Mapping[str, str]) -> Scores:
    """Scores every question that has a prediction; '' is right for a question without an answer.

    Answers that consist only of articles and punctuation do not count.
    """
    kept = {
        identity: [answer for answer in answers if normalize(answer)] or [""]
        for identity, answers in gold.items()
    }

    def f1(answer: str, predicted: str) -> float:
        return word_f1(answer, predicted) if answer and predicted else int(answer == predicted)

    return _score(kept, predictions, normalize, f1)


def evaluate_v2(
    gold: AcceptedAnswers,
    predictions: Mapping[str, str],
    na_probs: Mapping[str, float] | None = None,
    na_prob_thresh: float = 1.0,
) -> dict[str, float]:
    """Returns the official measures over the questions with a prediction.

    Args:
      na_probs: {question id: no-answer probability, on any scale}; adds best_exact, best_f1 and their
        thresholds. None: 0 for all.
      na_prob_thresh: the prediction of a question above this threshold counts as ''.

    Raises:
      ConfigError: if no question has a prediction, or a predicted question has no probability.
    """
    scores = score_v2(gold, predictions)
    _check(scores, na_probs)
    odds = dict.fromkeys(scores.exact, 0.0) if na_probs is None else na_probs
    unanswered = {identity for identity in scores.exact if odds[identity] > na_prob_thresh}
    counted = Scores(
        *(
            {name: float(not gold[name]) if name in unanswered else value for name, value in kind.items()}
            for kind in scores
        )
    )
    has_answer = {identity: bool(gold[identity]) for identity in scores.exact}
    result = {}
    for prefix, kinds in (("", (True, False)), ("HasAns_", (True,)), ("NoAns_", (False,))):
        identities = [identity for identity, has in has_answer.items() if has in kinds]
        if identities:
            values = {**_means(counted, identities), "total": len(identities)}
            result.update({f"{prefix}{name}": value for name, value in values.items()})
    if na_probs is not None:
        result.update(best_thresholds(gold, predictions, na_probs))
    return result


def _check(scores: Scores, na_probs: Mapping[str, float] | None) -> None:
    if not scores.exact:
        raise ConfigError(
            "no question of the data has a prediction, so there is nothing to evaluate. Do both files belong"
            " together?"
        )
    if na_probs is not None and (without := missing_predictions(scores.exact, na_probs)):
        raise ConfigError(
            f"{len(without):,} of {len(scores.exact):,} predicted questions have no no-answer probability"
            f" ({without[0]}, ..)."
        )


def _means(scores: Scores, identities: list[str]) -> dict[str, float]:
    return {
        name: 100.0 * sum(kind[identity] for identity in identities) / len(identities)
        for name, kind in scores._asdict().items()
    }


def best_thresholds(
    gold: AcceptedAnswers, predictions: Mapping[str, str], na_probs: Mapping[str, float], lowest: float = 0.0
) -> dict[str, float]:
    """Returns best_exact and best_f1, and their thresholds: questions with `na_probs` up to the threshold are
    answered.

    To choose null_score_diff_threshold, pass the best texts as predictions, which are never '', the null odds
    as `na_probs`, and a value below all of them as `lowest`.

    Args:
      lowest: the threshold for answering no question at all.
    """
    result = {}
    for name, scores in score_v2(gold, predictions)._asdict().items():
        current = best = float(sum(not gold[identity] for identity in scores))
        threshold = lowest
        for identity in _surest_first(na_probs, scores):
            current += scores[identity] if gold[identity] else -bool(predictions[identity])
            if current > best:
                best, threshold = current, na_probs[identity]
        result[f"best_{name}"], result[f"best_{name}_thresh"] = 100.0 * best / len(scores), threshold
    return result


def _surest_first(na_probs: Mapping[str, float], scores: Mapping[str, float]) -> list[str]:
    """Returns the scored questions by ascending no-answer probability, ties in the order of the file."""
    return sorted((identity for identity in na_probs if identity in scores), key=na_probs.__getitem__)


class Curve(NamedTuple):
    """Precision-recall curve from (1, 0) on, one point per threshold; `average` is the average precision in
    percent."""

    precisions: list[float]
    recalls: list[float]
    average: float


def precision_recall(
    gold: AcceptedAnswers, predictions: Mapping[str, str], na_probs: Mapping[str, float]
) -> dict[str, Curve]:
    """Returns the curves pr_exact, pr_f1 and pr_oracle, whose score is 1 for questions with an answer; empty
    if no question has one."""
    scores = score_v2(gold, predictions)
    _check(scores, na_probs)
    if not any(gold.values()):
        return {}
    oracle = {identity: float(bool(gold[identity])) for identity in scores.exact}
    return {
        name: _curve(gold, na_probs, kind)
        for name, kind in (("pr_exact", scores.exact), ("pr_f1", scores.f1), ("pr_oracle", oracle))
    }


def _curve(gold: AcceptedAnswers, na_probs: Mapping[str, float], scores: Mapping[str, float]) -> Curve:
    order = _surest_first(na_probs, scores)
    answerable = sum(map(bool, gold.values()))
    found, average, precisions, recalls = 0.0, 0.0, [1.0], [0.0]
    for number, identity in enumerate(order, 1):
        if gold[identity]:
            found += scores[identity]
        # A threshold is only possible between different probabilities.
        if number == len(order) or na_probs[identity] != na_probs[order[number]]:
            precisions.append(found / number)
            recalls.append(found / answerable)
            average += precisions[-1] * (recalls[-1] - recalls[-2])
    return Curve(precisions, recalls, 100.0 * average)


# ------------------------------------------------------------------------------------------------------------
# By kind of question


def by_question_word(questions: Mapping[str, str], scores: Scores) -> dict[str, dict[str, float]]:
    """Returns {question word: count, exact and f1 in percent} of the scored questions; kinds without a
    question are left out. The first question word counts, at any position ("In what year"): "whose" counts as
    who, "what's" as what.

    Args:
      questions: {question id: text}.
    """

    def kind_of(identity: str) -> str:
        words = re.findall("[a-z]+", questions[identity].lower())
        return next((_FORMS[word] for word in words if word in _FORMS), _OTHER)

    return _by_kind(kind_of, scores, (*_QUESTION_WORDS, _OTHER))


def by_answer_length(gold: AcceptedAnswers, scores: Scores) -> dict[str, dict[str, float]]:
    """Returns {words of the first answer: count, exact and f1 in percent} of the scored questions; kinds
    without a question are left out."""

    def kind_of(identity: str) -> str:
        if not gold[identity]:
            return _NO_ANSWER
        length = len(gold[identity][0].split())
        return next((name for most, name in _LENGTHS.items() if length <= most), _LONGER)

    return _by_kind(kind_of, scores, (*_LENGTHS.values(), _LONGER, _NO_ANSWER))


def _by_kind(
    kind_of: Callable[[str], str], scores: Scores, names: Iterable[str]
) -> dict[str, dict[str, float]]:
    members: dict[str, list[str]] = {name: [] for name in names}
    for identity in scores.exact:
        members[kind_of(identity)].append(identity)
    return {
        name: {"count": len(identities), **_means(scores, identities)}
        for name, identities in members.items()
        if identities
    }
