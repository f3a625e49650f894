"""Compressed files -> text, by what they hold and not by their names."""

import bz2
import gzip
import io
import lzma
import re
import zlib
from collections.abc import Callable
from typing import BinaryIO

from official.io.errors import ConfigError, how_to_install

MAGIC_BYTES = 10  # of a file tell how it is compressed
_PACKED_BYTES = 1 << 16  # are decompressed at once
_BUFFER_BYTES = 1 << 20
_GZIP = re.compile(rb"\x1f\x8b\x08")
_BZIP2 = re.compile(rb"BZh[1-9](1AY&SY|\x17rE8P\x90)")
_XZ = re.compile(rb"\xfd7zXZ\x00")
_ZSTD = re.compile(rb"\x28\xb5\x2f\xfd|[\x50-\x5f]\x2a\x4d\x18")  # the second: frames without text
_FIRST = {b"\x1f", b"B", b"\xfd", b"\x28", *(bytes([code]) for code in range(0x50, 0x60))}  # bytes of them
_MOST_ZSTD_WINDOW = 31  # log2 of bytes; other people's corpora are made with --long=31


class DamagedError(Exception):
    """Compressed data that cannot be decompressed."""


# What reading a damaged file raises.
DAMAGES = (DamagedError, EOFError, zlib.error, gzip.BadGzipFile)


def is_compressed(magic: bytes) -> bool:
    """Tells whether a file that begins so is compressed."""
    return magic[:1] in _FIRST and any(pattern.match(magic) for pattern in (_GZIP, _BZIP2, _XZ, _ZSTD))


def is_bzip2(magic: bytes) -> bool:
    """Tells whether a file that begins so is compressed in blocks that can be read alone."""
    return _BZIP2.match(magic) is not None


def text_of(file: BinaryIO, magic: bytes) -> BinaryIO:
    """Returns the text of a compressed file that begins with `magic`. Raises DAMAGES while reading."""
    if _GZIP.match(magic):
        return io.BufferedReader(gzip.GzipFile(fileobj=file), _BUFFER_BYTES)
    new_stream: Callable = next(
        made
        for pattern, made in ((_BZIP2, bz2.BZ2Decompressor), (_XZ, lzma.LZMADecompressor), (_ZSTD, _new_zstd))
        if pattern.match(magic)
    )
    return io.BufferedReader(_Decompressed(file, new_stream), _BUFFER_BYTES)


def _new_zstd():
    """Returns a decompressor of one frame, with the methods of those of bz2 and lzma."""
    try:
        from backports import zstd  # late: what Python 3.14 has itself
    except ImportError:
        raise ConfigError(
            "text that is compressed with zstd needs the package backports.zstd:"
            f" {how_to_install('zstd')}, or give the text decompressed."
        ) from None
    return _Zstd(zstd)


class _Zstd:
    """zstd's decompressor; its errors are DamagedErrors."""

    def __init__(self, zstd):
        options = {zstd.DecompressionParameter.window_log_max: _MOST_ZSTD_WINDOW}
        self._errors, self._stream = zstd.ZstdError, zstd.ZstdDecompressor(options=options)

    def __getattr__(self, name: str):
        return getattr(self._stream, name)

    def decompress(self, packed: bytes, size: int) -> bytes:
        try:
            return self._stream.decompress(packed, size)
        except self._errors as error:
            raise DamagedError(error) from None


class _Decompressed(io.RawIOBase):
    """The text of a file of one stream or several. bz2.BZ2File passes over a second stream that is
    damaged."""

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
