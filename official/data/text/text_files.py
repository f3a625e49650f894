"""Text files: what they are, the parts of them that are read in parallel, and how one is opened."""

import bz2
import codecs
import contextlib
import dataclasses
import functools
import gzip
import hashlib
import io
import json
import lzma
import os
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import BinaryIO, NamedTuple

import numpy as np

from official.data.text import parquet_files
from official.io import files
from official.io.errors import ConfigError, how_to_install

# -----------------------------------------------------------------------------------------------------------
# Kinds of files
#
# Whatever is not text is refused by name, with what it is and what to do; nothing is guessed into words.


HEAD_BYTES = 1 << 16  # of a file, decompressed, are looked at
MAX_UNDECODABLE = 0.01  # of the bytes of a part of a file; what has more is not UTF-8
_PARQUET = b"PAR1"
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
_ZIP_STARTS, _7Z_START = (b"PK\x03\x04", b"PK\x05\x06"), b"7z\xbc\xaf"
_UTF32_MARKS = (codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE)
_WIDE_MARKS = (*_UTF32_MARKS, codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
_STARTS = (*_BINARY, *_WIDE_MARKS, files.POINTER_START)
_TAR_PLACE, _TAR = 257, b"ustar"
_WIDE_SHARE = 0.3  # of zeros among the even or the odd bytes, from which on text is taken for UTF-16
_BRACKET = re.compile(rb"(?:\xef\xbb\xbf|[ \t\r\n])*\[")
_ARRAY_START = re.compile(r'\[\s*(?:\{\s*["}]|\]\s*$)')
_TEXTS_START = re.compile(r'\[\s*(?=")')


def is_parquet(head: bytes) -> bool:
    """Tells whether a file that begins so is a Parquet file."""
    return head.startswith(_PARQUET)


def refuse_archive(path: str, head: bytes) -> None:
    """Raises ConfigError for a file, as it lies on the disk, that is packed in a way that is not read."""
    if head.startswith((*_ZIP_STARTS, _7Z_START)):
        name = "7z" if head.startswith(_7Z_START) else "zip"
        raise ConfigError(
            f"{path} is a {name} archive. Allowed: text as it is, or compressed with gzip, bzip2, xz or zstd."
        )


def refuse_binary(path: str, head: bytes) -> None:
    """Raises ConfigError for a file whose decompressed first bytes are not those of text in UTF-8, or are a
    pointer of Git LFS."""
    kind = None
    if head.startswith(_STARTS):  # of many small files almost none does
        if pointer := files.describe_pointer(head):
            raise ConfigError(f"{path} {pointer}.")
        if head.startswith(_WIDE_MARKS):
            name = "UTF-32" if head.startswith(_UTF32_MARKS) else "UTF-16"
            raise _not_utf8(path, f"{name} text (by its byte order mark)", name)
        kind = next(name for start, name in _BINARY.items() if head.startswith(start))
    if head.startswith(_TAR, _TAR_PLACE):
        kind = "a tar archive"
    if kind:
        raise ConfigError(f"{path} is {kind}, not text. Leave it out of --input_files.")
    if b"\0" in head:
        even, odd = (part.count(0) / max(len(part), 1) for part in (head[::2], head[1::2]))
        for name, many, few in (("UTF-16LE", odd, even), ("UTF-16BE", even, odd)):
            if many > _WIDE_SHARE > 4 * few:
                raise _not_utf8(path, f"{name} text (every second byte is NUL)", name)
        raise ConfigError(f"{path} holds NUL bytes: it is binary, not text. Leave it out of --input_files.")


def refuse_zeros(path: str, line: bytes) -> None:
    """Raises ConfigError for a line of a file with a NUL byte, which no text has."""
    if b"\0" in line:
        raise ConfigError(
            f"{path} holds NUL bytes behind its beginning: it is damaged, or not text. Repair it, or leave it"
            " out of --input_files."
        )


def refuse_undecodable(path: str, undecodable: int, num_bytes: int) -> None:
    """Raises ConfigError where more than MAX_UNDECODABLE of the bytes of a part of a file are not UTF-8."""
    if undecodable > MAX_UNDECODABLE * num_bytes:
        found = f"not UTF-8 text: {undecodable:,} of {num_bytes:,} bytes cannot be decoded"
        raise _not_utf8(path, f"{found}; it may be Latin-1 or Windows-1252", "WINDOWS-1252")


def _not_utf8(path: str, found: str, encoding: str) -> ConfigError:
    return ConfigError(
        f"{path} is {found}. Convert it to UTF-8 (iconv -f {encoding} -t UTF-8), or leave it out of"
        " --input_files."
    )


def is_json_array(head: bytes) -> bool:
    """Tells whether a file that begins so is one JSON array of objects or of texts; text in brackets is
    not."""
    if not _BRACKET.match(head):
        return False
    text = head.decode("utf-8", "ignore").lstrip("\ufeff \t\r\n")
    if _ARRAY_START.match(text):
        return True
    begins = _TEXTS_START.match(text)
    if not begins:
        return False
    try:
        _, end = json.JSONDecoder().raw_decode(text, begins.end())
    except ValueError:
        return len(head) >= HEAD_BYTES  # a first text that is longer than what is looked at
    return text[end:].lstrip()[:1] in (",", "]")


# -----------------------------------------------------------------------------------------------------------
# Compressed files


MAGIC_BYTES = 10  # of a file tell how it is compressed
_PACKED_BYTES = 1 << 16  # are decompressed at once
_DECOMPRESSED_BYTES = 1 << 20
_COMPRESSED = re.compile(
    rb"(?P<gzip>\x1f\x8b\x08)|(?P<bzip2>BZh[1-9](1AY&SY|\x17rE8P\x90))|(?P<xz>\xfd7zXZ\x00)"
    rb"|(?P<zstd>\x28\xb5\x2f\xfd|[\x50-\x5f]\x2a\x4d\x18)"  # the second: frames without text
)
_MAX_ZSTD_WINDOW = 31  # log2 of bytes; other people's corpora are made with --long=31


class DamagedError(Exception):
    """Compressed data that cannot be decompressed."""


# What reading a damaged file raises.
DAMAGES = (DamagedError, EOFError, zlib.error, gzip.BadGzipFile)


def compression_of(magic: bytes) -> str | None:
    """Returns gzip, bzip2, xz or zstd for a compressed file that begins so; None for another. bzip2 has
    blocks that can be read alone."""
    found = _COMPRESSED.match(magic)
    return found and next(name for name, start in found.groupdict().items() if start)


def text_of(file: BinaryIO, magic: bytes) -> BinaryIO:
    """Returns the text of a compressed file that begins with `magic`. Raises DAMAGES while reading."""
    kind = compression_of(magic)
    if kind == "gzip":
        return io.BufferedReader(gzip.GzipFile(fileobj=file), _DECOMPRESSED_BYTES)
    streams: dict[str | None, Callable] = {
        "bzip2": bz2.BZ2Decompressor,
        "xz": lzma.LZMADecompressor,
        "zstd": _new_zstd,
    }
    return io.BufferedReader(_Decompressed(file, streams[kind]), _DECOMPRESSED_BYTES)


def _new_zstd():
    """Returns a decompressor of one frame, with the methods of those of bz2 and lzma."""
    try:
        from backports import zstd  # late: what Python 3.14 has itself
    except ImportError:
        raise ConfigError(
            "text that is compressed with zstd needs the package backports.zstd:"
            f" {how_to_install('zstd')}, or give the text decompressed."
        ) from None
    return zstd.ZstdDecompressor(options={zstd.DecompressionParameter.window_log_max: _MAX_ZSTD_WINDOW})


class _MadeText(io.RawIOBase):
    """Base of texts that are made while they are read: only to their start one can go back."""

    def __init__(self):
        super().__init__()
        self._begin()

    def _begin(self) -> None:
        """Goes to the start."""
        self._position = 0  # of what is read next

    def _read(self, size: int) -> bytes:
        """Returns some bytes, b'' at the end."""
        raise NotImplementedError

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        if offset or whence != io.SEEK_SET:
            raise io.UnsupportedOperation("only the start can be gone back to")
        self._begin()
        return 0

    def readinto(self, buffer) -> int:
        data = self._read(len(buffer))
        buffer[: len(data)] = data
        self._position += len(data)
        return len(data)


class _Decompressed(_MadeText):
    """The text of a file of one stream or several. bz2.BZ2File passes over a second stream that is
    damaged."""

    def __init__(self, file: BinaryIO, new_stream: Callable):
        self._file, self._new_stream = file, new_stream
        super().__init__()

    def _begin(self) -> None:
        super()._begin()
        self._file.seek(0)
        self._stream = self._new_stream()

    def _read(self, size: int) -> bytes:
        data = b""
        while not data:
            packed = self._packed()
            if packed is None:
                return b""
            try:
                data = self._stream.decompress(packed, size)
            except MemoryError:
                raise
            except Exception as error:  # each library has its own
                raise DamagedError(error) from None
        return data

    def _packed(self) -> bytes | None:
        """Returns the next packed bytes for the stream, None at the end of the file."""
        if not self._stream.eof:
            packed = self._file.read(_PACKED_BYTES) if self._stream.needs_input else b""
            if self._stream.needs_input and not packed:
                raise DamagedError("it ends in the middle of a stream")
            return packed
        following = self._stream.unused_data.lstrip(b"\0")  # zeros may fill a file up
        while not following:
            following = self._file.read(_PACKED_BYTES)
            if not following:
                return None
            following = following.lstrip(b"\0")
        self._stream = self._new_stream()
        return following


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
_HEADER = re.compile(rb"BZh[1-9]")
_HEADER_BYTES = 4
_CHUNK_BYTES = 1 << 18  # are read and looked through at once: about a block
_MAX_BLOCK_BYTES = 1 << 22  # packed; text that does not compress takes 1 MB


class _Mark(NamedTuple):
    """Apparent beginning of a block or of the end of a stream, in bits of the file."""

    bit: int
    is_end: bool


def _second_bytes() -> np.ndarray:
    """Returns bool [65536]: whether two bytes are the second and third that a mark touches."""
    found = np.zeros(1 << 16, bool)
    for mark in (_BLOCK, _END):
        for shift in range(8):
            found[mark >> (24 + shift) & 0xFFFF] = True
    return found


_SECOND_BYTES = _second_bytes()


def find_marks(data: bytes) -> list[_Mark]:
    """Returns the marks that lie whole in some bytes, in order; bit 0 is the highest of the first byte."""
    padded = np.frombuffer(bytes(1) + data + bytes(8), np.uint8)
    pairs = padded[1:-8].astype(np.uint16) << 8 | padded[2:-7]
    # `padded` has one byte before: a mark that begins in byte i has its second byte at i + 1.
    places = np.flatnonzero(_SECOND_BYTES[pairs])
    words: np.ndarray = np.zeros(len(places), np.uint64)
    for offset in range(8):
        words = words << np.uint64(8) | padded[places + offset]
    shifts = np.arange(8, dtype=np.uint64)
    windows = (words[:, None] >> (np.uint64(16) - shifts)) & np.uint64((1 << _MARK_BITS) - 1)
    found = []
    for place, shift in np.argwhere((windows == _BLOCK) | (windows == _END)).tolist():
        bit = 8 * (int(places[place]) - 1) + shift
        if 0 <= bit <= 8 * len(data) - _MARK_BITS:
            found.append(_Mark(bit, int(windows[place, shift]) == _END))
    return found


class _Packed:
    """The packed bytes that are in memory, and the marks in them."""

    def __init__(self, file: BinaryIO, start: int):
        self._file, self._data, self._start = file, b"", start
        self._looked_through = start  # marks that begin before are known
        self.marks: list[_Mark] = []

    @property
    def end(self) -> int:
        return self._start + len(self._data)

    def grow(self) -> bool:
        """Takes in more bytes; tells whether there were any."""
        self._file.seek(self.end)  # another one may have read
        data = self._file.read(_CHUNK_BYTES)
        self._data += data
        found = find_marks(self._data[self._looked_through - self._start :])
        first = 8 * self._looked_through
        known = self.marks[-1].bit if self.marks else -1
        self.marks += [_Mark(first + bit, is_end) for bit, is_end in found if first + bit > known]
        self._looked_through = max(self._start, self.end - _MARK_BITS // 8 - 1)
        return bool(data)

    def forget_before(self, bit: int) -> None:
        dropped = max(0, bit // 8 - self._start)
        self._data, self._start = self._data[dropped:], self._start + dropped
        self._looked_through = max(self._looked_through, self._start)
        self.marks = [mark for mark in self.marks if mark.bit >= bit]

    def mark_after(self, bit: int) -> _Mark | None:
        """Returns the first mark behind a bit, None where there is none up to the end of the file, or as far
        as a block may reach."""
        while True:
            found = next((mark for mark in self.marks if mark.bit > bit), None)
            if found or self.end > bit // 8 + 2 * _MAX_BLOCK_BYTES or not self.grow():
                return found

    def first_block(self) -> _Mark | None:
        """Returns the first mark of a block, None where there is none up to the end of the file; what lies
        before is forgotten."""
        while True:
            found = next((mark for mark in self.marks if not mark.is_end), None)
            if found:
                return found
            self.forget_before(8 * self._looked_through)  # zeros may fill up gigabytes
            if not self.grow():
                return None

    def bits(self, first: int, end: int) -> int:
        """Returns bits as a number. Raises DamagedError where the file ends before."""
        while 8 * self.end < end:
            if not self.grow():
                raise DamagedError("it ends in the middle of a stream")
        data = self._data[first // 8 - self._start : -(-end // 8) - self._start]
        return int.from_bytes(data, "big") >> (-end % 8) & ((1 << (end - first)) - 1)

    def bytes_from(self, start: int, count: int) -> bytes:
        """Returns `count` bytes, fewer at the end of the file."""
        while self.end < start + count and self.grow():
            pass
        return self._data[start - self._start :][:count]


class Blocks:
    """The blocks of a file that begin at or behind a byte, in order."""

    def __init__(self, file: BinaryIO, start: int):
        self._start, self._packed = start, _Packed(file, start)

    def __iter__(self) -> Iterator[tuple[int, bytes]]:
        """Yields (byte in which a block begins, text of it).

        Raises:
          DamagedError: where it cannot be decompressed, or the file is not whole up to its next block.
        """
        combined: int | None = None  # checksum of the stream, where its beginning was read
        if self._start == 0:
            bit, combined = self._stream_at(0), 0
        else:
            first = self._packed.first_block()
            bit = first and first.bit
        while bit is not None:
            text, end, block_sum = self._read(bit)
            self._packed.forget_before(end.bit)
            yield bit // 8, text
            if combined is not None:
                combined = (combined << 1 & 0xFFFFFFFF | combined >> 31) ^ block_sum
            bit = end.bit
            if end.is_end:
                bit, combined = self._stream_at(self._end_of_stream(end.bit, combined)), 0

    def _read(self, bit: int) -> tuple[bytes, _Mark, int]:
        """Returns the text of the block that begins at `bit`, the mark behind it, and its checksum."""
        end = self._packed.mark_after(bit)
        if end is None and self._packed.end <= bit // 8 + _MAX_BLOCK_BYTES:
            raise DamagedError(f"it ends in the middle of the block at byte {bit // 8:,}")
        while end is not None and end.bit - bit <= 8 * _MAX_BLOCK_BYTES:
            text, block_sum = _decompress(self._packed.bits(bit, end.bit), end.bit - bit)
            if text is not None:
                return text, end, block_sum
            end = self._packed.mark_after(end.bit)
        raise DamagedError(f"the block at byte {bit // 8:,} cannot be decompressed")

    def _end_of_stream(self, bit: int, combined: int | None) -> int:
        """Returns the byte behind the stream whose end begins at `bit`; checks its checksum where it is
        known."""
        end = bit + _MARK_BITS + _SUM_BITS
        if self._packed.bits(bit + _MARK_BITS, end) != combined and combined is not None:
            raise DamagedError(f"the checksum of the stream that ends at byte {end // 8:,} is wrong")
        return -(-end // 8)

    def _stream_at(self, byte: int) -> int | None:
        """Returns the first block of the stream that begins at a byte or behind zeros that fill the file up,
        or of one after it; None where the file ends."""
        while True:
            while (data := self._packed.bytes_from(byte, _CHUNK_BYTES)) and not data.strip(b"\0"):
                byte += len(data)
                self._packed.forget_before(8 * byte)
            if not data:
                return None
            byte += len(data) - len(data.lstrip(b"\0"))
            first = 8 * (byte + _HEADER_BYTES)
            if not _HEADER.match(self._packed.bytes_from(byte, _HEADER_BYTES)):
                raise DamagedError(f"there is no stream at byte {byte:,}")
            mark = self._packed.bits(first, first + _MARK_BITS)
            if mark == _BLOCK:
                return first
            if mark != _END:
                raise DamagedError(f"the stream at byte {byte:,} begins with no block")
            byte = self._end_of_stream(first, 0)


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
    is_whole = decompressor.eof and not decompressor.unused_data
    return (text, block_sum) if is_whole else (None, 0)


class BlockText(_MadeText):
    """The text of the blocks of a file from a byte on.

    A line belongs to the block in which the line feed before it lies: which lines are those of a split can be
    told without the block before it. So position 1 of this text, behind the line feed in its first byte, is
    the first at which a line of the split may begin, and 0 where the file begins.
    """

    def __init__(self, file: BinaryIO, start: int, end: int | None):
        self.start = min(start, 1)
        self._file, self._first_byte, self._end_byte = file, start, end
        super().__init__()

    def _begin(self) -> None:
        super()._begin()
        self.end: int | None = None  # from which position on lines belong to later splits, once it is read
        self._blocks = iter(Blocks(self._file, self._first_byte))
        self._text, self._place = b"", 0

    def _read(self, size: int) -> bytes:
        while self._place == len(self._text):
            found = next(self._blocks, None)
            if found is None:
                return b""
            byte, self._text = found
            self._place = 0
            if self.end is None and self._end_byte is not None and byte >= self._end_byte:
                self.end = self._position + 1
        data = self._text[self._place : self._place + size]
        self._place += len(data)
        return data


# -----------------------------------------------------------------------------------------------------------
# Lines


_BLOCK_BYTES = 1 << 16  # are read at once, and the rest of the last line
_CUT_WITHIN_BYTES = 1 << 12  # of the end of a piece of a line, where it is cut at white space
_TO_LINE_FEEDS = bytes.maketrans(b"\r", b"\n")


class LineFeeds(io.RawIOBase):
    """A text with line feeds for carriage returns, each byte in its place."""

    def __init__(self, text: BinaryIO):
        super().__init__()
        self._text = text

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._text.tell()

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        return self._text.seek(offset, whence)

    def readinto(self, buffer) -> int:
        data = self._text.read(len(buffer)).translate(_TO_LINE_FEEDS)
        buffer[: len(data)] = data
        return len(data)


def read_blocks(
    text: BinaryIO, part: "Split | BlockText", most_bytes: int
) -> Iterator[tuple[int | None, bytes]]:
    """Yields (offset, bytes) of whole lines, many at a time: those that start in the part and all lines after
    them.

    A line of more than `most_bytes` comes in pieces, one at a time, cut at white space where there is any
    near; all pieces but the first have the offset None. Nothing is yielded where no line starts in the part.
    """
    position = _seek_line(text, part, most_bytes)
    if position is None:
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
        pieces = _pieces(block[last:], text, most_bytes)
        first = next(pieces)
        yield position + last, first
        position += last + len(first)
        for piece in pieces:
            yield None, piece
            position += len(piece)


def _pieces(piece: bytes, text: BinaryIO, most_bytes: int) -> Iterator[bytes]:
    """Yields the pieces of a line of which `most_bytes` have been read."""
    while len(piece) == most_bytes and not piece.endswith(b"\n"):
        cut = _find_cut(piece)
        yield piece[:cut]
        piece = piece[cut:] + text.readline(most_bytes - (len(piece) - cut))
    if piece:
        yield piece


def each_of(block: bytes, offset: int | None) -> Iterator[tuple[int | None, bytes]]:
    """Yields (offset, bytes) of each line of a block that has an offset; of one without, the block."""
    if offset is None:
        yield None, block
        return
    start = 0
    while start < len(block):
        end = block.find(b"\n", start) + 1 or len(block)
        yield offset + start, block[start:end]
        start = end


def _seek_line(text: BinaryIO, part: "Split | BlockText", most_bytes: int) -> int | None:
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
    space = max(piece.rfind(white, len(piece) - _CUT_WITHIN_BYTES) for white in (b" ", b"\t"))
    if space >= 0:
        return space + 1
    start = len(piece) - 1
    while start > len(piece) - 4 and piece[start] & 0xC0 == 0x80:  # not the first byte of a character
        start -= 1
    return max(start, 1)


# -----------------------------------------------------------------------------------------------------------
# Files


_BUFFER_BYTES = 1 << 20
_SAMPLE_BYTES = 1 << 16  # of the beginning, the middle and the end of a file tell it from others
_IDENTIFYING_THREADS = 8
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

    @property
    def is_whole(self) -> bool:
        return not self.start and self.end is None


def read_in_part(splits: Iterable[Split]) -> set[str]:
    """Returns the files of which only a part is read."""
    return {split.path for split in splits if not split.is_whole}


@dataclasses.dataclass(frozen=True)
class TextFile:
    """An open split of a text file."""

    text: BinaryIO  # decompressed, its lines end in line feeds
    part: Split | BlockText  # `start` and `end`: positions in `text` at which the lines of the split begin
    head: bytes  # the first bytes of the text of the file; of Parquet of the file itself
    packed: "Packed | None"  # where the text is not the file's bytes


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
# Parts of files


def _bounds(path: str, size: int, split_bytes: int) -> tuple[list[int], int]:
    """Returns the beginnings and ends of a file's splits, and the bytes of text in one of its bytes."""
    with open_text(Split(path)) as file:
        weight = 1
        if file.packed or is_parquet(file.head):
            weight = TEXT_OF_PACKED
        if is_parquet(file.head):
            return parquet_files.bounds(file.text, path, size, split_bytes // weight), weight
        if is_json_array(file.head) or file.packed and not isinstance(file.part, BlockText):
            return [0, size], 1
    count = max(1, -(-size * weight // split_bytes))
    return [size * number // count for number in range(count + 1)], weight


def plan_tasks(
    sizes: dict[str, int], task_bytes: int, states: Mapping[str, str] | None = None
) -> list[list[Split]]:
    """Deals files, {file: its bytes}, out to tasks of at most `task_bytes` of text: parts of a large file, or
    files that follow each other and are small. `states`, of `files.states` before anything was read, lets
    the tasks find out that a file was changed meanwhile. Raises ConfigError where all files are empty."""
    if sizes and not any(sizes.values()):
        others = f", and so are {len(sizes) - 1:,} others" if len(sizes) > 1 else ""
        raise ConfigError(f"--input_files: {next(iter(sizes))} is empty (0 bytes){others}. Give text.")
    tasks: list[list[Split]] = []
    left = 0
    for path, size in sizes.items():
        bounds, weight = [0, size], 1
        if size > task_bytes // TEXT_OF_PACKED:
            bounds, weight = _bounds(path, size, task_bytes)
        for start, end in zip(bounds, bounds[1:]):
            text_bytes = (end - start) * weight
            if not tasks or text_bytes > left:
                tasks.append([])
                left = task_bytes
            state = states[path] if states else None
            tasks[-1].append(Split(path, start, None if end == size else end, state))
            left -= text_bytes
    return tasks


def check_unchanged(splits: Iterable[Split]) -> None:
    """Raises ConfigError where a file that was read in part is not any more as it was when it was planned."""
    files.check_unchanged({split.path: split.state for split in splits if split.state is not None})


# ------------------------------------------------------------------------------------------------------------
# Identity


def identify(paths: Iterable[str], versions: list[tuple[int, int]] | None = None) -> dict[str, str]:
    """Returns, for each file, what another content of it would change: size and samples, and the time of the
    last change where these are not all of it. Of a file in a store it is size and time. Of very many files it
    is one digest of names, sizes and times: to open all of them once more would take as long as to read them.

    Args:
      versions: as `files.versions` returns them, where they are known.

    Raises:
      ConfigError: for a file that cannot be read, or begins as no text does; of very many that is found when
        they are read.
    """
    paths = list(paths)
    if len(paths) > _MAX_OPENED:
        digest = hashlib.blake2b(digest_size=16)
        for path, version in zip(paths, versions or files.versions(paths)):
            digest.update(f"{path}\0{_describe(*version)}\0".encode("utf-8", "surrogateescape"))
        return {f"all {len(paths):,} files": digest.hexdigest()}
    remote = [path for path in paths if files.is_remote(path)]
    found = dict(zip(paths, versions)) if versions else dict(zip(remote, files.versions(remote)))
    known = {path: _describe(*found[path]) for path in remote}
    here = [path for path in paths if path not in known]
    with ThreadPoolExecutor(_IDENTIFYING_THREADS) as threads:
        known.update(zip(here, threads.map(_identity, here)))
    return {path: known[path] for path in paths}


def _describe(size: int, changed: int) -> str:
    return f"{size} bytes, {changed}"


def _identity(path: str) -> str:
    """Returns the identity of a file of this machine."""
    try:
        with open(path, "rb", buffering=0) as file:
            found = os.fstat(file.fileno())
            size, changed = found.st_size, found.st_mtime_ns
            is_large = size > 3 * _SAMPLE_BYTES
            head, *others = (
                os.pread(file.fileno(), _SAMPLE_BYTES if is_large else size, start)
                for start in ((0, size // 2, size - _SAMPLE_BYTES) if is_large else (0,))
            )
    except OSError as error:
        raise files.unreadable(path, error) from None
    refuse_archive(path, head)
    if not compression_of(head) and not is_parquet(head):
        refuse_binary(path, head[:_SAMPLE_BYTES])
    digest = hashlib.blake2b(b"".join([head, *others]), digest_size=16)
    return f"{size} bytes, {digest.hexdigest()}" + (f", {changed}" if is_large else "")


# ------------------------------------------------------------------------------------------------------------
# Opening


@contextlib.contextmanager
def open_text(split: Split) -> Iterator[TextFile]:
    """Opens a split of a text file, decompressed by what it holds and not by its name.

    Raises:
      ConfigError: here and in the block, for a file that cannot be read or begins as no text does, and for a
        compressed one that is truncated or damaged. What such a file lacks cannot be counted, and training on
        an unknown part of the text is worse than a job that stops.
    """
    path = split.path
    try:
        with files.open_binary(path) as file:
            magic = file.read(MAGIC_BYTES)
            file.seek(0)
            refuse_archive(path, magic)
            yield _opened(file, magic, split)
    except DAMAGES as error:
        raise ConfigError(
            f"{path} is a truncated or damaged compressed file: {error}. Fetch or write it again, or leave"
            " it out."
        ) from None
    except OSError as error:
        raise files.unreadable(path, error) from None


def _opened(file: BinaryIO, magic: bytes, split: Split) -> TextFile:
    if is_parquet(magic):
        return TextFile(file, split, magic, None)
    compression = compression_of(magic)
    text, packed = file, Packed(file, split) if compression else None
    part: Split | BlockText = split
    if compression == "bzip2":
        part = blocks = BlockText(file, split.start, split.end)
        text = io.BufferedReader(blocks, _BUFFER_BYTES)
    elif packed:
        text = text_of(file, magic)
    if packed and split.start:
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
    """Returns the first bytes of the text of a compressed file, once for its splits."""
    del version  # another one is another file
    with files.open_binary(path) as file:
        magic = file.read(MAGIC_BYTES)
        file.seek(0)
        return text_of(file, magic).read(HEAD_BYTES)
