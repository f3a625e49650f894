"""Text files -> documents: lists of sentences, read one after the other, never all at once.

`official.data.text.layouts` says which formats there are. Compressed files (`official.data.text.text_files`)
are read like others.

A document belongs to the split of the file in which the line lies that opens it: the `<doc` line, the
`<page>` line, the JSON line, the heading, or the blank line before a document of plain text. A line of a
bzip2 file lies in the block that holds the line feed before it, and that block in the split where it
begins. What is counted goes with it: a split
accounts for the lines from the first that opens a document in it up to the first in a later split, and the
first split for those before any. Documents and counts of all splits are therefore those of the file, however
it is split.
"""

import itertools
import re
from collections.abc import Callable, Iterable, Iterator

import numpy as np

from official.data.text import layouts, lines, sentences, text_files, text_kinds
from official.data.text.read_counts import FileCounts, Owners, ReadCounts
from official.data.text.text_files import Split, TextFile
from official.io import files

_MOST_LINE_BYTES = 1 << 20
_MOST_JSON_BYTES = 1 << 24  # a line of JSON is of use only as a whole; the longest article has about 3 MB
_MOST_CHARACTERS = 1 << 22  # of a document
_UNDECODABLE = re.compile("[\udc80-\udcff]")  # what "surrogateescape" makes of a byte that is not UTF-8


def read_documents(
    paths: Iterable[str], counts: ReadCounts, sentence_splitting: str = "auto", text_field: str = "text"
) -> Iterator[list[str]]:
    """Yields the documents of whole files in order; see `read_splits`. Raises ConfigError at the end where a
    file was changed meanwhile."""
    paths = list(paths)
    states = files.states(paths)
    splits = [Split(path, state=states[path]) for path in paths]
    return read_splits(splits, sentence_splitting, counts, text_field)


def read_splits(
    splits: Iterable[Split], sentence_splitting: str, counts: ReadCounts, text_field: str = "text"
) -> Iterator[list[str]]:
    """Yields the documents that begin in each split, in order, each a list of one sentence or more; see
    `read_in_blocks`."""
    for block in read_in_blocks(splits, sentence_splitting, counts, text_field):
        yield from filter(None, block.documents())


def read_in_blocks(
    splits: Iterable[Split], sentence_splitting: str, counts: ReadCounts, text_field: str = "text"
) -> Iterator[sentences.Lines]:
    """Yields the documents that begin in each split, in order, some at a time; there may be documents without
    a sentence.

    Args:
      splits: of text files, UTF-8.
      sentence_splitting: "always"; "never", a line is a sentence; "auto": lines of plain text are split where
        the first of the file hold clearly more than one sentence on average, and those of all other formats
        are.
      counts: is brought up to date while reading.
      text_field: name of the field of JSON, or of the column of Parquet, that holds the text; a.b for field b
        of the object in field a.

    Raises:
      ConfigError: for a file that cannot be read, is not text in UTF-8, is compressed and damaged, or does
        not have the field; at the end for one that was changed since it was planned.
    """
    splits = list(splits)
    owners = Owners(counts)

    def units():
        for split in splits:
            owners.begin(split.path)
            small = _small_unit(split, sentence_splitting, counts, text_field)
            for unit in [small] if small else _read_units(split, sentence_splitting, counts, text_field):
                owners.put_in(len(unit.documents))
                yield unit

    for block in sentences.split_documents(units()):
        owners.take_out(block.counts)
        documents = int(np.count_nonzero(block.counts))
        counts.documents += documents
        counts.empty_documents += len(block.counts) - documents
        counts.sentences += int(block.counts.sum())
        yield block
    text_files.check_unchanged(splits)


def _small_unit(
    split: Split, sentence_splitting: str, counts: ReadCounts, text_field: str
) -> sentences.Unit | None:
    """Reads a whole small file of plain text as `_read_units` does, at half the cost; None for others. There
    may be very many of them."""
    content = text_files.plain_content(split) if sentence_splitting == "auto" else None
    text = None if content is None else _plain_text_of(content)
    if content is None or text is None or len(content) >= _most_small_bytes():
        return None
    if layouts.find_format(_head_lines(content), split.path, content, text_field) is not layouts.PLAIN:
        return None
    counts.files, counts.bytes = counts.files + 1, counts.bytes + len(content)
    counts.text_bytes += len(content)
    counts.of(split.path).bytes += len(content)
    return sentences.Unit(list(layouts.plain_documents(text)), "auto")


def _read_units(
    split: Split, sentence_splitting: str, counts: ReadCounts, text_field: str
) -> Iterator[sentences.Unit]:
    """Yields the paragraphs of each document and how they are split into sentences."""
    with text_files.open_text(split) as file:
        layout = layouts.find_format(_head_lines(file.head), split.path, file.head, text_field)
        if layout.has_lines:
            items = layout.items(_lines_of_split(file, split, layout, counts), counts)
        else:
            items = layout.items(file, split.path, counts)
        counts.files += split.start == 0
        others, own, undecodable = counts.bytes, counts.text_bytes, counts.undecodable_bytes
        documents = _collect(items, counts)
        if _is_seen_later(file, layout, sentence_splitting):
            yield sentences.Unit(list(documents), "auto")
        else:
            splitting = _splitting_of(file.head, layout, sentence_splitting)
            for document in documents:
                counts.bytes = others + (file.packed.done() if file.packed else counts.text_bytes - own)
                yield sentences.Unit([document], splitting)
        counts.bytes = others + (file.packed.size if file.packed else counts.text_bytes - own)
        undecodable = counts.undecodable_bytes - undecodable
        text_kinds.refuse_undecodable(split.path, undecodable, counts.text_bytes - own)
        counts.of(split.path).add(FileCounts(bytes=counts.bytes - others, undecodable_bytes=undecodable))


# ------------------------------------------------------------------------------------------------------------
# Lines


def _lines_of_split(
    file: TextFile, split: Split, layout: layouts.Format, counts: ReadCounts
) -> layouts.Lines:
    """Yields the lines from the first that opens a document in the split up to the first that does after
    it."""
    inside, part, before = split.start == 0, file.part, True
    most_bytes = _MOST_JSON_BYTES if layout.needs_whole_lines else _MOST_LINE_BYTES
    for place, block in lines.read_blocks(file.text, part, most_bytes):
        if inside and place is not None and not _is_behind(place + len(block) - 1, part.end):
            text = _plain_text_of(block)
            if text is not None:
                yield from _usual_lines(block, text, layout, counts)
                before = True
                continue
        for offset, line in lines.each_of(block, place):
            content, undecodable = _decoded(line, layout.strip)
            opens = offset is not None and not (undecodable and not content) and layout.opens(content)
            if (opens or not inside) and _is_behind(offset, part.end):
                return
            inside = inside or opens
            if inside:
                text_kinds.refuse_zeros(split.path, line)
                counts.text_bytes += len(line)
                counts.undecodable_bytes += undecodable
                counts.skipped_lines += undecodable > 0 and not content
                counts.cut_lines += offset is None and before
                yield opens, content
            before = offset is not None


def _usual_lines(block: bytes, text: str, layout: layouts.Format, counts: ReadCounts) -> layouts.Lines:
    """Yields the lines of a block of whole lines, `text` when it is decoded: nearly all there are."""
    opens_document, strip = layout.opens, layout.strip
    sizes = [len(line) + 1 for line in block.split(b"\n")]
    sizes[-1] -= 1  # no line feed is behind the last one; where the block ends with one, nothing is
    for size, line in zip(sizes, text.split("\n")):
        if size:
            content = strip(line)
            counts.text_bytes += size
            yield opens_document(content), content


def _plain_text_of(block: bytes) -> str | None:
    """Returns the text of whole lines; None where it is no UTF-8, or has a NUL byte."""
    if b"\0" in block:
        return None
    try:
        return block.decode()
    except UnicodeDecodeError:
        return None


def _is_behind(offset: int | None, end: int | None) -> bool:
    return offset is not None and end is not None and offset >= end


def _decoded(line: bytes, strip: Callable[[str], str]) -> tuple[str, int]:
    """Returns the text as `strip` leaves it without the bytes that are not UTF-8, and their number."""
    try:
        return strip(line.decode()), 0
    except UnicodeDecodeError:
        text, dropped = _UNDECODABLE.subn("", line.decode("utf-8", "surrogateescape"))
        return strip(text), dropped


def _head_lines(head: bytes) -> Iterator[str]:
    """Yields the lines that are not blank and, if there is another, not cut off at the end."""
    found = head.decode("utf-8", "ignore").split("\n")
    whole = found[:-1] if len(head) == text_kinds.HEAD_BYTES and len(found) > 1 else found
    return filter(None, map(layouts.strip, whole))


def _most_small_bytes() -> int:
    """Returns from how many bytes on a file may have more than a head, or lines or documents that are cut."""
    return min(text_kinds.HEAD_BYTES, _MOST_LINE_BYTES, _MOST_CHARACTERS)


def _is_seen_later(file: TextFile, layout: layouts.Format, sentence_splitting: str) -> bool:
    """Tells whether all of the text is what decides on how it is split: then one call of the splitter does
    both, for many small files at once."""
    is_small = len(file.head) < _most_small_bytes() and file.part.start == 0
    return sentence_splitting == "auto" and layout.may_hold_sentences and is_small and file.part.end is None


def _splitting_of(head: bytes, layout: layouts.Format, sentence_splitting: str) -> str:
    if sentence_splitting != "auto":
        return sentence_splitting
    if not layout.may_hold_sentences:
        return "always"
    paragraphs = layout.plain(list(_head_lines(head)))
    found = sum(map(len, sentences.split_paragraphs(paragraphs)))
    return "always" if sentences.hold_paragraphs(found, len(paragraphs)) else "never"


def _collect(items: layouts.Items, counts: ReadCounts) -> Iterator[list[str]]:
    """Puts paragraphs together to documents, [] for one without any; cuts those that are too long."""
    document: list[str] = []
    characters, begun, cut = 0, False, False
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
