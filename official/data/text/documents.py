"""Reads text files as a stream of documents, lists of sentences."""

import codecs
import collections
import contextlib
import dataclasses
import functools
import html
import itertools
import os
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any, BinaryIO
from xml.etree import ElementTree

from official.data.text import parquet_files, sentences, text_files
from official.data.text.read_counts import ReadCounts
from official.data.text.text_files import Split, TextFile
from official.io import files, json_files
from official.io.errors import ConfigError, check_installed

# -----------------------------------------------------------------------------------------------------------
# WikiExtractor
#
# Its command escapes `&`, `<` and `>` unless --html-safe is empty; older versions escape quotes, too. So a
# text with an unescaped `&`, `<` or `>` is not escaped: near the beginning of a file, this holds for all its
# documents, later only for the document itself. Titles are always escaped.


_ENTITY = re.compile("&(?:amp|lt|gt|quot|apos|#0?39|#x27|#34);")
_BARE = re.compile(f"[<>]|&(?!{_ENTITY.pattern[1:]})")
_MARKUP = re.compile("</?(?:ul|ol|dl|li|dt|dd|h[1-6]|p)>|</<li>")  # added by --html, after escaping


def is_unescaped(text: str) -> bool:
    """Tells whether a text has characters that WikiExtractor would have escaped."""
    return _BARE.search(_MARKUP.sub("", text)) is not None


def without_escapes(document: list[str], is_bare_file: bool = False) -> list[str]:
    """Unescapes the paragraphs of a document, unless the document or the whole file is not escaped."""
    if is_bare_file or not any(map(_ENTITY.search, document)) or any(map(is_unescaped, document)):
        return document
    return [_ENTITY.sub(lambda entity: html.unescape(entity[0]), paragraph) for paragraph in document]


def made(value: object) -> bool:
    """Tells whether a JSON value is a page written by WikiExtractor."""
    if not isinstance(value, dict) or not value.keys() >= {"id", "url", "title", "text"}:
        return False
    # Only WikiExtractor writes the URL of a page with its number.
    return "revid" in value or isinstance(value["url"], str) and "?curid=" in value["url"]


def wrote_text(head: str, is_whole: bool) -> bool:
    """Tells whether a file with this beginning was written with --text, which ends each document with two
    blank lines."""
    ends = re.findall("\n\n+", head if is_whole else head.rstrip("\n"))
    return bool(ends) and all(len(end) % 3 == 0 for end in ends) and (not is_whole or head.endswith("\n\n\n"))


# -----------------------------------------------------------------------------------------------------------
# JSON values


def page_of(value: object, field: str, is_bare: bool = False) -> tuple[str, str] | None:
    """Returns title and text of an object, or None if it has no text.

    Args:
      field: name of the field with the text.
      is_bare: whether the text of WikiExtractor's pages is known not to be escaped for HTML.
    """
    if not isinstance(value, dict) or not isinstance(text := value.get(field), str):
        return None
    title = str(value.get("title", ""))
    if made(value):
        title, text = html.unescape(title), without_escapes([text], is_bare)[0]
    return title.strip(), text


def _parse(line: str) -> Any:
    """Parses a line of JSON, with numbers of any size and NaN; None if it is not JSON."""
    with contextlib.suppress(ConfigError):
        return json_files.parse_json(line, "a line", any_number=True)
    return None


def check_field(values: Iterable[object], path: str, field: str) -> bool:
    """Tells whether an object has the field; False without any object. Raises ConfigError if there are
    objects and none has it; the message names the fields with text."""
    names: dict[str, None] = {}  # of the fields with text
    objects = [value for value in values if isinstance(value, dict)]
    for value in objects:
        if value.get(field) is not None:
            return True
        names |= dict.fromkeys(name for name, inner in value.items() if isinstance(inner, str))
    if objects:
        named = ", ".join(list(names)[:20]) or "none"
        raise ConfigError(f"{path} has no field --text_field={field}. Fields with text: {named}.")
    return False


# -----------------------------------------------------------------------------------------------------------
# JSON arrays


_CHUNK_BYTES = 1 << 20
_MAX_DEPTH = 100  # levels of nesting in an element
_MAX_ELEMENT_BYTES = 1 << 24  # the longest article has about 3 MB
# Bytes that are not UTF-8, decoded with "surrogateescape"; in JSON, lone surrogates.
_SURROGATES = re.compile("[\ud800-\udfff]")


def read_elements(file: BinaryIO, path: str, counts) -> Iterator:
    """Yields the elements of an array as Python values.

    Args:
      file: UTF-8 text; other bytes are left out.
      path: path of the file, for messages.
      counts: `text_bytes` and `undecodable_bytes` are updated.

    Raises:
      ConfigError: for an incomplete or damaged array, or an element of more than 16 MB. No element after
        damage can be found.
    """
    import ijson  # late: only arrays need it

    number, depth, builder = 0, 0, ijson.ObjectBuilder()
    source = _Utf8(file, path, counts)
    # `ijson.items` keeps the path to each value, so its memory grows with the square of the nesting.
    # `use_float` refuses integers above 64 bits, such as a hash of the text.
    events = ijson.basic_parse(source, buf_size=_CHUNK_BYTES)
    try:
        for event, value in itertools.islice(events, 1, None):  # after the opening bracket of the array
            depth += event.startswith("start_") - event.startswith("end_")
            if depth > _MAX_DEPTH:
                raise ValueError(f"nested in more than {_MAX_DEPTH} levels")
            if depth < 0:  # closing bracket of the array; the rest is ignored
                continue
            builder.event(event, value)
            if depth == 0:
                number += 1
                source.unfinished_bytes = 0
                yield builder.value
                builder = ijson.ObjectBuilder()
    except (ijson.JSONError, ValueError) as error:
        what = f"is not a whole JSON array: element {number + 1}: {' '.join(str(error).split())[:100]}"
        raise ConfigError(f"{path} {what}. Repair it, or leave it out of --input_files.") from None


class _Utf8:
    """Reader of a file that drops bytes that are not UTF-8, and the byte order mark.

    Attributes:
      unfinished_bytes: number of bytes read since the last complete element.
    """

    def __init__(self, file: BinaryIO, path: str, counts):
        self._file, self._path, self._counts = file, path, counts
        self._decoder = codecs.getincrementaldecoder("utf-8-sig")("surrogateescape")
        self.unfinished_bytes = 0

    def read(self, size: int) -> bytes:
        while data := self._file.read(size):
            text_files.refuse_zeros(self._path, data)
            if self.unfinished_bytes > _MAX_ELEMENT_BYTES:
                raise ValueError(f"it has more than {_MAX_ELEMENT_BYTES:,} bytes")
            self.unfinished_bytes += len(data)
            text, undecodable = _SURROGATES.subn("", self._decoder.decode(data))
            self._counts.text_bytes += len(data)
            self._counts.undecodable_bytes += undecodable
            if text:
                return text.encode()
        return b""


# -----------------------------------------------------------------------------------------------------------
# MediaWiki
#
# An article is a page of namespace 0 that is not a redirect. The last of several revisions counts.


_PAGE = "<page>"
_FAULTS = (SyntaxError, ValueError, LookupError, TypeError, AttributeError, RecursionError, OverflowError)
_MAX_PAGE_CHARACTERS = 1 << 26  # MediaWiki's limit is 2 MB of wikitext; longer pages have all revisions


def read_articles(lines: Iterable[tuple[bool, str]], counts: ReadCounts) -> Iterator[tuple[str, str]]:
    """Yields title and text of the articles.

    Args:
      lines: (whether the line opens a page, the line with its white space).
      counts: updated with the pages that are not articles, or cannot be read.
    """
    to_text = _cleaner()
    for page in _pages(lines, counts):
        try:
            element = ElementTree.fromstring(page)
            revision = (element.findall("revision") or [element])[-1]
            title = (element.findtext("title") or "").strip()
            if element.find("redirect") is not None:
                counts.redirect_pages += 1
                continue
            model = revision.findtext("model", "")  # missing in dumps before 2012
            if element.findtext("ns") != "0" or model not in ("wikitext", ""):
                counts.other_pages += 1
                continue
            text = to_text(title, revision.findtext("text") or "", revision.findtext("timestamp") or "")
        except _FAULTS:
            counts.unreadable_pages += 1  # invalid XML, or wikitext that crashes the extractor
        else:
            yield title, text


def _pages(lines: Iterable[tuple[bool, str]], counts: ReadCounts) -> Iterator[str]:
    """Yields the XML of each page; incomplete pages and those that are too large are counted."""
    page: list[str] | None = None
    characters = 0
    for opens, line in lines:
        if opens:
            counts.unreadable_pages += page is not None
            page, characters = [], 0
        if page is None:
            continue
        page.append(line)
        characters += len(line)
        if line.rstrip().endswith("</page>"):
            yield "\n".join(page)
            page = None
        elif characters > _MAX_PAGE_CHARACTERS:
            counts.unreadable_pages += 1
            page = None
    counts.unreadable_pages += page is not None


@functools.cache
def _cleaner() -> Callable[[str, str, str], str]:
    """Returns a function (title, wikitext, time) -> text of a page, one paragraph per line."""
    check_installed("a MediaWiki dump", "wikipedia", "wikiextractor")
    from wikiextractor import extract  # late: only dumps need it

    ignored = [*extract._DEFAULT_IGNORED_TAG_PATTERNS, extract.ignoreTag("a")]  # links become their text

    def to_text(title: str, wikitext: str, time: str) -> str:
        extractor = extract.Extractor("", "", "", title, [], ignored_tag_patterns=ignored)
        namespace, colon, _ = title.partition(":")
        words = {"namespace": namespace if colon else "", "pagename": title, "fullpagename": title}
        # The page's time instead of the current one, so that the same dump gives the same text.
        date, _, clock = time.partition("T")
        words |= zip(("currentyear", "currentmonth", "currentday"), [*date.split("-"), "", "", ""])
        words |= {"currenthour": clock[:2], "currenttime": clock[:8]}
        for name, value in words.items():
            extractor.magicWords[name] = value
        # Unchanged from the dump: the extractor distinguishes characters that were escaped once and twice.
        escaped = html.escape(wikitext)
        cleaned = extract.clean(extractor, escaped, expand_templates=True, html_safe=False)
        return "\n".join(extract.compact(cleaned, extractor=extractor))

    return to_text


# -----------------------------------------------------------------------------------------------------------
# Formats
#
# The format is detected from a file's first non-blank line:
#   - WikiExtractor's text: `<doc ...>` blocks that start with a title line and hold one paragraph per line;
#   - JSON lines, as WikiExtractor's: one object per line, with "text", or the field in --text_field, and
#     optionally "title";
#   - WikiExtractor's plain text, whose documents end with two blank lines. In all three formats, characters
#     that WikiExtractor escaped for HTML are unescaped;
#   - one JSON array of such objects, or of texts;
#   - a MediaWiki dump;
#   - Parquet, detected by its first bytes (`official.data.text.parquet_files`);
#   - WikiText: ` = Title = ` begins a document, ` = = Section = = ` and deeper headings are left out;
#   - otherwise plain text: one sentence or one paragraph per line, blank lines between documents, or lines
#     `<|endoftext|>`, as in TinyStories, whose blank lines are between paragraphs.


_BLOCK_START, _BLOCK_END = "<doc ", "</doc>"
# Quotes inside a title may be escaped or not; attributes may follow it.
_TITLE = re.compile(r'\btitle="(.*?)"(?:\s+\w+="[^"]*")*\s*>$')
_JSON_START = re.compile(r'\{\s*("|$)')
_DUMP_START = "<mediawiki"
_END_OF_TEXT = "<|endoftext|>"
_HEADING = re.compile(r"((?:= )+)[^= ].*?((?: =)+)")


# Input lines of a format: (whether the line opens a document, the text after `strip`).
Lines = Iterable[tuple[bool, str]]
# Output of a format: paragraphs, with None at the beginning of each document.
Items = Iterator[str | None]
# Title and text of documents, None for a value without a text.
Pages = Iterable[tuple[str, str] | None]


def strip(text: str) -> str:
    """Returns a line without surrounding white space, and without a byte order mark."""
    return text.strip().removeprefix("\ufeff")


@dataclasses.dataclass(frozen=True)
class Format:
    """A format of text files.

    Attributes:
      items: (lines of a split, counts) -> items; for a format without lines, (open file, path, counts) ->
        items.
      opens: (text of a line after `strip`) -> whether it opens a document.
      strip: function that is applied to each line first.
      has_lines: whether it is read line by line.
      needs_whole_lines: whether parts of a line are useless.
      may_hold_sentences: whether a line may be a sentence; in other formats it is a paragraph.
      plain: (paragraphs at the beginning) -> the paragraphs as of `items`.
    """

    items: Callable[..., Items]
    opens: Callable[[str], bool] = lambda line: True
    strip: Callable[[str], str] = strip
    has_lines: bool = True
    needs_whole_lines: bool = False
    may_hold_sentences: bool = False
    plain: Callable[[list[str]], list[str]] = list


def find_format(path: str, head: bytes, text_field: str) -> Format:
    """Detects the format of a file.

    Args:
      path: path of the file, for messages.
      head: its first bytes.
      text_field: name of the field with the text, in JSON and Parquet.

    Raises:
      ConfigError: if no JSON line has that field, or for XML of other programs.
    """
    lines = _head_lines(head)
    first = next(lines, "")
    items: Callable[..., Items]
    if text_files.is_parquet(head):
        return Format(functools.partial(_row_items, field=text_field), has_lines=False)
    if text_files.is_json_array(head):
        # One split; its elements are treated as lines of JSON.
        def of_array(file: TextFile, path: str, counts: ReadCounts) -> Items:
            return _items_of(_pages_of(read_elements(file.text, path, counts), text_field, path, 100), counts)

        return Format(of_array, has_lines=False)
    if first.startswith((_DUMP_START, _PAGE)) or (
        first.startswith("<?xml") and (_DUMP_START in first or next(lines, "").startswith(_DUMP_START))
    ):
        return Format(
            lambda lines, counts: _items_of(read_articles(lines, counts), counts),
            lambda line: line.lstrip().startswith(_PAGE),
            lambda line: line.rstrip("\r\n"),  # leading white space is markup
            needs_whole_lines=True,
        )
    if first.startswith("<?xml"):
        problem = "is XML, whose mark-up is not text. Extract its text"
        raise ConfigError(f"{path} {problem}, or leave it out of --input_files.")
    if first.startswith(_BLOCK_START):
        pairs = itertools.pairwise([first, *lines])  # the second line of a block is a title
        is_bare = any(
            is_unescaped(line)
            for before, line in pairs
            if not before.startswith(_BLOCK_START) and not line.startswith((_BLOCK_START, _BLOCK_END))
        )
        items = _wikiextractor_items if is_bare else _unescaped(_wikiextractor_items)
        return Format(items, lambda line: line.startswith(_BLOCK_START))
    if _JSON_START.match(first):
        values = list(map(_parse, [first, *lines]))
        unchecked = None if check_field(values, path, text_field) else path
        pages = itertools.takewhile(made, (value for value in values if value is not None))
        is_bare = any(is_unescaped(str(page["text"])) for page in pages)
        items = functools.partial(_json_items, field=text_field, unchecked=unchecked, is_bare=is_bare)
        return Format(items, needs_whole_lines=True)
    # The index of a dump, in the same folder, has no text.
    if "-multistream-index" in os.path.basename(path) and re.match(r"\d+:\d+:", first):
        return Format(lambda lines, counts: (None for _ in lines if False))
    if _heading_level(first):
        return Format(_wikitext_items, lambda line: _heading_level(line) == 1)
    text = head.decode("utf-8", "ignore")
    if _END_OF_TEXT in map(strip, text.split("\n")):
        return Format(_plain_items, lambda line: line == _END_OF_TEXT, may_hold_sentences=True)
    if wrote_text(text, len(head) < text_files.HEAD_BYTES) and not is_unescaped(text):
        unescaped = _unescaped(_plain_items)
        return Format(unescaped, lambda line: not line, may_hold_sentences=True, plain=without_escapes)
    return Format(_plain_items, lambda line: line in ("", _END_OF_TEXT), may_hold_sentences=True)


def _unescaped(items_of: Callable[..., Items]) -> Callable[..., Items]:
    """Wraps `items_of` so that each document is unescaped, see `without_escapes`."""

    def items(lines: Lines, counts: ReadCounts) -> Items:
        document: list[str] = []
        characters = 0
        for item in items_of(lines, counts):
            if item is None or characters > 1 << 22:  # limit of text that is examined at once
                yield from without_escapes(document)
                document, characters = [], 0
            if item is None:
                yield None
            else:
                document.append(item)
                characters += len(item)
        yield from without_escapes(document)

    return items


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
    title = None  # '' after the line that may repeat it, None between blocks
    for opens, text in lines:
        if opens:
            found = _TITLE.search(text) if len(text) < 10_000 else None  # quadratic time
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


def _wikitext_items(lines: Lines, counts: ReadCounts) -> Items:
    del counts  # every line belongs to a document
    for opens, text in lines:
        if opens:
            yield None
        elif text and not _heading_level(text):
            yield text


def _heading_level(line: str) -> int:
    """Returns 1 for `= Title =`, 2 for `= = Section = =` and so on, 0 for other lines."""
    if not line.startswith("= ") or len(line) > 1000:
        return 0
    found = _HEADING.fullmatch(line)
    return len(found.group(1)) // 2 if found and len(found.group(1)) == len(found.group(2)) else 0


def _json_items(lines: Lines, counts: ReadCounts, field: str, unchecked: str | None, is_bare: bool) -> Items:
    """Yields the items of JSON lines; see `_pages_of`."""
    # Skips blank lines, and the rest of lines that are too long.
    values = (_parse(line) for opens, line in lines if opens and line)
    objects = (value if isinstance(value, dict) else None for value in values)
    return _items_of(_pages_of(objects, field, unchecked, 4, is_bare), counts)


def _row_items(file: TextFile, path: str, counts: ReadCounts, field: str) -> Items:
    def pages() -> Pages:
        part = file.part
        for text, num_bytes in parquet_files.read_texts(file.text, path, field, part.start, part.end):
            counts.text_bytes += num_bytes
            yield None if text is None else ("", text)

    return _items_of(pages(), counts)


def _pages_of(values: Iterable, field: str, unchecked: str | None, most: int, is_bare: bool = False) -> Pages:
    """Yields title and text of JSON values, None for one without a text.

    Args:
      unchecked: path of the file, if it is unknown whether it has the field; None: it has.
      most: maximum number of values that are kept to name their fields in the error.
      is_bare: whether WikiExtractor's pages are not escaped.
    """
    first: list[object] = []  # first values without the field
    for value in values:
        page = ("", value) if isinstance(value, str) else page_of(value, field, is_bare)
        if page is not None:
            unchecked = None
        elif unchecked and len(first) < most:
            first.append(value)
        yield page
    if unchecked:
        check_field(first, unchecked, field)


def _items_of(pages: Pages, counts: ReadCounts) -> Items:
    """Yields the items of documents, given title and text; None is counted."""
    for page in pages:
        if page is None:
            counts.skipped_lines += 1
            continue
        yield None
        title, text = page
        try:
            text.encode()
        except UnicodeEncodeError:
            text, dropped = _SURROGATES.subn("", text)
            counts.undecodable_bytes += dropped
        paragraphs = list(filter(None, map(strip, text.split("\n"))))
        yield from paragraphs[1:] if paragraphs[:1] == [title] else paragraphs


# -----------------------------------------------------------------------------------------------------------
# Documents
#
# A document belongs to the split of the file with the line that opens it: the `<doc` line, the `<page>` line,
# the JSON line, the heading, or the blank line before a document of plain text. A line of a bzip2 file
# belongs to the block with the line feed before it, and that block to the split where it begins. Counts
# follow the same rule: a split counts the lines from the first that opens a document in it up to the first in
# a later split, and the first split also counts the lines before. So the documents and counts of all splits
# together are those of the file, for any splits.


_MAX_LINE_BYTES = 1 << 20
_MAX_JSON_BYTES = 1 << 24  # a line of JSON is needed as a whole; the longest article has about 3 MB
_MAX_CHARACTERS = 1 << 22  # maximum of a document


def read_documents(
    paths: Iterable[str], counts: ReadCounts, sentence_splitting: str = "auto", text_field: str = "text"
) -> Iterator[list[str]]:
    """Yields the documents of whole files in order; see `read_splits`. Raises ConfigError at the end if a
    file was changed meanwhile."""
    paths = list(paths)
    states = files.states(paths)
    splits = [Split(path, state=states[path]) for path in paths]
    return read_splits(splits, sentence_splitting, counts, text_field)


def read_splits(
    splits: Iterable[Split], sentence_splitting: str, counts: ReadCounts, text_field: str = "text"
) -> Iterator[list[str]]:
    """Yields the documents that begin in each split, in order, each a list of at least one sentence; see
    `read_in_blocks`."""
    for block in read_in_blocks(splits, sentence_splitting, counts, text_field):
        yield from filter(None, block.documents())


def read_in_blocks(
    splits: Iterable[Split], sentence_splitting: str, counts: ReadCounts, text_field: str = "text"
) -> Iterator[sentences.Lines]:
    """Yields the documents that begin in each split, in order, in batches; documents may have no sentence.

    Args:
      splits: splits of UTF-8 text files.
      sentence_splitting: "always"; "never": a line is a sentence; "auto": lines of plain text are split if
        the first lines of the file have clearly more than one sentence on average, and lines of all other
        formats are.
      counts: updated during reading.
      text_field: name of the field of JSON, or of the column of Parquet, with the text.

    Raises:
      ConfigError: for a file that cannot be read, is not UTF-8 text, is compressed and damaged, or lacks the
        field; at the end for one that was changed since it was planned.
    """
    splits = list(splits)
    # Paths and numbers of documents of the units in the splitter.
    waiting: collections.deque[tuple[str, int]] = collections.deque()

    def units() -> Iterator[sentences.Unit]:
        for split in splits:
            for unit in _units_of(split, sentence_splitting, counts, text_field):
                waiting.append((split.path, len(unit.documents)))
                yield unit

    for block in sentences.split_documents(units()):
        numbers, done = block.counts.tolist(), 0
        while done < len(numbers):  # a block has complete units
            path, count = waiting.popleft()
            own, done = numbers[done : done + count], done + count
            counts.empty_documents += own.count(0)
            for each in (counts, counts.of(path)):
                each.documents += count - own.count(0)
                each.sentences += sum(own)
        yield block
    files.check_unchanged({split.path: split.state for split in splits if split.state is not None})


def _units_of(split: Split, splitting: str, counts: ReadCounts, text_field: str) -> Iterator[sentences.Unit]:
    """Yields the paragraphs of documents, with the way to split them into sentences."""
    with text_files.open_text(split) as file:
        layout = find_format(split.path, file.head, text_field)
        if layout.has_lines:
            items = layout.items(_lines_of_split(file, split, layout, counts), counts)
        else:
            items = layout.items(file, split.path, counts)
        counts.files += split.start == 0
        others, own, undecodable = counts.bytes, counts.text_bytes, counts.undecodable_bytes
        documents = _collect(items, counts)
        splitting = _splitting_of(file, layout, splitting)
        if splitting == "auto":
            yield sentences.Unit(list(documents), splitting)
        else:
            for document in documents:
                counts.bytes = others + (file.packed.done() if file.packed else counts.text_bytes - own)
                yield sentences.Unit([document], splitting)
        counts.bytes = others + (file.packed.size if file.packed else counts.text_bytes - own)
        undecodable = counts.undecodable_bytes - undecodable
        text_files.refuse_undecodable(split.path, undecodable, counts.text_bytes - own)
        counts.of(split.path).bytes += counts.bytes - others
        counts.of(split.path).undecodable_bytes += undecodable


# ------------------------------------------------------------------------------------------------------------
# Lines


def _lines_of_split(file: TextFile, split: Split, layout: Format, counts: ReadCounts) -> Lines:
    """Yields the lines from the first that opens a document in the split up to the first that does so after
    the split."""
    inside, part, before = split.start == 0, file.part, True
    most_bytes = _MAX_JSON_BYTES if layout.needs_whole_lines else _MAX_LINE_BYTES
    for place, block in text_files.read_blocks(file.text, part, most_bytes):
        if inside and place is not None and not _is_behind(place + len(block) - 1, part.end):
            text, undecodable = ("", 1) if b"\0" in block else _decoded(block)
            if not undecodable:  # the usual case
                counts.text_bytes += len(block)
                opens_document, strip_line = layout.opens, layout.strip
                for line_text in text.removesuffix("\n").split("\n"):
                    content = strip_line(line_text)
                    yield opens_document(content), content
                before = True
                continue
        for offset, line in text_files.each_of(block, place):
            content, undecodable = _decoded(line)
            content = layout.strip(content)
            opens = offset is not None and not (undecodable and not content) and layout.opens(content)
            if (opens or not inside) and _is_behind(offset, part.end):
                return
            inside = inside or opens
            if inside:
                text_files.refuse_zeros(split.path, line)
                counts.text_bytes += len(line)
                counts.undecodable_bytes += undecodable
                counts.skipped_lines += undecodable > 0 and not content
                counts.cut_lines += offset is None and before
                yield opens, content
            before = offset is not None


def _is_behind(offset: int | None, end: int | None) -> bool:
    return offset is not None and end is not None and offset >= end


def _decoded(data: bytes) -> tuple[str, int]:
    """Returns the text without undecodable bytes, and the number of these bytes."""
    try:
        return data.decode(), 0
    except UnicodeDecodeError:
        return _SURROGATES.subn("", data.decode("utf-8", "surrogateescape"))


def _head_lines(head: bytes) -> Iterator[str]:
    """Yields the non-blank lines, without an incomplete last one unless it is the only one."""
    found = head.decode("utf-8", "ignore").split("\n")
    whole = found[:-1] if len(head) == text_files.HEAD_BYTES and len(found) > 1 else found
    return filter(None, map(strip, whole))


def _splitting_of(file: TextFile, layout: Format, sentence_splitting: str) -> str:
    """Returns always, never, or, for a small file, auto: then its whole text is the sample, and one call of
    the splitter both decides and splits, for many files at once."""
    if sentence_splitting != "auto":
        return sentence_splitting
    if not layout.may_hold_sentences:
        return "always"
    if len(file.head) < text_files.HEAD_BYTES and file.part.start == 0 and file.part.end is None:
        return "auto"
    paragraphs = layout.plain(list(_head_lines(file.head)))
    found = sum(map(len, sentences.split_paragraphs(paragraphs)))
    return "always" if sentences.hold_paragraphs(found, len(paragraphs)) else "never"


def _collect(items: Items, counts: ReadCounts) -> Iterator[list[str]]:
    """Collects paragraphs into documents, [] for an empty one, and splits those that are too long."""
    document: list[str] = []
    characters, begun, cut = 0, False, False
    for item in itertools.chain(items, [None]):
        if item is None:
            if document or begun:
                yield document
            document, characters, begun, cut = [], 0, True, False
            continue
        if document and characters + len(item) > _MAX_CHARACTERS:
            yield document
            counts.cut_documents += not cut
            document, characters, cut = [], 0, True
        document.append(item)
        characters += len(item)
