"""The first round of making pre-training data: text -> blocks of tokenised documents."""

import collections
import dataclasses
import functools
import os
from collections.abc import Iterator

import numpy as np

from official.data.pretraining import corpus
from official.data.pretraining.job import Job, vocabulary_of
from official.data.text import documents, read_counts, sentences, text_files
from official.data.word_pieces.tokenization import Tokenizer
from official.io import unfinished, workers

KEYS = 2  # the kind of random stream from which documents get their keys
BLOCK_TOKENS = 1 << 22


def counts_path(folder: str, number: int) -> str:
    """Returns where a task writes, last, what it counted."""
    return os.path.join(folder, f"text-{number:05d}.json")


def tokenize_text(job: Job, folder: str, number: int, splits: list[text_files.Split], sha256: str) -> None:
    """Writes the blocks of a task's splits of the text and, last, what was counted."""
    if unfinished.read_done(counts_path(folder, number)):
        return
    counts = documents.ReadCounts()
    kept: collections.Counter[str] = collections.Counter()
    keys = np.random.default_rng([job.random_seed, KEYS, number])
    tokenizer = _tokenizer(job.vocab_file, sha256, job.do_lower_case)
    unknown = vocabulary_of(job.vocab_file, sha256).id_of("[UNK]")
    parts = (
        _tokenized(lines, tokenizer)
        for lines in _reported(
            documents.read_in_blocks(splits, job.sentence_splitting, counts, job.text_field), counts
        )
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
        counts_path(folder, number), {"totals": {**counts.totals(), **kept}, "by_file": by_file}
    )


def _reported(parts: Iterator[sentences.Lines], counts: documents.ReadCounts) -> Iterator[sentences.Lines]:
    done = 0
    for lines in parts:
        workers.report(counts.bytes - done, len(lines.counts))
        done = counts.bytes
        yield lines


def _tokenized(lines: sentences.Lines, tokenizer: Tokenizer) -> corpus.TokenizedDocuments:
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
def _tokenizer(vocab_file: str, sha256: str, do_lower_case: bool) -> Tokenizer:
    return Tokenizer(dataclasses.replace(vocabulary_of(vocab_file, sha256), do_lower_case=do_lower_case))
