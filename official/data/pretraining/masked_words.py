"""Evaluation sets of masked words: the same words of the same text, for tokenizers that split them
differently.

A loss per word piece cannot be compared between tokenizers. So each row has as many words as fit with every
tokenizer, and 15 % of the words of each row are drawn once, for all tokenizers. All pieces of a drawn word
are replaced by [MASK]: random pieces, as in training, would depend on the vocabulary. The sum of the losses
of all pieces is then a loss of the same words; divided by the number of words or of characters, it can be
compared. The pieces of a word are predicted independently, and the number of masks reveals its length, as in
BERT's whole-word masking.
"""

from __future__ import annotations

import dataclasses
import heapq
import os
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from official.data.pretraining.examples import Examples
from official.data.records import shard_files
from official.data.rows import ragged
from official.data.text import samples
from official.data.word_pieces.tokenizer import tokenizer_of
from official.data.word_pieces.vocabulary import Vocabulary
from official.data.word_pieces.vocabulary_building import split_words
from official.io.errors import ConfigError

MASKED_SHARE = 0.15
_SPECIAL_TOKENS = 2  # special tokens of a row: [CLS] and [SEP]


@dataclasses.dataclass(frozen=True)
class Shape:
    """Maximum sizes of an evaluation set: tokens of a row, masked tokens of a row, and rows."""

    length: int
    predictions: int
    rows: int = 2000


@dataclasses.dataclass(frozen=True)
class MaskedWords:
    """Counts of the masked words of a set.

    Attributes:
      documents, rows: number of documents and rows of the set.
      words: number of masked words; a punctuation mark counts as one.
      characters: number of characters of these words.
      pieces: number of pieces of these words with each tokenizer.
    """

    documents: int
    rows: int
    words: int
    characters: int
    pieces: tuple[int, ...]


def make_sets(
    documents: Iterable[Sequence[str]],
    vocabularies: Sequence[Vocabulary],
    shape: Shape,
    seed: int,
    source: str,
) -> tuple[list[Examples], MaskedWords]:
    """Makes an evaluation set for each vocabulary.

    Args:
      documents: the sentences of each document; if not all fit, those with the lowest hashes are used.
      vocabularies: vocabularies of the same casing.
      shape: maximum sizes of the sets.
      seed: seed of the masks.
      source: flag and value of the documents, for messages.

    Returns:
      The rows for each vocabulary, and the counts of the masked words.

    Raises:
      ConfigError: if no row has a word to mask.
    """
    tokenizers = [tokenizer_of(vocabulary) for vocabulary in vocabularies]
    unknown = [vocabulary.special_ids.unk for vocabulary in vocabularies]
    hashed = ((samples.digest_of(" ".join(document)), list(document)) for document in documents)
    chosen = heapq.nsmallest(shape.rows, hashed)
    generator = np.random.default_rng(seed)
    rows: list[list[list[np.ndarray]]] = []  # [row][tokenizer][word]: ids
    drawn: list[np.ndarray] = []  # numbers of the masked words of each row, ascending
    num_documents = words_masked = characters = 0
    for _, document in chosen:
        if len(rows) == shape.rows:
            break
        num_documents += 1
        words = [word for sentence in document for word in split_words(sentence, vocabularies[0])]
        pieces_TW = [ragged.split(*tokenizer.tokenize_words(words)) for tokenizer in tokenizers]
        lengths_TW = np.array([list(map(len, own)) for own in pieces_TW]).reshape(len(tokenizers), -1)
        known_W: Any = ~np.array(
            [[number in ids for ids in own] for own, number in zip(pieces_TW, unknown)], bool
        ).reshape(len(tokenizers), -1).any(axis=0)
        for first, end in _cuts(lengths_TW, shape.length - _SPECIAL_TOKENS):
            own_lengths = lengths_TW[:, first:end]
            candidates = np.flatnonzero(known_W[first:end] & (own_lengths.min(axis=0) > 0))
            masked = _draw(candidates, own_lengths, end - first, shape.predictions, generator)
            if len(masked) and len(rows) < shape.rows:
                rows.append([own[first:end] for own in pieces_TW])
                drawn.append(masked)
                words_masked += len(masked)
                characters += sum(len(words[first + number]) for number in masked)
    if not rows:
        raise ConfigError(f"{source} leaves no words to mask. Give more text, or a larger share of it.")
    sets = [
        _examples([row[place] for row in rows], drawn, vocabulary, shape)
        for place, vocabulary in enumerate(vocabularies)
    ]
    pieces = tuple(int(examples.predictions.sum()) for examples in sets)
    return sets, MaskedWords(num_documents, len(rows), words_masked, characters, pieces)


def write_set(examples: Examples, folder: str) -> None:
    """Writes a set as a file of records."""
    os.makedirs(folder, exist_ok=True)
    with shard_files.writing(os.path.join(folder, "part-00000-of-00001.tfrecord"), "plain") as write:
        write(examples)


def _cuts(lengths_TW: np.ndarray, most: int) -> Iterable[tuple[int, int]]:
    """Yields (first word, end) of each row, with as many words as fit with every tokenizer. A word that is
    longer than a row is left out and ends the row."""
    first, used = 0, np.zeros(len(lengths_TW), np.int64)
    for word, lengths in enumerate(lengths_TW.T):
        is_too_long = bool((lengths > most).any())
        if is_too_long or (used + lengths > most).any():
            if word > first:
                yield first, word
            first, used = word + is_too_long, np.zeros_like(used)
        used = used + (0 if is_too_long else lengths)
    if lengths_TW.shape[1] > first:
        yield first, lengths_TW.shape[1]


def _draw(
    candidates: np.ndarray, lengths_TW: np.ndarray, words: int, most: int, generator: np.random.Generator
) -> np.ndarray:
    """Draws the words of a row to mask, ascending: 15 % of them, at least one, as long as their pieces fit
    into the slots with every tokenizer."""
    wanted = max(1, round(MASKED_SHARE * words))
    chosen: list[int] = []
    used = np.zeros(len(lengths_TW), np.int64)
    for word in generator.permutation(candidates).tolist():
        if len(chosen) < wanted and (used + lengths_TW[:, word] <= most).all():
            chosen.append(word)
            used = used + lengths_TW[:, word]
    return np.array(sorted(chosen), np.int64)


def _examples(
    rows: Sequence[Sequence[np.ndarray]], drawn: Sequence[np.ndarray], vocabulary: Vocabulary, shape: Shape
) -> Examples:
    special, count = vocabulary.special_ids, len(rows)
    ids_NL = np.full((count, shape.length), special.pad, np.int32)
    positions_NP = np.zeros((count, shape.predictions), np.int32)
    labels_NP = np.zeros_like(positions_NP)
    lengths_N, predictions_N = np.zeros(count, np.int64), np.zeros(count, np.int64)
    for row, (words, masked) in enumerate(zip(rows, drawn)):
        ids = np.concatenate([[special.cls], *words, [special.sep]])
        starts = 1 + ragged.offsets(np.array(list(map(len, words))))
        positions = np.concatenate([np.arange(starts[word], starts[word + 1]) for word in masked])
        size, lengths_N[row], predictions_N[row] = len(positions), len(ids), len(positions)
        positions_NP[row, :size], labels_NP[row, :size] = positions, ids[positions]
        ids[positions] = special.mask
        ids_NL[row, : len(ids)] = ids
    is_random = np.zeros(count, bool)
    return Examples(ids_NL, lengths_N, lengths_N, positions_NP, labels_NP, predictions_N, is_random)
