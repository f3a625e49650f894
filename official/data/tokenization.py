"""Sentences -> ids of word pieces, exactly as Google's uncased BERT does it, at the speed of a compiled tokenizer.

The published rules: control and format characters are dropped, Chinese characters stand alone, the text is split at white
space, lower-cased, loses its accents, is split at punctuation, and each word becomes the longest pieces that the vocabulary
has, from left to right; a word that cannot be covered, or has more than 200 characters, is [UNK].
Source: https://github.com/google-research/bert/blob/master/tokenization.py

tensorflow-text's compiled tokenizer has other classes of characters, so it is given nothing but ASCII, where both agree.
A chunk of text between two white spaces has the same ids wherever it stands. So chunks that are not ASCII are set aside:
the compiled tokenizer sees a mark in their place, plain Python looks their ids up or finds them by the rules, and they are
put where the mark was.
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
_WIDEST_GAP = 32  # bytes of ASCII that are cheaper looked up together with what is around them than tokenised between two marks
_MOST_REMEMBERED = 2**18  # chunks of text whose ids are kept: some 60 MB
_LONGEST_REMEMBERED = 50  # characters; longer chunks hardly come twice

_LINE_END = " \n "  # with blanks, so that there is one on both sides of every chunk
_MARK = "\u03c9".encode()  # any word that is not ASCII
_ASCII_PIECE = re.compile(rf"({CONTINUATION})?[a-z0-9]{{1,{_LONGEST_WORD}}}|[{re.escape(string.punctuation)}]")
_ASCII_CONTROL = bytes(code for code in (*range(32), 127) if chr(code) not in "\t\n\r")
_ASCII_LOWER_CASE = bytes.maketrans(string.ascii_uppercase.encode() + b"\t\r", string.ascii_lowercase.encode() + b"  ")
_CHINESE = "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0002a6df\U0002a700-\U0002ceaf\U0002f800-\U0002fa1f"
_CHINESE_OR_OTHERS = re.compile(f"[{_CHINESE}]|[^{_CHINESE}]+")


class Tokenizer:
    """Lower-cases text, strips accents and splits it into word pieces."""

    def __init__(self, vocabulary: Vocabulary):
        self._dtype = np.dtype(np.uint16 if vocabulary.size <= 2**16 else np.int32)
        # Other words cannot occur in lower-case ASCII text. Some of them the compiled tokenizer does not accept.
        words = [_UNKNOWN, *filter(_ASCII_PIECE.fullmatch, vocabulary.words)]
        self._ids = np.array([*map(vocabulary.id_of, words), 0], self._dtype)  # by the compiled tokenizer's; the last is the mark
        with tf.device("CPU"):
            self._compiled = tf_text.FastWordpieceTokenizer([*words, _MARK], max_bytes_per_word=_LONGEST_WORD, token_out_type=tf.int32)
        self._chunks = _Chunks(vocabulary, self._dtype)

    def tokenize(self, sentences: list[str]) -> tuple[np.ndarray, np.ndarray]:
        """Tokenises text of any kind. A lone surrogate is a character like others.

        Returns:
          ids of all sentences in one array, uint16, or int32 for vocabularies above 65,536 words; number of ids of each
          sentence, int64.
        """
        if not sentences:
            return np.zeros(0, self._dtype), np.zeros(0, np.int64)
        ids, lengths = zip(*map(self._tokenize_batch, _batches(sentences)))
        return np.concatenate(ids), np.concatenate(lengths)

    def _tokenize_batch(self, sentences: list[str]) -> tuple[np.ndarray, np.ndarray]:
        text, stretches = _set_aside(_join(sentences))
        with tf.device("CPU"):
            pieces = self._compiled.tokenize(tf.constant(text.split(b"\n")[1:-1], tf.string))
        ids_of_chunk = self._chunks.__getitem__
        set_aside = [b"".join(map(ids_of_chunk, stretch.split())) for stretch in stretches]
        return self._put_back(set_aside, pieces.flat_values.numpy(), pieces.row_splits.numpy())

    def _put_back(self, set_aside: list[bytes], pieces: np.ndarray, splits: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns ids and lengths of sentences.

        Args:
          set_aside: ids of each stretch that was set aside, in order.
          pieces: what the compiled tokenizer returned for the rest, with a mark for each stretch; int32.
          splits: sentence n is pieces[splits[n]:splits[n + 1]].
        """
        ids = self._ids[pieces]
        if not set_aside:
            return ids, np.diff(splits)
        is_mark = pieces == len(self._ids) - 1
        counts = np.ones(len(pieces), np.int64)
        counts[is_mark] = np.fromiter(map(len, set_aside), np.int64, len(set_aside)) // self._dtype.itemsize
        ids = np.repeat(ids, counts)
        ids[np.repeat(is_mark, counts)] = np.frombuffer(b"".join(set_aside), self._dtype)
        return ids, np.diff(np.concatenate([[0], np.cumsum(counts)])[splits])


def _batches(sentences: list[str]) -> Iterator[list[str]]:
    """Yields batches of _BATCH_CHARACTERS, or one sentence more."""
    ends = np.cumsum(np.fromiter(map(len, sentences), np.int64, len(sentences)) + 1)  # an empty sentence takes room, too
    cuts = (np.flatnonzero(np.diff(ends // _BATCH_CHARACTERS)) + 1).tolist()
    for first, last in zip([0, *cuts], [*cuts, len(sentences)]):
        yield sentences[first:last]


def _join(sentences: list[str]) -> bytes:
    """Returns a line for each sentence, after an empty one. What is ASCII is in lower case, and white space of it is a blank."""
    text = _LINE_END.join(["", *sentences, ""])
    if text.count("\n") > len(sentences) + 1:
        text = _LINE_END.join(["", *(sentence.replace("\n", " ") for sentence in sentences), ""])
    text = text.replace("\x85", "")  # a control character, but white space for str.split()
    return text.encode("utf-8", "surrogatepass").translate(_ASCII_LOWER_CASE, _ASCII_CONTROL)


# ---------------------------------------------------------------------------------------------------------------------
# What is not ASCII


def _set_aside(text: bytes) -> tuple[bytes, list[str]]:
    """Returns the text with a mark in place of each stretch of chunks that are not all ASCII, and these stretches."""
    rest, stretches, end = [], [], 0
    for first, last in _foreign_stretches(np.frombuffer(text, np.uint8)):
        if last < end:  # in the last chunk of the stretch before
            continue
        if first > end:
            start = text.rfind(b" ", 0, first) + 1
            rest.append(text[end:start])
            stretches.append(b"")
        else:
            start = end
        end = text.find(b" ", last)
        stretches[-1] += text[start:end]
    rest.append(text[end:])
    return _MARK.join(rest), [stretch.decode("utf-8", "surrogatepass") for stretch in stretches]


def _foreign_stretches(text: np.ndarray) -> Iterable[tuple[int, int]]:
    """Returns where in uint8 `text` the first and the last run of bytes begins that are not ASCII, of each stretch.

    A stretch lies in one line, and its runs begin no more than _WIDEST_GAP bytes apart.
    """
    is_foreign = text > 127
    runs = np.flatnonzero(is_foreign[1:] > is_foreign[:-1]) + 1
    if not len(runs):
        return ()
    lines = np.searchsorted(np.flatnonzero(text == ord("\n")), runs)
    cuts = np.flatnonzero((np.diff(runs) > _WIDEST_GAP) | (np.diff(lines) > 0))
    return zip(runs[np.append(0, cuts + 1)].tolist(), runs[np.append(cuts, -1)].tolist())


class _Chunks(dict):
    """The ids of chunks of text without white space, as bytes, which are quickly joined: by the published rules, and remembered."""

    def __init__(self, vocabulary: Vocabulary, dtype: np.dtype):
        super().__init__()
        self._starts = {word: number.to_bytes(dtype.itemsize, sys.byteorder) for word, number in vocabulary.ids.items()}
        self._continuations = {word.removeprefix(CONTINUATION): code for word, code in self._starts.items() if word.startswith(CONTINUATION)}
        self._longest_start, self._longest_continuation = _longest(self._starts), _longest(self._continuations)
        self._unknown = self._starts[_UNKNOWN]

    def __missing__(self, chunk: str) -> bytes:
        parts = _CHINESE_OR_OTHERS.findall(chunk)
        if len(parts) > 1:
            return b"".join(map(self.__getitem__, parts))
        ids = b"".join(map(self._find_pieces, _words(chunk)))
        if len(chunk) <= _LONGEST_REMEMBERED:
            if len(self) >= _MOST_REMEMBERED:
                self.clear()
            self[chunk] = ids
        return ids

    def _find_pieces(self, word: str) -> bytes:
        if len(word) > _LONGEST_WORD:
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


def _drop_invisible(character: str) -> str:
    return "" if character == "\ufffd" or unicodedata.category(character) in ("Cc", "Cf") else character


def _drop_accent_and_split(character: str) -> str:
    category = unicodedata.category(character)
    if category == "Mn":
        return ""
    return f" {character} " if character in string.punctuation or category.startswith("P") else character


_VISIBLE = _CharacterTable(_drop_invisible)
_WITHOUT_ACCENT_AND_SPLIT = _CharacterTable(_drop_accent_and_split)


def _words(chunk: str) -> list[str]:
    """Returns the words of a chunk that has no Chinese character unless it is one."""
    return unicodedata.normalize("NFD", chunk.translate(_VISIBLE).lower()).translate(_WITHOUT_ACCENT_AND_SPLIT).split()
