"""The first round of making pre-training data: text -> files of tokenised documents in the order of their
keys."""

import collections
import dataclasses
import functools
import hashlib
import os
from collections.abc import Iterator

import numpy as np

from official.data.pretraining import blocks, corpus, remaining
from official.data.pretraining.job import Job, vocabulary_of
from official.data.regrouping import Grouping
from official.data.text import document_sample, documents, held_out, read_counts, sentences, text_files
from official.data.word_pieces import tokenization
from official.data.word_pieces.tokenization import Tokenizer
from official.io import unfinished, workers
from official.io.stores import store_of

KEYS = 2  # the kind of random stream from which documents get their keys
BLOCK_TOKENS = 1 << 24  # of a file, about: more than a task has of plain text


def counts_path(folder: str, number: int) -> str:
    """Returns the path of a task's counts. Written last, they mark the task as finished."""
    return os.path.join(folder, f"text-{number:05d}.json")


def tokenize_text(
    job: Job,
    grouping: Grouping,
    number: int,
    num_tasks: int,
    source: int,
    splits: list[text_files.Split],
    sha256: str,
) -> None:
    """Writes the documents of a task's splits of the text, all of one source, a sample of them and, last,
    their counts."""
    if unfinished.read_done(counts_path(grouping.folder, number)):
        return
    counts = documents.ReadCounts()
    kept: collections.Counter[str] = collections.Counter()
    rng = np.random.default_rng([job.random_seed, KEYS, number])
    tokenizer = tokenizer_of(job.vocab_file, sha256, job.do_lower_case)
    unknown = vocabulary_of(job.vocab_file, sha256).id_of("[UNK]")
    read = _reported(documents.read_in_blocks(splits, job.sentence_splitting, counts, job.text_field), counts)
    if job.side and job.eval_share:
        read = held_out.of_side(read, job.side, job.eval_share, kept)
    shown = document_sample.DocumentSample(number, num_tasks)
    keys = remaining.KeyList(num_tasks)
    parts = (tokenized(lines, tokenizer) for lines in shown.noted(read))
    store_of(grouping.folder).make_folder(grouping.level_folder)
    for texts in _blocks(parts):
        sample = blocks.Sample(
            texts, _keys(job, texts, rng), np.full(texts.num_documents, source, np.uint8)
        ).sorted()
        if job.drop_duplicates:
            sample, others = sample.without_duplicates()
            kept["duplicate_documents"] += len(others.keys)
        blocks.write_block(grouping.path_of_task(number, kept["blocks"]), sample)
        kept.update(sample.counts(unknown), blocks=1, block_bytes=blocks.size(sample))
        if remaining.is_needed(job):
            keys.add(sample)
    in_part = text_files.read_in_part(splits)
    done = {"totals": {**counts.totals(), **kept}, "by_file": read_counts.to_json(counts.by_file, in_part)}
    done |= {"sample": shown.documents(), "keys": keys.to_json()}
    unfinished.write_done(counts_path(grouping.folder, number), done)


def _keys(job: Job, texts: corpus.TokenizedDocuments, rng: np.random.Generator) -> np.ndarray:
    """Returns a random key for each document, uint64 [D]: drawn from `rng`, or a digest of its content, so
    that equal documents meet."""
    if not job.drop_duplicates:
        return rng.integers(2**64, size=texts.num_documents, dtype=np.uint64)
    seed = str(job.random_seed).encode()
    digests = []
    for number in range(texts.num_documents):
        tokens, lengths = texts.content(number)
        digest = hashlib.blake2b(tokens.tobytes(), digest_size=8, key=seed[:64])
        digest.update(lengths.astype("<u4").tobytes())
        digests.append(digest.digest())
    return np.frombuffer(b"".join(digests), "<u8")


def _reported(parts: Iterator[sentences.Lines], counts: documents.ReadCounts) -> Iterator[sentences.Lines]:
    done = 0
    for lines in parts:
        workers.report(counts.bytes - done, len(lines.counts))
        done = counts.bytes
        yield lines


def tokenized(lines: sentences.Lines, tokenizer: Tokenizer) -> corpus.TokenizedDocuments:
    """Returns the tokens of documents; those without one are left out."""
    tokens, lengths = tokenizer.tokenize_lines(lines.text)
    return corpus.from_sentences(tokens, lengths, np.repeat(np.arange(len(lines.counts)), lines.counts))


def _blocks(parts: Iterator[corpus.TokenizedDocuments]) -> Iterator[corpus.TokenizedDocuments]:
    """Joins documents to blocks of at least BLOCK_TOKENS tokens, the last one with what is left."""
    block, tokens = [], 0
    for part in parts:
        block.append(part)
        tokens += len(part.tokens)
        if tokens >= BLOCK_TOKENS:
            yield corpus.concatenate(block)
            block, tokens = [], 0
    if tokens:
        yield corpus.concatenate(block)


@functools.lru_cache(maxsize=1)
def tokenizer_of(vocab_file: str, sha256: str, do_lower_case: bool | None) -> Tokenizer:
    """Makes the tokenizer of a job, once as long as the vocabulary does not change."""
    words = vocabulary_of(vocab_file, sha256)
    return tokenization.tokenizer_of(dataclasses.replace(words, do_lower_case=bool(do_lower_case)))
