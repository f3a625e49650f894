"""Converts sentences to ids with the tokenizer of a vocabulary: BERT's word pieces, or a tokenizer of the
library `tokenizers`."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from official.data.word_pieces.vocabulary import Vocabulary
from official.data.word_pieces.wordpiece import WordPiece


class Tokenizer(Protocol):
    """Converts texts to ids; thread-safe."""

    def tokenize(self, sentences: list[str]) -> tuple[np.ndarray, np.ndarray]:
        """Returns the ids of all sentences in one array, uint16, or int32 for vocabularies above 65,536
        words, and the number of ids of each sentence, int64."""

    def tokenize_lines(self, text: bytes) -> tuple[np.ndarray, np.ndarray]:
        """Tokenises as `tokenize` does, given UTF-8 text with one sentence per line."""

    def tokenize_words(self, words: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """Tokenises words as `tokenize` does, as if a space preceded each of them."""

    def word_of(self, number: int) -> str:
        """Returns the readable piece of an id."""


@functools.lru_cache(maxsize=1)
def tokenizer_of(vocabulary: Vocabulary) -> Tokenizer:
    """Returns the tokenizer of a vocabulary; the last one is cached."""
    return WordPiece(vocabulary) if vocabulary.tokenizer is None else LibraryTokenizer(vocabulary)


class LibraryTokenizer:
    """Splits text as transformers does with the same files: special tokens in a text are recognized."""

    def __init__(self, vocabulary: Vocabulary):
        assert vocabulary.tokenizer is not None
        self._tokenizer = vocabulary.tokenizer.load()
        self._dtype = np.dtype(np.uint16 if vocabulary.size <= 2**16 else np.int32)
        self._size, self._unknown = vocabulary.size, vocabulary.special_ids.unk

    def tokenize(self, sentences: list[str]) -> tuple[np.ndarray, np.ndarray]:
        """See `Tokenizer`. A lone surrogate becomes a question mark."""
        return self._joined(self._encoded(sentences))

    def tokenize_lines(self, text: bytes) -> tuple[np.ndarray, np.ndarray]:
        """See `Tokenizer`."""
        lines = text.decode("utf-8", "replace").split("\n")
        return self.tokenize(lines[:-1])

    def tokenize_words(self, words: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """See `Tokenizer`."""
        return self.tokenize([f" {word}" for word in words])

    def word_of(self, number: int) -> str:
        """See `Tokenizer`. Bytes of an incomplete character become U+FFFD."""
        return self._tokenizer.decode([number], skip_special_tokens=False).strip()

    def spans(self, texts: list[str]) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Tokenises as `tokenize` does, and also returns the first character and the end of each piece in its
        text, int64."""
        encoded = self._encoded(texts)
        offsets = [offset for each in encoded for offset in each.offsets]
        begins, ends = np.array(offsets, np.int64).reshape(-1, 2).T
        return *self._joined(encoded), begins, ends

    def _encoded(self, texts: list[str]) -> list[Any]:
        clean = [text.encode("utf-8", "replace").decode() for text in texts]
        return self._tokenizer.encode_batch(clean, add_special_tokens=False)

    def _joined(self, encoded: list[Any]) -> tuple[np.ndarray, np.ndarray]:
        ids = [np.array(each.ids, np.int64) for each in encoded]
        lengths = np.fromiter(map(len, ids), np.int64, len(ids))
        joined = np.concatenate(ids) if ids else np.zeros(0, np.int64)
        return np.where(joined < self._size, joined, self._unknown).astype(self._dtype), lengths


# -----------------------------------------------------------------------------------------------------------
# Words to predict


MASK = "[MASK]"  # in texts, for any vocabulary


def tokenize_masked(
    tokenizer: Tokenizer, vocabulary: Vocabulary, texts: Sequence[str]
) -> tuple[np.ndarray, np.ndarray]:
    """Tokenises texts in which MASK is a word to predict, as `Tokenizer.tokenize` does."""
    if vocabulary.tokenizer is not None:  # it recognizes its special tokens in texts
        return tokenizer.tokenize([text.replace(MASK, vocabulary.special.mask) for text in texts])
    parts = [text.split(MASK) for text in texts]
    sizes_S = np.array([len(own) for own in parts], np.int64)
    ids, counts_P = tokenizer.tokenize([part for own in parts for part in own])
    ends_S = np.cumsum(sizes_S)
    is_inner_P = np.ones(len(counts_P), bool)
    is_inner_P[ends_S - 1] = False
    ids = np.insert(ids, np.cumsum(counts_P)[is_inner_P], vocabulary.special_ids.mask)
    return ids, np.add.reduceat(counts_P, ends_S - sizes_S) + sizes_S - 1
