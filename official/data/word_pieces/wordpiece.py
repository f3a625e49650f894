"""Sentences -> ids of word pieces, exactly as Google's BERT does it, cased and uncased."""

from __future__ import annotations

import ctypes
import functools
import itertools
import operator
import re
import string
import threading
import unicodedata
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import NamedTuple

import numpy as np
import tokenizers

from official.data import compiled
from official.data.rows import ragged
from official.data.word_pieces.vocabulary import CONTINUATION, Vocabulary, without_mark

# -----------------------------------------------------------------------------------------------------------
# Words
#
# Control and format characters are dropped, Chinese characters stand alone, the text is split at white
# space, lower-cased and stripped of its accents (neither for a cased vocabulary), and split at punctuation.
# Source: https://github.com/google-research/bert/blob/master/tokenization.py


LONGEST = 200  # characters of a word; a longer one is unknown
CHINESE = (
    "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0002a6df\U0002a700-\U0002ceaf\U0002f800-\U0002fa1f"
)
IDEOGRAPH = re.compile(f"[{CHINESE}]")  # stands alone as a word
_CHINESE_OR_OTHERS = re.compile(f"[{CHINESE}]|[^{CHINESE}]+")


def is_punctuation(character: str) -> bool:
    """Tells whether a character is punctuation: by Unicode, or any of ASCII that is no letter, digit or
    blank."""
    return character in string.punctuation or unicodedata.category(character).startswith("P")


class _CharacterTable(dict):
    """A table for str.translate() that asks for each character once."""

    def __init__(self, rule: Callable[[str], str]):
        super().__init__()
        self._rule = rule

    def __missing__(self, code_point: int) -> str:
        self[code_point] = made = self._rule(chr(code_point))
        return made


def _drop_invisible(character: str) -> str:
    return "" if character == "\ufffd" or unicodedata.category(character) in ("Cc", "Cf") else character


def _split(character: str) -> str:
    return f" {character} " if is_punctuation(character) else character


def _drop_accent_and_split(character: str) -> str:
    return "" if unicodedata.category(character) == "Mn" else _split(character)


_VISIBLE = _CharacterTable(_drop_invisible)
_SPLIT = _CharacterTable(_split)
_WITHOUT_ACCENT_AND_SPLIT = _CharacterTable(_drop_accent_and_split)


def find_words(chunk: str, do_lower_case: bool) -> list[str]:
    """Returns the words of a text without tabs, line feeds and carriage returns; there may be other white
    space."""
    rule = _lower_case_words if do_lower_case else _cased_words
    return list(itertools.chain.from_iterable(map(rule, _CHINESE_OR_OTHERS.findall(chunk))))


def _lower_case_words(part: str) -> list[str]:
    """Returns the words of a part of the text that has no Chinese character unless it is one."""
    return (
        unicodedata.normalize("NFD", part.translate(_VISIBLE).lower())
        .translate(_WITHOUT_ACCENT_AND_SPLIT)
        .split()
    )


def _cased_words(part: str) -> list[str]:
    """Returns the words as `_lower_case_words` does, with their capitals and accents."""
    return part.translate(_VISIBLE).translate(_SPLIT).split()


# -----------------------------------------------------------------------------------------------------------
# Published rules


UNKNOWN = "[UNK]"


class PublishedRules:
    """The published rules, character by character."""

    def __init__(self, codes: dict[str, bytes], do_lower_case: bool):
        """Takes the id of each word of the vocabulary, as bytes."""
        self._do_lower_case = do_lower_case
        self._starts = codes
        self._continuations = {
            without_mark(word): code for word, code in codes.items() if word.startswith(CONTINUATION)
        }
        self._longest_start, self._longest_continuation = (
            _longest(self._starts),
            _longest(self._continuations),
        )
        self._unknown = codes[UNKNOWN]

    def ids_of(self, chunk: bytes) -> bytes:
        """Returns the ids of a chunk in which there may be other white space than blanks."""
        return b"".join(
            map(
                self._find_pieces,
                find_words(chunk.decode("utf-8", "surrogatepass"), self._do_lower_case),
            )
        )

    def _find_pieces(self, word: str) -> bytes:
        if len(word) > LONGEST:
            return self._unknown
        found, start, pieces, longest = [], 0, self._starts, self._longest_start
        while start < len(word):
            for end in range(min(len(word), start + longest.get(word[start], 0)), start, -1):
                if code := pieces.get(word[start:end]):
                    break
            else:
                return self._unknown
            found.append(code)
            start, pieces, longest = end, self._continuations, self._longest_continuation
        return b"".join(found)


def _longest(pieces: Iterable[str]) -> dict[str, int]:
    """Returns the length of the longest word for each first character."""
    longest: dict[str, int] = {}
    for word in filter(None, pieces):
        longest[word[0]] = max(len(word), longest.get(word[0], 0))
    return longest


# -----------------------------------------------------------------------------------------------------------
# Table of words


_KEY_BYTES = 16
_LINE_BYTES = 64  # of the cache
_FIRST_BYTES = np.array([256**count - 1 for count in range(9)], np.uint64)  # masks of the first of eight
_NO_KEY = np.uint64(2**64 - 1)  # of no word: UTF-8 has no such byte


def keys_of(text: bytes, starts: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """Returns the bytes of each word text[starts[n]:ends[n]] as two numbers, uint64 [N, 2]; _NO_KEY for one
    of more than 16 bytes."""
    eights: np.ndarray = np.ndarray((len(text) + 8,), "<u8", text + bytes(16), strides=(1,))
    lengths = ends - starts
    keys = np.zeros((len(starts), 2), np.uint64)
    keys[:, 0] = eights[starts] & _FIRST_BYTES.take(lengths, mode="clip")
    long = np.flatnonzero(lengths > 8)  # few: the others have zeros there
    keys[long, 1] = eights[starts[long] + 8] & _FIRST_BYTES.take(lengths[long] - 8, mode="clip")
    keys[long[lengths[long] > _KEY_BYTES]] = _NO_KEY
    return keys


def keys_of_words(words: Collection[str]) -> np.ndarray:
    """Returns the keys, as `keys_of`, of words that are given one by one; they are ASCII."""
    lengths = np.fromiter(map(len, words), np.intp, len(words))
    ends = np.cumsum(lengths)
    return keys_of("".join(words).encode(), ends - lengths, ends)


class WordTable:
    """Ids of words, found by the words' keys. Words share buckets; one whose bucket is full has no place, nor
    has one of more ids than MOST_IDS.

    One thread may add words while others look some up: a key is written behind its ids.
    """

    BITS = 15  # of the number of buckets
    PLACES = 4  # of a bucket: their keys fill a line of the cache, and so do their ids where they are uint16
    MOST_IDS = 7
    FACTORS = np.array([0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F], np.uint64)  # odd; their bits look random

    def __init__(self, dtype: np.dtype):
        places = 2**self.BITS * self.PLACES
        self.keys = _aligned_zeros((places, 2), np.dtype(np.uint64))  # no word has the key 0
        self.ids = _aligned_zeros((places, 1 + self.MOST_IDS), dtype)  # behind their number

    def find(self, keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns the place of each word, or any place, and whether the word is there."""
        places = self._buckets(keys)
        is_there = self._is_at(places, keys)
        rest = np.flatnonzero(~is_there)
        for number in range(1, self.PLACES):
            found = self._is_at(places[rest] + number, keys[rest])
            places[rest[found]] += number
            is_there[rest[found]] = True
            rest = rest[~found]
        return places, is_there

    def add(self, keys: np.ndarray, ids: list[bytes]) -> None:
        """Gives places to words that have none, as long as there are free ones.

        Args:
          keys: uint64 [N, 2].
          ids: of each word, as bytes of the table's type.
        """
        counts = np.fromiter(map(len, ids), np.intp, len(ids)) // self.ids.itemsize
        firsts, own_ids = np.cumsum(counts) - counts, np.frombuffer(b"".join(ids), self.ids.dtype)
        rest = np.flatnonzero((counts <= self.MOST_IDS) & (keys[:, 0] != _NO_KEY))
        buckets = self._buckets(keys)
        for number in range(self.PLACES):
            places = buckets[rest] + number
            free = np.flatnonzero(self.keys[places, 0] == 0)
            taken, first = np.unique(places[free], return_index=True)
            words = rest[free[first]]
            self.ids[taken, 0] = counts[words]
            for column in range(counts[words].max(initial=0)):
                longer = np.flatnonzero(counts[words] > column)
                self.ids[taken[longer], 1 + column] = own_ids[firsts[words[longer]] + column]
            self.keys[taken] = keys[words]
            rest = rest[~self._is_at(places, keys[rest])]  # the same word may be there more than once

    def _buckets(self, keys: np.ndarray) -> np.ndarray:
        """Returns the first place of the bucket of each word."""
        mixed = keys[:, 0] * self.FACTORS[0] ^ keys[:, 1] * self.FACTORS[1]
        return (mixed >> np.uint64(64 - self.BITS)).astype(np.intp) * self.PLACES

    def _is_at(self, places: np.ndarray, keys: np.ndarray) -> np.ndarray:
        return (self.keys[places] == keys).all(axis=1)


def _aligned_zeros(shape: tuple[int, int], dtype: np.dtype) -> np.ndarray:
    """Returns zeros that begin with a line of the cache, so that no bucket lies in more of them than need
    be."""
    size = int(np.prod(shape)) * dtype.itemsize
    data = np.zeros(size + _LINE_BYTES, np.uint8)
    first = -data.ctypes.data % _LINE_BYTES
    return data[first : first + size].view(dtype).reshape(shape)


# -----------------------------------------------------------------------------------------------------------
# Tokenizer
#
# The published rules: control and format characters are dropped, Chinese characters stand alone, the text
# is split at white space, lower-cased, loses its accents (neither for a cased vocabulary), is split at
# punctuation, and each word becomes the longest pieces that the vocabulary has, from left to right; a word
# that cannot be covered, or has more than 200 characters, is [UNK]. Source: https://github.com/google-
# research/bert/blob/master/tokenization.py
#
# A chunk of text between two white spaces has the same ids wherever it stands, and in one that is ASCII so
# has every word and every punctuation mark. All of a batch are looked up at once, in a table that begins
# with the words of the vocabulary and grows, by a compiled function where it can be had. What has no place
# in the table is looked up in a dictionary. Words that are new go to the compiled word pieces of Hugging
# Face's tokenizers together; chunks that are not ASCII, which are cut into words first, go to plain Python.
# Nothing here loads TensorFlow.


_BATCH_BYTES = 2**18  # are looked up at once: arrays of their words stay in the cache
_KEPT_BYTES = 2 * _BATCH_BYTES  # of text: of longer ones, which have a very long line, no memory is kept
_MOST_REMEMBERED = 2**18  # words and chunks whose ids are in the dictionary: some 60 MB
_LONGEST_REMEMBERED = 50  # bytes; longer ones hardly come twice

_NEAR = 24  # bytes around one that is not ASCII in which the white space is mostly found that ends its chunk

_ASCII_WORDS = {
    lower: re.compile(rf"[{letters}0-9]{{1,{LONGEST}}}|[{re.escape(string.punctuation)}]")
    for lower, letters in ((True, "a-z"), (False, "A-Za-z"))
}  # that text can hold which was lower-cased, or was not
_ASCII_CONTROL = bytes(code for code in (*range(32), 127) if chr(code) not in "\t\n\r")
_ASCII = {
    True: bytes.maketrans(string.ascii_uppercase.encode() + b"\t\r", string.ascii_lowercase.encode() + b"  "),
    False: bytes.maketrans(b"\t\r", b"  "),
}
_BLANKS = re.compile(b"  +")

# Classes of bytes: white space, part of a word, a word of its own. The line feed, which ends a sentence, is
# one, too.
_WHITE, _PART, _ALONE = range(3)
_CLASSES = bytes(
    _WHITE if code in b" " else _ALONE if code in string.punctuation.encode() + b"\n" else _PART
    for code in range(256)
)


class _Buffers(NamedTuple):
    """Buffers that the compiled look-up of a text writes to, with room for a text of some bytes."""

    ids: np.ndarray
    places: np.ndarray  # int64 [3, bytes]: of words that are not in the table

    @classmethod
    def of(cls, num_bytes: int, dtype: np.dtype) -> _Buffers:
        return cls(np.empty(WordTable.MOST_IDS * num_bytes, dtype), np.empty((3, num_bytes), np.int64))


class Tokenizer:
    """Lower-cases text and strips accents, where the vocabulary is for such text, and splits it into word
    pieces. It remembers words; threads may share it."""

    def __init__(self, vocabulary: Vocabulary):
        self._dtype = np.dtype(np.uint16 if vocabulary.size <= 2**16 else np.int32)
        self._end, self._none = (
            vocabulary.size,
            vocabulary.size + 1,
        )  # ids of no piece: what ends a sentence, and for what is not in the table
        self._wide = np.dtype(np.uint16 if self._none < 2**16 else np.int32)  # holds them, too
        self._ascii, ascii_word = _ASCII[vocabulary.do_lower_case], _ASCII_WORDS[vocabulary.do_lower_case]
        self._word_pieces = tokenizers.Tokenizer(
            tokenizers.models.WordPiece(
                vocabulary.ids,
                unk_token=UNKNOWN,
                max_input_chars_per_word=LONGEST,
                continuing_subword_prefix=CONTINUATION,
            )
        )
        # The id of each word as bytes: ids of several words are joined at once.
        numbers, size = np.arange(self._none, dtype=self._wide).tobytes(), self._wide.itemsize
        *ids, id_of_end = (numbers[at : at + size] for at in range(0, len(numbers), size))
        id_of_word = dict(zip(vocabulary.words, ids))
        of_words = {word: number for word, number in id_of_word.items() if ascii_word.fullmatch(word)}
        own = {"\n": id_of_end, **of_words}
        self._table = WordTable(self._wide)
        self._table.add(keys_of_words(own), list(own.values()))
        self._rules = PublishedRules(id_of_word, vocabulary.do_lower_case)
        self._remembered: dict[bytes, bytes] = {}
        self._adding = threading.Lock()  # to the table, and to what is remembered
        # What compiled look-ups write to, of calls that are done: to get the memory for it anew takes a third
        # as long as to fill it.
        self._buffers: list[_Buffers] = []

    def tokenize(self, sentences: list[str]) -> tuple[np.ndarray, np.ndarray]:
        """Tokenises text of any kind. A lone surrogate is a character like others.

        Returns:
          ids of all sentences in one array, uint16, or int32 for vocabularies above 65,536 words; number of
          ids of each sentence, int64.
        """
        return self.tokenize_lines(_join(sentences))

    def tokenize_lines(self, text: bytes) -> tuple[np.ndarray, np.ndarray]:
        """Tokenises as `tokenize` does, given a line of UTF-8 for each sentence, each with its line feed."""
        if not text:
            return np.zeros(0, self._dtype), np.zeros(0, np.int64)
        library = compiled.library()
        look_up = self._look_up if library is None else functools.partial(self._look_up_compiled, library)
        parts = [look_up(batch.translate(self._ascii, _ASCII_CONTROL)) for batch in _batches(text)]
        tokens, lengths = map(np.concatenate, zip(*parts))
        return tokens.astype(self._dtype, copy=False), lengths

    def _look_up_compiled(self, library: ctypes.CDLL, text: bytes) -> tuple[np.ndarray, np.ndarray]:
        """Looks ids up as `_look_up` does, by a compiled function."""
        is_usual = len(text) <= _KEPT_BYTES
        try:
            buffers = self._buffers.pop() if is_usual else _Buffers.of(len(text), self._wide)
        except IndexError:  # of the first call, or another thread has them
            buffers = _Buffers.of(_KEPT_BYTES, self._wide)
        counts = np.empty(2, np.int64)
        sizes = (len(text), self._wide.itemsize, WordTable.BITS, WordTable.PLACES, WordTable.MOST_IDS)
        arrays = (WordTable.FACTORS, self._table.keys, self._table.ids, buffers.ids, *buffers.places, counts)
        places = (array.ctypes.data for array in arrays)
        if library.find_ids(text, *sizes, self._none, _CLASSES, *places):
            raise RuntimeError("native/words.cc has not the buckets of word_table.py")
        num_found, num_others = counts.tolist()
        others, starts, ends = buffers.places[:, :num_others]
        other_ids, other_counts = self._ids_of_chunks(text, starts, ends)
        tokens = np.empty(num_found + len(other_ids), self._wide)
        lengths = np.empty(text.count(b"\n"), np.int64)
        arrays = (others, other_ids, other_counts, tokens, lengths)
        found = (buffers.ids.ctypes.data, num_found, self._wide.itemsize, self._end, num_others)
        count = library.put_ids(*found, *(array.ctypes.data for array in arrays))
        if is_usual:
            self._buffers.append(buffers)
        return tokens[:count], lengths

    def _look_up(self, text: bytes) -> tuple[np.ndarray, np.ndarray]:
        """Returns the ids of lines, and how many each has."""
        text = _single_blanks(text)
        starts, ends = _find_words(text)
        keys = keys_of(text, starts, ends)
        places, is_there = self._table.find(keys)
        ids, counts = self._table.ids[places, 1], self._table.ids[places, 0].astype(np.intp)
        rest = np.flatnonzero(~is_there)
        other_ids, counts[rest] = self._ids_of_chunks(text, starts[rest], ends[rest])
        others = np.flatnonzero(~is_there | (counts != 1))
        from_table = np.repeat(is_there[others], counts[others])
        ids_of_others = np.empty(len(from_table), self._wide)
        there = places[others[is_there[others]]]
        is_used = np.arange(WordTable.MOST_IDS) < self._table.ids[there, :1]
        ids_of_others[from_table] = self._table.ids[there, 1:][is_used]
        ids_of_others[~from_table] = other_ids
        ids = _put_in(ids, others, ids_of_others, counts[others])
        is_end = ids == self._end
        return ids[~is_end], np.diff(np.flatnonzero(is_end), prepend=-1) - 1

    def _ids_of_chunks(
        self, text: bytes, starts: np.ndarray, ends: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Returns the ids of words and chunks text[starts[n]:ends[n]] that are not in the table, one after
        the other, and how many each has; puts them into the table."""
        if not len(starts):
            return np.zeros(0, self._wide), np.zeros(0, np.intp)
        chunks = list(map(text.__getitem__, map(slice, starts.tolist(), ends.tolist())))
        with self._adding:
            new = np.flatnonzero([chunk not in self._remembered for chunk in chunks])
            found = self._remember(chunks)
            if len(new):  # for those that came before there was no room
                keys = keys_of(text, starts[new], ends[new])
                self._table.add(keys, list(map(found.__getitem__, new.tolist())))
        counts = np.fromiter(map(len, found), np.intp, len(found)) // self._wide.itemsize
        return np.frombuffer(b"".join(found), self._wide), counts

    def _remember(self, chunks: list[bytes]) -> list[bytes]:
        """Returns the ids of chunks, and keeps those that are likely to come again."""
        new = self._tokenize_chunks(list(set(chunks).difference(self._remembered)))
        self._remembered.update(new)
        ids = list(map(self._remembered.__getitem__, chunks))
        if len(self._remembered) > _MOST_REMEMBERED:
            self._remembered.clear()
        else:
            for chunk in new:
                if len(chunk) > _LONGEST_REMEMBERED:
                    del self._remembered[chunk]
        return ids

    def _tokenize_chunks(self, chunks: list[bytes]) -> dict[bytes, bytes]:
        if not chunks:
            return {}
        is_ascii = list(map(bytes.isascii, chunks))
        found = {
            chunk: self._rules.ids_of(chunk)
            for chunk in itertools.compress(chunks, map(operator.not_, is_ascii))
        }
        plain = list(itertools.compress(chunks, is_ascii))  # each is one word
        pieces = self._word_pieces.encode(
            list(map(bytes.decode, plain)), is_pretokenized=True, add_special_tokens=False
        )
        ids = np.array(pieces.ids, self._wide).tobytes()
        counts = np.bincount(np.array(pieces.word_ids, np.intp), minlength=len(plain))
        ends = (ragged.offsets(counts) * self._wide.itemsize).tolist()
        found.update((chunk, ids[first:end]) for chunk, first, end in zip(plain, ends, ends[1:]))
        return found


@functools.lru_cache(maxsize=1)
def tokenizer_of(vocabulary: Vocabulary) -> Tokenizer:
    """Makes a tokenizer, once as long as nobody asks for that of another vocabulary."""
    return Tokenizer(vocabulary)


def _batches(text: bytes) -> Iterator[bytes]:
    """Yields whole lines of the text, _BATCH_BYTES of them or up to the end of the line there."""
    start = 0
    while start < len(text):
        end = text.index(b"\n", min(start + _BATCH_BYTES, len(text) - 1)) + 1
        yield text[start:end]
        start = end


def _join(sentences: list[str]) -> bytes:
    """Returns a line for each sentence."""
    text = "\n".join([*sentences, ""])
    if text.count("\n") > len(sentences):
        text = "\n".join([*(sentence.replace("\n", " ") for sentence in sentences), ""])
    return text.encode("utf-8", "surrogatepass")


def _single_blanks(text: bytes) -> bytes:
    is_blank = np.frombuffer(text, np.uint8) == ord(" ")
    return _BLANKS.sub(b" ", text) if (is_blank[1:] & is_blank[:-1]).any() else text


def _find_words(text: bytes) -> tuple[np.ndarray, np.ndarray]:
    """Returns the beginnings and ends of the words, each line feed and each chunk that is not all ASCII among
    them; no blank of the text follows another."""
    codes, classes = np.frombuffer(text, np.uint8), np.frombuffer(text.translate(_CLASSES), np.uint8)
    foreign = np.flatnonzero(codes > 127)
    if len(foreign):
        classes = classes.copy()
        classes[_chunks_around(foreign, text)] = _PART
    is_start, is_part = classes == _ALONE, classes == _PART
    is_start[0] |= is_part[0]
    is_start[1:] |= is_part[1:] > is_part[:-1]
    starts = np.flatnonzero(is_start)
    # A word ends where the next one begins, or a blank before that; the last is a line feed.
    return starts, np.append(starts[1:] - (codes[starts[1:] - 1] == ord(" ")), len(text))


def _chunks_around(places: np.ndarray, text: bytes) -> np.ndarray:
    """Returns the places of all bytes of the chunks in which some of the `places`, ascending, lie."""
    text = _NEAR * b" " + text + _NEAR * b" "
    whites_before, whites_behind = (
        _ends_chunk(ragged.windows(text, starts, _NEAR)) for starts in (places, places + _NEAR)
    )
    if whites_before.any(axis=1).all() and whites_behind.any(axis=1).all():
        starts, ends = places - whites_before[:, ::-1].argmax(axis=1), places + whites_behind.argmax(axis=1)
    else:  # as where words are not divided by white space
        whites = np.flatnonzero(_ends_chunk(np.frombuffer(text, np.uint8))) - _NEAR
        after = np.searchsorted(whites, places)
        starts, ends = whites[after - 1] + 1, whites[after]
    starts, first = np.unique(starts, return_index=True)
    return ragged.ranges(starts, ends[first] - starts)


def _ends_chunk(codes: np.ndarray) -> np.ndarray:
    return (codes == ord(" ")) | (codes == ord("\n"))


def _put_in(
    ids: np.ndarray, others: np.ndarray, other_ids: np.ndarray, other_counts: np.ndarray
) -> np.ndarray:
    """Puts `other_ids`, so many of them as is said for each, in the places `others`."""
    counts = np.ones(len(ids), np.intp)
    counts[others] = other_counts
    ids = np.repeat(ids, counts)
    ends = np.cumsum(other_counts)
    firsts = others + ends - np.arange(len(others)) - other_counts  # where the first id of each comes
    ids[ragged.ranges(firsts, other_counts)] = other_ids
    return ids
