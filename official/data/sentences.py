"""Paragraphs -> sentences, by the splitter of the package blingfire, whose model comes with it."""

import collections
import dataclasses
import itertools
import operator
import re
import string
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor

import blingfire
import numpy as np

_BATCH_CHARACTERS = 1 << 17  # of one call of the splitter
_THREADS = 2
_BATCHES_AHEAD = 4
# Unicode's paragraph separator ends a sentence wherever it stands and is part of it. The line feed after it is white space,
# which the splitter's rules treat before a word as they do the beginning of the text.
_END = "\u2029"
_BETWEEN = _END + "\n"
# A paragraph whose last letter or digit is followed by one space at most and then by punctuation alone, or by one full stop of
# Chinese or Japanese: whether the text ends there makes no difference to the splitter. It does after 'He left. )', which is
# split before the ")" at the end only. U+01C3 is a letter that the splitter takes for an exclamation mark.
_SAFE_ENDING = re.compile("[^\\W_\u01c3](?: ?[!-/:-@\\[-`{-~\u2019\u201d\u2026\u00bb\u300d]{0,6}|[\u3002\uff01\uff1f])\\Z")
_ENDING_CHARACTERS = 8
# The beginning of a line that may be nothing but white space, which is no sentence.
_STARTS_BLANK = re.compile(b"\n(?:" + b"|".join(re.escape(chr(code).encode()) for code in range(0x3001) if chr(code).isspace()) + b")")

# The splitter's rules all need an end of a sentence, or what may be one, and look at the two words before it and at those behind it up
# to the first that can begin a sentence. Text in the middle between two of these places makes no difference: it is taken out,
# a mark that no rule knows stands for it, and the splitter has two fifths of the text to go through.
# Source: https://github.com/microsoft/BlingFire/blob/master/ldbsrc/sbd/wbd.lex.utf8
_MARK = "\ue000"
_BEHIND_BYTES = 22  # of text are kept at least: six of punctuation, and "Unfortunately", ":123 - 456 " or "( xviii ) "
_BEFORE_BYTES = 12
_LEAST_BYTES = 16  # that are taken out
_MOST_PUNCTUATION = 6  # bytes that follow each other; the rules pass over any number of them
# Classes of bytes: what may be an end, or not known not to be one; punctuation and blanks; letters, the Latin ones of two bytes among
# them, and digits. An end of a sentence, "[" and ":" begin what the rules look for behind a sentence.
_END_OR_OTHER, _PUNCTUATION, _LETTER = b"\0", b"\1", b"\2"
_LETTERS = (string.ascii_letters + string.digits).encode() + bytes([*range(0x80, 0xc0), 0xc3, 0xc4, 0xc5])
_PUNCTUATIONS = b"\"#$%&'()*+,-/;<=>@\\^_`{|}~ "
_CLASSES = b"".join(_LETTER if code in _LETTERS else _PUNCTUATION if code in _PUNCTUATIONS else _END_OR_OTHER for code in range(256))


@dataclasses.dataclass(frozen=True)
class Lines:
    """Documents of sentences as one text: handed on at a fraction of the cost of a string for each sentence."""

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
    """Yields `split_sentences` of each paragraph, from one call of the splitter for many as far as that gives the same.

    A call for each would cost half as much again, and would hand Python's lock back and forth with other threads each time.
    """
    for batch in _batches(paragraphs, len):
        yield from _split_batch(batch).documents()


def split_documents(documents: Iterable[tuple[list[str], bool]]) -> Iterator[Lines]:
    """Yields documents of sentences in order, some at a time. Those ahead of them are read, and split in other threads.

    Args:
      documents: paragraphs of each, and whether they are to be split; where not, they are sentences.
    """
    with ThreadPoolExecutor(_THREADS) as threads:  # the splitter runs without Python's lock
        begun = collections.deque()
        for batch in _batches(documents, lambda item: sum(map(len, item[0]))):
            has_paragraphs = any(is_to_split for _, is_to_split in batch)
            if has_paragraphs:
                begun.append(threads.submit(_split_documents, batch))
            while len(begun) > _BATCHES_AHEAD * has_paragraphs:
                yield begun.popleft().result()
            if not has_paragraphs:
                yield _split_documents(batch)
        while begun:
            yield begun.popleft().result()


def _split_documents(documents: list[tuple[list[str], bool]]) -> Lines:
    parts = []  # of which the paragraphs are the documents
    for is_to_split, group in itertools.groupby(documents, operator.itemgetter(1)):
        paragraphs = list(itertools.chain.from_iterable(paragraphs for paragraphs, _ in group))
        parts += map(_split_batch if is_to_split else _as_they_are, _batches(paragraphs, len))
    sentences_before = np.cumsum(np.concatenate([[0], *(part.counts for part in parts)]))
    paragraphs_before = np.cumsum([0, *(len(paragraphs) for paragraphs, _ in documents)])
    return Lines(b"".join(part.text for part in parts), np.diff(sentences_before[paragraphs_before]))


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


def _split_batch(paragraphs: list[str]) -> Lines:
    """Returns the sentences of each paragraph as if it were a document."""
    safe = [_SAFE_ENDING.search(paragraph[-_ENDING_CHARACTERS:]) is not None for paragraph in paragraphs]
    together = "".join(paragraph + _BETWEEN for paragraph in itertools.compress(paragraphs, safe))
    split = (_mark_sentences(together) + b"\n").split(_BETWEEN.encode())[:-1]
    # A paragraph holds the separator, or a line of it may be blank.
    if len(split) != sum(safe) or _STARTS_BLANK.search(b"\n".join([b"", *split, b""])):
        return _lines(map(split_sentences, paragraphs))
    following = iter(split)
    texts = [next(following) + b"\n" if is_safe else _as_they_are(split_sentences(text)).text for text, is_safe in zip(paragraphs, safe)]
    return Lines(b"".join(texts), np.fromiter((text.count(b"\n") for text in texts), int, len(texts)))


def _lines(documents: Iterable[list[str]]) -> Lines:
    parts = list(map(_as_they_are, documents))
    return Lines(b"".join(part.text for part in parts), np.array([len(part.counts) for part in parts], int))


def _mark_sentences(text: str) -> bytes:
    """Returns what the splitter makes of the text: a line for each sentence."""
    if _MARK in text:
        return blingfire.text_to_sentences(text).encode()
    data = text.encode()
    firsts, lasts = _idle_parts(data)
    kept = _MARK.encode().join(map(data.__getitem__, map(slice, [0, *lasts], [*firsts, len(data)])))
    pieces = [b""] * (2 * len(firsts) + 1)
    pieces[::2] = blingfire.text_to_sentences(kept.decode()).encode().split(_MARK.encode())
    pieces[1::2] = map(data.__getitem__, map(slice, firsts, lasts))
    return b"".join(pieces)


def _idle_parts(text: bytes) -> tuple[list[int], list[int]]:
    """Returns where the parts begin and end, from the first letter of a word to a blank, that the splitter need not see."""
    classes = text.translate(_CLASSES).replace(_PUNCTUATION * _MOST_PUNCTUATION, _END_OR_OTHER * _MOST_PUNCTUATION)
    ends = np.concatenate([[-1], np.flatnonzero(np.frombuffer(classes, np.uint8) == ord(_END_OR_OTHER)), [len(text)]])
    gaps = np.flatnonzero(np.diff(ends) > _BEHIND_BYTES + _BEFORE_BYTES + _LEAST_BYTES)
    blanks = np.concatenate([[-1], np.flatnonzero(np.frombuffer(text, np.uint8) == ord(" ")), [len(text)]])
    firsts = blanks[np.searchsorted(blanks, ends[gaps] + _BEHIND_BYTES)] + 1
    lasts = blanks[np.searchsorted(blanks, ends[gaps + 1] - _BEFORE_BYTES) - 1]
    is_long = lasts - firsts >= _LEAST_BYTES
    return firsts[is_long].tolist(), lasts[is_long].tolist()
