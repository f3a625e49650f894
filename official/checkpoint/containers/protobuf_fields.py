"""Protocol buffers as rows of fields: walked through without reading their values, put together from pieces.

A field is a key (its number and its kind), for some kinds a length, and its bytes. A length and a key are
numbers of 7 bits a byte.
"""

import dataclasses
from collections.abc import Iterator
from typing import BinaryIO

from official.checkpoint.errors import DamagedError

_VARINT, _BYTES = 0, 2  # kinds of fields
_FIXED = {1: 8, 5: 4}  # kinds of fixed length, and these


@dataclasses.dataclass(frozen=True)
class Field:
    """Position of a field in a protocol buffer: its number, the offset of the whole field, the offset of its
    content, and the end of both, in bytes."""

    number: int
    start: int
    inside: int
    end: int


def walk(file: BinaryIO, start: int, end: int) -> Iterator[Field]:
    """Yields the fields between two places of a file. Raises DamagedError where they do not end at `end`."""
    place = start
    while place < end:
        file.seek(place)
        key = _read_varint(file)
        length = _read_length(file, key & 7, place)
        inside = file.tell()
        if inside + length > end:
            raise DamagedError(
                f"truncated: the field at byte {place} ends {inside + length - end} bytes beyond what is"
                " there"
            )
        yield Field(key >> 3, place, inside, inside + length)
        place = inside + length


def inside(file: BinaryIO, fields: list[Field], number: int) -> list[Field]:
    """Returns the fields of a number that are directly inside of these. Raises DamagedError as `walk`."""
    found = (one for field in fields for one in walk(file, field.inside, field.end))
    return [one for one in found if one.number == number]


def _read_length(file: BinaryIO, kind: int, place: int) -> int:
    """Returns the number of bytes of a field that are still to come; a number is read here."""
    if kind == _BYTES:
        return _read_varint(file)
    if kind == _VARINT:
        _read_varint(file)
    elif kind not in _FIXED:
        raise DamagedError(f"no ONNX model, or damaged at byte {place}")
    return _FIXED.get(kind, 0)


def _read_varint(file: BinaryIO) -> int:
    """Reads a number of 7 bits a byte, the lowest first; the top bit says that more follow."""
    value = 0
    for shift in range(0, 70, 7):
        byte = file.read(1)
        if not byte:
            break
        value |= (byte[0] & 0x7F) << shift
        if byte[0] < 0x80:
            return value
    raise DamagedError(f"truncated or damaged at byte {file.tell()}")


def bytes_of(file: BinaryIO, start: int, end: int) -> bytes:
    """Returns the bytes between two places of a file."""
    file.seek(start)
    return file.read(end - start)


def head_of(number: int, length: int) -> bytes:
    """Returns key and length of a field of bytes."""
    return _varint(number << 3 | _BYTES) + _varint(length)


def _varint(value: int) -> bytes:
    result = bytearray()
    while value >= 0x80:
        result.append(value & 0x7F | 0x80)
        value >>= 7
    result.append(value)
    return bytes(result)
