"""Selects documents: held out for evaluation, or shown in data cards."""

from __future__ import annotations

import bisect
import hashlib
import importlib.metadata
import importlib.util
import itertools
import os
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np

from official.data.text.sentences import Lines
from official.io import jobs, json_files
from official.io.errors import ConfigError

# -----------------------------------------------------------------------------------------------------------
# Splits
#
# Text that is added, files that are renamed, cut, compressed or read in another order, other tokens, other
# workers: a document stays on its side. So do its copies. Of two shares, the smaller one's documents are
# among the larger one's.


SPLITS = ("train", "eval")


def check(side: str | None, eval_share: float | None) -> None:
    """Raises ConfigError for a side or a share that is not allowed, and for one without the other."""
    if (side is None) != (eval_share is None):
        given, absent = ("eval_share", "side") if side is None else ("side", "eval_share")
        reads = "--side=train --eval_share=0.005 reads all documents but those held out"
        told = f"{reads}, --side=eval --eval_share=0.005 these alone"
        raise ConfigError(f"--{given} needs --{absent}: {told}.")
    if side is not None and side not in SPLITS:
        raise ConfigError(f"--side={side} is unknown. Allowed: {', '.join(SPLITS)}.")
    if eval_share is not None and not 0 < eval_share < 1:
        raise ConfigError(f"--eval_share={eval_share} is out of range. Allowed: above 0, below 1.")


def split_of(text: str, eval_share: float) -> str:
    """Returns "train" or "eval" for a document, as it was read.

    White space makes no difference: neither where the text is split into sentences, nor how lines end.
    """
    return SPLITS[digest_of("".join(text.split())) < eval_share * 2**64]


def digest_of(text: str, purpose: bytes = b"") -> int:
    """Returns 64 bits of a text; others for another purpose, of up to 16 bytes."""
    content = text.encode("utf-8", "replace")
    return int.from_bytes(hashlib.blake2b(content, digest_size=8, person=purpose).digest(), "little")


def of_split(parts: Iterator[Lines], side: str, eval_share: float, counts: Counter) -> Iterator[Lines]:
    """Yields the documents of one side.

    Args:
      parts: documents, some at a time.
      side, eval_share: which ones are wanted.
      counts: `other_side_documents` and `other_side_sentences` are brought up to date: what is left out.
    """
    for lines in parts:
        texts = document_texts(lines)
        wanted = np.array([split_of(text.decode(), eval_share) == side for text in texts], bool)
        others = lines.counts[~wanted]
        counts["other_side_documents"] += int(np.count_nonzero(others))
        counts["other_side_sentences"] += int(others.sum())
        kept = b"".join(text for text, is_wanted in zip(texts, wanted) if is_wanted)
        yield Lines(kept, lines.counts[wanted])


def document_texts(lines: Lines) -> list[bytes]:
    """Returns the lines of each document."""
    ends = np.flatnonzero(np.frombuffer(lines.text, np.uint8) == ord("\n")) + 1
    bounds = np.concatenate([[0], ends])[np.concatenate([[0], np.cumsum(lines.counts)]).astype(int)].tolist()
    return [lines.text[first:end] for first, end in zip(bounds, bounds[1:])]


# -----------------------------------------------------------------------------------------------------------
# Languages


def scripts_of(texts: Iterable[str]) -> Counter[str]:
    """Returns {script: letters} of texts; a script is the first word of the name that Unicode gives a letter,
    as LATIN, CYRILLIC or CJK."""
    scripts: Counter[str] = Counter()
    for character, count in Counter(itertools.chain.from_iterable(texts)).items():
        if character.isalpha():
            scripts[unicodedata.name(character, "unnamed").partition(" ")[0].capitalize()] += count
    return scripts


def identifier() -> str | None:
    """Returns name and version of the package that guesses languages; None where it is not installed."""
    package = "py3langid"  # carries its model with it
    if importlib.util.find_spec(package) is None:
        return None
    return f"{package} {importlib.metadata.version(package)}"


def languages_of(texts: Iterable[str]) -> Counter[str]:
    """Returns {ISO 639-1 code: texts} as the package guesses; "too short" for a text of fewer than 20
    letters. Call it where `identifier` returns one."""
    import py3langid  # late: an extra

    guess = py3langid.classify
    return Counter(guess(text)[0] if sum(map(str.isalpha, text)) >= 20 else "too short" for text in texts)


# -----------------------------------------------------------------------------------------------------------
# Sample
#
# Every task selects the documents whose beginnings have the lowest hashes, which does not depend on the
# workers or the order of work. These hashes differ from those for held-out documents: otherwise samples would
# consist of these.


FILE_NAME = jobs.SAMPLES
_DOCUMENTS = 256  # of a job
_CHARACTERS = 1000  # of a document


class DocumentSample:
    """The sample of a task."""

    def __init__(self, task: int, num_tasks: int):
        """Prepares for task number `task` of a job of `num_tasks`: those of a large job give a document now
        and then, so that all of them give 256 together."""
        self._wanted = (task + 1) * _DOCUMENTS // num_tasks - task * _DOCUMENTS // num_tasks
        self._found: list[tuple[int, str]] = []  # (hash, text), ascending

    def noted(self, parts: Iterator[Lines]) -> Iterator[Lines]:
        """Passes documents through, and samples them."""
        for lines in parts:
            if self._wanted:
                for text in document_texts(lines):
                    # Of a character up to four bytes; the last one of the part may be cut.
                    self.look_at(text[: 4 * _CHARACTERS].decode("utf-8", "ignore"))
            yield lines

    def look_at(self, text: str) -> None:
        """Adds a document to the sample if it belongs to it and is not a copy; its beginning is enough."""
        if not self._wanted or not text.strip():
            return
        text = text[:_CHARACTERS]
        item = (digest_of(text, b"sample"), text)
        if (len(self._found) < self._wanted or item < self._found[-1]) and item not in self._found:
            bisect.insort(self._found, item)
            del self._found[self._wanted :]

    def documents(self) -> list[str]:
        """Returns the beginnings of the documents, in the order of their hashes."""
        return [text for _, text in self._found]


def publish(texts: list[str], output_dir: str, others: Mapping[str, Any] = MappingProxyType({})) -> None:
    """Writes OUTPUT_DIR/samples.json of the samples of all tasks, and what else there is to show, before the
    manifest."""
    jobs.write_json(os.path.join(output_dir, FILE_NAME), {"documents": texts, **others})


def read(folder: str) -> dict:
    """Returns the contents of FOLDER/samples.json, "documents" always: the beginnings of the documents; none
    where there is no such file."""
    samples = json_files.read_json_or_empty(os.path.join(folder, FILE_NAME))
    found = samples.get("documents")
    texts = [text for text in found if isinstance(text, str)] if isinstance(found, list) else []
    return {**samples, "documents": texts}
