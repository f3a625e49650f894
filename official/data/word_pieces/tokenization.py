"""Sentences -> ids of word pieces, exactly as Google's BERT does it, cased and uncased, at the speed of a
compiled tokenizer.

The published rules: control and format characters are dropped, Chinese characters stand alone, the text is
split at white space, lower-cased, loses its accents (neither for a cased vocabulary), is split at
punctuation, and each word becomes the longest pieces that the vocabulary has, from left to right; a word that
cannot be covered, or has more than 200 characters, is [UNK].
Source: https://github.com/google-research/bert/blob/master/tokenization.py

A chunk of text between two white spaces has the same ids wherever it stands, and in one that is ASCII so has
every word and every punctuation mark. Most of these are one piece: they are looked up in a table, all of a
batch at once. The others are looked up in a second table, which grows, and what has no place in it in a
dictionary. One compiled function does what comes before the dictionary, where it can be had. Those that are
new go to the compiled word pieces of Hugging Face's tokenizers together; chunks that are not ASCII, which are
cut into words first, go to plain Python. Nothing here loads TensorFlow.
"""

import ctypes
import itertools
import operator
import re
import string
from collections.abc import Iterator

import numpy as np
import tokenizers

from official.data import compiled
from official.data.rows import ragged
from official.data.word_pieces import words
from official.data.word_pieces.published_rules import UNKNOWN, PublishedRules
from official.data.word_pieces.vocabulary import CONTINUATION, Vocabulary
from official.data.word_pieces.word_table import WordTable, keys_of

_BATCH_BYTES = 2**18  # are looked up at once: arrays of their words stay in the cache
_MOST_REMEMBERED = 2**18  # words and chunks whose ids are in the dictionary: some 60 MB
_MOST_PIECES = 6  # of a word in the table
_HEADER = np.array([*WordTable.FACTORS, _MOST_PIECES], np.uint64)  # of the compiled look-up
_LONGEST_REMEMBERED = 50  # bytes; longer ones hardly come twice

_NEAR = 24  # bytes around one that is not ASCII in which the white space is mostly found that ends its chunk

_ASCII_WORDS = {
    lower: re.compile(rf"[{letters}0-9]{{1,{words.LONGEST}}}|[{re.escape(string.punctuation)}]")
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


class Tokenizer:
    """Lower-cases text and strips accents, where the vocabulary is for such text, and splits it into word
    pieces. For one thread at a time: it remembers words."""

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
                max_input_chars_per_word=words.LONGEST,
                continuing_subword_prefix=CONTINUATION,
            )
        )
        self._whole, self._whole_ids = WordTable(), np.zeros(2**WordTable.BITS, self._wide)
        self._add_whole_words(
            {
                "\n": self._end,
                **{word: number for word, number in vocabulary.ids.items() if ascii_word.fullmatch(word)},
            }
        )
        self._pieces = WordTable()
        self._piece_ids, self._piece_counts = (
            np.zeros((2**WordTable.BITS, _MOST_PIECES), self._wide),
            np.zeros(2**WordTable.BITS, np.intp),
        )
        self._rules = PublishedRules(
            {word: np.array(number, self._wide).tobytes() for word, number in vocabulary.ids.items()},
            vocabulary.do_lower_case,
        )
        self._remembered: dict[bytes, bytes] = {}

    def _add_whole_words(self, ids: dict[str, int]) -> None:
        ends = np.cumsum(list(map(len, ids)))
        places, added = self._whole.add(keys_of("".join(ids).encode(), ends - list(map(len, ids)), ends))
        self._whole_ids[places] = np.array(list(ids.values()))[added]

    def tokenize(self, sentences: list[str]) -> tuple[np.ndarray, np.ndarray]:
        """Tokenises text of any kind. A lone surrogate is a character like others.

        Returns:
          ids of all sentences in one array, uint16, or int32 for vocabularies above 65,536 words; number of
          ids of each sentence, int64.
        """
        return self.tokenize_lines(_join(sentences))

    def tokenize_lines(self, text: bytes) -> tuple[np.ndarray, np.ndarray]:
        """Does what `tokenize` does, for a line of UTF-8 for each sentence, each with its line feed."""
        if not text:
            return np.zeros(0, self._dtype), np.zeros(0, np.int64)
        ids = np.concatenate(
            [self._tokenize_batch(batch.translate(self._ascii, _ASCII_CONTROL)) for batch in _batches(text)]
        )
        is_end = ids == self._end
        return ids[~is_end].astype(self._dtype, copy=False), np.diff(np.flatnonzero(is_end), prepend=-1) - 1

    def _tokenize_batch(self, text: bytes) -> np.ndarray:
        """Returns the ids of lines, the end of each among them."""
        library = compiled.library()
        if library is not None:
            return self._find_compiled(library, text)
        text = _single_blanks(text)
        starts, ends = _find_words(text)
        keys = keys_of(text, starts, ends)
        places, is_there = self._whole.find(keys)
        ids = np.where(is_there, self._whole_ids.take(places), self._none)
        others = np.flatnonzero(~is_there)
        return _put_in(ids, others, *self._look_up(text, starts[others], ends[others], keys[:, others]))

    def _find_compiled(self, library: ctypes.CDLL, text: bytes) -> np.ndarray:
        """Does what the rest of `_tokenize_batch` does, for each word by itself."""
        ids, others = np.empty(_MOST_PIECES * len(text), self._wide), np.empty(3 * len(text) + 1, np.int64)
        tables = (self._whole.keys, self._whole_ids, self._pieces.keys, self._piece_ids, self._piece_counts)
        places = [array.ctypes.data for array in (*tables, ids, others)]
        sizes = (len(text), self._wide.itemsize, WordTable.BITS, self._none)
        found = ids[: library.find_ids(text, *sizes, _HEADER.ctypes.data, _CLASSES, *places)]
        others, starts, ends = (others[part * len(text) :][: others[-1]] for part in range(3))
        if not len(others):
            return found
        chunks = list(map(text.__getitem__, map(slice, starts.tolist(), ends.tolist())))
        new = self._remember(chunks)
        counts = np.fromiter(map(len, new), np.intp, len(new)) // self._wide.itemsize
        self._add_pieces(keys_of(text, starts, ends), counts, new)
        return _put_in(found, others, np.frombuffer(b"".join(new), self._wide), counts)

    def _look_up(
        self, text: bytes, starts: np.ndarray, ends: np.ndarray, keys: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Returns the ids of words and chunks text[starts[n]:ends[n]], one after the other, and how many each
        has."""
        places, is_there = self._pieces.find(keys)
        rest = np.flatnonzero(~is_there)
        chunks = list(map(text.__getitem__, map(slice, starts[rest].tolist(), ends[rest].tolist())))
        found = self._remember(chunks)
        counts = self._piece_counts.take(places)
        counts[rest] = np.fromiter(map(len, found), np.intp, len(found)) // self._wide.itemsize
        from_table = np.repeat(is_there, counts)
        ids = np.empty(len(from_table), self._wide)
        ids[from_table] = self._piece_ids[places[is_there]][np.arange(_MOST_PIECES) < counts[is_there, None]]
        ids[~from_table] = np.frombuffer(b"".join(found), self._wide)
        self._add_pieces(keys[:, rest], counts[rest], found)
        return ids, counts

    def _add_pieces(self, keys: np.ndarray, counts: np.ndarray, ids: list[bytes]) -> None:
        few = np.flatnonzero(counts <= _MOST_PIECES)
        places, added = self._pieces.add(keys[:, few])
        self._piece_counts[places] = counts[few[added]]
        for place, index in zip(places.tolist(), few[added].tolist()):
            self._piece_ids[place, : counts[index]] = np.frombuffer(ids[index], self._wide)

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
    """Returns where the words begin and end, each line feed and each chunk that is not all ASCII among them;
    no blank of the text follows another."""
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
