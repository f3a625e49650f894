"""Turns sentences into ids of word pieces, exactly as Google's BERT does, cased and uncased.

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
# Control and format characters are dropped, Chinese characters stand alone, the text is split at white
# space, lower-cased and stripped of its accents (neither for a cased vocabulary), and split at punctuation.
# Each word becomes the longest pieces that the vocabulary has, from left to right; a word that cannot be
# covered, or has more than MAX_WORD_CHARACTERS, is [UNK].


UNKNOWN = "[UNK]"
MAX_WORD_CHARACTERS = 200
_IDEOGRAPHS = "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
_IDEOGRAPHS += "\U00020000-\U0002a6df\U0002a700-\U0002ceaf\U0002f800-\U0002fa1f"
IDEOGRAPH = re.compile(f"[{_IDEOGRAPHS}]")
_IDEOGRAPH_OR_OTHERS = re.compile(f"[{_IDEOGRAPHS}]|[^{_IDEOGRAPHS}]+")


class Kind(enum.IntEnum):
    """Kinds of characters. A BLANK is dropped, but where a text is asked to be empty it is white space."""

    DROPPED = 0
    BLANK = 1
    SPACE = 2
    LETTER = 3
    SINGLE = 4  # a word of its own
    ACCENT = 5


def is_dropped(character: str) -> bool:
    return character == "\ufffd" or unicodedata.category(character) in ("Cc", "Cf")


def is_accent(character: str) -> bool:
    return unicodedata.category(character) == "Mn"


def is_punctuation(character: str) -> bool:
    """Tells whether a character is punctuation: by Unicode, or any of ASCII that is no letter, digit or
    blank."""
    return character in string.punctuation or unicodedata.category(character).startswith("P")


def decomposed(text: str) -> str:
    """Returns text in lower case, its accents as characters of their own."""
    return unicodedata.normalize("NFD", text.lower())


def normalize(character: str, do_lower_case: bool) -> tuple[Kind, str]:
    """Returns the kind of a character, and the characters that it becomes."""
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
    """A table for str.translate() that computes each character once."""

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
    """Returns the words of a text without tabs, line feeds and carriage returns; there may be other white
    space."""
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
# A chunk of text between two white spaces has the same ids wherever it stands, and in one that is ASCII so
# has every word and every punctuation mark. Those of the words that come often are looked up in a table, by a
# compiled function where it can be had; of others, and without it, chunks are looked up in a dictionary. What
# is new goes to the compiled word pieces of Hugging Face's tokenizers.
#
# What the compiled function saves: a tenth of making pre-training data (40 MB of text, --dupe_factor=10, one
# worker), a fifth with --dupe_factor=1.


_BATCH_BYTES = 2**18  # are looked up at once: arrays of their words stay in the cache
_MAX_REMEMBERED = 2**18  # words and chunks whose ids are in the dictionary: some 60 MB
_MAX_REMEMBERED_BYTES = 50  # of a chunk; longer ones hardly come twice
_ASCII_CONTROL = bytes(code for code in (*range(32), 127) if chr(code) not in "\t\n\r")
_ASCII = {
    True: bytes.maketrans(string.ascii_uppercase.encode() + b"\t\r", string.ascii_lowercase.encode() + b"  "),
    False: bytes.maketrans(b"\t\r", b"  "),
}
_END_CHUNK = b" \0 "  # for the end of a sentence: no NUL is left in the text
_SURROGATE = re.compile("[\ud800-\udfff]")
_SPECIAL_TOKEN = re.compile("|".join(map(re.escape, SPECIAL_TOKENS)))
# Classes of bytes: white space, part of a word, a word of its own. The line feed, which ends a sentence, is
# one, too.
_WHITE, _PART, _ALONE = range(3)
_MARKS = string.punctuation.encode() + b"\n"
_CLASSES = bytes(_WHITE if code in b" " else _ALONE if code in _MARKS else _PART for code in range(256))


class _WordTable:
    """Ids of words of up to 16 bytes, by the bytes of the words, for the functions of native/words.cc. Words
    share buckets; one whose bucket is full has no place, nor has one of more than seven ids.

    One thread may add words while others look some up.
    """

    BITS, PLACES, MAX_IDS = 15, 4, 7  # as in words.cc: 2**BITS buckets, of so many places, of so many ids

    def __init__(self, library: ctypes.CDLL, dtype: np.dtype):
        places = 2**self.BITS * self.PLACES
        self._library, self._dtype = library, dtype
        self._keys = np.zeros((places, 2), np.uint64)  # no word has the key 0
        self._ids = np.zeros((places, 1 + self.MAX_IDS), dtype)  # behind their number
        self._places = (dtype.itemsize, self._keys.ctypes.data, self._ids.ctypes.data)

    def add(self, text: bytes, starts: np.ndarray, ends: np.ndarray, ids: np.ndarray, counts: np.ndarray):
        """Gives places to words text[starts[n]:ends[n]] that have none, as long as there are free ones; they
        have counts[n] of the ids each."""
        arrays = [np.ascontiguousarray(array, np.int64) for array in (starts, ends, counts)]
        found = np.ascontiguousarray(ids, self._dtype)
        places = (array.ctypes.data for array in (*arrays, found))
        self._library.add_words(text, len(text), len(starts), *self._places, *places)

    def find(self, text: bytes, none: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Returns the ids of the words of a text, `none` for each that is not there; and of these the places
        among the ids, and where they begin and end in the text."""
        ids, counts = np.empty(len(text) + self.MAX_IDS, self._dtype), np.empty(2, np.int64)
        others = np.empty((3, len(text)), np.int64)
        arrays = (array.ctypes.data for array in (ids, *others, counts))
        self._library.find_ids(text, len(text), *self._places, none, _CLASSES, *arrays)
        return ids[: counts[0]], *others[:, : counts[1]]


class WordPiece:
    """Lower-cases text and strips accents, where the vocabulary is for such text, and splits it into word
    pieces. It remembers words; threads may share it."""

    def __init__(self, vocabulary: Vocabulary):
        self._do_lower_case, self._words = vocabulary.do_lower_case, vocabulary.words
        self._dtype = np.dtype(np.uint16 if vocabulary.size <= 2**16 else np.int32)
        # Ids of no piece: what ends a sentence, and for what is not in the table.
        self._end, self._none = vocabulary.size, vocabulary.size + 1
        self._wide = np.dtype(np.uint16 if self._none < 2**16 else np.int32)  # holds them, too
        self._word_pieces = tokenizers.Tokenizer(
            tokenizers.models.WordPiece(
                vocabulary.ids,
                unk_token=UNKNOWN,
                max_input_chars_per_word=MAX_WORD_CHARACTERS,
                continuing_subword_prefix=CONTINUATION,
            )
        )
        self._remembered: dict[bytes, bytes] = {}
        self._adding = threading.Lock()  # to the table, and to what is remembered
        self._table: _WordTable | None = None
        self._told: set[str] = set()  # special tokens that texts had

    def tokenize(self, sentences: list[str]) -> tuple[np.ndarray, np.ndarray]:
        """Tokenises text of any kind. A lone surrogate is a character like others. Warns once of a special
        token in it, which is split like any other word.

        Returns:
          ids of all sentences in one array, uint16, or int32 for vocabularies above 65,536 words; number of
          ids of each sentence, int64.
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
            told = "%s in a text is split like other words, and is the special token in transformers.%s"
            pair = " Give the texts of a pair as two." if token == SPECIAL_TOKENS.sep else ""
            logging.warning(f"{told} This is said once.", token, pair)

    def word_of(self, number: int) -> str:
        """Returns an id's word piece."""
        return self._words[number]

    def tokenize_words(self, words: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """Tokenises words: as sentences, since a space before them changes nothing."""
        return self.tokenize(list(words))

    def tokenize_lines(self, text: bytes) -> tuple[np.ndarray, np.ndarray]:
        """Tokenises as `tokenize` does, given a line of UTF-8 for each sentence, each with its line feed."""
        if not text:
            return np.zeros(0, self._dtype), np.zeros(0, np.int64)
        library = compiled.library()
        look_up = self._look_up if library is None else functools.partial(self._look_up_compiled, library)
        clean = _ASCII[self._do_lower_case]
        parts = [look_up(batch.translate(clean, _ASCII_CONTROL)) for batch in _batches(text)]
        tokens, lengths = map(np.concatenate, zip(*parts))
        return tokens.astype(self._dtype, copy=False), lengths

    def _look_up(self, text: bytes) -> tuple[np.ndarray, np.ndarray]:
        """Returns the ids of lines, and how many each has."""
        ids = np.frombuffer(b"".join(self._ids_of(text.replace(b"\n", _END_CHUNK).split())), self._wide)
        is_end = ids == self._end
        return ids[~is_end], np.diff(np.flatnonzero(is_end), prepend=-1) - 1

    def _look_up_compiled(self, library: ctypes.CDLL, text: bytes) -> tuple[np.ndarray, np.ndarray]:
        """Looks ids up as `_look_up` does, by a compiled function."""
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
        """Returns the words of a chunk; [UNK] for one with half a surrogate pair, which no vocabulary has."""
        if chunk.isascii() and (chunk.isalnum() or len(chunk) == 1):
            return [chunk.decode()]
        words = find_words(chunk.decode("utf-8", "surrogatepass"), self._do_lower_case)
        return [UNKNOWN if _SURROGATE.search(word) else word for word in words]


def _batches(text: bytes) -> Iterator[bytes]:
    """Yields whole lines of the text, _BATCH_BYTES of them or up to the end of the line there."""
    start = 0
    while start < len(text):
        end = text.index(b"\n", min(start + _BATCH_BYTES, len(text) - 1)) + 1
        yield text[start:end]
        start = end
