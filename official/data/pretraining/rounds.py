"""The rounds of a job that makes pre-training data: text to files of documents, and documents to shards of
records."""

from __future__ import annotations

import collections
import dataclasses
import functools
import hashlib
import os
import struct
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from official.data import compaction
from official.data.compaction import KEY_BITS, Grouping, done_path
from official.data.pretraining import card
from official.data.pretraining import examples as examples_lib
from official.data.pretraining import plan as plan_lib
from official.data.pretraining.examples import TokenizedDocuments
from official.data.pretraining.plan import Job, Layout, vocabulary_of
from official.data.records import shard_files
from official.data.rows import ragged
from official.data.text import documents, samples, sentences, text_files
from official.data.word_pieces import tokenizer as tokenizers
from official.data.word_pieces.tokenizer import Tokenizer
from official.io import engines, files, jobs, writing
from official.io.errors import ConfigError

# -----------------------------------------------------------------------------------------------------------
# Files of documents
#
# The documents in a range of keys are a random sample of all documents. In every file they are contiguous,
# and they fit into memory however large the whole text is.


_MAGIC = b"BERTDOCS"
_CHUNK = struct.Struct("<QQQ")  # documents, sentences, tokens
_CHUNK_BYTES = 1 << 14  # average size; at each end of a range up to one chunk is read in vain


@dataclasses.dataclass(frozen=True)
class Sample:
    """D documents with their keys."""

    documents: TokenizedDocuments
    keys: np.ndarray  # [D] uint64, ascending
    sources: np.ndarray  # [D] uint8, the number of each document's source

    def sorted(self, first_key: int = 0, end_key: int = 1 << KEY_BITS) -> Sample:
        """Returns the documents sorted by their keys, stably."""
        order = np.argsort(self.keys, kind="stable")
        first, end = (_find(self.keys[order], key) for key in (first_key, end_key))
        return self.take(order[first:end])

    def take(self, order: np.ndarray) -> Sample:
        """Returns the documents with these numbers, in this order."""
        return Sample(self.documents.take(order), self.keys[order], self.sources[order])

    def counts(self, unknown: int) -> dict[str, int]:
        """Returns the counts of the documents for a manifest; `unknown` is the id of [UNK]."""
        return {
            "kept_documents": self.documents.num_documents,
            "kept_sentences": self.documents.num_sentences,
            "tokens": len(self.documents.tokens),
            "unknown_tokens": int(np.count_nonzero(self.documents.tokens == unknown)),
        }

    def without_duplicates(self) -> tuple[Sample, Sample]:
        """Splits documents, sorted by their keys, into the first of each set of equal documents and the rest.
        Equal documents have equal keys."""
        is_other = np.zeros(len(self.keys), bool)
        different: list[int] = []  # different documents with the current key
        for number in np.flatnonzero(self.keys[1:] == self.keys[:-1]) + 1:
            if not different or self.keys[different[0]] != self.keys[number]:
                different = [int(number) - 1]
            own, others = self.documents.content(number), map(self.documents.content, different)
            is_other[number] = any(all(map(np.array_equal, own, other)) for other in others)
            if not is_other[number]:
                different.append(int(number))
        return self.take(np.flatnonzero(~is_other)), self.take(np.flatnonzero(is_other))


def _find(keys: np.ndarray, key: int) -> int:
    """Returns the number of ascending keys below `key`, which is at most 2**64."""
    return len(keys) if key == 1 << KEY_BITS else int(np.searchsorted(keys, np.uint64(key)))


def concatenate(samples: Iterable[Sample]) -> Sample:
    """Concatenates documents, at least one sample."""
    samples = list(samples)
    return Sample(
        examples_lib.concatenate(sample.documents for sample in samples),
        np.concatenate([sample.keys for sample in samples]),
        np.concatenate([sample.sources for sample in samples]),
    )


# ------------------------------------------------------------------------------------------------------------
# Writing


def write_block(path: str, sample: Sample, first_key: int = 0, range_bits: int = KEY_BITS) -> None:
    """Writes a file of documents atomically.

    Args:
      sample: documents in the order of their keys.
      first_key, range_bits: the file covers the 2**range_bits keys from first_key on.

    Raises:
      OSError: if the file cannot be written; an earlier one of that name stays.
    """
    bits = min(max(size(sample) // _CHUNK_BYTES, 1).bit_length() - 1, 12, range_bits)
    bounds = [_find(sample.keys, key) for key in compaction.bounds(first_key, range_bits, bits)]
    chunks = [_chunk(sample, *bound) for bound in zip(bounds, bounds[1:])]
    word_bytes = sample.documents.tokens.itemsize
    compaction.write_chunks(path, _MAGIC, chunks, word_bytes, first_key, range_bits)


def size(sample: Sample) -> int:
    """Estimates the size of documents in a file, in bytes."""
    return sample.documents.tokens.nbytes + 4 * sample.documents.num_sentences + 13 * len(sample.keys)


def _chunk(sample: Sample, first: int, end: int) -> bytes:
    texts = sample.documents
    sentences = texts.document_starts[first : end + 1]
    starts = texts.sentence_starts[sentences[0] : sentences[-1] + 1]
    tokens, lengths = texts.tokens[starts[0] : starts[-1]], np.diff(starts)
    counts, lengths = np.diff(sentences).astype(np.uint32), lengths.astype(np.uint32)
    arrays = (sample.keys[first:end], counts, lengths, tokens, sample.sources[first:end])
    data = _CHUNK.pack(end - first, len(lengths), len(tokens)) + b"".join(array.tobytes() for array in arrays)
    return data + bytes(-len(data) % 8)


# ------------------------------------------------------------------------------------------------------------
# Reading


def read_range(paths: Iterable[str], first_key: int, end_key: int) -> Sample:
    """Returns the documents of all files with first_key <= key < end_key in the order of their keys, those of
    one key in the order of the files.

    Args:
      paths: at least one path.
      end_key: up to 2**64.

    Raises:
      ConfigError: for a missing or damaged file.
    """
    chunks = compaction.read_chunks(paths, _MAGIC, first_key, end_key, _parse)
    return concatenate(chunks).sorted(first_key, end_key)


def _parse(chunk: memoryview, token_type: np.dtype) -> Sample:
    documents, sentences, tokens = _CHUNK.unpack_from(chunk)
    place, arrays = _CHUNK.size, []
    kinds = (*map(np.dtype, ("<u8", "<u4", "<u4")), token_type, np.dtype("u1"))
    for kind, count in zip(kinds, (documents, documents, sentences, tokens, documents)):
        arrays.append(np.frombuffer(chunk, kind, count, place))
        place += arrays[-1].nbytes
    keys, sentences_of, lengths, ids, sources = arrays
    texts = TokenizedDocuments(ids, ragged.offsets(lengths), ragged.offsets(sentences_of))
    return Sample(texts, keys, sources)


# -----------------------------------------------------------------------------------------------------------
# Compaction


def merge(job: Job, target: Grouping, files_below: int, place: tuple[int, int], share: float) -> None:
    """Writes a file of a level: the documents of a range of keys from up to 256 files of the level below.

    Args:
      place: number of the range, and of the file in the range.
      share: the file's share of the text in bytes, for the progress bar.
    """
    counted, keys = target.counts_path(*place), target.keys(place[0])
    if not jobs.read_done(counted):
        sample = read_range(target.paths_below(files_below, *place), *keys)
        counts: dict[str, int] = {"duplicate_documents": 0}
        if job.drop_duplicates:
            sample, others = sample.without_duplicates()
            counts = dropped_counts(others, vocabulary_of(job).special_ids.unk)
        write_block(target.path(*place), sample, keys[0], target.range_bits)
        jobs.write_done(counted, counts)
    engines.report(share, 0)


def dropped_counts(others: Sample, unknown: int) -> dict[str, int]:
    """Returns the corrections of the text's counts for dropped documents; `unknown` is the id of [UNK]."""
    changes = {name: -value for name, value in others.counts(unknown).items()}
    return changes | {"duplicate_documents": len(others.keys)}


# -----------------------------------------------------------------------------------------------------------
# Estimate of repeated documents
#
# Equal documents have equal keys, and the documents with the lowest keys are a random sample of the distinct
# ones. For each source, the share of its sample that no earlier text contains estimates the share that
# remains. It is exact if the sample is the whole text.


_SAMPLED = 1 << 21  # approximate number of documents in the sample


def tokens_left(grouping: Grouping, tokens: Sequence[float], num_documents: int) -> list[float]:
    """Estimates the tokens of each source that remain without duplicates. The result is kept, since the files
    are removed when they are merged.

    Args:
      grouping: level 0, with the files of the sources in order.
      tokens: number of tokens of each source, including duplicates.
      num_documents: number of documents of all sources.
    """
    path = os.path.join(grouping.folder, "left.json")
    if done := jobs.read_done(path):
        return done["tokens"]
    end_key = (1 << KEY_BITS) * min(_SAMPLED, num_documents) // num_documents
    parts = compaction.read_chunks(grouping.paths(0, end_key), _MAGIC, 0, end_key, _parse_sizes)
    keys, sizes, sources = (np.concatenate(arrays) for arrays in zip(*parts))
    inside = keys <= np.uint64(end_key - 1)
    _, first = np.unique(keys[inside], return_index=True)
    before = np.bincount(sources[inside], sizes[inside], len(tokens))
    after = np.bincount(sources[inside][first], sizes[inside][first], len(tokens))
    left = np.array(tokens) * np.where(before > 0, after / np.maximum(before, 1), 1.0)
    jobs.write_done(path, {"tokens": left.tolist()})
    return left.tolist()


def _parse_sizes(chunk: memoryview, token_type: np.dtype) -> tuple[np.ndarray, ...]:
    """Returns the keys of a chunk's documents, their numbers of tokens, and their sources, as copies, which
    do not keep the chunk in memory."""
    sample = _parse(chunk, token_type)
    return sample.keys.copy(), np.diff(sample.documents.token_starts()), sample.sources.copy()


# -----------------------------------------------------------------------------------------------------------
# First round


KEYS = 2  # number of the random stream for the keys of documents; 0 and 1 are for plans and masks
BLOCK_TOKENS = 1 << 24  # approximate tokens of a file; more than a task has of plain text


def tokenize_text(
    job: Job, grouping: Grouping, number: int, num_tasks: int, source: int, splits: list[text_files.Split]
) -> None:
    """Writes the documents of a task's splits, all of one source; then a sample of them with their counts,
    which mark the task as finished."""
    if jobs.read_done(done_path(grouping.folder, "text", number)):
        return
    counts = documents.ReadCounts()
    kept: collections.Counter[str] = collections.Counter()
    rng = np.random.default_rng([job.random_seed, KEYS, number])
    tokenizer, unknown = tokenizer_of(job), vocabulary_of(job).special_ids.unk

    def reported() -> Iterator[sentences.Lines]:
        done = 0
        for lines in documents.read_in_blocks(splits, job.sentence_splitting, counts, job.text_field):
            engines.report(counts.bytes - done, len(lines.counts))
            done = counts.bytes
            yield lines

    read = reported()
    if job.side and job.eval_share:
        read = samples.of_split(read, job.side, job.eval_share, kept)
    shown = samples.DocumentSample(number, num_tasks)
    parts = (tokenized(lines, tokenizer) for lines in shown.noted(read))
    for texts in _blocks(parts):
        sources = np.full(texts.num_documents, source, np.uint8)
        sample = Sample(texts, _keys(job, texts, rng), sources).sorted()
        if job.drop_duplicates:
            sample, others = sample.without_duplicates()
            kept["duplicate_documents"] += len(others.keys)
        write_block(grouping.path_of_task(number, kept["blocks"]), sample)
        kept.update(sample.counts(unknown), blocks=1, block_bytes=size(sample))
    done = counts.result(kept, shown.documents())
    jobs.write_done(done_path(grouping.folder, "text", number), done)


def _keys(job: Job, texts: examples_lib.TokenizedDocuments, rng: np.random.Generator) -> np.ndarray:
    """Returns a random key for each document, uint64 [D]: drawn from `rng`, or with `drop_duplicates` a
    digest of its content, so that equal documents have equal keys."""
    if not job.drop_duplicates:
        return rng.integers(2**64, size=texts.num_documents, dtype=np.uint64)
    seed, digests = str(job.random_seed).encode()[:64], bytearray()
    for tokens, lengths in map(texts.content, range(texts.num_documents)):
        content = tokens.tobytes() + lengths.astype("<u4").tobytes()
        digests += hashlib.blake2b(content, digest_size=8, key=seed).digest()
    return np.frombuffer(digests, "<u8")


def tokenized(lines: sentences.Lines, tokenizer: Tokenizer) -> examples_lib.TokenizedDocuments:
    """Tokenizes documents and leaves out empty ones."""
    tokens, lengths = tokenizer.tokenize_lines(lines.text)
    return examples_lib.from_sentences(tokens, lengths, np.repeat(np.arange(len(lines.counts)), lines.counts))


def _blocks(parts: Iterator[TokenizedDocuments]) -> Iterator[TokenizedDocuments]:
    """Joins documents into blocks of at least BLOCK_TOKENS tokens; the last block has the rest."""
    block, tokens = [], 0
    for part in parts:
        block.append(part)
        tokens += len(part.tokens)
        if tokens >= BLOCK_TOKENS:
            yield examples_lib.concatenate(block)
            block, tokens = [], 0
    if tokens:
        yield examples_lib.concatenate(block)


@functools.lru_cache(maxsize=1)
def tokenizer_of(job: Job) -> Tokenizer:
    """Makes the tokenizer of a job, cached until the vocabulary changes."""
    words = dataclasses.replace(vocabulary_of(job), do_lower_case=bool(job.do_lower_case))
    return tokenizers.tokenizer_of(words)


# -----------------------------------------------------------------------------------------------------------
# Last round


_MAX_EXAMPLES = 1536  # examples that are masked and encoded at once: their arrays fit into the cache


# Cached per process: consecutive shards read the same pools, one pass apart.
@functools.lru_cache(maxsize=10)
def _pool(grouping: Grouping, keys: tuple[int, int], drop_duplicates: bool, unknown: int) -> tuple:
    """Returns the `Sample` of a pool's documents, and the corrections {name: number} for dropped documents,
    see `dropped_counts`."""
    sample = read_range(grouping.paths(*keys), *keys)
    if not drop_duplicates:
        return sample, {}
    sample, others = sample.without_duplicates()
    return sample, dropped_counts(others, unknown)


def write_shard(job: Job, grouping: Grouping, plan: Layout, shard: int, share: float) -> None:
    """Writes a shard under a temporary name, renames it, and writes its counts; `share` is its share of the
    text in bytes, for the progress bar."""
    name = plan.file(shard)
    path, counted = os.path.join(job.output_dir, name), done_path(grouping.folder, "shard", shard)
    done = jobs.read_done(counted)
    if done and jobs.are_there(job.output_dir, {name: done["bytes"]}):
        engines.report(share, done["instances"])
        return
    words, stretches = vocabulary_of(job), plan.stretches(shard)
    share /= sum(len(stretch.passes) for stretch in stretches)
    totals: collections.Counter[str] = collections.Counter(instances=0, random_next=0, masked_tokens=0)
    lengths = np.zeros(job.rules.max_seq_length + 1, np.int64)
    dropped: collections.Counter[str] = collections.Counter()  # each pool is counted by one shard
    source_tokens = np.zeros(len(plan.copies), np.int64)  # tokens of the cut documents, with all copies
    with (
        writing.replacing(path) as temporary,
        shard_files.writing(temporary, job.record_format, job.pad_position_value) as write,
    ):
        for number, stretch in enumerate(stretches):
            # The random streams of the plan and of the masks, see `KEYS`.
            rngs = [np.random.default_rng([job.random_seed, kind, shard, number]) for kind in (0, 1)]
            keys = plan.keys(stretch.pool)
            sample, own_dropped = _pool(grouping, keys, job.drop_duplicates, words.special_ids.unk)
            if (0, 0) in zip(stretch.passes, stretch.parts):  # true for one shard of each pool
                dropped.update(own_dropped)
            if job.rules.has_pairs and len(sample.keys) == 1:
                why = "expected at least 2: a random next segment comes from another document"
                left = "With --drop_duplicates too little of the text is left."
                raise ConfigError(f"--input_files: pool {stretch.pool} holds 1 document, {why}. {left}")
            tokens_D = np.diff(sample.documents.token_starts())
            part_D = plan_lib.parts_of(tokens_D, plan.parts_per_pool)
            piece_D = plan_lib.pieces_of(tokens_D, part_D, plan.pieces_per_part)
            passes = [
                np.flatnonzero((part_D == part) & plan.is_in_pass(each, sample.sources, sample.keys))
                for part, each in zip(stretch.parts, stretch.passes)
            ]
            ranks = np.concatenate([piece_D[own] + n * plan.pieces_per_part for n, own in enumerate(passes)])
            chosen = np.concatenate(passes)
            np.add.at(source_tokens, sample.sources[chosen], tokens_D[chosen])
            cut = examples_lib.plan_examples(sample.documents, chosen, ranks, words, job.rules, rngs[0])
            count = len(cut.rows)
            ends = np.linspace(0, count, -(-count // _MAX_EXAMPLES) + 1).astype(int)
            for first, end in zip(ends, ends[1:]):
                examples = examples_lib.build_examples(cut.part(first, end), words, job.rules, rngs[1])
                if not totals["instances"]:
                    card.keep_first_examples(grouping.folder, shard, plan.num_shards, examples)
                write(examples)
                lengths += np.bincount(examples.lengths, minlength=len(lengths))
                totals["instances"] += len(examples)
                totals["random_next"] += int(examples.is_random.sum())
                totals["masked_tokens"] += int(examples.predictions.sum())
                engines.report(share * len(passes) * len(examples) / count, len(examples))
        if not totals["instances"]:
            problem = f"is too many: {name} would hold no example. Lower --num_shards."
            raise ConfigError(f"--num_shards={plan.num_shards} {problem}")
    counts = {"lengths": lengths.tolist(), "source_tokens": source_tokens.tolist()}
    jobs.write_done(counted, {**totals, "dropped": dropped, **counts, "bytes": files.version(path)[0]})
