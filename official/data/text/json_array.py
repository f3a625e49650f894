"""One JSON array -> its elements, one after the other, in bounded memory."""

import codecs
import json
import re
from collections.abc import Iterator
from typing import BinaryIO

from official.data.text import text_kinds
from official.io.errors import ConfigError

_CHUNK_BYTES = 1 << 20
_MOST_ELEMENT_CHARACTERS = 1 << 24  # the longest article has about 3 MB
_SPACE = re.compile(r"[ \t\r\n]*")
_UNDECODABLE = re.compile("[\udc80-\udcff]")  # what "surrogateescape" makes of a byte that is not UTF-8


def read_elements(file: BinaryIO, path: str, counts) -> Iterator:
    """Yields the elements of an array as Python values.

    Args:
      file: UTF-8; bytes that are not are left out.
      path: its name, for messages.
      counts: `text_bytes` and `undecodable_bytes` grow with what is read.

    Raises:
      ConfigError: for what is not a whole array, or an element of more than 16 million characters. Behind a
        damage no element can be found.
    """
    text = _Text(file, path, counts)
    number, wanted = 0, "["
    while text.next_character() == wanted:
        text.place += 1
        if number == 0 and text.next_character() == "]":
            break
        number += 1
        yield text.read_value(number)
        wanted = ","
    if text.next_character() != "]":
        raise _broken(path, number, "it does not end there with a comma or the bracket")
    text.place += 1
    if text.next_character():
        raise _broken(path, number, "there is more after the end of the array")


class _Text:
    """The part of the text that is in memory, and the place in it that was come to."""

    def __init__(self, file: BinaryIO, path: str, counts):
        self._file, self._path, self._counts = file, path, counts
        self._decoder = codecs.getincrementaldecoder("utf-8-sig")("surrogateescape")
        self._json = json.JSONDecoder()
        self._text, self._is_whole, self.place = "", False, 0

    def next_character(self) -> str:
        """Goes to the next character that is not white space and returns it, '' at the end."""
        while True:
            self.place = _end_of_space(self._text, self.place)
            if self.place < len(self._text) or not self._grow():
                return self._text[self.place : self.place + 1]

    def read_value(self, number: int):
        """Returns element `number`, which begins here, and goes behind it."""
        self.next_character()
        while True:
            try:
                value, end = self._json.raw_decode(self._text, self.place)
                if (
                    end < len(self._text) or not self._grow()
                ):  # a number that ends with what is in memory may go on
                    self.place = end
                    return value
            except json.JSONDecodeError as error:
                if not self._grow():
                    raise _broken(self._path, number, error.msg) from None
            except (ValueError, RecursionError) as error:
                raise _broken(
                    self._path,
                    number,
                    "nested too deep" if isinstance(error, RecursionError) else "a number is too long",
                ) from None
            if len(self._text) - self.place > _MOST_ELEMENT_CHARACTERS:
                raise _broken(self._path, number, f"it has more than {_MOST_ELEMENT_CHARACTERS:,} characters")

    def _grow(self) -> bool:
        """Takes in more text, as much again as is left; tells whether there was any."""
        if self._is_whole:
            return False
        data = self._file.read(max(_CHUNK_BYTES, len(self._text) - self.place))
        self._is_whole = not data
        text_kinds.refuse_zeros(self._path, data)
        more, undecodable = _UNDECODABLE.subn("", self._decoder.decode(data, final=self._is_whole))
        self._text, self.place = self._text[self.place :] + more, 0
        self._counts.text_bytes += len(data)
        self._counts.undecodable_bytes += undecodable
        return bool(data or more)


def _end_of_space(text: str, place: int) -> int:
    found = _SPACE.match(text, place)
    return found.end() if found else place


def _broken(path: str, number: int, what: str) -> ConfigError:
    return ConfigError(
        f"{path} is not a whole JSON array: element {number}: {what[:100]}. Repair it, or leave it out of"
        " --input_files."
    )
