"""The rounds of packing: count the lengths in the input, spill its sequences by shard, regroup what was
spilled where it is very much, write the shards.

What a task writes depends on the input, the job and the task's number. A task that is done is not done again.
"""

from __future__ import annotations

import dataclasses
import errno
import os
from collections.abc import Iterator

import numpy as np
import tensorflow as tf

from official.data.packing import parts, spills
from official.data.packing.dealing import Dealer
from official.data.packing.plan import PackingPlan
from official.data.pretraining.examples import Examples
from official.data.records.formats import packed
from official.data.regrouping import Grouping
from official.io import files, finished_jobs, unfinished, workers, writing
from official.io.errors import ConfigError
from official.io.stores import store_of

BLOCKS_VERSION = 3  # of how they are laid out: a job does not go on with others
_BLOCK_SEQUENCES = 1 << 14  # of a spilled block: about 60 MB in memory for 512 tokens
_ENCODED_ROWS = 512  # at once
_ORDER = 1  # kind of random stream: the rows of a shard


def _is_done(path: str, part: parts.Part) -> bool:
    """Tells whether a task over a part is done, and counts it for the bar where it is."""
    done = unfinished.read_done(path) is not None
    if done:
        workers.report(sum(size for _, size in part.files), 0)
    return done


# ------------------------------------------------------------------------------------------------------------
# 1. Counting


def counts_path(folder: str, number: int) -> str:
    return os.path.join(folder, f"counts-{number:05d}.json")


def count_part(folder: str, part: parts.Part) -> None:
    """Writes the numbers of sequences of a part, by length."""
    path = counts_path(folder, part.number)
    if _is_done(path, part):
        return
    counts = np.zeros(part.shape.max_seq_length + 1, np.int64)
    for examples in parts.examples(part):
        counts += np.bincount(examples.lengths, minlength=len(counts))
        workers.report(0, len(examples))
    unfinished.write_done(path, {"lengths": counts.tolist()})


def read_counts(folder: str, number: int) -> np.ndarray:
    """Returns the numbers of sequences of a part, by length, int64 [L + 1]. Raises OSError."""
    return np.array(unfinished.read_what_is_done(counts_path(folder, number))["lengths"], np.int64)


# ------------------------------------------------------------------------------------------------------------
# 2. Spilling


@dataclasses.dataclass(frozen=True)
class Deal:
    """The plan and how it is dealt out, which all tasks of a job share."""

    output_dir: str
    plan: PackingPlan
    num_shards: int
    seed: int
    sequences_per_pack: int

    def dealer(self) -> Dealer:
        return Dealer(self.plan, self.num_shards, self.seed)

    def file(self, shard: int) -> str:
        return f"part-{shard:05d}-of-{self.num_shards:05d}.tfrecord"


def spilled_path(folder: str, number: int) -> str:
    """Returns the path of the counts of a part's blocks and bytes, which its task writes last."""
    return os.path.join(folder, f"spilled-{number:05d}.json")


def spill_part(deal: Deal, grouping: Grouping, part: parts.Part, before: np.ndarray) -> None:
    """Writes the sequences of a part into blocks, by shard.

    Args:
      deal: of the job.
      grouping: says where to; of level 0.
      part: the files.
      before: int64 [L + 1], how many sequences of each length the parts before it have.
    """
    path = spilled_path(grouping.folder, part.number)
    if _is_done(path, part):
        return
    done = {"blocks": 0, "block_bytes": 0}
    dealer = deal.dealer()
    seen = before.copy()
    last = seen + read_counts(grouping.folder, part.number)
    store_of(grouping.folder).make_folder(grouping.level_folder)
    for some in _blocks(parts.examples(part)):
        lengths = np.concatenate([examples.lengths for examples in some])
        _check_unchanged(seen + np.bincount(lengths, minlength=len(seen)) <= last, part)
        sequences = spills.dealt(some, *_deal_out(dealer, lengths, seen))
        spills.write_file(grouping.path_of_task(part.number, done["blocks"]), sequences, deal.num_shards)
        done["blocks"] += 1
        done["block_bytes"] += sequences.heads.nbytes + sequences.words.nbytes
        workers.report(0, len(lengths))
    _check_unchanged(seen == last, part)
    unfinished.write_done(path, done)


def _check_unchanged(is_right: np.ndarray, part: parts.Part) -> None:
    if not is_right.all():
        raise ConfigError(f"{part.named()} was changed while it was read. Pack it again, with --overwrite.")


def _blocks(batches: Iterator[Examples]) -> Iterator[list[Examples]]:
    some: list[Examples] = []
    for examples in batches:
        some.append(examples)
        if sum(map(len, some)) >= _BLOCK_SEQUENCES:
            yield some
            some = []
    if some:
        yield some


def _deal_out(dealer: Dealer, lengths: np.ndarray, seen: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns shards and places, int [N] each, and counts the sequences in `seen` [L + 1]."""
    shards, places = np.zeros_like(lengths), np.zeros_like(lengths)
    for length in np.unique(lengths):
        own = np.flatnonzero(lengths == length)
        shards[own], places[own] = dealer.places(int(length), seen[length] + np.arange(len(own)))
        seen[length] += len(own)
    return shards, places


# ------------------------------------------------------------------------------------------------------------
# 3. Regrouping, where there are very many blocks


def merge(target: Grouping, files_below: int, place: tuple[int, int], num_shards: int, share: float) -> None:
    """Writes a file of a level: the sequences of a range of shards from up to 256 files of the level below.

    Args:
      place: number of the range, and of the file among those of the range.
      share: its part of the input, in bytes.
    """
    counted = target.counts_path(*place)
    if unfinished.read_done(counted) is None:
        first_key, end_key = target.keys(place[0])
        sequences = spills.read_range(target.paths_below(files_below, *place), first_key, end_key).by_shard()
        store_of(target.folder).make_folder(target.level_folder)
        spills.write_file(target.path(*place), sequences, num_shards, first_key, target.range_bits)
        unfinished.write_done(counted, {"sequences": len(sequences.heads)})
    workers.report(share, 0)


# ------------------------------------------------------------------------------------------------------------
# 4. Writing


def shard_path(folder: str, shard: int) -> str:
    """Returns the path of a shard's counts. Written last, they mark the task as finished."""
    return os.path.join(folder, f"shard-{shard:05d}.json")


def write_shard(deal: Deal, grouping: Grouping, shard: int, shape: parts.Shape, share: float) -> None:
    """Writes a shard under a temporary name, renames it, and writes its counts.

    Args:
      deal: of the job.
      grouping: says where the sequences lie.
      shard: its number.
      shape: of the input.
      share: the shard's part of the input in bytes.
    """
    path, name = os.path.join(deal.output_dir, deal.file(shard)), deal.file(shard)
    done = unfinished.read_done(shard_path(grouping.folder, shard))
    if done and finished_jobs.are_there(deal.output_dir, {name: done["bytes"]}):
        workers.report(share, done["sequences"])
        return
    key = spills.key_of(shard, deal.num_shards)
    spilled = spills.read_shard(grouping.paths(key, key + 1), shard, deal.num_shards)
    members = _members(deal, shard, spilled)
    planned = len(members)
    slots = shape.max_predictions_per_seq + deal.sequences_per_pack - 1
    members = _split(members, np.append(spilled.predictions, 0), slots)
    try:
        with writing.replacing(path) as temporary, tf.io.TFRecordWriter(temporary) as writer:
            for rows in np.split(members, range(_ENCODED_ROWS, len(members), _ENCODED_ROWS)):
                for record in _encode(rows, spilled, shape):
                    writer.write(record)
    except tf.errors.OpError as error:
        raise OSError(errno.EIO, str(error), path) from None
    counts = {"sequences": len(spilled.heads), "packs": len(members), "split": len(members) - planned}
    unfinished.write_done(shard_path(grouping.folder, shard), {**counts, "bytes": files.version(path)[0]})
    workers.report(share, len(spilled.heads))


def _members(deal: Deal, shard: int, spilled: spills.Spilled) -> np.ndarray:
    """Returns the sequences of each row, by number, int [R, sequences_per_pack], -1 behind the last one; the
    rows are shuffled."""
    lengths = deal.dealer().rows(shard)
    width = ((0, 0), (0, deal.sequences_per_pack - lengths.shape[1]))
    members = np.pad(np.where(lengths > 0, 0, -1), width, constant_values=-1)
    places = np.flatnonzero(members.ravel() >= 0)
    wanted = lengths[lengths > 0]
    by_length, found = np.argsort(wanted, kind="stable"), np.lexsort((spilled.places, spilled.lengths))
    if not np.array_equal(wanted[by_length], spilled.lengths[found]):
        raise ConfigError("The spilled sequences are not those of the plan. Pack again, with --overwrite.")
    members.ravel()[places[by_length]] = found
    return np.random.default_rng([deal.seed, _ORDER, shard]).permutation(members)


def _split(members: np.ndarray, predictions: np.ndarray, slots: int) -> np.ndarray:
    """Moves last sequences to rows of their own, behind the others, where a row has more predicted tokens
    than slots.

    Args:
      members: int [R, P], -1 behind the last one.
      predictions: int [N + 1]: of each sequence, 0 at the end for -1.
      slots: of a row.
    """
    members = members.copy()
    extra = []
    while True:
        crowded = np.flatnonzero(predictions[members].sum(axis=1) > slots)
        if not len(crowded):
            break
        last = (members[crowded] >= 0).sum(axis=1) - 1
        extra.append(members[crowded, last])
        members[crowded, last] = -1
    alone = np.concatenate([np.zeros(0, int), *extra])
    rows = np.full((len(alone), members.shape[1]), -1)
    rows[:, 0] = alone
    return np.concatenate([members, rows])


def _encode(rows: np.ndarray, spilled: spills.Spilled, shape: parts.Shape) -> list[bytes]:
    chosen = rows[rows >= 0]
    local = np.full(rows.shape, -1)
    local[rows >= 0] = np.arange(len(chosen))
    examples = spilled.examples(chosen, shape.max_seq_length, shape.max_predictions_per_seq)
    return packed.encode_rows(examples, local)
