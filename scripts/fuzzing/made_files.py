"""Files of questions and of rows, in the forms in which SQuAD and GLUE have them."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple


class Question(NamedTuple):
    """A question of SQuAD with its answer, which begins at a letter of the context."""

    identity: str
    text: str
    answer: str
    start: int


def squad(articles: Iterable[tuple[str, str, Sequence[Question]]]) -> dict:
    """Returns SQuAD's JSON of articles: title, the one context, its questions."""
    return {
        "version": "1.1",
        "data": [
            {"title": title, "paragraphs": [{"context": context, "qas": list(map(_asked, questions))}]}
            for title, context, questions in articles
        ],
    }


def _asked(question: Question) -> dict:
    answer = {"text": question.answer, "answer_start": question.start}
    return {
        "id": question.identity,
        "question": question.text,
        "is_impossible": False,
        "answers": [answer],
    }


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Returns a file with tabs between the cells."""
    return "".join("\t".join(row) + "\n" for row in (head, *rows))
