"""Makes examples from documents in memory: pairs of segments with masks, or rows of text without."""

from __future__ import annotations

import bisect
import dataclasses
import itertools
from collections.abc import Iterable, Iterator
from typing import NamedTuple, cast

import numpy as np
from numpy.random import Generator

from official.data.rows import ragged
from official.data.word_pieces.vocabulary import Vocabulary
from official.io.errors import ConfigError

# -----------------------------------------------------------------------------------------------------------
# Documents


@dataclasses.dataclass(frozen=True)
class TokenizedDocuments:
    """Documents as one array of ids: T tokens, S sentences, D documents.

    Sentence s is tokens[sentence_starts[s]:sentence_starts[s + 1]] and never empty; document d has the
    sentences from document_starts[d] up to document_starts[d + 1], at least one.
    """

    tokens: np.ndarray  # [T] uint16, or int32 for vocabularies above 65,536 words
    sentence_starts: np.ndarray  # [S + 1] int64
    document_starts: np.ndarray  # [D + 1] int64

    @property
    def num_documents(self) -> int:
        return len(self.document_starts) - 1

    @property
    def num_sentences(self) -> int:
        return len(self.sentence_starts) - 1

    def token_starts(self) -> np.ndarray:
        """Returns int64 [D + 1]: the first token of each document, and T."""
        return self.sentence_starts[self.document_starts]

    def content(self, document: int) -> tuple[np.ndarray, np.ndarray]:
        """Returns the tokens of a document, and the lengths of its sentences."""
        first, end = self.document_starts[document : document + 2]
        starts = self.sentence_starts[first : end + 1]
        return self.tokens[starts[0] : starts[-1]], np.diff(starts)

    def take(self, order: np.ndarray) -> TokenizedDocuments:
        """Returns the documents with these numbers, in this order."""
        lengths = ragged.take(np.diff(self.sentence_starts), self.document_starts, order)
        tokens = ragged.take(self.tokens, self.token_starts(), order)
        sentences = np.diff(self.document_starts)[order]
        return TokenizedDocuments(tokens, ragged.offsets(lengths), ragged.offsets(sentences))


def from_sentences(tokens: np.ndarray, lengths: np.ndarray, documents: np.ndarray) -> TokenizedDocuments:
    """Makes documents from the lengths of sentences. Empty sentences and documents are left out.

    Args:
      tokens: [T] ids of all sentences.
      lengths: [S] number of ids of each sentence, 0 allowed.
      documents: [S] number of the document of each sentence, ascending.
    """
    documents, lengths = documents[lengths > 0], lengths[lengths > 0]
    starts = np.append(np.flatnonzero(np.diff(documents, prepend=-1)), len(documents))
    return TokenizedDocuments(tokens, ragged.offsets(lengths), starts)


def concatenate(parts: Iterable[TokenizedDocuments]) -> TokenizedDocuments:
    """Concatenates documents, at least one part."""
    parts = list(parts)
    tokens = np.concatenate([part.tokens for part in parts])
    lengths = np.concatenate([np.diff(part.sentence_starts) for part in parts])
    sentences = np.concatenate([np.diff(part.document_starts) for part in parts])
    return TokenizedDocuments(tokens, ragged.offsets(lengths), ragged.offsets(sentences))


# -----------------------------------------------------------------------------------------------------------
# Examples
#
# Shapes: N examples, L = max_seq_length, P = max_predictions_per_seq.


@dataclasses.dataclass(frozen=True)
class Examples:
    """[CLS] A [SEP] B [SEP] and padding, masked, or [CLS] text [SEP] and padding, without masks. Slots beyond
    a row's predictions hold 0."""

    input_ids: np.ndarray  # [N, L] uint16 or int32: ids after masking; the id of [PAD] beyond `lengths`
    lengths: np.ndarray  # [N] int: tokens, including the special ones
    first_lengths: np.ndarray  # [N] int: tokens of [CLS] A [SEP], whose segment id is 0
    positions: np.ndarray  # [N, P] int: positions of the predicted tokens, ascending; 0 beyond `predictions`
    labels: np.ndarray  # [N, P] int: the tokens at these positions before masking; 0 beyond `predictions`
    predictions: np.ndarray  # [N] int: number of predicted tokens, 1 to P; 0 for texts
    is_random: np.ndarray  # [N] bool: whether B is a random segment

    def __len__(self) -> int:
        return len(self.lengths)

    def pad_id(self) -> int:
        """Returns the id of padding; 0 if every row is full."""
        rows = np.flatnonzero(self.lengths < self.input_ids.shape[1])[:1]
        return int(self.input_ids[rows, self.lengths[rows]].sum())

    def features(self) -> dict[str, np.ndarray]:
        """Returns {feature of `schema.pretraining_schema`: array [N, length]}, integers of any width."""
        column_L = np.arange(self.input_ids.shape[1])
        is_token_NL = column_L < self.lengths[:, None]
        is_used_NP = np.arange(self.positions.shape[1]) < self.predictions[:, None]
        return {
            "input_ids": self.input_ids,
            "input_mask": is_token_NL.astype(np.uint8),
            "segment_ids": (is_token_NL & (column_L >= self.first_lengths[:, None])).astype(np.uint8),
            "masked_lm_positions": self.positions,
            "masked_lm_ids": self.labels,
            "masked_lm_weights": is_used_NP.astype(np.float32),
            "next_sentence_labels": self.is_random[:, None].astype(np.uint8),
        }


# -----------------------------------------------------------------------------------------------------------
# Rules


# Defaults of unset fields: (for pairs, for texts).
_UNSET: dict[str, tuple[float, float]] = {
    "max_predictions_per_seq": (20, 0),
    "dupe_factor": (10, 1),
    "masked_lm_prob": (0.15, 0.0),
    "short_seq_prob": (0.1, 0.0),
}


@dataclasses.dataclass(frozen=True)
class ExampleRules:
    """Rules for making examples; the fields are the flags of the same names."""

    max_seq_length: int = 128
    # None: the defaults in `_UNSET`.
    max_predictions_per_seq: int = cast(int, None)
    dupe_factor: int = cast(int, None)
    masked_lm_prob: float = cast(float, None)
    short_seq_prob: float = cast(float, None)
    do_whole_word_mask: bool = False
    remask: bool = False
    objective: str = "mlm_nsp"  # pairs; "mlm": texts

    def __post_init__(self):
        """Fills in defaults. Raises ConfigError for a value that is out of range or does not apply to
        texts."""
        for name, of_each in _UNSET.items():
            if getattr(self, name) is None:
                object.__setattr__(self, name, of_each[not self.has_pairs])
        if not self.has_pairs:
            without = {name: of_each[1] for name, of_each in _UNSET.items() if name != "dupe_factor"}
            for name, value in {**without, "do_whole_word_mask": False, "remask": False}.items():
                if getattr(self, name) != value:
                    problem = f"--{name}={getattr(self, name)} does not go with --objective=mlm"
                    why = "its rows are full of text, without masks, which bert train draws (--mask_share)"
                    raise ConfigError(f"{problem}: {why}. Drop --{name}.")
        ranges = {
            "max_seq_length": (8, 2**15),
            "max_predictions_per_seq": (int(self.has_pairs), self.max_seq_length),
            "dupe_factor": (1, 2**15),
            "masked_lm_prob": (0.0, 1.0),
            "short_seq_prob": (0.0, 1.0),
        }
        for name, (minimum, maximum) in ranges.items():
            value = getattr(self, name)
            if not minimum <= value <= maximum:
                of = "max_seq_length=" if name == "max_predictions_per_seq" else ""
                raise ConfigError(f"--{name}={value} is out of range. Allowed: {minimum} to {of}{maximum}.")
        if self.remask and self.do_whole_word_mask:
            why = "--remask needs as many masks as its slots hold, --do_whole_word_mask may choose fewer"
            raise ConfigError(f"{why}. Drop one of the two.")
        if self.max_tokens < 8:
            names = ("max_seq_length", "max_predictions_per_seq")
            given = " and ".join(f"--{name}={getattr(self, name)}" for name in names)
            raise ConfigError(f"--remask with {given} leaves no room for text. Lower --{names[1]}.")

    def predictions(self, tokens):
        """Returns the number of predicted tokens for rows of `tokens` tokens, including special ones.
        Source: Google's rules."""
        wanted = np.rint(tokens * self.masked_lm_prob).astype(np.int64)
        return np.clip(wanted, 1, self.max_predictions_per_seq)

    @property
    def max_tokens(self) -> int:
        """Maximum number of tokens in a row. With `remask`, unmasked tokens can only use the slots after
        max_predictions_per_seq."""
        if not self.remask:
            return self.max_seq_length
        tokens = np.arange(1, self.max_seq_length + 1)
        fits = tokens - self.predictions(tokens) <= self.max_seq_length - self.max_predictions_per_seq
        return int(tokens[fits].max(initial=0))

    @property
    def has_pairs(self) -> bool:
        return self.objective == "mlm_nsp"

    @property
    def special_tokens(self) -> int:
        """Number of special tokens in a row: [CLS] A [SEP] B [SEP], or [CLS] A [SEP]."""
        return 3 if self.has_pairs else 2

    @property
    def max_text_length(self) -> int:
        """Maximum number of tokens in a row, excluding the special ones."""
        return self.max_tokens - self.special_tokens


# Columns of a plan: the first token and the number of tokens of both segments, and whether the second one is
# random. The second segment of a text has no tokens.
A_START, A_LENGTH, B_START, B_LENGTH, IS_RANDOM = range(5)


class Plan(NamedTuple):
    """Examples as slices of documents.

    Attributes:
      documents: documents that the examples are cut from.
      rows: int32 [N, 5], columns A_START .. IS_RANDOM.
    """

    documents: TokenizedDocuments
    rows: np.ndarray

    def part(self, first: int, end: int) -> Plan:
        """Returns the examples from `first` up to `end`."""
        return self._replace(rows=self.rows[first:end])


def plan_examples(
    documents: TokenizedDocuments,
    chosen: np.ndarray,
    ranks: np.ndarray,
    words: Vocabulary,
    rules: ExampleRules,
    rng: Generator,
) -> Plan:
    """Cuts documents into pairs, or joins them and cuts the result into rows, depending on the objective; see
    `plan_pairs` and `plan_texts`.

    Args:
      documents: source of the examples and of random second segments; at least two for pairs, one for texts.
      chosen: int [K], the documents to cut; one that occurs twice is cut twice.
      ranks: int [K]; examples of a lower rank come first, and equal ranks are in random order.
      words: the vocabulary.
      rng: source of all draws.
    """
    if not len(chosen):
        return Plan(documents, np.empty((0, 5), np.int32))
    if rules.has_pairs:
        return Plan(documents, plan_pairs(documents, chosen, ranks, rules, rng))
    return plan_texts(documents, chosen, ranks, words.special_ids.sep, rules, rng)


def _in_order(plan: np.ndarray, ranks: np.ndarray, rng: Generator) -> np.ndarray:
    """Returns the examples of a plan in the order of their ranks, equal ranks in random order."""
    order = rng.permutation(len(plan))
    return plan[order[np.argsort(ranks[order], kind="stable")]]


# -----------------------------------------------------------------------------------------------------------
# Texts
#
# Source: FULL-SENTENCES of RoBERTa (Liu et al., 2019, section 4.2), but rows are full: a sentence that does
# not fit continues in the next row.


def plan_texts(
    documents: TokenizedDocuments,
    chosen: np.ndarray,
    ranks: np.ndarray,
    separator: int,
    rules: ExampleRules,
    rng: Generator,
) -> Plan:
    """Joins documents in the order of ranks, equal ranks in random order, and cuts the result into full rows;
    arguments as of `plan_examples`.

    A separator, the id of [SEP], is put between two documents; one at the end of a row is merged with the
    row's own [SEP]. So each token is in one row, and all rows are full except the last one, and those where a
    document ends one token too early, which are a token short.
    """
    order = rng.permutation(len(chosen))
    order = order[np.argsort(ranks[order], kind="stable")]
    laid = documents.take(chosen[order])
    ends_D = laid.token_starts()[1:]
    tokens = np.insert(laid.tokens, ends_D[:-1], separator)
    separators = ends_D[:-1] + np.arange(len(ends_D) - 1)  # their positions
    starts, lengths = _cut(len(tokens), {*separators.tolist()}, rules.max_text_length)
    rows = np.zeros((len(starts), 5), np.int32)
    rows[:, A_START], rows[:, A_LENGTH] = starts, lengths
    all_of_it = TokenizedDocuments(tokens, np.array([0, len(tokens)]), np.array([0, 1]))
    rank_N = ranks[order][np.searchsorted(separators, rows[:, A_START])]
    return Plan(all_of_it, _in_order(rows, rank_N, rng))


def _cut(count: int, separators: set[int], most: int) -> tuple[list[int], list[int]]:
    """Cuts `count` tokens into rows of `most`; returns the first token and the length of each row."""
    starts, lengths, begin = [], [], 0
    while begin < count:
        end = min(begin + most, count)
        is_behind = end in separators  # merged with the row's own [SEP]
        is_last = end - 1 in separators
        starts.append(begin)
        lengths.append(end - begin - is_last)
        begin = end + is_behind
    return starts, lengths


# -----------------------------------------------------------------------------------------------------------
# Pairs
#
# Source: the rules of Google's `create_pretraining_data.py`. That program goes from sentence to sentence;
# here all documents to cut, one lane per copy, advance together, one pair per step, so that a step is a few
# array operations. When few lanes are left, those of the longest documents, they are cut one by one.


_FEW_LANES = 16  # a step of this many lanes takes as long as cutting as many pairs one by one


def plan_pairs(
    documents: TokenizedDocuments, chosen: np.ndarray, ranks: np.ndarray, rules: ExampleRules, rng: Generator
) -> np.ndarray:
    """Cuts documents into pairs of segments, half of them with a second segment from another document;
    arguments as of `plan_examples`. A document that occurs twice is cut in different ways.

    Sentences are collected up to a target length; the first 1..n-1 of them are segment A. Segment B is the
    rest, or sentences from a random position of another document; then the rest is used for the next pair.
    """
    starts = documents.sentence_starts
    # Target length of each lane's pairs: as many tokens as fit, or for some documents a random number from 2.
    is_short = rng.random(len(chosen)) < rules.short_seq_prob
    short = 2 + _draw(rng, np.full(len(chosen), rules.max_text_length - 1))
    targets = np.where(is_short, short, rules.max_text_length)
    # State of the lanes with sentences left: number, next sentence, end of the document's sentences, target.
    lane: np.ndarray = np.arange(len(chosen))
    sentence, last, target = documents.document_starts[chosen], documents.document_starts[chosen + 1], targets
    steps: list[tuple] = []
    while len(lane) > _FEW_LANES:
        end = _reach(starts, sentence, last, target)
        count = end - sentence
        middle = sentence + 1 + _draw(rng, np.maximum(1, count - 1))  # end of segment A
        is_random = (count == 1) | (rng.random(len(count)) < 0.5)
        steps.append((lane, sentence, middle, end, is_random))
        following = np.where(is_random, middle, end)
        left = following < last
        lane, sentence, last, target = (each[left] for each in (lane, following, last, target))
    # An endless stream of random numbers from 0 to 1.
    draws = itertools.chain.from_iterable(rng.random(1024).tolist() for _ in itertools.count())
    all_starts = starts.tolist()
    few: list[tuple] = []
    for place in zip(*(each.tolist() for each in (lane, sentence, last, target))):
        few += _cut_one(all_starts, draws, *place)
    steps.append(tuple(np.array(few, np.int64).reshape(-1, 5).T))
    lane, sentence, middle, end, is_random = map(np.concatenate, zip(*steps))
    # The draws below do not affect the next cut.
    a_start, a_end = starts[sentence], starts[middle]
    # Sentences of at least `wanted` tokens, if there are so many, from random positions of other documents.
    wanted = np.maximum(1, targets[lane] - (a_end - a_start))
    other = _draw(rng, np.full(len(lane), documents.num_documents - 1))
    other += other >= chosen[lane]
    first, behind = documents.document_starts[other], documents.document_starts[other + 1]
    first = first + _draw(rng, behind - first)
    random = starts[first], starts[_reach(starts, first, behind, wanted)]
    b_start, b_end = np.where(is_random, random, (a_end, starts[end]))
    a_length, b_length = kept_lengths(a_end - a_start, b_end - b_start, rules.max_text_length)
    # Truncation removes one token at a time, at the front or the back.
    a_start = a_start + rng.binomial(a_end - a_start - a_length, 0.5)
    b_start = b_start + rng.binomial(b_end - b_start - b_length, 0.5)
    plan = np.stack([a_start, a_length, b_start, b_length, is_random], axis=1).astype(np.int32)
    return _in_order(plan, ranks[lane], rng)


def _cut_one(starts: list[int], draws: Iterator[float], lane: int, sentence: int, last: int, target: int):
    """Yields (lane, first sentence, end of segment A, end of the sentences, whether B is random) of all pairs
    of a lane, whose sentences end before `last`."""
    while sentence < last:
        end = bisect.bisect_left(starts, starts[sentence] + target, sentence + 1, last)
        middle, is_random = sentence + 1, True  # one sentence cannot be divided
        if end - sentence > 1:
            middle += int(next(draws) * (end - sentence - 1))
            is_random = next(draws) < 0.5
        yield lane, sentence, middle, end, is_random
        sentence = middle if is_random else end


def _draw(rng: Generator, count: np.ndarray) -> np.ndarray:
    """Returns a random whole number from 0 to count - 1 for each element."""
    return (rng.random(len(count)) * count).astype(np.int64)


def _reach(starts: np.ndarray, sentence: np.ndarray, last: np.ndarray, target: np.ndarray) -> np.ndarray:
    """Returns the end of the shortest run of sentences from `sentence` on with at least `target` tokens, or
    `last`."""
    end = np.maximum(np.searchsorted(starts, starts[sentence] + target), sentence + 1)
    return np.minimum(end, last)  # a third of np.clip's time


def kept_lengths(a: np.ndarray, b: np.ndarray, max_length: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns the lengths of two segments after truncation: the longer one (of equals: B) loses tokens until
    both fit."""
    a_kept = np.minimum(a, np.maximum((max_length + 1) // 2, max_length - b))
    return a_kept, np.minimum(b, np.maximum(max_length // 2, max_length - a))


# -----------------------------------------------------------------------------------------------------------
# Masks
#
# Source: the rules of Google's `create_pretraining_data.py`; whole words as its `--do_whole_word_mask`.
#
# Shapes: N examples, L = max_seq_length, P = max_predictions_per_seq, T = maximum number of text tokens in a
# row, W words.


def build_examples(plan: Plan, words: Vocabulary, rules: ExampleRules, rng: Generator) -> Examples:
    """Makes the examples of a plan; pairs are masked, with all draws from `rng`."""
    documents, rows = plan
    input_ids_NL = _assemble(rows, documents.tokens, words, rules)
    a_length_N, text_N = rows[:, A_LENGTH], rows[:, A_LENGTH] + rows[:, B_LENGTH]
    lengths_N = text_N + rules.special_tokens
    masks = _mask(input_ids_NL, plan, words, rules, rng) if rules.has_pairs else _no_masks(len(rows))
    positions_NP, labels_NP, predictions_N = masks
    return Examples(
        input_ids=input_ids_NL,
        lengths=lengths_N,
        first_lengths=a_length_N + 2,
        positions=positions_NP,
        labels=labels_NP,
        predictions=predictions_N,
        is_random=rows[:, IS_RANDOM] != 0,
    )


def _no_masks(rows: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    empty_NP = np.zeros((rows, 0), np.int32)
    return empty_NP, empty_NP, np.zeros(rows, np.int64)


def _mask(
    input_ids_NL: np.ndarray, plan: Plan, words: Vocabulary, rules: ExampleRules, rng: Generator
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Masks rows in place. Returns `positions`, `labels` and `predictions` of `Examples`."""
    documents, rows = plan
    a_length_N, text_N = rows[:, A_LENGTH], rows[:, A_LENGTH] + rows[:, B_LENGTH]
    wanted_N = np.minimum(rules.predictions(text_N + rules.special_tokens), text_N)
    if rules.do_whole_word_mask:
        # Whether the n-th token of the text continues the word of the previous token, in the same sentence.
        text_column = np.arange(text_N.max())
        column = np.minimum(_column(text_column, a_length_N[:, None]), rules.max_seq_length - 1)
        continues_NT = words.continuations()[np.take_along_axis(input_ids_NL, column, axis=1)]
        continues_NT &= (text_column != a_length_N[:, None]) & (text_column > 0)
        begins = np.zeros(len(documents.tokens) + 1, bool)
        begins[documents.sentence_starts] = True
        second_N1 = (rows[:, B_START] - a_length_N)[:, None]
        token_NT = text_column + np.where(
            text_column < a_length_N[:, None], rows[:, A_START, None], second_N1
        )
        continues_NT &= ~begins[np.minimum(token_NT, len(documents.tokens))]
        chosen_NT = _choose_words(continues_NT, text_N, wanted_N, rng)
    else:
        chosen_NT = _choose_tokens(text_N, wanted_N, rng)
    # One index for both axes: numpy is twice as fast with it.
    row, text_column = np.divmod(np.flatnonzero(chosen_NT), chosen_NT.shape[1])  # row by row, ascending
    column = _column(text_column, a_length_N[row])
    place, predictions_N = row * rules.max_seq_length + column, np.bincount(row, minlength=len(rows))
    slot = ragged.ranges(np.arange(len(rows)) * rules.max_predictions_per_seq, predictions_N)
    positions_NP, labels_NP = np.zeros((2, len(rows), rules.max_predictions_per_seq), np.int32)
    labels = input_ids_NL.ravel()[place]
    positions_NP.ravel()[slot], labels_NP.ravel()[slot] = column, labels
    # Of the predicted tokens 80 % are masked, 10 % stay, 10 % become a random word.
    fate = rng.random(len(labels))
    other = np.where(fate < 0.9, labels, rng.integers(words.size, size=len(labels)))
    input_ids_NL.ravel()[place] = np.where(fate < 0.8, words.special_ids.mask, other)
    return positions_NP, labels_NP, predictions_N


def _assemble(
    plan: np.ndarray, tokens: np.ndarray, vocabulary: Vocabulary, rules: ExampleRules
) -> np.ndarray:
    """Lays out [CLS] A [SEP] B [SEP], or [CLS] A [SEP], and padding. Returns ids [N, L] of the type of
    `tokens`."""
    first_sep_N = 1 + plan[:, A_LENGTH]
    second_sep_N = first_sep_N + rules.special_tokens - 2 + plan[:, B_LENGTH]  # for texts the first one
    column_L = np.arange(rules.max_seq_length, dtype=np.int32)
    shift_N1 = (plan[:, B_START] - first_sep_N - 1)[:, None]
    shift_NL = np.where(column_L <= first_sep_N[:, None], plan[:, A_START, None] - 1, shift_N1)
    # A separator and the padding fill the rest of the row.
    input_ids_NL = np.take(tokens, shift_NL + column_L, mode="clip")
    input_ids_NL[column_L > second_sep_N[:, None]] = vocabulary.special_ids.pad
    row_N = np.arange(len(plan))
    input_ids_NL[:, 0] = vocabulary.special_ids.cls
    input_ids_NL[row_N, first_sep_N] = input_ids_NL[row_N, second_sep_N] = vocabulary.special_ids.sep
    return input_ids_NL


def _column(text_column: np.ndarray, a_length: np.ndarray) -> np.ndarray:
    """Returns the position in a row of the n-th token of its text, A and B without special tokens."""
    return text_column + 1 + (text_column >= a_length)


def _choose_tokens(text_N: np.ndarray, wanted_N: np.ndarray, rng: Generator) -> np.ndarray:
    """Chooses wanted_N of the text_N tokens of each row, all subsets being equally likely. Returns bool
    [N, T].

    Source: Robert Floyd's algorithm (J. Bentley, "A Sample of Brilliance", CACM 1987), for all rows at once.
    """
    rows, spare = np.arange(len(text_N)), text_N.max()
    chosen = np.zeros((len(text_N), spare + 1), bool)  # rows with enough tokens choose the spare column
    for number in range(wanted_N.max()):
        last_N = text_N - wanted_N + number
        drawn_N = (rng.random(len(rows)) * (last_N + 1)).astype(np.int64)
        taken_N = np.where(chosen[rows, np.minimum(drawn_N, spare)], last_N, drawn_N)
        chosen[rows, np.where(number < wanted_N, taken_N, spare)] = True
    return chosen[:, :spare]


def _choose_words(continues_NT: np.ndarray, text_N: np.ndarray, wanted_N: np.ndarray, rng) -> np.ndarray:
    """Chooses whole words in random order, skipping words with which there would be more than wanted_N
    tokens. Returns bool [N, T].

    Args:
      continues_NT: whether a token continues the word of the previous one.
    """
    is_text_NT = np.arange(continues_NT.shape[1]) < text_N[:, None]
    word_NT = np.cumsum(~continues_NT, axis=1) - 1
    row_N = np.arange(len(text_N))
    size_NW = np.zeros(continues_NT.shape, np.int64)
    np.add.at(size_NW, (np.nonzero(is_text_NT)[0], word_NT[is_text_NT]), 1)
    order_NW = np.argsort(np.where(size_NW > 0, rng.random(size_NW.shape), np.inf), axis=1)
    taken_N, chosen_NW = np.zeros_like(wanted_N), np.zeros(size_NW.shape, bool)
    for word_N in order_NW.T:
        size_N = size_NW[row_N, word_N]
        fits_N = (size_N > 0) & (taken_N + size_N <= wanted_N)
        chosen_NW[row_N, word_N] = fits_N
        taken_N += np.where(fits_N, size_N, 0)
        if np.array_equal(taken_N, wanted_N):
            break
    return np.take_along_axis(chosen_NW, word_NT, axis=1) & is_text_NT
