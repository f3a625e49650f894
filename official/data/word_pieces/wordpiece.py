"""Converts sentences to ids of word pieces, exactly as Google's BERT does, cased and uncased.

Source: https://github.com/google-research/bert/blob/master/tokenization.py
"""

from __future__ import annotations

import ctypes
import enum
import functools
import itertools
import re
import string
import threading
import unicodedata
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import tokenizers
from absl import logging

from official.data import compiled
from official.data.rows import ragged
from official.data.word_pieces.vocabulary import CONTINUATION, Vocabulary
from official.io.model_folder import SPECIAL_TOKENS

# -----------------------------------------------------------------------------------------------------------
# Rules
#
# Control and format characters are dropped, each Chinese character is a word, the text is split at white
# space, lower-cased and stripped of accents (neither for a cased vocabulary), and split at punctuation. Each
# word is split into the longest pieces of the vocabulary, from left to right; a word that cannot be covered,
# or is too long (`Vocabulary.max_word_characters`), becomes [UNK].


UNKNOWN = "[UNK]"
_IDEOGRAPHS = "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
_IDEOGRAPHS += "\U00020000-\U0002a6df\U0002a700-\U0002ceaf\U0002f800-\U0002fa1f"
IDEOGRAPH = re.compile(f"[{_IDEOGRAPHS}]")
_IDEOGRAPH_OR_OTHERS = re.compile(f"[{_IDEOGRAPHS}]|[^{_IDEOGRAPHS}]+")


class Kind(enum.IntEnum):
    """Kinds of characters. A BLANK is dropped, but counts as white space in the check for an empty text."""

    DROPPED = 0
    BLANK = 1
    SPACE = 2
    LETTER = 3
    SINGLE = 4  # a separate word
    ACCENT = 5


def is_dropped(character: str) -> bool:
    return character == "\ufffd" or unicodedata.category(character) in ("Cc", "Cf")


def is_accent(character: str) -> bool:
    return unicodedata.category(character) == "Mn"


def is_punctuation(character: str) -> bool:
    """Tells whether a character is punctuation: by Unicode, or any in ASCII except letters, digits and
    blanks."""
    return character in string.punctuation or unicodedata.category(character).startswith("P")


def decomposed(text: str) -> str:
    """Returns a text in lower case, with accents as separate characters."""
    return unicodedata.normalize("NFD", text.lower())


def normalize(character: str, do_lower_case: bool) -> tuple[Kind, str]:
    """Returns the kind of a character, and its normalised form."""
    if is_dropped(character) and character not in "\t\n\r":
        return (Kind.BLANK if character.isspace() else Kind.DROPPED), ""
    if character.isspace():
        return Kind.SPACE, ""
    text = character
    if do_lower_case:
        text = "".join(part for part in decomposed(character) if not is_accent(part))
    if not text:
        return Kind.ACCENT, ""
    is_single = IDEOGRAPH.match(character) or any(map(is_punctuation, text))
    return (Kind.SINGLE if is_single else Kind.LETTER), text


class _CharacterTable(dict):
    """A table for str.translate() that caches the result of each character."""

    def __init__(self, rule: Callable[[str], str]):
        super().__init__()
        self._rule = rule

    def __missing__(self, code_point: int) -> str:
        self[code_point] = made = self._rule(chr(code_point))
        return made


_VISIBLE = _CharacterTable(lambda character: "" if is_dropped(character) else character)
_SPLIT = _CharacterTable(lambda character: f" {character} " if is_punctuation(character) else character)
_WITHOUT_ACCENTS = _CharacterTable(lambda character: "" if is_accent(character) else character)


def find_words(chunk: str, do_lower_case: bool) -> list[str]:
    """Returns the words of a text without tabs, line feeds and carriage returns; other white space is
    allowed."""
    words = []
    for part in _IDEOGRAPH_OR_OTHERS.findall(chunk):
        part = part.translate(_VISIBLE)
        if do_lower_case:
            part = decomposed(part).translate(_WITHOUT_ACCENTS)
        words += part.translate(_SPLIT).split()
    return words


# -----------------------------------------------------------------------------------------------------------
# Tokenizer
#
# A chunk of text between white space always has the same ids, and so has every word and punctuation mark of
# an ASCII chunk. The ids of frequent words are looked up in a table by a compiled function, if available;
# otherwise, and for other words, chunks are looked up in a dictionary. New chunks are split by the compiled
# WordPiece model of Hugging Face's tokenizers.
#
# The compiled function saves a tenth of the time for pre-training data (40 MB of text, --dupe_factor=10, one
# worker), a fifth with --dupe_factor=1.


_BATCH_BYTES = 2**18  # bytes that are looked up at once: arrays of their words fit into the cache
_MAX_REMEMBERED = 2**18  # maximum number of words and chunks in the dictionary: about 60 MB
_MAX_REMEMBERED_BYTES = 50  # maximum size of a chunk in it; longer ones rarely occur twice
_ASCII_CONTROL = bytes(code for code in (*range(32), 127) if chr(code) not in "\t\n\r")
_ASCII = {
    True: bytes.maketrans(string.ascii_uppercase.encode() + b"\t\r", string.ascii_lowercase.encode() + b"  "),
    False: bytes.maketrans(b"\t\r", b"  "),
}
_END_CHUNK = b" \0 "  # end of a sentence; the text has no other NUL
_SURROGATE = re.compile("[\ud800-\udfff]")
_SPECIAL_TOKEN = re.compile("|".join(map(re.escape, SPECIAL_TOKENS)))
# Classes of bytes: white space, part of a word, a separate word. The line feed, which ends a sentence, counts
# as a word.
_WHITE, _PART, _ALONE = range(3)
_MARKS = string.punctuation.encode() + b"\n"
_CLASSES = bytes(_WHITE if code in b" " else _ALONE if code in _MARKS else _PART for code in range(256))


class _WordTable:
    """Hash table from words of up to 16 bytes to their ids, for the functions of native/words.cc. It has no
    room for words whose bucket is full, or with more than seven ids.

    One thread may add words while others look up words.
    """

    BITS, PLACES, MAX_IDS = 15, 4, 7  # as in words.cc: log2 of buckets, words per bucket, ids per word

    def __init__(self, library: ctypes.CDLL, dtype: np.dtype):
        places = 2**self.BITS * self.PLACES
        self._library, self._dtype = library, dtype
        self._keys = np.zeros((places, 2), np.uint64)  # no word has the key 0
        self._ids = np.zeros((places, 1 + self.MAX_IDS), dtype)  # their number, then the ids
        self._places = (dtype.itemsize, self._keys.ctypes.data, self._ids.ctypes.data)

    def add(self, text: bytes, starts: np.ndarray, ends: np.ndarray, ids: np.ndarray, counts: np.ndarray):
        """Adds words text[starts[n]:ends[n]] with counts[n] of the ids each, if they are new and fit."""
        arrays = [np.ascontiguousarray(array, np.int64) for array in (starts, ends, counts)]
        found = np.ascontiguousarray(ids, self._dtype)
        places = (array.ctypes.data for array in (*arrays, found))
        self._library.add_words(text, len(text), len(starts), *self._places, *places)

    def find(self, text: bytes, none: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Returns the ids of the words of a text, `none` for each missing word; and for the missing words
        their positions among the ids, and their starts and ends in the text."""
        ids, counts = np.empty(len(text) + self.MAX_IDS, self._dtype), np.empty(2, np.int64)
        others = np.empty((3, len(text)), np.int64)
        arrays = (array.ctypes.data for array in (ids, *others, counts))
        self._library.find_ids(text, len(text), *self._places, none, _CLASSES, *arrays)
        return ids[: counts[0]], *others[:, : counts[1]]


class WordPiece:
    """Lower-cases text and strips accents, if the vocabulary is uncased, and splits it into word pieces. It
    caches words, and is thread-safe."""

    def __init__(self, vocabulary: Vocabulary):
        self._do_lower_case, self._words = vocabulary.do_lower_case, vocabulary.words
        self._dtype = np.dtype(np.uint16 if vocabulary.size <= 2**16 else np.int32)
        # Ids beyond the vocabulary: the end of a sentence, and words that are missing in the table.
        self._end, self._none = vocabulary.size, vocabulary.size + 1
        self._wide = np.dtype(np.uint16 if self._none < 2**16 else np.int32)  # wide enough for them
        self._word_pieces = tokenizers.Tokenizer(
            tokenizers.models.WordPiece(
                vocabulary.ids,
                unk_token=UNKNOWN,
                max_input_chars_per_word=vocabulary.max_word_characters,
                continuing_subword_prefix=CONTINUATION,
            )
        )
        self._remembered: dict[bytes, bytes] = {}
        self._adding = threading.Lock()  # for additions to the table and the dictionary
        self._table: _WordTable | None = None
        self._told: set[str] = set()  # special tokens that were reported

    def tokenize(self, sentences: list[str]) -> tuple[np.ndarray, np.ndarray]:
        """Tokenises any text. A lone surrogate is an ordinary character. Warns once of a special token in a
        text, which is split like any other word.

        Returns:
          The ids of all sentences in one array, uint16, or int32 for vocabularies above 65,536 words; and the
          number of ids of each sentence, int64.
        """
        text = "\n".join([*sentences, ""])
        self._report_special(text)
        if text.count("\n") > len(sentences):
            text = "\n".join([*(sentence.replace("\n", " ") for sentence in sentences), ""])
        return self.tokenize_lines(text.encode("utf-8", "surrogatepass"))

    def _report_special(self, text: str) -> None:
        new = {*_SPECIAL_TOKEN.findall(text)} - self._told
        self._told |= new
        for token in sorted(new):
            warning = "%s in a text is split like other words, and is the special token in transformers.%s"
            pair = " Give the texts of a pair as two." if token == SPECIAL_TOKENS.sep else ""
            logging.warning(f"{warning} This is logged once.", token, pair)

    def word_of(self, number: int) -> str:
        """Returns the word piece of an id."""
        return self._words[number]

    def tokenize_words(self, words: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """Tokenises words like sentences, since a space before them makes no difference."""
        return self.tokenize(list(words))

    def tokenize_lines(self, text: bytes) -> tuple[np.ndarray, np.ndarray]:
        """Tokenises as `tokenize` does, given UTF-8 text with one sentence per line."""
        if not text:
            return np.zeros(0, self._dtype), np.zeros(0, np.int64)
        library = compiled.library()
        look_up = self._look_up if library is None else functools.partial(self._look_up_compiled, library)
        clean = _ASCII[self._do_lower_case]
        parts = [look_up(batch.translate(clean, _ASCII_CONTROL)) for batch in _batches(text)]
        tokens, lengths = map(np.concatenate, zip(*parts))
        return tokens.astype(self._dtype, copy=False), lengths

    def _look_up(self, text: bytes) -> tuple[np.ndarray, np.ndarray]:
        """Returns the ids of lines, and the number of ids of each."""
        ids = np.frombuffer(b"".join(self._ids_of(text.replace(b"\n", _END_CHUNK).split())), self._wide)
        is_end = ids == self._end
        return ids[~is_end], np.diff(np.flatnonzero(is_end), prepend=-1) - 1

    def _look_up_compiled(self, library: ctypes.CDLL, text: bytes) -> tuple[np.ndarray, np.ndarray]:
        """Looks up ids as `_look_up` does, with the compiled function."""
        table = self._table
        if table is None:
            table = _WordTable(library, self._wide)
            table.add(b"\n", np.zeros(1), np.ones(1), np.array([self._end]), np.ones(1))
            self._table = table
        found, others, starts, ends = table.find(text, self._none)
        chunks = list(map(text.__getitem__, map(slice, starts.tolist(), ends.tolist())))
        ids_of = self._ids_of(chunks)
        other_ids = np.frombuffer(b"".join(ids_of), self._wide)
        other_counts = np.fromiter(map(len, ids_of), np.int64, len(ids_of)) // self._wide.itemsize
        if chunks:
            with self._adding:
                table.add(text, starts, ends, other_ids, other_counts)
        tokens = np.empty(len(found) + len(other_ids), self._wide)
        lengths = np.empty(text.count(b"\n"), np.int64)
        arrays = (array.ctypes.data for array in (others, other_ids, other_counts, tokens, lengths))
        size = self._wide.itemsize
        count = library.put_ids(found.ctypes.data, len(found), size, self._end, len(chunks), *arrays)
        return tokens[:count], lengths

    def _ids_of(self, chunks: list[bytes]) -> list[bytes]:
        """Returns the ids of each chunk."""
        with self._adding:
            known = list(map(self._remembered.get, chunks))
            new = list({chunk for chunk, ids in zip(chunks, known) if ids is None})
            made = self._tokenize_chunks(new) if new else {}
            found = [made[chunk] if ids is None else ids for chunk, ids in zip(chunks, known)]
            if made:
                short = (item for item in made.items() if len(item[0]) <= _MAX_REMEMBERED_BYTES)
                self._remembered.update(short)
                if len(self._remembered) > _MAX_REMEMBERED:
                    self._remembered.clear()
            return found

    def _tokenize_chunks(self, chunks: list[bytes]) -> dict[bytes, bytes]:
        words_of = [self._words_of(chunk) for chunk in chunks]
        words = list(itertools.chain.from_iterable(words_of))
        pieces = self._word_pieces.encode(words, is_pretokenized=True, add_special_tokens=False)
        ids = np.array(pieces.ids, self._wide).tobytes()
        pieces_before = ragged.offsets(np.bincount(np.array(pieces.word_ids, int), minlength=len(words)))
        words_before = ragged.offsets(np.array(list(map(len, words_of)), int))
        ends = (pieces_before[words_before] * self._wide.itemsize).tolist()
        found = {chunk: ids[first:end] for chunk, first, end in zip(chunks, ends, ends[1:])}
        if (end_chunk := _END_CHUNK.strip()) in found:
            found[end_chunk] = np.array([self._end], self._wide).tobytes()
        return found

    def _words_of(self, chunk: bytes) -> list[str]:
        """Returns the words of a chunk; [UNK] for one with a lone surrogate, which no vocabulary has."""
        if chunk.isascii() and (chunk.isalnum() or len(chunk) == 1):
            return [chunk.decode()]
        words = find_words(chunk.decode("utf-8", "surrogatepass"), self._do_lower_case)
        return [UNKNOWN if _SURROGATE.search(word) else word for word in words]


def _batches(text: bytes) -> Iterator[bytes]:
    """Yields batches of whole lines of the text, of _BATCH_BYTES up to the end of a line."""
    start = 0
    while start < len(text):
        end = text.index(b"\n", min(start + _BATCH_BYTES, len(text) - 1)) + 1
        yield text[start:end]
        start = end
