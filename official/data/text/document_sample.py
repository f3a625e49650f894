"""A sample of the documents of a job, for people to look at and to tell languages by.

Every task gives some of its documents, those whose beginnings have the lowest hashes: which ones these are
depends neither on the workers nor on the order in which anything is done. The hashes are others than those by
which documents are held out: of these a sample would else consist.
"""

import hashlib
import heapq
import os
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any

from official.data.text import held_out
from official.data.text.sentences import Lines
from official.io import finished_jobs, json_files, unfinished

FILE_NAME = finished_jobs.SAMPLES
_DOCUMENTS = 256  # of a job
_CHARACTERS = 1000  # of a document
_PURPOSE = b"sample"


class DocumentSample:
    """The sample of a task."""

    def __init__(self, task: int, num_tasks: int):
        """Prepares for task number `task` of a job of `num_tasks`: those of a large job give a document now
        and then, so that all of them give 256 together."""
        self._wanted = _documents_of(task, num_tasks)
        self._found: list[tuple[int, str]] = []  # (minus the hash, text): the highest hash is the first

    def noted(self, parts: Iterator[Lines]) -> Iterator[Lines]:
        """Yields what it is given, and looks at it."""
        for lines in parts:
            if self._wanted:
                for text in held_out.document_texts(lines):
                    # Of a character up to four bytes; the last one of the part may be cut.
                    self.look_at(text[: 4 * _CHARACTERS].decode("utf-8", "ignore"))
            yield lines

    def look_at(self, text: str) -> None:
        """Takes in a document where it belongs to the sample; a copy of one does not. Its beginning is
        enough."""
        if not self._wanted or not text.strip():
            return
        text = text[:_CHARACTERS]
        digest = hashlib.blake2b(text.encode("utf-8", "replace"), digest_size=8, person=_PURPOSE).digest()
        item = (-int.from_bytes(digest, "little"), text)
        if len(self._found) == self._wanted and item <= self._found[0] or item in self._found:
            return
        if len(self._found) == self._wanted:
            heapq.heapreplace(self._found, item)
        else:
            heapq.heappush(self._found, item)

    def documents(self) -> list[str]:
        """Returns the beginnings of the documents, in the order of their hashes."""
        return [text for _, text in sorted(self._found, reverse=True)]


def publish(texts: list[str], output_dir: str, others: Mapping[str, Any] = MappingProxyType({})) -> None:
    """Writes OUTPUT_DIR/samples.json of the samples of all tasks, and what else there is to show, before the
    manifest, which waits until the names of both are on the disk."""
    samples = {"documents": texts, **others}
    unfinished.write_json(os.path.join(output_dir, FILE_NAME), samples, sync_folder=False)


def read(folder: str) -> dict:
    """Returns the contents of FOLDER/samples.json, "documents" always: the beginnings of the documents; none
    where there is no such file."""
    samples = json_files.read_json_or_empty(os.path.join(folder, FILE_NAME))
    found = samples.get("documents")
    texts = [text for text in found if isinstance(text, str)] if isinstance(found, list) else []
    return {**samples, "documents": texts}


def _documents_of(task: int, num_tasks: int) -> int:
    return (task + 1) * _DOCUMENTS // num_tasks - task * _DOCUMENTS // num_tasks
