#!/usr/bin/env python3
"""Makes the held-out evaluation set of MLPerf v1.0: evenly spaced records of TFRecord files, copied as they are.

  python scripts/make_eval_set.py --input_files='eval/*.tfrecord' --output_file=eval_10k.tfrecord --num_samples=10000
"""

import collections
import contextlib
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

import command_line
from official.config import ConfigError

_FRAME_BYTES = 16  # of a TFRecord: its length and two checksums
_BATCH = 1024  # records handed over at once: one by one takes many times as long


def parse_flags():
    parser = command_line.Parser(__doc__.splitlines()[0])
    add = parser.add_argument
    add("--input_files", required=True, help="TFRecords: comma-separated files or globs, taken in the order of their names.")
    add("--output_file", required=True, help="TFRecord file to write.")
    add("--num_samples", type=int, default=10000, help="Records to pick.")
    add("--overwrite", action="store_true", help="Replace --output_file where it is there.")
    flags = parser.parse()
    if flags.num_samples < 1:
        raise ConfigError(f"--num_samples={flags.num_samples} is below the minimum of 1.")
    command_line.check_output_file(flags.output_file, "output_file", flags.overwrite)
    return flags


def read_records(path: str):
    """Yields the serialized records of a file. Raises ConfigError where it is damaged."""
    import tensorflow as tf

    records, number, size = tf.data.TFRecordDataset(path), 0, 0
    try:
        for batch in records.batch(_BATCH).as_numpy_iterator():
            number += len(batch)
            size += sum(map(len, batch)) + len(batch) * _FRAME_BYTES
            yield from batch
        if size != tf.io.gfile.stat(path).length:  # TensorFlow takes a last record that is cut off within its first bytes for the end
            raise tf.errors.DataLossError(None, None, "")
    except tf.errors.DataLossError:
        number += _count_until_damage(records.skip(number))
        raise ConfigError(f"--input_files: {path} is truncated or damaged after record {number}.") from None
    except tf.errors.OpError as error:
        raise ConfigError(f"--input_files: {path}: {error.message}.") from None


def _count_until_damage(records) -> int:
    import tensorflow as tf

    number = 0
    with contextlib.suppress(tf.errors.DataLossError):
        for number, _ in enumerate(records.as_numpy_iterator(), 1):
            pass
    return number


def count_records(files: list[str]) -> list[int]:
    """Returns the number of records of each file."""
    titles = [f"counting, file {number} of {len(files)}" for number in range(1, len(files) + 1)]
    return [sum(1 for _ in _progress(read_records(path), title)) for path, title in zip(files, titles)]


def picked_positions(records: int, num_samples: int) -> list[int]:
    """Returns the positions of `num_samples` of `records` records: int(i * records / num_samples), in integers, so without rounding."""
    return [index * records // num_samples for index in range(num_samples)]


def picked_records(files: list[str], counts: list[int], positions: list[int]):
    """Yields the records at sorted positions, counted over all files; a file is read up to the last one that it holds."""
    left = collections.deque(positions)
    first = 0
    for path, count in zip(files, counts):
        records = enumerate(read_records(path), first)
        while left and left[0] < first + count:
            position, record = next(records)
            if position == left[0]:
                left.popleft()
                yield record
        first += count


def write_records(path: str, records) -> None:
    """Writes a TFRecord file under a temporary name first, so that it is there whole or not at all."""
    import tensorflow as tf

    temporary = path + ".tmp"
    try:
        with tf.io.TFRecordWriter(temporary) as writer:
            for record in _progress(records, "copying"):
                writer.write(record)
        os.replace(temporary, path)
    except (OSError, tf.errors.OpError) as error:
        raise ConfigError(f"--output_file={path} cannot be written: {getattr(error, 'strerror', None) or error}.") from None
    finally:
        if os.path.exists(temporary):
            os.remove(temporary)


def _progress(records, what: str):
    """Yields the records, under a bar where stderr is a terminal and it takes more than two seconds."""
    import tqdm

    return tqdm.tqdm(records, what, unit=" records", unit_scale=True, delay=2, disable=None, leave=False)


def main() -> None:
    flags = parse_flags()
    from official.data import reading  # after the flags are checked: it loads TensorFlow

    files = reading.find_files(flags.input_files, "input_files")
    if os.path.realpath(flags.output_file) in map(os.path.realpath, files):
        raise ConfigError(f"--output_file={flags.output_file} is one of --input_files={flags.input_files}. Give another name.")
    counts = count_records(files)
    records = sum(counts)
    if records < flags.num_samples:
        raise ConfigError(f"--input_files={flags.input_files} holds {records:,} records, fewer than --num_samples={flags.num_samples:,}.")
    write_records(flags.output_file, picked_records(files, counts, picked_positions(records, flags.num_samples)))
    print(f"{flags.output_file}: {flags.num_samples:,} of the {records:,} records of {len(files):,} file{'s' * (len(files) > 1)}.")


if __name__ == "__main__":
    command_line.run(main)
