"""Summary of the records of some files, counted in memory that does not grow with them; counts of several
files, or by several processes, add up.

Shapes: N examples, L tokens of an example at most.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from official.data.pretraining.repeats import Repeats, mixed

_HASH_SEED = 7
_ADDED_UP = ("files", "records", "rows", "bytes", "predictions", "masked", "kept", "random_next", "lengths")


@dataclasses.dataclass
class Summary:
    """Counts of the records of some files."""

    record_format: str
    max_seq_length: int
    max_predictions_per_seq: int
    files: int = 0
    records: int = 0  # examples, in whatever way they are written
    rows: int = 0  # records of the files: a packed row or a block of examples is one
    bytes: int = 0
    predictions: int = 0
    masked: int = 0  # of the predictions: [MASK] stands in their place
    kept: int = 0  # the token itself does
    random_next: int = 0
    # [L + 1]: how many records have that many tokens
    lengths: np.ndarray = dataclasses.field(default_factory=lambda: np.zeros(0, np.int64))
    repeated_records: Repeats = dataclasses.field(default_factory=Repeats)
    repeated_texts: Repeats = dataclasses.field(default_factory=Repeats)

    def __post_init__(self):
        if not len(self.lengths):
            self.lengths = np.zeros(self.max_seq_length + 1, np.int64)

    @property
    def tokens(self) -> int:
        return int(self.lengths @ np.arange(len(self.lengths)))

    def shares(self) -> dict[str, float]:
        """Returns the shares that tell data sets apart, from 0 to 1; `median_length` is in tokens."""
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
            "repeated_records": self.repeated_records.share().value,
            "repeated_texts": self.repeated_texts.share().value,
            "median_length": float(np.searchsorted(np.cumsum(self.lengths), self.records / 2)),
        }

    def numbers(self, is_all: bool) -> dict:
        """Returns a data card's entry on the records; `is_all`: all of a job's were counted."""
        names = ("record_format", "max_seq_length", "max_predictions_per_seq", "records", "rows", "files")
        return {
            **{name: getattr(self, name) for name in (*names, "tokens", "predictions")},
            "all": is_all,
            "bytes": self.bytes if is_all else None,
            "shares": self.shares(),
            "repeats": self.repeats(),
            "lengths": self.lengths.tolist(),
        }

    def repeats(self) -> dict:
        """Returns the reliability of the shares of repetitions: whether they are exact, and the standard
        error of each, 0 where they are."""
        found = {name: getattr(self, name).share() for name in ("repeated_records", "repeated_texts")}
        return {
            "exact": all(share.exact for share in found.values()),
            "standard_errors": {name: share.error for name, share in found.items()},
        }

    def add(self, rows: int, values: dict[str, np.ndarray], mask_id: int) -> None:
        """Counts examples.

        Args:
          rows: records that they come from.
          values: {feature: [N, length]} of `schema.pretraining_schema`, checked.
          mask_id: of [MASK]; -1 where it is not known.
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
        weights = _weights(length)
        segments = values["segment_ids"].sum(axis=1).astype(np.uint64)
        text = original.astype(np.uint64) @ weights[:length] + segments * weights[-1]
        chosen = np.zeros(original.shape, np.uint64)
        chosen[row, column] = shown + 1
        self.repeated_texts.add(mixed(text))
        self.repeated_records.add(mixed(text + chosen @ weights[length : 2 * length]))

    def merge(self, other: Summary) -> None:
        """Adds the counts of other files, whose records have the same sizes."""
        for name in _ADDED_UP:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.repeated_records.merge(other.repeated_records)
        self.repeated_texts.merge(other.repeated_texts)

    def save(self, path: str) -> None:
        """Writes all of it to a file (.npz)."""
        arrays: dict[str, Any] = {}  # NumPy 2 has a keyword beside them
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if isinstance(value, Repeats):
                arrays |= {f"{field.name}.{key}": array for key, array in value.to_arrays().items()}
            else:
                arrays[field.name] = np.asarray(value)
        np.savez(path, **arrays)

    @classmethod
    def load(cls, path: str) -> Summary:
        """Returns the summary that `save` wrote."""
        with np.load(path, allow_pickle=False) as arrays:
            found = {name: arrays[name] for name in arrays.files}
        values: dict[str, Any] = {}
        for field in dataclasses.fields(cls):
            parts = {key.partition(".")[2]: found[key] for key in found if key.startswith(f"{field.name}.")}
            value = Repeats.from_arrays(parts) if parts else found[field.name]
            values[field.name] = value.item() if isinstance(value, np.ndarray) and not value.ndim else value
        return cls(**values)


def largest_gap(a: np.ndarray, b: np.ndarray) -> float:
    """Returns the largest distance of two distributions over lengths, 0 to 1 (Kolmogorov and Smirnov), from
    their counts."""
    return float(np.abs(np.cumsum(a) / a.sum() - np.cumsum(b) / b.sum()).max())


def _weights(length: int) -> np.ndarray:
    """Returns [2 L + 1] random factors: of the tokens, of what stands in the places of predicted ones, of the
    second segment's length."""
    return np.random.default_rng(_HASH_SEED).integers(1, 2**63, 2 * length + 1, dtype=np.uint64)
