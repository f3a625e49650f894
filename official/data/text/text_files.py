"""Detects the kind of text files, splits them for parallel reading, and opens them."""

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
# Other files than text are refused, with their path, kind and advice; nothing is guessed.


HEAD_BYTES = 1 << 16  # first bytes of a decompressed file that are inspected
MAX_UNDECODABLE = 0.01  # share of the bytes of a part of a file; with more, it is not UTF-8
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
_BYTE_ORDER_MARKS = {  # the one of UTF-32LE begins with the one of UTF-16LE
    codecs.BOM_UTF32_LE: "UTF-32",
    codecs.BOM_UTF32_BE: "UTF-32",
    codecs.BOM_UTF16_LE: "UTF-16",
    codecs.BOM_UTF16_BE: "UTF-16",
}
_ARRAY_START = re.compile(r'\[\s*(?:\{\s*["}]|\]\s*$)')
_TEXTS_START = re.compile(r'\[\s*(?=")')


def is_parquet(head: bytes) -> bool:
    """Tells whether a file with these first bytes is a Parquet file."""
    return head.startswith(_PARQUET)


def _find_start(head: bytes, kinds: Mapping[bytes, str]) -> str | None:
    return next((name for start, name in kinds.items() if head.startswith(start)), None)


def refuse_archive(path: str, head: bytes) -> None:
    """Raises ConfigError for an archive or an unsupported compression, by the first bytes on disk."""
    if name := _find_start(head, _ARCHIVES):
        allowed = "plain text, or text compressed with gzip, bzip2, xz or zstd"
        raise ConfigError(f"{path} is a {name} archive. Allowed: {allowed}.")


def refuse_binary(path: str, head: bytes) -> None:
    """Raises ConfigError if the decompressed first bytes of a file are not UTF-8 text, or if they are a Git
    LFS pointer or a web page."""
    if pointer := files.describe_pointer(head):
        raise ConfigError(f"{path} {pointer}.")
    if encoding := _find_start(head, _BYTE_ORDER_MARKS):
        raise _not_utf8(path, f"{encoding} text (by its byte order mark)", encoding)
    if kind := _find_start(head, _BINARY) or (head.startswith(b"ustar", 257) and "a tar archive"):
        raise ConfigError(f"{path} is {kind}, not text. Leave it out of --input_files.")
    if _WEB_PAGE.match(head):
        problem = "is a web page (HTML), whose mark-up is not text. Extract its text"
        raise ConfigError(f"{path} {problem}, or leave it out of --input_files.")
    if b"\0" in head:
        even, odd = (part.count(0) / max(len(part), 1) for part in (head[::2], head[1::2]))
        for name, many, few in (("UTF-16LE", odd, even), ("UTF-16BE", even, odd)):
            if many > 0.3 > 4 * few:
                raise _not_utf8(path, f"{name} text (every second byte is NUL)", name)
        raise ConfigError(f"{path} holds NUL bytes: it is binary, not text. Leave it out of --input_files.")


def refuse_zeros(path: str, line: bytes) -> None:
    """Raises ConfigError for a line with a NUL byte, which text does not have."""
    if b"\0" in line:
        what = "holds NUL bytes after its beginning: it is damaged, or not text"
        raise ConfigError(f"{path} {what}. Repair it, or leave it out of --input_files.")


def refuse_undecodable(path: str, undecodable: int, num_bytes: int) -> None:
    """Raises ConfigError if more than MAX_UNDECODABLE of the bytes of a part of a file are not UTF-8."""
    if undecodable > MAX_UNDECODABLE * num_bytes:
        found = f"not UTF-8 text: {undecodable:,} of {num_bytes:,} bytes cannot be decoded"
        raise _not_utf8(path, f"{found}; it may be Latin-1 or Windows-1252", "WINDOWS-1252")


def _not_utf8(path: str, found: str, encoding: str) -> ConfigError:
    convert = f"Convert it to UTF-8 (iconv -f {encoding} -t UTF-8)"
    return ConfigError(f"{path} is {found}. {convert}, or leave it out of --input_files.")


def is_json_array(head: bytes) -> bool:
    """Tells whether a file with these first bytes is a JSON array of objects or texts, and not text in
    brackets."""
    if not head.lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"["):  # the usual case
        return False
    text = head.decode("utf-8", "ignore").lstrip("\ufeff \t\r\n")
    if not (begins := _TEXTS_START.match(text)):
        return _ARRAY_START.match(text) is not None
    try:
        _, end = json.JSONDecoder().raw_decode(text, begins.end())
    except ValueError:
        return len(head) >= HEAD_BYTES  # a first text that is longer than the head
    return text[end:].lstrip()[:1] in (",", "]")


# -----------------------------------------------------------------------------------------------------------
# Compressed files


_PACKED_BYTES = 1 << 16  # compressed bytes that are read at once, and maximum of decompressed bytes
_BUFFER_BYTES = 1 << 20
_COMPRESSED = re.compile(
    rb"(?P<gzip>\x1f\x8b\x08)|(?P<bzip2>BZh[1-9](?:1AY&SY|\x17rE8P\x90))|(?P<xz>\xfd7zXZ\x00)"
    rb"|(?P<zstd>\x28\xb5\x2f\xfd|[\x50-\x5f]\x2a\x4d\x18)"  # the second alternative: frames without text
)


class DamagedError(Exception):
    """Error for compressed data that cannot be decompressed."""


def compression_of(magic: bytes) -> str | None:
    """Returns gzip, bzip2, xz or zstd for a compressed file with these first bytes; None for another file.
    The blocks of bzip2 can be read independently."""
    found = _COMPRESSED.match(magic)
    return found and found.lastgroup


def _new_zstd():
    """Returns a decompressor of one frame, with the same methods as those of bz2 and lzma."""
    try:
        from backports import zstd  # late; in the standard library of Python 3.14
    except ImportError:
        what = "text that is compressed with zstd needs the package backports.zstd"
        raise ConfigError(f"{what}: {how_to_install('zstd')}, or give the text decompressed.") from None
    # log2 of bytes: some published corpora are compressed with --long=31.
    return zstd.ZstdDecompressor(options={zstd.DecompressionParameter.window_log_max: 31})


def _decompressed(file: BinaryIO, new_stream: Callable) -> Iterator[bytes]:
    """Yields the text of a file of one or several streams. lzma.LZMAFile is not used, since it ignores a
    damaged second stream."""
    file.seek(0)
    stream, packed = new_stream(), b""
    while True:
        if stream.eof:
            packed = stream.unused_data.lstrip(b"\0")  # padding
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
        except Exception as error:  # each library has its own errors
            raise DamagedError(error) from None
        yield text


class _MadeText(files.Raw):
    """A text that is generated during reading, and can only be rewound to its start."""

    def __init__(self, make: Callable[[], Iterator[bytes]]):
        """Creates a text; `make` returns an iterator over its parts."""
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
# A bzip2 file is one or several streams, and a stream is a sequence of independently compressed blocks of up
# to 900 kB of text. A block begins with a mark of 48 bits at any bit position, which is searched for. The
# block is decompressed as a separate stream, between a header and an end of a stream with the block's
# checksum.
#
# The 48 bits may also occur inside a block, about once in 30 TB. Decompression then fails, since a part of a
# block is not a valid block.
#
# indexed_bzip2 and rapidgzip, which decompress one file in threads, only know a position in the text after
# decompressing all text before it: every job would do that once more before its first task.


_BLOCK, _END = 0x314159265359, 0x177245385090
_MARK_BITS, _SUM_BITS = 48, 32
_CHUNK_BYTES = 1 << 18  # bytes that are read and searched at once: about a block
_MAX_BLOCK_BYTES = 1 << 22  # compressed; incompressible text takes 1 MB


class _Mark(NamedTuple):
    """Apparent beginning of a block or of the end of a stream; positions are bits of the file."""

    bit: int
    is_end: bool


# The five whole bytes of a mark for each number of bits by which it is shifted.
_SHIFTED = itertools.product((_BLOCK, _END), range(8))
_FILLED_BYTES = [(mark, shift, (mark << 8 - shift).to_bytes(7, "big")[1:6]) for mark, shift in _SHIFTED]


def find_marks(data: bytes) -> list[_Mark]:
    """Returns the complete marks in some bytes, in order; bit 0 is the highest bit of the first byte."""
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
    """Yields the marks from a byte on, in order, up to the end of the file, or until the block after the last
    one would be too long. Memory holds a few hundred kB, however far the first mark is."""
    data, last = b"", -1
    while last < 0 or place <= last // 8 + 2 * _MAX_BLOCK_BYTES:
        file.seek(place)  # other code may have moved the position
        if not (more := file.read(_CHUNK_BYTES)):
            return
        data, place = data[-_MARK_BITS // 8 :] + more, place + len(more)
        start = 8 * (place - len(data))
        for bit, is_end in find_marks(data):
            if start + bit > last:
                last = start + bit
                yield _Mark(last, is_end)


def _bits(file: BinaryIO, first: int, end: int) -> int:
    """Returns bits of a file as a number. Raises DamagedError if the file ends before."""
    file.seek(first // 8)
    size = -(-end // 8) - first // 8
    data = file.read(size)
    if len(data) < size:
        raise DamagedError("it ends in the middle of a stream")
    return int.from_bytes(data, "big") >> (-end % 8) & ((1 << (end - first)) - 1)


def read_bzip2_blocks(file: BinaryIO, start: int) -> Iterator[tuple[int, bytes]]:
    """Yields (byte in which a block begins, its text) of the blocks that begin at or after a byte.

    Raises:
      DamagedError: if a block cannot be decompressed, or the file is truncated before the next block.
    """
    marks = _marks_from(file, start)
    combined: int | None = None  # checksum of the stream, if read from its beginning
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
    """Returns the text of the block that begins at `bit`, the mark after it, and its checksum."""
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
    """Returns the end of the stream whose end mark begins at `bit`, in bytes; verifies its checksum if
    known."""
    end = bit + _MARK_BITS + _SUM_BITS
    if _bits(file, bit + _MARK_BITS, end) != combined and combined is not None:
        raise DamagedError(f"the checksum of the stream that ends at byte {end // 8:,} is wrong")
    return -(-end // 8)


def _stream_at(file: BinaryIO, byte: int) -> int | None:
    """Returns the first block, as a bit position, of the stream that begins at a byte, after any padding, or
    of a later stream; None at the end of the file."""
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
    """Returns the text of a block, or None if it is not a valid one, and its checksum."""
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
    the previous block. So a line of the split may begin at position 1 of this text, after a line feed in its
    first byte, or at 0 at the beginning of the file.
    """

    def __init__(self, file: BinaryIO, start: int, end: int | None):
        self.start = min(start, 1)
        self.end: int | None = None  # first position of later splits' lines, once it is read
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


_BLOCK_BYTES = 1 << 16  # bytes that are read at once, plus the rest of the last line
_LINE = re.compile(rb"[^\n]*\n|[^\n]+")
_TO_LINE_FEEDS = bytes.maketrans(b"\r", b"\n")


class LineFeeds(files.Raw):
    """A text with carriage returns replaced by line feeds, byte for byte."""

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

    A line of more than `most_bytes` is yielded in pieces, one at a time, cut at white space if there is any
    nearby; all pieces except the first have the offset None. Yields nothing if no line starts in the part.
    """
    if (position := _seek_line(text, part, most_bytes)) is None:
        return
    while block := text.read(min(_BLOCK_BYTES, most_bytes)):
        last = block.rfind(b"\n") + 1  # start of the last, possibly incomplete line
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
    """Yields (offset, bytes) of each line of a block; a block without an offset is yielded unchanged."""
    if offset is None:
        yield None, block
    else:
        yield from ((offset + found.start(), found[0]) for found in _LINE.finditer(block))


def _seek_line(text: BinaryIO, part: Split | BlockText, most_bytes: int) -> int | None:
    """Moves to the first line that starts in the part and returns its offset, or None without such a line."""
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
    """Returns the position to cut a piece of a line: after white space, or at least not inside a
    character."""
    space = max(piece.rfind(white, len(piece) - 4096) for white in (b" ", b"\t"))
    if space >= 0:
        return space + 1
    start = len(piece) - 1
    while start > len(piece) - 4 and piece[start] & 0xC0 == 0x80:  # not the first byte of a character
        start -= 1
    return max(start, 1)


# -----------------------------------------------------------------------------------------------------------
# Files


_WHOLE_BYTES = 3 << 16  # maximum size of a file whose fingerprint is of the whole content, not of samples
_MAX_OPENED = 20_000  # maximum number of files whose fingerprints are of their contents
TEXT_OF_PACKED = 4  # bytes of text per byte of bzip2, for English text


@dataclasses.dataclass(frozen=True)
class Split:
    """Part of a file: the bytes from `start` up to `end`, or to the end of the file. For bzip2 it stands for
    the blocks that begin in it, for Parquet for the row groups; other compressed files are one split."""

    path: str
    start: int = 0
    end: int | None = None
    state: str | None = dataclasses.field(default=None, compare=False)  # see `files.states`


@dataclasses.dataclass(frozen=True)
class TextFile:
    """An open split of a text file."""

    text: BinaryIO  # decompressed, its lines end in line feeds
    part: Split | BlockText  # `start` and `end`: positions in `text` at which the lines of the split begin
    head: bytes  # the first bytes of the file's text; for Parquet, of the file
    packed: Packed | None  # None if the text is the file's bytes


class Packed:
    """Progress of reading a split of a compressed file."""

    def __init__(self, file: BinaryIO, split: Split):
        self._file, self._start = file, split.start
        self.size = (file.seek(0, io.SEEK_END) if split.end is None else split.end) - split.start
        file.seek(0)

    def done(self) -> int:
        """Returns the number of bytes of the split that were read."""
        return min(max(self._file.tell() - self._start, 0), self.size)


# ------------------------------------------------------------------------------------------------------------
# Search


CORPUS = "corpus.json"  # written by `bert data corpus` next to its two sides
_TABLE = re.compile(r"\.(?:csv|tsv)(?:\.(?:gz|bz2|xz|zst))?$", re.IGNORECASE)


def find_texts(patterns: str, flag: str = "input_files") -> list[str]:
    """Returns the files of names, globs and folders of text, see `files.find_files`.

    Raises:
      ConfigError: also for a table, and for a manifest of a job of this program: its folder has both the text
        to train on and the held-out text.
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
        manifest = json_files.read_json_or_empty(path)
        if "job" in manifest or {"sources", "eval_share"} <= manifest.keys():
            side = "train.txt" if name == CORPUS else "train"
            raise ConfigError(
                f"--{flag}: {path} is not text: it describes the texts in its folder, one to train on and"
                f" one to evaluate on. Give one of these, such as {os.path.join(folder, side)}."
            )
    return paths


# ------------------------------------------------------------------------------------------------------------
# Parts of files


def _bounds(path: str, size: int, split_bytes: int) -> tuple[list[int], int]:
    """Returns the bounds of a file's splits, and the bytes of text per byte of the file."""
    with open_text(Split(path)) as file:
        if is_parquet(file.head):
            return parquet_files.bounds(file.text, path, size, split_bytes // TEXT_OF_PACKED), TEXT_OF_PACKED
        if is_json_array(file.head) or file.packed and not isinstance(file.part, BlockText):
            return [0, size], 1
        weight = TEXT_OF_PACKED if file.packed else 1
    count = max(1, -(-size * weight // split_bytes))
    return [size * number // count for number in range(count + 1)], weight


def plan_tasks(sizes: dict[str, int], most: int, states: dict[str, str] | None = None) -> list[list[Split]]:
    """Distributes files, {file: its bytes}, among tasks of at most `most` bytes of text: parts of a large
    file, or consecutive small files. With `states`, of `files.states` before reading, the tasks detect files
    that were changed meanwhile. Raises ConfigError if all files are empty."""
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
    """Returns a fingerprint of each file: size and samples, and the time of the last change unless the
    samples are the whole content. For a file in a store it is size and time. For very many files it is one
    digest of names, sizes and times, since opening each of them would take as long as reading them.

    Args:
      versions: as of `files.versions`; None: determined here.

    Raises:
      ConfigError: for a file that cannot be read, or is not text; for very many files, the job finds this
        later, when it reads them.
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
    """Returns the fingerprint of a local file."""
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
      ConfigError: here and in the block, for a file that cannot be read or is not text, and for a compressed
        one that is truncated or damaged. The size of the missing part is unknown, and training on an unknown
        part of the text is worse than a failed job.
    """
    path = split.path
    with files.naming(path):
        try:
            with files.open_binary(path) as file:
                magic = file.read(10)  # magic bytes of the compression
                file.seek(0)
                refuse_archive(path, magic)
                yield _opened(file, magic, split)
        except (DamagedError, EOFError, zlib.error, gzip.BadGzipFile) as error:
            problem = f"{path} is a truncated or damaged compressed file: {error}"
            raise ConfigError(f"{problem}. Fetch or write it again, or leave it out.") from None


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
    """Returns the first bytes of the text of a bzip2 file, cached for its splits."""
    del version  # only part of the cache's key
    with files.open_binary(path) as file:
        return io.BufferedReader(BlockText(file, 0, None), HEAD_BYTES).read(HEAD_BYTES)
