"""Order of training rows: files are distributed among streams, each of which is read endlessly in its own
order."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from official.config import derived
from official.data import pipeline
from official.data.records.files import RowCounts, check_ends, count, opener
from official.data.records.formats.plain import Plain
from official.data.records.masks import Masks
from official.data.records.record_formats import READERS
from official.data.records.schema import Feature
from official.data.records.shard_files import FRAME_BYTES
from official.io import files as io_files
from official.io.errors import ConfigError

# -----------------------------------------------------------------------------------------------------------
# Position in an interleaved reading
#
# Files are read in groups, one group after the other. The files of a group are read in turns, in blocks of
# `part` records; the last block of a file may be smaller. This is how tf.data's interleave works on files
# that are read in batches of `part`. So reading resumes as a new reading: of the group's files in the order
# of their turns, each without its first records, and then of the following groups.


class Position(NamedTuple):
    """Position in an interleaved reading.

    Attributes:
      files: (number, records to skip) of the files not read to the end: those of the current group in the
        order of their turns, then those of the following groups.
      group: number of these files in the current group.
      cut: further records to skip, of the first block.
    """

    files: list[tuple[int, int]]
    group: int
    cut: int


def interleaved_position(records: Sequence[int], cycle: int, part: int, passed: int) -> Position:
    """Returns the position of the reading after its first `passed` records.

    Args:
      records: number of records of each file, in the order of opening.
      cycle: files of a group.
      part: records of a block.
      passed: number of records read, fewer than all.
    """
    first = 0
    while passed >= (whole := sum(records[first : first + cycle])):
        first, passed = first + cycle, passed - whole
    numbers = range(first, min(first + cycle, len(records)))
    behind = [(number, 0) for number in range(numbers.stop, len(records))]

    def read(rounds: int) -> list[int]:
        return [min(records[number], rounds * part) for number in numbers]

    rounds = _last(lambda rounds: sum(read(rounds)) <= passed, max(records) // part + 2)
    left = passed - sum(read(rounds))
    done, next_round = ([*zip(numbers, read(count))] for count in (rounds, rounds + 1))
    for turn, (before, after) in enumerate(zip(done, next_round)):
        if after[1] - before[1] > left:
            turns = done[turn:] + next_round[:turn]
            begun = [(number, own) for number, own in turns if own < records[number]]
            return Position(begun + behind, len(begun), left)
        left -= after[1] - before[1]
    raise AssertionError("a round that is not whole ends inside one of its blocks")


def _last(fits: Callable[[int], bool], end: int) -> int:
    """Returns the last number below `end` that fits, by bisection; 0 fits, and so does every number before a
    fitting one."""
    first = 0
    while end - first > 1:
        middle = (first + end) // 2
        first, end = (middle, end) if fits(middle) else (first, middle)
    return first


# -----------------------------------------------------------------------------------------------------------
# Streams
#
# The position of a stream after any number of rows is calculated from the numbers of records and rows of its
# files; earlier records are skipped without being parsed or shuffled.


_INTERLEAVED_FILES = 8  # maximum, as in the MLPerf reference
_SHUFFLED_ROWS = 8192  # rows in the windows of all streams together
_fold_in = tf.random.experimental.stateless_fold_in


class _StreamPosition(NamedTuple):
    """Position of a stream inside an epoch; for all streams, each field has one more dimension."""

    epoch: int
    files: list[str]  # in the order of opening
    passed: list[int]  # records to skip in each file
    num_files: int  # number of files; the lists are padded beyond it
    group: int  # number of first files that are read in turns before the others
    window: int  # number of the first window
    cut_records: int  # records to skip in the first block
    cut_rows: int  # rows to skip in the first window


def own_streams(
    files: list[str], num_streams: int, order: pipeline.TrainingOrder, batch_size: int, is_framed: bool = True
) -> range:
    """Returns the streams of a host; stream s belongs to host s % num_hosts. Checks the files of these
    streams.

    Args:
      files: all files of the job, in the same order on every host.
      num_streams: see `derived.num_streams`.
      order: source of the number of this host.
      batch_size: rows of a batch of this host.
      is_framed: whether the records have the frames of TFRecord files.

    Raises:
      ConfigError: if the hosts cannot share the streams evenly, or a file is empty or truncated.
    """
    derived.check_hosts(len(files), num_streams, order.num_hosts, batch_size * order.num_hosts)
    own = files[order.host :: order.num_hosts]
    # TensorFlow reads a file that is truncated within its first bytes as empty, and a stream of empty files
    # would never yield.
    for path, size in zip(own, io_files.sizes(own)):
        if size < FRAME_BYTES:
            raise ConfigError(f"--input_files: {path} has no records.")
    if is_framed:
        check_ends(own)
    return range(order.host, num_streams, order.num_hosts)


class Streams(NamedTuple):
    """The files of a job, distributed among streams, each of which is read endlessly in its own order.

    Attributes:
      files: files of all hosts.
      num_streams: see `derived.num_streams`.
      seed: seed of the order.
      record_format: name in READERS.
      schema: schema of a row in the files, before packing here.
      masks: draws masks for each epoch; None: the files hold them.
    """

    files: list[str]
    num_streams: int
    seed: int
    record_format: str
    schema: dict[str, Feature]
    masks: Masks | None = None

    @property
    def reader(self) -> Plain:
        return READERS[self.record_format]

    def rows(
        self, numbers: Sequence[int], done: Sequence[int], batch_size: int, counts_path: str, packer
    ) -> tf.data.Dataset:
        """Returns the rows (`Plain.unpack`, or `Masks.draw`) of some streams, the same number from each,
        `batch_size` at a time; stream numbers[i] begins after its first done[i] rows. One dataset reads all
        streams, since one for each would take seconds to start.

        With a `packer`, these rows are sequences, which are packed here: returns rows (`Packer.pack`), and
        the numbers of their streams, int32 [batch_size]. The sequences of a stream are cut into buffers from
        its beginning on, and each buffer is packed independently; of the first one, the rows with the
        sequences done are skipped.
        """
        if packer is None:
            return _in_turns(numbers, self._positions(numbers, done, counts_path), batch_size, self._windows)
        size = packer.buffer(self.num_streams)
        buffers, passed = np.divmod(np.array(done, np.int64), size)
        positions = self._positions(numbers, (buffers * size).tolist(), counts_path)

        def stream(number, first, cut, *position):
            def pack(buffer, words):
                seed = _fold_in(self._order_seed(number, -1), buffer)  # in place of an epoch
                rows = packer.pack(words, seed)
                before = tf.where(buffer == first, cut, 0)
                rows = pipeline.without_done(rows, packer.sequences_of(rows), before)
                return rows, tf.fill(tf.shape(rows)[:1], tf.cast(number, tf.int32))

            words = self._windows(number, *position).map(lambda rows: packer.words(rows, self.reader))
            numbered = pipeline.rebatched(words, size, drop_remainder=True).enumerate(first)
            return numbered.map(pack, num_parallel_calls=pipeline.CALLS)

        return _in_turns(numbers, (buffers, passed, *positions), batch_size, stream)

    def _windows(self, number: tf.Tensor, *position: tf.Tensor) -> tf.data.Dataset:
        """Returns windows of shuffled rows of a stream from a position on, the fields of a `_StreamPosition`;
        without them, from the beginning."""
        begin = _StreamPosition(*position) if position else None

        def epochs(first: tf.Tensor | int) -> tf.data.Dataset:
            return tf.data.Dataset.range(first, tf.int64.max).flat_map(whole)

        def whole(epoch: tf.Tensor) -> tf.data.Dataset:
            order = self._order(number, epoch)
            files = tf.data.Dataset.from_tensor_slices((order, tf.zeros(tf.shape(order), tf.int64)))
            return self._shuffled(self._blocks(files), number, epoch, 0)

        if begin is None:
            return epochs(0)
        files = tf.data.Dataset.from_tensor_slices((begin.files, begin.passed)).take(begin.num_files)
        blocks = self._blocks(files.take(begin.group)).concatenate(self._blocks(files.skip(begin.group)))
        blocks = _skip(blocks, begin.cut_records)
        rest = _skip(self._shuffled(blocks, number, begin.epoch, begin.window), begin.cut_rows)
        return rest.concatenate(epochs(begin.epoch + 1))

    def _blocks(self, files: tf.data.Dataset) -> tf.data.Dataset:
        """Returns blocks of records of (file, records to skip), one group of files after the other.

        All files of a group start together. If a file started when another ends, it would fall behind the
        others, and copies of a document, which lie at different positions of the files, could come close
        together.
        """
        cycle = self._cycle()
        part = -(-self._window() // cycle)  # the order inside a window does not matter
        records = opener(self.files, self.record_format)
        return files.batch(cycle).flat_map(
            lambda paths, passed: tf.data.Dataset.from_tensor_slices((paths, passed)).interleave(
                lambda path, skipped: records(path).skip(skipped).batch(part), cycle, block_length=1
            )
        )

    def _shuffled(
        self, blocks: tf.data.Dataset, number: tf.Tensor, epoch: tf.Tensor, first_window: tf.Tensor | int
    ) -> tf.data.Dataset:
        seed = self._order_seed(number, epoch)

        def unpack(window_number, records):
            rows = self.reader.unpack(records, self.schema)
            if self.masks:
                rows = self.masks.draw(rows, self.reader, self.schema, epoch)
            return pipeline.shuffled(rows, _fold_in(seed, window_number))

        windows = pipeline.rebatched(blocks, self._window()).enumerate(first_window)
        return windows.map(unpack, num_parallel_calls=pipeline.CALLS)

    def _order_seed(self, number: tf.Tensor | int, epoch: tf.Tensor | int) -> tf.Tensor:
        return _fold_in(tf.stack([tf.constant(self.seed, tf.int64), number]), epoch)

    def _order(self, number: tf.Tensor | int, epoch: tf.Tensor | int) -> tf.Tensor:
        """Returns the files of a stream in the order of an epoch."""
        own = tf.constant(self.files)[number :: self.num_streams]
        return pipeline.shuffled(own, self._order_seed(number, epoch))

    def _window(self) -> int:
        return max(_SHUFFLED_ROWS // self.num_streams // self.reader.rows_per_record, 1)

    def _cycle(self) -> int:
        """Returns the number of files of a stream that are read in turns, so that all groups have about the
        same size."""
        own = -(-len(self.files) // self.num_streams)
        return -(-own // -(-own // _INTERLEAVED_FILES))

    def _positions(self, numbers: Sequence[int], rows_done: Sequence[int], counts_path: str) -> tuple:
        """Returns the fields of `_StreamPosition`, arrays with an entry per stream, after its first
        `rows_done` rows; empty if all streams start at the beginning."""
        if not any(rows_done):
            return ()
        own = sorted({path for number in numbers for path in self.files[number :: self.num_streams]})
        counts = dict(zip(own, count(own, self.record_format, counts_path)))
        with tf.device("CPU"):
            positions = [self._position(number, done, counts) for number, done in zip(numbers, rows_done)]
        fields = zip(_StreamPosition._fields, zip(*positions))
        return tuple(np.array(values, None if name == "files" else np.int64) for name, values in fields)

    def _position(self, number: int, rows_done: int, counts: dict[str, RowCounts]) -> _StreamPosition:
        """Calculates the position of a stream after its first rows."""
        epoch_rows = sum(counts[path].rows for path in self.files[number :: self.num_streams])
        if not epoch_rows:
            raise ConfigError(f"--input_files: {self.files[number]} has no examples.")
        epoch, rows = divmod(rows_done, epoch_rows)
        order = [path.decode() for path in self._order(np.int64(number), np.int64(epoch)).numpy()]
        held = [counts[path] for path in order]
        records, cycle, size = [found.records for found in held], self._cycle(), self._window()

        def position_of(window: int) -> Position:
            return interleaved_position(records, cycle, -(-size // cycle), window * size)

        def rows_before(window: int) -> int:
            return _rows_passed(held, position_of(window))

        window = _last(lambda window: rows_before(window) <= rows, -(-sum(records) // size))
        position = position_of(window)
        filling = len(order) - len(position.files)  # the lists of all streams have the same length
        return _StreamPosition(
            epoch,
            files=[order[file] for file, _ in position.files] + [""] * filling,
            passed=[passed for _, passed in position.files] + [0] * filling,
            num_files=len(position.files),
            group=position.group,
            window=window,
            cut_records=position.cut,
            cut_rows=rows - rows_before(window),
        )


def _in_turns(numbers: Sequence, positions: Sequence, batch_size: int, stream: Callable) -> tf.data.Dataset:
    """Returns the rows of some streams in turn, `batch_size` at a time; `stream` makes blocks of rows from a
    stream's number and its entries in `positions`."""
    turn = batch_size // math.gcd(batch_size, len(numbers))
    begins = tf.data.Dataset.from_tensor_slices((np.array(numbers, np.int64), *positions))
    turns = begins.interleave(
        lambda number, *position: pipeline.rebatched(stream(number, *position), turn, drop_remainder=True),
        cycle_length=len(numbers),
        block_length=1,
    )
    return pipeline.rebatched(turns, batch_size, drop_remainder=True)


def _rows_passed(files: list[RowCounts], position: Position) -> int:
    """Returns the number of rows before a position."""
    first, passed = position.files[0]
    left = sum(files[number].rows - files[number].rows_before(records) for number, records in position.files)
    cut = files[first].rows_before(passed + position.cut) - files[first].rows_before(passed)
    return sum(found.rows for found in files) - left + cut


def _skip(windows: tf.data.Dataset, rows: tf.Tensor) -> tf.data.Dataset:
    """Returns the windows without their first `rows` rows."""

    def cut(left, window):
        cut_off = tf.minimum(left, tf.shape(window, tf.int64)[0])
        return left - cut_off, window[cut_off:]

    return windows.scan(rows, cut).filter(lambda window: tf.shape(window)[0] > 0)
