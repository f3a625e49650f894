"""Splits text into word pieces with positions, by the published rules, in TensorFlow operations."""

from __future__ import annotations

import functools
import unicodedata
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from official.data.word_pieces import wordpiece
from official.data.word_pieces.vocabulary import CONTINUATION, Vocabulary
from official.data.word_pieces.wordpiece import Kind
from official.io.errors import ConfigError

# -----------------------------------------------------------------------------------------------------------
# Characters
#
# A table has pages of 256 code points, and equal pages are stored once, since most of Unicode is alike.


FINAL_SIGMA = 0x3C2  # small sigma at the end of a word
CAPITAL_SIGMA = "\u03a3"
_CODE_POINTS = 0x110000
_PAGE = 256


class Paged(NamedTuple):
    """A table over all code points.

    Attributes:
      pages: int32 [4352]: page of values of each 256 code points.
      values: [pages x 256, ...].
    """

    pages: np.ndarray
    values: np.ndarray


class Characters(NamedTuple):
    """Tables of the normalization of characters.

    Attributes:
      kinds: int32: one of the kinds above.
      counts: int32: number of characters that a letter, or a character that is a word by itself, becomes; 0
        for others.
      shifts: int32 [.., M]: difference of each of these from its code.
      classes: int32 [.., M]: canonical combining class of each of these.
      starts: int32: 1 if no character from it on is reordered before earlier ones.
      is_cased: int32: 1 for cased characters that are not ignored; None for a cased vocabulary.
      is_ignored: int32: 1 for characters that are skipped in the search for the end of a word; None likewise.
    """

    kinds: Paged
    counts: Paged
    shifts: Paged
    classes: Paged
    starts: Paged
    is_cased: Paged | None = None
    is_ignored: Paged | None = None


def look_up(table: Paged, codes_C: tf.Tensor) -> tf.Tensor:
    """Returns the values of code points, int32 [C, ...]."""
    pages_C = tf.gather(table.pages, codes_C // _PAGE)
    return tf.gather(table.values, pages_C * _PAGE + codes_C % _PAGE)


@functools.lru_cache(maxsize=2)
def tables(do_lower_case: bool) -> Characters:
    """Returns the tables for text with or without lower-casing and removal of accents."""
    made = {code: wordpiece.normalize(chr(code), do_lower_case) for code in _not_alike()}
    kinds, starts = np.full(_CODE_POINTS, Kind.LETTER), np.ones(_CODE_POINTS)
    most = max(len(text) for _, text in made.values())
    shifts, classes = np.zeros((_CODE_POINTS, most)), np.zeros((_CODE_POINTS, most))
    counts = np.ones(_CODE_POINTS)
    for code, (kind, text) in made.items():
        kinds[code], counts[code] = kind, len(text)
        for place, character in enumerate(text):
            shifts[code, place] = ord(character) - code
            classes[code, place] = unicodedata.combining(character) if do_lower_case else 0
        if do_lower_case:
            first = wordpiece.decomposed(chr(code))[0]
            starts[code] = kind not in (Kind.DROPPED, Kind.BLANK) and not unicodedata.combining(first)
    case = _case_flags() if do_lower_case else ()
    return Characters(*map(_paged, (kinds, counts, shifts, classes, starts, *case)))


@functools.cache
def _not_alike() -> list[int]:
    def is_alike(character: str) -> bool:
        # Unassigned, private use, surrogates: unchanged letters.
        category = unicodedata.category(character)
        return category in ("Cn", "Co", "Cs") and not wordpiece.IDEOGRAPH.match(character)

    return [code for code in range(_CODE_POINTS) if not is_alike(chr(code))]


def _paged(values: np.ndarray) -> Paged:
    by_page = values.astype(np.int32).reshape(_CODE_POINTS // _PAGE, -1)
    rows = by_page.view(f"V{by_page[0].nbytes}")  # as bytes: compared six times as fast as with axis=0
    _, kept, pages = np.unique(rows, return_index=True, return_inverse=True)
    return Paged(pages.reshape(-1).astype(np.int32), by_page[kept].reshape(-1, *values.shape[1:]))


def _case_flags() -> tuple[np.ndarray, np.ndarray]:
    """Returns the characters that Python's `str.lower` treats as cased, and those that it skips, next to a
    capital sigma: bool [code points] each. Python has no table of them; the lower case of the sigma reveals
    it."""
    codes, final = _not_alike(), chr(FINAL_SIGMA)
    is_cased, is_ignored = np.zeros(_CODE_POINTS, bool), np.zeros(_CODE_POINTS, bool)
    is_cased[codes] = [f"{chr(code)}{CAPITAL_SIGMA}".lower()[-1] == final for code in codes]
    is_ignored[codes] = [f"A{chr(code)}{CAPITAL_SIGMA}".lower()[-1] == final for code in codes]
    return is_cased, is_ignored & ~is_cased


# -----------------------------------------------------------------------------------------------------------
# Word pieces
#
# Gives the ids of `official.data.word_pieces.wordpiece` and the positions of `official.data.squad.features`.
# Text is UTF-8; malformed bytes count as U+FFFD, as Python replaces them. Shapes: N texts of C characters,
# which become P characters in V words, of T word pieces; all concatenated.


_MAX_BYTES = 256  # limit of the compiled tokenizer per word of the vocabulary


class Decoded(NamedTuple):
    """Characters of texts.

    Attributes:
      codes_C: int32: code points.
      splits_N1: int32 [N + 1]: start of each text, and C.
      is_empty_N: bool: whether a text is only white space.
    """

    codes_C: tf.Tensor
    splits_N1: tf.Tensor
    is_empty_N: tf.Tensor


class Pieces(NamedTuple):
    """Word pieces of texts.

    Attributes:
      ids_T: int32.
      begins_T, ends_T: int32: offsets of the first character of each piece in its text, and of its end.
      lengths_N: int32: number of pieces of each text.
      text: characters of the texts.
    """

    ids_T: tf.Tensor
    begins_T: tf.Tensor
    ends_T: tf.Tensor
    lengths_N: tf.Tensor
    text: Decoded

    @property
    def firsts_N(self) -> tf.Tensor:
        """int32: index of the first piece of each text."""
        return tf.cumsum(self.lengths_N, exclusive=True)


class Splitter:
    """Splits texts into the word pieces of a vocabulary."""

    def __init__(self, vocabulary: Vocabulary):
        """Builds the tables.

        Raises:
          ConfigError: for a word that is too long for the compiled tokenizer.
        """
        import tensorflow_text as tf_text  # late: slow, and only needed to split text

        self._tables, self._most = tables(vocabulary.do_lower_case), vocabulary.max_word_characters
        known = [wordpiece.UNKNOWN, *_reachable(vocabulary, self._tables)]
        plain = [word.removeprefix(CONTINUATION) for word in known]
        for word, letters in zip(known, plain):
            if len(letters.encode()) > _MAX_BYTES:
                raise ConfigError(
                    f"the vocabulary has a word of more than {_MAX_BYTES} bytes, {word[:20]!r}..., which"
                    " tensorflow-text does not take. Remove it from the vocabulary."
                )
        self._ids = np.array(list(map(vocabulary.ids.__getitem__, known)), np.int32)
        self._sizes = np.array(list(map(len, plain)), np.int32)
        with tf.device("CPU"):
            self._compiled = tf_text.FastWordpieceTokenizer(
                [*known, "a b"],  # "a b" never matches: [UNK] alone is not accepted
                max_bytes_per_word=vocabulary.max_word_characters * 4,
                token_out_type=tf.int32,
                no_pretokenization=True,
            )

        # One function for all methods, since its tables are large.
        texts = tf.TensorSpec([None], tf.string)
        self._function = tf.function(self._split, input_signature=[texts], autograph=False)

    def __call__(self, texts_N: tf.Tensor) -> Pieces:
        """Splits texts, string [N]."""
        return self._function(texts_N)

    def _split(self, texts_N: tf.Tensor) -> Pieces:
        tables, decoded = self._tables, tf.strings.unicode_decode(texts_N, "UTF-8")
        codes_C = decoded.flat_values
        kinds_C = look_up(tables.kinds, codes_C)
        is_white_C = (kinds_C == Kind.SPACE) | (kinds_C == Kind.BLANK)
        owners_C = tf.cast(decoded.value_rowids(), tf.int32)
        filled_N = tf.math.unsorted_segment_sum(tf.cast(~is_white_C, tf.int32), owners_C, tf.size(texts_N))
        text = Decoded(codes_C, tf.cast(decoded.row_splits, tf.int32), filled_N == 0)

        # Characters are lower-cased and lose accents according to the tables.
        texts_C = tf.repeat(tf.range(tf.size(text.is_empty_N)), text.splits_N1[1:] - text.splits_N1[:-1])
        first_C = tf.gather(text.splits_N1, texts_C)
        counts_C = look_up(tables.counts, text.codes_C)
        from_P, number_P = repeated(counts_C)
        # The end of each character and the accents that follow it, counted over all texts.
        is_solid_C = kinds_C != Kind.ACCENT
        solid = tf.concat([tf.cast(tf.where(is_solid_C)[:, 0], tf.int32), [tf.size(kinds_C)]], 0)
        following_C = tf.gather(solid, tf.cumsum(tf.cast(is_solid_C, tf.int32)))
        ends_C = tf.minimum(following_C, tf.gather(text.splits_N1, texts_C + 1))
        is_last_P = number_P + 1 == tf.gather(counts_C, from_P)
        ends_P = tf.where(is_last_P, tf.gather(ends_C, from_P), from_P + 1)
        texts_P, first_P = tf.gather(texts_C, from_P), tf.gather(first_C, from_P)
        codes_P = _codes(text.codes_C, texts_C, from_P, number_P, tables)
        begins_P, ends_P = from_P - first_P, ends_P - first_P

        # They form words, and these word pieces. The pieces of a word cover all of its characters.
        words_P = tf.gather(_words(kinds_C, texts_C), from_P)
        count = tf.reduce_max(tf.concat([words_P + 1, [0]], 0))
        sizes_V = tf.math.unsorted_segment_sum(tf.ones_like(words_P), words_P, count)
        codes = tf.RaggedTensor.from_row_lengths(codes_P, sizes_V, validate=False)
        encoded_V = tf.strings.unicode_encode(codes, "UTF-8")
        words_V = tf.where(sizes_V > self._most, wordpiece.UNKNOWN, encoded_V)
        pieces: Any = self._compiled.tokenize(words_V)
        numbers_T, words_T = pieces.flat_values, pieces.value_rowids()
        sizes_T = tf.where(numbers_T == 0, tf.gather(sizes_V, words_T), tf.gather(self._sizes, numbers_T))
        lasts_T = tf.cumsum(sizes_T)
        firsts_T = lasts_T - sizes_T
        texts = tf.gather(texts_P, firsts_T)
        return Pieces(
            tf.gather(self._ids, numbers_T),
            tf.gather(begins_P, firsts_T),
            tf.gather(ends_P, lasts_T - 1),
            tf.math.unsorted_segment_sum(tf.ones_like(texts), texts, tf.size(text.is_empty_N)),
            text,
        )


def _reachable(vocabulary: Vocabulary, tables: Characters) -> list[str]:
    """Returns the words that can occur in text: unchanged letters, or one other character."""
    words = [word for word in vocabulary.words if word.removeprefix(CONTINUATION)]
    plain = [word.removeprefix(CONTINUATION) for word in words]
    codes = np.array(sorted(map(ord, set("".join(plain)))), np.int32)
    kinds = dict(zip(map(chr, codes), look_up(tables.kinds, codes).numpy()))
    is_same = dict(zip(map(chr, codes), look_up(tables.shifts, codes).numpy()[:, 0] == 0))
    return [
        word
        for word, text in zip(words, plain)
        if word != wordpiece.UNKNOWN
        and len(text) <= vocabulary.max_word_characters
        and all(is_same[letter] for letter in text)
        and (len(text) == 1 or all(kinds[letter] == Kind.LETTER for letter in text))
    ]


def repeated(counts: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the index of each item, repeated by its count, and the number of the repetition."""
    of = tf.repeat(tf.range(tf.size(counts)), counts)
    return of, tf.range(tf.size(of)) - tf.gather(tf.cumsum(counts, exclusive=True), of)


def _words(kinds_C: tf.Tensor, texts_C: tf.Tensor) -> tf.Tensor:
    """Returns the number of each character's word; any number for characters outside of words."""
    is_there_C = (kinds_C == Kind.LETTER) | (kinds_C == Kind.SINGLE)
    counts = tf.where(is_there_C | (kinds_C == Kind.SPACE))[:, 0]
    kinds, texts = tf.gather(kinds_C, counts), tf.gather(texts_C, counts)
    before = tf.concat([[Kind.SPACE], kinds[:-1]], 0)[: tf.size(kinds)]
    texts_before = tf.concat([[-1], texts[:-1]], 0)[: tf.size(kinds)]
    goes_on = (kinds == Kind.LETTER) & (before == Kind.LETTER) & (texts == texts_before)
    words = tf.cumsum(tf.cast(~goes_on & (kinds != Kind.SPACE), tf.int32)) - 1
    return tf.scatter_nd(counts[:, None], words, tf.shape(kinds_C, tf.int64))


def _codes(codes_C: Any, texts_C: Any, from_P: Any, number_P: Any, tables: Characters) -> tf.Tensor:
    """Returns the code points that characters become, in canonical order."""
    source_P = tf.gather(codes_C, from_P)
    shifts_P = tf.gather(look_up(tables.shifts, source_P), number_P, batch_dims=1)
    codes_P = source_P + shifts_P
    if tables.is_cased is None or tables.is_ignored is None:
        return codes_P
    is_final_C = _final_sigmas(codes_C, texts_C, tables)
    codes_P = tf.where(tf.gather(is_final_C, from_P), FINAL_SIGMA, codes_P)
    is_new_C = tf.concat([[True], texts_C[1:] != texts_C[:-1]], 0)[: tf.size(texts_C)]
    starts_C = tf.maximum(look_up(tables.starts, codes_C), tf.cast(is_new_C, tf.int32))
    classes_P = tf.gather(look_up(tables.classes, source_P), number_P, batch_dims=1)
    keys_P = tf.cast(tf.gather(tf.cumsum(starts_C), from_P), tf.int64) * 256 + tf.cast(classes_P, tf.int64)
    is_ordered = tf.reduce_all(keys_P[1:] >= keys_P[:-1])
    return tf.cond(is_ordered, lambda: codes_P, lambda: tf.gather(codes_P, tf.argsort(keys_P, stable=True)))


def _final_sigmas(codes_C: tf.Tensor, texts_C: tf.Tensor, tables: Characters) -> tf.Tensor:
    """Returns bool [C]: whether a character is a capital sigma at the end of a word with other letters, for
    which `str.lower` gives another small letter.

    Source: The Unicode Standard 3.13, Final_Sigma.
    """
    assert tables.is_cased is not None and tables.is_ignored is not None
    # Without the characters that are dropped.
    kinds_C = look_up(tables.kinds, codes_C)
    is_gone_C = (kinds_C == Kind.DROPPED) | (kinds_C == Kind.BLANK)
    counts_C = (look_up(tables.is_ignored, codes_C) == 0) & ~is_gone_C
    # The texts of cased characters; -1 for others.
    cased_C = tf.where(look_up(tables.is_cased, codes_C) > 0, texts_C, -1)
    kept = tf.pad(tf.boolean_mask(cased_C, counts_C), [[1, 1]], constant_values=-1)
    rank_C = tf.cumsum(tf.cast(counts_C, tf.int32), exclusive=True)
    before_C, behind_C = tf.gather(kept, rank_C), tf.gather(kept, tf.minimum(rank_C + 2, tf.size(kept) - 1))
    is_sigma_C = codes_C == ord(CAPITAL_SIGMA)
    return is_sigma_C & (before_C == texts_C) & (behind_C != texts_C)
