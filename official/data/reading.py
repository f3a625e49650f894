"""TFRecord files to batches of features. All order is a function of (seed, epoch)."""

import hashlib
import os
from collections.abc import Iterator

from absl import logging
import tensorflow as tf

from official.config import ConfigError
from official.data import files as files_lib
from official.data import records as records_lib

_INTERLEAVED_FILES = 8  # as the MLPerf reference
_SHUFFLED_RECORDS = 8192  # of all streams together
_MOST_STREAMS = 32
_BLOCK = 16  # records that are handed on together: one by one, handing them on costs more than reading them
_CHECKED_BATCH = 1024
_FILES_CHECKED_FIRST = 16
_FRAME_BYTES = 16  # of a record: its length, two checksums
# Up to this much data is scanned to find the length of an epoch when a run is resumed; more is skipped through.
_COUNTED_BYTES = 1 << 28


def find_files(patterns: str, flag: str) -> list[str]:
    """Returns the files that comma-separated names, globs or folders of records stand for; see `files.find_files`."""
    return files_lib.find_files(patterns, flag, in_folders="*.tfrecord")


def detect_format(files: list[str]) -> str:
    """Returns the format of the first record; "plain" where there is none that is known, whose reader then says what is wrong."""
    try:
        record = next(tf.data.TFRecordDataset(files[0]).take(1).as_numpy_iterator(), b"")
    except tf.errors.OpError:
        record = b""
    return records_lib.detect_format(record) or "plain"


def check_first_record(files: list[str], schema: dict, flag: str) -> None:
    """Compares the first record of the first files with the schema, before anything is compiled. Raises ConfigError."""
    record_format = detect_format(files)
    for path in files[:_FILES_CHECKED_FIRST]:
        problem = _first_problem(path, schema, record_format, first_only=True)
        if problem:
            raise ConfigError(f"--{flag}: {problem}.")


def find_bad_record(files: list[str], schema: dict) -> str | None:
    """Reads files until one breaks; returns a line that names the file, the record and what is wrong, or None."""
    logging.warning("Looking for the bad record in %d files.", len(files))
    record_format = detect_format(files)
    return next(filter(None, (_first_problem(path, schema, record_format) for path in files)), None)


def _first_problem(path: str, schema: dict, record_format: str, first_only: bool = False) -> str | None:
    number = 0
    try:
        for number, record in enumerate((record for batch in read_batches(path, 1 if first_only else None) for record in batch), 1):
            mismatch = records_lib.describe_mismatch(record, schema, record_format)
            if mismatch:
                return f"{path}, record {number}: {mismatch} (by --max_seq_length, --max_predictions_per_seq and the model's vocab_size)"
    except ConfigError as error:
        return str(error).removesuffix(".")
    return f"{path} has no records" if number == 0 else None


def read_batches(path: str, limit: int | None = None) -> Iterator[list[bytes]]:
    """Yields the records of a file, or the first `limit` ones, many at a time.

    Raises:
      ConfigError: where the file is cut off or damaged, after the records before that place, or cannot be read.
    """
    records, number, size = tf.data.TFRecordDataset(path), 0, 0
    try:
        for batch in records.take(-1 if limit is None else limit).batch(_CHECKED_BATCH).as_numpy_iterator():
            number, size = number + len(batch), size + sum(map(len, batch)) + _FRAME_BYTES * len(batch)
            yield batch.tolist()
        # TensorFlow takes a last record that is cut off within its length for the end of the file.
        is_whole = number == limit or size == tf.io.gfile.stat(path).length
    except tf.errors.DataLossError:
        is_whole = False
        before_damage = list(_whole_ones(records.skip(number)))
        number += len(before_damage)
        yield before_damage
    except tf.errors.OpError as error:
        raise ConfigError(f"{path}: {error.message}.") from None
    if not is_whole:
        raise ConfigError(f"{path} is truncated or damaged after record {number}.")


def _whole_ones(records: tf.data.Dataset) -> Iterator[bytes]:
    """Yields the records before the damage."""
    try:
        yield from records.as_numpy_iterator()
    except tf.errors.DataLossError:
        return


def digest(files: list[str]) -> dict:
    """Returns {files, bytes, sha256}; the digest is of the files' names, sizes and first 64 KiB, so that it costs little."""
    total, sha = 0, hashlib.sha256()
    for path in files:
        with tf.io.gfile.GFile(path, "rb") as file:
            size = file.size()
            sha.update(f"{os.path.basename(path)} {size} ".encode() + file.read(1 << 16))
        total += size
    return {"files": len(files), "bytes": total, "sha256": sha.hexdigest()}


def num_streams(num_files: int, train_batch_size: int) -> int:
    """Returns how many streams the training files are dealt out to: the most, up to 32, that divides both numbers.

    A step takes the same number of records from every stream, and a host reads whole streams. What a step trains on is
    thus the same however many hosts there are.
    """
    return max(count for count in range(1, _MOST_STREAMS + 1) if train_batch_size % count == 0 and num_files % count == 0)


def training_dataset(files: list[str], schema: dict, batch_size: int, seed: int, samples_done: int = 0,
                     streams: int = 1, host: int = 0, num_hosts: int = 1) -> tf.data.Dataset:
    """Returns an endless dataset of batches {name: [batch_size, length]}, with `example_weights` [batch_size] of ones.

    File f belongs to stream f % streams, stream s to host s % num_hosts. Every epoch of a stream visits each of its
    records once, files and records in an order drawn from (seed, stream, epoch); records are taken from the streams in turn.

    Args:
      files: all files of the job, in the same order on every host.
      schema: features of a record.
      batch_size: sequences of a batch.
      seed: of the order.
      samples_done: sequences that all hosts together have consumed before; the dataset goes on with the next.
      streams: see `num_streams`.
      host, num_hosts: this host's number and how many there are.

    Raises:
      ConfigError: where the streams cannot be shared out among the hosts, or a file is empty.
    """
    if streams % num_hosts:
        raise ConfigError(f"input_files: {len(files)} files make {streams} streams, which {num_hosts} hosts cannot share evenly. Write a number "
                          f"of shards that is a multiple of {num_hosts}, with a --train_batch_size that is one too.")

    record_format = detect_format(files)

    def parse(records):
        return {**records_lib.parse_batch(records, schema, record_format), "example_weights": tf.ones([batch_size])}

    own = [_stream(files[number::streams], [seed, number], samples_done // streams, streams) for number in range(host, streams, num_hosts)]
    batches = _take_turns(own).rebatch(batch_size, drop_remainder=True)
    return batches.map(parse, num_parallel_calls=tf.data.AUTOTUNE).prefetch(tf.data.AUTOTUNE)


def _take_turns(streams: list[tf.data.Dataset]) -> tf.data.Dataset:
    """Returns blocks of records taken from endless streams in turn."""
    if len(streams) == 1:
        return streams[0]
    blocks = tf.data.Dataset.zip(tuple(stream.rebatch(_BLOCK, drop_remainder=True) for stream in streams))
    return blocks.map(lambda *block: tf.reshape(tf.stack(block, axis=1), [-1]))


def _stream(files: list[str], seed: list[int], records_done: int, streams: int) -> tf.data.Dataset:
    """Returns blocks of the serialized records of one stream, endless, after the first `records_done`."""
    sizes = [tf.io.gfile.stat(path).length for path in files]
    smallest = min(sizes)
    if smallest < _FRAME_BYTES:  # TensorFlow reads such a file as an empty one, and a stream of those would never yield
        raise ConfigError(f"--input_files: {files[sizes.index(smallest)]} has no records.")
    countable = sum(sizes) * streams <= _COUNTED_BYTES
    epoch, skipped = divmod(records_done, _count(files)) if records_done and countable else (0, records_done)
    window = max(_SHUFFLED_RECORDS // streams, 1)
    blocks = tf.data.Dataset.range(epoch, tf.int64.max).flat_map(lambda number: _epoch(files, seed, number, window))
    return _skip(blocks, skipped) if skipped else blocks


def _epoch(files: list[str], seed: list[int], number, window: int) -> tf.data.Dataset:
    """Returns blocks of `window` serialized records of epoch `number` (int64 scalar), each block shuffled; the last one has what is left."""
    order_seed = tf.random.experimental.stateless_fold_in(tf.constant(seed, tf.int64), number)
    order = tf.random.experimental.stateless_shuffle(tf.constant(files), seed=order_seed)
    records = tf.data.Dataset.from_tensor_slices(order).interleave(
        lambda path: tf.data.TFRecordDataset(path).batch(_BLOCK), cycle_length=min(_INTERLEAVED_FILES, len(files)), block_length=1,
        num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)

    def shuffle(block_number, block):
        return tf.random.experimental.stateless_shuffle(block, tf.random.experimental.stateless_fold_in(order_seed, block_number))

    return records.rebatch(window).enumerate().map(shuffle)


def _skip(blocks: tf.data.Dataset, records: int) -> tf.data.Dataset:
    """Returns the blocks without their first `records` records."""
    def cut(left, block):
        cut_off = tf.minimum(left, tf.size(block, tf.int64))
        return left - cut_off, block[cut_off:]

    return blocks.scan(tf.constant(records, tf.int64), cut).filter(lambda block: tf.size(block) > 0)


def _count(files: list[str]) -> int:
    return int(sum(tf.data.TFRecordDataset(files).batch(_CHECKED_BATCH).map(tf.size).as_numpy_iterator()))


def evaluation_dataset(files: list[str], schema: dict, batch_size: int, num_samples: int) -> tf.data.Dataset:
    """Returns batches of the first `num_samples` records in file order.

    The last batch is filled up with records of zeros. `example_weights` [batch_size] is 1 for records and 0 for filling,
    so that sums over the set are exact and every batch has one shape.
    """
    record_format = detect_format(files)

    def parse_and_fill(records):
        features = records_lib.parse_batch(records, schema, record_format)
        missing = batch_size - tf.shape(records)[0]
        features = {name: tf.ensure_shape(tf.pad(value, [[0, missing], [0, 0]]), [batch_size, schema[name].length])
                    for name, value in features.items()}
        features["example_weights"] = tf.cast(tf.range(batch_size) < batch_size - missing, tf.float32)
        return features

    records = tf.data.TFRecordDataset(files).take(num_samples).batch(batch_size)
    return records.map(parse_and_fill, num_parallel_calls=tf.data.AUTOTUNE).prefetch(tf.data.AUTOTUNE)
