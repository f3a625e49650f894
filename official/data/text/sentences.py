"""Paragraphs -> sentences, by the splitter of the package blingfire, whose model comes with it."""

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

from official.data.rows import ragged

_BATCH_CHARACTERS = (
    1 << 19
)  # of one call of the splitter; the work on shorter ones takes turns too often, and finds the caches full of the other
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

# The splitter's rules all need an end of a sentence, or what may be one, and look at the two words before it
# and at those behind it up to the first that can begin a sentence. Text in the middle between two of these
# places makes no difference: it is taken out, a mark that no rule knows stands for it, and the splitter has
# two fifths of the text to go through. Source:
# https://github.com/microsoft/BlingFire/blob/master/ldbsrc/sbd/wbd.lex.utf8
_MARK = "\ue000"
_BEHIND_BYTES = (
    22  # of text are kept at least: six of punctuation, and "Unfortunately", ":123 - 456 " or "( xviii ) "
)
_BEFORE_BYTES = 12
_LEAST_BYTES = 16  # that are taken out
_MOST_WORD_BYTES = 24  # as far the blank is looked for at which a part begins or ends
_MOST_PUNCTUATION = 6  # bytes that follow each other; the rules pass over any number of them
# Classes of bytes: what may be an end, or not known not to be one; punctuation and blanks; letters, the Latin
# ones of two bytes among them, and digits. An end of a sentence, "[" and ":" begin what the rules look for
# behind a sentence.
_END_OR_OTHER, _PUNCTUATION, _LETTER = b"\0", b"\1", b"\2"
_LETTERS = (string.ascii_letters + string.digits).encode() + bytes([*range(0x80, 0xC0), 0xC3, 0xC4, 0xC5])
_PUNCTUATIONS = b"\"#$%&'()*+,-/;<=>@\\^_`{|}~ "
_CLASSES = b"".join(
    _LETTER if code in _LETTERS else _PUNCTUATION if code in _PUNCTUATIONS else _END_OR_OTHER
    for code in range(256)
)


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
    with ThreadPoolExecutor(
        1
    ) as splitter:  # it needs no lock of Python's; what does would stand in the other thread's way
        begun = collections.deque()
        for batch in _batches(documents, lambda item: sum(map(len, item[0]))):
            begun.append(_begin_documents(batch, splitter))
            if len(begun) > _BATCHES_AHEAD:
                yield begun.popleft()()
        for finish in begun:
            yield finish()


def _begin_documents(documents: list[tuple[list[str], bool]], splitter: Executor) -> Callable[[], Lines]:
    """Hands documents to the splitter. Returns what waits for it and returns their sentences."""
    parts = []  # of which the paragraphs are the documents
    for is_to_split, group in itertools.groupby(documents, operator.itemgetter(1)):
        begin = functools.partial(_begin_batch, splitter=splitter) if is_to_split else _as_they_are
        parts += map(
            begin, _batches(itertools.chain.from_iterable(paragraphs for paragraphs, _ in group), len)
        )
    paragraphs_before = np.cumsum(
        [0, *(len(paragraphs) for paragraphs, _ in documents)]
    )  # here: what waits keeps no text that it need not

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
    finish_marking = _begin_marking(
        "".join(paragraph + _BETWEEN for paragraph in itertools.compress(paragraphs, safe)), splitter
    )

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
    if _MARK in text:
        split = splitter.submit(blingfire.text_to_sentences, text)
        return lambda: split.result().encode()
    data = text.encode()
    firsts, lasts = _idle_parts(data)
    kept = _MARK.encode().join(_parts(data, np.append(0, lasts), np.append(firsts, len(data))))
    split = splitter.submit(blingfire.text_to_sentences, kept.decode())

    def finish() -> bytes:
        pieces = [b""] * (2 * len(firsts) + 1)
        pieces[::2] = split.result().encode().split(_MARK.encode())
        pieces[1::2] = _parts(data, firsts, lasts)
        return b"".join(pieces)

    return finish


def _parts(data: bytes, firsts: np.ndarray, ends: np.ndarray) -> Iterator[bytes]:
    return map(data.__getitem__, map(slice, firsts.tolist(), ends.tolist()))


def _idle_parts(text: bytes) -> tuple[np.ndarray, np.ndarray]:
    """Returns where the parts begin and end, from the first letter of a word to a blank, that the splitter
    need not see."""
    classes = text.translate(_CLASSES).replace(
        _PUNCTUATION * _MOST_PUNCTUATION, _END_OR_OTHER * _MOST_PUNCTUATION
    )
    ends = np.concatenate(
        [[-1], np.flatnonzero(np.frombuffer(classes, np.uint8) == ord(_END_OR_OTHER)), [len(text)]]
    )
    gaps = np.flatnonzero(np.diff(ends) > _BEHIND_BYTES + _BEFORE_BYTES + _LEAST_BYTES)
    behind, before = ends[gaps] + _BEHIND_BYTES, ends[gaps + 1] - _BEFORE_BYTES
    is_blank_behind, is_blank_before = (
        ragged.windows(text, starts, _MOST_WORD_BYTES) == ord(" ")
        for starts in (behind, before - _MOST_WORD_BYTES)
    )
    firsts, lasts = (
        behind + is_blank_behind.argmax(axis=1) + 1,
        before - 1 - is_blank_before[:, ::-1].argmax(axis=1),
    )
    is_idle = (lasts - firsts >= _LEAST_BYTES) & is_blank_behind.any(axis=1) & is_blank_before.any(axis=1)
    return firsts[is_idle], lasts[is_idle]
