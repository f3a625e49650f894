"""Order of training rows: files are dealt out to streams, and each is read for ever in its own order."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from official.config import derived
from official.config.derived import num_streams
from official.data import pipeline
from official.data.records.counts import RowCounts, check_ends
from official.data.records.on_the_fly import Packer
from official.data.records.shard_files import FRAME_BYTES
from official.io import files as io_files
from official.io.errors import ConfigError

# -----------------------------------------------------------------------------------------------------------
# Position in an interleaved reading
#
# Files are read in groups, one group after the other. The files of a group are read in turns, a block of
# `part` records of each; the last block of a file is what is left of it. That is how tf.data's interleave
# works on files that are read in batches of `part`. So a reading that goes on is a new one of the group's
# files in the order in which their turns come, each without its first records, and then of the groups
# behind it.


class Position(NamedTuple):
    """Position of a reading.

    Attributes:
      files: (number, records that are passed) of those not read to the end: those of the group in the order
        of their turns, then those of the groups behind it.
      group: how many of them are of the group.
      cut: records that are passed, too, of the first block that comes.
    """

    files: list[tuple[int, int]]
    group: int
    cut: int


def interleaved_position(records: Sequence[int], cycle: int, part: int, passed: int) -> Position:
    """Returns the position of the reading after its first `passed` records.

    Args:
      records: of each file, in the order in which they are opened.
      cycle: files of a group.
      part: records of a block.
      passed: fewer than all records.
    """
    first = 0
    while passed >= (whole := sum(records[first : first + cycle])):
        first, passed = first + cycle, passed - whole
    numbers = range(first, min(first + cycle, len(records)))
    behind = [(number, 0) for number in range(numbers.stop, len(records))]

    def read(rounds: int) -> list[int]:
        return [min(records[number], rounds * part) for number in numbers]

    rounds, too_many = 0, max(records) // part + 2
    while too_many - rounds > 1:  # halving: there may be very many rounds
        middle = (rounds + too_many) // 2
        rounds, too_many = (middle, too_many) if sum(read(middle)) <= passed else (rounds, middle)
    left = passed - sum(read(rounds))
    done, next_round = ([*zip(numbers, read(count))] for count in (rounds, rounds + 1))
    for turn, (before, after) in enumerate(zip(done, next_round)):
        if after[1] - before[1] > left:
            turns = [
                (number, own) for number, own in done[turn:] + next_round[:turn] if own < records[number]
            ]
            return Position(turns + behind, len(turns), left)
        left -= after[1] - before[1]
    raise AssertionError("a round that is not whole ends inside one of its blocks")


# -----------------------------------------------------------------------------------------------------------
# Streams
#
# The position of a stream after any number of rows is found by arithmetic, from the numbers of records and
# rows of its files; what was read before is passed over without being parsed or shuffled.


__all__ = ["Reading", "Streams", "num_streams", "own_streams"]

_INTERLEAVED_FILES = 8  # at most, as the MLPerf reference
_SHUFFLED_ROWS = 8192  # of all streams together
_PACKING = -1  # in place of an epoch: the order of packed rows


class _StreamPosition(NamedTuple):
    """Position of a stream inside an epoch; that of all streams has a dimension more."""

    epoch: int
    files: list[str]  # in the order in which they are opened
    passed: list[int]  # records of each of them that were read before
    num_files: int  # of them; what is behind them is filling
    group: int  # files of them that are read in turns before the others are begun
    window: int  # number of the first one that is made
    cut_records: int  # that were read before, of the first block that comes
    cut_rows: int  # that were given before, of the first window


class Reading(NamedTuple):
    """Reading of a format: the functions that make rows of its records.

    Attributes:
      open: (paths) -> dataset of their records, string.
      unpack: records, string [B] -> rows, [N] or [N, W], in the form in which they are shuffled.
      rows_per_record: at most.
      count_rows: (paths, path of the file that the counts are kept in) -> the counts of each file.
    """

    open: Callable[[tf.Tensor | str | list[str]], tf.data.Dataset]
    unpack: Callable[[tf.Tensor], tf.Tensor]
    rows_per_record: int
    count_rows: Callable[[list[str], str], list[RowCounts]]


def own_streams(
    files: list[str], num_streams: int, order: pipeline.TrainingOrder, batch_size: int, is_framed: bool = True
) -> range:
    """Returns the streams of a host: stream s is host s % num_hosts's. Only files of its own are looked at.

    Args:
      files: all files of the job, in the same order on every host.
      num_streams: see `num_streams`.
      order: says which host this is.
      batch_size: rows of a batch of this host.
      is_framed: whether the records lie in the frames of TFRecord files.

    Raises:
      ConfigError: where the streams cannot be shared out among the hosts, or a file is empty or cut off.
    """
    derived.check_hosts(len(files), num_streams, order.num_hosts, batch_size * order.num_hosts)
    own = files[order.host :: order.num_hosts]
    # TensorFlow reads a file that is cut off within its first bytes as an empty one, and a stream of those
    # would never yield.
    for path, size in zip(own, io_files.sizes(own)):
        if size < FRAME_BYTES:
            raise ConfigError(f"--input_files: {path} has no records.")
    if is_framed:
        check_ends(own)
    return range(order.host, num_streams, order.num_hosts)


class Streams(NamedTuple):
    """The files, dealt out to streams that are each read for ever in an order of its own."""

    files: list[str]
    num_streams: int
    reading: Reading
    seed: int

    def rows(
        self, numbers: Sequence[int], rows_done: int, batch_size: int, counts_path: str
    ) -> tf.data.Dataset:
        """Returns the rows (`Reading.unpack`) of some streams, as many of one as of the other,
        `batch_size` at a time.

        Each begins after its first `rows_done` rows. One dataset goes through all streams: one for each
        would take seconds to start.
        """
        positions = self._positions(numbers, [rows_done] * len(numbers), counts_path)
        return _in_turns(
            numbers, positions, batch_size, lambda number, *position: self._from(number, position)
        )

    def packed_rows(
        self,
        numbers: Sequence[int],
        sequences_done: Sequence[int],
        batch_size: int,
        counts_path: str,
        packer: Packer,
        to_words: Callable[[tf.Tensor], tf.Tensor],
    ) -> tf.data.Dataset:
        """Returns rows (`Packer.pack`) that are packed of the sequences of each stream, and the numbers of
        their streams, int32 [batch_size]; as many of one stream as of the other. `to_words` turns unpacked
        sequences into the packer's input.

        Stream numbers[i] begins after its first sequences_done[i] sequences. Its sequences are cut into
        buffers from its beginning on, and each buffer is packed by itself: what is passed over of the first
        one are the rows that hold the sequences done.
        """
        size = packer.buffer(self.num_streams)
        buffers, passed = np.divmod(np.array(sequences_done, np.int64), size)
        positions = self._positions(numbers, (buffers * size).tolist(), counts_path)

        def stream(number, first, cut, *position):
            def pack(buffer, words):
                seed = tf.random.experimental.stateless_fold_in(self._order_seed(number, _PACKING), buffer)
                rows = packer.pack(words, seed)
                done = tf.where(buffer == first, cut, 0)
                rows = pipeline.without_done(rows, packer.sequences_of(rows), done)
                return rows, tf.fill(tf.shape(rows)[:1], tf.cast(number, tf.int32))

            words = pipeline.rebatched(self._from(number, position).map(to_words), size, drop_remainder=True)
            numbered = words.enumerate(first)
            return numbered.map(pack, num_parallel_calls=pipeline.CALLS)

        return _in_turns(numbers, (buffers, passed, *positions), batch_size, stream)

    def _from(self, number: tf.Tensor, position: Sequence[tf.Tensor]) -> tf.data.Dataset:
        """Returns windows of shuffled rows of a stream from the fields of a `_StreamPosition` on; of none,
        from its beginning on."""
        if not position:
            return self._epochs(number, 0)
        begin = _StreamPosition(*position)
        rest = _skip(self._windows(number, begin), begin.cut_rows)
        return rest.concatenate(self._epochs(number, begin.epoch + 1))

    def _epochs(self, number: tf.Tensor, first: tf.Tensor | int) -> tf.data.Dataset:
        """Returns windows of shuffled rows of a stream, from the beginning of an epoch on (int64 scalars)."""
        return tf.data.Dataset.range(first, tf.int64.max).flat_map(lambda epoch: self._epoch(number, epoch))

    def _epoch(self, number: tf.Tensor, epoch: tf.Tensor) -> tf.data.Dataset:
        order = self._order(number, epoch)
        blocks = self._blocks(
            tf.data.Dataset.from_tensor_slices((order, tf.zeros(tf.shape(order), tf.int64)))
        )
        return self._shuffled(blocks, number, epoch, 0)

    def _windows(self, number: tf.Tensor, position: _StreamPosition) -> tf.data.Dataset:
        """Returns the windows of an epoch from a position on."""
        files = tf.data.Dataset.from_tensor_slices((position.files, position.passed)).take(position.num_files)
        begun = files.take(position.group).batch(self._cycle())
        blocks = self._in_groups(begun).concatenate(self._blocks(files.skip(position.group)))
        return self._shuffled(_skip(blocks, position.cut_records), number, position.epoch, position.window)

    def _blocks(self, files: tf.data.Dataset) -> tf.data.Dataset:
        return self._in_groups(files.batch(self._cycle()))

    def _in_groups(self, groups: tf.data.Dataset) -> tf.data.Dataset:
        """Returns blocks of records of groups of (file, records to pass over), one group after the other.

        All files of a group are begun together. A file that was begun where another ends would be ever
        further behind the others, and in each the copies of a document come at other times: they would meet.
        """

        def read(path, passed):
            return self.reading.open(path).skip(passed).batch(self._part())

        return groups.flat_map(
            lambda paths, passed: tf.data.Dataset.from_tensor_slices((paths, passed)).interleave(
                read, cycle_length=self._cycle(), block_length=1
            )
        )

    def _shuffled(
        self, blocks: tf.data.Dataset, number: tf.Tensor, epoch: tf.Tensor, first_window: tf.Tensor | int
    ) -> tf.data.Dataset:
        seed = self._order_seed(number, epoch)

        def unpack(window_number, records):
            rows = self.reading.unpack(records)
            return pipeline.shuffled(rows, tf.random.experimental.stateless_fold_in(seed, window_number))

        windows = pipeline.rebatched(blocks, self._window()).enumerate(first_window)
        return windows.map(unpack, num_parallel_calls=pipeline.CALLS)

    def _order_seed(self, number: tf.Tensor | int, epoch: tf.Tensor | int) -> tf.Tensor:
        return tf.random.experimental.stateless_fold_in(
            tf.stack([tf.constant(self.seed, tf.int64), number]), epoch
        )

    def _order(self, number: tf.Tensor | int, epoch: tf.Tensor | int) -> tf.Tensor:
        """Returns the files of a stream in the order of an epoch."""
        own = tf.constant(self.files)[number :: self.num_streams]
        return pipeline.shuffled(own, self._order_seed(number, epoch))

    def _window(self) -> int:
        return max(_SHUFFLED_ROWS // self.num_streams // self.reading.rows_per_record, 1)

    def _cycle(self) -> int:
        """Returns the number of files of a stream that are read in turns: groups are about equally large."""
        own = -(-len(self.files) // self.num_streams)
        return -(-own // -(-own // _INTERLEAVED_FILES))

    def _part(self) -> int:
        """Returns the records of a window that are read from one file: what is inside a window is shuffled
        anyway."""
        return -(-self._window() // self._cycle())

    def _positions(
        self, numbers: Sequence[int], rows_done: Sequence[int], counts_path: str
    ) -> tuple[np.ndarray, ...]:
        """Returns the fields of `_StreamPosition`, one for each stream, after its first rows; none where all
        begin."""
        if not any(rows_done):
            return ()
        own = sorted({path for number in numbers for path in self.files[number :: self.num_streams]})
        counts = dict(zip(own, self.reading.count_rows(own, counts_path)))
        with tf.device("CPU"):
            positions = [self._position(number, done, counts) for number, done in zip(numbers, rows_done)]
        fields = zip(_StreamPosition._fields, zip(*positions))
        return tuple(np.array(values, None if name == "files" else np.int64) for name, values in fields)

    def _position(self, number: int, rows_done: int, counts: dict[str, RowCounts]) -> _StreamPosition:
        """Returns the position of a stream after its first rows, found by arithmetic."""
        epoch_rows = sum(counts[path].rows for path in self.files[number :: self.num_streams])
        if not epoch_rows:
            raise ConfigError(f"--input_files: {self.files[number]} has no examples.")
        epoch, rows = divmod(rows_done, epoch_rows)
        order = [path.decode() for path in self._order(np.int64(number), np.int64(epoch)).numpy()]
        held = [counts[path] for path in order]
        records = [found.records for found in held]

        def find_position(window: int) -> Position:
            return interleaved_position(records, self._cycle(), self._part(), window * self._window())

        def rows_before(window: int) -> int:
            return _rows_passed(held, find_position(window))

        window = _last_begun(rows_before, -(-sum(records) // self._window()), rows)
        position = find_position(window)
        filling = len(order) - len(position.files)  # all streams' lists have one length
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


def _in_turns(
    numbers: Sequence[int], positions: Sequence[np.ndarray], batch_size: int, stream: Callable
) -> tf.data.Dataset:
    """Returns the rows of some streams in turn, `batch_size` at a time; `stream` makes blocks of them from
    its number and its fields of `positions`."""
    turn = batch_size // math.gcd(batch_size, len(numbers))
    begins = tf.data.Dataset.from_tensor_slices((np.array(numbers, np.int64), *positions))
    turns = begins.interleave(
        lambda number, *position: pipeline.rebatched(stream(number, *position), turn, drop_remainder=True),
        cycle_length=len(numbers),
        block_length=1,
    )
    return pipeline.rebatched(turns, batch_size, drop_remainder=True)


def _last_begun(rows_before: Callable[[int], int], windows: int, rows: int) -> int:
    """Returns the last window, from 0 to `windows` - 1, before which there are `rows` rows at most."""
    first, behind = 0, windows
    while behind - first > 1:
        middle = (first + behind) // 2
        first, behind = (middle, behind) if rows_before(middle) <= rows else (first, middle)
    return first


def _rows_passed(files: list[RowCounts], position: Position) -> int:
    """Returns the rows that come before a position."""
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
