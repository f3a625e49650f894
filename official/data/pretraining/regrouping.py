"""Between the two rounds of making pre-training data: files of documents -> fewer files for each pool.

A pool reads its range of keys from every file that covers it. Of very much text there are so many pools and
files that these reads become too small. Then documents are regrouped first: 256 files at a time become 256
others, each of which covers a 256th of the keys. That is done again while reads are still too small, so that
all of it stays proportional to the text. The documents that a pool reads, and their order, are the same.
"""

import dataclasses
import functools
import os
import shutil
from collections.abc import Callable

from official.config import ConfigError
from official.data.pretraining import blocks
from official.io import unfinished, workers

_BITS = 8  # of the keys, by which a level tells more apart than the one below
_FAN_IN = 1 << _BITS  # files that become one
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
    found = sorted(os.path.join(folder, name) for name in os.listdir(folder) if name.endswith(".docs"))
    if len(found) != grouping.files:
        raise ConfigError(
            f"{folder} of an unfinished job holds {len(found)} files of documents, expected {grouping.files}."
            " Throw the job away with --overwrite, and start again."
        )
    return found


def regroup(grouping: Grouping, total_bytes: int, num_pools: int, run: Callable) -> Grouping:
    """Regroups documents as often as it takes, in tasks that `run` runs; what is done already is not done
    again. Files of a level are removed when the level above is complete.

    Args:
      grouping: of level 0.
      total_bytes: of all files.
      num_pools: that will be read from them.
      run: (tasks, doing, items) -> None.

    Returns:
      From what the pools are to be read.
    """
    while grouping.files > 1 and total_bytes < _FEWEST_READ_BYTES * grouping.files * num_pools:
        above = grouping.above()
        complete = f"{above.level_folder}.json"
        if not unfinished.read_done(complete):
            ranges = range(1 << (_BITS * above.level))
            share = total_bytes / len(ranges) / above.files
            run(
                (
                    (merge, above, grouping.files, number, file, share)
                    for file in range(above.files)
                    for number in ranges
                ),
                doing="Regrouping",
                items="documents",
            )
            unfinished.write_done(complete, {"files": above.files})
        shutil.rmtree(grouping.level_folder, ignore_errors=True)  # or it is gone already
        grouping = above
    return grouping


def merge(target: Grouping, files_below: int, number: int, file: int, share: float) -> None:
    """Writes a file of a level: the documents of a range of keys from up to 256 files of the level below."""
    path = target.path(number, file)
    if not os.path.exists(path):
        first_key = number << target.range_bits
        end_key = first_key + (1 << target.range_bits)
        paths = target.below(files_below).paths(first_key, end_key)
        sample = blocks.read_range(paths[file * _FAN_IN : (file + 1) * _FAN_IN], first_key, end_key)
        os.makedirs(target.level_folder, exist_ok=True)
        blocks.write_block(path, sample, first_key, target.range_bits)
    workers.report(share, 0)
