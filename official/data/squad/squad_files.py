"""Reads contexts and questions from SQuAD files, v1.1 and v2.0, and lists unusable questions."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import re
import unicodedata
from collections import Counter
from collections.abc import Iterator
from typing import Any

from absl import logging

from official.data.tables.files import open_table
from official.io import files, json_files
from official.io.errors import ConfigError
from official.io.json_files import expect

SPACES = (
    " \t\r\n\u202f"  # between words; other white space belongs to a word, which the tokenizer splits later
)
WORD = re.compile(f"[^{SPACES}]+")
_SENTENCE_END = re.compile(r"[.!?]+(?=\s|$)|[\u3002\uff01\uff1f]|\n")
_LONE_SURROGATE = re.compile("[\ud800-\udfff]")  # JSON can encode one, UTF-8 cannot


@dataclasses.dataclass(frozen=True)
class Question:
    """A question about a context. Answers may be missing in a file for prediction."""

    id: str
    text: str
    context: int  # number of its context
    answers: tuple[str, ...]
    answer_starts: tuple[int, ...]  # in characters of the context, one per answer
    is_impossible: bool
    # First character and end of the first answer, if it is at `answer_start` but the published rule, which
    # compares words, does not find it.
    exact_span: tuple[int, int] | None = None

    @property
    def is_empty(self) -> bool:
        return not self.text.strip()


@dataclasses.dataclass(frozen=True)
class SquadData:
    """Contents of a file, in its order. `questions` does not have the `skipped_questions`, but it has the
    `empty_questions`."""

    path: str
    sha256: str  # hash of the file
    for_training: bool
    version_2_with_negative: bool
    contexts: list[str]
    questions: list[Question]  # in the order of the contexts
    skipped_questions: dict[str, str]  # {question id: reason why it cannot be trained on}
    empty_questions: list[str]  # ids of questions without text

    def sentence_of(self, question: Question) -> str:
        """Returns the sentence with the first answer to a question; without an answer, the first sentence of
        the context."""
        context = self.contexts[question.context]
        start = min(max(question.answer_starts[0], 0), len(context)) if question.answer_starts else 0
        end = start + len(question.answers[0]) if question.answers else start
        ends = [match.end() for match in _SENTENCE_END.finditer(context)]
        first = max((at for at in ends if at <= start), default=0)
        return context[first : min((at for at in ends if at >= end and at > start), default=len(context))]


@dataclasses.dataclass(frozen=True)
class GoldAnswers:
    """Gold answers of a file, for the official measures, in its order."""

    version: str
    answers: dict[str, list[str]]  # {question id: answers, empty if it cannot be answered}
    questions: dict[str, str]  # {question id: text, '' if the file has none}


def read_squad(path: str, flag: str, for_training: bool, version_2_with_negative: bool) -> SquadData:
    """Reads a file for training or prediction.

    Training uses the first answer of a question. A question is skipped, and listed in the result, if it is
    empty, has no answer but is not marked impossible, or its answer is not in the context at `answer_start`,
    neither by the published rule nor character by character (`_exact_span`).

    Args:
      path: path of the file.
      flag: name of the flag that gave it, for messages.
      for_training: whether answers are needed.
      version_2_with_negative: whether questions may be impossible to answer.

    Raises:
      ConfigError: for a file that cannot be read, is not in SQuAD's format, has a question id twice, or has
        impossible questions that are not allowed.

    Source: https://github.com/google-research/bert, run_squad.py, read_squad_examples.
    """
    root, sha256 = _load(path, f"--{flag}={path}")
    _version(root, path)
    contexts, questions = [], []
    for paragraph, where in _paragraphs(root, f"--{flag}={path}"):
        contexts.append(_text(paragraph, "context", where))
        questions += [
            _question(values, at, len(contexts) - 1, for_training) for values, at in _asked(paragraph, where)
        ]
    if not questions:
        raise ConfigError(f"--{flag}={path} holds no question.")
    identity, times = Counter(question.id for question in questions).most_common(1)[0]
    if times > 1:
        raise ConfigError(f"--{flag}={path}: question id {identity} occurs {times} times in the file.")
    impossible = [question.id for question in questions if question.is_impossible]
    if impossible and not version_2_with_negative:
        raise ConfigError(
            f"--{flag}={path}: {len(impossible):,} of {len(questions):,} questions are marked impossible to"
            f" answer ({impossible[0]}, ..), as in SQuAD v2.0. Set --version_2_with_negative, or give a file"
            " of v1.1."
        )
    skipped: dict[str, str] = {}
    if for_training:
        judged = [_for_training(question, contexts[question.context]) for question in questions]
        skipped = {question.id: reason for question, reason in judged if reason}
        questions = [question for question, reason in judged if not reason]
    return SquadData(
        path=path,
        sha256=sha256,
        for_training=for_training,
        version_2_with_negative=version_2_with_negative,
        contexts=contexts,
        questions=questions,
        skipped_questions=skipped,
        empty_questions=[question.id for question in questions if question.is_empty],
    )


def read_gold_answers(path: str) -> GoldAnswers:
    """Reads only the questions and their answers from a file. Raises ConfigError for a file that is not in
    SQuAD's format."""
    root, _ = _load(path, path)
    gold = GoldAnswers(_version(root, path), answers={}, questions={})
    for paragraph, place in _paragraphs(root, path):
        for values, where in _asked(paragraph, place):
            identity = _text(values, "id", where)
            if identity in gold.answers:
                raise ConfigError(f"{where}: question id {identity} occurs twice in the file.")
            answers = expect(values, "answers", list, where)
            gold.answers[identity] = [
                _text(answer, "text", f"{where}.answers[{number}]") for number, answer in enumerate(answers)
            ]
            gold.questions[identity] = _text(values, "question", where, default="")
    return gold


def read_by_question(path: str, kinds: tuple[type, ...], expected: str) -> dict:
    """Reads a JSON object from question ids to values of some kinds: predictions, no-answer probabilities.

    Raises:
      ConfigError: for a file of another kind; `expected` names the values in the message, e.g. "texts".
    """
    values = json_files.read_json(path, kind=(dict, list), once=True)
    wanted = f"xpected an object from question ids to {expected}"
    if not isinstance(values, dict):
        raise ConfigError(f"{path}: e{wanted}, got {json_files.kind_of(values)}.")
    for identity, value in values.items():
        if not json_files.is_of_kind(value, kinds):
            raise ConfigError(f"{path}: question {identity} has {json_files.kind_of(value)}. E{wanted}.")
    return values


# ------------------------------------------------------------------------------------------------------------
# JSON


def _version(root: dict, path: str) -> str:
    return str(expect(root, "version", (str, int, float), path, default=""))


def _load(path: str, source: str) -> tuple[dict, str]:
    content = files.read_bytes(path, source)
    digest = hashlib.sha256(content).hexdigest()
    if _is_flat(content):
        return _of_rows(path, source), digest
    root = json_files.parse_json(content, source, (dict, list), once=True, any_number=True)
    expect(root, "data", list, source)  # also checks that `root` is an object
    return root, digest


def _is_flat(content: bytes) -> bool:
    """Tells whether a file has one question per row: {context, question, answers}, in JSON lines or
    Parquet."""
    if content.startswith(b"PAR1"):
        return True
    try:
        values = json.loads(content[: 1 << 24].partition(b"\n")[0])
    except (ValueError, RecursionError):
        return False
    return isinstance(values, dict) and "context" in values


def _of_rows(path: str, source: str) -> dict:
    """Converts rows to SQuAD's JSON; consecutive questions of the same context become one paragraph.

    Answers are in SQuAD's form, that of `datasets` (lists of text and answer_start), or texts, at the places
    in a column `answer_start`, or else where they first occur in the context as whole words, or at all. A
    row is impossible to answer if `is_impossible` is true, or, without that column, if it has no answers.
    """
    flag = source.partition("=")[0].lstrip("-")
    table = open_table(path, flag, ("context", "question"), all_columns=True)
    paragraphs: list[dict] = []
    for batch in table.batches():
        for number in range(len(batch.columns["context"])):
            place = f"{source}, row {batch.first + number + 1}"
            if number in batch.problems:
                raise ConfigError(f"{place}: {batch.problems[number]}.")
            row = {name: values[number] for name, values in batch.columns.items()}
            context = _text(row, "context", place)
            if not paragraphs or paragraphs[-1]["context"] != context:
                paragraphs.append({"context": context, "qas": []})
            identity = row.get("id")
            asked: dict[str, Any] = {
                "id": str(batch.first + number + 1 if identity in (None, "") else identity),
                "question": _text(row, "question", place),
            }
            if (answers := row.get("answers")) is not None:
                start, texts = row.get("answer_start"), answers if isinstance(answers, list) else [answers]
                if answers and start not in (None, "") and all(isinstance(text, str) for text in texts):
                    start = int(start) if isinstance(start, str) and start.isdecimal() else start
                    answers = {"text": answers, "answer_start": start}
                asked["answers"] = _answers_of(answers, context, place)
                asked["is_impossible"] = not asked["answers"]
            if row.get("is_impossible") is not None:
                asked["is_impossible"] = is_impossible = expect(row, "is_impossible", bool, place)
                if is_impossible:  # its answers are plausible, but wrong
                    asked["answers"] = []
            paragraphs[-1]["qas"].append(asked)
    return {"data": [{"paragraphs": paragraphs}]}


def _answers_of(value: Any, context: str, place: str) -> list[dict]:
    if isinstance(value, dict):
        texts, starts = (
            each if isinstance(each, list) else [] if each is None else [each]
            for each in (value.get("text"), value.get("answer_start"))
        )
        if starts and len(texts) != len(starts):
            raise ConfigError(f"{place}: answers has {len(texts)} text and {len(starts)} answer_start.")
        value = [{"text": text, "answer_start": at} for text, at in zip(texts, starts)] if starts else texts
    is_list = isinstance(value, str) and value[:1] in ("[", "{") and value not in context  # in CSV's form
    if isinstance(value, str):
        value = [value] if value else []
    found = [
        {"text": answer, "answer_start": _first_place(answer, context, place)}
        if isinstance(answer, str)
        else answer
        for answer in (value if isinstance(value, list) else [value])
    ]
    if is_list or not all(isinstance(answer, dict) for answer in found):
        raise ConfigError(
            f"{place}: answers={str(value)[:80]}, expected texts, or text and answer_start of each."
        )
    return found


def _first_place(answer: str, context: str, place: str) -> int:
    """Returns the first character of an answer in the context: not "he" in "The", if "he" follows. Warns of
    the first answer that occurs again."""
    found = [each.start() for each in re.finditer(rf"(?<!\w){re.escape(answer)}(?!\w)", context)]
    if answer and len(found) > 1:
        text = "%s: the answer %r occurs %d times in its context; as in other rows, the first one is taken."
        advice = " A column answer_start says which is meant."
        logging.log_first_n(logging.WARNING, text + advice, 1, place, answer[:60], len(found))
    return found[0] if found else context.find(answer)


def _paragraphs(root: dict, source: str) -> Iterator[tuple[dict, str]]:
    """Yields (paragraph, its place in the file)."""
    for number, article in enumerate(root["data"]):
        where = f"{source}: data[{number}]"
        for inner, values in enumerate(expect(article, "paragraphs", list, where)):
            yield values, f"{where}.paragraphs[{inner}]"


def _asked(paragraph: dict, where: str) -> Iterator[tuple[dict, str]]:
    """Yields (question, its place in the file)."""
    for number, values in enumerate(expect(paragraph, "qas", list, where)):
        yield values, f"{where}.qas[{number}]"


def _text(values, key: str, where: str, default: str | None = None) -> str:
    """Returns a text with lone surrogates replaced by U+FFFD, so that offsets stay valid and it can be
    written."""
    if default is not None and isinstance(values, dict) and key not in values:
        return default
    text = expect(values, key, str, where)
    return text if text.isascii() else _LONE_SURROGATE.sub("\ufffd", text)


# ------------------------------------------------------------------------------------------------------------
# Questions


def _question(values, where: str, context: int, for_training: bool) -> Question:
    identity = _text(values, "id", where)
    answers = expect(values, "answers", list, where) if for_training or "answers" in values else []
    placed = [(answer, f"{where}.answers[{number}]") for number, answer in enumerate(answers)]
    return Question(
        id=identity,
        text=_text(values, "question", where),
        context=context,
        answers=tuple(_text(answer, "text", at) for answer, at in placed),
        answer_starts=tuple(expect(answer, "answer_start", int, at) for answer, at in placed if for_training),
        is_impossible="is_impossible" in values and expect(values, "is_impossible", bool, where),
    )


def _for_training(question: Question, context: str) -> tuple[Question, str | None]:
    """Returns a question, with the exact span of its first answer if the published rule does not find it, and
    the reason why it cannot be trained on, or None."""
    if question.is_empty or not (question.is_impossible or question.answers):
        return question, "empty question" if question.is_empty else "no answer"
    if question.is_impossible and question.answers:  # the official scorer counts it as answerable
        return question, "marked impossible, with answers"
    if question.is_impossible or _covers_answer(context, question.answers[0], question.answer_starts[0]):
        return question, None
    span = _exact_span(context, question.answers[0], question.answer_starts[0])
    problem = None if span else "answer not in the context at answer_start"
    return dataclasses.replace(question, exact_span=span), problem


def _covers_answer(context: str, answer: str, begin: int) -> bool:
    """Tells whether the words from character `begin` on, for the length of the answer, contain it.

    Words and answer are compared with single spaces between words, so an answer may begin within a word.

    Source: https://github.com/google-research/bert, run_squad.py, read_squad_examples.
    """
    last = begin + len(answer) - 1
    if not answer or begin < 0 or last >= len(context):
        return False
    first, end = _word_begin(context, begin), WORD.match(context, _word_begin(context, last))
    touched = WORD.findall(context, first, end.end()) if first >= 0 and end else []
    return bool(touched) and " ".join(answer.split()) in " ".join(touched)


def _word_begin(context: str, place: int) -> int:
    """Returns the first character of the word at a position, or of the word before it; -1 without one."""
    while place >= 0 and context[place] in SPACES:
        place -= 1
    if place < 0:
        return -1
    return max(context.rfind(space, 0, place) for space in SPACES) + 1


def _exact_span(context: str, answer: str, begin: int) -> tuple[int, int] | None:
    """Returns (begin, end) of the answer in the context from `begin` on; None if other characters are there.

    Both are normalized by `_comparable`, so the kind of white space, invisible characters, and the encoding
    of accents do not matter. The shortest match counts.
    """
    wanted = _comparable(answer)
    if not wanted or not 0 <= begin < len(context):
        return None
    usual = begin + len(answer)
    # Invisible characters and decomposed letters make it longer in the context.
    for end in (usual, *range(begin + 1, begin + 4 * len(answer) + 16)):
        if end <= len(context) and _comparable(context[begin:end]) == wanted:
            return begin, end
    return None


def _comparable(text: str) -> str:
    """Returns a text in Unicode's composed form, without invisible characters, with single spaces for white
    space and none at its ends."""
    visible = "".join(map(_visible, text))
    return " ".join(unicodedata.normalize("NFC", visible).split())


@functools.lru_cache(maxsize=None)  # noqa: UP033  # functools.cache is not in Python 3.8
def _visible(character: str) -> str:
    """Returns a character, a space for white space, and nothing for one without a glyph."""
    if character.isspace():
        return " "
    return "" if unicodedata.category(character) in ("Cc", "Cf") else character
