"""The formats of text files: which lines open a document, and which are its paragraphs.

A format is found from a file's first line that is not blank:
  - WikiExtractor's text: `<doc ...>` blocks that start with a title line and hold one paragraph per line;
  - JSON lines, as WikiExtractor's: one object per line, with "text", or the field that was asked for, and
    perhaps "title";
  - WikiExtractor's plain text, whose documents end with two blank lines. Of all three the characters that it
    escaped for HTML are taken back (`official.data.text.extractor`);
  - one JSON array of such objects, or of texts (`official.data.text.json_array`);
  - a MediaWiki dump (`official.data.text.mediawiki`);
  - Parquet, told by its first bytes (`official.data.text.parquet_files`);
  - WikiText: ` = Title = ` begins a document, ` = = Section = = ` and deeper headings are left out;
  - else plain text: one sentence or one paragraph per line, blank lines between documents.
"""

import dataclasses
import functools
import html
import itertools
import os
import re
from collections.abc import Callable, Iterable, Iterator

from official.data.text import extractor, json_array, json_text, mediawiki, parquet_files, text_kinds
from official.data.text.read_counts import ReadCounts
from official.data.text.text_files import TextFile

_BLOCK_START = "<doc "
_BLOCK_END = "</doc>"
# Quotes inside a title may be escaped or not; attributes may stand behind it.
_TITLE = re.compile(r'\btitle="(.*?)"(?:\s+\w+="[^"]*")*\s*>$')
_JSON_START = re.compile(r'\{\s*("|$)')
_XML_START, _DUMP_START, _PAGE_START = "<?xml", "<mediawiki", "<page>"
_INDEX_NAME, _INDEX_LINE = "-multistream-index", re.compile(r"\d+:\d+:")
_HEADING = re.compile(r"((?:= )+)[^= ].*?((?: =)+)")
_MOST_HEADING_CHARACTERS = 1000
_MOST_CHARACTERS = 1 << 22  # of a document whose escapes are looked for at once
_MOST_CHECKED = 100  # elements of an array, for the field that is missing
_MOST_CHECKED_LINES = 4  # of long lines of JSON
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
      opens: whether a line opens a document, by its text as `strip` leaves it.
      items: what it makes of the lines of a split; of an open file where it has none.
      strip: what is taken from a line before anything else.
      has_lines: whether it is read line by line.
      needs_whole_lines: a part of a line is of no use.
      may_hold_sentences: whether a line may be a sentence; of other formats it is a paragraph.
      plain: the paragraphs of its beginning -> the same as `items` yields them.
    """

    opens: Callable[[str], bool]
    items: Callable[..., Items]
    strip: Callable[[str], str]
    has_lines: bool = True
    needs_whole_lines: bool = False
    may_hold_sentences: bool = False
    plain: Callable[[list[str]], list[str]] = list


def find_format(lines: Iterator[str], path: str, head: bytes, text_field: str) -> Format:
    """Returns the format of a file.

    Args:
      lines: of its beginning, those that are not blank.
      path: its name, for messages.
      head: its first bytes.
      text_field: of JSON and Parquet: which field holds the text.

    Raises:
      ConfigError: for JSON lines none of which has that field.
    """
    first = next(lines, "")
    if text_kinds.is_parquet(head):
        return dataclasses.replace(_PARQUET, items=functools.partial(_row_items, field=text_field))
    if text_kinds.is_json_array(head):
        return dataclasses.replace(_JSON_ARRAY, items=functools.partial(_array_items, field=text_field))
    if first.startswith((_DUMP_START, _PAGE_START)) or (
        first.startswith(_XML_START) and (_DUMP_START in first or next(lines, "").startswith(_DUMP_START))
    ):
        return _MEDIAWIKI
    if first.startswith(_BLOCK_START):
        pairs = itertools.pairwise([first, *lines])  # the line behind the first one of a block is a title
        paragraphs = [line for before, line in pairs if not _opens_block(before) and not _is_tag(line)]
        is_bare = any(map(extractor.is_bare, paragraphs))
        return dataclasses.replace(_WIKIEXTRACTOR, items=_unescaped(_wikiextractor_items, is_bare))
    if _JSON_START.match(first):
        head_lines = [first, *lines]
        is_checked = json_text.check_field(json_text.parsed(head_lines), path, text_field)
        unchecked = None if is_checked else path
        pages = itertools.takewhile(extractor.made, json_text.parsed(head_lines))
        is_bare = any(extractor.is_bare(str(page["text"])) for page in pages)
        items = functools.partial(_json_items, field=text_field, unchecked=unchecked, is_bare=is_bare)
        return dataclasses.replace(_JSON, items=items)
    if _INDEX_NAME in os.path.basename(path) and _INDEX_LINE.match(first):
        return _DUMP_INDEX
    if _heading_level(first):
        return _WIKITEXT
    text = head.decode("utf-8", "ignore")
    if extractor.wrote_text(text, len(head) < text_kinds.HEAD_BYTES) and not extractor.is_bare(text):
        plain = _unescaped(_plain_items, is_bare=False)
        return dataclasses.replace(PLAIN, items=plain, plain=extractor.without_escapes)
    return PLAIN


def strip(text: str) -> str:
    """Returns a line without white space around it, and without the mark that may begin a file."""
    return text.strip().removeprefix(_BYTE_ORDER_MARK)


def _unescaped(items_of: Callable[..., Items], is_bare: bool) -> Callable[..., Items]:
    """Returns a maker of items as `items_of` is one, and takes back what the tool escaped in each document;
    `is_bare` says that nothing is escaped in the file."""

    def items(lines: Lines, counts: ReadCounts) -> Items:
        document: list[str] = []
        characters = 0
        for item in items_of(lines, counts):
            if item is None or characters > _MOST_CHARACTERS:
                yield from extractor.without_escapes(document, is_bare)
                document, characters = [], 0
            if item is None:
                yield None
            else:
                document.append(item)
                characters += len(item)
        yield from extractor.without_escapes(document, is_bare)

    return items_of if is_bare else items


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


def plain_documents(text: str) -> Iterator[list[str]]:
    """Yields the documents of a whole plain text, each a list of paragraphs."""
    document: list[str] = []
    for line in map(strip, text.split("\n")):
        if line:
            document.append(line)
        elif document:
            yield document
            document = []
    if document:
        yield document


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
            if html.unescape(text) != title:
                yield text
            title = ""


def _json_items(lines: Lines, counts: ReadCounts, field: str, unchecked: str | None, is_bare: bool) -> Items:
    """Yields what lines hold; `unchecked` is the path where the first line was too long to tell the fields
    by, `is_bare` says that nothing is escaped in pages of the extractor."""
    first: list[str] = []  # as long as none has the field
    for opens, line in lines:
        if not opens or not line:  # the rest of a line that is too long, or a blank one
            continue
        page = json_text.parse_page(line, field, is_bare)
        if unchecked and page is None and len(first) < _MOST_CHECKED_LINES:
            first.append(line)
        elif page is not None:
            unchecked = None
        yield from _items_of(page, counts)
    if unchecked:
        json_text.check_field(json_text.parsed(first), unchecked, field)


def _array_items(file: TextFile, path: str, counts: ReadCounts, field: str) -> Items:
    """As `_json_items`, for the file that is one array; it is one split."""
    first: list[object] = []  # elements, as long as none has the field
    found = False
    for value in json_array.read_elements(file.text, path, counts):
        page = ("", value) if isinstance(value, str) else json_text.page_of(value, field)
        found = found or page is not None
        if not found and len(first) < _MOST_CHECKED:
            first.append(value)
        yield from _items_of(page, counts)
    if not found:
        json_text.check_field(first, path, field)


def _row_items(file: TextFile, path: str, counts: ReadCounts, field: str) -> Items:
    for text, num_bytes in parquet_files.read_texts(file.text, path, field, file.part.start, file.part.end):
        counts.text_bytes += num_bytes
        yield from _items_of(None if text is None else ("", text), counts)


def _page_items(lines: Lines, counts: ReadCounts) -> Items:
    for page in mediawiki.read_articles(lines, counts):
        yield from _items_of(page, counts)


def _no_items(lines: Lines, counts: ReadCounts) -> Items:
    del counts
    for _ in lines:
        pass
    yield from ()


def _items_of(page: tuple[str, str] | None, counts: ReadCounts) -> Items:
    """Yields the items of a document of which title and text are known; None is counted."""
    if page is None:
        counts.skipped_lines += 1
        return
    yield None
    title, text = page
    paragraphs = list(filter(None, map(strip, _drop_surrogates(text, counts).split("\n"))))
    yield from paragraphs[1:] if paragraphs[:1] == [title] else paragraphs


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


def _opens_block(line: str) -> bool:
    return line.startswith(_BLOCK_START)


def _is_tag(line: str) -> bool:
    return _opens_block(line) or line == _BLOCK_END


def _every_line(line: str) -> bool:
    return True


PLAIN = Format(lambda line: not line, _plain_items, strip, may_hold_sentences=True)
_WIKIEXTRACTOR = Format(_opens_block, _wikiextractor_items, strip)
_JSON = Format(_every_line, _json_items, strip, needs_whole_lines=True)
_JSON_ARRAY = Format(_every_line, _array_items, strip, has_lines=False)
_PARQUET = Format(_every_line, _row_items, strip, has_lines=False)
_WIKITEXT = Format(lambda line: _heading_level(line) == 1, _wikitext_items, strip)
# White space at the beginning of a line is markup.
_MEDIAWIKI = Format(
    mediawiki.opens_page, _page_items, lambda line: line.rstrip("\r\n"), needs_whole_lines=True
)
# The index of a dump, which lies beside it in a folder: no text.
_DUMP_INDEX = Format(_every_line, _no_items, strip)
