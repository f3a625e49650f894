"""Tokenised documents in memory, as a few arrays."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

import numpy as np

from official.data.rows import ragged


@dataclasses.dataclass(frozen=True)
class TokenizedDocuments:
    """Documents as one array of ids, T tokens in S sentences in D documents.

    Sentence s is tokens[sentence_starts[s]:sentence_starts[s + 1]] and never empty; document d is the
    sentences document_starts[d] up to document_starts[d + 1], one at least.
    """

    tokens: np.ndarray  # [T] uint16, or int32 for vocabularies above 65,536 words
    sentence_starts: np.ndarray  # [S + 1] int64
    document_starts: np.ndarray  # [D + 1] int64

    @property
    def num_documents(self) -> int:
        return len(self.document_starts) - 1

    @property
    def num_sentences(self) -> int:
        return len(self.sentence_starts) - 1

    def token_starts(self) -> np.ndarray:
        """Returns int64 [D + 1]: the first token of each document, and the end of the last one."""
        return self.sentence_starts[self.document_starts]

    def content(self, document: int) -> tuple[np.ndarray, np.ndarray]:
        """Returns the tokens of a document, and the lengths of its sentences."""
        first, end = self.document_starts[document : document + 2]
        starts = self.sentence_starts[first : end + 1]
        return self.tokens[starts[0] : starts[-1]], np.diff(starts)

    def take(self, order: np.ndarray) -> TokenizedDocuments:
        """Returns some documents, by their numbers, in the order given."""
        lengths = ragged.take(np.diff(self.sentence_starts), self.document_starts, order)
        return TokenizedDocuments(
            ragged.take(self.tokens, self.token_starts(), order),
            ragged.offsets(lengths),
            ragged.offsets(np.diff(self.document_starts)[order]),
        )


def from_sentences(tokens: np.ndarray, lengths: np.ndarray, documents: np.ndarray) -> TokenizedDocuments:
    """Makes offsets of lengths. Sentences and documents without a token are left out.

    Args:
      tokens: [T] ids of all sentences.
      lengths: [S] ids of each sentence, 0 allowed.
      documents: [S] number of the document of each sentence, ascending.
    """
    documents, lengths = documents[lengths > 0], lengths[lengths > 0]
    return TokenizedDocuments(
        tokens,
        ragged.offsets(lengths),
        np.append(np.flatnonzero(np.diff(documents, prepend=-1)), len(documents)),
    )


def concatenate(parts: Iterable[TokenizedDocuments]) -> TokenizedDocuments:
    """Joins documents, in the order given; at least one part."""
    parts = list(parts)
    lengths = [np.diff(part.sentence_starts) for part in parts]
    sentences = [np.diff(part.document_starts) for part in parts]
    return TokenizedDocuments(
        np.concatenate([part.tokens for part in parts]),
        ragged.offsets(np.concatenate(lengths)),
        ragged.offsets(np.concatenate(sentences)),
    )
