"""Data card of a folder of records or prepared text: gathers its contents from the manifest, a sample of the
documents, and some or all of the records.
"""

from __future__ import annotations

import dataclasses
import io
import itertools
import os
import zipfile
from collections.abc import Mapping

import numpy as np

from official.data.pretraining import summary as summary_lib
from official.data.pretraining.examples import Examples
from official.data.pretraining.plan import Layout
from official.data.pretraining.summary import Summary
from official.data.records import encoding
from official.data.text import samples
from official.data.word_pieces.vocabulary import Vocabulary
from official.io import files, jobs, json_files, writing

# -----------------------------------------------------------------------------------------------------------
# Card


def gather(folder: str, paths: list[str], vocabulary: Vocabulary | None, summary=None) -> dict:
    """Returns the contents of a data card, which `official.reporting.data_card` draws.

    Args:
      folder: folder of the manifest; missing files are left out.
      paths: files of records; empty for prepared text.
      vocabulary: vocabulary of the records; None if unknown.
      summary: the `Summary` of all records; None: some records are read.
    """
    shown = samples.read(folder)
    manifest = json_files.read_json_or_empty(os.path.join(folder, jobs.MANIFEST))
    facts: dict = {
        "name": os.path.basename(os.path.normpath(folder)),
        "manifest": manifest,
        "speed": json_files.read_json_or_empty(os.path.join(folder, jobs.FILE_NAME)),
        "texts": facts_of(shown["documents"]),
        "records": {},
        "examples": [],
    }
    if paths and not summary and "records" in shown:  # kept by the job that made the records
        return {**facts, "records": shown["records"], "examples": shown.get("examples", [])}
    return {**facts, **_read_records(paths, vocabulary, summary)} if paths else facts


def _read_records(paths: list[str], vocabulary: Vocabulary | None, summary: Summary | None) -> dict:
    """Returns "records", as of `Summary.numbers`, and "examples", the first of some files; without a
    `summary` of all records, the first records of a few files are read."""
    from official.data.pretraining import inspection  # late: it loads TensorFlow

    found = summary
    shown: list[tuple] = []
    if found is None:
        shape, features = inspection.describe_first(paths[0], vocabulary)
        found = Summary(*shape)
        mask_id = vocabulary.special_ids.mask if vocabulary else -1
        for number in spread_out(len(paths), SHARDS):
            batches = inspection.read_checked(paths[number], shape, features)
            for count, values in itertools.islice(batches, 4):  # about a thousand examples each
                found.add(count, values, mask_id)
            found.files += 1
    if vocabulary:
        for number in spread_out(len(paths), 4):
            shown += map(tuple, inspection.first_examples(paths[number], 1, vocabulary))
    return {"records": found.numbers(is_all=summary is not None), "examples": shown}


# -----------------------------------------------------------------------------------------------------------
# Sample of examples


SHARDS = 4  # number of sampled shards


def spread_out(number: int, count: int) -> list[int]:
    """Returns `count` of the numbers below `number`, evenly spaced, or all if there are fewer."""
    count = min(count, number)
    return [each * number // count for each in range(count)]


def _examples_path(folder: str, shard: int) -> str:
    return os.path.join(folder, f"examples-{shard:05d}.npz")


def keep_first_examples(folder: str, shard: int, num_shards: int, first: Examples) -> None:
    """Keeps the first examples of a shard in the work folder, if the card shows this shard."""
    if shard not in spread_out(num_shards, SHARDS):
        return
    file = io.BytesIO()
    np.savez(file, **{name: array[:256] for name, array in vars(first).items()})
    writing.replace_file(_examples_path(folder, shard), file.getvalue(), durable=False)


def kept_examples(folder: str, plan: Layout, record_format: str, words: Vocabulary) -> dict:
    """Returns a data card's entries on the examples of `keep_first_examples`: "records", as of
    `Summary.numbers`, and "examples", [title, words] as of `ShownExample`. Files that a power failure damaged
    are left out."""
    summary: Summary | None = None
    shown: list[list] = []
    rows_per_record = encoding.rows_per_record(record_format)
    for shard in spread_out(plan.num_shards, SHARDS):
        try:
            with files.open_binary(_examples_path(folder, shard)) as file, np.load(file) as arrays:
                some = Examples(**{field.name: arrays[field.name] for field in dataclasses.fields(Examples)})
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
            continue
        values = {name: value.astype(np.int64) for name, value in some.features().items()}
        summary = summary or Summary(record_format, some.input_ids.shape[1], some.positions.shape[1])
        summary.add(-(-len(some) // rows_per_record), values, words.special_ids.mask)
        summary.files += 1
        place = f"{plan.file(shard)}, record 1" + ", example 1" * (rows_per_record > 1)
        first = {name: value[0] for name, value in values.items()}
        shown.append(list(summary_lib.example_of(place, first, words)))
    return {"records": summary.numbers(is_all=False), "examples": shown} if summary else {}


# -----------------------------------------------------------------------------------------------------------
# Facts about the text


_MAX_LISTED = 12  # names in a list of counts


def facts_of(texts: list[str]) -> dict:
    """Returns statistics of a sample, the beginnings of documents; empty for an empty sample."""
    if not texts:
        return {}
    identifier = samples.identifier()
    return {
        "documents": len(texts),
        "characters": sum(map(len, texts)),
        "scripts": _most(samples.scripts_of(texts)),
        "identifier": identifier,
        "languages": _most(samples.languages_of(texts)) if identifier else [],
        "shown": texts[:4],
    }


def _most(counts: Mapping[str, int]) -> list[list]:
    """Returns [name, count] of the most frequent names, ties by name, and the sum of the rest as
    "others"."""
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    others = sum(count for _, count in ordered[_MAX_LISTED:])
    return [list(item) for item in ordered[:_MAX_LISTED]] + [["others", others]] * bool(others)
