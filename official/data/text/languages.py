"""In which scripts, and in which languages, texts are."""

from __future__ import annotations

import collections
import functools
import importlib.metadata
import importlib.util
import unicodedata
from collections.abc import Iterable

_IDENTIFIER = "py3langid"  # carries its model with it
_FEWEST_LETTERS = 20  # of a text whose language is guessed


def scripts_of(texts: Iterable[str]) -> collections.Counter[str]:
    """Returns {script: letters} of texts; a script is the first word of the name that Unicode gives a letter,
    as LATIN, CYRILLIC or CJK."""
    characters: collections.Counter[str] = collections.Counter()
    for text in texts:
        characters.update(text)
    scripts: collections.Counter[str] = collections.Counter()
    for character, count in characters.items():
        if character.isalpha():
            scripts[_script(character)] += count
    return scripts


@functools.cache
def _script(character: str) -> str:
    return unicodedata.name(character, "unnamed").partition(" ")[0].capitalize()


def identifier() -> str | None:
    """Returns name and version of the package that guesses languages; None where it is not installed."""
    if importlib.util.find_spec(_IDENTIFIER) is None:
        return None
    return f"{_IDENTIFIER} {importlib.metadata.version(_IDENTIFIER)}"


def languages_of(texts: Iterable[str]) -> collections.Counter[str]:
    """Returns {ISO 639-1 code: texts} as the package guesses; "too short" for a text with hardly a letter.
    Call it where `identifier` returns one."""
    import py3langid  # late: an extra

    return collections.Counter(
        py3langid.classify(text)[0] if sum(map(str.isalpha, text)) >= _FEWEST_LETTERS else "too short"
        for text in texts
    )
