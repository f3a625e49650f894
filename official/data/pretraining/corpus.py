"""Tokenised documents: in memory, and on disk in blocks from which a pool of documents is read back.

The text is tokenised once. Blocks of a few million tokens go to disk, the documents of each in the order of
a random 64-bit key. A pool is the documents whose keys lie in one range: a random sample of all documents,
found in every block as one slice, and small enough to be held in memory however large the whole is.
"""

import dataclasses
import glob
import os
from collections.abc import Iterable, Iterator

import numpy as np

from official.config import ConfigError
from official.data.rows import ragged

_DOCUMENT = np.dtype(
    [("key", np.uint64), ("token", np.int64), ("sentence", np.int64)]
)  # where it begins in the block
_ARRAYS = (
    "tokens",
    "sentences",
    "documents",
)  # a file each; that of the documents is the last that is written


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


# ------------------------------------------------------------------------------------------------------------
# On disk


def write_block(prefix: str, documents: TokenizedDocuments, keys: np.ndarray) -> None:
    """Writes PREFIX.tokens.npy, PREFIX.sentences.npy and PREFIX.documents.npy, the documents in ascending
    order of their keys.

    Args:
      keys: [D] uint64.
    """
    order = np.argsort(keys, kind="stable")
    sentences = _ranges(documents.document_starts, order)
    lengths = np.diff(documents.sentence_starts)[sentences]
    index = np.zeros(documents.num_documents + 1, _DOCUMENT)
    index["key"][:-1], index["key"][-1] = keys[order], np.iinfo(np.uint64).max
    index["sentence"] = ragged.offsets(np.diff(documents.document_starts)[order])
    index["token"] = ragged.offsets(lengths)[index["sentence"]]
    tokens = documents.tokens[_ranges(documents.sentence_starts[documents.document_starts], order)]
    for name, array in zip(_ARRAYS, (tokens, lengths.astype(np.int32), index)):
        np.save(f"{prefix}.{name}.npy", array)


def _ranges(starts: np.ndarray, order: np.ndarray) -> np.ndarray:
    """Returns the numbers of range starts[i] .. starts[i + 1] for each i of `order`, one range after the
    other."""
    return ragged.ranges(starts[order], np.diff(starts)[order])


def find_blocks(folder: str) -> list[str]:
    """Returns the prefixes of all blocks in a folder, sorted."""
    ending = f".{_ARRAYS[-1]}.npy"
    return sorted(
        path.removesuffix(ending) for path in glob.glob(os.path.join(glob.escape(folder), "*" + ending))
    )


def read_pool(blocks: Iterable[str], first_key: int, end_key: int) -> TokenizedDocuments:
    """Returns the documents of all blocks with first_key <= key < end_key; an end of 2**64 takes in the last
    key."""
    return concatenate(_slices(blocks, first_key, end_key))


def _load(prefix: str) -> tuple[np.ndarray, ...]:
    try:
        return tuple(np.load(f"{prefix}.{name}.npy", mmap_mode="r") for name in _ARRAYS)
    except (OSError, ValueError, EOFError) as error:
        raise ConfigError(
            f"{prefix}.*.npy of an unfinished job are damaged ({error}). Delete {os.path.dirname(prefix)} and"
            " start again."
        ) from None


def _slices(blocks: Iterable[str], first_key: int, end_key: int) -> Iterator[TokenizedDocuments]:
    for prefix in blocks:
        tokens, lengths, index = _load(prefix)
        first = np.searchsorted(index["key"][:-1], np.uint64(first_key))
        end = len(index) - 1 if end_key == 2**64 else np.searchsorted(index["key"][:-1], np.uint64(end_key))
        part = index[first : end + 1]
        yield TokenizedDocuments(
            tokens=np.array(tokens[part["token"][0] : part["token"][-1]]),
            sentence_starts=ragged.offsets(lengths[part["sentence"][0] : part["sentence"][-1]]),
            document_starts=part["sentence"] - part["sentence"][0],
        )
