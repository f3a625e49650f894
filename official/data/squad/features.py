"""Converts questions and contexts to windows of word pieces, as one set of arrays, and caches them."""

from __future__ import annotations

import dataclasses
import functools
import os

import numpy as np
from absl import logging

from official.data.rows import ragged, text_rows
from official.data.squad.squad_files import SPACES, WORD, Question, SquadData
from official.data.word_pieces import wordpiece
from official.data.word_pieces.tokenizer import LibraryTokenizer, Tokenizer, tokenizer_of
from official.data.word_pieces.vocabulary import CONTINUATION, Vocabulary, without_mark
from official.data.word_pieces.wordpiece import Kind
from official.io.errors import ConfigError, check_counts

# -----------------------------------------------------------------------------------------------------------
# Words of a context


@dataclasses.dataclass(frozen=True)
class Words:
    """The words of C contexts as one row of W words and T word pieces; characters are counted in the
    concatenated contexts."""

    begins: np.ndarray  # [W] int64: the first character of each word
    text_begins: np.ndarray  # [C] int64: the first character of each context
    first_pieces: np.ndarray  # [W + 1] int64: the first piece of each word, and T
    text_pieces: np.ndarray  # [C + 1] int64: the first piece of each context, and T
    pieces: np.ndarray  # [T] uint16 or int32: ids
    piece_begins: np.ndarray  # [T] int32: the first character of each piece, counted in its own context
    piece_ends: np.ndarray  # [T] int32: end of each piece, exclusive

    def exact_piece_span(self, context: int, begin: int, end: int) -> tuple[int, int]:
        """Returns the first and the last piece with a character of context[begin:end]; without such a piece,
        the first is larger than the last."""
        first, behind = self.text_pieces[context : context + 2].tolist()
        start = first + int(np.searchsorted(self.piece_ends[first:behind], begin, side="right"))
        return start, first + int(np.searchsorted(self.piece_begins[first:behind], end)) - 1


def tokenize(
    contexts: list[str], others: list[str], tokenizer: Tokenizer, vocabulary: Vocabulary
) -> tuple[Words, list[np.ndarray]]:
    """Tokenises contexts word by word, each distinct word once, and other texts whole, in one call of the
    tokenizer.

    Returns:
      The words of the contexts, and the ids of each other text.
    """
    if isinstance(tokenizer, LibraryTokenizer):
        return _whole_contexts(contexts, tokenizer), ragged.split(*tokenizer.tokenize(others))
    text = "\n".join(contexts)
    text_begins = np.cumsum([0, *(len(context) + 1 for context in contexts)])[:-1]
    characters = np.frombuffer(text.encode("utf-32-le"), np.uint32)
    is_word = ~np.isin(characters, list(map(ord, SPACES)))
    begins, words = np.flatnonzero(np.diff(is_word.astype(np.int8), prepend=0) > 0), WORD.findall(text)
    table = {word: number for number, word in enumerate(dict.fromkeys(words))}
    numbers = np.fromiter(map(table.__getitem__, words), np.int64, len(words))
    ids, counts = tokenizer.tokenize([*table, *others])
    of_words, of_others = np.split(counts, [len(table)])
    word_ids, other_ids = np.split(ids, [of_words.sum()])
    piece_begins, piece_ends = _characters_of(list(table), word_ids, of_words, vocabulary)
    # The pieces of each distinct word are copied to all its occurrences.
    lengths = of_words[numbers]
    first_pieces = ragged.offsets(lengths)
    source = ragged.ranges(ragged.offsets(of_words)[numbers], lengths)
    texts = np.searchsorted(text_begins, begins, side="right") - 1
    shifts = np.repeat(begins - text_begins[texts], lengths)
    return Words(
        begins=begins,
        text_begins=text_begins,
        first_pieces=first_pieces,
        pieces=word_ids[source],
        text_pieces=first_pieces[np.searchsorted(begins, np.append(text_begins, np.iinfo(np.int64).max))],
        piece_begins=(piece_begins[source] + shifts).astype(np.int32),
        piece_ends=(piece_ends[source] + shifts).astype(np.int32),
    ), ragged.split(other_ids, of_others)


def _whole_contexts(contexts: list[str], tokenizer: LibraryTokenizer) -> Words:
    """Tokenises contexts whole, each as one word, since pieces depend on the text around them."""
    pieces, counts, begins, ends = tokenizer.spans(contexts)
    text_begins = np.cumsum([0, *(len(context) + 1 for context in contexts)])[:-1]
    bounds = ragged.offsets(counts)
    return Words(
        begins=text_begins,
        text_begins=text_begins,
        first_pieces=bounds,
        pieces=pieces,
        text_pieces=bounds,
        piece_begins=begins.astype(np.int32),
        piece_ends=ends.astype(np.int32),
    )


# ------------------------------------------------------------------------------------------------------------
# From word pieces back to characters


def _characters_of(
    words: list[str], ids: np.ndarray, lengths: np.ndarray, vocabulary: Vocabulary
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the first character and the end of each piece in its word, given words with `lengths` pieces
    each. ASCII words whose pieces cover each character are aligned at once, the others word by word."""
    sizes, lower = _sizes_of(vocabulary)[ids], vocabulary.do_lower_case
    starts, totals = ragged.offsets(lengths), ragged.offsets(sizes)
    ends = totals[1:] - np.repeat(totals[starts[:-1]], lengths)
    begins = ends - sizes
    for number, (word, total) in enumerate(zip(words, np.diff(totals[starts]).tolist())):
        if total != len(word) or not word.isascii():
            piece = slice(starts[number], starts[number + 1])
            begins[piece], ends[piece] = align(word, [vocabulary.words[id_] for id_ in ids[piece]], lower)
    return begins, ends


@functools.lru_cache(maxsize=1)
def _sizes_of(vocabulary: Vocabulary) -> np.ndarray:
    """Returns int64 [V]: number of characters in each piece; for [UNK] more than in any word."""
    sizes = np.array([len(without_mark(word)) for word in vocabulary.words])
    sizes[vocabulary.special_ids.unk] = 1 << 40
    return sizes


def align(word: str, pieces: list[str], do_lower_case: bool = True) -> tuple[list[int], list[int]]:
    """Returns the first character and the end of each piece in its word.

    Lower-casing and stripping accents change a word's length, and [UNK] stands for any number of characters.
    If the pieces cannot be aligned by these rules, each gets the whole word.
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
    """Splits a word into tokens, as BERT's tokenizer does before word pieces.

    Returns:
      For each token, for each character of its normalised text, [first character in the word, end]. A
      stripped accent belongs to the character before it.
    """
    tokens: list[list[list[int]]] = []
    is_open = False
    for place, character in enumerate(word):
        kind, size = _normalize(character, do_lower_case)
        if kind == Kind.ACCENT and tokens and tokens[-1][-1][1] == place:
            tokens[-1][-1][1] = place + 1
        elif kind == Kind.LETTER:
            if not is_open:
                tokens.append([])
            tokens[-1] += ([place, place + 1] for _ in range(size))
            is_open = True
        elif kind == Kind.SINGLE:
            tokens.append([[place, place + 1]])
        is_open = is_open and kind not in (Kind.SINGLE, Kind.SPACE)
    return tokens


@functools.lru_cache(maxsize=None)  # noqa: UP033  # functools.cache is not in Python 3.8
def _normalize(character: str, do_lower_case: bool) -> tuple[Kind, int]:
    """Returns the kind of a character, and the number of characters in its normalised form."""
    kind, text = wordpiece.normalize(character, do_lower_case)
    return kind, len(text)


# -----------------------------------------------------------------------------------------------------------
# Features
#
# Shapes: N windows, L = max_seq_length, Q questions, C contexts, T word pieces of all contexts.


_CHUNK_CONTEXTS = 2048  # contexts that are tokenised at once


@dataclasses.dataclass(frozen=True)
class WindowRules:
    """Rules for cutting windows; the fields are the flags of the same names."""

    max_seq_length: int = 384
    doc_stride: int = 128
    max_query_length: int = 64

    def check(self, separators: int) -> None:
        """Raises ConfigError for values that leave no room for a context; `separators` is the vocabulary's
        number of [SEP] between two texts."""
        check_counts(doc_stride=self.doc_stride, max_query_length=self.max_query_length)
        special = 2 + separators  # [CLS] question [SEP] window [SEP]
        least = self.max_query_length + special + 1
        if self.max_seq_length < least:
            raise ConfigError(
                f"--max_seq_length={self.max_seq_length} leaves no room for a context in addition to"
                f" --max_query_length={self.max_query_length} and {special} special tokens. Allowed:"
                f" {least} or more."
            )


@dataclasses.dataclass(frozen=True)
class Features:
    """[CLS] question [SEP] window [SEP] and padding; the windows of a question are consecutive.

    A question without text, or whose context has no word piece, has no window. Positions are 0, the position
    of [CLS], if the window does not contain the whole answer, the question is impossible, or the data are not
    for training.
    """

    input_ids: np.ndarray  # [N, L] uint16, or int32 for vocabularies above 65,536 words; 0 beyond `lengths`
    lengths: np.ndarray  # [N] int32: number of tokens, including the special ones
    first_lengths: np.ndarray  # [N] int32: number of tokens in [CLS] question [SEP], whose segment id is 0
    start_positions: np.ndarray  # [N] int32: the first token of the answer in the row
    end_positions: np.ndarray  # [N] int32: the last token of the answer
    is_impossible: np.ndarray  # [N] bool: whether the question is marked as impossible
    question_numbers: np.ndarray  # [N] int32: number of the question in the data, ascending
    first_pieces: np.ndarray  # [N] int64: the window's first piece among the T of all contexts
    piece_begins: np.ndarray  # [T] int32: the first character of each piece in its context
    piece_ends: np.ndarray  # [T] int32: end of each piece, exclusive

    def __len__(self) -> int:
        return len(self.lengths)

    @property
    def window_lengths(self) -> np.ndarray:
        """int32 [N]: number of word pieces of the context in each row."""
        return self.lengths - self.first_lengths - 1

    def rows(self, columns: dict[str, np.ndarray]) -> text_rows.TokenRows:
        """Returns the windows without padding, with columns {name: [N]}."""
        is_token_NL = np.arange(self.input_ids.shape[1]) < self.lengths[:, None]
        return text_rows.TokenRows(self.input_ids[is_token_NL], self.lengths, self.first_lengths, columns)

    def is_context(self) -> np.ndarray:
        """Returns bool [N, L]: whether a token is a piece of the context."""
        column_L = np.arange(self.input_ids.shape[1])
        return (column_L >= self.first_lengths[:, None]) & (column_L < self.lengths[:, None] - 1)


def make_features(
    data: SquadData, vocabulary: Vocabulary, rules: WindowRules, tokenizer: Tokenizer | None = None
) -> Features:
    """Makes the features of all questions in this process. Making a tokenizer takes longer than a question;
    pass one to reuse it.

    Raises:
      ConfigError: for rules that leave no room for a context.

    Source: https://github.com/google-research/bert, run_squad.py, convert_examples_to_features. Two
    differences: an answer without a word piece, of control characters only, gets the positions 0; in the
    source it ends before it begins. And an answer that the source skips although it is at `answer_start` gets
    the pieces of exactly its characters.
    """
    rules.check(vocabulary.separators)
    tokenizer = tokenizer or tokenizer_of(vocabulary)
    firsts = [*range(0, len(data.contexts), _CHUNK_CONTEXTS), len(data.contexts)]
    bounds = np.searchsorted([question.context for question in data.questions], firsts).tolist()
    parts, pieces = [], 0
    for first, end, *own in zip(firsts, firsts[1:], bounds, bounds[1:]):
        part = _chunk(data, slice(first, end), slice(*own), tokenizer, vocabulary, rules)
        part["first_pieces"] += pieces
        pieces += len(part["piece_begins"])
        parts.append(part)
    return Features(**{name: np.concatenate([part[name] for part in parts]) for name in parts[0]})


def _chunk(
    data: SquadData,
    own_contexts: slice,
    own_questions: slice,
    tokenizer: Tokenizer,
    vocabulary: Vocabulary,
    rules: WindowRules,
) -> dict[str, np.ndarray]:
    """Returns the features of some contexts and their questions; pieces are numbered from 0 in the chunk."""
    questions = data.questions[own_questions]
    has_answer = np.array([data.for_training and not each.is_impossible for each in questions], bool)
    answers = [question.answers[0] for question, has in zip(questions, has_answer) if has]
    texts = [question.text for question in questions] + answers
    words, others = tokenize(data.contexts[own_contexts], texts, tokenizer, vocabulary)
    queries = [ids[: rules.max_query_length] for ids in others[: len(questions)]]
    contexts_Q = np.array([question.context for question in questions], np.int64) - own_contexts.start

    # Windows of as many pieces as fit next to the question, starting `doc_stride` pieces apart.
    query_lengths_Q = np.array([len(query) for query in queries], np.int64)
    pieces_Q = words.text_pieces[contexts_Q + 1] - words.text_pieces[contexts_Q]
    room_Q = rules.max_seq_length - query_lengths_Q - 2 - vocabulary.separators
    strides_Q = np.minimum(room_Q, rules.doc_stride)
    counts_Q = 1 + np.maximum(0, -(-(pieces_Q - room_Q) // strides_Q))
    counts_Q[(pieces_Q == 0) | np.array([question.is_empty for question in questions], bool)] = 0
    numbers_N = np.repeat(np.arange(len(questions)), counts_Q)
    shifts_N = ragged.ranges(np.zeros_like(counts_Q), counts_Q) * strides_Q[numbers_N]
    first_lengths_N = query_lengths_Q[numbers_N] + 1 + vocabulary.separators
    first_pieces_N = words.text_pieces[contexts_Q[numbers_N]] + shifts_N
    lengths_N = np.minimum(room_Q[numbers_N], pieces_Q[numbers_N] - shifts_N)

    # An answer that is not completely inside a window gets position 0.
    spans_Q2 = _answer_pieces(
        questions, contexts_Q, has_answer, others[len(questions) :], words, vocabulary.tokenizer is not None
    )
    first_N, last_N = (spans_Q2[numbers_N] - first_pieces_N[:, None]).T
    is_inside_N = (first_N >= 0) & (first_N <= last_N) & (last_N < lengths_N)
    starts_N, ends_N = (np.where(is_inside_N, at_N + first_lengths_N, 0) for at_N in (first_N, last_N))

    # The padding is 0, as published, for any id of [PAD].
    input_ids = np.zeros((len(numbers_N), rules.max_seq_length), words.pieces.dtype)
    special = vocabulary.special_ids
    input_ids[:, 0] = special.cls
    places = (values.tolist() for values in (numbers_N, first_lengths_N, first_pieces_N, lengths_N))
    for row, number, begin, first, length in zip(input_ids, *places):
        row[1:begin] = special.sep
        row[1 : 1 + len(queries[number])] = queries[number]
        row[begin : begin + length] = words.pieces[first : first + length]
        row[begin + length] = special.sep
    return {
        "input_ids": input_ids,
        "lengths": (first_lengths_N + lengths_N + 1).astype(np.int32),
        "first_lengths": first_lengths_N.astype(np.int32),
        "start_positions": starts_N.astype(np.int32),
        "end_positions": ends_N.astype(np.int32),
        "is_impossible": np.array([question.is_impossible for question in questions], bool)[numbers_N],
        "question_numbers": (numbers_N + own_questions.start).astype(np.int32),
        "first_pieces": first_pieces_N,
        "piece_begins": words.piece_begins,
        "piece_ends": words.piece_ends,
    }


def _answer_pieces(
    questions: list[Question],
    contexts_Q: np.ndarray,
    has_answer: np.ndarray,
    answers: list[np.ndarray],
    words: Words,
    exactly: bool,
) -> np.ndarray:
    """Returns the first and the last piece of the answers, int64 [Q, 2]; (0, -1) for questions without one.
    `exactly`: takes the pieces of the answer's characters, regardless of words."""
    spans_Q2 = np.tile(np.array([0, -1]), (len(questions), 1))
    asked = np.flatnonzero(has_answer).tolist()
    begins = np.array([questions[number].answer_starts[0] for number in asked], np.int64)
    lengths = np.array([len(questions[number].answers[0]) for number in asked], np.int64)
    # The words that an answer overlaps; white space counts as the end of the word before it.
    places = words.text_begins[contexts_Q[asked]] + begins
    first, last = (
        np.searchsorted(words.begins, at, side="right") - 1 for at in (places, places + lengths - 1)
    )
    touched = zip(words.first_pieces[first].tolist(), (words.first_pieces[last + 1] - 1).tolist())
    for number, span, answer in zip(asked, touched, answers):
        exact = questions[number].exact_span
        if exactly and not exact:
            begin = questions[number].answer_starts[0]
            exact = begin, begin + len(questions[number].answers[0])
        spans_Q2[number] = (
            words.exact_piece_span(contexts_Q[number], *exact)
            if exact
            else _improve(words.pieces, *span, answer)
        )
    return spans_Q2


def _improve(pieces: np.ndarray, first: int, last: int, answer: np.ndarray) -> tuple[int, int]:
    """Returns the first span within the pieces `first` to `last` that equals the answer's pieces; without
    one, `first` and `last`.

    Source: https://github.com/google-research/bert, run_squad.py, _improve_answer_span.
    """
    span, wanted = pieces[first : last + 1].tolist(), answer.tolist()
    for begin in range(len(span) - len(wanted) + 1 if wanted else 0):
        if span[begin : begin + len(wanted)] == wanted:
            return first + begin, first + begin + len(wanted) - 1
    return first, last


# -----------------------------------------------------------------------------------------------------------
# Cache


_VERSION = 2  # version of the output for the same flags and file


def load_or_make_features(
    data: SquadData, vocabulary: Vocabulary, rules: WindowRules, cache_dir: str | None
) -> Features:
    """Returns the features of the data from their folder below `cache_dir`; makes and writes missing ones.

    Cached features are used if they are complete and the rules, the vocabulary and the bytes of the file are
    the same; otherwise they are replaced. The manifest also has values for information.

    Args:
      cache_dir: the folder of all caches; None: no cache.

    Raises:
      ConfigError: for rules that leave no room for a context, or a folder that cannot be written to.
    """
    if cache_dir is None:
        return make_features(data, vocabulary, rules)
    folder = os.path.join(cache_dir, cache_name(data, rules))
    wanted = {
        "version": _VERSION,
        "flags": {
            **dataclasses.asdict(rules),
            "version_2_with_negative": data.version_2_with_negative,
            "for_training": data.for_training,
        },
        "vocabulary_sha256": vocabulary.sha256,
        "do_lower_case": vocabulary.do_lower_case,
        "max_word_characters": vocabulary.max_word_characters,
        "input_sha256": data.sha256,
        "questions": len(data.questions),
        "skipped_questions": data.skipped_questions,
        "empty_questions": data.empty_questions,
    }
    arrays = text_rows.kept(folder, wanted, lambda: vars(make_features(data, vocabulary, rules)))
    logging.info("%s: %d features of %d questions.", folder, len(arrays["lengths"]), len(data.questions))
    return Features(**arrays)


def cache_name(data: SquadData, rules: WindowRules) -> str:
    """Returns the name of the cache folder, as published: 384_128_64_SQuAD11_train."""
    version = "SQuAD20" if data.version_2_with_negative else "SQuAD11"
    purpose = "train" if data.for_training else "eval"
    return f"{rules.max_seq_length}_{rules.doc_stride}_{rules.max_query_length}_{version}_{purpose}"
