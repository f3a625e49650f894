"""Sentences -> ids of word pieces, exactly as Google's uncased BERT does it, at the speed of a compiled tokenizer.

The published rules: characters without a glyph are dropped, Chinese characters stand alone, the text is split at white
space, lower-cased, loses its accents, is split at punctuation, and each word becomes the longest pieces that the vocabulary
has, from left to right; a word that cannot be covered, or has more than 200 characters, is [UNK].
Source: https://github.com/google-research/bert/blob/master/tokenization.py

tensorflow-text's compiled tokenizer knows other classes of characters, so it is given nothing but ASCII, where both agree.
Text between two white spaces is tokenised on its own, so all that holds another character is set aside: the compiled
tokenizer sees a mark in its place, and its ids, which plain Python finds and remembers, are put where the mark stood.
"""

import re
import string
import sys
import unicodedata
from collections.abc import Callable, Iterable, Iterator

import numpy as np
import tensorflow as tf
import tensorflow_text as tf_text

from official.data.vocabulary import CONTINUATION, Vocabulary

_UNKNOWN = "[UNK]"
_LONGEST_WORD = 200  # characters; a longer one is unknown
_BATCH_CHARACTERS = 2**20  # of one call of the compiled tokenizer, which needs some 20 bytes for each
_MOST_REMEMBERED = 2**18  # chunks of text whose ids are kept: some 60 MB
_WIDEST_GAP = 32
_LONGEST_REMEMBERED = 50  # characters; longer ones hardly come twice

_MARK = "\u03c9".encode()  # any word that the compiled tokenizer does not see otherwise: one with a letter outside ASCII
_ASCII_PIECE = re.compile(rf"({CONTINUATION})?[a-z0-9]{{1,{_LONGEST_WORD}}}|[{re.escape(string.punctuation)}]")  # that ASCII text can hold
_LINE_END = " \n "  # with blanks, so that one is found on both sides of every chunk of text
_LOWER_CASE = bytes.maketrans(string.ascii_uppercase.encode() + b"\t\r", string.ascii_lowercase.encode() + b"  ")
_CONTROL = bytes(code for code in (*range(32), 127) if chr(code) not in "\t\n\r")
_CHINESE = "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0002a6df\U0002a700-\U0002ceaf\U0002f800-\U0002fa1f"
_PART = re.compile(f"[{_CHINESE}]|[^{_CHINESE}]+")


class Tokenizer:
    """Lower-cases text, strips accents and splits it into word pieces."""

    def __init__(self, vocabulary: Vocabulary):
        self._dtype = np.dtype(np.uint16 if vocabulary.size <= 2**16 else np.int32)
        self._words = [_UNKNOWN, *filter(_ASCII_PIECE.fullmatch, vocabulary.words)]  # what remains can trip the compiled tokenizer
        self._ids = np.array([*map(vocabulary.id_of, self._words), 0], self._dtype)  # the last one is the mark's
        with tf.device("CPU"):
            self._compiled = tf_text.FastWordpieceTokenizer([*self._words, _MARK], max_bytes_per_word=_LONGEST_WORD, token_out_type=tf.int32)
        self._codes = _RememberedCodes(vocabulary, self._dtype)

    def tokenize(self, sentences: list[str]) -> tuple[np.ndarray, np.ndarray]:
        """Tokenises any text; lone surrogates, too, are characters like others.

        Returns:
          ids of all sentences in one array, uint16, or int32 for vocabularies above 65,536 words; number of ids of each
          sentence, int64.
        """
        if not sentences:
            return np.zeros(0, self._dtype), np.zeros(0, np.int64)
        ids, lengths = zip(*map(self._tokenize_batch, _batches(sentences)))
        return np.concatenate(ids), np.concatenate(lengths)

    def _tokenize_batch(self, sentences: list[str]) -> tuple[np.ndarray, np.ndarray]:
        text, foreign = _set_aside(_join(sentences))
        with tf.device("CPU"):
            pieces = self._compiled.tokenize(tf.constant(text.split(b"\n")[1:-1], tf.string))
        return self._insert(pieces.flat_values.numpy(), pieces.row_splits.numpy(), [b"".join(map(self._codes.__getitem__, stretch.split())) for stretch in foreign])

    def _insert(self, pieces: np.ndarray, splits: np.ndarray, codes: list[bytes]) -> tuple[np.ndarray, np.ndarray]:
        """Returns ids and lengths: pieces of the compiled tokenizer, rows from splits[n] to splits[n + 1], with `codes` for its marks."""
        ids = self._ids[pieces]
        if not codes:
            return ids, np.diff(splits)
        is_mark = pieces == len(self._words)
        counts = np.ones(len(pieces), np.int64)
        counts[is_mark] = np.fromiter(map(len, codes), np.int64, len(codes)) // self._dtype.itemsize
        ids = np.repeat(ids, counts)
        ids[np.repeat(is_mark, counts)] = np.frombuffer(b"".join(codes), self._dtype)
        return ids, np.diff(np.concatenate([[0], np.cumsum(counts)])[splits])


def _batches(sentences: list[str]) -> Iterator[list[str]]:
    """Yields batches of _BATCH_CHARACTERS or one sentence more."""
    ends = np.cumsum(np.fromiter(map(len, sentences), np.int64, len(sentences)) + 1)  # an empty sentence costs time, too
    cuts = (np.flatnonzero(np.diff(ends // _BATCH_CHARACTERS)) + 1).tolist()
    for first, last in zip([0, *cuts], [*cuts, len(sentences)]):
        yield sentences[first:last]


def _join(sentences: list[str]) -> bytes:
    """Returns the sentences in one text, a line for each after an empty one; a blank is its only other white space of one byte."""
    text = _LINE_END.join(["", *sentences, ""])
    if text.count("\n") > len(sentences) + 1:
        text = _LINE_END.join(["", *(sentence.replace("\n", " ") for sentence in sentences), ""])
    return text.replace("\x85", "").encode("utf-8", "surrogatepass").translate(_LOWER_CASE, _CONTROL)


def _set_aside(text: bytes) -> tuple[bytes, list[str]]:
    """Returns the text with a mark in place of each stretch that is not ASCII, and these stretches, chunks between blanks."""
    rest, stretches, end = [], [], 0
    for first, last in _foreign_stretches(np.frombuffer(text, np.uint8)):
        if first > end:
            start = text.rfind(b" ", 0, first) + 1
            rest.append(text[end:start])
            stretches.append(b"")
        else:  # a long chunk that the stretch before has ended with
            start = end
        end = text.find(b" ", last)
        stretches[-1] += text[start:end]
    rest.append(text[end:])
    return _MARK.join(rest), [stretch.decode("utf-8", "surrogatepass") for stretch in stretches]


def _foreign_stretches(text: np.ndarray) -> Iterable[tuple[int, int]]:
    """Returns where stretches of a line begin in which there are never more than _WIDEST_GAP bytes of ASCII, and where they go on last."""
    is_foreign = text > 127
    runs = np.flatnonzero(is_foreign[1:] > is_foreign[:-1]) + 1
    lines = np.searchsorted(np.flatnonzero(text == ord("\n")), runs)
    cuts = np.flatnonzero((np.diff(runs) > _WIDEST_GAP) | (np.diff(lines) > 0))
    return zip(runs[np.append(0, cuts + 1)].tolist(), runs[np.append(cuts, -1)].tolist()) if len(runs) else ()


# ---------------------------------------------------------------------------------------------------------------------
# The published rules


class _RememberedCodes(dict):
    """From a chunk of text without white space to its ids, as bytes so that they can be joined."""

    def __init__(self, vocabulary: Vocabulary, dtype: np.dtype):
        super().__init__()
        codes = {word: number.to_bytes(dtype.itemsize, sys.byteorder) for word, number in vocabulary.ids.items()}
        self._unknown = codes[_UNKNOWN]
        self._starts = codes
        self._continuations = {word.removeprefix(CONTINUATION): code for word, code in codes.items() if word.startswith(CONTINUATION)}
        self._longest_start, self._longest_continuation = _longest(self._starts), _longest(self._continuations)

    def __missing__(self, chunk: str) -> bytes:
        parts = _PART.findall(chunk)
        if len(parts) > 1:
            return b"".join(map(self.__getitem__, parts))
        code = b"".join(map(self._word, _words(chunk)))
        if len(chunk) <= _LONGEST_REMEMBERED:
            if len(self) >= _MOST_REMEMBERED:
                self.clear()
            self[chunk] = code
        return code

    def _word(self, word: str) -> bytes:
        if len(word) > _LONGEST_WORD:
            return self._unknown
        found, table, longest, start = [], self._starts, self._longest_start, 0
        while start < len(word):
            for end in range(min(len(word), start + longest.get(word[start], 0)), start, -1):
                if code := table.get(word[start:end]):
                    break
            else:
                return self._unknown
            found.append(code)
            table, longest, start = self._continuations, self._longest_continuation, end
        return b"".join(found)


def _longest(words: Iterable[str]) -> dict[str, int]:
    """Returns the length of the longest word for each first character."""
    longest = {}
    for word in filter(None, words):
        longest[word[0]] = max(len(word), longest.get(word[0], 0))
    return longest


class _CharacterTable(dict):
    """A table for str.translate() that asks for each character once."""

    def __init__(self, rule: Callable[[str], str]):
        super().__init__()
        self._rule = rule

    def __missing__(self, code_point: int) -> str:
        self[code_point] = made = self._rule(chr(code_point))
        return made


def _keep_visible(character: str) -> str:
    return "" if character == "\ufffd" or unicodedata.category(character) in ("Cc", "Cf") else character


def _strip_accent_and_split(character: str) -> str:
    category = unicodedata.category(character)
    if category == "Mn":
        return ""
    return f" {character} " if character in string.punctuation or category.startswith("P") else character


_VISIBLE = _CharacterTable(_keep_visible)
_STRIPPED_AND_SPLIT = _CharacterTable(_strip_accent_and_split)


def _words(chunk: str) -> list[str]:
    """Returns the words of a chunk that has no white space, and no Chinese character unless it is one."""
    return unicodedata.normalize("NFD", chunk.translate(_VISIBLE).lower()).translate(_STRIPPED_AND_SPLIT).split()
