"""Makes the held-out evaluation set of MLPerf v1.0: evenly spaced examples of TFRecord files, copied as they
are.

  bert data eval-set --input_files='eval/*.tfrecord' --output_file=eval_10k.tfrecord \\
    --num_samples=10000
"""

import argparse
import collections
import itertools
import os

from official.cli import command_line
from official.io import files as io_files
from official.io import record_paths
from official.io.errors import ConfigError
from official.io.writing import check_output_file


def make_parser() -> command_line.Parser:
    parser = command_line.Parser(__doc__)
    add = parser.add_argument
    add(
        "--input_files",
        required=True,
        help=(
            "TFRecords: comma-separated files, folders or globs, taken in the order of their names; a"
            " manifest.json among them is left out."
        ),
    )
    add("--output_file", required=True, help="TFRecord file to write.")
    add("--num_samples", type=int, default=10000, help="Examples to pick.")
    add("--overwrite", action="store_true", help="Replace --output_file where it is there.")
    return parser


def parse_flags() -> argparse.Namespace:
    flags = make_parser().parse()
    if flags.num_samples < 1:
        raise ConfigError(f"--num_samples={flags.num_samples} is below the minimum of 1.")
    check_output_file(flags.output_file, "output_file", flags.overwrite)
    return flags


def read_examples(path: str, record_format: str):
    """Yields a record for each example of a file. Raises ConfigError where it is damaged."""
    from official.data.records import files as record_files

    try:
        yield from record_files.read_rows(path, record_format)
    except ConfigError as error:
        raise ConfigError(f"--input_files: {error}") from None


def count_examples(files: list[str], record_format: str) -> list[int]:
    """Returns the number of examples of each file."""
    titles = [f"counting, file {number} of {len(files)}" for number in range(1, len(files) + 1)]
    return [
        sum(1 for _ in _progress(read_examples(path, record_format), title))
        for path, title in zip(files, titles)
    ]


def picked_positions(examples: int, num_samples: int) -> list[int]:
    """Returns the positions of `num_samples` of `examples` examples: int(i * examples / num_samples), in
    integers, so without rounding."""
    return [index * examples // num_samples for index in range(num_samples)]


def picked_examples(files: list[str], record_format: str, counts: list[int], positions: list[int]):
    """Yields the examples at sorted positions, counted over all files; a file is read up to the last one that
    it holds."""
    left = collections.deque(positions)
    first = 0
    for path, count in zip(files, counts):
        examples = enumerate(read_examples(path, record_format), first)
        while left and left[0] < first + count:
            position, example = next(examples)
            if position == left[0]:
                left.popleft()
                yield example
        first += count


def joined(examples, record_format: str):
    """Yields records that hold the examples."""
    from official.data.records import record_formats

    examples = iter(examples)
    while some := list(itertools.islice(examples, record_formats.rows_per_record(record_format))):
        yield from record_formats.join(some, record_format)


def unchanged(records, states: dict[str, str]):
    """Yields the records. Raises ConfigError at the end where a file was changed while it was read."""
    yield from records
    io_files.check_unchanged(states)


def write_records(path: str, records) -> None:
    """Writes a TFRecord file, which is there whole or not at all."""
    import tensorflow as tf

    from official.io import writing

    try:
        with writing.replacing(path) as temporary, tf.io.TFRecordWriter(temporary) as writer:
            for record in records:
                writer.write(record)
    except (OSError, tf.errors.OpError) as error:
        raise ConfigError(
            f"--output_file={path} cannot be written: {getattr(error, 'strerror', None) or error}."
        ) from None


def _progress(examples, what: str):
    """Yields the examples, under a bar where stderr is a terminal and it takes more than two seconds."""
    import tqdm

    return tqdm.tqdm(examples, what, unit=" examples", unit_scale=True, delay=2, disable=None, leave=False)


def main() -> None:
    flags = parse_flags()
    from official.data.records import (
        files as record_files,  # after the flags are checked: it loads TensorFlow
    )

    files = record_files.find_files(flags.input_files, "input_files")
    if os.path.realpath(flags.output_file) in map(os.path.realpath, files):
        raise ConfigError(
            f"--output_file={flags.output_file} is one of --input_files={flags.input_files}. Give another"
            " name."
        )
    folder = os.path.dirname(flags.output_file)
    vocabulary = record_paths.find_vocabulary(files)
    record_paths.check_vocabulary(folder, vocabulary, flags.overwrite)
    states = io_files.states(files)
    record_format = record_files.detect_format(files)
    counts = count_examples(files, record_format)
    examples = sum(counts)
    if examples < flags.num_samples:
        raise ConfigError(
            f"--input_files={flags.input_files} holds {examples:,} examples, fewer than"
            f" --num_samples={flags.num_samples:,}."
        )
    picked = picked_examples(files, record_format, counts, picked_positions(examples, flags.num_samples))
    records = joined(_progress(picked, "copying"), record_format)
    write_records(flags.output_file, unchanged(records, states))
    record_paths.put_vocabulary(folder, vocabulary)
    print(
        f"{flags.output_file}: {flags.num_samples:,} of the {examples:,} examples of {len(files):,}"
        f" file{'s' * (len(files) > 1)}."
    )
