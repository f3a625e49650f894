"""Text files -> TFRecords of pre-training examples and a manifest: the I/O around `official.data.pretraining`.

Documents are tokenised once, into memory. Document d belongs to shard d % num_shards; shards are written by forked
processes that share the tokens. A shard's bytes depend on the input, the flags and its number, not on the processes.
"""

import collections
import dataclasses
import glob
import json
import multiprocessing
import os
import signal
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool

import numpy as np
import tensorflow as tf
from tqdm import tqdm

from official.config import ConfigError
from official.data import documents as documents_lib
from official.data import pretraining, schema, tokenization

MANIFEST = "manifest.json"
_MOST_SHARDS_UNASKED = 8
_BATCH_EXAMPLES = 1024  # are laid out and masked at once
_TEMPORARY = ".tmp"


@dataclasses.dataclass(frozen=True)
class Job:
    """What is to be made; the fields are the flags of the same names."""

    input_files: str
    output_dir: str
    vocab_file: str
    rules: pretraining.Rules
    random_seed: int = 12345
    num_workers: int = 1
    num_shards: int | None = None
    overwrite: bool = False


@dataclasses.dataclass(frozen=True)
class Corpus:
    """What all shards share."""

    documents: tokenization.TokenizedDocuments
    vocabulary: tokenization.Vocabulary


def create_pretraining_data(job: Job) -> dict:
    """Writes the TFRecords and the manifest of a job.

    Returns:
      The manifest.

    Raises:
      ConfigError: for input that cannot be used, or an output folder that is in use already or cannot be written to.
    """
    _check_job(job)
    paths = documents_lib.expand_globs(job.input_files, "input_files")
    vocabulary = tokenization.load_vocabulary(job.vocab_file)
    _check_output(job)
    corpus, counts = _read_corpus(paths, vocabulary)
    pretraining.check_documents(corpus.documents)
    num_shards = _num_shards(job, corpus.documents.num_documents)
    try:
        shards = _write_shards(job, corpus, num_shards)
        manifest = _manifest(job, num_shards, corpus, counts, shards)
        _write_json(os.path.join(job.output_dir, MANIFEST), manifest)
    except (OSError, tf.errors.OpError) as error:
        raise ConfigError(f"--output_dir={job.output_dir} cannot be written to: {getattr(error, 'strerror', None) or error}.") from None
    return manifest


def _write_json(path: str, values: dict) -> None:
    """Writes the file under a temporary name first, so that it is there whole or not at all."""
    with open(path + _TEMPORARY, "w", encoding="utf-8") as file:
        json.dump(values, file, indent=2)
        file.write("\n")
    os.replace(path + _TEMPORARY, path)


# ---------------------------------------------------------------------------------------------------------------------
# Checks


def _check_job(job: Job) -> None:
    for name in ("num_workers", "num_shards"):
        value = getattr(job, name)
        if value is not None and value < 1:
            raise ConfigError(f"--{name}={value} is out of range. Allowed: 1 or more.")
    if job.random_seed < 0:
        raise ConfigError(f"--random_seed={job.random_seed} is out of range. Allowed: 0 or more.")


def _existing_output(folder: str) -> list[str]:
    return sorted(path for pattern in ("part-*-of-*.tfrecord*", MANIFEST) for path in glob.glob(os.path.join(glob.escape(folder), pattern)))


def _check_output(job: Job) -> None:
    existing = _existing_output(job.output_dir)
    if existing and not job.overwrite:
        raise ConfigError(f"--output_dir={job.output_dir} holds {len(existing)} files of an earlier run "
                          f"({os.path.basename(existing[0])}, ..). Give another --output_dir, or replace them with --overwrite.")
    try:
        os.makedirs(job.output_dir, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"--output_dir={job.output_dir}: {error.strerror or error}.") from None


def _num_shards(job: Job, num_documents: int) -> int:
    if job.num_shards is None:
        return min(_MOST_SHARDS_UNASKED, num_documents)
    if job.num_shards > num_documents:
        raise ConfigError(f"--num_shards={job.num_shards} is more than the {num_documents} documents with text, and a document is not "
                          f"split. Allowed: 1 to {num_documents}.")
    return job.num_shards


# ---------------------------------------------------------------------------------------------------------------------
# Reading


def _read_corpus(paths: list[str], vocabulary: tokenization.Vocabulary) -> tuple[Corpus, documents_lib.ReadCounts]:
    """Reads and tokenises all documents."""
    counts = documents_lib.ReadCounts()
    with tqdm(total=sum(map(os.path.getsize, paths)), desc="Tokenising", unit="B", unit_scale=True, disable=None) as bar:
        documents = _with_progress(documents_lib.read_documents(paths, counts), counts, bar)
        tokenized = tokenization.Tokenizer(vocabulary).tokenize_documents(documents)
    return Corpus(tokenized, vocabulary), counts


def _with_progress(documents: Iterable[list[str]], counts: documents_lib.ReadCounts, bar: tqdm) -> Iterator[list[str]]:
    for document in documents:
        bar.update(counts.bytes - bar.n)
        yield document
    bar.update(counts.bytes - bar.n)


# ---------------------------------------------------------------------------------------------------------------------
# Writing


@dataclasses.dataclass(frozen=True)
class Shard:
    """A written shard: what the manifest says about it."""

    file: str
    instances: int
    random_next: int
    masked_tokens: int
    lengths: np.ndarray  # [L + 1], how many examples have that many tokens


def _write_shards(job: Job, corpus: Corpus, num_shards: int) -> list[Shard]:
    """Writes all shards under temporary names, in parallel, and renames them when the last one is written."""
    for path in _existing_output(job.output_dir):
        os.remove(path)
    jobs = [(job, corpus, shard, num_shards) for shard in range(num_shards)]
    workers = min(job.num_workers, num_shards)
    try:
        with tqdm(total=num_shards, desc="Writing", unit=" shards", disable=None) as bar:
            shards = []
            for shard in map(_write_shard_of, jobs) if workers == 1 else _fork_map(jobs, workers):
                shards.append(shard)
                bar.update()
    except BaseException:
        for path in glob.glob(os.path.join(glob.escape(job.output_dir), "part-*" + _TEMPORARY)):
            os.remove(path)
        raise
    for shard in shards:
        path = os.path.join(job.output_dir, shard.file)
        os.replace(path + _TEMPORARY, path)
    return shards


_jobs: list = []  # of the process pool: forked processes find it here, so that the corpus is shared and not sent


def _fork_map(jobs: list, workers: int) -> Iterator[Shard]:
    """Runs the jobs in forked processes. They call NumPy, protobuf and the record writer, and start no TensorFlow op."""
    _jobs[:] = jobs
    fork = multiprocessing.get_context("fork")
    try:
        with ProcessPoolExecutor(workers, mp_context=fork, initializer=_die_on_signals) as pool:
            try:
                yield from pool.map(_write_shard_number, range(len(jobs)))
            except BaseException:
                for process in multiprocessing.active_children():  # without this, leaving the pool waits for the shards in work
                    process.terminate()
                raise
    except BrokenProcessPool:
        raise ConfigError("a process that wrote to --output_dir was killed, perhaps for want of memory. "
                          f"Lower --num_workers={workers}.") from None
    finally:
        _jobs.clear()


def _die_on_signals() -> None:
    """Leaves it to the parent to say what happened."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)


def _write_shard_number(number: int) -> Shard:
    return _write_shard_of(_jobs[number])


def _write_shard_of(arguments: tuple) -> Shard:
    return _write_shard(*arguments)


def _write_shard(job: Job, corpus: Corpus, number: int, num_shards: int) -> Shard:
    """Builds and writes one shard under its temporary name."""
    rules = job.rules
    features = schema.pretraining_schema(rules.max_seq_length, rules.max_predictions_per_seq)
    plan = pretraining.plan_shard(corpus.documents, rules, job.random_seed, number, num_shards)
    rng = pretraining.masking_rng(rules, job.random_seed, number)
    lengths = np.zeros(rules.max_seq_length + 1, np.int64)
    totals = collections.Counter()
    file = f"part-{number:05d}-of-{num_shards:05d}.tfrecord"
    with tf.io.TFRecordWriter(os.path.join(job.output_dir, file) + _TEMPORARY) as writer:
        for first in range(0, len(plan), _BATCH_EXAMPLES):
            batch = pretraining.build_examples(plan[first:first + _BATCH_EXAMPLES], corpus.documents, corpus.vocabulary, rules, rng)
            for row in range(len(batch["input_ids"])):
                writer.write(schema.serialize_example({name: values[row] for name, values in batch.items()}, features))
            lengths += np.bincount(batch["input_mask"].sum(axis=1), minlength=len(lengths))
            totals["random_next"] += int(batch["next_sentence_labels"].sum())
            totals["masked_tokens"] += int(batch["masked_lm_weights"].sum())
    return Shard(file, instances=len(plan), lengths=lengths, random_next=totals["random_next"], masked_tokens=totals["masked_tokens"])


def _manifest(job: Job, num_shards: int, corpus: Corpus, counts: documents_lib.ReadCounts, shards: list[Shard]) -> dict:
    """Returns the manifest. `num_workers` is not in it: the records do not depend on it."""
    lengths = sum(shard.lengths for shard in shards)
    return {
        "flags": {
            "input_files": job.input_files, "vocab_file": job.vocab_file, **dataclasses.asdict(job.rules),
            "random_seed": job.random_seed, "num_shards": num_shards,
        },
        "vocabulary_sha256": corpus.vocabulary.sha256,
        "vocabulary_size": corpus.vocabulary.size,
        "input_files": counts.files,
        "input_bytes": counts.bytes,
        "documents": corpus.documents.num_documents,
        "sentences": corpus.documents.num_sentences,
        "tokens": len(corpus.documents.tokens),
        "skipped_lines": counts.skipped_lines,
        "skipped_sentences": counts.sentences - corpus.documents.num_sentences,
        "undecodable_bytes": counts.undecodable_bytes,
        "instances": sum(shard.instances for shard in shards),
        "random_next": sum(shard.random_next for shard in shards),
        "masked_tokens": sum(shard.masked_tokens for shard in shards),
        "lengths": {str(length): int(lengths[length]) for length in np.flatnonzero(lengths)},
        "files": {shard.file: shard.instances for shard in shards},
    }
