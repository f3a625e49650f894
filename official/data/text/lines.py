"""Text -> lines of any length, in bounded memory: those of a part of it."""

import io
from collections.abc import Iterator
from typing import BinaryIO, Protocol

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


def read_lines(text: BinaryIO, part: Part, most_bytes: int) -> Iterator[tuple[int | None, bytes]]:
    """Yields (offset, bytes) of the lines that start in the part and of all lines after them.

    A line of more than `most_bytes` comes in pieces, cut at white space where there is any near; all pieces
    but the first have the offset None. Nothing is yielded where no line starts in the part.
    """
    position = _seek_line(text, part, most_bytes)
    if position is None:
        return
    read = text.readline
    while line := read(most_bytes):
        if len(line) < most_bytes or line.endswith(b"\n"):  # nearly always
            yield position, line
            position += len(line)
        else:
            yield position, line[: _find_cut(line)]
            rest = line[_find_cut(line) :]
            position += most_bytes
            while piece := rest + read(most_bytes - len(rest)):
                position += len(piece) - len(rest)
                is_last = len(piece) < most_bytes or piece.endswith(b"\n")
                cut = len(piece) if is_last else _find_cut(piece)
                yield None, piece[:cut]
                if is_last:
                    break
                rest = piece[cut:]


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
