"""Paragraphs that go through the sentence splitter as one text, and the sentences of each that come out.

Unicode's paragraph separator ends a sentence wherever it stands and is part of it. The line feed after it is
white space, which the splitter's rules treat before a word as they do the beginning of the text.
"""

import operator
import re
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from official.data import compiled

_END = "\u2029"
_BETWEEN = _END + "\n"
# A line that begins with white space, or is empty, may hold nothing else. That would be no sentence.
_SPACES = [chr(code).encode() for code in range(0x3001) if chr(code).isspace()]
_SPACES_PADDED = b"".join(space.ljust(4, b"\0") for space in _SPACES)
_STARTS_BLANK = re.compile(b"\n(?:" + b"|".join(map(re.escape, _SPACES)) + b")")
_COUNT_LINES = operator.methodcaller("count", b"\n")


class Sentences(NamedTuple):
    """The sentences of P paragraphs."""

    text: bytes  # UTF-8, a line for each sentence
    ends: np.ndarray  # int64 [P], where each paragraph ends in it
    counts: np.ndarray  # int64 [P]: sentences of each


def joined(paragraphs: Iterable[str]) -> str:
    """Returns the text of paragraphs for the splitter."""
    return _BETWEEN.join([*paragraphs, ""])


def taken_apart(split: bytes, paragraphs: int) -> Sentences | None:
    """Returns the sentences of each of so many paragraphs behind the splitter; None where these cannot be
    told apart, as where one holds the separator, or where a line may be blank.

    Args:
      split: the splitter's output for `joined`.
    """
    if not paragraphs:
        return Sentences(b"", np.zeros(0, np.int64), np.zeros(0, np.int64))
    split += b"\n"
    library = compiled.library()
    if library is None:
        return _taken_apart(split, paragraphs)
    text, found = np.empty(len(split), np.uint8), np.empty((2, paragraphs), np.int64)
    spaces = (_SPACES_PADDED, len(_SPACES), paragraphs)
    arrays = [array.ctypes.data for array in (text, *found)]
    mark = _END.encode()
    if library.take_apart(split, len(split), mark, len(mark), *spaces, *arrays) != paragraphs:
        return None
    ends, counts = found
    return Sentences(text[: ends[-1]].tobytes(), ends, counts)


def _taken_apart(split: bytes, paragraphs: int) -> Sentences | None:
    texts = split.split(_BETWEEN.encode())[:-1]
    if len(texts) != paragraphs or _STARTS_BLANK.search(b"\n" + split):
        return None
    lines = [text + b"\n" for text in texts]
    counts = np.fromiter(map(_COUNT_LINES, lines), np.int64, paragraphs)
    return Sentences(b"".join(lines), np.cumsum(np.fromiter(map(len, lines), np.int64, paragraphs)), counts)
