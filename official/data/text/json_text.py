"""Values of JSON -> title and text of a document."""

import contextlib
import html
from collections.abc import Iterable, Iterator
from typing import Any

from official.data.text import extractor
from official.io import json_files
from official.io.errors import ConfigError

_MOST_NAMED = 20  # fields in a message


def parse_page(line: str, field: str, is_bare: bool = False) -> tuple[str, str] | None:
    """Returns title and text of a line of JSON, or None where it has no text; see `page_of`."""
    try:
        return page_of(json_files.parse_json(line, "a line"), field, is_bare)
    except ConfigError:
        return None


def page_of(value: object, field: str, is_bare: bool = False) -> tuple[str, str] | None:
    """Returns title and text of an object, or None where it has no text.

    Args:
      field: name of the field with the text; a.b stands for field b of the object in field a.
      is_bare: whether the text of pages that wikiextractor wrote is known not to be escaped for HTML.
    """
    text = _value_of(value, field)
    if not isinstance(value, dict) or not isinstance(text, str):
        return None
    title = str(value.get("title", ""))
    if extractor.made(value):
        title, text = html.unescape(title), extractor.without_escapes([text], is_bare)[0]
    return title.strip(), text


def _value_of(value: object, field: str) -> object:
    if not isinstance(value, dict):
        return None
    if field in value:
        return value[field]
    name, dot, rest = field.partition(".")
    return _value_of(value.get(name), rest) if dot else None


def parsed(lines: Iterable[str]) -> Iterator[Any]:
    """Yields the values of lines of JSON; others are passed over."""
    for line in lines:
        with contextlib.suppress(ConfigError):
            yield json_files.parse_json(line, "a line")


def check_field(values: Iterable[object], path: str, field: str) -> bool:
    """Tells whether an object has the field; False where there is no object. Raises ConfigError where there
    are objects and none has it: it names those with text."""
    seen: dict[str, None] | None = None
    for value in values:
        if _value_of(value, field) is not None:
            return True
        if isinstance(value, dict):
            seen = (seen or {}) | dict.fromkeys(_texts_in(value))
    if seen is not None:
        named = ", ".join(list(seen)[:_MOST_NAMED]) or "none"
        raise ConfigError(f"{path} has no field --text_field={field}. Fields with text: {named}.")
    return False


def _texts_in(value: object, before: str = "", depth: int = 0) -> list[str]:
    """Returns the fields of an object that hold text: a, b.c."""
    if not isinstance(value, dict) or depth > 3:
        return []
    found = [before + name for name, inner in value.items() if isinstance(inner, str)]
    for name, inner in value.items():
        found += _texts_in(inner, f"{before}{name}.", depth + 1)
    return found
