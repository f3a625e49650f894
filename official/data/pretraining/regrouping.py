"""Between the two rounds of making pre-training data: files of documents -> fewer files for each pool, where
there is very much text (`official.data.regrouping`)."""

import collections
from collections.abc import Callable

from official.data import regrouping
from official.data.pretraining import blocks
from official.data.pretraining.job import Job, vocabulary_of
from official.data.regrouping import Grouping
from official.io import unfinished, workers
from official.io.stores import store_of


def regroup(
    job: Job, grouping: Grouping, text: collections.Counter, num_pools: int, sha256: str, run: Callable
) -> tuple[Grouping, collections.Counter]:
    """Regroups documents as often as it takes, in tasks that `run` runs.

    Args:
      grouping: of level 0.
      text: counts of it, `bytes` and `block_bytes`, of all files.
      num_pools: that will be read from them.
      run: (tasks, number of them, doing, items) -> None.

    Returns:
      The grouping that the pools are to be read from, and the counts of the documents that were dropped.
    """

    def task(above: Grouping, files_below: int, place: tuple[int, int]) -> tuple:
        share = text["bytes"] / above.ranges / above.files
        return merge, job, above, files_below, place, share, sha256

    return regrouping.regroup(
        grouping,
        text["block_bytes"],
        num_pools,
        task,
        lambda tasks, number: run(tasks, number, "Regrouping", "documents"),
    )


def merge(
    job: Job, target: Grouping, files_below: int, place: tuple[int, int], share: float, sha256: str
) -> None:
    """Writes a file of a level: the documents of a range of keys from up to 256 files of the level below.

    Args:
      place: number of the range, and of the file among those of the range.
      share: of the text, in bytes.
    """
    counted = target.counts_path(*place)
    if not unfinished.read_done(counted):
        first_key, end_key = target.keys(place[0])
        sample = blocks.read_range(target.paths_below(files_below, *place), first_key, end_key)
        counts: dict[str, int] = {"duplicate_documents": 0}
        if job.drop_duplicates:
            sample, others = sample.without_duplicates()
            counts = dropped_counts(others, vocabulary_of(job.vocab_file, sha256).id_of("[UNK]"))
        store_of(target.folder).make_folder(target.level_folder)
        blocks.write_block(target.path(*place), sample, first_key, target.range_bits)
        unfinished.write_done(counted, counts)
    workers.report(share, 0)


def dropped_counts(others: blocks.Sample, unknown: int) -> dict[str, int]:
    """Returns the changes that duplicates make to the counts of the text; `unknown` is the id of [UNK]."""
    counts = {name: -value for name, value in others.counts(unknown).items()}
    return {**counts, "duplicate_documents": len(others.keys)}
