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
import functools
import glob
import itertools
import os
from collections.abc import Iterator

import numpy as np
import tensorflow as tf

from official.config import ConfigError
from official.data.pretraining import corpus, masking, pairs
from official.data.records import containers as records
from official.data.text import documents, read_counts, sentences, text_files
from official.data.word_pieces import tokenization, vocabulary
from official.io import files, finished_jobs, unfinished, workers, writing

_VERSION = 4  # of what the same flags make of the same text
_TASK_BYTES = 8 << 20  # of text, in parts of a file or in small files
_BYTES_PER_WORKER = (
    16 << 20
)  # of text, where the number of workers is not asked for: starting one costs seconds
_BLOCK_TOKENS = 1 << 22
_POOL_TOKENS = 1 << 22  # about 18 MB of English text, some thousand articles
_FEWEST_POOL_DOCUMENTS = 32  # on average
_FEWEST_SHARDS_UNASKED = 8
_MOST_EXAMPLES = 1536  # are laid out, masked and encoded at once: their arrays stay in the cache
_PLAN, _MASKS, _KEYS = range(3)  # kinds of random streams


@dataclasses.dataclass(frozen=True)
class Job:
    """What is to be made; the fields are the flags of the same names."""

    input_files: str
    output_dir: str
    vocab_file: str
    rules: pairs.Rules
    sentence_splitting: str = "auto"
    record_format: str = "plain"  # with `rules.remask`: "remask"
    pad_position_value: int | None = None
    random_seed: int = 12345
    num_workers: int | None = None
    num_shards: int | None = None
    overwrite: bool = False
    do_lower_case: bool | None = None

    def flags(self) -> dict:
        """Returns the flags on which the records depend."""
        flags = dataclasses.asdict(self)
        for name in ("output_dir", "num_workers", "overwrite"):
            del flags[name]
        return flags | flags.pop("rules")


@dataclasses.dataclass(frozen=True)
class Layout:
    """How the pools are dealt out to the shards: one of `shards_per_pool` and `pools_per_shard` is 1."""

    num_pools: int
    num_shards: int

    @property
    def shards_per_pool(self) -> int:
        return max(1, self.num_shards // self.num_pools)

    def parts(self, shard: int) -> list[tuple[int, int]]:
        """Returns (pool, part) of which the shard is made; a part is every `shards_per_pool`-th example of a
        pool."""
        if self.num_pools <= self.num_shards:
            return [divmod(shard, self.shards_per_pool)]
        pools_per_shard = self.num_pools // self.num_shards
        return [(pool, 0) for pool in range(shard * pools_per_shard, (shard + 1) * pools_per_shard)]

    def file(self, shard: int) -> str:
        return f"part-{shard:05d}-of-{self.num_shards:05d}.tfrecord"


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
    try:
        with unfinished.folder_of(
            job.output_dir, {**identity, "task_bytes": _TASK_BYTES}, job.overwrite
        ) as folder:
            _remove_earlier(job)
            manifest = _make(job, folder, tasks, words, sum(files.sizes(paths)))
            return finished_jobs.write_manifest(job.output_dir, identity, manifest)
    except (OSError, tf.errors.OpError) as error:
        raise ConfigError(
            f"--output_dir={job.output_dir} cannot be written to:"
            f" {getattr(error, 'strerror', None) or error}. The same command goes on with what is not done."
        ) from None


def is_finished(job: Job) -> bool:
    """Tells whether all of a job is done already. Raises ConfigError as `create_pretraining_data` does."""
    if job.overwrite or not os.path.exists(os.path.join(job.output_dir, finished_jobs.MANIFEST)):
        return False
    job, words = _checked(job)
    identity = _identity(job, files.find_files(job.input_files, "input_files"), words)
    return finished_jobs.read_manifest(job.output_dir, identity, job.overwrite) is not None


def _identity(job: Job, paths: list[str], words: vocabulary.Vocabulary) -> dict:
    """Returns all that the records depend on."""
    text = text_files.identify(paths)
    return {"version": _VERSION, **job.flags(), "vocabulary_sha256": words.sha256, "text": text}


def _make(
    job: Job, folder: str, tasks: list[list[text_files.Split]], words: vocabulary.Vocabulary, num_bytes: int
) -> dict:
    """Runs both rounds and returns the manifest."""
    for path in glob.glob(os.path.join(glob.escape(job.output_dir), "*.tmp-*")):
        os.remove(path)
    _planned_pool.cache_clear()  # an earlier job of this process may have had the same flags, and other text
    run = functools.partial(
        workers.run_all, num_workers=_num_workers(job, num_bytes), total_bytes=num_bytes, preload=__name__
    )
    run(
        [(_tokenize_text, job, folder, number, splits, words.sha256) for number, splits in enumerate(tasks)],
        doing="Tokenising",
        items="documents",
    )
    text, by_file = _sum_of(unfinished.read_done(_text_path(folder, number)) for number in range(len(tasks)))
    layout = _plan_layout(job, text)
    share = num_bytes / layout.num_shards
    run(
        [
            (_write_shard, job, folder, layout, number, share, words.sha256)
            for number in range(layout.num_shards)
        ],
        doing="Writing",
        items="examples",
    )
    shards = [unfinished.read_done(_shard_path(folder, number)) for number in range(layout.num_shards)]
    made = {os.path.join(job.output_dir, layout.file(number)) for number in range(layout.num_shards)}
    for path in {*_shards_in(job.output_dir)} - made:
        os.remove(path)  # of a job that was thrown away
    return _manifest(job, layout, words, text, shards) | {"inputs": read_counts.listed(by_file)}


def _sum_of(counts: Iterator[dict]) -> tuple[collections.Counter, dict[str, read_counts.FileCounts]]:
    """Returns the sums of what the tasks of the first round counted, in all and by file."""
    totals, read = collections.Counter(), documents.ReadCounts()
    for found in counts:
        totals.update(found["totals"])
        for path, own in read_counts.from_json(found["by_file"]).items():
            read.of(path).add(own)
    return totals, read.by_file


# ------------------------------------------------------------------------------------------------------------
# Checks


def _checked(job: Job) -> tuple[Job, vocabulary.Vocabulary]:
    """Returns the job, with what its vocabulary decides, and the vocabulary."""
    for name in ("num_workers", "num_shards"):
        value = getattr(job, name)
        if value is not None and value < 1:
            raise ConfigError(f"--{name}={value} is out of range. Allowed: 1 or more.")
    if job.random_seed < 0:
        raise ConfigError(f"--random_seed={job.random_seed} is out of range. Allowed: 0 or more.")
    if "://" in job.output_dir:
        raise ConfigError(
            f"--output_dir={job.output_dir} is not a folder of this machine. Write to one and copy the files."
        )
    words = vocabulary.load_for_text(job.vocab_file, job.do_lower_case)
    records.check_vocabulary(words, job.record_format)
    return dataclasses.replace(job, do_lower_case=words.do_lower_case), words


def _remove_earlier(job: Job) -> None:
    """Removes the files of an earlier finished job; the manifest last, which tells that there are any."""
    manifest = os.path.join(job.output_dir, finished_jobs.MANIFEST)
    if os.path.exists(manifest):
        for path in [*_shards_in(job.output_dir), manifest]:
            os.remove(path)


def _shards_in(folder: str) -> list[str]:
    return glob.glob(os.path.join(glob.escape(folder), "part-*-of-*.tfrecord"))


def _num_workers(job: Job, num_bytes: int) -> int:
    return job.num_workers or min(len(os.sched_getaffinity(0)), 1 + num_bytes // _BYTES_PER_WORKER)


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


# ------------------------------------------------------------------------------------------------------------
# First round: text -> blocks of tokenised documents


def _text_path(folder: str, number: int) -> str:
    return os.path.join(folder, f"text-{number:05d}.json")


@functools.lru_cache(maxsize=1)
def _tokenizer(vocab_file: str, sha256: str, do_lower_case: bool) -> tokenization.Tokenizer:
    return tokenization.Tokenizer(
        dataclasses.replace(_vocabulary(vocab_file, sha256), do_lower_case=do_lower_case)
    )


@functools.lru_cache(maxsize=1)
def _vocabulary(vocab_file: str, sha256: str) -> vocabulary.Vocabulary:
    """Loads the vocabulary, once as long as the file does not change."""
    words = vocabulary.load_vocabulary(vocab_file)
    if words.sha256 != sha256:
        raise ConfigError(f"--vocab_file={vocab_file} was changed while it was read.")
    return words


def _tokenize_text(job: Job, folder: str, number: int, splits: list[text_files.Split], sha256: str) -> None:
    """Writes the blocks of a task's splits of the text and, last, what was counted."""
    if unfinished.read_done(_text_path(folder, number)):
        return
    counts, kept = documents.ReadCounts(), collections.Counter()
    keys = np.random.default_rng([job.random_seed, _KEYS, number])
    tokenizer = _tokenizer(job.vocab_file, sha256, job.do_lower_case)
    unknown = _vocabulary(job.vocab_file, sha256).id_of("[UNK]")
    parts = (
        _tokenized(lines, tokenizer)
        for lines in _reported(documents.read_lines(splits, job.sentence_splitting, counts), counts)
    )
    for block_number, block in enumerate(_blocks(parts)):
        prefix = os.path.join(folder, f"{number:05d}-{block_number:05d}")
        corpus.write_block(prefix, block, keys.integers(2**64, size=block.num_documents, dtype=np.uint64))
        kept.update(
            kept_documents=block.num_documents,
            kept_sentences=block.num_sentences,
            tokens=len(block.tokens),
            unknown_tokens=int(np.count_nonzero(block.tokens == unknown)),
        )
    by_file = read_counts.to_json(counts.by_file)
    unfinished.write_done(
        _text_path(folder, number), {"totals": {**counts.totals(), **kept}, "by_file": by_file}
    )


def _reported(parts: Iterator[sentences.Lines], counts: documents.ReadCounts) -> Iterator[sentences.Lines]:
    done = 0
    for lines in parts:
        workers.report(counts.bytes - done, len(lines.counts))
        done = counts.bytes
        yield lines


def _tokenized(lines: sentences.Lines, tokenizer: tokenization.Tokenizer) -> corpus.TokenizedDocuments:
    tokens, lengths = tokenizer.tokenize_lines(lines.text)
    return corpus.from_sentences(tokens, lengths, np.repeat(np.arange(len(lines.counts)), lines.counts))


def _blocks(parts: Iterator[corpus.TokenizedDocuments]) -> Iterator[corpus.TokenizedDocuments]:
    """Joins documents to blocks of at least _BLOCK_TOKENS tokens, the last one with what is left."""
    block, tokens = [], 0
    for part in parts:
        block.append(part)
        tokens += len(part.tokens)
        if tokens >= _BLOCK_TOKENS:
            yield corpus.concatenate(block)
            block, tokens = [], 0
    if tokens:
        yield corpus.concatenate(block)


# ------------------------------------------------------------------------------------------------------------
# Second round: pools of documents -> shards


def _shard_path(folder: str, number: int) -> str:
    return os.path.join(folder, f"shard-{number:05d}.json")


@functools.lru_cache(maxsize=1)  # shards that follow each other share a pool
def _planned_pool(
    job: Job, folder: str, pool: int, num_pools: int
) -> tuple[corpus.TokenizedDocuments, np.ndarray]:
    """Returns the documents of a pool and the plan of all its examples."""
    first_key, end_key = (number * 2**64 // num_pools for number in (pool, pool + 1))
    texts = corpus.read_pool(corpus.find_blocks(folder), first_key, end_key)
    return texts, pairs.plan_pairs(texts, job.rules, np.random.default_rng([job.random_seed, _PLAN, pool]))


def _write_shard(job: Job, folder: str, layout: Layout, number: int, share: float, sha256: str) -> None:
    """Writes a shard under a temporary name, renames it, and writes what was counted; `share` is its part of
    the text in bytes."""
    path = os.path.join(job.output_dir, layout.file(number))
    done = unfinished.read_done(_shard_path(folder, number))
    if done and finished_jobs.are_there(job.output_dir, {layout.file(number): done["bytes"]}):
        workers.report(share, done["instances"])
        return
    with writing.replacing(path) as temporary:
        counts = _write_shard_records(temporary, job, folder, layout, number, share, sha256)
    unfinished.write_done(_shard_path(folder, number), {**counts, "bytes": os.path.getsize(path)})


def _write_shard_records(
    path: str, job: Job, folder: str, layout: Layout, number: int, share: float, sha256: str
) -> dict:
    """Writes the records and returns what the manifest says about them."""
    totals, lengths = collections.Counter(), np.zeros(job.rules.max_seq_length + 1, np.int64)
    with tf.io.TFRecordWriter(path) as writer:
        for examples, part in _shard_examples(job, folder, layout, number, sha256):
            for record in records.encode(
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


def _shard_examples(job: Job, folder: str, layout: Layout, number: int, sha256: str) -> Iterator[tuple]:
    """Yields (examples, their part of the shard) in batches."""
    words = _vocabulary(job.vocab_file, sha256)
    parts = layout.parts(number)
    for pool, part in parts:
        texts, plan = _planned_pool(job, folder, pool, layout.num_pools)
        plan = plan[part :: layout.shards_per_pool]
        rng = np.random.default_rng([job.random_seed, _MASKS, pool, part])
        bounds = np.linspace(0, len(plan), -(-len(plan) // _MOST_EXAMPLES) + 1).astype(int)
        for first, end in zip(bounds, bounds[1:]):
            rows = plan[first:end]
            yield (
                masking.build_examples(rows, texts, words, job.rules, rng),
                len(rows) / len(plan) / len(parts),
            )


# ------------------------------------------------------------------------------------------------------------


def _manifest(
    job: Job, layout: Layout, words: vocabulary.Vocabulary, text: collections.Counter, shards: list[dict]
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
        **{
            name: sum(shard[name] for shard in shards)
            for name in ("instances", "random_next", "masked_tokens")
        },
        "lengths": {str(length): int(lengths[length]) for length in np.flatnonzero(lengths)},
        "files": {layout.file(number): shard["instances"] for number, shard in enumerate(shards)},
        "file_bytes": {layout.file(number): shard["bytes"] for number, shard in enumerate(shards)},
    }
