"""Disk space that a job will take, estimated from samples of its text before it starts."""

import contextlib
import os
import shutil
from collections.abc import Iterator
from typing import BinaryIO, NamedTuple

import numpy as np
from absl import logging

from official.data import compaction
from official.data.pretraining import examples as examples_lib
from official.data.pretraining import plan as plan_lib
from official.data.pretraining import rounds
from official.data.pretraining.plan import Job, vocabulary_of
from official.data.records import encoding
from official.data.text import documents, parquet_files, sentences, text_files
from official.data.word_pieces.vocabulary import Vocabulary
from official.data.word_pieces.wordpiece import Tokenizer
from official.io import files
from official.io.errors import ConfigError

_SHARE, _MIN_BYTES, _MAX_BYTES = 64, 1 << 15, 1 << 19  # a 64th of the text is sampled; bytes of all samples
_MIN_PLACES, _MAX_PLACES, _PLACE_BYTES = 2, 8, 1 << 15  # of the text, from which samples come
_PACKED_BYTES = 1 << 20  # of a compressed file tell how much text its bytes hold
_BATCH = 1536  # examples that are encoded at once
_FRAME_BYTES = 16  # of a record
_COPIES = 2  # of the samples, so that the few documents cut into short examples are the usual share


class DiskNeeds(NamedTuple):
    """Bytes of text, of documents in the work folder, and of records; whether documents are regrouped."""

    text: float
    work: float
    records: float
    is_regrouped: bool = False

    @property
    def most(self) -> float:
        """Most bytes on the disk at the same time. A level of documents goes when the one above is there."""
        return self.work + max(self.records, self.work * self.is_regrouped)


def check(job: Job, sizes: dict[str, int], tasks: int, words: Vocabulary) -> None:
    """Says how much of the disk the job takes, and refuses it where there is too little.

    Args:
      sizes: {file of the text: its bytes}.
      tasks: of the first round.

    Raises:
      ConfigError: naming what is needed and what is free.
    """
    if files.is_remote(job.output_dir):
        return
    needs = estimate(job, sizes, tasks, words)
    folder = os.path.abspath(job.output_dir)
    there = _bytes_in(folder)
    while not os.path.exists(folder):
        folder = os.path.dirname(folder)
    needed, (total, _, free) = needs.most, shutil.disk_usage(folder)
    logging.info(
        "%s of text: about %s of disk are needed, %s of them for the records; %s are free.",
        *map(_shown, (needs.text, needed, needs.records, free)),
    )
    if total and needed > free + there:  # a file system without a size will say what is wrong
        raise ConfigError(
            f"--output_dir={job.output_dir} needs about {_shown(needed)}, {_shown(needs.records)} of them for"
            f" the records; {_shown(free + there)} are free. Lower --dupe_factor={job.rules.dupe_factor},"
            " give --record_format=compact, or a folder of another disk."
        )


def _bytes_in(folder: str) -> int:
    found = 0
    for root, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):  # another job may be at work, which is refused later
                found += os.lstat(os.path.join(root, name)).st_size
    return found


def _shown(count: float) -> str:
    units = {"TB": 1e12, "GB": 1e9, "MB": 1e6, "kB": 1e3}
    unit = next((unit for unit, size in units.items() if count >= size), "kB")
    return f"{count / units[unit]:,.1f} {unit}"


def estimate(job: Job, sizes: dict[str, int], tasks: int, words: Vocabulary) -> DiskNeeds:
    """Returns the disk needs of a job, from samples of its text, tokenised, cut and encoded; see `check`."""
    total = sum(sizes.values())
    wanted = min(max(total // _SHARE, _MIN_BYTES), _MAX_BYTES)
    places = min(max(wanted // _PLACE_BYTES, _MIN_PLACES), _MAX_PLACES)
    tokenizer = rounds.tokenizer_of(job.vocab_file, words.sha256, job.do_lower_case)
    parts: list[examples_lib.TokenizedDocuments] = []
    read, text_bytes, packed_bytes = 0.0, 0.0, 0
    for split, size, expansion in _samples(sizes, places, wanted // places, job.text_field):
        text_bytes, packed_bytes = text_bytes + expansion * size, packed_bytes + size
        found, own_bytes = _tokenized(job, split, wanted // places, tokenizer)
        parts, read = parts + found, read + own_bytes
    if not any(part.num_documents for part in parts):  # none begins in a sample: all are longer
        parts, read = _tokenized(job, text_files.Split(next(iter(sizes))), wanted, tokenizer)
    text = total * text_bytes / max(packed_bytes, 1)
    if not any(part.num_documents for part in parts):
        return DiskNeeds(text, 0, 0)  # the job will say what is wrong
    sample = examples_lib.concatenate(parts)
    held_out = job.eval_share or 0.0
    scale = text / read * (held_out if job.side == "eval" else 1 - held_out)
    whole = rounds.Sample(sample, np.zeros(sample.num_documents), np.zeros(sample.num_documents))
    work = rounds.size(whole) * scale
    pools = -(-len(sample.tokens) * scale // plan_lib.POOL_TOKENS)
    is_regrouped = compaction.is_needed(compaction.Grouping("", 0, tasks, ""), int(work), int(pools))
    return DiskNeeds(text, work, _record_bytes(job, sample, words.sha256) * scale, is_regrouped)


def _tokenized(
    job: Job, split: text_files.Split, wanted: int, tokenizer: Tokenizer
) -> tuple[list[examples_lib.TokenizedDocuments], float]:
    """Returns the documents that begin in a split, up to about `wanted` bytes, and the bytes that hold them
    in the file, with markup and other fields."""
    counts, given, parts = documents.ReadCounts(), 0, []
    found = documents.read_in_blocks([split], job.sentence_splitting, counts, job.text_field)
    for number, lines in enumerate(found, 1):
        parts.append(rounds.tokenized(lines, tokenizer))
        given += len(lines.text)
        if given >= wanted and not counts.of(split.path).bytes:  # it is not read to its end
            share = number / (number + sentences.BATCHES_AHEAD)  # more is read than given
            return parts, share * counts.text_bytes
    return parts, counts.text_bytes


def _samples(
    sizes: dict[str, int], places: int, wanted: int, text_field: str
) -> Iterator[tuple[text_files.Split, int, float]]:
    """Yields `places` parts of about `wanted` bytes, evenly from all of the text, with the size of their file
    and how much larger its text is."""
    paths, ends = list(sizes), np.cumsum(list(sizes.values()))
    for place in (np.arange(places) + 0.5) / places * ends[-1]:
        number = int(np.searchsorted(ends, place, side="right"))
        path = paths[number]
        size = sizes[path]
        with text_files.open_text(text_files.Split(path)) as file:
            is_parquet = text_files.is_parquet(file.head)
            is_one_part = is_parquet or file.packed is not None or text_files.is_json_array(file.head)
            if is_parquet:
                expansion = parquet_files.text_bytes(file.text, path, text_field) / max(size, 1)
            else:
                expansion = _expansion(file.text, file.packed) if file.packed else 1.0
        start = int(place) - (int(ends[number]) - size)
        if is_one_part or size <= wanted:
            yield text_files.Split(path), size, expansion
        else:
            start = min(start, size - wanted)
            yield text_files.Split(path, start, start + wanted), size, 1.0


def _expansion(text: BinaryIO, packed: text_files.Packed) -> float:
    """Returns the bytes of text in a byte of a compressed file, from the file's beginning."""
    read = 0
    while part := text.read(_PACKED_BYTES):
        read += len(part)
        if _PACKED_BYTES <= packed.done() < packed.size:  # of a small file all is read
            break
    return read / max(packed.done(), 1)


def _record_bytes(job: Job, sample: examples_lib.TokenizedDocuments, sha256: str) -> float:
    """Returns the bytes of all copies of the records of some documents."""
    rng = np.random.default_rng(job.random_seed)
    count = sample.num_documents
    twice = examples_lib.concatenate([sample, sample])  # so that there is another document than the only one
    chosen = np.tile(np.arange(count), _COPIES)
    plan = examples_lib.plan_pairs(twice, chosen, np.zeros_like(chosen), job.rules, rng)
    made, words = 0, vocabulary_of(job.vocab_file, sha256)
    for first in range(0, len(plan), _BATCH):
        examples = examples_lib.build_examples(plan[first : first + _BATCH], twice, words, job.rules, rng)
        records = encoding.encode(examples, job.record_format, job.pad_position_value)
        made += sum(map(len, records)) + _FRAME_BYTES * len(records)
    return made / _COPIES * job.rules.dupe_factor
