"""Text files: detects their kind, splits them for parallel reading, and opens them."""

from __future__ import annotations

import bz2
import codecs
import contextlib
import dataclasses
import functools
import gzip
import hashlib
import io
import itertools
import json
import lzma
import os
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import BinaryIO, NamedTuple

from official.data.text import parquet_files
from official.io import files, jobs, json_files
from official.io.errors import ConfigError, how_to_install

# -----------------------------------------------------------------------------------------------------------
# Kinds of files
#
# Files that are not text are refused by name, with their kind and advice; nothing is guessed.


HEAD_BYTES = 1 << 16  # of a file, decompressed, are looked at
MAX_UNDECODABLE = 0.01  # of the bytes of a part of a file; what has more is not UTF-8
_PARQUET = b"PAR1"
_ARCHIVES = {b"PK\x03\x04": "zip", b"PK\x05\x06": "zip", b"7z\xbc\xaf": "7z"}
_BINARY = {
    b"\x89PNG": "a PNG picture",
    b"\xff\xd8\xff": "a JPEG picture",
    b"GIF8": "a GIF picture",
    b"%PDF-": "a PDF file",
    b"\x93NUMPY": "a NumPy array",
    b"\x89HDF": "an HDF5 file",
    b"\x7fELF": "a program",
    _PARQUET: "a Parquet file inside of a compressed one",
    b"SQLite format 3\0": "an SQLite database",
    b"Rar!": "a RAR archive",
    b"\x80\x04\x95": "a Python pickle",
    b"\xd0\xcf\x11\xe0": "an Office file",
}
_WEB_PAGE = re.compile(rb"(?:\xef\xbb\xbf)?\s*<(?:!doctype\s+html|html)[\s>]", re.IGNORECASE)
_BYTE_ORDER_MARKS = {  # that of UTF-32LE begins with that of UTF-16LE
    codecs.BOM_UTF32_LE: "UTF-32",
    codecs.BOM_UTF32_BE: "UTF-32",
    codecs.BOM_UTF16_LE: "UTF-16",
    codecs.BOM_UTF16_BE: "UTF-16",
}
_ARRAY_START = re.compile(r'\[\s*(?:\{\s*["}]|\]\s*$)')
_TEXTS_START = re.compile(r'\[\s*(?=")')


def is_parquet(head: bytes) -> bool:
    """Tells whether a file that begins so is a Parquet file."""
    return head.startswith(_PARQUET)


def _find_start(head: bytes, kinds: Mapping[bytes, str]) -> str | None:
    return next((name for start, name in kinds.items() if head.startswith(start)), None)


def refuse_archive(path: str, head: bytes) -> None:
    """Raises ConfigError for an archive or an unsupported compression, by the first bytes on disk."""
    if name := _find_start(head, _ARCHIVES):
        allowed = "plain text, or text compressed with gzip, bzip2, xz or zstd"
        raise ConfigError(f"{path} is a {name} archive. Allowed: {allowed}.")


def refuse_binary(path: str, head: bytes) -> None:
    """Raises ConfigError for a file whose decompressed first bytes are not those of text in UTF-8, or are a
    pointer of Git LFS or a web page."""
    if pointer := files.describe_pointer(head):
        raise ConfigError(f"{path} {pointer}.")
    if encoding := _find_start(head, _BYTE_ORDER_MARKS):
        raise _not_utf8(path, f"{encoding} text (by its byte order mark)", encoding)
    if kind := _find_start(head, _BINARY) or (head.startswith(b"ustar", 257) and "a tar archive"):
        raise ConfigError(f"{path} is {kind}, not text. Leave it out of --input_files.")
    if _WEB_PAGE.match(head):
        told = "is a web page (HTML), whose mark-up is not text. Extract its text"
        raise ConfigError(f"{path} {told}, or leave it out of --input_files.")
    if b"\0" in head:
        even, odd = (part.count(0) / max(len(part), 1) for part in (head[::2], head[1::2]))
        for name, many, few in (("UTF-16LE", odd, even), ("UTF-16BE", even, odd)):
            if many > 0.3 > 4 * few:
                raise _not_utf8(path, f"{name} text (every second byte is NUL)", name)
        raise ConfigError(f"{path} holds NUL bytes: it is binary, not text. Leave it out of --input_files.")


def refuse_zeros(path: str, line: bytes) -> None:
    """Raises ConfigError for a line of a file with a NUL byte, which no text has."""
    if b"\0" in line:
        what = "holds NUL bytes after its beginning: it is damaged, or not text"
        raise ConfigError(f"{path} {what}. Repair it, or leave it out of --input_files.")


def refuse_undecodable(path: str, undecodable: int, num_bytes: int) -> None:
    """Raises ConfigError where more than MAX_UNDECODABLE of the bytes of a part of a file are not UTF-8."""
    if undecodable > MAX_UNDECODABLE * num_bytes:
        found = f"not UTF-8 text: {undecodable:,} of {num_bytes:,} bytes cannot be decoded"
        raise _not_utf8(path, f"{found}; it may be Latin-1 or Windows-1252", "WINDOWS-1252")


def _not_utf8(path: str, found: str, encoding: str) -> ConfigError:
    convert = f"Convert it to UTF-8 (iconv -f {encoding} -t UTF-8)"
    return ConfigError(f"{path} is {found}. {convert}, or leave it out of --input_files.")


def is_json_array(head: bytes) -> bool:
    """Tells whether a file that begins so is one JSON array of objects or of texts; text in brackets is
    not."""
    if not head.lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"["):  # as nearly all do not
        return False
    text = head.decode("utf-8", "ignore").lstrip("\ufeff \t\r\n")
    if not (begins := _TEXTS_START.match(text)):
        return _ARRAY_START.match(text) is not None
    try:
        _, end = json.JSONDecoder().raw_decode(text, begins.end())
    except ValueError:
        return len(head) >= HEAD_BYTES  # a first text that is longer than what is looked at
    return text[end:].lstrip()[:1] in (",", "]")


# -----------------------------------------------------------------------------------------------------------
# Compressed files


_PACKED_BYTES = 1 << 16  # are read, and made of them, at once
_BUFFER_BYTES = 1 << 20
_COMPRESSED = re.compile(
    rb"(?P<gzip>\x1f\x8b\x08)|(?P<bzip2>BZh[1-9](?:1AY&SY|\x17rE8P\x90))|(?P<xz>\xfd7zXZ\x00)"
    rb"|(?P<zstd>\x28\xb5\x2f\xfd|[\x50-\x5f]\x2a\x4d\x18)"  # the second: frames without text
)


class DamagedError(Exception):
    """Compressed data that cannot be decompressed."""


def compression_of(magic: bytes) -> str | None:
    """Returns gzip, bzip2, xz or zstd for a compressed file that begins so; None for another. bzip2 has
    blocks that can be read alone."""
    found = _COMPRESSED.match(magic)
    return found and found.lastgroup


def _new_zstd():
    """Returns a decompressor of one frame, with the methods of those of bz2 and lzma."""
    try:
        from backports import zstd  # late: what Python 3.14 has itself
    except ImportError:
        what = "text that is compressed with zstd needs the package backports.zstd"
        raise ConfigError(f"{what}: {how_to_install('zstd')}, or give the text decompressed.") from None
    # log2 of bytes: other people's corpora are made with --long=31.
    return zstd.ZstdDecompressor(options={zstd.DecompressionParameter.window_log_max: 31})


def _decompressed(file: BinaryIO, new_stream: Callable) -> Iterator[bytes]:
    """Yields the text of a file of one stream or several. lzma.LZMAFile passes over a second stream that is
    damaged."""
    file.seek(0)
    stream, packed = new_stream(), b""
    while True:
        if stream.eof:
            packed = stream.unused_data.lstrip(b"\0")  # zeros may fill a file up
            while not packed and (more := file.read(_PACKED_BYTES)):
                packed = more.lstrip(b"\0")
            if not packed:
                return
            stream = new_stream()
        elif stream.needs_input:
            if not (packed := file.read(_PACKED_BYTES)):
                raise DamagedError("it ends in the middle of a stream")
        else:
            packed = b""
        try:
            text = stream.decompress(packed, _PACKED_BYTES)
        except MemoryError:
            raise
        except Exception as error:  # each library has its own
            raise DamagedError(error) from None
        yield text


class _MadeText(files.Raw):
    """A text that is generated while it is read: it can only be rewound to its start."""

    def __init__(self, make: Callable[[], Iterator[bytes]]):
        """Takes a maker of the parts of the text."""
        super().__init__()
        self._make = make
        self.seek(0)

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        if offset or whence != io.SEEK_SET:
            raise io.UnsupportedOperation("only the start can be gone back to")
        self._parts, self._left, self._position = self._make(), memoryview(b""), 0
        return 0

    def readinto(self, buffer) -> int:
        while not self._left:
            if (part := next(self._parts, None)) is None:
                return 0
            self._left = memoryview(part)
        size = min(len(buffer), len(self._left))
        buffer[:size], self._left = self._left[:size], self._left[size:]
        self._position += size
        return size


# -----------------------------------------------------------------------------------------------------------
# bzip2
#
# A bzip2 file is one stream or several, and a stream is blocks of up to 900 kB of text that are compressed
# one by one. A block begins with 48 bits that are looked for, at any bit of a byte. It is decompressed as a
# stream of its own: with a header before it and the end of a stream behind it, whose checksum is that of
# the block.
#
# The 48 bits may also occur inside a block, about once in 30 TB. Decompressing decides: no part of a block
# is one.
#
# indexed_bzip2 and rapidgzip, which decompress one file in threads, know a position in the text only once all
# of the text before it has been decompressed: every job would do that once more before its first task.


_BLOCK, _END = 0x314159265359, 0x177245385090
_MARK_BITS, _SUM_BITS = 48, 32
_CHUNK_BYTES = 1 << 18  # are read and looked through at once: about a block
_MAX_BLOCK_BYTES = 1 << 22  # packed; text that does not compress takes 1 MB


class _Mark(NamedTuple):
    """Apparent beginning of a block or of the end of a stream, in bits of the file."""

    bit: int
    is_end: bool


# For each number of bits by which a mark is shifted: the five bytes that it fills.
_SHIFTED = itertools.product((_BLOCK, _END), range(8))
_FILLED_BYTES = [(mark, shift, (mark << 8 - shift).to_bytes(7, "big")[1:6]) for mark, shift in _SHIFTED]


def find_marks(data: bytes) -> list[_Mark]:
    """Returns the marks that lie whole in some bytes, in order; bit 0 is the highest of the first byte."""
    found: list[_Mark] = []
    padded = data + b"\0"
    for mark, shift, filled in _FILLED_BYTES:
        place = padded.find(filled, 1)
        while place > 0:
            bits = int.from_bytes(padded[place - 1 : place + 6], "big") >> (8 - shift)
            bit = 8 * (place - 1) + shift
            if bits & ((1 << _MARK_BITS) - 1) == mark and bit <= 8 * len(data) - _MARK_BITS:
                found.append(_Mark(bit, mark == _END))
            place = padded.find(filled, place + 1)
    return sorted(found)


def _marks_from(file: BinaryIO, place: int) -> Iterator[_Mark]:
    """Yields the marks from a byte on, in order, up to the end of the file, or until a block after the last
    one would be too long; a few hundred kB are in memory, whatever lies before the first."""
    data, last = b"", -1
    while last < 0 or place <= last // 8 + 2 * _MAX_BLOCK_BYTES:
        file.seek(place)  # another one may have read
        if not (more := file.read(_CHUNK_BYTES)):
            return
        data, place = data[-_MARK_BITS // 8 :] + more, place + len(more)
        start = 8 * (place - len(data))
        for bit, is_end in find_marks(data):
            if start + bit > last:
                last = start + bit
                yield _Mark(last, is_end)


def _bits(file: BinaryIO, first: int, end: int) -> int:
    """Returns bits of a file as a number. Raises DamagedError where it ends before."""
    file.seek(first // 8)
    size = -(-end // 8) - first // 8
    data = file.read(size)
    if len(data) < size:
        raise DamagedError("it ends in the middle of a stream")
    return int.from_bytes(data, "big") >> (-end % 8) & ((1 << (end - first)) - 1)


def read_bzip2_blocks(file: BinaryIO, start: int) -> Iterator[tuple[int, bytes]]:
    """Yields (byte in which a block begins, text of it) of the blocks that begin at or behind a byte.

    Raises:
      DamagedError: where one cannot be decompressed, or the file is not whole up to its next block.
    """
    marks = _marks_from(file, start)
    combined: int | None = None  # checksum of the stream, where its beginning was read
    if start == 0:
        bit, combined = _stream_at(file, 0), 0
    else:
        bit = next((mark.bit for mark in marks if not mark.is_end), None)
    while bit is not None:
        text, end, block_sum = _read_block(file, bit, marks)
        yield bit // 8, text
        if combined is not None:
            combined = (combined << 1 & 0xFFFFFFFF | combined >> 31) ^ block_sum
        bit = end.bit
        if end.is_end:
            bit, combined = _stream_at(file, _end_of_stream(file, bit, combined)), 0
            marks = _marks_from(file, (bit or 0) // 8)


def _read_block(file: BinaryIO, bit: int, marks: Iterator[_Mark]) -> tuple[bytes, _Mark, int]:
    """Returns the text of the block that begins at `bit`, the mark behind it, and its checksum."""
    following = (mark for mark in marks if mark.bit > bit)
    end = next(following, None)
    if end is None and file.seek(0, io.SEEK_END) <= bit // 8 + _MAX_BLOCK_BYTES:
        raise DamagedError(f"it ends in the middle of the block at byte {bit // 8:,}")
    while end is not None and end.bit - bit <= 8 * _MAX_BLOCK_BYTES:
        text, block_sum = _decompress(_bits(file, bit, end.bit), end.bit - bit)
        if text is not None:
            return text, end, block_sum
        end = next(following, None)
    raise DamagedError(f"the block at byte {bit // 8:,} cannot be decompressed")


def _end_of_stream(file: BinaryIO, bit: int, combined: int | None) -> int:
    """Returns the byte behind the stream whose end begins at `bit`; checks its checksum where it is known."""
    end = bit + _MARK_BITS + _SUM_BITS
    if _bits(file, bit + _MARK_BITS, end) != combined and combined is not None:
        raise DamagedError(f"the checksum of the stream that ends at byte {end // 8:,} is wrong")
    return -(-end // 8)


def _stream_at(file: BinaryIO, byte: int) -> int | None:
    """Returns the first block of the stream that begins at a byte or behind zeros that fill the file up, or
    of one after it; None where the file ends."""
    while True:
        file.seek(byte)
        while (data := file.read(_CHUNK_BYTES)) and not data.strip(b"\0"):
            byte += len(data)
        if not data:
            return None
        byte += len(data) - len(data.lstrip(b"\0"))
        file.seek(byte)
        if not re.match(rb"BZh[1-9]", file.read(4)):
            raise DamagedError(f"no stream begins at byte {byte:,}")
        first = 8 * (byte + 4)
        mark = _bits(file, first, first + _MARK_BITS)
        if mark == _BLOCK:
            return first
        if mark != _END:
            raise DamagedError(f"the stream at byte {byte:,} begins with no block")
        byte = _end_of_stream(file, first, 0)


def _decompress(block: int, num_bits: int) -> tuple[bytes | None, int]:
    """Returns the text of a block, None where it is none, and its checksum."""
    block_sum = block >> (num_bits - _MARK_BITS - _SUM_BITS) & 0xFFFFFFFF if num_bits > 80 else 0
    length = num_bits + _MARK_BITS + _SUM_BITS
    stream = (block << _MARK_BITS | _END) << _SUM_BITS | block_sum
    packed = b"BZh9" + (stream << (-length % 8)).to_bytes(-(-length // 8), "big")
    decompressor = bz2.BZ2Decompressor()
    try:
        text = decompressor.decompress(packed)
    except OSError:
        return None, 0
    return (text, block_sum) if decompressor.eof and not decompressor.unused_data else (None, 0)


class BlockText(_MadeText):
    """The text of the blocks of a file from a byte on.

    A line belongs to the block with the line feed before it, so that the lines of a split are known without
    the previous block. So position 1 of this text, behind the line feed in its first byte, is the first at
    which a line of the split may begin, and 0 where the file begins.
    """

    def __init__(self, file: BinaryIO, start: int, end: int | None):
        self.start = min(start, 1)
        self.end: int | None = None  # from which position on lines belong to later splits, once it is read
        super().__init__(functools.partial(self._texts, file, start, end))

    def _texts(self, file: BinaryIO, start: int, end: int | None) -> Iterator[bytes]:
        position = 0
        for byte, text in read_bzip2_blocks(file, start):
            if self.end is None and end is not None and byte >= end:
                self.end = position + 1
            position += len(text)
            yield text


# -----------------------------------------------------------------------------------------------------------
# Lines


_BLOCK_BYTES = 1 << 16  # are read at once, and the rest of the last line
_LINE = re.compile(rb"[^\n]*\n|[^\n]+")
_TO_LINE_FEEDS = bytes.maketrans(b"\r", b"\n")


class LineFeeds(files.Raw):
    """A text with line feeds for carriage returns, each byte in its place."""

    def __init__(self, text: BinaryIO):
        super().__init__()
        self._text = text

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        return self._text.seek(offset, whence)

    def readinto(self, buffer) -> int:
        data = self._text.read(len(buffer)).translate(_TO_LINE_FEEDS)
        buffer[: len(data)] = data
        return len(data)


def read_blocks(
    text: BinaryIO, part: Split | BlockText, most_bytes: int
) -> Iterator[tuple[int | None, bytes]]:
    """Yields (offset, bytes) of whole lines, many at a time: those that start in the part and all lines after
    them.

    A line of more than `most_bytes` comes in pieces, one at a time, cut at white space where there is any
    near; all pieces but the first have the offset None. Nothing is yielded where no line starts in the part.
    """
    if (position := _seek_line(text, part, most_bytes)) is None:
        return
    while block := text.read(min(_BLOCK_BYTES, most_bytes)):
        last = block.rfind(b"\n") + 1  # where the line begins that may go on
        if last < len(block):
            block += text.readline(most_bytes - (len(block) - last))
        if block.endswith(b"\n") or len(block) - last < most_bytes:
            yield position, block
            position += len(block)
            continue
        if last:
            yield position, block[:last]
        position, piece = position + last, block[last:]
        offset: int | None = position
        while len(piece) == most_bytes and not piece.endswith(b"\n"):
            cut = _find_cut(piece)
            yield offset, piece[:cut]
            offset, position = None, position + cut
            piece = piece[cut:] + text.readline(most_bytes - (len(piece) - cut))
        if piece:
            yield offset, piece
            position += len(piece)


def each_of(block: bytes, offset: int | None) -> Iterator[tuple[int | None, bytes]]:
    """Yields (offset, bytes) of each line of a block that has an offset; of one without, the block."""
    if offset is None:
        yield None, block
    else:
        yield from ((offset + found.start(), found[0]) for found in _LINE.finditer(block))


def _seek_line(text: BinaryIO, part: Split | BlockText, most_bytes: int) -> int | None:
    """Goes to the first line that starts in the part and returns its offset, or None where there is none."""
    if part.start == 0:
        return 0
    text.seek(part.start - 1)
    position = part.start - 1
    while piece := text.readline(most_bytes):
        position += len(piece)
        if part.end is not None and position >= part.end:
            return None
        if piece.endswith(b"\n"):
            return position
    return None


def _find_cut(piece: bytes) -> int:
    """Returns the place to cut a piece of a line: after white space, or at least not inside a character."""
    space = max(piece.rfind(white, len(piece) - 4096) for white in (b" ", b"\t"))
    if space >= 0:
        return space + 1
    start = len(piece) - 1
    while start > len(piece) - 4 and piece[start] & 0xC0 == 0x80:  # not the first byte of a character
        start -= 1
    return max(start, 1)


# -----------------------------------------------------------------------------------------------------------
# Files


_WHOLE_BYTES = 3 << 16  # of a file that is told from others by all it holds, not by samples
_MAX_OPENED = 20_000  # files that are told from others by what they hold
TEXT_OF_PACKED = 4  # bytes of text in a byte of bzip2, of English text


@dataclasses.dataclass(frozen=True)
class Split:
    """Part of a file: the bytes from `start` up to `end`, or to the end of the file. Of bzip2 it stands for
    the blocks that begin in it, of Parquet for the row groups; other compressed files are one split."""

    path: str
    start: int = 0
    end: int | None = None
    state: str | None = dataclasses.field(default=None, compare=False)  # of the file, see `files.states`


def read_in_part(splits: Iterable[Split]) -> set[str]:
    """Returns the files of which only a part is read."""
    return {split.path for split in splits if split.start or split.end is not None}


@dataclasses.dataclass(frozen=True)
class TextFile:
    """An open split of a text file."""

    text: BinaryIO  # decompressed, its lines end in line feeds
    part: Split | BlockText  # `start` and `end`: positions in `text` at which the lines of the split begin
    head: bytes  # the first bytes of the text of the file; of Parquet of the file itself
    packed: Packed | None  # where the text is not the file's bytes


class Packed:
    """Progress of reading a split of a compressed file."""

    def __init__(self, file: BinaryIO, split: Split):
        self._file, self._start = file, split.start
        self.size = (file.seek(0, io.SEEK_END) if split.end is None else split.end) - split.start
        file.seek(0)

    def done(self) -> int:
        """Returns the bytes of the split that were read."""
        return min(max(self._file.tell() - self._start, 0), self.size)


# ------------------------------------------------------------------------------------------------------------
# Search


CORPUS = "corpus.json"  # what `bert data corpus` writes beside its two sides
_TABLE = re.compile(r"\.(?:csv|tsv)(?:\.(?:gz|bz2|xz|zst))?$", re.IGNORECASE)


def find_texts(patterns: str, flag: str = "input_files") -> list[str]:
    """Returns the files that names, globs and folders of text stand for, see `files.find_files`.

    Raises:
      ConfigError: also for a table, and where a job of this program tells of its own files beside them: in
        its folder the text to train on and the text that is held out lie side by side.
    """
    paths = files.find_files(patterns, flag)
    for path in paths:
        if _TABLE.search(path):
            raise ConfigError(
                f"--{flag}: {path} is a table, all columns of which would be text. Write it as JSON lines or"
                " Parquet, and name the column with --text_field."
            )
        folder, name = os.path.split(path)
        if name not in (jobs.MANIFEST, CORPUS):
            continue
        told = json_files.read_json_or_empty(path)
        if "job" in told or {"sources", "eval_share"} <= told.keys():
            side = "train.txt" if name == CORPUS else "train"
            raise ConfigError(
                f"--{flag}: {path} is not text: it describes the texts in its folder, one to train on and"
                f" one to evaluate on. Give one of these, such as {os.path.join(folder, side)}."
            )
    return paths


# ------------------------------------------------------------------------------------------------------------
# Parts of files


def _bounds(path: str, size: int, split_bytes: int) -> tuple[list[int], int]:
    """Returns the beginnings and ends of a file's splits, and the bytes of text in one of its bytes."""
    with open_text(Split(path)) as file:
        if is_parquet(file.head):
            return parquet_files.bounds(file.text, path, size, split_bytes // TEXT_OF_PACKED), TEXT_OF_PACKED
        if is_json_array(file.head) or file.packed and not isinstance(file.part, BlockText):
            return [0, size], 1
        weight = TEXT_OF_PACKED if file.packed else 1
    count = max(1, -(-size * weight // split_bytes))
    return [size * number // count for number in range(count + 1)], weight


def plan_tasks(sizes: dict[str, int], most: int, states: dict[str, str] | None = None) -> list[list[Split]]:
    """Deals files, {file: its bytes}, out to tasks of at most `most` bytes of text: parts of a large file, or
    files that follow each other and are small. `states`, of `files.states` before anything was read, lets
    the tasks find out that a file was changed meanwhile. Raises ConfigError where all files are empty."""
    if sizes and not any(sizes.values()):
        others = f", and so are {len(sizes) - 1:,} others" if len(sizes) > 1 else ""
        raise ConfigError(f"--input_files: {next(iter(sizes))} is empty (0 bytes){others}. Give text.")
    tasks: list[list[Split]] = []
    left = 0
    for path, size in sizes.items():
        bounds, weight = [0, size], 1
        if size > most // TEXT_OF_PACKED:
            bounds, weight = _bounds(path, size, most)
        for start, end in zip(bounds, bounds[1:]):
            text_bytes = (end - start) * weight
            if not tasks or text_bytes > left:
                tasks.append([])
                left = most
            state = states[path] if states else None
            tasks[-1].append(Split(path, start, None if end == size else end, state))
            left -= text_bytes
    return tasks


# ------------------------------------------------------------------------------------------------------------
# Identity


def identify(paths: Iterable[str], versions: list[tuple[int, int]] | None = None) -> dict[str, str]:
    """Returns a fingerprint of each file: size and samples, and the time of the last change if these are not
    the whole content. Of a file in a store it is size and time. Of very many files it is one digest of names,
    sizes and times: to open all of them once more would take as long as to read them.

    Args:
      versions: as `files.versions` returns them, where they are known.

    Raises:
      ConfigError: for a file that cannot be read, or begins as no text does; of very many that is found when
        they are read.
    """
    paths = list(paths)
    known = dict(zip(paths, versions or files.versions(paths)))
    described = {path: "{} bytes, {}".format(*version) for path, version in known.items()}
    if len(paths) > _MAX_OPENED:
        digest = hashlib.blake2b(digest_size=16)
        for each in described.items():
            digest.update("\0".join([*each, ""]).encode("utf-8", "surrogateescape"))
        return {f"all {len(paths):,} files": digest.hexdigest()}
    here = [path for path in paths if not files.is_remote(path)]
    with ThreadPoolExecutor(8) as threads:
        return {**described, **dict(zip(here, threads.map(lambda path: _identity(path, *known[path]), here)))}


def _identity(path: str, size: int, changed: int) -> str:
    """Returns the identity of a file of this machine."""
    content = files.samples(path, size, _WHOLE_BYTES)
    refuse_archive(path, content)
    if not compression_of(content) and not is_parquet(content):
        refuse_binary(path, content[: 1 << 16])
    digest = hashlib.blake2b(content, digest_size=16)
    return f"{size} bytes, {digest.hexdigest()}" + (f", {changed}" if size > _WHOLE_BYTES else "")


# ------------------------------------------------------------------------------------------------------------
# Opening


@contextlib.contextmanager
def open_text(split: Split) -> Iterator[TextFile]:
    """Opens a split of a text file, decompressed according to its content, not its name.

    Raises:
      ConfigError: here and in the block, for a file that cannot be read or begins as no text does, and for a
        compressed one that is truncated or damaged. The missing part of such a file is unknown, and training
        on an unknown part of the text is worse than a failed job.
    """
    path = split.path
    with files.naming(path):
        try:
            with files.open_binary(path) as file:
                magic = file.read(10)  # bytes that tell how it is compressed
                file.seek(0)
                refuse_archive(path, magic)
                yield _opened(file, magic, split)
        except (DamagedError, EOFError, zlib.error, gzip.BadGzipFile) as error:
            told = f"{path} is a truncated or damaged compressed file: {error}"
            raise ConfigError(f"{told}. Fetch or write it again, or leave it out.") from None


def _opened(file: BinaryIO, magic: bytes, split: Split) -> TextFile:
    if is_parquet(magic):
        return TextFile(file, split, magic, None)
    compression = compression_of(magic)
    text, packed = file, Packed(file, split) if compression else None
    part: Split | BlockText = split
    if compression == "bzip2":
        part = BlockText(file, split.start, split.end)
        text = io.BufferedReader(part, _BUFFER_BYTES)
    elif compression == "gzip":
        text = io.BufferedReader(gzip.GzipFile(fileobj=file), _BUFFER_BYTES)
    elif compression:
        new_stream: Callable = lzma.LZMADecompressor if compression == "xz" else _new_zstd
        text = io.BufferedReader(_MadeText(functools.partial(_decompressed, file, new_stream)), _BUFFER_BYTES)
    if compression and split.start:
        head = _head_of(split.path, files.version(split.path))
    else:
        head = text.read(HEAD_BYTES)
        text.seek(0)
    refuse_binary(split.path, head)
    if b"\n" not in head and b"\r" in head:
        text = io.BufferedReader(LineFeeds(text), _BUFFER_BYTES)
        head = head.translate(_TO_LINE_FEEDS)
    return TextFile(text, part, head, packed)


@functools.lru_cache(maxsize=8)
def _head_of(path: str, version: tuple[int, int]) -> bytes:
    """Returns the first bytes of the text of a bzip2 file, once for its splits."""
    del version  # another one is another file
    with files.open_binary(path) as file:
        return io.BufferedReader(BlockText(file, 0, None), HEAD_BYTES).read(HEAD_BYTES)
