"""Packs records of any of our formats; writes packed records and a manifest.

The job runs rounds of independent tasks, each in --num_workers processes:
  1. Count the lengths in every part of the input; the plan is made from the histogram.
  2. Write the sequences of each part to the work folder, grouped by shard.
  3. Merge these files if there are very many.
  4. Write each shard from its ranges of these files.
Memory holds a block or a shard per process, never the whole data. The records depend on the input and the
flags, not on the number of processes. A restarted job skips finished tasks.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import struct
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np

from official.data import compaction
from official.data.compaction import KEY_BITS, Grouping, done_path
from official.data.packing import algorithms
from official.data.packing import plan as plan_lib
from official.data.packing.plan import Histogram, PackingPlan
from official.data.pretraining import inspection
from official.data.pretraining.examples import Examples
from official.data.pretraining.inspection import Shape
from official.data.pretraining.summary import mixed
from official.data.records import encoding, record_formats, shard_files
from official.data.records import files as record_files
from official.data.records.formats import packed
from official.data.rows import ragged
from official.io import engines, jobs, record_paths, writing
from official.io import files as files_lib
from official.io.engines import Round
from official.io.errors import ConfigError, check_counts

_VERSION = 1  # version of the output for the same flags and records
BLOCKS_VERSION = 4  # version of the layout of spilled blocks: a job does not resume with another one
_PARTS = 64  # minimum number of parts of a large input
_MIN_PART_BYTES = 8 << 20
_BLOCK_SEQUENCES = 1 << 14  # sequences of a spilled block: about 60 MB in memory for 512 tokens
_ENCODED_ROWS = 512  # rows that are encoded at once


@dataclasses.dataclass(frozen=True)
class Job:
    """A job of packing records; the fields are the flags of the same names."""

    input_files: str
    output_dir: str
    algorithm: str | None = None
    max_sequences_per_pack: int = 3
    random_seed: int = 12345
    num_workers: int | None = None
    num_shards: int | None = None
    overwrite: bool = False
    engine: str = "local"
    ray_address: str | None = None


def pack_records(job: Job) -> dict:
    """Writes the packed records and the manifest of a job, or the rest of them after an interruption.

    Raises:
      ConfigError: for invalid records, by file and number, or an output folder that is in use or cannot be
        written to.
    """
    engines.check(job)
    check_counts(num_shards=job.num_shards, max_sequences_per_pack=job.max_sequences_per_pack)
    check_counts(0, random_seed=job.random_seed)
    paths = record_files.find_files(job.input_files, "input_files")
    jobs.check_inputs(job.output_dir, shard_files.SHARDS, paths)
    states = files_lib.states(paths)
    versions = ("{} bytes, {}".format(*version) for version in files_lib.versions(paths))
    identity = {"version": _VERSION, **engines.flags_of(job), "records": dict(zip(paths, versions))}
    if manifest := jobs.read_manifest(job.output_dir, identity, job.overwrite):
        return manifest
    jobs.check_leftovers(job.output_dir, shard_files.SHARDS)
    vocabulary = record_paths.find_vocabulary(paths)
    record_formats.casing_of(paths)
    record_paths.check_vocabulary(job.output_dir, vocabulary, job.overwrite)
    work = identity | {"blocks": BLOCKS_VERSION}
    with jobs.unfinished_folder(job.output_dir, work, job.overwrite) as folder, engines.opened(job) as engine:
        shard_files.remove_earlier(job.output_dir)
        grouping = Grouping(folder, 0, 0, jobs.digest(identity), ".sequences")
        made = _make(job, engine, grouping, states)
        record_paths.put_vocabulary(job.output_dir, vocabulary)
        return jobs.write_manifest(job.output_dir, identity, made)


def _make(job: Job, engine: engines.Engine, grouping: Grouping, states: dict[str, str]) -> dict:
    """Runs the rounds and returns the manifest.

    Args:
      grouping: location of the spilled sequences.
      states: states of the input files before reading.
    """
    paths, folder = list(states), grouping.folder
    sizes = files_lib.sizes(paths)
    shape, total = inspection.describe_first(paths[0], None)[0], sum(sizes)
    parts = parts_of(paths, sizes, shape, states)

    def run(tasks: Iterable[tuple], number: int, doing: str) -> None:
        engine.run(Round(tasks, number, total, doing, "sequences", __name__, 64 << 20))

    def each_done(kind: str, count: int) -> Iterator[dict]:
        return jobs.each_done(done_path(folder, kind, number) for number in range(count))

    run(((count_part, folder, part) for part in parts), len(parts), "Counting")
    counts = (np.array(done["lengths"], np.int64) for done in each_done("counts", len(parts)))
    histogram = Histogram(functools.reduce(np.add, counts))
    planned = _planned(os.path.join(folder, "plan.json"), histogram, job)
    rows = planned.plan.rows
    usual = min(max(8, -(-histogram.sequences // (1 << 16))), rows)  # 90 MB at 512 tokens, half full
    shards = job.num_shards or usual
    if shards > rows:
        more = f"more than the {rows} rows of the plan"
        raise ConfigError(f"--num_shards={shards} is {more}. Allowed: 1 to {rows}.")
    dealer = Dealer(planned.plan, shards, job.random_seed)

    def spills() -> Iterator[tuple]:
        before: np.ndarray = np.zeros(shape.max_seq_length + 1, np.int64)
        for part, done in zip(parts, each_done("counts", len(parts))):
            yield spill_part, dealer, grouping, part, before
            before = before + np.array(done["lengths"], np.int64)

    run(spills(), len(parts), "Dealing")
    spilled = sum(map(Counter, each_done("spilled", len(parts))), Counter())

    def merging(above: Grouping, files_below: int, place: tuple[int, int]) -> tuple:
        return merge, above, files_below, place, shards, total / above.ranges / above.files

    grouping = dataclasses.replace(grouping, files=spilled["blocks"])
    regroup = functools.partial(run, doing="Regrouping")
    grouping, _ = compaction.compact(grouping, spilled["block_bytes"], shards, merging, regroup)
    depth = job.max_sequences_per_pack
    if planned.algorithm in ("nnlshp", "ennlshp"):
        depth = min(depth, 3)
    names = [f"part-{shard:05d}-of-{shards:05d}.tfrecord" for shard in range(shards)]
    written = [os.path.join(job.output_dir, name) for name in names]
    others = grouping, shape, depth, total / shards
    run(((write_shard, path, dealer, own, *others) for own, path in enumerate(written)), shards, "Writing")
    jobs.remove_all_but(set(written), job.output_dir, shard_files.SHARDS)
    made = list(each_done("shard", shards))
    packs = sum(shard["packs"] for shard in made)
    # Efficiency and speedup are measured in the files. Unlike the plan, these have extra rows, split off
    # because the predicted tokens of a row exceeded its slots.
    return {
        "flags": _flags_of(paths) | engines.flags_of(job) | {"num_shards": shards},
        "packs": packs,
        "sequences": sum(shard["sequences"] for shard in made),
        "split_packs": sum(shard["split"] for shard in made),
        "efficiency": histogram.tokens / (packs * shape.max_seq_length),
        "speedup": histogram.sequences / packs,
        "max_seq_length": shape.max_seq_length,
        "max_predictions_per_seq": shape.max_predictions_per_seq,
        "sequences_per_pack": depth,
        "plan": algorithms.describe(histogram, planned),
        "files": {name: shard["packs"] for name, shard in zip(names, made)},
        "file_bytes": {name: shard["bytes"] for name, shard in zip(names, made)},
    }


def _flags_of(paths: list[str]) -> dict:
    """Returns vocab_file, do_lower_case and objective from the manifests next to records. With several
    folders, the first one counts; the objective is mlm if any folder holds texts without pairs."""
    flags = [record_formats.flags_of(path) for path in record_paths.first_of_folders(paths)]
    names = ("vocab_file", "do_lower_case", "objective")
    kept = {name: own[name] for own in reversed(flags) for name in names if name in own}
    return kept | ({"objective": "mlm"} if any(own.get("objective") == "mlm" for own in flags) else {})


def _planned(path: str, histogram: Histogram, job: Job) -> algorithms.Planned:
    """Makes the plan; a resumed job reads the plan by which the sequences were already distributed, since
    least squares can give another one on another machine."""
    if done := jobs.read_done(path):
        packs = {tuple(lengths): count for lengths, count in done["packs"]}
        return algorithms.Planned(PackingPlan(histogram.max_length, packs), done["secs"], done["algorithm"])
    planned = algorithms.plan_by_algorithm(histogram, job.algorithm, job.max_sequences_per_pack)
    values = {"packs": list(planned.plan.packs.items()), "secs": planned.secs, "algorithm": planned.algorithm}
    jobs.write_done(path, values)
    return planned


# -----------------------------------------------------------------------------------------------------------
# Input


@dataclasses.dataclass(frozen=True)
class Part:
    """Consecutive input files of a task: (path, bytes) of each, and their states when the job was planned,
    see `files.states`."""

    number: int
    files: tuple[tuple[str, int], ...]
    shape: Shape
    states: dict[str, str]


def parts_of(paths: list[str], sizes: list[int], shape: Shape, states: dict[str, str]) -> list[Part]:
    """Groups consecutive small files, since each would make an almost empty block."""
    groups: list[list[tuple[str, int]]] = []
    most, left = min(max(sum(sizes) // _PARTS, _MIN_PART_BYTES), 64 << 20), 0
    for path, size in zip(paths, sizes):
        if not groups or size > left:
            groups.append([])
            left = most
        groups[-1].append((path, size))
        left -= size
    states_of = [{path: states[path] for path, _ in group} for group in groups]
    return [Part(number, tuple(group), shape, states_of[number]) for number, group in enumerate(groups)]


def blocks_of(part: Part, size: int = 1) -> Iterator[Examples]:
    """Yields the examples of a part, at least `size` at a time, and reports finished files to the progress
    bar.

    Raises:
      ConfigError: for invalid records, or records of another shape, and for a file that changed since the job
        was planned.
    """
    some: list[Examples] = []

    def joined() -> Examples:
        files_lib.check_unchanged(part.states)
        return Examples(*map(np.concatenate, zip(*(vars(one).values() for one in some))))

    for path, size_in_bytes in part.files:
        shape, features = inspection.describe_first(path, None)
        if shape != part.shape:
            own, first = ("{}, {} tokens, {} predictions at most".format(*one) for one in (shape, part.shape))
            raise ConfigError(f"{path}, record 1: it is {own}; the first file's are {first}.")
        for name in ("input_ids", "masked_lm_ids"):
            features[name] = dataclasses.replace(features[name], limit=encoding.LIMIT)
        for _, values in inspection.read_checked(path, shape, features):
            some.append(_examples_of(values))
            if sum(map(len, some)) >= size:
                yield joined()
                some = []
        engines.report(size_in_bytes, 0)
    if some:
        yield joined()
    files_lib.check_unchanged(part.states)


def _examples_of(values: dict[str, np.ndarray]) -> Examples:
    """Returns examples from the features {name: [N, length]} of valid plain records."""
    lengths = values["input_mask"].sum(axis=1)
    return Examples(
        values["input_ids"].astype(np.int32),
        lengths,
        lengths - values["segment_ids"].sum(axis=1),
        values["masked_lm_positions"].astype(np.int32),
        values["masked_lm_ids"].astype(np.int32),
        (values["masked_lm_weights"] > 0).sum(axis=1),
        values["next_sentence_labels"][:, 0] > 0,
    )


# -----------------------------------------------------------------------------------------------------------
# Assignment of sequences to packs
#
# The rows of a plan, kind after kind, are assigned to the shards round-robin. The slots for sequences of a
# length are numbered, shard after shard; the i-th sequence of that length, in the order of the files, gets
# slot number p(i), where p is a permutation that is computed, not stored. So each part of the data computes
# its slots independently, in memory that does not grow with the data.


def permuted(numbers: np.ndarray, size: int, key: int) -> np.ndarray:
    """Returns p(number) of a permutation p of 0 to size - 1.

    A Feistel network permutes the numbers below a power of 4; results of `size` or more are permuted again
    until they are smaller.

    Args:
      numbers: int [N], 0 to size - 1.
      size: 1 to 2**62.
      key: 0 to 2**64 - 1, the key of p.
    """
    half = np.uint64(max(1, ((size - 1).bit_length() + 1) // 2))
    mask = (np.uint64(1) << half) - np.uint64(1)
    found = numbers.astype(np.uint64)
    left = np.arange(len(found))
    while len(left):
        upper, lower = found[left] >> half, found[left] & mask
        for turn in range(4):
            turn_key = np.uint64((key + turn * 0x9E3779B97F4A7C15) % 2**64)
            upper, lower = lower, upper ^ (mixed(lower ^ turn_key) & mask)
        found[left] = upper << half | lower
        left = left[found[left] >= size]
    return found.astype(np.int64)


class _Places(NamedTuple):
    """The slots for sequences of one length. Shards S[i] to S[i + 1] - 1 have the same number each."""

    shards: np.ndarray  # S: int64 [I], ascending
    counts: np.ndarray  # int64 [I], slots of each of these shards
    ends: np.ndarray  # int64 [I], slots of all shards before S[i + 1]


class Dealer:
    """Distributes sequences among the shards of a plan. Shapes: T shards, K kinds of rows, P sequences of a
    row.

    Row r of the plan belongs to shard r modulo T. So every shard has the same number of rows of a kind,
    except for a run of shards with one more. Memory grows with the number of kinds, not of shards.
    """

    def __init__(self, plan: PackingPlan, num_shards: int, seed: int):
        self.num_shards, self.seed = num_shards, seed
        self._kinds_KP = plan.lengths_of_kinds().astype(np.int32)  # int32: a shard may have many such rows
        rows_K = np.array(list(plan.packs.values()), np.int64)
        self._each_K, self._more_K = np.divmod(rows_K, num_shards)
        self._first_K = (np.cumsum(rows_K) - rows_K) % num_shards  # first of the shards with one row more
        self._places: dict[int, _Places] = {}

    def places(self, length: int, ordinals: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns the shards of some sequences of a length, and their slots among those of this length in the
        shard, int [N] each; `ordinals` are the numbers of the sequences among all of this length."""
        if length not in self._places:
            self._places[length] = self._places_of(length)
        shards, counts, ends = self._places[length]
        key = int(np.random.SeedSequence([self.seed, length]).generate_state(1, np.uint64)[0])
        number = permuted(ordinals, int(ends[-1]), key)
        run = np.searchsorted(ends, number, side="right")
        beyond, place = np.divmod(number - np.where(run > 0, ends[run - 1], 0), counts[run])
        return shards[run] + beyond, place

    def _places_of(self, length: int) -> _Places:
        in_a_row_K = (self._kinds_KP == length).sum(axis=1)
        kinds = np.flatnonzero(in_a_row_K)
        times, first = in_a_row_K[kinds], self._first_K[kinds]
        end = first + self._more_K[kinds]
        wraps = end > self.num_shards  # the run continues at shard 0
        # From shard starts[i] on, each shard has changes[i] more slots.
        starts = np.concatenate([0 * first, first, end - self.num_shards * wraps])
        changes = np.concatenate([times * (self._each_K[kinds] + wraps), times, -times])
        shards, which = np.unique(starts, return_inverse=True)
        counts: np.ndarray = np.zeros(len(shards), np.int64)
        np.add.at(counts, which, changes)
        counts = np.cumsum(counts)
        is_there = shards < self.num_shards
        shards, counts = shards[is_there], counts[is_there]
        return _Places(shards, counts, np.cumsum(counts * np.diff(shards, append=self.num_shards)))

    def rows(self, shard: int) -> np.ndarray:
        """Returns the lengths in each row of a shard, int [R, P], padded with 0."""
        rows_K = self._each_K + ((shard - self._first_K) % self.num_shards < self._more_K)
        return np.repeat(self._kinds_KP, rows_K, axis=0)


# -----------------------------------------------------------------------------------------------------------
# Shuffle shards
#
# A shard has a 64-bit key, its number scaled to that range, so that very many files can be regrouped by
# ranges of keys (`official.data.compaction`). A chunk holds the sequences of a range of keys: their number,
# int64; their heads, int32 [n, 6]; and words: for each sequence its ids, masked positions and labels without
# padding.


_MAGIC = b"BERTSEQS"
_COUNT = struct.Struct("<q")
_OF_EXAMPLES = ("lengths", "first_lengths", "predictions", "is_random")
_HEAD = np.dtype([(name, "<i4") for name in ("shard", "place", *_OF_EXAMPLES)])


class Spilled:
    """N spilled sequences.

    Attributes:
      heads: _HEAD [N]; `place` is the slot among those of the same length in the shard.
      words: uint16 or int32 [W].
      starts: int64 [N + 1], the first word of each sequence, and W.
    """

    def __init__(self, heads: np.ndarray, words: np.ndarray):
        self.heads, self.words = heads, words
        self.starts = ragged.offsets(heads["lengths"].astype(np.int64) + 2 * heads["predictions"])

    def take(self, order: np.ndarray) -> Spilled:
        """Returns some of the sequences, by number, in the order given."""
        return Spilled(self.heads[order], ragged.take(self.words, self.starts, order))

    def examples(self, chosen: np.ndarray, length: int, most: int) -> Examples:
        """Returns some of the sequences, by number, as examples of `length` tokens and `most` predictions."""
        heads = self.heads[chosen]
        is_there = _are_there(heads, length, most)
        words = np.zeros(is_there.shape, np.int32)
        words[is_there] = ragged.take(self.words, self.starts, chosen)
        ids, positions, labels = np.split(words, [length, length + most], axis=1)
        lengths, firsts, predictions, is_random = (heads[name].astype(np.int64) for name in _OF_EXAMPLES)
        return Examples(ids, lengths, firsts, positions, labels, predictions, is_random > 0)


def _are_there(heads: np.ndarray, length: int, most: int) -> np.ndarray:
    """Returns the mask of the used ids, positions and labels of each sequence, bool [N, L + 2 M]."""
    is_token = np.arange(length) < heads["lengths"][:, None]
    is_used = np.arange(most) < heads["predictions"][:, None]
    return np.concatenate([is_token, is_used, is_used], axis=1)


def dealt(examples: Examples, shards: np.ndarray, places: np.ndarray) -> Spilled:
    """Returns N examples as sequences in the order of their shards; `shards` and `places` are int [N]."""
    order = np.argsort(shards, kind="stable")
    heads: np.ndarray = np.empty(len(shards), _HEAD)
    heads["shard"], heads["place"] = shards, places
    for name in _OF_EXAMPLES:
        heads[name] = getattr(examples, name)
    heads = heads[order]
    words = np.concatenate([examples.input_ids, examples.positions, examples.labels], axis=1)[order]
    kept = words[_are_there(heads, examples.input_ids.shape[1], examples.positions.shape[1])]
    return Spilled(heads, kept.astype(np.uint16 if kept.max(initial=0) < 1 << 16 else np.int32))


def write_file(path: str, sequences: Spilled, num_shards: int, first_key=0, range_bits=KEY_BITS) -> None:
    """Writes a file of sequences atomically.

    Args:
      sequences: the sequences in the order of their shards.
      num_shards: total number of shards.
      first_key, range_bits: the file covers the 2**range_bits keys from first_key on.

    Raises:
      OSError: if the file cannot be written; an earlier one of that name stays.
    """
    keys = compaction.bounds(first_key, range_bits, compaction.BITS)
    shards = [-(-key * num_shards >> KEY_BITS) for key in keys]  # first shard of this key or a higher one
    ends = np.searchsorted(sequences.heads["shard"], shards)
    chunks = []
    for first, end in zip(ends, ends[1:]):
        words = sequences.words[slice(*sequences.starts[[first, end]])]
        chunks.append(_COUNT.pack(end - first) + sequences.heads[first:end].tobytes() + words.tobytes())
    compaction.write_chunks(path, _MAGIC, chunks, sequences.words.itemsize, first_key, range_bits)


def read_range(paths: Iterable[str], first_key: int, end_key: int) -> Spilled:
    """Returns the sequences of the chunks with a range of keys, in the order of the files.

    Args:
      first_key, end_key: the range, `end_key` exclusive. It lies within one chunk of each file.

    Raises:
      ConfigError: for a missing or damaged file.
    """
    parts = compaction.read_chunks(paths, _MAGIC, first_key, end_key, _parse)
    heads = np.concatenate([np.zeros(0, _HEAD), *(part[0] for part in parts)])
    return Spilled(heads, np.concatenate([np.zeros(0, np.uint16), *(part[1] for part in parts)]))


def _parse(chunk: memoryview, word_type: np.dtype) -> tuple[np.ndarray, np.ndarray]:
    """Returns the heads and words of a chunk."""
    (count,) = _COUNT.unpack_from(chunk)
    heads = np.frombuffer(chunk, _HEAD, count, _COUNT.size)
    return heads, np.frombuffer(chunk, word_type, offset=_COUNT.size + heads.nbytes)


# -----------------------------------------------------------------------------------------------------------
# Rounds
#
# The output of a task depends on the input, the job and the task's number. Finished tasks are skipped: each
# has a file `done_path` of kind "counts" or "spilled" for a part, or "shard".


def _is_done(path: str, part: Part) -> bool:
    """Tells whether the task of a part is done; if so, reports it to the progress bar."""
    if jobs.read_done(path) is None:
        return False
    engines.report(sum(size for _, size in part.files), 0)
    return True


def count_part(folder: str, part: Part) -> None:
    """Writes the number of sequences of a part by length."""
    path = done_path(folder, "counts", part.number)
    if _is_done(path, part):
        return
    counts = np.zeros(part.shape.max_seq_length + 1, np.int64)
    for examples in blocks_of(part):
        counts += np.bincount(examples.lengths, minlength=len(counts))
        engines.report(0, len(examples))
    jobs.write_done(path, {"lengths": counts.tolist()})


def spill_part(dealer: Dealer, grouping: Grouping, part: Part, before: np.ndarray) -> None:
    """Writes the sequences of a part into blocks, sorted by shard.

    Args:
      dealer: the job's assignment of sequences to shards.
      grouping: output location, level 0.
      part: the input files.
      before: int64 [L + 1], number of sequences of each length in earlier parts.
    """
    path = done_path(grouping.folder, "spilled", part.number)
    if _is_done(path, part):
        return
    done, seen = {"blocks": 0, "block_bytes": 0}, before.copy()
    for examples in blocks_of(part, _BLOCK_SEQUENCES):
        lengths = examples.lengths
        counts = np.bincount(lengths, minlength=len(seen))
        shards, places = np.zeros_like(lengths), np.zeros_like(lengths)
        for length in np.flatnonzero(counts).tolist():
            own, ordinals = lengths == length, seen[length] + np.arange(counts[length])
            shards[own], places[own] = dealer.places(length, ordinals)
        seen += counts
        sequences = dealt(examples, shards, places)
        write_file(grouping.path_of_task(part.number, done["blocks"]), sequences, dealer.num_shards)
        done["blocks"] += 1
        done["block_bytes"] += sequences.heads.nbytes + sequences.words.nbytes
        engines.report(0, len(lengths))
    jobs.write_done(path, done)


def merge(target: Grouping, files_below: int, place: tuple[int, int], num_shards: int, share: float) -> None:
    """Writes a file of a level: the sequences of a range of shards from up to 256 files of the level below.

    Args:
      place: number of the range, and of the file in the range.
      share: the file's share of the input in bytes, for the progress bar.
    """
    counted = target.counts_path(*place)
    if jobs.read_done(counted) is None:
        first_key, end_key = target.keys(place[0])
        sequences = read_range(target.paths_below(files_below, *place), first_key, end_key)
        sequences = sequences.take(np.argsort(sequences.heads["shard"], kind="stable"))
        write_file(target.path(*place), sequences, num_shards, first_key, target.range_bits)
        jobs.write_done(counted, {"sequences": len(sequences.heads)})
    engines.report(share, 0)


def write_shard(
    path: str, dealer: Dealer, shard: int, grouping: Grouping, shape: Shape, depth: int, share: float
) -> None:
    """Writes a shard under a temporary name, renames it, and writes its counts.

    Args:
      path: path of the shard.
      dealer: the job's assignment of sequences to shards.
      shard: number of the shard.
      grouping: location of the spilled sequences.
      shape: shape of the input.
      depth: maximum number of sequences in a row.
      share: the shard's share of the input in bytes, for the progress bar.
    """
    done_at = done_path(grouping.folder, "shard", shard)
    done = jobs.read_done(done_at)
    if done and jobs.are_there(os.path.dirname(path), {os.path.basename(path): done["bytes"]}):
        engines.report(share, done["sequences"])
        return
    key = (shard << KEY_BITS) // dealer.num_shards
    spilled = read_range(grouping.paths(key, key + 1), key, key + 1)
    spilled = spilled.take(np.flatnonzero(spilled.heads["shard"] == shard))
    lengths, heads = dealer.rows(shard), spilled.heads
    found = np.lexsort((heads["place"], heads["lengths"]))
    if not np.array_equal(np.sort(lengths[lengths > 0]), heads["lengths"][found]):
        raise ConfigError("The spilled sequences are not those of the plan. Pack again, with --overwrite.")
    ranks = plan_lib.ranks(lengths)
    members: np.ndarray = np.full((len(lengths), depth), -1)
    members[:, : lengths.shape[1]] = np.where(ranks >= 0, found[ranks], -1)
    members = np.random.default_rng([dealer.seed, 1, shard]).permutation(members)
    slots = shape.max_predictions_per_seq + depth - 1
    members = _split(members, np.append(heads["predictions"], 0), slots)
    with writing.replacing(path) as temporary, shard_files.writing_records(temporary) as write:
        for rows in np.split(members, range(_ENCODED_ROWS, len(members), _ENCODED_ROWS)):
            is_there = rows >= 0
            chosen = rows[is_there]
            rows[is_there] = np.arange(len(chosen))
            write(packed.encode_rows(spilled.examples(chosen, *shape[1:]), rows))
    counts = {"sequences": len(heads), "packs": len(members), "split": len(members) - len(lengths)}
    jobs.write_done(done_at, {**counts, "bytes": files_lib.version(path)[0]})
    engines.report(share, len(heads))


def _split(members: np.ndarray, predictions: np.ndarray, slots: int) -> np.ndarray:
    """Moves the last sequences of rows with more predicted tokens than slots to new rows at the end.

    Args:
      members: int [R, P], numbers of sequences, padded with -1.
      predictions: int [N + 1], predicted tokens of each sequence, and a 0 for the number -1.
      slots: prediction slots of a row.
    """
    members, extra = members.copy(), [np.zeros(0, int)]
    while len(crowded := np.flatnonzero(predictions[members].sum(axis=1) > slots)):
        last = (members[crowded] >= 0).sum(axis=1) - 1
        extra.append(members[crowded, last])
        members[crowded, last] = -1
    alone = np.concatenate(extra)
    rows = np.full((len(alone), members.shape[1]), -1)
    rows[:, 0] = alone
    return np.concatenate([members, rows])
