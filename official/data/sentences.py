"""Paragraphs -> sentences, by the splitter of the package blingfire, whose model comes with it."""

import itertools
import re
from collections.abc import Callable, Iterable, Iterator

import blingfire

_BATCH_CHARACTERS = 1 << 17  # of one call of the splitter
# Unicode's paragraph separator ends a sentence wherever it stands and is part of it. The line feed after it is white space,
# which the splitter's rules treat before a word as they do the beginning of the text.
_END = "\u2029"
_BETWEEN = _END + "\n"
# A paragraph whose last letter or digit is followed by one space at most and then by punctuation alone, or by one full stop of
# Chinese or Japanese: whether the text ends there makes no difference to the splitter. It does after 'He left. )', which is
# split before the ")" at the end only. U+01C3 is a letter that the splitter takes for an exclamation mark.
_SAFE_ENDING = re.compile("[^\\W_\u01c3](?: ?[!-/:-@\\[-`{-~\u2019\u201d\u2026\u00bb\u300d]{0,6}|[\u3002\uff01\uff1f])\\Z")
_ENDING_CHARACTERS = 8


def split_sentences(paragraph: str) -> list[str]:
    """Splits a paragraph of prose into sentences."""
    return _sentences(blingfire.text_to_sentences(paragraph))


def split_paragraphs(paragraphs: Iterable[str]) -> Iterator[list[str]]:
    """Yields `split_sentences` of each paragraph, from one call of the splitter for many as far as that gives the same.

    A call for each would cost half as much again, and would hand Python's lock back and forth with other threads each time.
    """
    for batch in _batches(paragraphs, len):
        yield from _split_batch(batch)


def split_documents(documents: Iterable[list[str]]) -> Iterator[list[str]]:
    """Yields documents of paragraphs as documents of sentences; reads some documents ahead."""
    for batch in _batches(documents, lambda document: sum(map(len, document))):
        split = split_paragraphs(itertools.chain.from_iterable(batch))
        for document in batch:
            yield list(itertools.chain.from_iterable(itertools.islice(split, len(document))))


def _batches(items: Iterable, num_characters: Callable) -> Iterator[list]:
    batch, characters = [], 0
    for item in items:
        batch.append(item)
        characters += num_characters(item)
        if characters >= _BATCH_CHARACTERS:
            yield batch
            batch, characters = [], 0
    yield batch


def _split_batch(paragraphs: list[str]) -> list[list[str]]:
    safe = [_SAFE_ENDING.search(paragraph[-_ENDING_CHARACTERS:]) is not None for paragraph in paragraphs]
    together = "".join(paragraph + _BETWEEN for paragraph in itertools.compress(paragraphs, safe))
    split = (blingfire.text_to_sentences(together) + "\n").split(_BETWEEN)[:-1]
    if len(split) != sum(safe):  # a paragraph holds the separator
        return list(map(split_sentences, paragraphs))
    following = iter(split)
    return [_sentences(next(following)) if is_safe else split_sentences(paragraph) for paragraph, is_safe in zip(paragraphs, safe)]


def _sentences(lines: str) -> list[str]:
    return [line for line in lines.split("\n") if line.strip()]
