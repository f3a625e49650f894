"""Splits paragraphs into sentences with the package blingfire."""

import collections
import dataclasses
import functools
import itertools
import re
import string
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import blingfire
import numpy as np

from official.data.rows import ragged

# -----------------------------------------------------------------------------------------------------------
# Skippable spans
#
# All of the splitter's rules need a possible end of a sentence, and depend on the two words before it and on
# the words after it up to the first that can begin a sentence. The text in the middle between two such
# positions makes no difference: it is replaced by a mark that no rule has. The splitter then reads two fifths
# of the text, and a whole job takes 8 to 20 % less time. Source:
# https://github.com/microsoft/BlingFire/blob/master/ldbsrc/sbd/wbd.lex.utf8


MARK = "\ue000"
_MARK = MARK.encode()
_BEHIND_BYTES = 22  # kept after an end: punctuation, and "Unfortunately", ":123 - 456 " or "( xviii ) "
_BEFORE_BYTES = 12  # kept before an end
_MIN_SPAN_BYTES = 24  # minimum size of a skipped span
_MAX_WORD_BYTES = 24  # maximum distance of the space at which a span begins or ends
_MAX_PUNCTUATION = 6  # consecutive bytes that count as ends, since the rules skip any number of them
# Classes of bytes: possible ends of sentences, and unknown bytes; punctuation and spaces; letters, including
# Latin letters of two bytes, and digits. "[" and ":" count as ends, since rules begin with them.
_END_OR_OTHER, _PUNCTUATION = b"\0", b"\1"
_LETTERS = (string.ascii_letters + string.digits).encode() + bytes([*range(0x80, 0xC0), 0xC3, 0xC4, 0xC5])
_PUNCTUATIONS = b"\"#$%&'()*+,-/;<=>@\\^_`{|}~ "
NO_ENDS = _LETTERS + _PUNCTUATIONS
_CLASSES = bytes(2 if code in _LETTERS else 1 if code in _PUNCTUATIONS else 0 for code in range(256))


def take_out(text: bytes) -> tuple[bytes, list[bytes]]:
    """Replaces each skippable span of a text (from the first letter of a word to a space) by MARK, and
    returns the text and the spans; the text must not contain MARK."""
    firsts, lasts = _skippable_spans(text)
    kept = map(text.__getitem__, map(slice, [0, *lasts], [*firsts, len(text)]))
    return _MARK.join(kept), list(map(text.__getitem__, map(slice, firsts, lasts)))


def put_back(kept: bytes, spans: list[bytes]) -> bytes:
    """Replaces the marks of a text by the spans."""
    pieces = [b""] * (2 * len(spans) + 1)
    pieces[::2] = kept.split(_MARK)
    pieces[1::2] = spans
    return b"".join(pieces)


def _skippable_spans(text: bytes) -> tuple[list[int], list[int]]:
    """Returns the starts and the ends of the spans."""
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
# Unicode's paragraph separator always ends a sentence and is part of it. The line feed after it is white
# space; before a word, the splitter's rules treat that like the beginning of the text.


_END = "\u2029"
_BETWEEN = _END + "\n"
# A line that is empty or begins with white space may be blank, and then not a sentence.
_SPACES = [re.escape(chr(code).encode()) for code in range(0x3001) if chr(code).isspace()]
_STARTS_BLANK = re.compile(b"\n(?:" + b"|".join(_SPACES) + b")")


def taken_apart(split: bytes, paragraphs: int) -> list[bytes] | None:
    """Returns the sentences of each paragraph, separated by line feeds; None if the paragraphs cannot be
    separated, since one contains the separator, or if a line may be blank.

    Args:
      split: the splitter's output for paragraphs that are each followed by the separator.
      paragraphs: number of paragraphs.
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
# Many paragraphs are split in one call of the splitter, as far as that gives the same sentences, and without
# skippable spans.


# Size of a call of the splitter. With smaller ones, reading and splitting alternate too often and evict each
# other's data from the caches.
_BATCH_CHARACTERS = 1 << 19
BATCHES_AHEAD = 1
# A paragraph whose last letter or digit is followed by at most one space and then only by punctuation, or by
# one Chinese or Japanese full stop: for the splitter it makes no difference whether the text ends there. It
# does after 'He left. )', which is split before the ")" only at the end of the text. U+01C3 is a letter that
# the splitter treats as an exclamation mark.
_SAFE_ENDING = re.compile(
    "[^\\W_\u01c3](?: ?[!-/:-@\\[-`{-~\u2019\u201d\u2026\u00bb\u300d]{0,6}|[\u3002\uff01\uff1f])\\Z"
)
_USUAL_ENDINGS = {character + "." for character in string.ascii_letters + string.digits}  # all are safe
_ENDS = (".", "!", "?")  # at the end of a line, each of them ends only the last sentence


@dataclasses.dataclass(frozen=True)
class Lines:
    """Documents of sentences as one text, which is much cheaper to pass around than a string per sentence."""

    text: bytes  # UTF-8, one line per sentence
    counts: np.ndarray  # int [D]: number of sentences in each document

    def documents(self) -> Iterator[list[str]]:
        """Yields the sentences of each document."""
        sentences = map(bytes.decode, self.text.split(b"\n"))
        for count in self.counts.tolist():
            yield list(itertools.islice(sentences, count))


@dataclasses.dataclass(frozen=True)
class Unit:
    """Documents, each a list of paragraphs, that are split into sentences in the same way."""

    documents: list[list[str]]
    splitting: str  # always; never: paragraphs are sentences; auto, for a whole file: see `hold_paragraphs`


# A text for the splitter, and a function from the splitter's output to sentences.
Prepared = tuple[str, Callable[[str], Lines]]


def split_sentences(paragraph: str) -> list[str]:
    """Splits a paragraph of prose into sentences."""
    return list(filter(str.strip, blingfire.text_to_sentences(paragraph).split("\n")))


def split_paragraphs(paragraphs: Iterable[str]) -> Iterator[list[str]]:
    """Yields `split_sentences` of each paragraph, with one call of the splitter for many paragraphs, as far
    as that gives the same result."""
    for batch in _batches(paragraphs, len):
        text, finish = _prepare_paragraphs(batch)
        yield from finish(blingfire.text_to_sentences(text)).documents()


def split_documents(files: Iterable[Unit]) -> Iterator[Lines]:
    """Yields documents of sentences in order, in batches; the splitter already works on the next batch.

    Args:
      files: units of documents.
    """
    # The splitter releases Python's global lock; only its call runs in the other thread.
    with ThreadPoolExecutor(1) as splitter:
        begun: collections.deque[Callable[[], Lines]] = collections.deque()
        for batch in _batches(files, lambda unit: sum(map(len, itertools.chain(*unit.documents)))):
            begun.append(_begin_units(batch, splitter))
            if len(begun) > BATCHES_AHEAD:
                yield begun.popleft()()
        for finish in begun:
            yield finish()


def _begin_units(units: list[Unit], splitter: ThreadPoolExecutor) -> Callable[[], Lines]:
    """Submits documents to the splitter. Returns a function that waits and returns their sentences."""
    prepare: dict[str, Callable[[list], Prepared]] = {
        "always": lambda files: _prepare_paragraphs(_paragraphs_of(files)),
        "never": lambda files: ("", functools.partial(_as_they_are, _paragraphs_of(files))),
        "auto": _prepare_files,
    }
    parts: list[tuple[Callable[[], str], Callable]] = []  # makers of Lines, a document per paragraph
    for splitting, group in itertools.groupby(units, lambda unit: unit.splitting):
        text, make_lines = prepare[splitting]([unit.documents for unit in group])
        wait: Callable[[], str] = splitter.submit(blingfire.text_to_sentences, text).result if text else str
        parts.append((wait, make_lines))
    # Computed here, so that `finish` keeps no unneeded text.
    documents = [document for unit in units for document in unit.documents]
    paragraphs_before = np.cumsum([0, *map(len, documents)])

    def finish() -> Lines:
        done = _join(make(result()) for result, make in parts)
        return Lines(done.text, np.diff(ragged.offsets(done.counts)[paragraphs_before]))

    return finish


def _paragraphs_of(documents: Iterable[list[list[str]]]) -> list[str]:
    return list(itertools.chain.from_iterable(itertools.chain.from_iterable(documents)))


def _prepare_files(files: list[list[list[str]]]) -> Prepared:
    """Prepares whole files; for each, the number of sentences decides whether it is split."""
    numbers = np.array([sum(map(len, file)) for file in files])
    may_hold = np.fromiter(map(_may_hold_paragraphs, files), bool, len(files))
    text, split_paragraphs_of = _prepare_paragraphs(_paragraphs_of(itertools.compress(files, may_hold)))

    def make_lines(split: str) -> Lines:
        found = split_paragraphs_of(split)
        first = ragged.offsets(numbers * may_hold)  # first paragraph of each file among those in the splitter
        sentences = np.diff(ragged.offsets(found.counts)[first])
        are_paragraphs = may_hold & hold_paragraphs(sentences, numbers)
        if are_paragraphs.all():
            return found
        lines, parts = found.text.split(b"\n"), []
        before = ragged.offsets(sentences)
        bounds = [0, *(np.flatnonzero(np.diff(are_paragraphs)) + 1).tolist(), len(files)]
        for begin, end in zip(bounds, bounds[1:]):  # consecutive files with the same decision
            if are_paragraphs[begin]:
                own = lines[before[begin] : before[end]]
                parts.append(Lines(b"\n".join([*own, b""]), found.counts[first[begin] : first[end]]))
            else:
                parts.append(_as_they_are(_paragraphs_of(files[begin:end])))
        return _join(parts)

    return text, make_lines


def _may_hold_paragraphs(file: list[list[str]]) -> bool:
    """Tells whether `hold_paragraphs` may be true for all lines of a file: most files of sentences are
    recognized without the splitter, since a paragraph has at most as many sentences as possible ends."""
    lines = list(itertools.chain.from_iterable(file))
    text = "\n".join(lines).encode("utf-8", "replace")
    ends = len(text.translate(None, NO_ENDS)) + 1 - sum(line.endswith(_ENDS) for line in lines)
    return bool(hold_paragraphs(ends, len(lines)))


def hold_paragraphs(num_sentences: Any, num_lines: Any) -> Any:
    """Tells whether lines of plain text are paragraphs, by the number of sentences that the splitter finds in
    them; in lines that are sentences, it finds fewer than 1.1 on average."""
    return num_sentences > 1.5 * num_lines


def _join(parts: Iterable[Lines]) -> Lines:
    parts = list(parts)
    counts = np.concatenate([np.zeros(0, int), *(part.counts for part in parts)])
    return Lines(b"".join(part.text for part in parts), counts)


def _as_they_are(sentences: list[str], split: str = "") -> Lines:
    del split  # these are not split
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


def _prepare_paragraphs(paragraphs: list[str]) -> Prepared:
    """Prepares paragraphs, each of which becomes a document."""
    safe = [own[-2:] in _USUAL_ENDINGS or bool(_SAFE_ENDING.search(own[-8:])) for own in paragraphs]
    text, spans = _BETWEEN.join([*itertools.compress(paragraphs, safe), ""]), None
    if MARK not in text:
        kept, spans = take_out(text.encode())
        text = kept.decode()

    def make_lines(split: str) -> Lines:
        whole = split.encode() if spans is None else put_back(split.encode(), spans)
        found = taken_apart(whole, sum(safe))
        together, known = iter(found or []), [False] * len(safe) if found is None else safe
        texts = [
            next(together) if is_known else "\n".join(split_sentences(paragraph)).encode()
            for paragraph, is_known in zip(paragraphs, known)
        ]
        counts = np.array([text.count(b"\n") + bool(text) for text in texts], int)
        return Lines(b"\n".join([*filter(None, texts), b""]), counts)

    return text, make_lines
