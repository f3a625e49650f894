"""Chooses words to add to a vocabulary of word pieces: frequent words of a text that it splits.

A vocabulary's fragmentation is the average number of pieces in a word. The chosen words lower that of the
text the most: those with the highest count * (pieces - 1). Source: the fragment score of AVocaDo, Hong et al.
2021, arXiv 2110.13434. Only whole words are added, so all other words keep their pieces, except those that
begin with an added one, since tokenization takes the longest piece from left to right.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from official.data.rows import ragged
from official.data.word_pieces.vocabulary import Vocabulary
from official.data.word_pieces.wordpiece import UNKNOWN, WordPiece

MIN_COUNT = 10  # minimum count of a word, whose embedding is learned only from its contexts
_UNUSED = re.compile(r"\[unused\d+\]")


class AddedWord(NamedTuple):
    """A word to add to the vocabulary.

    Attributes:
      word: its entry in the vocabulary.
      frequency: number of its occurrences in the text.
      pieces: ids of its word pieces in the old vocabulary.
    """

    word: str
    frequency: int
    pieces: tuple[int, ...]


def choose_words(counts: Mapping[str, int], vocabulary: Vocabulary, number: int) -> list[AddedWord]:
    """Returns the words that lower the fragmentation of a text the most, at most `number` of them.

    Words without a letter, words rarer than MIN_COUNT, and words that become [UNK] are left out: the last
    have no pieces to initialize their embedding from.

    Args:
      counts: {tokenised word: number of its occurrences in the text}.
      vocabulary: vocabulary of word pieces.
      number: maximum number of words.
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
    """Puts words into a vocabulary: first in place of its [unusedN] entries, from the top, which keeps the
    model's shape, then at its end.

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
    """Returns the average number of word pieces per word of a text; 0 for an empty text."""
    _, lengths = WordPiece(vocabulary).tokenize_words(list(counts))
    total = sum(counts.values())
    return float(np.dot(lengths, np.fromiter(counts.values(), np.int64, len(counts)))) / max(total, 1)
