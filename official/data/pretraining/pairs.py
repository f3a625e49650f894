"""Documents -> pairs of segments: the first half of making pre-training examples. No files here, and no
TensorFlow.

Source: the rules of Google's `create_pretraining_data.py`. They go from sentence to sentence; here all
documents that are cut, each as often as it is wanted, go forward together, one pair per step, so that a step
is a few operations on arrays. The longest documents, where few are left, go one after the other.
"""

from __future__ import annotations

import bisect
import dataclasses
import itertools
from collections.abc import Iterator

import numpy as np

from official.data.pretraining.corpus import TokenizedDocuments
from official.io.errors import ConfigError

# Columns of a plan: the first token and the number of tokens of both segments, and whether the second is a
# random one.
A_START, A_LENGTH, B_START, B_LENGTH, IS_RANDOM = range(5)
_SPECIALS_PER_EXAMPLE = 3  # [CLS] A [SEP] B [SEP]
_FEW_LANES = 16  # a step of so many takes as long as that many pairs one by one
_DRAWN = 1024  # numbers at once


@dataclasses.dataclass(frozen=True)
class ExampleRules:
    """Rules for making examples; the fields are the flags of the same names."""

    max_seq_length: int = 128
    max_predictions_per_seq: int = 20
    dupe_factor: int = 10
    masked_lm_prob: float = 0.15
    short_seq_prob: float = 0.1
    do_whole_word_mask: bool = False
    remask: bool = False

    def __post_init__(self):
        """Raises ConfigError for a value out of range."""
        _check(self, "max_seq_length", 8, 2**15)
        _check(self, "max_predictions_per_seq", 1, self.max_seq_length)
        _check(self, "dupe_factor", 1, 2**15)
        _check(self, "masked_lm_prob", 0.0, 1.0)
        _check(self, "short_seq_prob", 0.0, 1.0)
        if self.remask and self.do_whole_word_mask:
            raise ConfigError(
                "--remask needs as many masks as its slots hold, --do_whole_word_mask may choose fewer. Drop"
                " one of the two."
            )
        if self.max_tokens < 8:
            raise ConfigError(
                f"--remask with --max_seq_length={self.max_seq_length} and"
                f" --max_predictions_per_seq={self.max_predictions_per_seq} leaves no room for text. Lower"
                " --max_predictions_per_seq."
            )

    def predictions(self, tokens):
        """Returns the number of predicted tokens for rows of `tokens` tokens, special ones among them.
        Source: Google's rules."""
        return np.clip(
            np.rint(tokens * self.masked_lm_prob).astype(np.int64), 1, self.max_predictions_per_seq
        )

    @property
    def max_tokens(self) -> int:
        """The most tokens of a row. With `remask`, tokens that are not masked have the slots behind
        max_predictions_per_seq only."""
        if not self.remask:
            return self.max_seq_length
        tokens = np.arange(1, self.max_seq_length + 1)
        fits = tokens - self.predictions(tokens) <= self.max_seq_length - self.max_predictions_per_seq
        return int(tokens[fits].max(initial=0))

    @property
    def max_pair_length(self) -> int:
        return self.max_tokens - _SPECIALS_PER_EXAMPLE


def _check(rules: ExampleRules, name: str, minimum, maximum) -> None:
    value = getattr(rules, name)
    if not minimum <= value <= maximum:
        bound = "max_seq_length=" if name == "max_predictions_per_seq" else ""
        raise ConfigError(f"--{name}={value} is out of range. Allowed: {minimum} to {bound}{maximum}.")


def plan_pairs(
    documents: TokenizedDocuments,
    chosen: np.ndarray,
    ranks: np.ndarray,
    rules: ExampleRules,
    rng: np.random.Generator,
) -> np.ndarray:
    """Cuts documents into pairs of segments, half of them with a second segment from another document.

    Sentences are collected up to a target length; the first 1..n-1 of them are segment A. Segment B is the
    rest, or sentences from a random place of another document, in which case the rest is used again for the
    next pair.

    Args:
      documents: those that random second segments come from, two at least.
      chosen: int [K], the documents to cut; one that is there twice is cut twice, in different ways.
      ranks: int [K]; pairs of a lower rank come first, those of one rank in random order.
      rng: all draws come from it.

    Returns:
      int32 [N, 5], columns A_START .. IS_RANDOM.
    """
    if not len(chosen):
        return np.empty((0, 5), np.int32)
    lanes = _Lanes.begin(documents, chosen, rules, rng)
    steps = []
    while len(lanes.number) > _FEW_LANES:
        cuts = lanes.cut(documents.sentence_starts, rng)
        steps.append((lanes, cuts))
        lanes = lanes.advance(np.where(cuts.is_random, cuts.middle, cuts.end))
    steps.append(lanes.cut_to_the_end(documents.sentence_starts, rng))
    lanes, cuts = (_joined(parts) for parts in zip(*steps))
    plan = _plan(lanes, chosen[lanes.number], cuts, documents, rules, rng)
    order = rng.permutation(len(plan))
    return plan[order[np.argsort(ranks[lanes.number[order]], kind="stable")]]


def _joined(parts):
    """Returns one dataclass of arrays for those of many steps."""
    parts = list(parts)
    return type(parts[0])(
        *(
            np.concatenate([getattr(part, field.name) for part in parts])
            for field in dataclasses.fields(parts[0])
        )
    )


@dataclasses.dataclass(frozen=True)
class _Lanes:
    """Positions in the documents that are cut, while they have sentences left; arrays of one length, the
    number of lanes."""

    number: np.ndarray  # of the lane, from 0 to K - 1
    sentence: np.ndarray  # the next one
    end: np.ndarray  # of the document's sentences
    target: np.ndarray  # tokens of a pair

    @classmethod
    def begin(
        cls,
        documents: TokenizedDocuments,
        chosen: np.ndarray,
        rules: ExampleRules,
        rng: np.random.Generator,
    ) -> _Lanes:
        is_short = rng.random(len(chosen)) < rules.short_seq_prob
        short = 2 + _draw(rng, np.full(len(chosen), rules.max_pair_length - 1))
        return cls(
            np.arange(len(chosen)),
            documents.document_starts[chosen],
            documents.document_starts[chosen + 1],
            np.where(is_short, short, rules.max_pair_length),
        )

    def cut(self, sentence_starts: np.ndarray, rng: np.random.Generator) -> _Cuts:
        """Collects sentences up to the target in every lane and draws where segment A ends and whether B is a
        random one."""
        end = _reach(sentence_starts, self.sentence, self.end, self.target)
        count = end - self.sentence
        middle = self.sentence + 1 + _draw(rng, np.maximum(1, count - 1))
        return _Cuts(middle, end, (count == 1) | (rng.random(len(count)) < 0.5))

    def cut_to_the_end(self, sentence_starts: np.ndarray, rng: np.random.Generator) -> tuple[_Lanes, _Cuts]:
        """Cuts as `cut` and `advance` do until no lane is left, lane by lane: for few of them."""
        starts, draws = sentence_starts.tolist(), _draws(rng)
        found: list[tuple] = []
        for number, place in enumerate(zip(self.sentence.tolist(), self.end.tolist(), self.target.tolist())):
            found += _cut_one(number, starts, *place, draws)
        lane, sentence, middle, end, is_random = np.array(found, np.int64).reshape(-1, 5).T
        lanes = _Lanes(self.number[lane], sentence, self.end[lane], self.target[lane])
        return lanes, _Cuts(middle, end, is_random != 0)

    def advance(self, sentence: np.ndarray) -> _Lanes:
        """Returns the lanes that have a sentence left when each goes on with `sentence`."""
        left = sentence < self.end
        return _Lanes(self.number[left], sentence[left], self.end[left], self.target[left])


@dataclasses.dataclass(frozen=True)
class _Cuts:
    """Sentences collected in every lane at a step: from the lane's on up to `end`."""

    middle: np.ndarray  # where segment A ends
    end: np.ndarray
    is_random: np.ndarray


def _draws(rng: np.random.Generator) -> Iterator[float]:
    """Yields random numbers from 0 to 1 without an end."""
    return itertools.chain.from_iterable(rng.random(_DRAWN).tolist() for _ in itertools.count())


def _cut_one(
    lane: int, starts: list[int], sentence: int, last: int, target: int, draws: Iterator[float]
) -> list[tuple[int, int, int, int, bool]]:
    """Returns (lane, sentence, and of `_Cuts` middle, end, is_random) of all pairs of a lane, whose sentences
    end before `last`."""
    found = []
    while sentence < last:
        end = bisect.bisect_left(starts, starts[sentence] + target, sentence + 1, last)
        middle, is_random = sentence + 1, True  # of one sentence, which cannot be divided
        if end - sentence > 1:
            middle += int(next(draws) * (end - sentence - 1))
            is_random = next(draws) < 0.5
        found.append((lane, sentence, middle, end, is_random))
        sentence = middle if is_random else end
    return found


def _draw(rng: np.random.Generator, count: np.ndarray) -> np.ndarray:
    """Returns a whole number from 0 to count - 1 for each element."""
    return (rng.random(len(count)) * count).astype(np.int64)


def _plan(
    lanes: _Lanes,
    document: np.ndarray,
    cuts: _Cuts,
    documents: TokenizedDocuments,
    rules: ExampleRules,
    rng: np.random.Generator,
) -> np.ndarray:
    """Makes a pair of each cut, whose document is `document`. Returns int32 [N, 5].

    What is drawn here has no bearing on the next cut, so that it waits until all are made.
    """
    starts = documents.sentence_starts
    a_start, a_end = starts[lanes.sentence], starts[cuts.middle]
    random_start, random_end = _random_segments(documents, document, lanes.target - (a_end - a_start), rng)
    b_start, b_end = (
        np.where(cuts.is_random, random_start, a_end),
        np.where(cuts.is_random, random_end, starts[cuts.end]),
    )
    a_length, b_length = kept_lengths(a_end - a_start, b_end - b_start, rules.max_pair_length)
    a_start = a_start + rng.binomial(
        a_end - a_start - a_length, 0.5
    )  # what is cut is cut token by token at the front or the back
    b_start = b_start + rng.binomial(b_end - b_start - b_length, 0.5)
    return np.stack([a_start, a_length, b_start, b_length, cuts.is_random], axis=1).astype(np.int32)


def _reach(starts: np.ndarray, sentence: np.ndarray, last: np.ndarray, target: np.ndarray) -> np.ndarray:
    """Returns the end of the shortest run of sentences from `sentence` on with `target` tokens or more,
    `last` at most."""
    return np.minimum(
        np.maximum(np.searchsorted(starts, starts[sentence] + target), sentence + 1), last
    )  # a third of np.clip's time


def _random_segments(
    documents: TokenizedDocuments, document: np.ndarray, target: np.ndarray, rng: np.random.Generator
):
    """Returns ranges of at least `target` tokens, where there are so many, from random places of other
    documents than `document`."""
    other = _draw(rng, np.full(len(document), documents.num_documents - 1))
    other += other >= document
    first, last = documents.document_starts[other], documents.document_starts[other + 1]
    start = first + _draw(rng, last - first)
    end = _reach(documents.sentence_starts, start, last, np.maximum(1, target))
    return documents.sentence_starts[start], documents.sentence_starts[end]


def kept_lengths(
    a_length: np.ndarray, b_length: np.ndarray, max_length: int
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the lengths of two segments once the longer one (of equals: B) has lost tokens until they fit
    together."""
    half_a, half_b = (max_length + 1) // 2, max_length // 2
    a_kept = np.minimum(a_length, np.maximum(half_a, max_length - b_length))
    b_kept = np.minimum(b_length, np.maximum(half_b, max_length - a_length))
    return a_kept, b_kept
