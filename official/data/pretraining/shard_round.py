"""The last round of making pre-training data: pools of documents -> shards of records."""

import collections
import errno
import functools
import os
from collections.abc import Iterator

import numpy as np
import tensorflow as tf

from official.data.pretraining import blocks, layout, masking, pairs
from official.data.pretraining.examples import Examples
from official.data.pretraining.job import Job, vocabulary_of
from official.data.pretraining.layout import Layout, Stretch
from official.data.pretraining.regrouping import Grouping
from official.data.records import record_formats
from official.io import finished_jobs, unfinished, workers, writing

PLAN, MASKS = 0, 1  # kinds of random streams; see `text_round.KEYS`
_MOST_EXAMPLES = 1536  # are laid out, masked and encoded at once: their arrays stay in the cache
_POOLS_KEPT = 10  # by a process: shards that follow each other read the same ones, a pass apart


def counts_path(folder: str, number: int) -> str:
    """Returns where a task writes, last, what it counted."""
    return os.path.join(folder, f"shard-{number:05d}.json")


@functools.lru_cache(maxsize=_POOLS_KEPT)
def _pool(grouping: Grouping, first_key: int, end_key: int) -> blocks.Sample:
    return blocks.read_range(grouping.paths(first_key, end_key), first_key, end_key)


def write_shard(job: Job, grouping: Grouping, plan: Layout, number: int, share: float, sha256: str) -> None:
    """Writes a shard under a temporary name, renames it, and writes what was counted; `share` is its part of
    the text in bytes."""
    path, counted = os.path.join(job.output_dir, plan.file(number)), counts_path(grouping.folder, number)
    done = unfinished.read_done(counted)
    if done and finished_jobs.are_there(job.output_dir, {plan.file(number): done["bytes"]}):
        workers.report(share, done["instances"])
        return
    try:
        with writing.replacing(path) as temporary:
            counts = _write_shard_records(temporary, job, grouping, plan, number, share, sha256)
    except tf.errors.OpError as error:
        raise OSError(errno.EIO, str(error), path) from None
    unfinished.write_done(counted, {**counts, "bytes": os.path.getsize(path)})


def _write_shard_records(
    path: str, job: Job, grouping: Grouping, plan: Layout, number: int, share: float, sha256: str
) -> dict:
    """Writes the records and returns what the manifest says about them."""
    totals: collections.Counter[str] = collections.Counter(instances=0, random_next=0, masked_tokens=0)
    lengths = np.zeros(job.rules.max_seq_length + 1, np.int64)
    with tf.io.TFRecordWriter(path) as writer:
        for examples, part in _shard_examples(job, grouping, plan, number, sha256):
            for record in record_formats.encode(
                examples, job.record_format, pad_position_value=job.pad_position_value
            ):
                writer.write(record)
            lengths += np.bincount(examples.lengths, minlength=len(lengths))
            totals.update(
                instances=len(examples),
                random_next=int(examples.is_random.sum()),
                masked_tokens=int(examples.predictions.sum()),
            )
            workers.report(share * part, len(examples))
    return {**totals, "lengths": lengths.tolist()}


def _shard_examples(
    job: Job, grouping: Grouping, plan: Layout, shard: int, sha256: str
) -> Iterator[tuple[Examples, float]]:
    """Yields (examples, their part of the shard) in batches."""
    words = vocabulary_of(job.vocab_file, sha256)
    stretches = plan.stretches(shard)
    portions = sum(len(stretch.passes) for stretch in stretches)
    for number, stretch in enumerate(stretches):
        rngs = [np.random.default_rng([job.random_seed, kind, shard, number]) for kind in (PLAN, MASKS)]
        sample = _pool(grouping, *plan.keys(stretch.pool))
        rows = _plan_stretch(sample, job.rules, plan, stretch, rngs[0])
        part = len(stretch.passes) / portions / max(len(rows), 1)
        bounds = np.linspace(0, len(rows), -(-len(rows) // _MOST_EXAMPLES) + 1).astype(int)
        for first, end in zip(bounds, bounds[1:]):
            examples = masking.build_examples(rows[first:end], sample.documents, words, job.rules, rngs[1])
            yield examples, part * len(examples)


def _plan_stretch(
    sample: blocks.Sample,
    rules: pairs.ExampleRules,
    plan: Layout,
    stretch: Stretch,
    rng: np.random.Generator,
) -> np.ndarray:
    """Plans some passes of a shard. Returns int32 [N, 5] as `pairs.plan_pairs`."""
    tokens_D = np.diff(sample.documents.token_starts())
    part_D = layout.parts_of(tokens_D, plan.parts_per_pool)
    piece_D = layout.pieces_of(tokens_D, part_D, plan.pieces_per_part)
    chosen = [np.flatnonzero(part_D == part) for part in stretch.parts]
    ranks = [piece_D[own] + number * plan.pieces_per_part for number, own in enumerate(chosen)]
    return pairs.plan_pairs(sample.documents, np.concatenate(chosen), np.concatenate(ranks), rules, rng)
