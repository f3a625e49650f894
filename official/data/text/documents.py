"""Text files -> documents. A document is a list of sentences; documents are read one after the other, never
all at once.

The format is found from a file's first line that is not blank:
  - WikiExtractor's text: `<doc ...>` blocks that start with a title line and hold one paragraph per line;
  - WikiExtractor's JSON: one object per line, with "text" and perhaps "title";
  - one JSON array of such objects, or of texts (`official.data.text.json_array`);
  - WikiText: ` = Title = ` begins a document, ` = = Section = = ` and deeper headings are left out;
  - else plain text: one sentence or one paragraph per line, blank lines between documents.
Compressed files (`official.data.text.text_files`) are read like others.

A document belongs to the split of the file in which the line lies that opens it: the `<doc` line, the JSON
line, the heading, or the blank line before a document of plain text. What is counted goes with it: a split
accounts for the lines from the first that opens a document in it up to the first in a later split, and the
first split for those before any. Documents and counts of all splits are therefore those of the file, however
it is split.
"""

import dataclasses
import html
import itertools
import re
from collections.abc import Callable, Iterable, Iterator

import numpy as np

from official.config import ConfigError
from official.data.text import json_array, sentences, text_files, text_kinds
from official.data.text.read_counts import FileCounts, Owners, ReadCounts
from official.data.text.text_files import Split
from official.io import json_files

SENTENCE_SPLITTING = ("auto", "always", "never")
_MOST_LINE_BYTES = 1 << 20
_MOST_JSON_BYTES = 1 << 24  # a line of JSON is of use only as a whole; the longest article has about 3 MB
_MOST_CHARACTERS = 1 << 22  # of a document
_SENTENCES_OF_PARAGRAPHS = (
    1.5  # per line on average; where sentences lie on lines of their own the splitter finds below 1.1
)

_BLOCK_START = "<doc "
_BLOCK_END = "</doc>"
_TITLE = re.compile(r'\btitle="(.*)"\s*>$')  # quotes inside a title are not escaped
_JSON_START = re.compile(r'\{\s*("|$)')
_DUMP_START = "<mediawiki"
_HEADING = re.compile(r"((?:= )+)[^= ].*?((?: =)+)")
_MOST_HEADING_CHARACTERS = 1000
_BYTE_ORDER_MARK = "\ufeff"
_UNDECODABLE = re.compile("[\udc80-\udcff]")  # what "surrogateescape" makes of a byte that is not UTF-8
_SURROGATE = re.compile("[\ud800-\udfff]")


# Lines as a format gets them: whether it is one that opens a document, and the text without white space
# around it.
_Lines = Iterable[tuple[bool, str]]
# What it makes of them: None where a document begins, and paragraphs.
_Items = Iterator[str | None]


@dataclasses.dataclass(frozen=True)
class _Format:
    opens: Callable[[str], bool]  # whether a line opens a document, by its text without white space around it
    items: Callable[[_Lines, ReadCounts], _Items]


def read_documents(
    paths: Iterable[str], counts: ReadCounts, sentence_splitting: str = "auto"
) -> Iterator[list[str]]:
    """Yields the documents of whole files in order; see `read_splits`."""
    return read_splits(map(Split, paths), sentence_splitting, counts)


def read_splits(splits: Iterable[Split], sentence_splitting: str, counts: ReadCounts) -> Iterator[list[str]]:
    """Yields the documents that begin in each split, in order, each a list of one sentence or more; see
    `read_lines`."""
    for lines in read_lines(splits, sentence_splitting, counts):
        yield from filter(None, lines.documents())


def read_lines(
    splits: Iterable[Split], sentence_splitting: str, counts: ReadCounts
) -> Iterator[sentences.Lines]:
    """Yields the documents that begin in each split, in order, some at a time; there may be documents without
    a sentence.

    Args:
      splits: of text files, UTF-8.
      sentence_splitting: "always"; "never", a line is a sentence; "auto": lines of plain text are split where
        the first of the file hold clearly more than one sentence on average, and those of all other formats
        are.
      counts: is brought up to date while reading.

    Raises:
      ConfigError: for a file that cannot be read, is not text in UTF-8, or is compressed and damaged.
    """
    owners = Owners(counts)

    def paragraphs():
        for split in splits:
            owners.begin(split.path)
            for document in _read_paragraphs(split, sentence_splitting, counts):
                owners.put_in()
                yield document

    for lines in sentences.split_documents(paragraphs()):
        owners.take_out(lines.counts)
        documents = int(np.count_nonzero(lines.counts))
        counts.documents += documents
        counts.empty_documents += len(lines.counts) - documents
        counts.sentences += int(lines.counts.sum())
        yield lines


def _read_paragraphs(
    split: Split, sentence_splitting: str, counts: ReadCounts
) -> Iterator[tuple[list[str], bool]]:
    """Yields the paragraphs of each document and whether they are to be split into sentences."""
    with text_files.open_text(split.path) as file:
        head = _head_lines(file.head)
        layout = _find_format(head, split.path, file.head)
        if layout is _JSON_ARRAY:
            items = _array_items(file.text, split, counts)
        else:
            items = layout.items(_lines_of_split(file.text, split, layout, counts), counts)
        are_paragraphs = _has_paragraphs(head, layout, sentence_splitting)
        counts.files += split.start == 0
        others, own, undecodable = counts.bytes, counts.text_bytes, counts.undecodable_bytes
        done = file.packed.tell if file.packed else lambda: counts.text_bytes - own
        for document in _collect(items, counts):
            counts.bytes = others + done()
            yield document, are_paragraphs
        counts.bytes, undecodable = others + done(), counts.undecodable_bytes - undecodable
        text_kinds.refuse_undecodable(split.path, undecodable, counts.text_bytes - own)
        counts.of(split.path).add(FileCounts(bytes=counts.bytes - others, undecodable_bytes=undecodable))


# ------------------------------------------------------------------------------------------------------------
# Lines


def _lines_of_split(text, split: Split, layout: _Format, counts: ReadCounts) -> _Lines:
    """Yields the lines from the first that opens a document in the split up to the first that does after
    it."""
    inside, before, opens_document = split.start == 0, 0, layout.opens
    for offset, line in text_files.read_lines(
        text, split, _MOST_JSON_BYTES if layout is _JSON else _MOST_LINE_BYTES
    ):
        try:
            content, undecodable = _strip(line.decode()), 0
        except UnicodeDecodeError:
            content, undecodable = _without_undecodable(line)
        opens = offset is not None and not (undecodable and not content) and opens_document(content)
        if offset is not None and split.end is not None and offset >= split.end and (opens or not inside):
            return
        inside = inside or opens
        if inside:
            text_kinds.refuse_zeros(split.path, line)
            counts.text_bytes += len(line)
            if undecodable:
                counts.undecodable_bytes += undecodable
                counts.skipped_lines += not content
            if offset is None and before is not None:
                counts.cut_lines += 1
            yield opens, content
        before = offset


def _without_undecodable(line: bytes) -> tuple[str, int]:
    """Returns the text without white space around it and without the bytes that are not UTF-8, and their
    number."""
    text, dropped = _UNDECODABLE.subn("", line.decode("utf-8", "surrogateescape"))
    return _strip(text), dropped


def _strip(text: str) -> str:
    return text.strip().removeprefix(_BYTE_ORDER_MARK)


# ------------------------------------------------------------------------------------------------------------
# What is found from the beginning of a file


def _head_lines(head: bytes) -> list[str]:
    """Returns the lines that are not blank and, if there is another, not cut off at the end."""
    lines = head.decode("utf-8", "ignore").split("\n")
    whole = lines[:-1] if len(head) == text_kinds.HEAD_BYTES and len(lines) > 1 else lines
    return [line for line in map(_strip, whole) if line]


def _find_format(lines: list[str], path: str, head: bytes) -> _Format:
    first = lines[0] if lines else ""
    if text_kinds.is_json_array(head):
        return _JSON_ARRAY
    if first.startswith(_DUMP_START):
        raise ConfigError(f"{path} is a MediaWiki dump. Give the text that WikiExtractor makes of it.")
    if first.startswith(_BLOCK_START):
        return _WIKIEXTRACTOR
    if _JSON_START.match(first):
        return _JSON
    return _WIKITEXT if _heading_level(first) else _PLAIN


def _has_paragraphs(head: list[str], layout: _Format, sentence_splitting: str) -> bool:
    if sentence_splitting != "auto":
        return sentence_splitting == "always"
    if layout is not _PLAIN:
        return True
    return sum(map(len, sentences.split_paragraphs(head))) > _SENTENCES_OF_PARAGRAPHS * len(head)


# ------------------------------------------------------------------------------------------------------------
# Formats


def _plain_items(lines: _Lines, counts: ReadCounts) -> _Items:
    del counts  # every line belongs to a document
    begins = True
    for opens, text in lines:
        if opens:
            begins = True
        elif text:
            if begins:
                yield None
            yield text
            begins = False


def _wikiextractor_items(lines: _Lines, counts: ReadCounts) -> _Items:
    title = None  # '' once the line that repeats it cannot follow any more, None between blocks
    for opens, text in lines:
        if opens:
            found = _TITLE.search(text)
            title = html.unescape(found.group(1)).strip() if found else ""
            yield None
        elif text == _BLOCK_END:
            title = None
        elif text and title is None:
            counts.skipped_lines += 1
        elif text:
            if text != title:
                yield text
            title = ""


def _json_items(lines: _Lines, counts: ReadCounts) -> _Items:
    for opens, line in lines:
        if not opens or not line:  # the rest of a line that is too long, or a blank one
            continue
        page = _parse_page(line)
        if page is None:
            counts.skipped_lines += 1
            continue
        yield None
        yield from _paragraphs_of(page, counts)


def _array_items(text, split: Split, counts: ReadCounts) -> _Items:
    """As `_json_items`, for the file that is one array; it is one split."""
    for value in json_array.read_elements(text, split.path, counts):
        page = ("", value) if isinstance(value, str) else _page_of(value)
        if page is None:
            counts.skipped_lines += 1
            continue
        yield None
        yield from _paragraphs_of(page, counts)


def _parse_page(line: str) -> tuple[str, str] | None:
    """Returns title and text of a line of JSON, or None where it has no text."""
    try:
        return _page_of(json_files.parse_json(line, "a line"))
    except ConfigError:
        return None


def _page_of(value) -> tuple[str, str] | None:
    if not isinstance(value, dict) or not isinstance(value.get("text"), str):
        return None
    return str(value.get("title", "")).strip(), value["text"]


def _paragraphs_of(page: tuple[str, str], counts: ReadCounts) -> list[str]:
    title, text = page
    paragraphs = [
        paragraph for paragraph in map(_strip, _drop_surrogates(text, counts).split("\n")) if paragraph
    ]
    return paragraphs[1:] if paragraphs[:1] == [title] else paragraphs


def _drop_surrogates(text: str, counts: ReadCounts) -> str:
    """Drops halves of surrogate pairs, which JSON can spell and UTF-8 cannot."""
    try:
        text.encode("utf-8")
        return text
    except UnicodeEncodeError:
        text, dropped = _SURROGATE.subn("", text)
        counts.undecodable_bytes += dropped
        return text


def _wikitext_items(lines: _Lines, counts: ReadCounts) -> _Items:
    del counts  # every line belongs to a document
    for opens, text in lines:
        if opens:
            yield None
        elif text and not _heading_level(text):
            yield text


def _heading_level(line: str) -> int:
    """Returns 1 for `= Title =`, 2 for `= = Section = =` and so on, 0 for what is no heading."""
    if not line.startswith("= ") or len(line) > _MOST_HEADING_CHARACTERS:
        return 0
    found = _HEADING.fullmatch(line)
    return len(found.group(1)) // 2 if found and len(found.group(1)) == len(found.group(2)) else 0


def _collect(items: _Items, counts: ReadCounts) -> Iterator[list[str]]:
    """Puts paragraphs together to documents, [] for one without any; cuts those that are too long."""
    document, characters, begun, cut = [], 0, False, False
    for item in itertools.chain(items, [None]):
        if item is None:
            if document or begun:
                yield document
            document, characters, begun, cut = [], 0, True, False
            continue
        if document and characters + len(item) > _MOST_CHARACTERS:
            yield document
            counts.cut_documents += not cut
            document, characters, cut = [], 0, True
        document.append(item)
        characters += len(item)


_PLAIN = _Format(lambda line: not line, _plain_items)
_WIKIEXTRACTOR = _Format(lambda line: line.startswith(_BLOCK_START), _wikiextractor_items)
_JSON = _Format(lambda line: True, _json_items)
_JSON_ARRAY = _Format(lambda line: True, _json_items)  # its elements take the place of lines
_WIKITEXT = _Format(lambda line: _heading_level(line) == 1, _wikitext_items)
