"""Looks at records of pre-training data: checks and counts all of them, and shows examples as text."""

import dataclasses
import itertools
import os
from collections.abc import Iterable, Iterator

import numpy as np
import tensorflow as tf

from official.config import ConfigError
from official.data.records import record_files, record_formats, schema
from official.data.word_pieces.vocabulary import Vocabulary
from official.io import files

_HASH_SEED = 7


@dataclasses.dataclass
class Summary:
    """What the records of some files hold."""

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
    record_hashes: list = dataclasses.field(default_factory=list)  # uint64 arrays
    text_hashes: list = dataclasses.field(default_factory=list)

    @property
    def tokens(self) -> int:
        return int(self.lengths @ np.arange(len(self.lengths)))

    def shares(self) -> dict[str, float]:
        """Returns what tells data sets apart, as numbers from 0 to 1; `median_length` is in tokens."""
        slots = self.records * self.max_seq_length
        return {
            "padding": 1 - self.tokens / slots,
            "full_length": float(self.lengths[-1] / self.records),
            "predictions_of_tokens": self.predictions / self.tokens,
            "masked": self.masked / self.predictions,
            "kept": self.kept / self.predictions,
            "replaced": 1 - (self.masked + self.kept) / self.predictions,
            "random_next": self.random_next / self.records,
            "repeated_records": _repeated(self.record_hashes),
            "repeated_texts": _repeated(self.text_hashes),
            "median_length": float(np.searchsorted(np.cumsum(self.lengths), self.records / 2)),
        }


def _repeated(hashes: list[np.ndarray]) -> float:
    """Returns the share of the values that another one before them has."""
    values = np.concatenate(hashes)
    return 1 - len(np.unique(values)) / len(values)


def largest_gap(a: np.ndarray, b: np.ndarray) -> float:
    """Returns the largest distance of two distributions over lengths, 0 to 1 (Kolmogorov and Smirnov), from
    their counts."""
    return float(np.abs(np.cumsum(a) / a.sum() - np.cumsum(b) / b.sum()).max())


def summarize(paths: list[str], vocabulary: Vocabulary | None) -> Summary:
    """Reads and checks every record.

    Args:
      paths: TFRecord files of one format and shape.
      vocabulary: where it is known; ids are checked against its size, and the shares of masked and kept
        tokens need it.

    Raises:
      ConfigError: naming file, number and fault of the first record that departs from the schema.
    """
    kind, features = describe_first(paths[0], vocabulary)
    length, predictions = features["input_ids"].length, features["masked_lm_ids"].length
    summary = Summary(kind, length, predictions, files=len(paths), lengths=np.zeros(length + 1, np.int64))
    weights = np.random.default_rng(_HASH_SEED).integers(1, 2**63, 2 * length + 1, dtype=np.uint64)
    for path in paths:
        summary.bytes += files.sizes([path])[0]
        for count, values in read_checked(path, kind, features):
            summary.rows += count
            _count(summary, values, vocabulary, weights)
    return summary


def read_checked(path: str, kind: str, features: dict) -> Iterator[tuple[int, dict[str, np.ndarray]]]:
    """Yields the records of a file, some at a time: how many they are, and {name: [N, length]} of their N
    examples.

    Args:
      path: TFRecord file.
      kind, features: as `describe_first` returns them.

    Raises:
      ConfigError: as `summarize` does.
    """
    first = 1
    for batch in record_files.read_batches(path, kind):
        yield len(batch), _parse(path, first, batch, features, kind)
        first += len(batch)


def find_fault(paths: list[str]) -> str | None:
    """Reads files of one format until a record is wrong; returns a line that names the file, the record and
    its fault, or None."""
    try:
        for path in paths:
            for _ in read_checked(path, *describe_first(path, None)):
                pass
    except ConfigError as error:
        return str(error).removesuffix(".")
    return None


def describe_first(path: str, vocabulary: Vocabulary | None) -> tuple[str, dict]:
    """Returns the format and the schema of a file's first record. Raises ConfigError where there is none that
    is known."""
    detected = record_files.detect_format([path])
    record = next((batch[0] for batch in record_files.read_batches(path, detected, limit=1)), None)
    kind = record_formats.detect_format(record) if record and detected == "plain" else detected
    if record is None or kind is None:
        raise ConfigError(
            f"{path}, record 1:"
            f" {'there is none' if record is None else 'it is no record of pre-training data'}. Expected the"
            f" formats {', '.join(record_formats.FORMATS)}."
        )
    features = schema.pretraining_schema(
        *record_files.sizes_of(path, kind, record), vocabulary.size if vocabulary else None
    )
    return kind, {
        name: dataclasses.replace(feature, dtype=feature.disk_dtype) for name, feature in features.items()
    }  # nothing is cut to 32 bits


def _parse(path: str, first: int, batch: list[bytes], features: dict, kind: str) -> dict[str, np.ndarray]:
    """Returns the features of a batch. Raises ConfigError for its first bad record."""
    try:
        values = {
            name: value.numpy()
            for name, value in record_formats.parse_records(tf.constant(batch), features, kind).items()
        }
        suspect = bool(_faults(values, features).any())
    # TensorFlow cannot hand over a message that quotes a record's bytes.
    except (tf.errors.OpError, UnicodeDecodeError):
        suspect = True
    if not suspect:
        return values
    for number, record in enumerate(batch, first):
        fault = record_formats.describe_mismatch(record, features, kind) or _describe_faults(
            record, features, kind
        )
        if fault:
            raise ConfigError(f"{path}, record {number}: {fault}.")
    return values


_FAULTS = (
    "values are out of range",
    "input_mask is not ones and then zeros",
    "segment_ids are not zeros, ones, and zeros on the padding",
    "masked_lm_weights are not ones and then zeros",
    "masked_lm_positions are not ascending places of tokens",
)


def _faults(values: dict[str, np.ndarray], features: dict) -> np.ndarray:
    """Returns bool [N, len(_FAULTS)]."""
    mask, segments, used = values["input_mask"], values["segment_ids"], values["masked_lm_weights"] > 0
    length, count = mask.sum(axis=1), used.sum(axis=1)
    positions = np.where(used, values["masked_lm_positions"], length[:, None] + np.arange(used.shape[1]))
    out_of_range = np.zeros(len(mask), bool)
    for name, feature in features.items():
        if feature.dtype.is_integer:
            limit = schema.INTEGER_LIMIT if feature.limit is None else feature.limit
            out_of_range |= ((values[name] < 0) | (values[name] >= limit)).any(axis=1)
    return np.stack(
        [
            out_of_range,
            (mask != (np.arange(mask.shape[1]) < length[:, None])).any(axis=1) | (length < 1),
            (np.diff(segments * mask, axis=1) > 0).sum(axis=1) + (segments * (1 - mask)).sum(axis=1) > 1,
            (values["masked_lm_weights"] != (np.arange(used.shape[1]) < count[:, None])).any(axis=1),
            (np.diff(positions, axis=1) <= 0).any(axis=1)
            | ((positions >= length[:, None]) & used).any(axis=1),
        ],
        axis=1,
    )


def _describe_faults(record: bytes, features: dict, kind: str) -> str | None:
    values = {
        name: value.numpy()
        for name, value in record_formats.parse_records(tf.constant([record]), features, kind).items()
    }
    faults = _faults(values, features)
    bad = np.flatnonzero(faults.any(axis=1))
    if not len(bad):
        return None
    place = f"example {bad[0] + 1}: " if len(faults) > 1 else ""
    return place + _FAULTS[faults[bad[0]].argmax()]


def _count(
    summary: Summary, values: dict[str, np.ndarray], vocabulary: Vocabulary | None, weights: np.ndarray
) -> None:
    used = values["masked_lm_weights"] > 0
    row, slot = np.nonzero(used)
    column, labels = values["masked_lm_positions"][row, slot], values["masked_lm_ids"][row, slot]
    shown = values["input_ids"][row, column]
    summary.records += len(used)
    summary.predictions += len(row)
    summary.masked += int((shown == (vocabulary.id_of("[MASK]") if vocabulary else -1)).sum())
    summary.kept += int((shown == labels).sum())
    summary.random_next += int(values["next_sentence_labels"].sum())
    summary.lengths += np.bincount(values["input_mask"].sum(axis=1), minlength=len(summary.lengths))
    original = values["input_ids"].copy()
    original[row, column] = labels
    length = original.shape[1]
    text = (
        original.astype(np.uint64) @ weights[:length]
        + values["segment_ids"].sum(axis=1).astype(np.uint64) * weights[-1]
    )
    chosen = np.zeros(original.shape, np.uint64)
    chosen[row, column] = shown + 1
    summary.text_hashes.append(text)
    summary.record_hashes.append(text + chosen @ weights[length : 2 * length])


# ------------------------------------------------------------------------------------------------------------
# Text


def show_examples(path: str, count: int, vocabulary: Vocabulary) -> Iterable[str]:
    """Yields the first examples of a file as text; a predicted token is {token>what stands in its place},
    {token} where it is kept."""
    kind, features = describe_first(path, vocabulary)
    for number, record in enumerate(
        itertools.chain.from_iterable(record_files.read_batches(path, kind, limit=count)), 1
    ):
        values = _parse(path, number, [record], features, kind)
        rows = len(values["input_ids"])
        for row in range(min(rows, count)):
            title = f"{os.path.basename(path)}, record {number}" + f", example {row + 1}" * (rows > 1)
            yield _show(title, {name: value[row] for name, value in values.items()}, vocabulary)
        count -= rows
        if count <= 0:
            return


def _show(title: str, example: dict[str, np.ndarray], vocabulary: Vocabulary) -> str:
    length, count = int(example["input_mask"].sum()), int((example["masked_lm_weights"] > 0).sum())
    words = [vocabulary.words[token] for token in example["input_ids"][:length]]
    for position, label in zip(example["masked_lm_positions"][:count], example["masked_lm_ids"]):
        label = vocabulary.words[label]
        words[position] = f"{{{label}}}" if label == words[position] else f"{{{label}>{words[position]}}}"
    relation = "a random one" if example["next_sentence_labels"][0] else "the next one"
    return (
        f"{title}: {length} tokens, {count} predicted, the second segment is {relation}\n  {' '.join(words)}"
    )
