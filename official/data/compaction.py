"""Compaction: merges files whose items are sorted by a 64-bit key, so that a reader of a range of keys opens
fewer files.

A file is a header, the offsets of its chunks, and the chunks: its range of keys is cut into 2^N equal parts,
and a chunk holds the items of one part. All numbers are little-endian.

A job writes such files while it reads its input, each with items of all keys; then many readers each read a
range of keys from every file. With a very large input, there are so many files and readers that these reads
become too small. Then every 256 files are merged into 256 others, each of which covers a 256th of the keys,
again and again until reads are large enough. The work stays proportional to the input, and readers get the
same items in the same order.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import functools
import itertools
import os
import struct
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import numpy as np

from official.data.rows import ragged
from official.io import files, jobs, writing
from official.io.errors import ConfigError
from official.io.files import store_of

_Things = TypeVar("_Things")

KEY_BITS = 64
BITS = 8  # bits of the key by which a level splits finer than the one below; 2**BITS files are merged
_MIN_READ_BYTES = 1 << 16  # average size of a reader's read from one file


@dataclasses.dataclass(frozen=True)
class Grouping:
    """The files at a level: the keys are cut into ranges, and each range is in one or more files.

    Attributes:
      folder: the work folder.
      level: 0 for the files written while reading the input, each with all keys.
      files: number of files that cover a range.
      digest: digest of the job; it tells jobs in one folder apart.
      ending: suffix of the file names.
    """

    folder: str
    level: int
    files: int
    digest: str
    ending: str = ".docs"

    @property
    def range_bits(self) -> int:
        return KEY_BITS - self.level * BITS

    @property
    def ranges(self) -> int:
        return 1 << (self.level * BITS)

    @property
    def level_folder(self) -> str:
        return os.path.join(self.folder, f"level-{self.level}")

    def above(self) -> Grouping:
        return dataclasses.replace(self, level=self.level + 1, files=-(-self.files >> BITS))

    def keys(self, number: int) -> tuple[int, int]:
        """Returns the first key of a range and the end, exclusive."""
        return number << self.range_bits, (number + 1) << self.range_bits

    def paths(self, first_key: int, end_key: int) -> list[str]:
        """Returns the paths of the files with items of a range of keys."""
        if not self.level:
            return _files_of_level_0(self)
        ranges = range(first_key >> self.range_bits, ((end_key - 1) >> self.range_bits) + 1)
        return [self.path(number, file) for number in ranges for file in range(self.files)]

    def path(self, number: int, file: int) -> str:
        """Returns the path of a file of a range, at level 1 or above."""
        return os.path.join(self.level_folder, f"{number:0{2 * self.level}x}-{file:05d}{self.ending}")

    def path_of_task(self, task: int, file: int) -> str:
        """Returns the path of a file of level 0, which a task that reads the input writes."""
        return os.path.join(self.level_folder, f"{task:06d}-{file:05d}{self.ending}")

    def paths_below(self, files_below: int, number: int, file: int) -> list[str]:
        """Returns the paths of the files that are merged into a file, from the level below, which has
        `files_below` files per range."""
        below = dataclasses.replace(self, level=self.level - 1, files=files_below)
        return below.paths(*self.keys(number))[file << BITS : (file + 1) << BITS]

    def counts_path(self, number: int, file: int) -> str:
        """Returns the path of the counts of a file. Written last, they mark the task as finished."""
        return f"{self.path(number, file)}.json"


def done_path(folder: str, kind: str, number: int) -> str:
    """Returns the path of a task's counts. Written last, they mark the task as finished; tasks are numbered
    per kind."""
    return os.path.join(folder, f"{kind}-{number:05d}.json")


@functools.lru_cache(maxsize=1)
def _files_of_level_0(grouping: Grouping) -> list[str]:
    folder = grouping.level_folder
    names = sorted(name for name in store_of(folder).names_in(folder) if name.endswith(grouping.ending))
    if len(names) != grouping.files:
        raise damaged(folder, f"it holds {len(names)} files, expected {grouping.files}")
    return [os.path.join(folder, name) for name in names]


def damaged(path: str, why: object) -> ConfigError:
    """Returns the error for a file or folder that differs from what the job wrote."""
    what = f"{path} of an unfinished job is damaged ({why})"
    return ConfigError(f"{what}. Give --overwrite to discard the job and start again.")


# -----------------------------------------------------------------------------------------------------------
# Files
#
# Tokens are written as words of two or four bytes each.


# Magic, log2 of the number of chunks, log2 of the range's keys, bytes of a word, 0, first key.
_HEADER = struct.Struct("<8sBBBBQ")
_PLACE = np.dtype("<u8")
_WORDS: dict[int, np.dtype] = {2: np.dtype("<u2"), 4: np.dtype("<i4")}  # by their size in bytes
_READERS = 8  # concurrent reads: each has a latency in a store


def bounds(first_key: int, range_bits: int, bits: int) -> list[int]:
    """Returns the first keys of the 2**bits chunks of a file that covers 2**range_bits keys from `first_key`
    on, and the end of the last chunk."""
    step = 1 << (range_bits - bits)
    return [first_key + number * step for number in range((1 << bits) + 1)]


def write_chunks(
    path: str, magic: bytes, chunks: list[bytes], word_bytes: int, first_key: int, range_bits: int
) -> None:
    """Writes a file of 2**N chunks, see `bounds`, atomically, and makes its folder; `magic` identifies the
    kind of file. Raises OSError; an earlier file of that name then stays."""
    bits = len(chunks).bit_length() - 1
    begin = _HEADER.size + _PLACE.itemsize * (len(chunks) + 1)
    places = begin + ragged.offsets(np.array([*map(len, chunks)]))
    header = _HEADER.pack(magic, bits, range_bits, word_bytes, 0, first_key)
    store_of(path).make_folder(os.path.dirname(path))
    with writing.replacing(path) as temporary, open(temporary, "wb") as file:
        file.writelines([header, places.astype(_PLACE).tobytes(), *chunks])


def read_chunks(
    paths: Iterable[str],
    magic: bytes,
    first_key: int,
    end_key: int,
    parse: Callable[[memoryview, np.dtype], _Things],
) -> list[_Things]:
    """Returns the parsed chunks that may have keys of a range: at least one of each file, in the order of the
    files.

    Args:
      magic: as of `write_chunks`.
      first_key, end_key: the range; `end_key`, up to 2**64, is exclusive.
      parse: (chunk, dtype of its words) -> result.

    Raises:
      ConfigError: for a missing or damaged file.
    """

    def read_file(path: str) -> list[_Things]:
        try:
            with files.reading_parts(path) as read:
                found, bits, range_bits, word_bytes, _, begin = _HEADER.unpack(read(0, _HEADER.size))
                if found != magic:
                    raise ValueError("its first bytes are those of another kind of file")
                first, last = ((key - begin) >> (range_bits - bits) for key in (first_key, end_key - 1))
                first, last = (min(max(number, 0), (1 << bits) - 1) for number in (first, last))
                listed = read(_HEADER.size + first * _PLACE.itemsize, (last - first + 2) * _PLACE.itemsize)
                places = np.frombuffer(listed, _PLACE).tolist()
                data = memoryview(read(places[0], places[-1] - places[0]))
            ends = [place - places[0] for place in places]
            return [parse(data[start:end], _WORDS[word_bytes]) for start, end in zip(ends, ends[1:])]
        except (OSError, ValueError, LookupError, struct.error, TypeError, OverflowError) as error:
            raise damaged(path, error) from None

    with ThreadPoolExecutor(_READERS) as pool:
        return list(itertools.chain.from_iterable(pool.map(read_file, paths)))


# -----------------------------------------------------------------------------------------------------------
# Levels


def compact(
    grouping: Grouping, total_bytes: int, readers: int, merge: Callable[..., tuple], run: Callable[..., None]
) -> tuple[Grouping, collections.Counter]:
    """Merges files, level by level, until reads are large enough. Finished tasks are skipped. Files of a
    level are removed when the level above is complete.

    Args:
      grouping: level 0.
      total_bytes: total size of its files.
      readers: number of readers of the result.
      merge: (level above, files of a range below, (number of the range, of the file)) -> a task that merges
        `paths_below` into this file, and writes its counts to `counts_path`. Several tasks get the same
        range; each writes different files of it.
      run: (tasks, number of tasks) -> None.

    Returns:
      The level for readers to read, and the sums of the tasks' counts.
    """
    counted: collections.Counter[str] = collections.Counter()
    # Merge as long as a reader's reads from each file are too small.
    while grouping.files > 1 and total_bytes < _MIN_READ_BYTES * grouping.files * readers:
        below, above = grouping, grouping.above()
        complete = f"{above.level_folder}.json"
        if jobs.read_done(complete) is None:
            places = [(number, file) for file in range(above.files) for number in range(above.ranges)]
            run((merge(above, below.files, place) for place in places), len(places))
            counts: collections.Counter[str] = collections.Counter()
            for done in jobs.each_done(above.counts_path(*place) for place in places):
                counts.update(done)
            jobs.write_done(complete, counts, durable=True)
        counted.update(jobs.read_what_is_done(complete))
        with contextlib.suppress(OSError):  # already removed
            store_of(below.folder).remove_folder(below.level_folder)
        grouping = above
    return grouping, counted
