"""Selects documents for evaluation, and for data cards."""

from __future__ import annotations

import bisect
import hashlib
import importlib.metadata
import importlib.util
import itertools
import os
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from official.data.text.sentences import Lines
from official.io import jobs, json_files
from official.io.errors import ConfigError

# -----------------------------------------------------------------------------------------------------------
# Splits
#
# A document and its copies stay on the same side when text is added, files are renamed, split, compressed or
# read in another order, or with other tokenizers or numbers of workers. The documents of a smaller share are
# a subset of those of a larger one.


SPLITS = ("train", "eval")


def check(side: str | None, eval_share: float | None) -> None:
    """Raises ConfigError for a side or a share that is not allowed, and for one without the other."""
    if (side is None) != (eval_share is None):
        given, absent = ("eval_share", "side") if side is None else ("side", "eval_share")
        reads = "--side=train --eval_share=0.005 reads all documents but those held out"
        example = f"{reads}, --side=eval --eval_share=0.005 these alone"
        raise ConfigError(f"--{given} needs --{absent}: {example}.")
    if side is not None and side not in SPLITS:
        raise ConfigError(f"--side={side} is unknown. Allowed: {', '.join(SPLITS)}.")
    if eval_share is not None and not 0 < eval_share < 1:
        raise ConfigError(f"--eval_share={eval_share} is out of range. Allowed: above 0, below 1.")


def split_of(text: str, eval_share: float) -> str:
    """Returns "train" or "eval" for a document, as it was read.

    White space is ignored, so sentence splitting and line ends make no difference.
    """
    return SPLITS[digest_of("".join(text.split())) < eval_share * 2**64]


def digest_of(text: str, purpose: bytes = b"") -> int:
    """Returns a 64-bit hash of a text; `purpose`, up to 16 bytes, selects a different hash function."""
    content = text.encode("utf-8", "replace")
    return int.from_bytes(hashlib.blake2b(content, digest_size=8, person=purpose).digest(), "little")


def of_split(parts: Iterator[Lines], side: str, eval_share: float, counts: Counter) -> Iterator[Lines]:
    """Yields the documents of one side.

    Args:
      parts: documents in batches.
      side, eval_share: the flags of these names.
      counts: `other_side_documents` and `other_side_sentences`, which are left out, are updated.
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
    """Returns the text of each document, with one line per sentence."""
    ends = np.flatnonzero(np.frombuffer(lines.text, np.uint8) == ord("\n")) + 1
    bounds = np.concatenate([[0], ends])[np.concatenate([[0], np.cumsum(lines.counts)]).astype(int)].tolist()
    return [lines.text[first:end] for first, end in zip(bounds, bounds[1:])]


# -----------------------------------------------------------------------------------------------------------
# Languages


def scripts_of(texts: Iterable[str]) -> Counter[str]:
    """Returns {script: number of letters} of texts; the script of a letter is the first word of its Unicode
    name, such as Latin, Cyrillic or Cjk."""
    scripts: Counter[str] = Counter()
    for character, count in Counter(itertools.chain.from_iterable(texts)).items():
        if character.isalpha():
            scripts[unicodedata.name(character, "unnamed").partition(" ")[0].capitalize()] += count
    return scripts


def identifier() -> str | None:
    """Returns name and version of the package that detects languages; None if it is not installed."""
    package = "py3langid"  # includes its model
    if importlib.util.find_spec(package) is None:
        return None
    return f"{package} {importlib.metadata.version(package)}"


def languages_of(texts: Iterable[str]) -> Counter[str]:
    """Returns {detected ISO 639-1 code: number of texts}; "too short" for texts of fewer than 20 letters.
    Needs the package of `identifier`."""
    import py3langid  # late: an extra

    guess = py3langid.classify
    return Counter(guess(text)[0] if sum(map(str.isalpha, text)) >= 20 else "too short" for text in texts)


# -----------------------------------------------------------------------------------------------------------
# Sample
#
# Every task selects the documents whose beginnings have the lowest hashes, independently of the workers and
# the order of work. The hash function differs from that of held-out documents; otherwise samples would
# consist of these.


FILE_NAME = jobs.SAMPLES
_DOCUMENTS = 256  # documents of a job
_CHARACTERS = 1000  # characters of a document


class DocumentSample:
    """The sample of a task."""

    def __init__(self, task: int, num_tasks: int):
        """Starts the sample of task number `task` of `num_tasks`. The tasks together select 256 documents, so
        in a large job not every task selects one."""
        self._wanted = (task + 1) * _DOCUMENTS // num_tasks - task * _DOCUMENTS // num_tasks
        self._found: list[tuple[int, str]] = []  # (hash, text), ascending

    def noted(self, parts: Iterator[Lines]) -> Iterator[Lines]:
        """Samples documents; yields all of them unchanged."""
        for lines in parts:
            if self._wanted:
                for text in document_texts(lines):
                    # A character has up to four bytes; the last one of the slice may be truncated.
                    self.look_at(text[: 4 * _CHARACTERS].decode("utf-8", "ignore"))
            yield lines

    def look_at(self, text: str) -> None:
        """Adds a document to the sample if its hash is low enough and it is not a copy; its beginning is
        enough."""
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


def publish(texts: list[str], output_dir: str, **others: Any) -> None:
    """Writes OUTPUT_DIR/samples.json with the samples of all tasks and `others`, further entries; call it
    before writing the manifest."""
    jobs.write_json(os.path.join(output_dir, FILE_NAME), {"documents": texts, **others})


def read(folder: str) -> dict:
    """Returns the contents of FOLDER/samples.json, with "documents", the beginnings of the documents; these
    are empty if the file is missing."""
    samples = json_files.read_json_or_empty(os.path.join(folder, FILE_NAME))
    found = samples.get("documents")
    texts = [text for text in found if isinstance(text, str)] if isinstance(found, list) else []
    return {**samples, "documents": texts}
