"""Counts made during reading of text, in total and by file."""

import collections
import dataclasses
from collections.abc import Mapping

from official.io.errors import counted

PAGES_LEFT_OUT = ("redirect_pages", "other_pages", "unreadable_pages")  # fields of ReadCounts
_MAX_LISTED = 1000  # maximum number of files in a manifest


@dataclasses.dataclass
class FileCounts:
    """Counts of one file."""

    bytes: int = 0
    documents: int = 0
    sentences: int = 0
    undecodable_bytes: int = 0


@dataclasses.dataclass
class ReadCounts:
    """Counts made during reading; those of splits add up to those of their files."""

    files: int = 0
    bytes: int = 0  # size of the files, compressed or not
    text_bytes: int = 0  # size of their text, decompressed
    documents: int = 0  # with at least one sentence; each part of a split document counts
    sentences: int = 0
    empty_documents: int = 0  # only a title or heading
    cut_documents: int = 0  # too long: split between lines, repeatedly if needed
    cut_lines: int = 0  # too long: read as several lines
    # Lines outside of documents, or that are not JSON with a text; rows without a text; undecodable lines.
    skipped_lines: int = 0
    redirect_pages: int = 0  # of a MediaWiki dump, left out
    other_pages: int = 0  # of a MediaWiki dump, of another namespace or not wikitext: left out
    unreadable_pages: int = 0  # of a MediaWiki dump, damaged or not convertible to text: left out
    undecodable_bytes: int = 0  # left out; in JSON, lone surrogates
    by_file: dict[str, FileCounts] = dataclasses.field(default_factory=dict, compare=False)

    def result(self, others: Mapping[str, int], sample: list[str]) -> dict:
        """Returns the result of a task, for `Sum.add`, with `others`, further counts, and a sample of the
        documents."""
        names = (field.name for field in dataclasses.fields(self) if field.compare)
        totals = {name: getattr(self, name) for name in names}
        by_file = {path: dataclasses.astuple(own) for path, own in self.by_file.items()}
        return {"totals": {**totals, **others}, "by_file": by_file, "sample": sample}

    def of(self, path: str) -> FileCounts:
        return self.by_file.setdefault(path, FileCounts())


def listed(by_file: dict[str, FileCounts]) -> dict[str, dict[str, int]]:
    """Returns the counts of each file, for a manifest; of at most a thousand files, those with undecodable
    bytes first, then by name."""
    chosen = sorted(by_file, key=lambda path: (-by_file[path].undecodable_bytes, path))[:_MAX_LISTED]
    return {path: dataclasses.asdict(by_file[path]) for path in sorted(chosen)}


class Sum:
    """Sum of the counts of tasks, in total and by file, and the documents of their samples."""

    def __init__(self):
        self.totals: collections.Counter[str] = collections.Counter()
        self.by_file: dict[str, FileCounts] = {}
        self.sample: list[str] = []

    def add(self, done: dict) -> None:
        """Adds the result of a task, `ReadCounts.result`."""
        self.totals.update(done["totals"])
        self.sample += done["sample"]
        for name, counts in done["by_file"].items():
            before = dataclasses.astuple(self.by_file.get(name, FileCounts()))
            self.by_file[name] = FileCounts(*map(sum, zip(before, counts)))


def describe_undecodable(inputs: dict[str, dict[str, int]]) -> str:
    """Describes the listed files with the most undecodable bytes: 'a.txt 12, b.txt 3'."""
    by_path = {path: counts["undecodable_bytes"] for path, counts in inputs.items()}
    found = sorted(((count, path) for path, count in by_path.items() if count), reverse=True)
    more = [counted(len(found) - 3, "more file")] * (len(found) > 3)
    return ", ".join([f"{path} {count:,}" for count, path in found[:3]] + more)
