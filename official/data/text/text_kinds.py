"""Kind of a file, from its bytes: whether it is text in UTF-8, how its lines end, whether it is one JSON
array.

Whatever is not text is refused by name, with what it is and what to do; nothing is guessed into words.
"""

import codecs
import json
import re

from official.io import readable
from official.io.errors import ConfigError

HEAD_BYTES = 1 << 16  # of a file, decompressed, are looked at
MOST_UNDECODABLE = 0.01  # of the bytes of a part of a file; what has more is not UTF-8
_BINARY = {
    b"\x89PNG": "a PNG picture",
    b"\xff\xd8\xff": "a JPEG picture",
    b"GIF8": "a GIF picture",
    b"%PDF-": "a PDF file",
    b"\x93NUMPY": "a NumPy array",
    b"\x89HDF": "an HDF5 file",
    b"\x7fELF": "a program",
    b"PAR1": "a Parquet file inside of a compressed one",
    b"SQLite format 3\0": "an SQLite database",
    b"Rar!": "a RAR archive",
    b"\x80\x04\x95": "a Python pickle",
    b"\xd0\xcf\x11\xe0": "an Office file",
}
_ARCHIVES = {
    b"PK\x03\x04": "zip archive",
    b"PK\x05\x06": "zip archive",
    b"7z\xbc\xaf": "7z archive",
}
_PARQUET = b"PAR1"
_MARKS = {
    codecs.BOM_UTF32_LE: "UTF-32",
    codecs.BOM_UTF32_BE: "UTF-32",
    codecs.BOM_UTF16_LE: "UTF-16",
    codecs.BOM_UTF16_BE: "UTF-16",
}
_ARCHIVE_STARTS, _STARTS = tuple(_ARCHIVES), (*_BINARY, *_MARKS, readable.POINTER_START)
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
    if head.startswith(_ARCHIVE_STARTS):
        name = next(name for start, name in _ARCHIVES.items() if head.startswith(start))
        raise ConfigError(
            f"{path} is a {name}. Allowed: text as it is, or compressed with gzip, bzip2, xz or zstd."
        )


def refuse_binary(path: str, head: bytes) -> None:
    """Raises ConfigError for a file whose decompressed first bytes are not those of text in UTF-8, or are a
    pointer of Git LFS."""
    kind = None
    if head.startswith(_STARTS):  # of many small files almost none does
        if pointer := readable.describe_pointer(head):
            raise ConfigError(f"{path} {pointer}.")
        for mark, name in _MARKS.items():
            if head.startswith(mark):
                raise _not_utf8(path, f"{name} text (by its byte order mark)", name)
        kind = next(name for start, name in _BINARY.items() if head.startswith(start))
    if head.startswith(_TAR, _TAR_PLACE):
        kind = "a tar archive"
    if kind:
        raise ConfigError(f"{path} is {kind}, not text. Leave it out of --input_files.")
    if b"\0" in head:
        raise _with_zeros(path, head)


def refuse_zeros(path: str, line: bytes) -> None:
    """Raises ConfigError for a line of a file with a NUL byte, which no text has."""
    if b"\0" in line:
        raise ConfigError(
            f"{path} holds NUL bytes behind its beginning: it is damaged, or not text. Repair it, or leave it"
            " out of --input_files."
        )


def refuse_undecodable(path: str, undecodable: int, num_bytes: int) -> None:
    """Raises ConfigError where more than MOST_UNDECODABLE of the bytes of a part of a file are not UTF-8."""
    if undecodable > MOST_UNDECODABLE * num_bytes:
        found = f"not UTF-8 text: {undecodable:,} of {num_bytes:,} bytes cannot be decoded"
        raise _not_utf8(path, f"{found}; it may be Latin-1 or Windows-1252", "WINDOWS-1252")


def _with_zeros(path: str, head: bytes) -> ConfigError:
    even, odd = (part.count(0) / max(len(part), 1) for part in (head[::2], head[1::2]))
    for name, many, few in (("UTF-16LE", odd, even), ("UTF-16BE", even, odd)):
        if many > _WIDE_SHARE > 4 * few:
            return _not_utf8(path, f"{name} text (every second byte is NUL)", name)
    return ConfigError(f"{path} holds NUL bytes: it is binary, not text. Leave it out of --input_files.")


def _not_utf8(path: str, found: str, encoding: str) -> ConfigError:
    return ConfigError(
        f"{path} is {found}. Convert it to UTF-8 (iconv -f {encoding} -t UTF-8), or leave it out of"
        " --input_files."
    )


def ends_lines_with_returns(head: bytes) -> bool:
    """Tells whether carriage returns alone end the lines of a file that begins so."""
    return b"\n" not in head and b"\r" in head


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
