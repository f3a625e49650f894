"""The formats of text files: which lines open a document, and which are its paragraphs.

A format is found from a file's first line that is not blank:
  - WikiExtractor's text: `<doc ...>` blocks that start with a title line and hold one paragraph per line;
  - WikiExtractor's JSON: one object per line, with "text" and perhaps "title";
  - one JSON array of such objects, or of texts (`official.data.text.json_array`);
  - WikiText: ` = Title = ` begins a document, ` = = Section = = ` and deeper headings are left out;
  - else plain text: one sentence or one paragraph per line, blank lines between documents.
"""

import dataclasses
import html
import re
from collections.abc import Callable, Iterable, Iterator
from typing import BinaryIO

from official.config import ConfigError
from official.data.text import json_array, text_kinds
from official.data.text.read_counts import ReadCounts
from official.data.text.text_files import Split
from official.io import json_files

_BLOCK_START = "<doc "
_BLOCK_END = "</doc>"
_TITLE = re.compile(r'\btitle="(.*)"\s*>$')  # quotes inside a title are not escaped
_JSON_START = re.compile(r'\{\s*("|$)')
_DUMP_START = "<mediawiki"
_HEADING = re.compile(r"((?:= )+)[^= ].*?((?: =)+)")
_MOST_HEADING_CHARACTERS = 1000
_BYTE_ORDER_MARK = "\ufeff"
_SURROGATE = re.compile("[\ud800-\udfff]")


# Lines as a format gets them: whether it is one that opens a document, and the text without white space
# around it.
Lines = Iterable[tuple[bool, str]]
# What it makes of them: None where a document begins, and paragraphs.
Items = Iterator[str | None]


@dataclasses.dataclass(frozen=True)
class Format:
    """A format of text files.

    Attributes:
      opens: whether a line opens a document, by its text without white space around it.
      items: what it makes of the lines of a split.
    """

    opens: Callable[[str], bool]
    items: Callable[[Lines, ReadCounts], Items]


def find_format(lines: list[str], path: str, head: bytes) -> Format:
    """Returns the format of a file that begins with `head`, with the lines `lines` that are not blank.

    Raises:
      ConfigError: for a MediaWiki dump.
    """
    first = lines[0] if lines else ""
    if text_kinds.is_json_array(head):
        return JSON_ARRAY
    if first.startswith(_DUMP_START):
        raise ConfigError(f"{path} is a MediaWiki dump. Give the text that WikiExtractor makes of it.")
    if first.startswith(_BLOCK_START):
        return _WIKIEXTRACTOR
    if _JSON_START.match(first):
        return JSON
    return _WIKITEXT if _heading_level(first) else PLAIN


def strip(text: str) -> str:
    """Returns a line without white space around it, and without the mark that may begin a file."""
    return text.strip().removeprefix(_BYTE_ORDER_MARK)


def _plain_items(lines: Lines, counts: ReadCounts) -> Items:
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


def _wikiextractor_items(lines: Lines, counts: ReadCounts) -> Items:
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


def _json_items(lines: Lines, counts: ReadCounts) -> Items:
    for opens, line in lines:
        if not opens or not line:  # the rest of a line that is too long, or a blank one
            continue
        page = _parse_page(line)
        if page is None:
            counts.skipped_lines += 1
            continue
        yield None
        yield from _paragraphs_of(page, counts)


def array_items(text: BinaryIO, split: Split, counts: ReadCounts) -> Items:
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


def _page_of(value: object) -> tuple[str, str] | None:
    if not isinstance(value, dict) or not isinstance(value.get("text"), str):
        return None
    return str(value.get("title", "")).strip(), value["text"]


def _paragraphs_of(page: tuple[str, str], counts: ReadCounts) -> list[str]:
    title, text = page
    paragraphs = [
        paragraph for paragraph in map(strip, _drop_surrogates(text, counts).split("\n")) if paragraph
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


def _wikitext_items(lines: Lines, counts: ReadCounts) -> Items:
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


PLAIN = Format(lambda line: not line, _plain_items)
_WIKIEXTRACTOR = Format(lambda line: line.startswith(_BLOCK_START), _wikiextractor_items)
JSON = Format(lambda line: True, _json_items)
JSON_ARRAY = Format(lambda line: True, _json_items)  # its elements take the place of lines
_WIKITEXT = Format(lambda line: _heading_level(line) == 1, _wikitext_items)
