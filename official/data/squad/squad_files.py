"""SQuAD files, v1.1 and v2.0 -> contexts and questions; what cannot be used of them is counted and named."""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from collections.abc import Iterator

from official.io import json_files
from official.io.errors import ConfigError
from official.io.json_files import expect

SPACES = (
    " \t\r\n\u202f"  # between words; other white space belongs to a word, which the tokenizer splits later
)
WORD = re.compile(f"[^{SPACES}]+")
_LONE_SURROGATE = re.compile("[\ud800-\udfff]")  # half a character: JSON can spell one, UTF-8 cannot


@dataclasses.dataclass(frozen=True)
class Question:
    """One question about a context. Answers may be missing where the file is only to be answered."""

    id: str
    text: str
    context: int  # its number among the contexts
    answers: tuple[str, ...]
    answer_starts: tuple[int, ...]  # in characters of the context, one per answer
    is_impossible: bool

    @property
    def is_empty(self) -> bool:
        return not self.text.strip()


@dataclasses.dataclass(frozen=True)
class SquadData:
    """A file, in its order. `skipped_questions` stand in it but not in `questions`; `empty_questions` stand
    in both."""

    path: str
    sha256: str  # of the file
    version: str
    for_training: bool
    version_2_with_negative: bool
    titles: list[str]  # of the article of each context
    contexts: list[str]
    questions: list[Question]  # those of a context one after the other, in the order of the contexts
    skipped_questions: dict[str, str]  # {question id: why it cannot be trained on}
    empty_questions: list[str]  # their ids; the answer to them is ''


@dataclasses.dataclass(frozen=True)
class GoldAnswers:
    """What the official measures need of a file, in its order."""

    version: str
    answers: dict[str, list[str]]  # {question id: answers, none where it cannot be answered}
    questions: dict[str, str]  # {question id: text, '' where the file has none}


def read_squad(path: str, flag: str, for_training: bool, version_2_with_negative: bool) -> SquadData:
    """Reads a file that is to be trained on or answered.

    Training takes the first answer of a question. A question is skipped, and named in the result, where it is
    empty, has no answer though it is not marked impossible, or its answer does not stand in the context at
    `answer_start`.

    Args:
      path: the file.
      flag: name of the flag that gave it, for messages.
      for_training: whether answers are needed.
      version_2_with_negative: whether questions may be impossible to answer.

    Raises:
      ConfigError: for a file that cannot be read, is not SQuAD's JSON, has a question id twice, or has
        impossible questions where they are not allowed.

    Source: https://github.com/google-research/bert, run_squad.py, read_squad_examples.
    """
    root, sha256 = _load(path, f"--{flag}={path}")
    titles, contexts, questions = [], [], []
    for paragraph in _paragraphs(root, f"--{flag}={path}"):
        titles.append(_text(paragraph.article, "title", paragraph.where, default=""))
        contexts.append(_text(paragraph.values, "context", paragraph.where))
        questions += [
            _question(values, where, len(contexts) - 1, for_training)
            for where, values in paragraph.questions()
        ]
    _check_questions(questions, f"--{flag}={path}", version_2_with_negative)
    skipped = {
        question.id: reason
        for question in questions
        if for_training and (reason := _reason_to_skip(question, contexts[question.context]))
    }
    return SquadData(
        path=path,
        sha256=sha256,
        version=_version(root, path),
        for_training=for_training,
        version_2_with_negative=version_2_with_negative,
        titles=titles,
        contexts=contexts,
        questions=[question for question in questions if question.id not in skipped],
        skipped_questions=skipped,
        empty_questions=[
            question.id for question in questions if question.is_empty and question.id not in skipped
        ],
    )


def read_gold_answers(path: str) -> GoldAnswers:
    """Reads ids and answers of a file, and nothing else of it. Raises ConfigError for what is not SQuAD's
    JSON."""
    root, _ = _load(path, path)
    gold = GoldAnswers(version=_version(root, path), answers={}, questions={})
    for paragraph in _paragraphs(root, path):
        for where, values in paragraph.questions():
            identity = _text(values, "id", where)
            if identity in gold.answers:
                raise ConfigError(f"{where}: question id {identity} stands in the file twice.")
            answers = expect(values, "answers", list, where)
            gold.answers[identity] = [
                _text(answer, "text", f"{where}.answers[{number}]") for number, answer in enumerate(answers)
            ]
            gold.questions[identity] = _text(values, "question", where, default="")
    return gold


def read_by_question(path: str, kinds: tuple[type, ...], expected: str) -> dict:
    """Reads a JSON object from question ids to values of some kinds: predictions, no-answer probabilities.

    Raises:
      ConfigError: for another file; `expected` tells what was, e.g. "texts".
    """
    values = json_files.read_json(path, kind=(dict, list))
    if not isinstance(values, dict):
        raise ConfigError(
            f"{path}: expected an object from question ids to {expected}, got {json_files.kind_of(values)}."
        )
    wrong = next(
        (identity for identity, value in values.items() if not json_files.is_of_kind(value, kinds)), None
    )
    if wrong is not None:
        raise ConfigError(
            f"{path}: question {wrong} has {json_files.kind_of(values[wrong])}. Expected an object from"
            f" question ids to {expected}."
        )
    return values


# ------------------------------------------------------------------------------------------------------------
# JSON


@dataclasses.dataclass(frozen=True)
class _Paragraph:
    article: dict
    values: dict
    where: str

    def questions(self) -> Iterator[tuple[str, dict]]:
        """Yields (place in the file, JSON value)."""
        for number, values in enumerate(expect(self.values, "qas", list, self.where)):
            yield f"{self.where}.qas[{number}]", values


def _load(path: str, source: str) -> tuple[dict, str]:
    root, sha256 = json_files.read_json_digest(path, source, (dict, list))
    expect(root, "data", list, source)  # so it is an object
    return root, sha256


def _version(root: dict, source: str) -> str:
    return str(expect(root, "version", (str, int, float), source, default=""))


def _paragraphs(root: dict, source: str) -> Iterator[_Paragraph]:
    for number, article in enumerate(root["data"]):
        where = f"{source}: data[{number}]"
        for inner, values in enumerate(expect(article, "paragraphs", list, where)):
            yield _Paragraph(article, values, f"{where}.paragraphs[{inner}]")


def _text(values, key: str, where: str, default: str | None = None) -> str:
    """Returns a text; half characters become U+FFFD, so that offsets stay and it can be written."""
    if default is not None and isinstance(values, dict) and key not in values:
        return default
    text = expect(values, key, str, where)
    return text if text.isascii() else _LONE_SURROGATE.sub("\ufffd", text)


# ------------------------------------------------------------------------------------------------------------
# Questions


def _question(values, where: str, context: int, for_training: bool) -> Question:
    identity = _text(values, "id", where)
    answers = expect(values, "answers", list, where) if for_training or "answers" in values else []
    places = [f"{where}.answers[{number}]" for number in range(len(answers))]
    return Question(
        id=identity,
        text=_text(values, "question", where),
        context=context,
        answers=tuple(_text(answer, "text", place) for place, answer in zip(places, answers)),
        answer_starts=tuple(
            expect(answer, "answer_start", int, place) for place, answer in zip(places, answers)
        )
        if for_training
        else (),
        is_impossible="is_impossible" in values and expect(values, "is_impossible", bool, where),
    )


def _check_questions(questions: list[Question], source: str, version_2_with_negative: bool) -> None:
    if not questions:
        raise ConfigError(f"{source} holds no question.")
    identity, times = Counter(question.id for question in questions).most_common(1)[0]
    if times > 1:
        raise ConfigError(f"{source}: question id {identity} stands in the file {times} times.")
    impossible = [question.id for question in questions if question.is_impossible]
    if impossible and not version_2_with_negative:
        raise ConfigError(
            f"{source}: {len(impossible):,} of {len(questions):,} questions are marked impossible to answer"
            f" ({impossible[0]}, ..), as in SQuAD v2.0. Set --version_2_with_negative, or give a file of"
            " v1.1."
        )


def _reason_to_skip(question: Question, context: str) -> str | None:
    """Returns why a question cannot be trained on, or None."""
    if question.is_empty:
        return "empty question"
    if question.is_impossible:
        return None
    if not question.answers:
        return "no answer"
    if not _covers_answer(context, question.answers[0], question.answer_starts[0]):
        return "answer not in the context at answer_start"
    return None


def _covers_answer(context: str, answer: str, begin: int) -> bool:
    """Returns whether the words from character `begin` on, for the length of the answer, contain it.

    Words and answer are compared with single spaces between words, so an answer may begin within a word.

    Source: https://github.com/google-research/bert, run_squad.py, read_squad_examples.
    """
    last = begin + len(answer) - 1
    if not answer or begin < 0 or last >= len(context):
        return False
    first_word_begin = _word_begin(context, begin)
    last_word_end = WORD.match(context, _word_begin(context, last))
    touched = (
        WORD.findall(context, first_word_begin, last_word_end.end())
        if first_word_begin >= 0 and last_word_end
        else []
    )
    return bool(touched) and " ".join(answer.split()) in " ".join(touched)


def _word_begin(context: str, place: int) -> int:
    """Returns the first character of the word at a place, or of the word before it; -1 without one."""
    while place >= 0 and context[place] in SPACES:
        place -= 1
    if place < 0:
        return -1
    return max(context.rfind(space, 0, place) for space in SPACES) + 1
