"""Text -> words, by the published rules of Google's BERT, character by character.

Control and format characters are dropped, Chinese characters stand alone, the text is split at white space,
lower-cased and stripped of its accents (neither for a cased vocabulary), and split at punctuation.
Source: https://github.com/google-research/bert/blob/master/tokenization.py
"""

from __future__ import annotations

import itertools
import re
import string
import unicodedata
from collections.abc import Callable

LONGEST = 200  # characters of a word; a longer one is unknown
CHINESE = (
    "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0002a6df\U0002a700-\U0002ceaf\U0002f800-\U0002fa1f"
)
_CHINESE_OR_OTHERS = re.compile(f"[{CHINESE}]|[^{CHINESE}]+")


class _CharacterTable(dict):
    """A table for str.translate() that asks for each character once."""

    def __init__(self, rule: Callable[[str], str]):
        super().__init__()
        self._rule = rule

    def __missing__(self, code_point: int) -> str:
        self[code_point] = made = self._rule(chr(code_point))
        return made


def _drop_invisible(character: str) -> str:
    return "" if character == "\ufffd" or unicodedata.category(character) in ("Cc", "Cf") else character


def _split(character: str) -> str:
    return (
        f" {character} "
        if character in string.punctuation or unicodedata.category(character).startswith("P")
        else character
    )


def _drop_accent_and_split(character: str) -> str:
    return "" if unicodedata.category(character) == "Mn" else _split(character)


_VISIBLE = _CharacterTable(_drop_invisible)
_SPLIT = _CharacterTable(_split)
_WITHOUT_ACCENT_AND_SPLIT = _CharacterTable(_drop_accent_and_split)


def find_words(chunk: str, do_lower_case: bool) -> list[str]:
    """Returns the words of a text without tabs, line feeds and carriage returns; there may be other white
    space."""
    rule = _lower_case_words if do_lower_case else _cased_words
    return list(itertools.chain.from_iterable(map(rule, _CHINESE_OR_OTHERS.findall(chunk))))


def _lower_case_words(part: str) -> list[str]:
    """Returns the words of a part of the text that has no Chinese character unless it is one."""
    return (
        unicodedata.normalize("NFD", part.translate(_VISIBLE).lower())
        .translate(_WITHOUT_ACCENT_AND_SPLIT)
        .split()
    )


def _cased_words(part: str) -> list[str]:
    """Returns the words as `_lower_case_words` does, with their capitals and accents."""
    return part.translate(_VISIBLE).translate(_SPLIT).split()
