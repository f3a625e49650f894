"""Counts made while reading text, in all and by file."""

import collections
import dataclasses
from collections.abc import Container

from official.io.errors import counted

PAGES_LEFT_OUT = ("redirect_pages", "other_pages", "unreadable_pages")  # of ReadCounts
_MAX_LISTED = 1000  # files that a manifest lists


@dataclasses.dataclass
class FileCounts:
    """Counts of one file."""

    bytes: int = 0
    documents: int = 0
    sentences: int = 0
    undecodable_bytes: int = 0


@dataclasses.dataclass
class ReadCounts:
    """Counts made while reading; those of splits add up to those of their files."""

    files: int = 0
    bytes: int = 0  # of the files as they are, compressed or not
    text_bytes: int = 0  # of the text in them
    documents: int = 0  # with a sentence at least; the parts of one that was cut count each
    sentences: int = 0
    empty_documents: int = 0  # title or heading and nothing else
    cut_documents: int = 0  # longer than a document may be: cut between two lines, as often as it takes
    cut_lines: int = 0  # longer than a line may be: taken as several
    # Of no document, not JSON with a text, rows without one, or without a byte that could be decoded.
    skipped_lines: int = 0
    redirect_pages: int = 0  # of a MediaWiki dump, left out
    other_pages: int = 0  # of a MediaWiki dump, of another namespace or not wikitext: left out
    unreadable_pages: int = 0  # of a MediaWiki dump, damaged or not to be made text of: left out
    undecodable_bytes: int = 0  # left out; in JSON, halves of surrogate pairs
    by_file: dict[str, FileCounts] = dataclasses.field(default_factory=dict, compare=False)

    def totals(self) -> dict[str, int]:
        """Returns the counts of all files together."""
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self) if field.compare}

    def of(self, path: str) -> FileCounts:
        return self.by_file.setdefault(path, FileCounts())


def listed(by_file: dict[str, FileCounts]) -> dict[str, dict[str, int]]:
    """Returns the counts of each file, for a manifest; of more than a thousand files those with undecodable
    bytes first, then by name."""
    chosen = sorted(by_file, key=lambda path: (-by_file[path].undecodable_bytes, path))[:_MAX_LISTED]
    return {path: dataclasses.asdict(by_file[path]) for path in sorted(chosen)}


class Sum:
    """Sum of the counts of tasks: in all, by the files that may be listed, and their samples' documents."""

    def __init__(self):
        self.totals: collections.Counter[str] = collections.Counter()
        self.by_file: dict[str, FileCounts] = {}
        self.sample: list[str] = []

    def add(self, done: dict) -> None:
        """Adds what a task has written with `jobs.write_done`."""
        self.totals.update(done["totals"])
        self.sample += done["sample"]
        for name, counts in done["by_file"].items():
            before = vars(self.by_file.get(name, FileCounts())).values()
            self.by_file[name] = FileCounts(*map(sum, zip(before, counts)))


def to_json(by_file: dict[str, FileCounts], in_part: Container[str]) -> dict[str, list[int]]:
    """Returns the counts of those files that `listed` may choose; there may be very many others.

    Args:
      in_part: files of which other tasks may read the rest.
    """
    usual = (path for path, own in by_file.items() if not own.undecodable_bytes and path not in in_part)
    left_out = set(sorted(usual)[_MAX_LISTED:])
    return {path: [*vars(counts).values()] for path, counts in by_file.items() if path not in left_out}


def describe_undecodable(inputs: dict[str, dict[str, int]]) -> str:
    """Returns which of the files that a manifest lists have the most undecodable bytes: 'a.txt 12, b.txt
    3'."""
    by_path = {path: counts["undecodable_bytes"] for path, counts in inputs.items()}
    found = sorted(((count, path) for path, count in by_path.items() if count), reverse=True)
    more = [counted(len(found) - 3, "more file")] * (len(found) > 3)
    return ", ".join([f"{path} {count:,}" for count, path in found[:3]] + more)
