"""Words of a context, their word pieces, and where in the text each piece stands."""

from __future__ import annotations

import dataclasses
import functools
import unicodedata

import numpy as np

from official.data.rows import ragged
from official.data.squad.squad_files import SPACES, WORD
from official.data.word_pieces.tokenization import Tokenizer
from official.data.word_pieces.vocabulary import CONTINUATION, Vocabulary, without_mark

_SEPARATOR = "\n"  # between contexts that are looked at as one text


@dataclasses.dataclass(frozen=True)
class Words:
    """The words of C contexts as one row of W words and T word pieces; characters are counted in the
    contexts, one after the other."""

    begins: np.ndarray  # [W] int64: the first character of each word
    text_begins: np.ndarray  # [C] int64: the first character of each context
    first_pieces: np.ndarray  # [W + 1] int64: the first piece of each word, and T
    text_pieces: np.ndarray  # [C + 1] int64: the first piece of each context, and T
    pieces: np.ndarray  # [T] uint16 or int32: ids
    piece_begins: np.ndarray  # [T] int32: the first character of each piece, counted in its own context
    piece_ends: np.ndarray  # [T] int32: the character behind the last one

    def piece_span(
        self, contexts: np.ndarray, begins: np.ndarray, lengths: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Returns the first and the last piece of the words that stretches of text touch.

        White space counts as the end of the word before it.

        Args:
          contexts: int [A], the context of each stretch.
          begins, lengths: int [A], in characters of the context; a length is at least 1.
        """
        first = np.searchsorted(self.begins, self.text_begins[contexts] + begins, side="right") - 1
        last = (
            np.searchsorted(self.begins, self.text_begins[contexts] + begins + lengths - 1, side="right") - 1
        )
        return self.first_pieces[first], self.first_pieces[last + 1] - 1

    def exact_piece_span(self, context: int, begin: int, end: int) -> tuple[int, int]:
        """Returns the first and the last piece that hold a character of context[begin:end]; the first is
        behind the last where none does."""
        first, behind = self.text_pieces[context : context + 2].tolist()
        start = first + int(np.searchsorted(self.piece_ends[first:behind], begin, side="right"))
        return start, first + int(np.searchsorted(self.piece_begins[first:behind], end)) - 1


def tokenize(
    contexts: list[str], others: list[str], tokenizer: Tokenizer, vocabulary: Vocabulary
) -> tuple[Words, list[np.ndarray]]:
    """Tokenises contexts word by word, each different word once, and other texts as they are, in one call of
    the tokenizer.

    Returns:
      The words of the contexts, and the ids of each other text.
    """
    text_begins = np.cumsum([0, *(len(context) + 1 for context in contexts)])[:-1]
    words, begins = _split(_SEPARATOR.join(contexts))
    table = {word: number for number, word in enumerate(dict.fromkeys(words))}
    numbers = np.fromiter(map(table.__getitem__, words), np.int64, len(words))
    ids, lengths = tokenizer.tokenize([*table, *others])
    of_words = _Pieces.of(list(table), ids[: lengths[: len(table)].sum()], lengths[: len(table)], vocabulary)
    of_others = np.split(ids[len(of_words.ids) :], np.cumsum(lengths[len(table) :])[:-1]) if others else []
    return _lay_out(of_words, numbers, begins, text_begins), of_others


def _split(text: str) -> tuple[list[str], np.ndarray]:
    """Returns the words of a text, and the first character of each."""
    characters = np.frombuffer(text.encode("utf-32-le"), np.uint32)
    is_word = np.ones(len(characters) + 1, bool)  # with a space in front of the text
    is_word[0] = False
    for space in SPACES:
        is_word[1:] &= characters != ord(space)
    return WORD.findall(text), np.flatnonzero(is_word[1:] & ~is_word[:-1])


def _lay_out(of_words: _Pieces, numbers: np.ndarray, begins: np.ndarray, text_begins: np.ndarray) -> Words:
    """Puts the pieces of each different word wherever it stands; `numbers` [W] tells which word stands
    where."""
    lengths = of_words.lengths[numbers]
    first_pieces = ragged.offsets(lengths)
    source = ragged.ranges(ragged.offsets(of_words.lengths)[numbers], lengths)
    texts = np.searchsorted(text_begins, begins, side="right") - 1
    shifts = np.repeat(begins - text_begins[texts], lengths)
    return Words(
        begins=begins,
        text_begins=text_begins,
        first_pieces=first_pieces,
        pieces=of_words.ids[source],
        text_pieces=first_pieces[np.searchsorted(begins, np.append(text_begins, np.iinfo(np.int64).max))],
        piece_begins=(of_words.begins[source] + shifts).astype(np.int32),
        piece_ends=(of_words.ends[source] + shifts).astype(np.int32),
    )


# ------------------------------------------------------------------------------------------------------------
# From word pieces back to characters


@dataclasses.dataclass(frozen=True)
class _Pieces:
    """The pieces of different words, one word after the other; characters are counted in the word."""

    ids: np.ndarray
    lengths: np.ndarray  # of each word
    begins: np.ndarray
    ends: np.ndarray

    @classmethod
    def of(cls, words: list[str], ids: np.ndarray, lengths: np.ndarray, vocabulary: Vocabulary) -> _Pieces:
        """Finds the characters of all pieces: those of ASCII words whose pieces hold each character at once,
        the others word by word."""
        sizes, lower = _sizes_of(vocabulary)[ids], vocabulary.do_lower_case
        starts = ragged.offsets(lengths)
        ends = np.cumsum(sizes) - np.repeat(ragged.offsets(sizes)[starts[:-1]], lengths)
        begins = ends - sizes
        totals = np.diff(ragged.offsets(sizes)[starts])
        for number, word in enumerate(words):
            if totals[number] != len(word) or not word.isascii():
                piece = slice(starts[number], starts[number + 1])
                begins[piece], ends[piece] = align(word, [vocabulary.words[id_] for id_ in ids[piece]], lower)
        return cls(ids, lengths, begins, ends)


@functools.lru_cache(maxsize=1)
def _sizes_of(vocabulary: Vocabulary) -> np.ndarray:
    """Returns int64 [V]: characters of each piece. [UNK] gets so many that no word has them."""
    sizes = np.array([len(without_mark(word)) for word in vocabulary.words])
    sizes[vocabulary.id_of("[UNK]")] = 1 << 40
    return sizes


def align(word: str, pieces: list[str], do_lower_case: bool = True) -> tuple[list[int], list[int]]:
    """Returns the first character in a word of each of its pieces, and the character behind its last one.

    Lower-casing and stripping accents change a word's length, and [UNK] stands for a stretch of any length.
    Where the pieces do not follow from the word by the rules known here, each gets the whole word.
    """
    tokens = _normalized_tokens(word, do_lower_case)
    begins, ends, token, used = [], [], -1, 0
    for piece in pieces:
        if not piece.startswith(CONTINUATION) or piece == CONTINUATION:
            token, used = token + 1, 0
        characters = tokens[token] if token < len(tokens) else []
        size = len(characters) if piece == "[UNK]" else len(without_mark(piece))
        stretch = characters[used : used + size]
        if not stretch or len(stretch) < size:
            return [0] * len(pieces), [len(word)] * len(pieces)
        begins.append(stretch[0][0])
        ends.append(stretch[-1][1])
        used += size
    return begins, ends


def _normalized_tokens(word: str, do_lower_case: bool) -> list[list[list[int]]]:
    """Splits a word as BERT's tokenizer does before word pieces.

    Returns:
      For each token, for each character of its normalised text, [first character in the word, character
      behind the last one]. An accent that is stripped belongs to the character before it.
    """
    tokens: list[list[list[int]]] = []
    is_open = False
    for place, character in enumerate(word):
        kind, size = _normalize(character, do_lower_case)
        if kind == "accent" and tokens and tokens[-1][-1][1] == place:
            tokens[-1][-1][1] = place + 1
        elif kind == "letter":
            if not is_open:
                tokens.append([])
            tokens[-1] += ([place, place + 1] for _ in range(size))
            is_open = True
        elif kind == "single":
            tokens.append([[place, place + 1]])
        is_open = is_open and kind in ("letter", "accent", "dropped")
    return tokens


@functools.lru_cache(maxsize=None)  # noqa: UP033  # functools.cache is not in Python 3.8
def _normalize(character: str, do_lower_case: bool) -> tuple[str, int]:
    """Returns the kind of a character, as the tokenizer sees it, and the length of its normalised text: where
    so asked lower-cased and without accents."""
    if unicodedata.category(character) in ("Cc", "Cf") or character == "\ufffd":
        return "dropped", 0
    if character.isspace():
        return "space", 0
    text = character
    if do_lower_case:
        text = "".join(
            part
            for part in unicodedata.normalize("NFD", character.lower())
            if unicodedata.category(part) != "Mn"
        )
    if not text:
        return "accent", 0
    if _is_ideograph(character) or any(map(_is_punctuation, text)):
        return "single", len(text)
    return "letter", len(text)


def _is_punctuation(character: str) -> bool:
    return unicodedata.category(character).startswith("P") or character.isascii() and not character.isalnum()


def _is_ideograph(character: str) -> bool:
    """Returns whether it is one of the Chinese, Japanese or Korean ideographs that stand alone as words."""
    code = ord(character)
    return any(
        first <= code <= last
        for first, last in (
            (0x4E00, 0x9FFF),
            (0x3400, 0x4DBF),
            (0x20000, 0x2A6DF),
            (0x2A700, 0x2B73F),
            (0x2B740, 0x2B81F),
            (0x2B820, 0x2CEAF),
            (0xF900, 0xFAFF),
            (0x2F800, 0x2FA1F),
        )
    )
