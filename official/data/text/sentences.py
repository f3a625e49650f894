"""Paragraphs -> sentences, by the splitter of the package blingfire."""

import dataclasses
import itertools
import re
import string
from collections.abc import Callable, Iterable, Iterator

import blingfire
import numpy as np

from official.data.rows import ragged

# -----------------------------------------------------------------------------------------------------------
# Skippable spans
#
# The splitter's rules all need an end of a sentence, or what may be one, and look at the two words before
# it and at those behind it up to the first that can begin a sentence. Text in the middle between two of
# these places makes no difference: it is taken out, and a mark that no rule knows stands for it. The splitter
# has two fifths of the text to go through, and a job as a whole takes 8 to 20 % less time. Source:
# https://github.com/microsoft/BlingFire/blob/master/ldbsrc/sbd/wbd.lex.utf8


MARK = "\ue000"
_MARK = MARK.encode()
_BEHIND_BYTES = 22  # kept behind an end: punctuation, and "Unfortunately", ":123 - 456 " or "( xviii ) "
_BEFORE_BYTES = 12  # kept before an end
_MIN_SPAN_BYTES = 24  # that are taken out
_MIN_CHARACTERS = 1 << 12  # of a text: of a shorter one taking spans out costs more than it saves
_MAX_WORD_BYTES = 24  # as far the blank is looked for at which a span begins or ends
_MAX_PUNCTUATION = 6  # bytes that follow each other; the rules pass over any number of them
# Classes of bytes: what may be an end, or not known not to be one; punctuation and blanks; letters, the Latin
# ones of two bytes among them, and digits. An end of a sentence, "[" and ":" begin what the rules look for
# behind a sentence.
_END_OR_OTHER, _PUNCTUATION = b"\0", b"\1"
_LETTERS = (string.ascii_letters + string.digits).encode() + bytes([*range(0x80, 0xC0), 0xC3, 0xC4, 0xC5])
_PUNCTUATIONS = b"\"#$%&'()*+,-/;<=>@\\^_`{|}~ "
_CLASSES = bytes(2 if code in _LETTERS else 1 if code in _PUNCTUATIONS else 0 for code in range(256))


def take_out(text: bytes) -> tuple[bytes, list[bytes]]:
    """Returns a text without MARK with a mark for each of its skippable spans, and these: from the first
    letter of a word to a blank."""
    firsts, lasts = _skippable_spans(text)
    kept = map(text.__getitem__, map(slice, [0, *lasts], [*firsts, len(text)]))
    return _MARK.join(kept), list(map(text.__getitem__, map(slice, firsts, lasts)))


def put_back(kept: bytes, spans: list[bytes]) -> bytes:
    """Returns a text with spans in the places of its marks, of which there are as many."""
    pieces = [b""] * (2 * len(spans) + 1)
    pieces[::2] = kept.split(_MARK)
    pieces[1::2] = spans
    return b"".join(pieces)


def _skippable_spans(text: bytes) -> tuple[list[int], list[int]]:
    """Returns the first places of the spans, and the places behind them."""
    classes = text.translate(_CLASSES)
    classes = classes.replace(_PUNCTUATION * _MAX_PUNCTUATION, _END_OR_OTHER * _MAX_PUNCTUATION)
    is_end = np.frombuffer(classes, np.uint8) == ord(_END_OR_OTHER)
    ends = np.concatenate([[-1], np.flatnonzero(is_end), [len(text)]])
    gaps = np.flatnonzero(np.diff(ends) > _BEHIND_BYTES + _BEFORE_BYTES + _MIN_SPAN_BYTES)
    behind, before = ends[gaps] + _BEHIND_BYTES, ends[gaps + 1] - _BEFORE_BYTES
    windows = [ragged.windows(text, at, _MAX_WORD_BYTES) for at in (behind, before - _MAX_WORD_BYTES)]
    is_blank_behind, is_blank_before = (window == ord(" ") for window in windows)
    firsts = behind + is_blank_behind.argmax(axis=1) + 1
    lasts = before - 1 - is_blank_before[:, ::-1].argmax(axis=1)
    is_long = lasts - firsts >= _MIN_SPAN_BYTES
    found = is_long & is_blank_behind.any(axis=1) & is_blank_before.any(axis=1)
    return firsts[found].tolist(), lasts[found].tolist()


# -----------------------------------------------------------------------------------------------------------
# Joined paragraphs
#
# Unicode's paragraph separator ends a sentence wherever it stands and is part of it. The line feed after it
# is white space, which the splitter's rules treat before a word as they do the beginning of the text.


_BETWEEN = "\u2029\n"
# A line that begins with white space, or is empty, may hold nothing else. That would be no sentence.
_SPACES = [re.escape(chr(code).encode()) for code in range(0x3001) if chr(code).isspace()]
_STARTS_BLANK = re.compile(b"\n(?:" + b"|".join(_SPACES) + b")")


def taken_apart(split: bytes, paragraphs: int) -> list[bytes] | None:
    """Returns the sentences, with line feeds between them, of each of so many paragraphs behind the splitter;
    None where these cannot be told apart, as where one holds the separator, or where a line may be blank.

    Args:
      split: the splitter's output for paragraphs each of which is followed by the separator.
    """
    if not paragraphs:
        return []
    split = b"\n" + split + b"\n"
    if _STARTS_BLANK.search(split):
        return None
    texts = split[1:].split(_BETWEEN.encode())[:-1]
    return texts if len(texts) == paragraphs else None


# -----------------------------------------------------------------------------------------------------------
# Sentences
#
# Many paragraphs go through one call of the splitter, as far as that gives the same sentences.


_BATCH_CHARACTERS = 1 << 19  # of one call of the splitter
# A paragraph whose last letter or digit is followed by one space at most and then by punctuation alone, or by
# one full stop of Chinese or Japanese: whether the text ends there makes no difference to the splitter. It
# does after 'He left. )', which is split before the ")" at the end only. U+01C3 is a letter that the splitter
# takes for an exclamation mark.
_SAFE_ENDING = re.compile(
    "[^\\W_\u01c3](?: ?[!-/:-@\\[-`{-~\u2019\u201d\u2026\u00bb\u300d]{0,6}|[\u3002\uff01\uff1f])\\Z"
)
_USUAL_ENDINGS = {character + "." for character in string.ascii_letters + string.digits}  # all of them safe


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
    for batch in _batches(paragraphs, len):
        yield from _split_lines(batch).documents()


def split_documents(documents: Iterable[tuple[list[str], bool]]) -> Iterator[Lines]:
    """Yields documents of sentences in order, some at a time.

    Args:
      documents: the lines of each, and whether these are paragraphs; else they are sentences already.
    """
    for batch in _batches(documents, lambda document: sum(map(len, document[0]))):
        parts = [Lines(b"", np.zeros(0, int))]  # of which the lines are documents
        for are_paragraphs, group in itertools.groupby(batch, lambda document: document[1]):
            lines = [line for document, _ in group for line in document]
            parts.append(_split_lines(lines) if are_paragraphs else _as_they_are(lines))
        sentences_before = ragged.offsets(np.concatenate([part.counts for part in parts]))
        lines_before = np.cumsum([0, *(len(document) for document, _ in batch)])
        yield Lines(b"".join(part.text for part in parts), np.diff(sentences_before[lines_before]))


def hold_paragraphs(num_sentences: int, num_lines: int) -> bool:
    """Tells whether lines of plain text are paragraphs, by the sentences that the splitter finds in them: of
    lines that are sentences, below 1.1 each on average."""
    return num_sentences > 1.5 * num_lines


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


def _split_lines(paragraphs: list[str]) -> Lines:
    """Returns the sentences of paragraphs, each of which becomes a document."""
    safe = [own[-2:] in _USUAL_ENDINGS or bool(_SAFE_ENDING.search(own[-8:])) for own in paragraphs]
    text = _BETWEEN.join([*itertools.compress(paragraphs, safe), ""])
    if MARK in text or len(text) < _MIN_CHARACTERS:
        split = blingfire.text_to_sentences(text).encode()
    else:
        kept, spans = take_out(text.encode())
        split = put_back(blingfire.text_to_sentences(kept.decode()).encode(), spans)
    found = taken_apart(split, sum(safe))
    together, known = iter(found or []), [False] * len(safe) if found is None else safe
    texts = [
        next(together) if is_known else "\n".join(split_sentences(paragraph)).encode()
        for paragraph, is_known in zip(paragraphs, known)
    ]
    counts = np.array([text.count(b"\n") + bool(text) for text in texts], int)
    return Lines(b"\n".join([*filter(None, texts), b""]), counts)
