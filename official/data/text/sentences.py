"""Paragraphs -> sentences, by the splitter of the package blingfire, whose model comes with it.

Many paragraphs go through one call of the splitter, as far as that gives the same sentences, and without the
text that makes no difference to it (`official.data.text.idle_text`, which says what both earn).
"""

import collections
import dataclasses
import functools
import itertools
import operator
import re
import string
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, ThreadPoolExecutor

import blingfire
import numpy as np

from official.data.text import idle_text

# Of one call of the splitter: the work on shorter ones takes turns too often, and finds the caches full of
# the other.
_BATCH_CHARACTERS = 1 << 19
_BATCHES_AHEAD = 1
# Unicode's paragraph separator ends a sentence wherever it stands and is part of it. The line feed after it
# is white space, which the splitter's rules treat before a word as they do the beginning of the text.
_END = "\u2029"
_BETWEEN = _END + "\n"
# A paragraph whose last letter or digit is followed by one space at most and then by punctuation alone, or by
# one full stop of Chinese or Japanese: whether the text ends there makes no difference to the splitter. It
# does after 'He left. )', which is split before the ")" at the end only. U+01C3 is a letter that the splitter
# takes for an exclamation mark.
_SAFE_ENDING = re.compile(
    "[^\\W_\u01c3](?: ?[!-/:-@\\[-`{-~\u2019\u201d\u2026\u00bb\u300d]{0,6}|[\u3002\uff01\uff1f])\\Z"
)
_ENDING_CHARACTERS = 8
_USUAL_ENDINGS = {character + "." for character in string.ascii_letters + string.digits}  # all of them safe
# The beginning of a line that may be nothing but white space, which is no sentence.
_SPACES = [chr(code).encode() for code in range(0x3001) if chr(code).isspace()]
_STARTS_BLANK = re.compile(
    b"\n(?=["
    + re.escape(b"".join(space[:1] for space in _SPACES))
    + b"])(?:"
    + b"|".join(map(re.escape, _SPACES))
    + b")"
)
_COUNT_LINES = operator.methodcaller("count", b"\n")


@dataclasses.dataclass(frozen=True)
class Lines:
    """Documents of sentences as one text: handed on at a fraction of the cost of a string for each
    sentence."""

    text: bytes  # UTF-8, a line for each sentence
    counts: np.ndarray  # int [D]: sentences of each document

    def documents(self) -> Iterator[list[str]]:
        """Yields the sentences of each document."""
        sentences = map(bytes.decode, self.text.split(b"\n"))
        for count in self.counts.tolist():
            yield list(itertools.islice(sentences, count))


def split_sentences(paragraph: str) -> list[str]:
    """Splits a paragraph of prose into sentences."""
    return list(filter(str.strip, blingfire.text_to_sentences(paragraph).split("\n")))


def split_paragraphs(paragraphs: Iterable[str]) -> Iterator[list[str]]:
    """Yields `split_sentences` of each paragraph, from one call of the splitter for many as far as that gives
    the same."""
    for lines in split_documents(([paragraph], True) for paragraph in paragraphs):
        yield from lines.documents()


def split_documents(documents: Iterable[tuple[list[str], bool]]) -> Iterator[Lines]:
    """Yields documents of sentences in order, some at a time; those that come next are read already, and the
    splitter goes through them.

    Args:
      documents: paragraphs of each, and whether they are to be split; where not, they are sentences.
    """
    # The splitter needs no lock of Python's; what does would stand in the other thread's way.
    with ThreadPoolExecutor(1) as splitter:
        begun: collections.deque[Callable[[], Lines]] = collections.deque()
        for batch in _batches(documents, lambda item: sum(map(len, item[0]))):
            begun.append(_begin_documents(batch, splitter))
            if len(begun) > _BATCHES_AHEAD:
                yield begun.popleft()()
        for finish in begun:
            yield finish()


def _begin_documents(documents: list[tuple[list[str], bool]], splitter: Executor) -> Callable[[], Lines]:
    """Hands documents to the splitter. Returns what waits for it and returns their sentences."""
    parts: list[Callable[[], Lines] | Lines] = []  # of which the paragraphs are the documents
    for is_to_split, group in itertools.groupby(documents, operator.itemgetter(1)):
        begin = functools.partial(_begin_batch, splitter=splitter) if is_to_split else _as_they_are
        paragraphs_of_group = itertools.chain.from_iterable(paragraphs for paragraphs, _ in group)
        parts += map(begin, _batches(paragraphs_of_group, len))
    # Here, so that what waits keeps no text that it need not.
    paragraphs_before = np.cumsum([0, *(len(paragraphs) for paragraphs, _ in documents)])

    def finish() -> Lines:
        done = [part() if callable(part) else part for part in parts]
        sentences_before = np.cumsum(np.concatenate([[0], *(lines.counts for lines in done)]))
        return Lines(b"".join(lines.text for lines in done), np.diff(sentences_before[paragraphs_before]))

    return finish


def _as_they_are(sentences: list[str]) -> Lines:
    return Lines("\n".join([*sentences, ""]).encode(), np.ones(len(sentences), int))


def _batches(items: Iterable, num_characters: Callable) -> Iterator[list]:
    batch, characters = [], 0
    for item in items:
        batch.append(item)
        characters += num_characters(item)
        if characters >= _BATCH_CHARACTERS:
            yield batch
            batch, characters = [], 0
    yield batch


def _begin_batch(paragraphs: list[str], splitter: Executor) -> Callable[[], Lines]:
    """Does what `_begin_documents` does, as if each paragraph were a document."""
    safe = [
        paragraph[-2:] in _USUAL_ENDINGS or _SAFE_ENDING.search(paragraph[-_ENDING_CHARACTERS:]) is not None
        for paragraph in paragraphs
    ]
    text = "".join(paragraph + _BETWEEN for paragraph in itertools.compress(paragraphs, safe))
    finish_marking = _begin_marking(text, splitter)

    def finish() -> Lines:
        marked = finish_marking()
        texts = (marked + b"\n").split(_BETWEEN.encode())[:-1]
        # A paragraph holds the separator, or a line of it may be blank.
        if len(texts) != sum(safe) or _STARTS_BLANK.search(b"\n" + marked):
            return _lines(map(split_sentences, paragraphs))
        for number in itertools.compress(range(len(safe)), map(operator.not_, safe)):
            texts.insert(number, "\n".join(split_sentences(paragraphs[number])).encode())
        if not all(texts):
            return _lines(map(split_sentences, paragraphs))
        return Lines(b"\n".join([*texts, b""]), 1 + np.fromiter(map(_COUNT_LINES, texts), int, len(texts)))

    return finish


def _lines(documents: Iterable[list[str]]) -> Lines:
    parts = list(map(_as_they_are, documents))
    return Lines(b"".join(part.text for part in parts), np.array([len(part.counts) for part in parts], int))


def _begin_marking(text: str, splitter: Executor) -> Callable[[], bytes]:
    """Hands a text to the splitter. Returns what waits for it and returns what it makes of the text: a line
    for each sentence."""
    if idle_text.MARK in text:
        whole = splitter.submit(blingfire.text_to_sentences, text)
        return lambda: whole.result().encode()
    kept, parts = idle_text.take_out(text.encode())
    split = splitter.submit(blingfire.text_to_sentences, kept.decode())
    return lambda: idle_text.put_back(split.result().encode(), parts)
