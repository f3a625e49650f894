"""Contents of a data card of a folder of records, or of prepared text: gathered from its manifest, from a
sample of its documents, and from some of its records, or all of them."""

from __future__ import annotations

import itertools
import os

from official.data.pretraining import example_sample, text_facts
from official.data.pretraining.summary import Summary
from official.data.text import samples as samples_lib
from official.data.word_pieces.vocabulary import Vocabulary
from official.io import jobs, json_files

_BATCHES_LOOKED_AT = 4  # of each: about a thousand examples each
_SHOWN_EXAMPLES = 4


def gather(
    folder: str, paths: list[str], vocabulary: Vocabulary | None, summary: Summary | None = None
) -> dict:
    """Returns all that `official.reporting.data_card` draws.

    Args:
      folder: of the manifest; what is not there is left out.
      paths: files of records; none for prepared text.
      vocabulary: of the records, where it is known.
      summary: of all records, where they have been counted; else some are read.
    """
    samples = samples_lib.read(folder)
    manifest = json_files.read_json_or_empty(os.path.join(folder, jobs.MANIFEST))
    facts: dict = {
        "name": os.path.basename(os.path.normpath(folder)),
        "manifest": manifest,
        "speed": json_files.read_json_or_empty(os.path.join(folder, jobs.FILE_NAME)),
        "texts": text_facts.facts_of(samples["documents"], vocabulary),
        "records": {},
        "examples": [],
    }
    if paths and not summary and "records" in samples:  # of the job, as it made them
        return {**facts, "records": samples["records"], "examples": samples.get("examples", [])}
    return {**facts, **_read(paths, vocabulary, summary)} if paths else facts


def _read(paths: list[str], vocabulary: Vocabulary | None, summary: Summary | None) -> dict:
    """Returns "records", their numbers, and "examples", the first of some files; `summary` as of `gather`."""
    from official.data.pretraining import inspection  # late: it loads TensorFlow

    found = summary or some_of(paths, vocabulary)
    shown = []
    if vocabulary:
        for number in example_sample.spread_out(len(paths), _SHOWN_EXAMPLES):
            examples = inspection.first_examples(paths[number], 1, vocabulary)
            shown += [(example.title, example.words) for example in examples]
    return {"records": found.numbers(is_all=summary is not None), "examples": shown}


def some_of(paths: list[str], vocabulary: Vocabulary | None) -> Summary:
    """Returns the summary of the first records of a few files."""
    from official.data.pretraining import inspection  # late: it loads TensorFlow

    kind, features = inspection.describe_first(paths[0], vocabulary)
    summary = Summary(kind, features["input_ids"].length, features["masked_lm_ids"].length)
    mask_id = vocabulary.id_of("[MASK]") if vocabulary else -1
    for number in example_sample.spread_out(len(paths), example_sample.SHARDS):
        batches = inspection.read_checked(paths[number], kind, features)
        for count, values in itertools.islice(batches, _BATCHES_LOOKED_AT):
            summary.add(count, values, mask_id)
        summary.files += 1
    return summary
