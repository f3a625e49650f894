"""Text -> lines of any length, in bounded memory: those of a part of it."""

import io
from collections.abc import Iterator
from typing import BinaryIO, Protocol

_BLOCK_BYTES = 1 << 16  # are read at once, and the rest of the last line
_CUT_WITHIN_BYTES = 1 << 12  # of the end of a piece of a line, where it is cut at white space
_TO_LINE_FEEDS = bytes.maketrans(b"\r", b"\n")


class Part(Protocol):
    """The positions in a text at which the lines start that belong to a part of it."""

    @property
    def start(self) -> int: ...
    @property
    def end(self) -> int | None:
        """Behind the last one; None where all belong to it, or that is not known yet."""


def with_line_feeds(data: bytes) -> bytes:
    """Returns text with line feeds for carriage returns."""
    return data.translate(_TO_LINE_FEEDS)


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
        data = with_line_feeds(self._text.read(len(buffer)))
        buffer[: len(data)] = data
        return len(data)


def read_blocks(text: BinaryIO, part: Part, most_bytes: int) -> Iterator[tuple[int | None, bytes]]:
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


def _seek_line(text: BinaryIO, part: Part, most_bytes: int) -> int | None:
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
    """Returns where a piece of a line is cut: after white space, or at least not inside a character."""
    space = max(piece.rfind(white, len(piece) - _CUT_WITHIN_BYTES) for white in (b" ", b"\t"))
    if space >= 0:
        return space + 1
    start = len(piece) - 1
    while (
        start > len(piece) - 4 and piece[start] & 0xC0 == 0x80
    ):  # the second byte of a character or a later one
        start -= 1
    return max(start, 1)
