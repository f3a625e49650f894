"""The three rounds of packing: count the lengths of each file, spill its sequences by shard, write the
shards.

What a task writes depends on the input, the job and the task's number. A task that is done is not done again.
"""

from __future__ import annotations

import dataclasses
import errno
import functools
import os
from collections.abc import Iterator

import numpy as np
import tensorflow as tf

from official.data.packing import spills
from official.data.packing.dealing import Dealer
from official.data.packing.plan import PackingPlan
from official.data.pretraining import inspection
from official.data.pretraining.examples import Examples
from official.data.records.formats import packed
from official.io import files, finished_jobs, unfinished, workers, writing
from official.io.errors import ConfigError

BLOCKS_VERSION = 2  # of how they are laid out: a job does not go on with others
_BLOCK_SEQUENCES = 1 << 14  # of a spilled block: about 60 MB in memory for 512 tokens
_ENCODED_ROWS = 512  # at once
_ORDER = 1  # kind of random stream: the rows of a shard


@dataclasses.dataclass(frozen=True)
class Source:
    """An input file."""

    number: int
    path: str
    num_bytes: int
    record_format: str
    max_seq_length: int
    max_predictions_per_seq: int

    def features(self) -> dict:
        """Returns the schema of its examples. Raises ConfigError where it has come to hold other records."""
        kind, features = inspection.describe_first(self.path, None)
        found = kind, features["input_ids"].length, features["masked_lm_ids"].length
        expected = self.record_format, self.max_seq_length, self.max_predictions_per_seq
        if found != expected:
            raise ConfigError(
                f"{self.path}, record 1: it is {_named(found)}; the first file's are {_named(expected)}."
            )
        for name in ("input_ids", "masked_lm_ids"):
            features[name] = dataclasses.replace(features[name], limit=packed.VOCABULARY_LIMIT)
        return features


def _named(shape: tuple[str, int, int]) -> str:
    return "{}, {} tokens, {} predictions at most".format(*shape)


def _examples(source: Source) -> Iterator[Examples]:
    features = source.features()
    for _, values in inspection.read_checked(source.path, source.record_format, features):
        yield spills.examples_of(values)


# ------------------------------------------------------------------------------------------------------------
# 1. Counting


def counts_path(folder: str, number: int) -> str:
    return os.path.join(folder, f"counts-{number:05d}.json")


def count_file(folder: str, source: Source) -> None:
    """Writes how many sequences of a file have each length."""
    path = counts_path(folder, source.number)
    if unfinished.read_done(path):
        workers.report(source.num_bytes, 0)
        return
    counts = np.zeros(source.max_seq_length + 1, np.int64)
    for examples in _examples(source):
        counts += np.bincount(examples.lengths, minlength=len(counts))
        workers.report(0, len(examples))
    unfinished.write_done(path, {"lengths": counts.tolist()})
    workers.report(source.num_bytes, 0)


def read_counts(folder: str, number: int) -> np.ndarray:
    """Returns how many sequences of a file have each length, int64 [L + 1]. Raises OSError."""
    return np.array(unfinished.read_what_is_done(counts_path(folder, number))["lengths"], np.int64)


# ------------------------------------------------------------------------------------------------------------
# 2. Spilling


@dataclasses.dataclass(frozen=True)
class Deal:
    """What the tasks of a job share: the work folder, the plan and how it is dealt out."""

    folder: str
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
    """Returns where a task writes, last, how many blocks it has made of a file."""
    return os.path.join(folder, f"spilled-{number:05d}.json")


def _block_path(folder: str, number: int, block: int) -> str:
    return os.path.join(folder, f"block-{number:05d}-{block:06d}")


@functools.lru_cache(maxsize=1)  # the shards of a job share them
def blocks_of(folder: str, counts: tuple[int, ...], num_shards: int) -> spills.Blocks:
    """Returns the blocks of a work folder, of which there are `counts` of the files."""
    paths = [
        _block_path(folder, number, block) for number, count in enumerate(counts) for block in range(count)
    ]
    return spills.Blocks(paths, num_shards)


def spill_file(deal: Deal, source: Source, before: np.ndarray) -> None:
    """Writes the sequences of a file into blocks, by shard.

    Args:
      deal: of the job.
      source: the file.
      before: int64 [L + 1], how many sequences of each length the files before it have.
    """
    path = spilled_path(deal.folder, source.number)
    if unfinished.read_done(path):
        workers.report(source.num_bytes, 0)
        return
    blocks = 0
    dealer = deal.dealer()
    seen = before.copy()
    last = seen + read_counts(deal.folder, source.number)
    for block, some in enumerate(_blocks(_examples(source))):
        lengths = np.concatenate([examples.lengths for examples in some])
        _check_unchanged(seen + np.bincount(lengths, minlength=len(seen)) <= last, source.path)
        shards, places = _deal_out(dealer, lengths, seen)
        name = _block_path(deal.folder, source.number, block)
        spills.write_block(name, some, shards, places, deal.num_shards)
        blocks += 1
        workers.report(0, len(lengths))
    _check_unchanged(seen == last, source.path)
    unfinished.write_done(path, {"blocks": blocks})
    workers.report(source.num_bytes, 0)


def _check_unchanged(is_right: np.ndarray, path: str) -> None:
    if not is_right.all():
        raise ConfigError(f"{path} was changed while it was read. Pack it again, with --overwrite.")


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
# 3. Writing


def shard_path(folder: str, shard: int) -> str:
    """Returns where a task writes, last, what it counted."""
    return os.path.join(folder, f"shard-{shard:05d}.json")


def write_shard(deal: Deal, shard: int, source: Source, share: float, blocks: tuple[int, ...]) -> None:
    """Writes a shard under a temporary name, renames it, and writes what was counted.

    Args:
      deal: of the job.
      shard: its number.
      source: one of the input files, which tells the lengths.
      share: the shard's part of the input in bytes.
      blocks: how many there are of each input file.
    """
    path, name = os.path.join(deal.output_dir, deal.file(shard)), deal.file(shard)
    done = unfinished.read_done(shard_path(deal.folder, shard))
    if done and finished_jobs.are_there(deal.output_dir, {name: done["bytes"]}):
        workers.report(share, done["sequences"])
        return
    spilled = blocks_of(deal.folder, blocks, deal.num_shards).read_shard(shard)
    members = _members(deal, shard, spilled)
    planned = len(members)
    slots = source.max_predictions_per_seq + deal.sequences_per_pack - 1
    members = _split(members, np.append(spilled.predictions, 0), slots)
    try:
        with writing.replacing(path) as temporary, tf.io.TFRecordWriter(temporary) as writer:
            for rows in np.split(members, range(_ENCODED_ROWS, len(members), _ENCODED_ROWS)):
                for record in _encode(rows, spilled, source):
                    writer.write(record)
    except tf.errors.OpError as error:
        raise OSError(errno.EIO, str(error), path) from None
    counts = {"sequences": len(spilled.heads), "packs": len(members), "split": len(members) - planned}
    unfinished.write_done(shard_path(deal.folder, shard), {**counts, "bytes": files.version(path)[0]})
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
    """Gives last sequences rows of their own, behind the others, where a row has more predicted tokens than
    slots.

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


def _encode(rows: np.ndarray, spilled: spills.Spilled, source: Source) -> list[bytes]:
    chosen = rows[rows >= 0]
    local = np.full(rows.shape, -1)
    local[rows >= 0] = np.arange(len(chosen))
    examples = spilled.examples(chosen, source.max_seq_length, source.max_predictions_per_seq)
    return packed.encode_rows(examples, local)
