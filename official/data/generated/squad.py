"""Files of SQuAD with made-up contexts, questions and answers."""

from __future__ import annotations

import json

from official.data.generated.words import Text

_CONTEXTS, _QUESTIONS = {"train": 200, "dev": 20}, 5  # of a file; of a context
_CONTEXT, _QUESTION, _ANSWER = (30, 300), (5, 12), (1, 4)  # words


def write(path: str, split: str, text: Text, with_negative: bool) -> str:
    """Writes a file and returns its path.

    Args:
      path: to write to, of this machine.
      split: train or dev, which is smaller.
      text: draws the words.
      with_negative: as version 2.0: a third of the questions has no answer.
    """
    paragraphs = [_paragraph(f"{split}{number}", text, with_negative) for number in range(_CONTEXTS[split])]
    values = {
        "version": "v2.0" if with_negative else "1.1",
        "data": [{"title": "made up", "paragraphs": paragraphs}],
    }
    with open(path, "w", encoding="utf-8") as file:
        json.dump(values, file)
    return path


def _paragraph(name: str, text: Text, with_negative: bool) -> dict:
    words = text.words(*_CONTEXT)
    questions = [
        _question(f"{name}-{number}", words, text, with_negative and number % 3 == 0)
        for number in range(_QUESTIONS)
    ]
    return {"context": " ".join(words), "qas": questions}


def _question(identity: str, words: list[str], text: Text, impossible: bool) -> dict:
    first = text.below(len(words) - _ANSWER[1])
    end = first + _ANSWER[0] + text.below(_ANSWER[1])
    start = len(" ".join(words[:first])) + (first > 0)
    answer = {"text": " ".join(words[first:end]), "answer_start": start}
    return {
        "id": identity,
        "question": text.sentence(*_QUESTION),
        "answers": [] if impossible else [answer],
        "is_impossible": impossible,
    }
