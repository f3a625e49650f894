"""Inspects records of pre-training data: checks every record and counts tokens, masks and repetitions."""

import dataclasses
import itertools
import os
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from official.data.pretraining import summary as summary_lib
from official.data.pretraining.summary import Summary
from official.data.records import files as record_files
from official.data.records import record_formats, schema
from official.data.word_pieces.vocabulary import Vocabulary
from official.io import engines, files, writing
from official.io.engines import Engine, Round
from official.io.errors import ConfigError


class Shape(NamedTuple):
    """Format and sizes of the records of some files."""

    record_format: str
    max_seq_length: int
    max_predictions_per_seq: int


def summarize(
    paths: list[str], vocabulary: Vocabulary | None, engine: Engine | None = None, work_dir: str | None = None
) -> Summary:
    """Reads and checks every record. The result does not depend on the engine.

    Args:
      paths: TFRecord files of one format and shape.
      vocabulary: vocabulary of the records; None if unknown. Ids are checked against its size, and the shares
        of masked and kept tokens need it.
      engine: engine that reads the files; None: this process.
      work_dir: temporary folder on all machines of the engine; None: a local one.

    Raises:
      ConfigError: for a record that violates the schema (the first one, with one process), with its file,
        number and fault; or for a file that was changed during reading.
    """
    states, total = files.states(paths), sum(files.sizes(paths))
    engine = engine or engines.Local(1)
    # Few tasks even with many files, since each writes up to 32 MB. Starting a process takes seconds, so by
    # default each has at least 64 MB to read.
    count = min(1 if engine.num_workers == 1 else 64, len(paths))
    bounds = np.linspace(0, len(paths), count + 1).astype(int)
    groups = [paths[first:end] for first, end in zip(bounds, bounds[1:])]
    with writing.new_folder(work_dir) as folder:
        counted = [os.path.join(folder, f"{number:05d}.npz") for number in range(count)]
        tasks = ((count_files, path, paths[0], group, vocabulary) for path, group in zip(counted, groups))
        engine.run(Round(tasks, count, total, "Inspecting", "examples", __name__, 64 << 20))
        parts = map(Summary.load, counted)
        summary = next(parts)
        for part in parts:
            summary.merge(part)
    files.check_unchanged(states)
    return summary


def count_files(path: str, first: str, group: list[str], vocabulary: Vocabulary | None) -> None:
    """A task of `summarize`: reads and checks the records of some files, and writes their summary.

    Args:
      path: output path of the numbers, as of `Summary.save`.
      first: the file whose first record defines the format and sizes of all.
      group: paths of the files.
      vocabulary: as of `summarize`.
    """
    shape, features = describe_first(first, vocabulary)
    summary = Summary(*shape)
    mask_id = vocabulary.special_ids.mask if vocabulary else -1
    for name in group:
        size, done = files.sizes([name])[0], summary.records
        for count, values in read_checked(name, shape, features):
            summary.add(count, values, mask_id)
        summary.files, summary.bytes = summary.files + 1, summary.bytes + size
        engines.report(size, summary.records - done)
    summary.save(path)


def read_checked(path: str, shape: Shape, features: dict) -> Iterator[tuple[int, dict[str, np.ndarray]]]:
    """Yields batches of a file's records: the number of records, and {name: [N, length]} of their N examples.

    Args:
      path: TFRecord file.
      shape, features: as `describe_first` returns them.

    Raises:
      ConfigError: as `summarize` does.
    """
    first = 1
    for batch in record_files.read_batches(path, shape.record_format):
        yield len(batch), parse(path, first, batch, features, shape.record_format)
        first += len(batch)


def find_fault(paths: list[str]) -> str | None:
    """Finds the first invalid record in files of one format; returns a line with the file, the record and its
    fault, or None."""
    try:
        for path in paths:
            for _ in read_checked(path, *describe_first(path, None)):
                pass
    except ConfigError as error:
        return str(error).removesuffix(".")
    return None


def describe_first(path: str, vocabulary: Vocabulary | None) -> tuple[Shape, dict]:
    """Returns the shape and the schema of a file's first record. Raises ConfigError if its format is
    unknown."""
    detected = record_files.detect_format([path])
    record = next((batch[0] for batch in record_files.read_batches(path, detected, limit=1)), None)
    kind = record_formats.detect_format(record) if record and detected == "plain" else detected
    if record is None or kind is None:
        what = "the file has no records" if record is None else "it is not a record of pre-training data"
        expected = ", ".join(record_formats.FORMATS)
        raise ConfigError(f"{path}, record 1: {what}. Expected the formats {expected}.")
    words, sizes = vocabulary.size if vocabulary else None, record_files.sizes_of(path, kind, record)
    features = schema.pretraining_schema(*sizes, words)
    # Values are read with 64 bits, to find those that are too large.
    on_disk = {name: dataclasses.replace(own, dtype=own.disk_dtype) for name, own in features.items()}
    return Shape(kind, *sizes), on_disk


def first_examples(path: str, count: int, vocabulary: Vocabulary) -> Iterator[summary_lib.ShownExample]:
    """Yields the first examples of a file, at most `count`. Raises ConfigError for an invalid record."""
    (kind, *_), features = describe_first(path, vocabulary)
    batches = record_files.read_batches(path, kind, limit=count)
    for number, record in enumerate(itertools.chain.from_iterable(batches), 1):
        values = parse(path, number, [record], features, kind)
        rows = len(values["input_ids"])
        for row in range(min(rows, count)):
            place = f"{os.path.basename(path)}, record {number}" + f", example {row + 1}" * (rows > 1)
            own = {name: value[row] for name, value in values.items()}
            yield summary_lib.example_of(place, own, vocabulary)
        count -= rows
        if count <= 0:
            return


def parse(path: str, first: int, batch: list[bytes], features: dict, kind: str) -> dict[str, np.ndarray]:
    """Returns {name: [N, length]} of the N examples of a batch; `first` is the number of its first record in
    the file. Raises ConfigError for its first invalid record."""
    try:
        values = _parsed(batch, features, kind)
        suspect = any(bad.any() for bad in _faults(values).values())
    # UnicodeDecodeError: TensorFlow's Python API cannot decode a message that quotes a record's bytes.
    except (tf.errors.OpError, UnicodeDecodeError):
        suspect = True
    if not suspect:
        return values
    for number, record in enumerate(batch, first):
        if not (fault := record_formats.describe_mismatch(record, features, kind)):
            faults = _faults(_parsed([record], features, kind))
            is_bad = np.any([*faults.values()], axis=0)
            if not is_bad.any():
                continue
            row = is_bad.argmax()
            place = f"example {row + 1}: " if len(is_bad) > 1 else ""
            fault = place + next(name for name, bad in faults.items() if bad[row])
        raise ConfigError(f"{path}, record {number}: {fault}.")
    return values


def _parsed(batch: list[bytes], features: dict, kind: str) -> dict[str, np.ndarray]:
    tensors = record_formats.parse_records(tf.constant(batch), features, kind)
    return {name: value.numpy() for name, value in tensors.items()}


def _faults(values: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Returns {possible fault of values in their ranges: bool [N], whether each example has it}."""
    mask, segments, weights = (values[name] for name in ("input_mask", "segment_ids", "masked_lm_weights"))
    used = weights > 0
    length, count = mask.sum(axis=1), used.sum(axis=1)
    positions = np.where(used, values["masked_lm_positions"], length[:, None] + np.arange(used.shape[1]))
    is_mask, is_weights = (np.arange(of.shape[1]) < n[:, None] for of, n in ((mask, length), (used, count)))
    changes = (np.diff(segments * mask, axis=1) > 0).sum(axis=1) + (segments * (1 - mask)).sum(axis=1)
    is_outside = ((positions >= length[:, None]) & used).any(axis=1)
    return {
        "input_mask is not ones and then zeros": (mask != is_mask).any(axis=1) | (length < 1),
        "segment_ids are not zeros, ones, and zeros on the padding": changes > 1,
        "masked_lm_weights are not ones and then zeros": (weights != is_weights).any(axis=1),
        "masked_lm_positions are not ascending positions of tokens": is_outside
        | (np.diff(positions, axis=1) <= 0).any(axis=1),
    }
