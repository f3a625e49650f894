"""The second round of making pre-training data: pools of documents -> shards of records."""

import collections
import errno
import functools
import os
from collections.abc import Iterator

import numpy as np
import tensorflow as tf

from official.data.pretraining import corpus, masking, pairs
from official.data.pretraining.examples import Examples
from official.data.pretraining.job import Job, Layout, vocabulary_of
from official.data.records import record_formats
from official.io import files, finished_jobs, unfinished, workers, writing

PLAN, MASKS = 0, 1  # kinds of random streams; see `text_round.KEYS`
_MOST_EXAMPLES = 1536  # are laid out, masked and encoded at once: their arrays stay in the cache


def counts_path(folder: str, number: int) -> str:
    """Returns where a task writes, last, what it counted."""
    return os.path.join(folder, f"shard-{number:05d}.json")


@functools.lru_cache(maxsize=1)  # shards that follow each other share a pool
def planned_pool(
    job: Job, folder: str, pool: int, num_pools: int
) -> tuple[corpus.TokenizedDocuments, np.ndarray]:
    """Returns the documents of a pool and the plan of all its examples."""
    first_key, end_key = (number * 2**64 // num_pools for number in (pool, pool + 1))
    texts = corpus.read_pool(corpus.find_blocks(folder), first_key, end_key)
    return texts, pairs.plan_pairs(texts, job.rules, np.random.default_rng([job.random_seed, PLAN, pool]))


def write_shard(job: Job, folder: str, layout: Layout, number: int, share: float, sha256: str) -> None:
    """Writes a shard under a temporary name, renames it, and writes what was counted; `share` is its part of
    the text in bytes."""
    path = os.path.join(job.output_dir, layout.file(number))
    done = unfinished.read_done(counts_path(folder, number))
    if done and finished_jobs.are_there(job.output_dir, {layout.file(number): done["bytes"]}):
        workers.report(share, done["instances"])
        return
    try:
        with writing.replacing(path) as temporary:
            counts = _write_shard_records(temporary, job, folder, layout, number, share, sha256)
    except tf.errors.OpError as error:
        raise OSError(errno.EIO, str(error), path) from None
    unfinished.write_done(counts_path(folder, number), {**counts, "bytes": files.version(path)[0]})


def _write_shard_records(
    path: str, job: Job, folder: str, layout: Layout, number: int, share: float, sha256: str
) -> dict:
    """Writes the records and returns what the manifest says about them."""
    totals: collections.Counter[str] = collections.Counter()
    lengths = np.zeros(job.rules.max_seq_length + 1, np.int64)
    with tf.io.TFRecordWriter(path) as writer:
        for examples, part in _shard_examples(job, folder, layout, number, sha256):
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
    job: Job, folder: str, layout: Layout, number: int, sha256: str
) -> Iterator[tuple[Examples, float]]:
    """Yields (examples, their part of the shard) in batches."""
    words = vocabulary_of(job.vocab_file, sha256)
    parts = layout.parts(number)
    for pool, part in parts:
        texts, plan = planned_pool(job, folder, pool, layout.num_pools)
        plan = plan[part :: layout.shards_per_pool]
        rng = np.random.default_rng([job.random_seed, MASKS, pool, part])
        bounds = np.linspace(0, len(plan), -(-len(plan) // _MOST_EXAMPLES) + 1).astype(int)
        for first, end in zip(bounds, bounds[1:]):
            rows = plan[first:end]
            yield (
                masking.build_examples(rows, texts, words, job.rules, rng),
                len(rows) / len(plan) / len(parts),
            )
