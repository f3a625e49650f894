"""Between the two rounds of making pre-training data: files of documents -> fewer files for each pool.

A pool reads its range of keys from every file that covers it. Of very much text there are so many pools and
files that these reads become too small. Then documents are regrouped first: 256 files at a time become 256
others, each of which covers a 256th of the keys. That is done again while reads are still too small, so that
all of it stays proportional to the text. The documents that a pool reads, and their order, are the same.
"""

import collections
import contextlib
import dataclasses
import functools
import os
from collections.abc import Callable

from official.config import ConfigError
from official.data.pretraining import blocks
from official.data.pretraining.job import Job, vocabulary_of
from official.io import unfinished, workers
from official.io.stores import store_of

_BITS = 8  # of the keys, by which a level tells more apart than the one below
_FAN_IN = 1 << _BITS  # files that become one
RANGES = 1 << _BITS  # into which a range is cut
_FEWEST_READ_BYTES = 1 << 16  # that a pool reads from a file, on average


@dataclasses.dataclass(frozen=True)
class Grouping:
    """The files of documents at a level: the keys are cut into ranges, and each lies in some files.

    Attributes:
      folder: the work folder.
      level: 0: as the text was read, each file with documents of all keys.
      files: that cover a range.
      digest: of what the files hold; two jobs in one folder differ in it.
    """

    folder: str
    level: int
    files: int
    digest: str

    @property
    def range_bits(self) -> int:
        return blocks.KEY_BITS - self.level * _BITS

    def above(self) -> "Grouping":
        return dataclasses.replace(self, level=self.level + 1, files=-(-self.files // _FAN_IN))

    def below(self, files: int) -> "Grouping":
        return dataclasses.replace(self, level=self.level - 1, files=files)

    def paths(self, first_key: int, end_key: int) -> list[str]:
        """Returns the files in which documents of a range of keys lie."""
        if not self.level:
            return _files_of_level_0(self)
        ranges = range(first_key >> self.range_bits, ((end_key - 1) >> self.range_bits) + 1)
        return [self.path(number, file) for number in ranges for file in range(self.files)]

    def path(self, number: int, file: int) -> str:
        return os.path.join(self.level_folder, f"{number:0{2 * self.level}x}-{file:05d}.docs")

    @property
    def level_folder(self) -> str:
        return os.path.join(self.folder, f"level-{self.level}")


def block_path(folder: str, task: int, block: int) -> str:
    """Returns where a task of the first round writes a file of documents."""
    return os.path.join(folder, f"{task:06d}-{block:05d}.docs")


@functools.lru_cache(maxsize=1)
def _files_of_level_0(grouping: Grouping) -> list[str]:
    folder = grouping.level_folder
    found = sorted(
        os.path.join(folder, name) for name in store_of(folder).names_in(folder) if name.endswith(".docs")
    )
    if len(found) != grouping.files:
        raise ConfigError(
            f"{folder} of an unfinished job holds {len(found)} files of documents, expected {grouping.files}."
            " Throw the job away with --overwrite, and start again."
        )
    return found


def is_needed(grouping: Grouping, total_bytes: int, num_pools: int) -> bool:
    """Tells whether pools would read too little at once from the files, `total_bytes` in all."""
    return grouping.files > 1 and total_bytes < _FEWEST_READ_BYTES * grouping.files * num_pools


def regroup(
    job: Job, grouping: Grouping, text: collections.Counter, num_pools: int, sha256: str, run: Callable
) -> tuple[Grouping, collections.Counter]:
    """Regroups documents as often as it takes, in tasks that `run` runs; what is done already is not done
    again. Files of a level are removed when the level above is complete.

    Args:
      grouping: of level 0.
      text: counts of it, `block_bytes`, of all files.
      num_pools: that will be read from them.
      run: (tasks, number of them, doing, items) -> None.

    Returns:
      From what the pools are to be read, and the counts of the documents that were dropped on the way.
    """
    dropped: collections.Counter[str] = collections.Counter()
    while is_needed(grouping, text["block_bytes"], num_pools):
        above, ranges = grouping.above(), range(1 << (_BITS * (grouping.level + 1)))
        complete = f"{above.level_folder}.json"
        if not unfinished.read_done(complete):
            share = text["bytes"] / len(ranges) / above.files
            places = [(number, file) for file in range(above.files) for number in ranges]
            merges = ((merge, job, above, grouping.files, place, share, sha256) for place in places)
            run(merges, len(places), "Regrouping", "documents")
            counts: collections.Counter[str] = collections.Counter()
            for done in unfinished.read_all_done(_counts_path(above, place) for place in places):
                counts.update(done)
            unfinished.write_done(complete, counts)
        dropped.update(unfinished.read_what_is_done(complete))
        with contextlib.suppress(OSError):  # or it is gone already
            store_of(grouping.folder).remove_folder(grouping.level_folder)
        grouping = above
    return grouping, dropped


def _counts_path(grouping: Grouping, place: tuple[int, int]) -> str:
    return f"{grouping.path(*place)}.json"


def merge(
    job: Job, target: Grouping, files_below: int, place: tuple[int, int], share: float, sha256: str
) -> None:
    """Writes a file of a level: the documents of a range of keys from up to 256 files of the level below.

    Args:
      place: number of the range, and of the file among those of the range.
      share: of the text, in bytes.
    """
    counted, (number, file) = _counts_path(target, place), place
    if not unfinished.read_done(counted):
        first_key = number << target.range_bits
        end_key = first_key + (1 << target.range_bits)
        paths = target.below(files_below).paths(first_key, end_key)
        sample = blocks.read_range(paths[file * _FAN_IN : (file + 1) * _FAN_IN], first_key, end_key)
        counts: dict[str, int] = {"duplicate_documents": 0}
        if job.drop_duplicates:
            sample, others = sample.without_duplicates()
            counts = dropped_counts(others, vocabulary_of(job.vocab_file, sha256).id_of("[UNK]"))
        store_of(target.folder).make_folder(target.level_folder)
        blocks.write_block(target.path(number, file), sample, first_key, target.range_bits)
        unfinished.write_done(counted, counts)
    workers.report(share, 0)


def dropped_counts(others: blocks.Sample, unknown: int) -> dict[str, int]:
    """Returns what duplicates change in the counts of the text; `unknown` is the id of [UNK]."""
    counts = {name: -value for name, value in others.counts(unknown).items()}
    return {**counts, "duplicate_documents": len(others.keys)}
