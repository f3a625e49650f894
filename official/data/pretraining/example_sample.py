"""A sample of a job's examples, for its data card: the first ones of some shards, as they were made. So the
card need not read records, for which TensorFlow would be loaded.
"""

from __future__ import annotations

import dataclasses
import io
import os
import zipfile

import numpy as np

from official.data.pretraining import summary as summary_lib
from official.data.pretraining.examples import Examples
from official.data.pretraining.layout import Layout
from official.data.pretraining.summary import Summary
from official.data.records import encoding
from official.data.word_pieces.vocabulary import Vocabulary
from official.io import files, writing

SHARDS = 4  # that are looked at
_EXAMPLES = 256  # of each


def spread_out(number: int, count: int) -> list[int]:
    """Returns `count` of the numbers below `number`, evenly spaced, or all where there are fewer."""
    count = min(count, number)
    return [each * number // count for each in range(count)]


def _path(folder: str, shard: int) -> str:
    return os.path.join(folder, f"examples-{shard:05d}.npz")


def note(folder: str, shard: int, num_shards: int, first: Examples) -> None:
    """Keeps the first examples of a shard in the work folder, where it is one of those that are looked at."""
    if shard not in spread_out(num_shards, SHARDS):
        return
    file = io.BytesIO()
    np.savez(file, **{name: array[:_EXAMPLES] for name, array in vars(first).items()})
    writing.replace_file(_path(folder, shard), file.getvalue(), durable=False)


def gathered(folder: str, plan: Layout, record_format: str, words: Vocabulary) -> dict:
    """Returns a data card's entries on the examples that `note` has kept: "records", as `Summary.numbers`
    returns it, and "examples", [title, words] each as of `ShownExample`. Those of a shard are left out whose
    file a power failure has damaged."""
    summary, shown = None, []
    rows_per_record = encoding.ENCODERS[record_format].rows_per_record
    for shard in spread_out(plan.num_shards, SHARDS):
        some = _read(_path(folder, shard))
        if some is None:
            continue
        values = {name: value.astype(np.int64) for name, value in some.features().items()}
        if summary is None:
            summary = Summary(record_format, some.input_ids.shape[1], some.positions.shape[1])
        summary.add(-(-len(some) // rows_per_record), values, words.id_of("[MASK]"))
        summary.files += 1
        place = f"{plan.file(shard)}, record 1" + ", example 1" * (rows_per_record > 1)
        shown.append(summary_lib.example_of(place, {name: value[0] for name, value in values.items()}, words))
    if summary is None:
        return {}
    return {
        "records": summary.numbers(is_all=False),
        "examples": [[example.title, example.words] for example in shown],
    }


def _read(path: str) -> Examples | None:
    try:
        with files.open_binary(path) as file, np.load(file, allow_pickle=False) as arrays:
            return Examples(**{field.name: arrays[field.name] for field in dataclasses.fields(Examples)})
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
        return None
