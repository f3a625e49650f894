"""Tokenised documents on disk: files in which the documents lie in the order of a random 64-bit key.

The documents whose keys lie in one range are a random sample of all documents. In every file they are one run
of bytes, and small enough to be held in memory however large the whole is.

A file is a header, the places of its chunks, and the chunks: the range of keys that a file covers is cut into
2^N equal parts, and a chunk is the documents of one part. All numbers are little-endian.
"""

import dataclasses
import struct
from collections.abc import Iterable, Iterator

import numpy as np

from official.data.pretraining import corpus, document_lengths
from official.data.pretraining.corpus import TokenizedDocuments
from official.data.regrouping import KEY_BITS, damaged
from official.data.rows import ragged
from official.io import files, writing

ALL_KEYS = (0, 1 << KEY_BITS)
_HEADER = struct.Struct(
    "<8sBBBBQ"
)  # magic, bits of the chunks' numbers, of the range, bytes of a token, 0, first key
_MAGIC = b"BERTDOCS"
_CHUNK = struct.Struct("<QQQ")  # documents, sentences, tokens
_PLACE = np.dtype("<u8")
_ALIGNED_BYTES = 8
_CHUNK_BYTES = 1 << 14  # on average: what is read in vain at either end of a range
_MOST_CHUNK_BITS = 12


@dataclasses.dataclass(frozen=True)
class Sample:
    """D documents with their keys."""

    documents: TokenizedDocuments
    keys: np.ndarray  # [D] uint64, ascending
    sources: np.ndarray  # [D] uint8, the number of the source that each comes from

    def sorted(self, first_key: int = 0, end_key: int = ALL_KEYS[1]) -> "Sample":
        """Returns the documents of a range of keys in the order of their keys, those of one key in the order
        in which they are here."""
        order = np.argsort(self.keys, kind="stable")
        ascending = self.keys[order]
        order = order[slice(*(_find(ascending, key) for key in (first_key, end_key)))]
        return self.take(order)

    def take(self, order: np.ndarray) -> "Sample":
        """Returns some documents, by their numbers, in the order given."""
        return Sample(self.documents.take(order), self.keys[order], self.sources[order])

    def counts(self, unknown: int) -> dict[str, int]:
        """Returns the counts of the documents for a manifest; `unknown` is the id of [UNK]."""
        return {
            "kept_documents": self.documents.num_documents,
            "kept_sentences": self.documents.num_sentences,
            "tokens": len(self.documents.tokens),
            "unknown_tokens": int(np.count_nonzero(self.documents.tokens == unknown)),
            **document_lengths.counted(self.documents),
        }

    def without_duplicates(self) -> tuple["Sample", "Sample"]:
        """Returns the first of each set of equal documents, and the others. Equal documents have equal keys,
        and the documents are in the order of their keys."""
        is_other = np.zeros(len(self.keys), bool)
        different: list[int] = []  # documents of the key that is looked at
        for number in np.flatnonzero(self.keys[1:] == self.keys[:-1]) + 1:
            if not different or self.keys[different[0]] != self.keys[number]:
                different = [int(number) - 1]
            is_other[number] = any(self._are_equal(number, earlier) for earlier in different)
            if not is_other[number]:
                different.append(int(number))
        if not is_other.any():
            return self, self.take(np.flatnonzero(is_other))
        return self.take(np.flatnonzero(~is_other)), self.take(np.flatnonzero(is_other))

    def _are_equal(self, one: int, other: int) -> bool:
        return all(map(np.array_equal, self.documents.content(one), self.documents.content(other)))


def _find(keys: np.ndarray, key: int) -> int:
    """Returns the number of ascending keys that are lower than `key`, 2**64 at most."""
    return len(keys) if key == ALL_KEYS[1] else int(np.searchsorted(keys, np.uint64(key)))


def concatenate(samples: Iterable[Sample]) -> Sample:
    """Joins documents, in the order given; at least one sample."""
    samples = list(samples)
    return Sample(
        corpus.concatenate(sample.documents for sample in samples),
        np.concatenate([sample.keys for sample in samples]),
        np.concatenate([sample.sources for sample in samples]),
    )


# ------------------------------------------------------------------------------------------------------------
# Writing


def write_block(path: str, sample: Sample, first_key: int = 0, range_bits: int = KEY_BITS) -> None:
    """Writes a file of documents.

    Args:
      sample: documents in the order of their keys.
      first_key, range_bits: the file covers the 2**range_bits keys from first_key on.

    Raises:
      OSError: and there is no file of that name, or the one that was there.
    """
    bits = min(max(size(sample) // _CHUNK_BYTES, 1).bit_length() - 1, _MOST_CHUNK_BITS, range_bits)
    step = 1 << (range_bits - bits)
    bounds = [_find(sample.keys, first_key + number * step) for number in range((1 << bits) + 1)]
    chunks = [_chunk(sample, *bound) for bound in zip(bounds, bounds[1:])]
    places = _HEADER.size + _PLACE.itemsize * len(bounds) + ragged.offsets(np.array([*map(len, chunks)]))
    header = _HEADER.pack(_MAGIC, bits, range_bits, sample.documents.tokens.itemsize, 0, first_key)
    with writing.replacing(path) as temporary, open(temporary, "wb") as file:
        file.writelines([header, places.astype(_PLACE).tobytes(), *chunks])


def size(sample: Sample) -> int:
    """Returns the bytes of documents in a file, about."""
    return sample.documents.tokens.nbytes + 4 * sample.documents.num_sentences + 13 * len(sample.keys)


def _chunk(sample: Sample, first: int, end: int) -> bytes:
    texts = sample.documents
    sentences = texts.document_starts[first : end + 1]
    tokens = texts.tokens[slice(*texts.sentence_starts[sentences[[0, -1]]])]
    lengths = np.diff(texts.sentence_starts[sentences[0] : sentences[-1] + 1])
    data = b"".join(
        [
            _CHUNK.pack(end - first, len(lengths), len(tokens)),
            sample.keys[first:end].tobytes(),
            np.diff(sentences).astype(np.uint32).tobytes(),
            lengths.astype(np.uint32).tobytes(),
            tokens.tobytes(),
            sample.sources[first:end].tobytes(),
        ]
    )
    return data + bytes(-len(data) % _ALIGNED_BYTES)


# ------------------------------------------------------------------------------------------------------------
# Reading


def read_range(paths: Iterable[str], first_key: int, end_key: int) -> Sample:
    """Returns the documents of all files with first_key <= key < end_key in the order of their keys, those of
    one key in the order of the files.

    Args:
      paths: one at least.
      end_key: 2**64 takes in the last key.

    Raises:
      ConfigError: for a file that is not there, or damaged.
    """
    return concatenate(chunk for path in paths for chunk in _read_chunks(path, first_key, end_key)).sorted(
        first_key, end_key
    )


def _read_chunks(path: str, first_key: int, end_key: int) -> Iterator[Sample]:
    """Yields the chunks of a file in which keys of a range may lie, one at least."""
    try:
        with files.reading_parts(path) as read:
            magic, bits, range_bits, itemsize, _, begin = _HEADER.unpack(read(0, _HEADER.size))
            if magic != _MAGIC:
                raise ValueError("it does not begin as such a file does")
            first, end = ((key - begin) >> (range_bits - bits) for key in (first_key, end_key - 1))
            first, end = min(max(first, 0), (1 << bits) - 1), min(max(end, 0), (1 << bits) - 1) + 1
            listed = read(_HEADER.size + first * _PLACE.itemsize, (end - first + 1) * _PLACE.itemsize)
            places = np.frombuffer(listed, _PLACE).tolist()
            data = read(places[0], places[-1] - places[0])
            for place in places[: end - first]:
                yield _parse(data, place - places[0], np.dtype(f"<{'u' if itemsize == 2 else 'i'}{itemsize}"))
    except (OSError, ValueError, struct.error, IndexError, TypeError, OverflowError) as error:
        raise damaged(path, error) from None


def _parse(data: bytes, place: int, token_type: np.dtype) -> Sample:
    documents, sentences, tokens = _CHUNK.unpack_from(data, place)
    place += _CHUNK.size
    arrays = []
    for kind, count in (
        (np.dtype("<u8"), documents),
        (np.dtype("<u4"), documents),
        (np.dtype("<u4"), sentences),
        (token_type, tokens),
        (np.dtype("u1"), documents),
    ):
        arrays.append(np.frombuffer(data, kind, count, place))
        place += kind.itemsize * count
    keys, sentences_of, lengths, ids, sources = arrays
    texts = TokenizedDocuments(ids, ragged.offsets(lengths), ragged.offsets(sentences_of))
    return Sample(texts, keys, sources)
