"""Text files -> TFRecords of pre-training examples and a manifest.

Two rounds of independent tasks, each in as many processes as asked for:
  1. Every few megabytes of the text are tokenised and written to the job's work folder in blocks
     (`official.data.pretraining.corpus`).
  2. Every shard is made from its pools: a pool is a random sample of the documents, a few million tokens of
     it. The second segment of a random pair comes from the pool of the first, and the shuffle is one of all
     examples of the pool.
Memory holds a block or a pool per process, and never the text. What a task writes depends on the input, the
flags and the task's number, not on the processes; a task that is done is not done again when the job is
started once more.
"""

import collections
import dataclasses
import itertools
import os

import numpy as np

from official.config import ConfigError
from official.data.pretraining import shard_round, text_round
from official.data.pretraining.job import Job, Layout
from official.data.records import record_formats, shard_folder
from official.data.text import read_counts, text_files
from official.data.word_pieces.vocabulary import Vocabulary, load_for_text
from official.io import engines, files, finished_jobs, unfinished
from official.io.engines import Engine, Round

_VERSION = 4  # of what the same flags make of the same text
_TASK_BYTES = 8 << 20  # of text, in parts of a file or in small files
_POOL_TOKENS = 1 << 22  # about 18 MB of English text, some thousand articles
_FEWEST_POOL_DOCUMENTS = 32  # on average
_FEWEST_SHARDS_UNASKED = 8


def create_pretraining_data(job: Job) -> dict:
    """Writes the TFRecords and the manifest of a job, or what an interrupted call has left to do; nothing
    where all is done.

    Returns:
      The manifest.

    Raises:
      ConfigError: for input that cannot be used, or an output folder that is in use already or cannot be
        written to.
    """
    job, words = _checked(job)
    paths = files.find_files(job.input_files, "input_files")
    identity = _identity(job, paths, words)
    manifest = finished_jobs.read_manifest(job.output_dir, identity, job.overwrite)
    if manifest:
        return manifest
    tasks = text_files.plan_tasks(paths, _TASK_BYTES)
    with (
        finished_jobs.unfinished_folder(
            job.output_dir, identity | {"task_bytes": _TASK_BYTES}, job.overwrite
        ) as folder,
        engines.opened(job) as engine,
    ):
        shard_folder.remove_earlier(job.output_dir)
        manifest = _make(job, engine, folder, tasks, words, sum(files.sizes(paths)))
        return finished_jobs.write_manifest(job.output_dir, identity, manifest)


def is_finished(job: Job) -> bool:
    """Tells whether all of a job is done already. Raises ConfigError as `create_pretraining_data` does."""
    if not finished_jobs.may_be_finished(job.output_dir, job.overwrite):
        return False
    job, words = _checked(job)
    identity = _identity(job, files.find_files(job.input_files, "input_files"), words)
    return finished_jobs.read_manifest(job.output_dir, identity, job.overwrite) is not None


def _identity(job: Job, paths: list[str], words: Vocabulary) -> dict:
    """Returns all that the records depend on."""
    text = text_files.identify(paths)
    return {"version": _VERSION, **job.flags(), "vocabulary_sha256": words.sha256, "text": text}


def _make(
    job: Job,
    engine: Engine,
    folder: str,
    tasks: list[list[text_files.Split]],
    words: Vocabulary,
    num_bytes: int,
) -> dict:
    """Runs both rounds and returns the manifest."""
    shard_folder.remove_temporary(job.output_dir)
    shard_round.planned_pool.cache_clear()  # an earlier job may have had the same flags, and other text
    sha256 = words.sha256
    text_tasks = ((text_round.tokenize_text, job, folder, *task, sha256) for task in enumerate(tasks))
    engine.run(Round(text_tasks, len(tasks), num_bytes, "Tokenising", "documents", __name__))
    text, by_file = read_counts.sum_of(text_round.counts_path(folder, task) for task in range(len(tasks)))
    layout = _plan_layout(job, text)
    numbers, share = range(layout.num_shards), num_bytes / layout.num_shards
    shard_tasks = (
        (shard_round.write_shard, job, folder, layout, number, share, sha256) for number in numbers
    )
    engine.run(Round(shard_tasks, len(numbers), num_bytes, "Writing", "examples", __name__))
    shards = [unfinished.read_what_is_done(shard_round.counts_path(folder, number)) for number in numbers]
    made = {os.path.join(job.output_dir, layout.file(number)) for number in numbers}
    shard_folder.remove_all_but(job.output_dir, made)
    return _manifest(job, layout, words, text, shards) | {"inputs": read_counts.listed(by_file)}


# ------------------------------------------------------------------------------------------------------------
# Checks


def _checked(job: Job) -> tuple[Job, Vocabulary]:
    """Returns the job, with what its vocabulary decides, and the vocabulary."""
    engines.check(job)
    shard_folder.check_flags(job.random_seed, {"num_shards": job.num_shards})
    words = load_for_text(job.vocab_file, job.do_lower_case)
    record_formats.check_vocabulary(words, job.record_format)
    return dataclasses.replace(job, do_lower_case=words.do_lower_case), words


def _plan_layout(job: Job, text: collections.Counter) -> Layout:
    """Chooses the number of pools: one that divides the number of shards or is a multiple of it, as small as
    memory allows."""
    num_documents = text["kept_documents"]
    if num_documents < 2:
        skipped = (
            f" ({text['skipped_lines']:,} lines without a text were skipped)" if text["skipped_lines"] else ""
        )
        raise ConfigError(
            f"--input_files hold {num_documents} documents with text{skipped}, expected at least 2: a random"
            " next segment comes from another document. Documents are separated by blank lines."
        )
    fewest = -(-text["tokens"] // _POOL_TOKENS)
    most_shards = num_documents * job.rules.dupe_factor
    num_shards = job.num_shards or min(max(_FEWEST_SHARDS_UNASKED, fewest), most_shards)
    if num_shards > most_shards:
        raise ConfigError(
            f"--num_shards={num_shards} is more than the {most_shards} examples that {num_documents}"
            f" documents make at least. Allowed: 1 to {most_shards}."
        )
    most = max(1, num_documents // _FEWEST_POOL_DOCUMENTS)
    divisors = [count for count in range(1, num_shards + 1) if num_shards % count == 0]
    multiples = range(num_shards, most + num_shards, num_shards)
    allowed = [count for count in itertools.chain(divisors, multiples) if count <= most]
    return Layout(next((count for count in allowed if count >= fewest), allowed[-1]), num_shards)


def _manifest(
    job: Job, layout: Layout, words: Vocabulary, text: collections.Counter, shards: list[dict]
) -> dict:
    """Returns the manifest. `num_workers` is not in it: the records do not depend on it."""
    lengths = np.sum([shard["lengths"] for shard in shards], axis=0)
    return {
        "flags": job.flags() | {"num_shards": layout.num_shards},
        "vocabulary_sha256": words.sha256,
        "vocabulary_size": words.size,
        "input_files": text["files"],
        "input_bytes": text["bytes"],
        "documents": text["kept_documents"],
        "sentences": text["kept_sentences"],
        "tokens": text["tokens"],
        "unknown_share": text["unknown_tokens"] / max(text["tokens"], 1),
        "pools": layout.num_pools,
        "skipped_lines": text["skipped_lines"],
        "skipped_sentences": text["sentences"] - text["kept_sentences"],
        "undecodable_bytes": text["undecodable_bytes"],
        "cut_documents": text["cut_documents"],
        **{name: text[name] for name in read_counts.PAGES_LEFT_OUT if text[name]},
        **{
            name: sum(shard[name] for shard in shards)
            for name in ("instances", "random_next", "masked_tokens")
        },
        "lengths": {str(length): int(lengths[length]) for length in np.flatnonzero(lengths)},
        "files": {layout.file(number): shard["instances"] for number, shard in enumerate(shards)},
        "file_bytes": {layout.file(number): shard["bytes"] for number, shard in enumerate(shards)},
    }
