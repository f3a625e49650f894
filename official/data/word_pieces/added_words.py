"""Words that are added to a vocabulary of word pieces: frequent ones of a text, which it splits.

A vocabulary's fragmentation is the number of pieces of a word, on average. The words that are taken lower
that of the text the most: those with the highest count * (pieces - 1). Source: the fragment score of AVocaDo,
Hong et al. 2021, arXiv 2110.13434. Only whole words are added, so that all others keep their pieces, but for
those that begin with an added one: the longest piece is taken from left to right.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from official.data.rows import ragged
from official.data.word_pieces.vocabulary import Vocabulary
from official.data.word_pieces.wordpiece import UNKNOWN, WordPiece

MIN_COUNT = 10  # of a word in the text: what surrounds it is all that its embedding is learned from
_UNUSED = re.compile(r"\[unused\d+\]")


class AddedWord(NamedTuple):
    """A word that the vocabulary gets.

    Attributes:
      word: as the vocabulary has it.
      frequency: how often it stands in the text.
      pieces: ids of the word pieces that it was split into before.
    """

    word: str
    frequency: int
    pieces: tuple[int, ...]


def choose_words(counts: Mapping[str, int], vocabulary: Vocabulary, number: int) -> list[AddedWord]:
    """Returns the words that lower the fragmentation of a text the most, at most `number` of them.

    Words without a letter, rarer ones than MIN_COUNT, and those with a character that no piece has are left
    out: of the last, no average of pieces says what they mean.

    Args:
      counts: {word of the text, as it is tokenised: how often it stands there}.
      vocabulary: of word pieces.
      number: of words.
    """
    words = [word for word, count in counts.items() if count >= MIN_COUNT and any(map(str.isalpha, word))]
    split = ragged.split(*WordPiece(vocabulary).tokenize_words(words))
    unknown = vocabulary.ids[UNKNOWN]
    found = []
    for word, ids in zip(words, split):
        pieces = tuple(ids.tolist())
        if len(pieces) > 1 and unknown not in pieces:
            found.append(AddedWord(word, counts[word], pieces))
    found.sort(key=lambda one: (-one.frequency * (len(one.pieces) - 1), one.word))
    return found[:number]


def with_words(
    words: Sequence[str], added: Sequence[AddedWord]
) -> tuple[list[str], dict[int, tuple[int, ...]]]:
    """Puts words into a vocabulary: first in the places of its [unusedN] entries, from the top, which no text
    has and which keep the model's shape, then behind its end.

    Returns:
      The words of the new vocabulary; and {id of an added word: ids of its pieces}, see
      `checkpoint.convert.with_vocabulary`.
    """
    grown = list(words)
    free = [number for number, word in enumerate(words) if _UNUSED.fullmatch(word)]
    pieces: dict[int, tuple[int, ...]] = {}
    for place, one in enumerate(added):
        number = free[place] if place < len(free) else len(grown)
        grown[number : number + 1] = [one.word]
        pieces[number] = one.pieces
    return grown, pieces


def fragmentation(counts: Mapping[str, int], vocabulary: Vocabulary) -> float:
    """Returns the word pieces of a text for each of its words; 0 for no text."""
    _, lengths = WordPiece(vocabulary).tokenize_words(list(counts))
    total = sum(counts.values())
    return float(np.dot(lengths, np.fromiter(counts.values(), np.int64, len(counts)))) / max(total, 1)
