"""Records of any of our formats -> packed records and a manifest.

Rounds of independent tasks, each in as many processes as asked for (`rounds`): the lengths in every part of
the input are counted; from their histogram the plan is made; the sequences of each part are written to the
work folder, by the shard that they go to; these files are regrouped where they are very many; each shard is
written from its part of them. Memory holds a block or a shard per process, and never the data. The records
depend on the input and the flags, not on the processes; what is done is not done again when the job is
started once more.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import os
from collections.abc import Callable, Iterable, Iterator

import numpy as np

from official.data import compaction
from official.data.compaction import Grouping
from official.data.packing import algorithms, rounds
from official.data.packing.plan import Histogram, PackingPlan
from official.data.packing.rounds import Part
from official.data.records import files as record_files
from official.data.records import record_formats, shard_files
from official.io import engines, files, jobs, record_paths
from official.io.engines import Round
from official.io.errors import ConfigError

_VERSION = 1  # of what the same flags make of the same records
_SHARD_SEQUENCES = 1 << 16  # about 90 MB of 512 tokens at half length
_MIN_SHARDS = 8
_BYTES_PER_WORKER = 64 << 20
_MAX_BY_LEAST_SQUARES = 3


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

    def flags(self) -> dict:
        """Returns the flags on which the records depend."""
        flags = dataclasses.asdict(self)
        for name in ("output_dir", "overwrite", *engines.FIELDS):
            del flags[name]
        return flags


def sequences_per_pack(algorithm: str, most: int) -> int:
    """Returns the number of sequences that a row of the records has room for."""
    return min(most, _MAX_BY_LEAST_SQUARES) if algorithm in ("nnlshp", "ennlshp") else most


def pack_records(job: Job) -> dict:
    """Writes the packed records and the manifest of a job, or what an interrupted call has left to do;
    nothing where all is done.

    Raises:
      ConfigError: for records that are wrong, by file and number, or an output folder that is in use already
        or cannot be written to.
    """
    engines.check(job)
    counts = {name: getattr(job, name) for name in ("num_shards", "max_sequences_per_pack")}
    shard_files.check_flags(job.random_seed, counts)
    paths = record_files.find_files(job.input_files, "input_files")
    states = files.states(paths)
    versions = {path: "{} bytes, {}".format(*version) for path, version in zip(paths, files.versions(paths))}
    identity = {"version": _VERSION, **job.flags(), "records": versions}
    manifest = jobs.read_manifest(job.output_dir, identity, job.overwrite)
    if not manifest:
        vocabulary = record_paths.find_vocabulary(paths)
        record_paths.check_vocabulary(job.output_dir, vocabulary, job.overwrite)
        unfinished = identity | {"blocks": rounds.BLOCKS_VERSION}
        with (
            jobs.unfinished_folder(job.output_dir, unfinished, job.overwrite) as folder,
            engines.opened(job) as engine,
        ):
            shard_files.remove_earlier(job.output_dir)
            grouping = Grouping(folder, 0, 0, jobs.digest(identity), ".sequences")
            made = _make(job, engine, grouping, states)
            record_paths.put_vocabulary(job.output_dir, vocabulary)
            manifest = jobs.write_manifest(job.output_dir, identity, made)
    return manifest


def _make(job: Job, engine: engines.Engine, grouping: Grouping, states: dict[str, str]) -> dict:
    """Runs the rounds and returns the manifest.

    Args:
      grouping: says where the sequences are spilled to.
      states: of the input files, before anything was read.
    """
    shard_files.remove_temporary(job.output_dir)
    paths = list(states)
    folder, sizes = grouping.folder, files.sizes(paths)
    shape, total = rounds.describe_first(paths[0])[0], sum(sizes)
    parts = rounds.parts_of(paths, sizes, shape, states)

    def run(tasks: Iterable[tuple], number: int, doing: str) -> None:
        engine.run(Round(tasks, number, total, doing, "sequences", __name__, _BYTES_PER_WORKER))

    run(((rounds.count_part, folder, part) for part in parts), len(parts), "Counting")
    histogram = Histogram(functools.reduce(np.add, _counts(folder, parts)))
    planned = _planned(os.path.join(folder, "plan.json"), histogram, job)
    depth = sequences_per_pack(planned.algorithm, job.max_sequences_per_pack)
    shards = _num_shards(job, planned.plan.rows, histogram.sequences)
    deal = rounds.Deal(job.output_dir, planned.plan, shards, job.random_seed, depth)
    run(_spills(deal, grouping, parts), len(parts), "Dealing")
    grouping = _regrouped(grouping, parts, shards, total, run)
    writes = ((rounds.write_shard, deal, grouping, shard, shape, total / shards) for shard in range(shards))
    run(writes, shards, "Writing")
    made = {os.path.join(job.output_dir, deal.file(shard)) for shard in range(shards)}
    shard_files.remove_all_but(job.output_dir, made)
    return _manifest(job, deal, parts[0], folder, algorithms.describe(histogram, planned))


def _counts(folder: str, parts: list[Part]) -> Iterator[np.ndarray]:
    """Yields how many sequences of each part have each length, int64 [L + 1]."""
    for done in jobs.each_done(rounds.done_path(folder, "counts", part.number) for part in parts):
        yield np.array(done["lengths"], np.int64)


def _spills(deal: rounds.Deal, grouping: Grouping, parts: list[Part]) -> Iterator[tuple]:
    """Yields the tasks that deal the sequences of the parts out."""
    before = np.zeros(parts[0].shape.max_seq_length + 1, np.int64)
    for part, counts in zip(parts, _counts(grouping.folder, parts)):
        yield rounds.spill_part, deal, grouping, part, before
        before = before + counts


def _regrouped(grouping: Grouping, parts: list[Part], shards: int, total: int, run: Callable) -> Grouping:
    """Regroups the blocks of the parts, as often as it takes. Returns the grouping that shards are read from.

    Args:
      total: bytes of the input.
      run: (tasks, number of them, doing) -> None.
    """
    spilled: collections.Counter[str] = collections.Counter()
    for done in jobs.each_done(rounds.done_path(grouping.folder, "spilled", part.number) for part in parts):
        spilled.update(done)

    def task(above: Grouping, files_below: int, place: tuple[int, int]) -> tuple:
        return rounds.merge, above, files_below, place, shards, total / above.ranges / above.files

    def regroup(tasks: Iterable[tuple], number: int) -> None:
        run(tasks, number, "Regrouping")

    grouping = dataclasses.replace(grouping, files=spilled["blocks"])
    return compaction.compact(grouping, spilled["block_bytes"], shards, task, regroup)[0]


def _planned(path: str, histogram: Histogram, job: Job) -> algorithms.Planned:
    """Makes the plan, or reads the one that the sequences were dealt out by before the job was interrupted:
    that of least squares may be another one on another machine."""
    done = jobs.read_done(path)
    if done:
        packs = {tuple(lengths): count for lengths, count in done["packs"]}
        by = str(done.get("algorithm", job.algorithm))
        return algorithms.Planned(PackingPlan(histogram.max_length, packs), done["secs"], by)
    planned = algorithms.plan_by_algorithm(histogram, job.algorithm, job.max_sequences_per_pack)
    packs_list = list(planned.plan.packs.items())
    jobs.write_done(path, {"packs": packs_list, "secs": planned.secs, "algorithm": planned.algorithm})
    return planned


def _num_shards(job: Job, rows: int, sequences: int) -> int:
    if job.num_shards and job.num_shards > rows:
        raise ConfigError(
            f"--num_shards={job.num_shards} is more than the {rows} rows of the plan. Allowed: 1 to {rows}."
        )
    return job.num_shards or min(max(_MIN_SHARDS, -(-sequences // _SHARD_SEQUENCES)), rows)


def _manifest(job: Job, deal: rounds.Deal, first: Part, folder: str, numbers: dict) -> dict:
    """Returns the manifest. `efficiency` and `speedup` are those of the files; rows that were split for want
    of slots for predicted tokens count in them, not in `plan`."""
    numbers_of_shards, shape = range(deal.num_shards), first.shape
    shards = list(jobs.each_done(rounds.done_path(folder, "shard", number) for number in numbers_of_shards))
    packs = sum(shard["packs"] for shard in shards)
    names = [deal.file(number) for number in numbers_of_shards]
    told = record_formats.flags_of(first.files[0][0])
    words = {name: told[name] for name in ("vocab_file", "do_lower_case") if name in told}
    return {
        "flags": words | job.flags() | {"num_shards": deal.num_shards},
        "packs": packs,
        "sequences": sum(shard["sequences"] for shard in shards),
        "split_packs": sum(shard["split"] for shard in shards),
        "efficiency": numbers["tokens"] / (packs * shape.max_seq_length),
        "speedup": numbers["sequences"] / packs,
        "max_seq_length": shape.max_seq_length,
        "max_predictions_per_seq": shape.max_predictions_per_seq,
        "sequences_per_pack": deal.sequences_per_pack,
        "plan": numbers,
        "files": {name: shard["packs"] for name, shard in zip(names, shards)},
        "file_bytes": {name: shard["bytes"] for name, shard in zip(names, shards)},
    }
