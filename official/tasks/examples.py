"""Examples for the report: a few sequences, questions and sentences with the model's predictions.

A group is {"title", "note", "items"}. An item is {"texts": lines, "facts": [[name, value], ...]}; a line is a
list of [text, kind].
Kinds: "" plain, "strong" the question, "right" predicted and true, "wrong" predicted and not true, "gold"
  true and not predicted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from official.data.word_pieces.vocabulary import CONTINUATION, Vocabulary, without_mark

MAX_ITEMS = 6  # items of a group
_MAX_TOKENS = 160  # tokens of a sequence that are shown
_MAX_FACTS = 6  # masked tokens of a sequence whose predictions are listed
_LONG_WORD = 20  # characters
_AROUND = 140  # characters of a passage on each side of an answer
_MORE = "\u2026"


def group(title: str, note: str, items: list[dict]) -> list[dict]:
    """Returns [group], or [] for a group without items."""
    return [{"title": title, "note": note, "items": items}] if items else []


def evenly(items: Sequence) -> list:
    """Returns at most MAX_ITEMS items, evenly spaced."""
    count = min(len(items), MAX_ITEMS)
    return [items[number * len(items) // count] for number in range(count)]


# ------------------------------------------------------------------------------------------------------------
# Pre-training


def word_of(vocabulary: Vocabulary | None) -> Callable[[int], str]:
    """Returns a function id -> word piece; without a vocabulary, or beyond its end, it returns the number."""
    words = vocabulary.words if vocabulary else ()
    return lambda number: words[number] if number < len(words) else f"#{number}"


def masked_sequence(row: dict[str, np.ndarray], word: Callable[[int], str]) -> dict:
    """Returns the item of one sequence.

    Args:
      row: input_ids and input_mask [L], masked_lm_positions, masked_lm_ids and masked_lm_weights [P],
        next_sentence_labels [1], and outputs of the model: top_ids and top_probabilities [P, K], best first,
        and with a next-sentence head random_probability [], of a random second segment.
      word: function as of `word_of`.
    """
    is_masked = row["masked_lm_weights"] > 0
    positions, ids = (row[name][is_masked].tolist() for name in ("masked_lm_positions", "masked_lm_ids"))
    truths = dict(zip(positions, ids))
    guesses = dict(zip(truths, row["top_ids"][is_masked, 0].tolist()))
    lines: list[list[list[str]]] = [[]]
    length = int(row["input_mask"].sum())
    for position, token in enumerate(row["input_ids"][: min(length, _MAX_TOKENS)].tolist()):
        text = word(token)
        if position not in truths and text == "[SEP]":
            lines.append([])
        elif position in truths or text != "[CLS]":
            _append(lines[-1], _pieces(truths.get(position, token), guesses.get(position), word))
    if length > _MAX_TOKENS:
        lines[-1].append([f" {_MORE}", ""])
    return {"texts": [line for line in lines if line], "facts": _masked_facts(row, is_masked, word)}


def _pieces(truth: int, guess: int | None, word: Callable[[int], str]) -> list[list[str]]:
    if guess is None or guess == truth:
        return [[word(truth), "" if guess is None else "right"]]
    return [[word(guess), "wrong"], [word(truth), "gold"]]


def _append(line: list[list[str]], pieces: list[list[str]]) -> None:
    """Adds word pieces to a line; a continuation is joined without a space and its ##, except after a wrong
    guess."""
    joined = bool(line) and pieces[0][0].startswith(CONTINUATION)
    for number, (text, kind) in enumerate(pieces):
        is_end = joined and number == 0  # end of the word before it
        space = "" if not line or is_end else " "
        text = without_mark(text) if is_end else text
        if line and line[-1][1] == kind == "":
            line[-1][0] += space + text
        else:
            if space and line[-1][1] == "":
                line[-1][0] += " "
            elif space:
                line.append([" ", ""])
            line.append([text, kind])


def _masked_facts(
    row: dict[str, np.ndarray], is_masked: np.ndarray, word: Callable[[int], str]
) -> list[list[str]]:
    facts = []
    for number in np.flatnonzero(is_masked)[:_MAX_FACTS]:
        best = zip(row["top_ids"][number].tolist(), row["top_probabilities"][number].tolist())
        guesses = " \u00b7 ".join(f"{word(token)} {probability:.2f}" for token, probability in best)
        facts.append([word(int(row["masked_lm_ids"][number])), guesses])
    hidden = int(is_masked.sum()) - len(facts)
    if hidden > 0:
        facts.append([_MORE, f"{hidden} more masked"])
    if "random_probability" not in row:
        return facts
    is_random, probability = bool(row["next_sentence_labels"][0]), float(row["random_probability"])
    names = ("follows the first", "random")
    sure = max(probability, 1 - probability)
    predicted = f"{names[probability > 0.5]} ({sure:.2f})"
    facts.append(["second segment", f"{names[is_random]}; predicted: {predicted}"])
    return facts


# ------------------------------------------------------------------------------------------------------------
# Questions


def answered_question(
    question: str, context: str, gold: Sequence[str], predicted: str, probability: float, f1: float
) -> dict:
    """Returns the item of a question; the first occurrence of each answer in the context is marked."""
    answers = list(dict.fromkeys(gold))
    facts = [
        ["predicted", f"{predicted or 'no answer'} \u00b7 probability {probability:.2f}"],
        ["accepted", " / ".join(answers) or "no answer"],
        ["F1", f"{f1:.2f}"],
    ]
    return {"texts": [[[question.strip(), "strong"]], passage(context, answers, predicted)], "facts": facts}


def passage(context: str, answers: Sequence[str], predicted: str) -> list[list[str]]:
    """Returns the line of text around two answers: the accepted one that equals the prediction, or else the
    first accepted one, and the predicted one."""
    gold = _span(context, predicted if predicted in answers else next(iter(answers), ""))
    spans = {"gold": gold, "wrong": gold if predicted in answers else _span(context, predicted)}
    windows = [_window(context, *span) for span in spans.values()]
    cuts = sorted({0, len(context), *(at for span in (*spans.values(), *windows) for at in span)})
    line: list[list[str]] = []
    for begin, end in zip(cuts, cuts[1:]):
        inside = {kind for kind, (first, last) in spans.items() if first <= begin and end <= last}
        kind = "right" if len(inside) == 2 else next(iter(inside), "")
        near = any(first <= begin and end <= last for first, last in windows)
        text = context[begin:end] if near else f" {_MORE} "
        if line and line[-1][1] == kind:
            line[-1][0] += text
        else:
            line.append([text, kind])
    return line


def _window(context: str, begin: int, end: int) -> tuple[int, int]:
    """Returns (begin, end) of the text shown around an answer, cut between words unless these are long."""
    first, last = max(0, begin - _AROUND), min(len(context), end + _AROUND)
    before = context.rfind(" ", max(0, first - _LONG_WORD), first)
    behind = context.find(" ", last, last + _LONG_WORD)
    return before + 1 if before >= 0 else first, last if behind < 0 else behind


def _span(context: str, text: str) -> tuple[int, int]:
    """Returns (begin, end) of a text in the context; (0, 0) if it is empty or missing."""
    begin = max(context.find(text), 0)
    return (begin, begin + len(text)) if text and text in context else (0, 0)


# ------------------------------------------------------------------------------------------------------------
# Sentences


def row(texts: Sequence[str], facts: list[list[str]], place: str = "") -> dict:
    """Returns the item of a row of texts; `place` tells where it is in the data."""
    return {
        "texts": [[[text, ""]] for text in texts],
        "facts": [*facts, *([["place", place]] if place else [])],
    }


def surest_mistakes(chances_NC: np.ndarray, truths_N: np.ndarray) -> list[int]:
    """Returns the wrong rows with the highest probabilities, in descending order."""
    called_N = chances_NC.argmax(axis=1)
    wrong = np.flatnonzero(called_N != truths_N)
    return wrong[np.argsort(-chances_NC[wrong, called_N[wrong]], kind="stable")][:MAX_ITEMS].tolist()


def farthest(predictions_N: np.ndarray, truths_N: np.ndarray) -> list[int]:
    """Returns the rows whose predicted scores are farthest from the true ones."""
    return np.argsort(-np.abs(predictions_N - truths_N), kind="stable")[:MAX_ITEMS].tolist()
