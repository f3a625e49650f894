"""Text files -> lines: decompression, the parts of a file that are read in parallel, and lines of any length
in bounded memory.
"""

import bz2
import contextlib
import dataclasses
import gzip
import hashlib
import io
import lzma
import re
import zlib
from collections.abc import Callable, Iterable, Iterator
from typing import BinaryIO

from official.config import ConfigError
from official.data.text import text_kinds
from official.io import files

_BUFFER_BYTES = 1 << 20
_PACKED_BYTES = 1 << 16  # are decompressed at once
_CUT_WITHIN_BYTES = 1 << 12  # of the end of a piece of a line, where it is cut at white space
_MAGIC_BYTES = 10
_GZIP = re.compile(rb"\x1f\x8b\x08")
_BZIP2 = re.compile(rb"BZh[1-9](1AY&SY|\x17rE8P\x90)")
_XZ = re.compile(rb"\xfd7zXZ\x00")
_SAMPLE_BYTES = 1 << 16  # of the beginning, the middle and the end of a file tell it from others
_TO_LINE_FEEDS = bytes.maketrans(b"\r", b"\n")


@dataclasses.dataclass(frozen=True)
class Split:
    """Part of a file: the bytes from `start` up to `end`, or to the end of the file. A compressed file is one
    split."""

    path: str
    start: int = 0
    end: int | None = None


@dataclasses.dataclass(frozen=True)
class TextFile:
    """An open text file."""

    text: BinaryIO  # decompressed, its lines end in line feeds
    packed: BinaryIO | None  # the file itself, where it is compressed
    head: bytes  # the first bytes of the text


def _sized_splits(paths: Iterable[str], split_bytes: int) -> Iterator[tuple[Split, int]]:
    """Yields parts of files of about the same size, `split_bytes` at most, and their sizes in bytes;
    compressed files and JSON arrays are left whole.

    Raises:
      ConfigError: for a file that cannot be read.
    """
    paths = list(paths)
    for path, size in zip(paths, files.sizes(paths)):
        count = 1 if size <= split_bytes or is_one_part(path) else -(-size // split_bytes)
        bounds = [size * number // count for number in range(count + 1)]
        for start, end in zip(bounds, bounds[1:]):
            yield Split(path, start, None if end == size else end), end - start


def plan_tasks(paths: Iterable[str], task_bytes: int) -> list[list[Split]]:
    """Deals files out to tasks of at most `task_bytes`: parts of a large file, or files that follow each
    other and are small."""
    tasks: list[list[Split]] = []
    left = 0
    for split, size in _sized_splits(paths, task_bytes):
        if not tasks or size > left:
            tasks.append([])
            left = task_bytes
        tasks[-1].append(split)
        left -= size
    return tasks


def is_one_part(path: str) -> bool:
    """Tells whether a file is read as a whole: one that is compressed, or a JSON array."""
    with open_text(path) as file:
        return file.packed is not None or text_kinds.is_json_array(file.head)


def identify(paths: Iterable[str]) -> dict[str, str]:
    """Returns, for each file, what another content of it would change: size and samples, and the time of the
    last change where these are not all of it. Of a file in a store it is size and time.

    Raises:
      ConfigError: for a file that cannot be read, or begins as no text does.
    """
    return {path: _identity(path) for path in paths}


def _identity(path: str) -> str:
    with files.naming(path):
        size, changed = files.version(path)
        if files.is_remote(path):
            return f"{size} bytes, {changed}"
        with open(path, "rb", buffering=_SAMPLE_BYTES) as file:
            head = file.read(_SAMPLE_BYTES)
            if _find_compression(path, head) is None:
                text_kinds.refuse_binary(path, head)
            digest = hashlib.blake2b(head, digest_size=16)
            for start in (
                (size // 2, size - _SAMPLE_BYTES)
                if size > 3 * _SAMPLE_BYTES
                else (_SAMPLE_BYTES, 2 * _SAMPLE_BYTES)
            ):
                file.seek(start)
                digest.update(file.read(_SAMPLE_BYTES))
    return f"{size} bytes, {digest.hexdigest()}" + (f", {changed}" if size > 3 * _SAMPLE_BYTES else "")


@contextlib.contextmanager
def open_text(path: str) -> Iterator[TextFile]:
    """Opens a text file, decompressed by what it holds and not by its name.

    Raises:
      ConfigError: here and in the block, for a file that cannot be read or begins as no text does, and for a
        compressed one that is truncated or damaged. What such a file lacks cannot be counted, and training on
        an unknown part of the text is worse than a job that stops.
    """
    with files.naming(path), files.open_binary(path) as file:
        unpack = _find_compression(path, file.read(_MAGIC_BYTES))
        file.seek(0)
        try:
            yield _text_file(path, unpack(file) if unpack else file, file if unpack else None)
        except (_DamagedError, EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise ConfigError(
                f"{path} is a truncated or damaged compressed file: {error}. Fetch or write it again, or"
                " leave it out."
            ) from None


def _text_file(path: str, text: BinaryIO, packed: BinaryIO | None) -> TextFile:
    head = text.read(text_kinds.HEAD_BYTES)
    text.seek(0)
    text_kinds.refuse_binary(path, head)
    if not text_kinds.ends_lines_with_returns(head):
        return TextFile(text, packed, head)
    return TextFile(
        io.BufferedReader(_LineFeeds(text), _BUFFER_BYTES), packed, head.translate(_TO_LINE_FEEDS)
    )


class _LineFeeds(io.RawIOBase):
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


def read_lines(text: BinaryIO, split: Split, most_bytes: int) -> Iterator[tuple[int | None, bytes]]:
    """Yields (offset, bytes) of the lines that start in the split and of all lines after them.

    A line of more than `most_bytes` comes in pieces, cut at white space where there is any near; all pieces
    but the first have the offset None. Nothing is yielded where no line starts in the split.
    """
    position = _seek_line(text, split, most_bytes)
    if position is None:
        return
    rest, starts = b"", True
    while piece := rest + text.readline(most_bytes - len(rest)):
        if piece.endswith(b"\n") or len(piece) < most_bytes:
            yield (position if starts else None), piece
            position, rest, starts = position + len(piece), b"", True
        else:
            cut = _find_cut(piece)
            yield (position if starts else None), piece[:cut]
            position, rest, starts = position + cut, piece[cut:], False


def _seek_line(text: BinaryIO, split: Split, most_bytes: int) -> int | None:
    """Goes to the first line that starts in the split and returns its offset, or None where there is none."""
    if split.start == 0:
        return 0
    text.seek(split.start - 1)
    position = split.start - 1
    while piece := text.readline(most_bytes):
        position += len(piece)
        if split.end is not None and position >= split.end:
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


# ------------------------------------------------------------------------------------------------------------
# Compression


class _DamagedError(Exception):
    """Compressed data that cannot be decompressed."""


def _find_compression(path: str, magic: bytes) -> Callable[[BinaryIO], BinaryIO] | None:
    """Returns what makes text of a file that begins so, or None where it is not compressed."""
    text_kinds.refuse_archive(path, magic)
    if _GZIP.match(magic):
        return lambda file: io.BufferedReader(gzip.GzipFile(fileobj=file), _BUFFER_BYTES)
    for pattern, new_stream in ((_BZIP2, bz2.BZ2Decompressor), (_XZ, lzma.LZMADecompressor)):
        if pattern.match(magic):
            return lambda file: io.BufferedReader(_Decompressed(file, new_stream), _BUFFER_BYTES)
    return None


class _Decompressed(io.RawIOBase):
    """The text of a bzip2 or xz file of one stream or several. bz2.BZ2File passes over a second stream that
    is damaged."""

    def __init__(self, file: BinaryIO, new_stream: Callable):
        super().__init__()
        self._file = file
        self._new_stream = new_stream
        self._stream = new_stream()
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        if offset or whence != io.SEEK_SET:
            raise io.UnsupportedOperation("only the start can be gone back to")
        self._file.seek(0)
        self._stream = self._new_stream()
        self._position = 0
        return 0

    def readinto(self, buffer) -> int:
        data = self._read(len(buffer))
        buffer[: len(data)] = data
        self._position += len(data)
        return len(data)

    def _read(self, size: int) -> bytes:
        """Returns some bytes, b'' at the end."""
        data = b""
        while not data:
            packed = self._packed()
            if packed is None:
                return b""
            try:
                data = self._stream.decompress(packed, size)
            except (OSError, lzma.LZMAError) as error:
                raise _DamagedError(error) from None
        return data

    def _packed(self) -> bytes | None:
        """Returns what the stream is to be given next, None at the end of the file."""
        if not self._stream.eof:
            packed = self._file.read(_PACKED_BYTES) if self._stream.needs_input else b""
            if self._stream.needs_input and not packed:
                raise _DamagedError("it ends in the middle of a stream")
            return packed
        following = self._stream.unused_data.lstrip(b"\0")  # zeros may fill a file up
        while not following:
            following = self._file.read(_PACKED_BYTES)
            if not following:
                return None
            following = following.lstrip(b"\0")
        self._stream = self._new_stream()
        return following
