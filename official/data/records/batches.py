"""TFRecord files to batches of features. All order is a function of (seed, epoch)."""

import hashlib
import itertools
import os
from collections.abc import Iterator

import tensorflow as tf
from absl import logging

from official.config import ConfigError
from official.data.records import containers as records_lib
from official.data.records import parallelism, record_counts
from official.data.records.streams import Streams
from official.io import files as files_lib

_MOST_STREAMS = 32
_CHECKED_EXAMPLES = 1024
_FILES_CHECKED_FIRST = 16
_FRAME_BYTES = 16  # of a record: its length, two checksums


def find_files(patterns: str, flag: str = "") -> list[str]:
    """Returns the files that comma-separated names, globs or folders of records stand for; see
    `files.find_files`.

    The manifest that lies among records of our own is left out.
    """
    found = files_lib.find_files(patterns, flag, in_folders="*.tfrecord")
    records = [path for path in found if os.path.basename(path) != record_counts.MANIFEST]
    if not records:
        raise ConfigError(
            f"{f'--{flag}=' if flag else ''}{patterns} holds no records, only {record_counts.MANIFEST}. Give"
            " TFRecord files."
        )
    return records


def detect_format(files: list[str]) -> str:
    """Returns the format of the first record; "plain" where there is none that is known, whose reader then
    says what is wrong."""
    for path in files:
        try:
            return (
                records_lib.detect_format(next(tf.data.TFRecordDataset(path).take(1).as_numpy_iterator()))
                or "plain"
            )
        except StopIteration:
            continue
        except tf.errors.OpError:
            break
    return "plain"


def check_first_record(files: list[str], schema: dict, flag: str) -> None:
    """Compares the first record of the first files with the schema, before anything is compiled. Raises
    ConfigError."""
    record_format = detect_format(files)
    for path in files[:_FILES_CHECKED_FIRST]:
        problem = _first_problem(path, schema, record_format, first_only=True)
        if problem:
            raise ConfigError(f"--{flag}: {problem}.")


def find_bad_record(files: list[str], schema: dict) -> str | None:
    """Reads files until one breaks; returns a line that names the file, the record and what is wrong, or
    None."""
    logging.warning("Looking for the bad record in %d files.", len(files))
    record_format = detect_format(files)
    return next(filter(None, (_first_problem(path, schema, record_format) for path in files)), None)


def _first_problem(path: str, schema: dict, record_format: str, first_only: bool = False) -> str | None:
    number = 0
    try:
        batches = read_batches(path, record_format, 1 if first_only else None)
        for number, record in enumerate((record for batch in batches for record in batch), 1):
            mismatch = records_lib.describe_mismatch(record, schema, record_format)
            if mismatch:
                return f"{path}, record {number}: {mismatch} (by --max_seq_length, --max_predictions_per_seq and the model's vocab_size)"
    except ConfigError as error:
        return str(error).removesuffix(".")
    return f"{path} has no records" if number == 0 else None


def read_batches(path: str, record_format: str, limit: int | None = None) -> Iterator[list[bytes]]:
    """Yields the records of a file, or the first `limit` ones, so many at a time that they hold about a
    thousand examples.

    Raises:
      ConfigError: where the file is cut off or damaged, after the records before that place, or cannot be
        read.
    """
    records, number, size = tf.data.TFRecordDataset(path), 0, 0
    try:
        for batch in (
            records.take(-1 if limit is None else limit)
            .batch(records_lib.records_of(_CHECKED_EXAMPLES, record_format))
            .as_numpy_iterator()
        ):
            number, size = number + len(batch), size + sum(map(len, batch)) + _FRAME_BYTES * len(batch)
            yield batch.tolist()
        # TensorFlow takes a last record that is cut off within its length for the end of the file.
        is_whole = number == limit or size == tf.io.gfile.stat(path).length
    except tf.errors.DataLossError:
        is_whole = False
        before_damage = list(_whole_ones(records.skip(number)))
        number += len(before_damage)
        if before_damage:
            yield before_damage
    except tf.errors.OpError as error:
        raise ConfigError(f"{path}: {error.message}.") from None
    if not is_whole:
        raise ConfigError(
            f"{path} is truncated or damaged after record {number}: record {number + 1} cannot be read."
        )


def read_examples(path: str, record_format: str) -> Iterator[bytes]:
    """Yields a record for each example of a file, whatever number of them its records hold. Raises
    ConfigError as `read_batches` does."""
    for number, record in enumerate(itertools.chain.from_iterable(read_batches(path, record_format)), 1):
        try:
            yield from records_lib.split(record, record_format)
        except ValueError as error:
            raise ConfigError(f"{path}, record {number}: {error}.") from None


def _whole_ones(records: tf.data.Dataset) -> Iterator[bytes]:
    """Yields the records before the damage."""
    try:
        yield from records.as_numpy_iterator()
    except tf.errors.DataLossError:
        return


def digest(files: list[str]) -> dict:
    """Returns {files, bytes, sha256}; the digest is of the files' names, sizes and first 64 KiB, so that it
    costs little."""
    total, sha = 0, hashlib.sha256()
    for path in files:
        with tf.io.gfile.GFile(path, "rb") as file:
            size = file.size()
            sha.update(f"{os.path.basename(path)} {size} ".encode() + file.read(1 << 16))
        total += size
    return {"files": len(files), "bytes": total, "sha256": sha.hexdigest()}


def num_streams(num_files: int, train_batch_size: int) -> int:
    """Returns how many streams the training files are dealt out to: the most, up to 32, that divides both
    numbers.

    A step takes the same number of examples from every stream, and a host reads whole streams. What a step
    trains on is thus the same however many hosts there are.
    """
    return max(
        count
        for count in range(1, _MOST_STREAMS + 1)
        if train_batch_size % count == 0 and num_files % count == 0
    )


def training_dataset(
    files: list[str],
    schema: dict,
    batch_size: int,
    seed: int,
    samples_done: int = 0,
    streams: int = 1,
    host: int = 0,
    num_hosts: int = 1,
    counts_path: str = "",
) -> tf.data.Dataset:
    """Returns an endless dataset of batches {name: [batch_size, length]}, with `example_weights` [batch_size]
    of ones.

    File f belongs to stream f % streams, stream s to host s % num_hosts. Every epoch of a stream visits each
    of its examples once, files and examples in an order drawn from (seed, stream, epoch); examples are taken
    from the streams in turn. A stream is shuffled in windows that follow each other and end with the epoch;
    those of all streams hold 8,192 examples.

    Args:
      files: all files of the job, in the same order on every host.
      schema: features of an example.
      batch_size: sequences of a batch.
      seed: of the order.
      samples_done: sequences that all hosts together have consumed before; the dataset goes on with the next.
      streams: see `num_streams`.
      host, num_hosts: this host's number and how many there are.
      counts_path: file in which a run that goes on keeps how many records the files of this host hold; unset:
        it counts each time.

    Raises:
      ConfigError: where the streams cannot be shared out among the hosts, or a file is empty.
    """
    if streams % num_hosts:
        raise ConfigError(
            f"input_files: {len(files)} files make {streams} streams, which {num_hosts} hosts cannot share"
            f" evenly. Write a number of shards that is a multiple of {num_hosts}, with a --train_batch_size"
            " that is one too."
        )

    record_format = detect_format(files)
    _check_sizes(files)

    def parse(rows):
        features = records_lib.parse_rows(
            tf.ensure_shape(rows, [batch_size, *rows.shape[1:]]), schema, record_format
        )
        return {**features, "example_weights": tf.ones([batch_size])}

    own = Streams(files, streams, schema, record_format, seed)
    rows = own.rows(range(host, streams, num_hosts), samples_done // streams, batch_size, counts_path)
    batches = rows.map(parse, num_parallel_calls=parallelism.CALLS).prefetch(parallelism.CALLS)
    return parallelism.fixed(batches)


def _check_sizes(files: list[str]) -> None:
    for path in files:
        if (
            tf.io.gfile.stat(path).length < _FRAME_BYTES
        ):  # TensorFlow reads such a file as an empty one, and a stream of those would never yield
            raise ConfigError(f"--input_files: {path} has no records.")


def evaluation_dataset(files: list[str], schema: dict, batch_size: int, num_samples: int) -> tf.data.Dataset:
    """Returns batches of the first `num_samples` examples in file order.

    The last batch is filled up with examples of zeros. `example_weights` [batch_size] is 1 for examples and 0
    for filling, so that sums over the set are exact and every batch has one shape.
    """
    record_format = detect_format(files)

    def parse_and_fill(rows):
        features = records_lib.parse_rows(rows, schema, record_format)
        missing = batch_size - tf.shape(rows)[0]
        features = {
            name: tf.ensure_shape(tf.pad(value, [[0, missing], [0, 0]]), [batch_size, schema[name].length])
            for name, value in features.items()
        }
        features["example_weights"] = tf.cast(tf.range(batch_size) < batch_size - missing, tf.float32)
        return features

    records = tf.data.TFRecordDataset(files).batch(records_lib.records_of(batch_size, record_format))
    rows = _take(
        records.map(lambda batch: records_lib.unpack(batch, schema, record_format)), num_samples
    ).rebatch(batch_size)
    batches = rows.map(parse_and_fill, num_parallel_calls=parallelism.CALLS).prefetch(parallelism.CALLS)
    return parallelism.fixed(batches)


def _take(blocks: tf.data.Dataset, rows: int) -> tf.data.Dataset:
    """Returns the blocks up to their first `rows` rows."""

    def cut(left, block):
        block = block[:left]
        return left - tf.shape(block, tf.int64)[0], block

    return blocks.scan(tf.constant(rows, tf.int64), cut).take_while(lambda block: tf.shape(block)[0] > 0)
