"""bzip2 files -> text from any place on, so that several processes share one file.

A bzip2 file is one stream or several, and a stream is blocks of up to 900 kB of text that are compressed one
by one. A block begins with 48 bits that are looked for, at any bit of a byte. It is decompressed as a stream
of its own: with a header before it and the end of a stream behind it, whose checksum is that of the block.

The 48 bits may also occur inside a block, about once in 30 TB. Decompressing decides: no part of a block is
one, and where what begins a split is none, the blocks before it tell whether it lies inside of one.
"""

import bz2
import io
import re
from collections.abc import Iterator
from typing import BinaryIO, NamedTuple

import numpy as np

from official.data.text.compressed import DamagedError

_BLOCK, _END = 0x314159265359, 0x177245385090
_MARK_BITS, _SUM_BITS = 48, 32
_HEADER = re.compile(rb"BZh[1-9]")
_HEADER_BYTES = 4
_CHUNK_BYTES = 1 << 18  # are read and looked through at once: about a block
_MOST_BLOCK_BYTES = 1 << 22  # packed; text that does not compress takes 1 MB


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
            if found or self.end > bit // 8 + 2 * _MOST_BLOCK_BYTES or not self.grow():
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
        self._file, self._start = file, start
        self._packed = _Packed(file, start)
        self._read_ahead: dict[int, tuple[bytes, _Mark, int]] = {}

    def __iter__(self) -> Iterator[tuple[int, bytes]]:
        """Yields (byte in which a block begins, text of it).

        Raises:
          DamagedError: where it cannot be decompressed, or the file is not whole up to its next block.
        """
        is_whole = self._start == 0
        first = self._stream_at(0) if is_whole else self._first_bit()
        for bit, text in self.walk(first, 0 if is_whole else None):
            yield bit // 8, text

    def walk(self, bit: int | None, combined: int | None = None) -> Iterator[tuple[int, bytes]]:
        """Yields (bit at which a block begins, text of it), from a block that is known to be one.

        Args:
          bit: where that begins.
          combined: checksum of the stream before it, None where that is not known.
        """
        while bit is not None:
            known = self._read_ahead.pop(bit, None)
            text, end, block_sum = known or self._read(bit)
            self._packed.forget_before(end.bit)
            yield bit, text
            if combined is not None:
                combined = (combined << 1 & 0xFFFFFFFF | combined >> 31) ^ block_sum
            bit = end.bit
            if end.is_end:
                bit, combined = self._stream_at(self._end_of_stream(end.bit, combined)), 0

    def _first_bit(self) -> int | None:
        """Returns the bit at which the first true block begins, None where there is none."""
        mark = self._packed.first_block()
        if mark is None:
            return None
        try:
            self._read_ahead[mark.bit] = self._read(mark.bit)
        except DamagedError as error:
            return self._first_bit_behind(mark.bit, error)
        return mark.bit

    def _first_bit_behind(self, bit: int, error: DamagedError) -> int | None:
        """Returns the block behind the one that a bit lies in; it is not the first of a whole one. Raises
        `error` where it lies in none."""
        before = _Packed(self._file, max(0, self._start - _MOST_BLOCK_BYTES))
        before.mark_after(bit)
        for mark in before.marks:
            if mark.is_end or mark.bit >= bit or not _is_block(self._file, mark.bit):
                continue
            blocks = Blocks(self._file, mark.bit // 8).walk(mark.bit)
            place = next((place for place, _ in blocks if place >= bit), None)
            if place == bit:
                break  # it follows a block, and is damaged
            self._packed = _Packed(self._file, (place or 0) // 8)
            return place
        raise error

    def _read(self, bit: int) -> tuple[bytes, _Mark, int]:
        """Returns the text of the block that begins at `bit`, the mark behind it, and its checksum."""
        end = self._packed.mark_after(bit)
        if end is None and self._packed.end <= bit // 8 + _MOST_BLOCK_BYTES:
            raise DamagedError(f"it ends in the middle of the block at byte {bit // 8:,}")
        while end is not None and end.bit - bit <= 8 * _MOST_BLOCK_BYTES:
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


def _is_block(file: BinaryIO, bit: int) -> bool:
    try:
        Blocks(file, bit // 8)._read(bit)
    except DamagedError:
        return False
    return True


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


class BlockText(io.RawIOBase):
    """The text of the blocks of a file from a byte on.

    A line belongs to the block in which the line feed before it lies: which lines are those of a split can be
    told without the block before it. So position 1 of this text, behind the line feed in its first byte, is
    the first at which a line of the split may begin, and 0 where the file begins.
    """

    def __init__(self, file: BinaryIO, start: int, end: int | None):
        super().__init__()
        self.start = min(start, 1)
        self._file, self._first_byte, self._end_byte = file, start, end
        self._begin()

    def _begin(self) -> None:
        self.end: int | None = None  # from which position on lines belong to later splits, once it is read
        self.packed_bytes = 0  # of the split, up to the block in work
        self._blocks = iter(Blocks(self._file, self._first_byte))
        self._text, self._place, self._before = b"", 0, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._before + self._place

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        if offset or whence != io.SEEK_SET:
            raise io.UnsupportedOperation("only the start can be gone back to")
        if self._before:
            self._begin()
        self._place = 0
        return 0

    def readinto(self, buffer) -> int:
        while self._place == len(self._text):
            found = next(self._blocks, None)
            if found is None:
                return 0
            byte, text = found
            self._before += len(self._text)
            self._text, self._place = text, 0
            self.packed_bytes = byte - self._first_byte
            if self.end is None and self._end_byte is not None and byte >= self._end_byte:
                self.end = self._before + 1
        data = self._text[self._place : self._place + len(buffer)]
        buffer[: len(data)] = data
        self._place += len(data)
        return len(data)
