"""Summary of records, in bounded memory, and examples as readable words."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import numpy as np

from official.data.word_pieces.vocabulary import Vocabulary

# -----------------------------------------------------------------------------------------------------------
# Repetitions
#
# A value is a 64-bit hash. Distinct values below a limit are kept. When too many are kept, the limit is
# halved. It depends only on the set of values, so parts add up to the whole, in any order.


class Repeats:
    """Counts values, and repeated values among them."""

    def __init__(self, most_kept: int = 1 << 20):  # 8 MB
        self._most_kept = most_kept
        self._halvings = 0  # values below 2^(64 - halvings) are kept
        self._values: np.ndarray = np.zeros(0, np.uint64)  # distinct, ascending
        self._new: list[np.ndarray] = []  # not yet in `_values`
        self._waiting = 0  # values in `_new`
        self.total = 0

    def add(self, values: np.ndarray) -> None:
        """Counts values, uint64 [N], which must be random hashes; apply `mixed` to other values first."""
        self.total += len(values)
        self._put_in(self._below_limit(values))

    def merge(self, other: Repeats) -> None:
        """Adds the counts of another counter."""
        self.total += other.total
        self._halvings = max(self._halvings, other._halvings)
        for values in (other._values, *other._new):
            self._put_in(values)
        self._settle()

    def share(self) -> float:
        """Returns the share of values that occurred before. If not all distinct values are kept, their number
        is estimated by that of the kept ones, with a standard error of at most 0.14 %."""
        self._settle()
        distinct = min(len(self._values) << self._halvings, self.total)
        return 1 - distinct / self.total if self.total else 0.0

    def is_exact(self) -> bool:
        """Tells whether all distinct values are kept."""
        self._settle()
        return not self._halvings

    def _below_limit(self, values: np.ndarray) -> np.ndarray:
        return values[values < np.uint64(2 ** (64 - self._halvings))] if self._halvings else values

    def _put_in(self, values: np.ndarray) -> None:
        self._new.append(values)
        self._waiting += len(values)
        if self._waiting > self._most_kept:
            self._settle()

    def _settle(self) -> None:
        """Adds the pending values; halves the limit as often as needed."""
        self._values = self._below_limit(np.unique(np.concatenate([self._values, *self._new])))
        self._new, self._waiting = [], 0
        while len(self._values) > self._most_kept:
            self._halvings += 1
            self._values = self._below_limit(self._values)  # still ascending


def mixed(values: np.ndarray) -> np.ndarray:
    """Hashes 64-bit values one to one, so that every bit depends on every bit of the input.

    Source: the end of SplitMix64; Steele, Lea, Flood, "Fast splittable pseudorandom number generators",
    2014.
    """
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


# -----------------------------------------------------------------------------------------------------------
# Examples as words


class ShownExample(NamedTuple):
    """An example as words.

    Attributes:
      title: place, numbers, and the relation of the second segment, if any, to the first.
      words: (input word piece, word piece to predict or None) of each token.
    """

    title: str
    words: list[tuple[str, str | None]]

    def text(self) -> str:
        """Returns the title and, below it, the words; a predicted word is shown as {word>input token}, or
        {word} if it was kept."""
        marked = [
            word if label is None else f"{{{label}}}" if label == word else f"{{{label}>{word}}}"
            for word, label in self.words
        ]
        return f"{self.title}\n  {' '.join(marked)}"


def example_of(place: str, values: dict[str, np.ndarray], vocabulary: Vocabulary) -> ShownExample:
    """Returns an example as words.

    Args:
      place: the file's name and the number of the record, and of the example in a record of several.
      values: features of the example, {name: [length]}.
    """
    length, count = int(values["input_mask"].sum()), int((values["masked_lm_weights"] > 0).sum())
    labels: list[str | None] = [None] * length
    for position, label in zip(values["masked_lm_positions"][:count], values["masked_lm_ids"]):
        labels[position] = vocabulary.words[label]
    words = [vocabulary.words[token] for token in values["input_ids"][:length]]
    title = f"{place}: {length} tokens, {count} predicted"
    if values["segment_ids"].any():
        relation = "a random one" if values["next_sentence_labels"][0] else "the next one"
        title += f", the second segment is {relation}"
    return ShownExample(title, list(zip(words, labels)))


# -----------------------------------------------------------------------------------------------------------
# Summary
#
# Shapes: N examples, L = maximum number of tokens in an example.


_SHAPE = ("record_format", "max_seq_length", "max_predictions_per_seq")  # the same in all parts


@dataclasses.dataclass
class Summary:
    """Counts of the records of some files."""

    record_format: str
    max_seq_length: int
    max_predictions_per_seq: int
    files: int = 0
    records: int = 0  # examples, in any format
    rows: int = 0  # records of the files; a packed row or a block of examples counts as one
    bytes: int = 0
    predictions: int = 0
    masked: int = 0  # predicted tokens that are replaced by [MASK]
    kept: int = 0  # predicted tokens that are unchanged
    pairs: int = 0  # examples with a second segment
    random_next: int = 0
    # [L + 1]: number of records by their number of tokens
    lengths: np.ndarray = dataclasses.field(init=False)
    repeated_records: Repeats = dataclasses.field(default_factory=Repeats)
    repeated_texts: Repeats = dataclasses.field(default_factory=Repeats)

    def __post_init__(self):
        self.lengths = np.zeros(self.max_seq_length + 1, np.int64)

    @property
    def tokens(self) -> int:
        return int(self.lengths @ np.arange(len(self.lengths)))

    def shares(self) -> dict[str, float]:
        """Returns shares that characterize the data, from 0 to 1; `median_length` is in tokens."""
        slots = self.records * self.max_seq_length
        predictions = max(self.predictions, 1)
        return {
            "padding": 1 - self.tokens / slots,
            "full_length": float(self.lengths[-1] / self.records),
            "predictions_of_tokens": self.predictions / self.tokens,
            "masked": self.masked / predictions,
            "kept": self.kept / predictions,
            "replaced": (self.predictions - self.masked - self.kept) / predictions,
            "random_next": self.random_next / self.records,
            "repeated_records": self.repeated_records.share(),
            "repeated_texts": self.repeated_texts.share(),
            "median_length": float(np.searchsorted(np.cumsum(self.lengths), self.records / 2)),
        }

    def numbers(self, is_all: bool) -> dict:
        """Returns a data card's entry on the records; `is_all`: whether all records of a job were counted."""
        names = (*_SHAPE, "records", "rows", "files", "tokens", "predictions")
        return {
            **{name: getattr(self, name) for name in names},
            "all": is_all,
            "bytes": self.bytes if is_all else None,
            "shares": self.shares(),
            "repeats": self.repeats(),
            "lengths": self.lengths.tolist(),
        }

    def repeats(self) -> dict[str, bool]:
        """Returns whether the shares of repetitions are exact, or estimates."""
        return {"exact": self.repeated_records.is_exact() and self.repeated_texts.is_exact()}

    def add(self, rows: int, values: dict[str, np.ndarray], mask_id: int) -> None:
        """Counts examples.

        Args:
          rows: number of their records.
          values: {feature: [N, length]} of `schema.pretraining_schema`, checked.
          mask_id: id of [MASK]; -1 if unknown.
        """
        used = values["masked_lm_weights"] > 0
        row, slot = np.nonzero(used)
        column, labels = values["masked_lm_positions"][row, slot], values["masked_lm_ids"][row, slot]
        shown = values["input_ids"][row, column]
        self.rows += rows
        self.records += len(used)
        self.predictions += len(row)
        self.masked += int((shown == mask_id).sum())
        self.kept += int((shown == labels).sum())
        self.random_next += int(values["next_sentence_labels"].sum())
        self.lengths += np.bincount(values["input_mask"].sum(axis=1), minlength=len(self.lengths))
        original = values["input_ids"].copy()
        original[row, column] = labels
        length = original.shape[1]
        # Weights of the hash: the tokens, those shown at predicted positions, the second segment's length.

        weights = np.random.default_rng(7).integers(1, 2**63, 2 * length + 1, dtype=np.uint64)
        segments = values["segment_ids"].sum(axis=1).astype(np.uint64)
        self.pairs += int(np.count_nonzero(segments))
        text = original.astype(np.uint64) @ weights[:length] + segments * weights[-1]
        chosen = np.zeros(original.shape, np.uint64)
        chosen[row, column] = shown + 1
        self.repeated_texts.add(mixed(text))
        self.repeated_records.add(mixed(text + chosen @ weights[length : 2 * length]))

    def merge(self, other: Summary) -> None:
        """Adds the counts of other files, whose records have the same sizes."""
        for name, value in vars(other).items():
            if isinstance(value, Repeats):
                getattr(self, name).merge(value)
            elif name not in _SHAPE:
                setattr(self, name, getattr(self, name) + value)

    def save(self, path: str) -> None:
        """Writes the summary to a file (.npz)."""
        arrays: dict[str, Any] = {}
        for name, value in vars(self).items():
            if isinstance(value, Repeats):
                value._settle()
                kept = {key: each for key, each in vars(value).items() if key not in ("_new", "_waiting")}
                arrays |= {f"{name}.{key}": each for key, each in kept.items()}
            else:
                arrays[name] = value
        np.savez(path, **arrays)

    @classmethod
    def load(cls, path: str) -> Summary:
        """Reads a summary, as written by `save`."""
        with np.load(path, allow_pickle=False) as arrays:
            found = {name: arrays[name] for name in arrays.files}
        values = {name: value if value.ndim else value.item() for name, value in found.items()}
        summary = cls(*(values[name] for name in _SHAPE))
        for name, value in values.items():
            owner, dot, key = name.rpartition(".")
            setattr(getattr(summary, owner) if dot else summary, key, value)
        return summary


def largest_gap(a: np.ndarray, b: np.ndarray) -> float:
    """Returns the Kolmogorov-Smirnov distance of two distributions over lengths, 0 to 1, from their
    counts."""
    longest = max(len(a), len(b))
    a, b = (np.pad(counts, (0, longest - len(counts))) for counts in (a, b))
    return float(np.abs(np.cumsum(a) / a.sum() - np.cumsum(b) / b.sum()).max())
