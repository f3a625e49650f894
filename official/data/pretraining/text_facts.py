"""Facts about a sample of a job's documents, for its data card: scripts, languages, unknown words."""

from __future__ import annotations

import collections
import contextlib
import functools
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from official.data.text import samples
from official.data.word_pieces import wordpiece
from official.data.word_pieces.vocabulary import Vocabulary

_MOST_LISTED = 12  # of what is counted by name
_SHOWN_TEXTS = 4


def facts_of(texts: list[str], vocabulary: Vocabulary | None) -> dict:
    """Returns the facts about a sample; empty where there is none. They are found once for the same texts.

    Args:
      texts: the beginnings of documents.
      vocabulary: whose [UNK] is looked for; None: it is not known.
    """
    return _found(tuple(texts), vocabulary) if texts else {}


@functools.lru_cache(maxsize=1)  # of a job, and then of its card
def _found(texts: tuple[str, ...], vocabulary: Vocabulary | None) -> dict:
    identifier = samples.identifier()
    unknown = unknown_words(texts, vocabulary) if vocabulary else {}
    return {
        "documents": len(texts),
        "characters": sum(map(len, texts)),
        "scripts": _most(samples.scripts_of(texts)),
        "identifier": identifier,
        "languages": _most(samples.languages_of(texts)) if identifier else [],
        "unknown": _most(collections.Counter(unknown)),
        "unknown_words": sum(unknown.values()),
        "shown": list(texts[:_SHOWN_TEXTS]),
    }


@contextlib.contextmanager
def found_beside(texts: list[str], vocabulary: Vocabulary, is_alone: bool) -> Iterator[None]:
    """Finds the facts that `facts_of` will return, in a thread, while its block waits for other processes.

    One that works alone leaves it to the card: the thread would take as long from the work. What fails, the
    card meets, behind the records.
    """
    if is_alone:
        yield
        return
    with ThreadPoolExecutor(1, "facts") as thread:
        thread.submit(facts_of, texts, vocabulary)
        yield


def _most(counts: collections.Counter[str]) -> list[list]:
    """Returns [name, count] of the most frequent ones, by name where they are equal, and of all others as
    "others"."""
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    others = sum(count for _, count in ordered[_MOST_LISTED:])
    return [list(item) for item in ordered[:_MOST_LISTED]] + [["others", others]] * bool(others)


def unknown_words(texts: Iterable[str], vocabulary: Vocabulary) -> dict[str, int]:
    """Returns {word: how often it comes} of the words that are [UNK]."""
    chunks = collections.Counter(chunk for text in texts for chunk in text.split())
    found: collections.Counter[str] = collections.Counter()
    for chunk in _with_unknown(list(chunks), vocabulary):  # few, as a rule: words are found slowly
        for word in wordpiece.find_words(chunk, vocabulary.do_lower_case):
            found[word] += chunks[chunk]
    return {word: found[word] for word in _with_unknown(list(found), vocabulary)}


def _with_unknown(texts: list[str], vocabulary: Vocabulary) -> list[str]:
    """Returns those of some texts whose tokens have [UNK] among them."""
    ids, lengths = wordpiece.tokenizer_of(vocabulary).tokenize(texts)
    places = np.flatnonzero(ids == vocabulary.id_of("[UNK]"))
    return [texts[number] for number in np.unique(np.searchsorted(np.cumsum(lengths), places, side="right"))]
