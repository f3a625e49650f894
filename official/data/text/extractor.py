"""Output of wikiextractor: whether its characters are escaped for HTML, and the text without that.

Its command escapes `&`, `<` and `>` unless --html-safe is empty; older ones escape quotes, too. A text in
which one of `&<>` stands by itself is therefore not escaped. Near the beginning of a file it tells that of
all documents in it, later of its own document. A title is escaped in either case.
"""

import html
import re

_ENTITY = re.compile("&(?:amp|lt|gt|quot|apos|#0?39|#x27|#34);")
_BARE = re.compile(f"[<>]|&(?!{_ENTITY.pattern[1:]})")
_MADE = re.compile("</?(?:ul|ol|dl|li|dt|dd|h[1-6]|p)>|</<li>")  # by --html, after the text was escaped
_PAGE_URL = "?curid="  # of the address of a page, by its number, as only the tool writes it


def is_bare(text: str) -> bool:
    """Tells whether a text holds characters that the tool would have escaped."""
    return _BARE.search(_MADE.sub("", text)) is not None


def without_escapes(document: list[str], is_bare_file: bool = False) -> list[str]:
    """Returns the paragraphs of a document with the characters that the tool escaped; as they are where
    they, or others of the file, are not escaped."""
    if is_bare_file or not any(map(_ENTITY.search, document)) or any(map(is_bare, document)):
        return document
    return [_ENTITY.sub(lambda entity: html.unescape(entity[0]), paragraph) for paragraph in document]


def made(value: object) -> bool:
    """Tells whether a value of JSON is a page that the tool wrote."""
    if not isinstance(value, dict) or not value.keys() >= {"id", "url", "title", "text"}:
        return False
    return "revid" in value or isinstance(value["url"], str) and _PAGE_URL in value["url"]


def wrote_text(head: str, is_whole: bool) -> bool:
    """Tells whether a file that begins so is of --text, whose documents each end with two blank lines."""
    ends = re.findall("\n\n+", head if is_whole else head.rstrip("\n"))
    return bool(ends) and all(len(end) % 3 == 0 for end in ends) and (not is_whole or head.endswith("\n\n\n"))
