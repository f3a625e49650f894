"""Estimates the disk space of a job from samples of its text, before it starts."""

import contextlib
import os
import pathlib
import shutil

import numpy as np
from absl import logging
from tqdm import tqdm

from official.data.pretraining import card, rounds
from official.data.pretraining import examples as examples_lib
from official.data.pretraining.plan import Job
from official.data.records import encoding
from official.data.text import documents, parquet_files, sentences, text_files
from official.data.text.text_files import Split
from official.data.word_pieces.vocabulary import Vocabulary
from official.io import files
from official.io.errors import ConfigError

_MAX_SAMPLES = 8  # parts of files
_MAX_EXAMPLES = 1536  # number of encoded examples


def check(job: Job, tasks: list[list[Split]], sizes: dict[str, int], words: Vocabulary) -> None:
    """Logs the disk space that the job needs, see `estimate`.

    Raises:
      ConfigError: if less is free; the message has both sizes.
    """
    if files.is_remote(job.output_dir):
        return
    work, records = estimate(job, tasks, sizes, words)
    most = work + max(records, work)  # peak: merging doubles the documents before there are records
    folder, there = pathlib.Path(job.output_dir).absolute(), 0
    for root, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):  # another job may remove it; such a job is refused later
                there += os.lstat(os.path.join(root, name)).st_size
    total, _, free = shutil.disk_usage(next(path for path in (folder, *folder.parents) if path.exists()))
    needed, of_records, available = (tqdm.format_sizeof(size, "B") for size in (most, records, free + there))
    need = f"about {needed}, {of_records} of them for the records; {available} are free"
    logging.info("The job needs %s.", need)
    if total and most > free + there:  # some file systems report no size
        lower = f"Lower --dupe_factor={job.rules.dupe_factor}, give --record_format=compact, or"
        raise ConfigError(f"--output_dir={job.output_dir} needs {need}. {lower} a folder of another disk.")


def estimate(
    job: Job, tasks: list[list[Split]], sizes: dict[str, int], words: Vocabulary
) -> tuple[float, float]:
    """Estimates the bytes of the documents in the work folder and of the records, by encoding samples of the
    text.

    Args:
      tasks: parts of the text of each task of the first round.
      sizes: {text file: its bytes}.
    """
    parts: list[examples_lib.TokenizedDocuments] = []
    held = [(split, size) for task in tasks for split in task if (size := _size(split, sizes))]
    read, num_bytes, sampled_text, sampled_bytes = 0.0, sum(sizes.values()), 0.0, 0
    numbers = card.spread_out(len(held), _MAX_SAMPLES)
    wanted = min(max(num_bytes // 64, 1 << 15), 1 << 19) // len(numbers)  # bytes of a sample
    for split, size in map(held.__getitem__, numbers):
        found, own_text, expansion = _sample(job, split, sizes[split.path], wanted)
        parts, read = parts + found, read + own_text
        sampled_text, sampled_bytes = sampled_text + expansion * size, sampled_bytes + size
    if not any(part.num_documents for part in parts):
        return 0, 0  # the job reports what is wrong
    sample = examples_lib.concatenate(parts)
    held_out = job.eval_share or 0.0
    text_bytes = num_bytes * sampled_text / sampled_bytes
    scale = text_bytes / read * (held_out if job.side == "eval" else 1 - held_out)
    keys = np.zeros(sample.num_documents)
    twice = examples_lib.concatenate([sample, sample])  # random pairs need a second document
    chosen, rng = np.arange(twice.num_documents), np.random.default_rng(job.random_seed)
    plan = examples_lib.plan_examples(twice, chosen, np.zeros_like(chosen), words, job.rules, rng)
    examples = examples_lib.build_examples(plan.part(0, _MAX_EXAMPLES), words, job.rules, rng)
    encoded = encoding.encode(examples, job.record_format, job.pad_position_value)
    # A record has a frame of 16 bytes.
    record_bytes = (sum(map(len, encoded)) + 16 * len(encoded)) * len(plan.rows) / len(examples) / 2
    work = rounds.size(rounds.Sample(sample, keys, keys))
    return work * scale, record_bytes * job.rules.dupe_factor * scale


def _size(split: Split, sizes: dict[str, int]) -> int:
    """Returns the size of a split in bytes."""
    return (sizes[split.path] if split.end is None else split.end) - split.start


def _sample(
    job: Job, split: Split, file_bytes: int, wanted: int
) -> tuple[list[examples_lib.TokenizedDocuments], float, float]:
    """Returns the first documents of a split, about `wanted` bytes of them; the size of their text in bytes;
    and the bytes of text per byte of the file."""
    expansion = 1.0
    with text_files.open_text(split) as file:
        is_parquet, is_packed = text_files.is_parquet(file.head), file.packed is not None
        if is_parquet:
            expansion = parquet_files.text_bytes(file.text, split.path, job.text_field) / file_bytes
        is_whole = is_parquet or is_packed or text_files.is_json_array(file.head)
    end = split.start + wanted
    if not is_whole and (split.end is None or end < split.end):
        split = Split(split.path, split.start, end)
    counts, given, share = documents.ReadCounts(), 0, 1.0
    parts: list[examples_lib.TokenizedDocuments] = []
    found = documents.read_in_blocks([split], job.sentence_splitting, counts, job.text_field)
    for number, lines in enumerate(found, 1):
        parts.append(rounds.tokenized(lines, rounds.tokenizer_of(job)))
        given += len(lines.text)
        if given >= wanted and not counts.of(split.path).bytes:  # the file is not read to its end
            share = number / (number + sentences.BATCHES_AHEAD)  # the reader is some batches ahead
            break
    if is_packed:
        expansion = counts.text_bytes / max(counts.bytes, 1)
    return parts, share * counts.text_bytes, expansion
