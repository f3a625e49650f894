"""Tables over all code points: each character's kind for the tokenizer, and the characters that it becomes.

A table is in pages of 256 code points, and equal pages are kept once: most of Unicode is alike.
"""

from __future__ import annotations

import functools
import re
import string
import unicodedata
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from official.data.word_pieces import words

# Kinds of characters. A blank is dropped, but counts as white space where a text is asked to be empty.
DROPPED, BLANK, SPACE, LETTER, SINGLE, ACCENT = range(6)
FINAL_SIGMA = 0x3C2  # how the small letter is written at the end of a word
CAPITAL_SIGMA = "\u03a3"
_CODE_POINTS = 0x110000
_PAGE = 256
_IDEOGRAPH = re.compile(f"[{words.CHINESE}]")
_ALIKE = ("Cn", "Co", "Cs")  # unassigned, of private use, half a character: letters that stay as they are


class Paged(NamedTuple):
    """A table over all code points.

    Attributes:
      pages: int32 [4352]: which page of values each 256 code points have.
      values: [pages x 256, ...].
    """

    pages: np.ndarray
    values: np.ndarray


class Characters(NamedTuple):
    """Tables of what becomes of characters.

    Attributes:
      kinds: int32: one of the kinds above.
      counts: int32: of the characters that a letter, or one that is a word by itself, becomes; 0 of others.
      shifts: int32 [.., M]: what is added to its code for each of these.
      classes: int32 [.., M]: canonical combining class of each of these.
      starts: int32, 1: no character from it on is put in front of those before it.
      is_cased: int32: 1 for what has a case and is not ignored beside it; None for a cased vocabulary.
      is_ignored: int32: 1 for what is passed over where the end of a word is looked for; None as before.
    """

    kinds: Paged
    counts: Paged
    shifts: Paged
    classes: Paged
    starts: Paged
    is_cased: Paged | None
    is_ignored: Paged | None


def look_up(table: Paged, codes_C: tf.Tensor) -> tf.Tensor:
    """Returns the values of code points, int32 [C, ...]."""
    pages_C = tf.gather(table.pages, codes_C // _PAGE)
    return tf.gather(table.values, pages_C * _PAGE + codes_C % _PAGE)


def numbers(table: Paged, codes: np.ndarray) -> np.ndarray:
    """Returns the values of code points, as `look_up` does, in NumPy."""
    return table.values[table.pages[codes // _PAGE] * _PAGE + codes % _PAGE]


@functools.lru_cache(maxsize=2)
def tables(do_lower_case: bool) -> Characters:
    """Returns the tables for text that loses its capitals and accents, or keeps them."""
    made = {code: _made_of(chr(code), do_lower_case) for code in _not_alike()}
    kinds, starts = np.full(_CODE_POINTS, LETTER), np.ones(_CODE_POINTS)
    most = max(len(text) for _, text in made.values())
    shifts, classes = np.zeros((_CODE_POINTS, most)), np.zeros((_CODE_POINTS, most))
    counts = np.ones(_CODE_POINTS)
    for code, (kind, text) in made.items():
        kinds[code], counts[code] = kind, len(text)
        for place, character in enumerate(text):
            shifts[code, place] = ord(character) - code
            classes[code, place] = unicodedata.combining(character) if do_lower_case else 0
        if do_lower_case:
            starts[code] = kind not in (DROPPED, BLANK) and not unicodedata.combining(
                _decomposed(chr(code))[0]
            )
    case: Iterable[Paged | None] = map(_paged, _case_flags()) if do_lower_case else (None, None)
    return Characters(*map(_paged, (kinds, counts, shifts, classes, starts)), *case)


@functools.cache
def _not_alike() -> list[int]:
    characters = map(chr, range(_CODE_POINTS))
    return [
        code
        for code, character in enumerate(characters)
        if unicodedata.category(character) not in _ALIKE or _IDEOGRAPH.match(character)
    ]


def _paged(values: np.ndarray) -> Paged:
    by_page = values.astype(np.int32).reshape(_CODE_POINTS // _PAGE, -1)
    kept, pages = np.unique(by_page, axis=0, return_inverse=True)
    return Paged(pages.reshape(-1).astype(np.int32), kept.reshape(-1, *values.shape[1:]))


def _made_of(character: str, do_lower_case: bool) -> tuple[int, str]:
    """Returns the kind of a character, and the characters that it becomes.

    Source: as of `official.data.word_pieces.words`, whose rules these are.
    """
    if character not in "\t\n\r" and unicodedata.category(character) in ("Cc", "Cf") or character == "\ufffd":
        return (BLANK if character.isspace() else DROPPED), ""
    if character.isspace():
        return SPACE, ""
    text = character
    if do_lower_case:
        text = "".join(part for part in _decomposed(character) if unicodedata.category(part) != "Mn")
    if not text:
        return ACCENT, ""
    return (SINGLE if _IDEOGRAPH.match(character) or any(map(_is_punctuation, text)) else LETTER), text


def _decomposed(character: str) -> str:
    return unicodedata.normalize("NFD", character.lower())


def _is_punctuation(character: str) -> bool:
    return character in string.punctuation or unicodedata.category(character).startswith("P")


def _case_flags() -> tuple[np.ndarray, np.ndarray]:
    """Returns the characters that Python's `str.lower` takes for cased, and those that it passes over, beside
    a capital sigma: bool [code points] each. Python has no table of them; the sigma's lower case shows it."""
    codes = _not_alike()
    characters = list(map(chr, codes))
    behind = [f"{character}{CAPITAL_SIGMA}".lower()[-1] for character in characters]
    behind_a = [f"A{character}{CAPITAL_SIGMA}".lower()[-1] for character in characters]
    is_cased, is_ignored = np.zeros(_CODE_POINTS, bool), np.zeros(_CODE_POINTS, bool)
    is_cased[codes] = [last == chr(FINAL_SIGMA) for last in behind]
    is_ignored[codes] = [last == chr(FINAL_SIGMA) for last in behind_a] & ~is_cased[codes]
    return is_cased, is_ignored
