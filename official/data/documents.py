"""Text files -> documents. A document is a list of sentences; documents are read one after the other, never all at once.

Two kinds of files are read, told apart by their first line that is not blank:
  - plain text: one sentence per line, blank lines between documents;
  - WikiExtractor output: `<doc ...>` blocks that start with a title line and hold one paragraph per line.
"""

import dataclasses
import glob
import html
import os
import re
from collections.abc import Callable, Iterable, Iterator

import blingfire

from official.config import ConfigError

_BLOCK_START = "<doc "
_BLOCK_END = "</doc>"
_TITLE = re.compile(r'\btitle="(.*)"\s*>$')  # quotes inside a title are not escaped
_BYTE_ORDER_MARK = "\ufeff"
_UNDECODABLE = re.compile("[\udc80-\udcff]")  # what "surrogateescape" makes of a byte that is not UTF-8


@dataclasses.dataclass
class ReadCounts:
    """What was met while reading. `skipped_lines` held text that belongs to no document or could not be decoded at all."""

    files: int = 0
    bytes: int = 0
    documents: int = 0
    sentences: int = 0
    skipped_lines: int = 0
    undecodable_bytes: int = 0


def expand_globs(patterns: str, flag: str) -> list[str]:
    """Returns the files that comma-separated globs match, sorted, each once.

    Args:
      patterns: files or globs, separated by commas.
      flag: name of the flag that gave them, for messages.

    Raises:
      ConfigError: for a glob that matches no file.
    """
    files = set()
    for pattern in filter(None, (part.strip() for part in patterns.split(","))):
        matched = [path for path in glob.glob(pattern, recursive=True) if os.path.isfile(path)]
        if not matched:
            raise ConfigError(f"--{flag}={patterns}: {pattern} matches no file. Give files or globs that exist, separated by commas.")
        files.update(matched)
    if not files:
        raise ConfigError(f"--{flag} is empty. Give files or globs, separated by commas.")
    return sorted(files)


def read_documents(paths: Iterable[str], counts: ReadCounts) -> Iterator[list[str]]:
    """Yields the documents of text files in order, each a list of one sentence or more.

    Args:
      paths: text files, UTF-8.
      counts: is brought up to date while reading.

    Raises:
      ConfigError: for a file that cannot be read.
    """
    for path in paths:
        try:
            yield from _read_file(path, counts)
        except OSError as error:
            raise ConfigError(f"{path}: cannot be read: {error.strerror or error}.") from None


def split_sentences(paragraph: str) -> list[str]:
    """Splits a paragraph of prose into sentences."""
    return [sentence for sentence in blingfire.text_to_sentences(paragraph).split("\n") if sentence.strip()]


def _read_file(path: str, counts: ReadCounts) -> Iterator[list[str]]:
    with open(path, "rb") as file:
        lines = (_decode(line, counts) for line in file)
        first = next((line for line in lines if line), None)
        counts.files += 1
        if first is None:
            return
        split = _split_wikiextractor if first.startswith(_BLOCK_START) else _split_plain
        for document in split(first, lines, lambda: _skip(counts)):
            counts.documents += 1
            counts.sentences += len(document)
            yield document


def _skip(counts: ReadCounts) -> None:
    counts.skipped_lines += 1


def _decode(line: bytes, counts: ReadCounts) -> str:
    """Returns a line without white space around it; bytes that are not UTF-8 are counted and dropped."""
    counts.bytes += len(line)
    try:
        text = line.decode("utf-8")
    except UnicodeDecodeError:
        text, dropped = _UNDECODABLE.subn("", line.decode("utf-8", "surrogateescape"))
        counts.undecodable_bytes += dropped
        if not text.strip():
            counts.skipped_lines += 1
    return text.strip().removeprefix(_BYTE_ORDER_MARK)


def _split_plain(first: str, lines: Iterable[str], skip: Callable[[], None]) -> Iterator[list[str]]:
    del skip  # every line belongs to a document
    document = [first]
    for line in lines:
        if line:
            document.append(line)
        elif document:
            yield document
            document = []
    if document:
        yield document


def _split_wikiextractor(first: str, lines: Iterable[str], skip: Callable[[], None]) -> Iterator[list[str]]:
    document, title = [], _title(first)
    for line in lines:
        if line.startswith(_BLOCK_START) or line == _BLOCK_END:
            if document:
                yield document
            document, title = [], _title(line)
        elif title is None and line:
            skip()
        elif line and not document and line == title:
            title = ""
        elif line:
            document.extend(split_sentences(line))
    if document:
        yield document


def _title(line: str) -> str | None:
    """Returns the title that a block's first line names, '' where it names none, and None between blocks."""
    if line == _BLOCK_END:
        return None
    found = _TITLE.search(line)
    return html.unescape(found.group(1)).strip() if found else ""
