"""What a data card says of a folder of records, or of prepared text: gathered from its manifest, from a
sample of its documents, and from some of its records, or all of them."""

from __future__ import annotations

import collections
import itertools
import os
from collections.abc import Iterable

from official.data.pretraining import example_sample
from official.data.pretraining.summary import Summary
from official.data.text import document_sample, languages
from official.data.word_pieces import words
from official.data.word_pieces.tokenization import Tokenizer
from official.data.word_pieces.vocabulary import Vocabulary
from official.io import finished_jobs, json_files, speeds

_BATCHES_LOOKED_AT = 4  # of each: about a thousand examples each
_MOST_SHOWN = 12  # rows of a table
_SHOWN_TEXTS = 4


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
    samples = document_sample.read(folder)
    texts = samples["documents"]
    facts: dict = {
        "name": os.path.basename(os.path.normpath(folder)),
        "manifest": json_files.read_json_or_empty(os.path.join(folder, finished_jobs.MANIFEST)),
        "speed": json_files.read_json_or_empty(os.path.join(folder, speeds.FILE_NAME)),
        "texts": _texts(texts, vocabulary),
        "records": {},
        "examples": [],
    }
    if paths and not summary and "records" in samples:  # of the job, as it made them
        return {**facts, "records": samples["records"], "examples": samples.get("examples", [])}
    return {**facts, **_read(paths, vocabulary, summary)} if paths else facts


def _read(paths: list[str], vocabulary: Vocabulary | None, summary: Summary | None) -> dict:
    """Returns what records hold and what their first examples are; `summary` as of `gather`."""
    from official.data.pretraining import inspection  # late: it loads TensorFlow

    found = summary or some_of(paths, vocabulary)
    shown = []
    if vocabulary:
        for number in example_sample.spread_out(len(paths), _SHOWN_TEXTS):
            examples = inspection.first_examples(paths[number], 1, vocabulary)
            shown += [(example.title, example.words) for example in examples]
    return {"records": found.numbers(is_all=summary is not None), "examples": shown}


def some_of(paths: list[str], vocabulary: Vocabulary | None) -> Summary:
    """Returns what the first records of a few files hold."""
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


def _texts(texts: list[str], vocabulary: Vocabulary | None) -> dict:
    """Returns what the sample of documents is like; empty where there is none."""
    if not texts:
        return {}
    identifier = languages.identifier()
    unknown = unknown_words(texts, vocabulary) if vocabulary else {}
    return {
        "documents": len(texts),
        "characters": sum(map(len, texts)),
        "scripts": _most(languages.scripts_of(texts)),
        "identifier": identifier,
        "languages": _most(languages.languages_of(texts)) if identifier else [],
        "unknown": _most(collections.Counter(unknown)),
        "unknown_words": sum(unknown.values()),
        "shown": texts[:_SHOWN_TEXTS],
    }


def _most(counts: collections.Counter[str]) -> list[list]:
    """Returns [name, count] of the most frequent ones, by name where they are equal, and of all others as
    "others"."""
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    others = sum(count for _, count in ordered[_MOST_SHOWN:])
    return [list(item) for item in ordered[:_MOST_SHOWN]] + [["others", others]] * bool(others)


def unknown_words(texts: Iterable[str], vocabulary: Vocabulary) -> dict[str, int]:
    """Returns {word: how often it comes} of the words that are [UNK]."""
    found = collections.Counter(
        word
        for text in texts
        for chunk in text.split()
        for word in words.find_words(chunk, vocabulary.do_lower_case)
    )
    names, unknown = list(found), vocabulary.id_of("[UNK]")
    ids, lengths = Tokenizer(vocabulary).tokenize(names)
    bounds = [0, *itertools.accumulate(lengths.tolist())]
    return {
        name: found[name]
        for name, first, end in zip(names, bounds, bounds[1:])
        if (ids[first:end] == unknown).any()
    }
