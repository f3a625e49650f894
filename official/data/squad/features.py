"""Questions and contexts -> windows of word pieces, as one set of arrays."""

from __future__ import annotations

import dataclasses
import functools
from typing import NamedTuple

import numpy as np

from official.data.rows import ragged
from official.data.squad.squad_files import SPACES, WORD, Question, SquadData
from official.data.word_pieces import wordpiece
from official.data.word_pieces.vocabulary import CONTINUATION, Vocabulary, without_mark
from official.data.word_pieces.wordpiece import Kind, Tokenizer
from official.io.errors import ConfigError

# -----------------------------------------------------------------------------------------------------------
# Words of a context


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
        ends = self.text_begins[contexts] + begins + lengths - 1
        last = np.searchsorted(self.begins, ends, side="right") - 1
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
    """Returns the kind of a character, and how many characters it becomes."""
    kind, text = wordpiece.normalize(character, do_lower_case)
    return kind, len(text)


# -----------------------------------------------------------------------------------------------------------
# Features
#
# Shapes: N windows, L = max_seq_length, Q questions, C contexts, T word pieces of all contexts.


FIRST_UNIQUE_ID = 1_000_000_000
_SPECIAL_TOKENS = 3  # [CLS] question [SEP] window [SEP]
_CHUNK_CONTEXTS = 2048  # are tokenised at once


@dataclasses.dataclass(frozen=True)
class WindowRules:
    """Rules for cutting windows; the fields are the flags of the same names."""

    max_seq_length: int = 384
    doc_stride: int = 128
    max_query_length: int = 64

    def check(self) -> None:
        """Raises ConfigError for values that leave no room for a context."""
        for name in ("doc_stride", "max_query_length"):
            if getattr(self, name) < 1:
                raise ConfigError(f"--{name}={getattr(self, name)} is out of range. Allowed: 1 or more.")
        least = self.max_query_length + _SPECIAL_TOKENS + 1
        if self.max_seq_length < least:
            raise ConfigError(
                f"--max_seq_length={self.max_seq_length} leaves no room for a context beside"
                f" --max_query_length={self.max_query_length} and {_SPECIAL_TOKENS} special tokens. Allowed:"
                f" {least} or more."
            )


@dataclasses.dataclass(frozen=True)
class Features:
    """[CLS] question [SEP] window [SEP] and padding, the windows of a question one after the other.

    A question without text, or whose context has no word piece, has no window. Positions are 0, that of
    [CLS], where the window does not hold the whole answer, the question is impossible, or the data are not
    for training.
    """

    input_ids: np.ndarray  # [N, L] uint16, or int32 for vocabularies above 65,536 words; 0 beyond `lengths`
    lengths: np.ndarray  # [N] int32: tokens, the three special ones among them
    first_lengths: np.ndarray  # [N] int32: tokens of [CLS] question [SEP], whose segment id is 0
    start_positions: np.ndarray  # [N] int32: the token of the window's row where the answer begins
    end_positions: np.ndarray  # [N] int32: the last token of the answer
    is_impossible: np.ndarray  # [N] bool: whether the question is marked so
    question_numbers: np.ndarray  # [N] int32: which question of the data, ascending
    first_pieces: np.ndarray  # [N] int64: the window's first piece among the T of all contexts
    piece_begins: np.ndarray  # [T] int32: the first character of each piece in its context
    piece_ends: np.ndarray  # [T] int32: the character behind the last one

    def __len__(self) -> int:
        return len(self.lengths)

    @property
    def unique_ids(self) -> np.ndarray:
        """int32 [N]: as published."""
        return np.arange(FIRST_UNIQUE_ID, FIRST_UNIQUE_ID + len(self), dtype=np.int32)

    @property
    def window_lengths(self) -> np.ndarray:
        """int32 [N]: word pieces of the context in each row."""
        return self.lengths - self.first_lengths - 1

    def batch(self, rows: np.ndarray | slice, length: int | None = None) -> dict[str, np.ndarray]:
        """Returns {published name: array} of some rows, int32, cut to `length` tokens where that is given."""
        input_ids = self.input_ids[rows, :length]
        lengths, first_lengths = self.lengths[rows, None], self.first_lengths[rows, None]
        column_L = np.arange(input_ids.shape[1])
        is_token_BL = column_L < lengths
        return {
            "unique_ids": self.unique_ids[rows],
            "input_ids": input_ids.astype(np.int32),
            "input_mask": is_token_BL.astype(np.int32),
            "segment_ids": (is_token_BL & (column_L >= first_lengths)).astype(np.int32),
            "start_positions": self.start_positions[rows],
            "end_positions": self.end_positions[rows],
            "is_impossible": self.is_impossible[rows].astype(np.int32),
        }

    def is_context(self) -> np.ndarray:
        """Returns bool [N, L]: whether a token is a piece of the context."""
        column_L = np.arange(self.input_ids.shape[1])
        return (column_L >= self.first_lengths[:, None]) & (column_L < self.lengths[:, None] - 1)


def make_features(
    data: SquadData, vocabulary: Vocabulary, rules: WindowRules, tokenizer: Tokenizer | None = None
) -> Features:
    """Makes the features of all questions in this process. Making a tokenizer takes longer than a question:
    who asks more than once gives that of the vocabulary.

    Raises:
      ConfigError: for rules that leave no room for a context.

    Source: https://github.com/google-research/bert, run_squad.py, convert_examples_to_features. Two
    differences: an answer without a single word piece, all control characters, gets the positions 0, where
    the source makes it end before it begins; and an answer that the source leaves out though it stands at
    `answer_start` is the pieces of exactly its characters.
    """
    rules.check()
    tokenizer = tokenizer or Tokenizer(vocabulary)
    return concatenate([make_chunk(chunk, tokenizer, vocabulary, rules) for chunk in chunks(data)])


class Chunk(NamedTuple):
    """Consecutive contexts and their questions; these count contexts as the whole data do."""

    contexts: list[str]
    questions: list[Question]
    first_context: int
    first_question: int
    for_training: bool


def chunks(data: SquadData) -> list[Chunk]:
    """Cuts the data into pieces whose features can be made one by one."""
    contexts_of_questions = [question.context for question in data.questions]
    firsts = range(0, len(data.contexts), _CHUNK_CONTEXTS)
    begins = np.searchsorted(contexts_of_questions, [*firsts, len(data.contexts)]).tolist()
    return [
        Chunk(
            data.contexts[first : first + _CHUNK_CONTEXTS],
            data.questions[begin:end],
            first,
            begin,
            data.for_training,
        )
        for first, begin, end in zip(firsts, begins, begins[1:])
    ]


def concatenate(parts: list[Features]) -> Features:
    """Puts the features of consecutive chunks together."""
    pieces = np.cumsum([0, *(len(part.piece_begins) for part in parts)])
    shifted = [
        {**vars(part), "first_pieces": part.first_pieces + shift} for part, shift in zip(parts, pieces)
    ]
    return Features(**{name: np.concatenate([part[name] for part in shifted]) for name in shifted[0]})


def make_chunk(chunk: Chunk, tokenizer: Tokenizer, vocabulary: Vocabulary, rules: WindowRules) -> Features:
    """Makes the features of a chunk, whose first piece is number 0."""
    questions = chunk.questions
    has_answer = np.array([chunk.for_training and not question.is_impossible for question in questions], bool)
    answers = [question.answers[0] for question, has in zip(questions, has_answer) if has]
    words, others = tokenize(
        chunk.contexts, [question.text for question in questions] + answers, tokenizer, vocabulary
    )
    queries = [ids[: rules.max_query_length] for ids in others[: len(questions)]]
    contexts = np.array([question.context for question in questions], np.int64) - chunk.first_context
    windows = _Windows.of(questions, contexts, queries, words, rules)
    starts, ends = windows.positions_of(
        *_answer_pieces(questions, contexts, has_answer, others[len(questions) :], words)
    )
    return Features(
        input_ids=_input_ids(windows, queries, words.pieces, vocabulary, rules),
        lengths=(windows.first_lengths + windows.lengths + 1).astype(np.int32),
        first_lengths=windows.first_lengths.astype(np.int32),
        start_positions=starts,
        end_positions=ends,
        is_impossible=np.array([question.is_impossible for question in questions], bool)[windows.questions],
        question_numbers=(windows.questions + chunk.first_question).astype(np.int32),
        first_pieces=windows.first_pieces,
        piece_begins=words.piece_begins,
        piece_ends=words.piece_ends,
    )


@dataclasses.dataclass(frozen=True)
class _Windows:
    """Places of the windows of all questions, int64 [N] each."""

    questions: np.ndarray  # their numbers
    first_lengths: np.ndarray  # tokens before the window
    first_pieces: np.ndarray
    lengths: np.ndarray  # pieces

    @classmethod
    def of(
        cls,
        questions: list[Question],
        contexts: np.ndarray,
        queries: list[np.ndarray],
        words: Words,
        rules: WindowRules,
    ) -> _Windows:
        """Cuts windows of as many pieces as fit beside the question; each begins `doc_stride` pieces behind
        the one before it."""
        query_lengths = np.array([len(query) for query in queries], np.int64)
        pieces = words.text_pieces[contexts + 1] - words.text_pieces[contexts]
        room = rules.max_seq_length - query_lengths - _SPECIAL_TOKENS
        strides = np.minimum(room, rules.doc_stride)
        counts = 1 + np.maximum(0, -(-(pieces - room) // strides))
        counts[(pieces == 0) | np.array([question.is_empty for question in questions], bool)] = 0
        numbers = np.repeat(np.arange(len(questions)), counts)
        shifts = (np.arange(len(numbers)) - np.repeat(np.cumsum(counts) - counts, counts)) * strides[numbers]
        return cls(
            questions=numbers,
            first_lengths=query_lengths[numbers] + 2,
            first_pieces=words.text_pieces[contexts[numbers]] + shifts,
            lengths=np.minimum(room[numbers], pieces[numbers] - shifts),
        )

    def positions_of(self, starts: np.ndarray, ends: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns the tokens, int32 [N], at which a window's answer starts and ends; 0 where it is not all
        inside.

        Args:
          starts, ends: [Q], first and last piece of each answer; a start behind its end for none.
        """
        first, last = (values[self.questions] - self.first_pieces for values in (starts, ends))
        is_inside = (first >= 0) & (first <= last) & (last < self.lengths)
        start, end = (
            np.where(is_inside, values + self.first_lengths, 0).astype(np.int32) for values in (first, last)
        )
        return start, end


def _answer_pieces(
    questions: list[Question],
    contexts: np.ndarray,
    has_answer: np.ndarray,
    answers: list[np.ndarray],
    words: Words,
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the first and the last piece, int64 [Q] each, of the answers; (0, -1) for questions without
    one."""
    starts, ends = np.zeros(len(questions), np.int64), np.full(len(questions), -1)
    with_answer = [question for question, has in zip(questions, has_answer) if has]
    if with_answer:
        begins = np.array([question.answer_starts[0] for question in with_answer])
        lengths = np.array([len(question.answers[0]) for question in with_answer])
        first, last = words.piece_span(contexts[has_answer], begins, lengths)
        improved = [
            words.exact_piece_span(context, *question.exact_span)
            if question.exact_span
            else _improve(words.pieces, *span)
            for question, context, *span in zip(
                with_answer, contexts[has_answer].tolist(), first.tolist(), last.tolist(), answers
            )
        ]
        starts[has_answer], ends[has_answer] = np.array(improved).T
    return starts, ends


def _improve(pieces: np.ndarray, first: int, last: int, answer: np.ndarray) -> tuple[int, int]:
    """Returns the first stretch of the pieces `first` to `last` that is the answer's pieces, or all of them
    without such a stretch.

    Source: https://github.com/google-research/bert, run_squad.py, _improve_answer_span.
    """
    span, wanted = pieces[first : last + 1].tolist(), answer.tolist()
    for begin in range(len(span) - len(wanted) + 1 if wanted else 0):
        if span[begin : begin + len(wanted)] == wanted:
            return first + begin, first + begin + len(wanted) - 1
    return first, last


def _input_ids(
    windows: _Windows,
    queries: list[np.ndarray],
    pieces: np.ndarray,
    vocabulary: Vocabulary,
    rules: WindowRules,
) -> np.ndarray:
    """Returns [N, L], padded with 0 as published, whatever the id of [PAD]."""
    rows = np.zeros((len(windows.lengths), rules.max_seq_length), pieces.dtype)
    rows[:, 0] = vocabulary.id_of("[CLS]")
    separator = vocabulary.id_of("[SEP]")
    for row, question, begin, first, length in zip(
        rows,
        windows.questions.tolist(),
        windows.first_lengths.tolist(),
        windows.first_pieces.tolist(),
        windows.lengths.tolist(),
    ):
        row[1 : begin - 1] = queries[question]
        row[begin - 1] = separator
        row[begin : begin + length] = pieces[first : first + length]
        row[begin + length] = separator
    return rows
