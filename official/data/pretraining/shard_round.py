"""The last round of making pre-training data: pools of documents -> shards of records."""

import collections
import contextlib
import functools
import os
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from official.data.pretraining import blocks, example_sample, layout, masking, pairs
from official.data.pretraining.examples import Examples
from official.data.pretraining.job import Job, vocabulary_of
from official.data.pretraining.layout import Layout, Stretch
from official.data.pretraining.regrouping import dropped_counts
from official.data.records.encoding import example_file
from official.data.regrouping import Grouping
from official.io import files, finished_jobs, unfinished, workers, writing
from official.io.errors import ConfigError

PLAN, MASKS = 0, 1  # kinds of random streams; see `text_round.KEYS`
_MOST_EXAMPLES = 1536  # are laid out, masked and encoded at once: their arrays stay in the cache
_POOLS_KEPT = 10  # by a process: shards that follow each other read the same ones, a pass apart


def counts_path(folder: str, number: int) -> str:
    """Returns the path of a task's counts. Written last, they mark the task as finished."""
    return os.path.join(folder, f"shard-{number:05d}.json")


@functools.lru_cache(maxsize=_POOLS_KEPT)
def _pool(
    grouping: Grouping, first_key: int, end_key: int, drop_duplicates: bool, unknown: int
) -> tuple[blocks.Sample, dict[str, int]]:
    """Returns the documents of a pool, and the counts of those that were dropped."""
    sample = blocks.read_range(grouping.paths(first_key, end_key), first_key, end_key)
    if not drop_duplicates:
        return sample, {}
    sample, others = sample.without_duplicates()
    return sample, dropped_counts(others, unknown)


def write_shard(job: Job, grouping: Grouping, plan: Layout, number: int, share: float, sha256: str) -> None:
    """Writes a shard under a temporary name, renames it, and writes its counts; `share` is its part of the
    text in bytes."""
    path, counted = os.path.join(job.output_dir, plan.file(number)), counts_path(grouping.folder, number)
    done = unfinished.read_done(counted)
    if done and finished_jobs.are_there(job.output_dir, {plan.file(number): done["bytes"]}):
        workers.report(share, done["instances"])
        return
    with contextlib.ExitStack() as stack:
        temporary = stack.enter_context(writing.replacing(path, sync_folder=False))
        counts = _write_shard_records(temporary, job, grouping, plan, number, share, sha256)
        workers.finish(_publish, stack.pop_all(), path, counted, counts)


def _publish(unpublished: contextlib.ExitStack, path: str, counted: str, counts: dict) -> None:
    unpublished.close()
    unfinished.write_done(counted, {**counts, "bytes": files.version(path)[0]})


def _write_shard_records(
    path: str, job: Job, grouping: Grouping, plan: Layout, number: int, share: float, sha256: str
) -> dict:
    """Writes the records and returns the shard's counts."""
    totals: collections.Counter[str] = collections.Counter(instances=0, random_next=0, masked_tokens=0)
    lengths = np.zeros(job.rules.max_seq_length + 1, np.int64)
    contents = _Contents(collections.Counter(), np.zeros(len(plan.copies), np.int64))
    with example_file.writing(path, job.record_format, job.pad_position_value) as write:
        for examples, part in _shard_examples(job, grouping, plan, number, sha256, contents):
            if not totals["instances"]:
                example_sample.note(grouping.folder, number, plan.num_shards, examples)
            write(examples)
            lengths += np.bincount(examples.lengths, minlength=len(lengths))
            totals.update(
                instances=len(examples),
                random_next=int(examples.is_random.sum()),
                masked_tokens=int(examples.predictions.sum()),
            )
            workers.report(share * part, len(examples))
    if not totals["instances"]:
        raise ConfigError(
            f"--num_shards={plan.num_shards} is so many that {plan.file(number)} would hold no example. Lower"
            " --num_shards."
        )
    return {
        **totals,
        "lengths": lengths.tolist(),
        "dropped": contents.dropped,
        "source_tokens": contents.source_tokens.tolist(),
    }


class _Contents(NamedTuple):
    """Counts of the documents that a shard is made of, added up while it is made."""

    dropped: collections.Counter[str]  # of the pools that no other shard counts, see `dropped_counts`
    source_tokens: np.ndarray  # of the documents that were cut, by source, each copy for itself


def _shard_examples(
    job: Job, grouping: Grouping, plan: Layout, shard: int, sha256: str, contents: _Contents
) -> Iterator[tuple[Examples, float]]:
    """Yields (examples, their part of the shard) in batches."""
    words = vocabulary_of(job.vocab_file, sha256)
    stretches = plan.stretches(shard)
    portions = sum(len(stretch.passes) for stretch in stretches)
    for number, stretch in enumerate(stretches):
        rngs = [np.random.default_rng([job.random_seed, kind, shard, number]) for kind in (PLAN, MASKS)]
        sample, dropped = _pool(grouping, *plan.keys(stretch.pool), job.drop_duplicates, words.id_of("[UNK]"))
        if (0, 0) in zip(stretch.passes, stretch.parts):  # of one shard alone
            contents.dropped.update(dropped)
        chosen, ranks = _choose(sample, plan, stretch)
        _check_pool(sample, stretch)
        tokens = np.diff(sample.documents.token_starts())[chosen]
        np.add.at(contents.source_tokens, sample.sources[chosen], tokens)
        rows = pairs.plan_pairs(sample.documents, chosen, ranks, job.rules, rngs[0])
        part = len(stretch.passes) / portions / max(len(rows), 1)
        bounds = np.linspace(0, len(rows), -(-len(rows) // _MOST_EXAMPLES) + 1).astype(int)
        for first, end in zip(bounds, bounds[1:]):
            examples = masking.build_examples(rows[first:end], sample.documents, words, job.rules, rngs[1])
            yield examples, part * len(examples)


def _check_pool(sample: blocks.Sample, stretch: Stretch) -> None:
    if len(sample.keys) == 1:
        raise ConfigError(
            f"--input_files: pool {stretch.pool} holds 1 document, expected at least 2: a random next segment"
            " comes from another document. With --drop_duplicates too little of the text is left."
        )


def _choose(sample: blocks.Sample, plan: Layout, stretch: Stretch) -> tuple[np.ndarray, np.ndarray]:
    """Returns the documents that some passes of a shard cut, and their ranks, as `pairs.plan_pairs` takes
    them."""
    tokens_D = np.diff(sample.documents.token_starts())
    part_D = layout.parts_of(tokens_D, plan.parts_per_pool)
    piece_D = layout.pieces_of(tokens_D, part_D, plan.pieces_per_part)
    chosen = [
        np.flatnonzero((part_D == part) & plan.is_in_pass(number, sample.sources, sample.keys))
        for part, number in zip(stretch.parts, stretch.passes)
    ]
    ranks = [piece_D[own] + number * plan.pieces_per_part for number, own in enumerate(chosen)]
    return np.concatenate(chosen), np.concatenate(ranks)
