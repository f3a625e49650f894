"""Pages of a MediaWiki dump -> paragraphs of plain text, with the rules of wikiextractor, whose functions are
called: its command with --no-templates makes the same text.

An article is a page of namespace 0 that is no redirect. Of several revisions the last one counts.
"""

import functools
import html
from collections.abc import Callable, Iterable, Iterator
from xml.etree import ElementTree

from official.data.text.read_counts import ReadCounts
from official.io.errors import ConfigError, how_to_install

_PAGE_START, _PAGE_END = "<page>", "</page>"
_MOST_PAGE_CHARACTERS = 1 << 26  # MediaWiki's limit is 2 MB of wikitext; more are all revisions of a page
_WIKITEXT = ("wikitext", "")  # the second: dumps of before 2012 do not say


def opens_page(line: str) -> bool:
    """Tells whether a page begins with a line."""
    return line.lstrip().startswith(_PAGE_START)


def read_articles(lines: Iterable[tuple[bool, str]], counts: ReadCounts) -> Iterator[tuple[str, str]]:
    """Yields title and text of the articles.

    Args:
      lines: whether each opens a page, and the line with its white space.
      counts: pages that are no articles, or cannot be read, are counted.
    """
    to_text = _cleaner()
    for page in _pages(lines, counts):
        found = _article_of(page, counts)
        if found is None:
            continue
        title, wikitext, time = found
        try:
            yield title, to_text(title, wikitext, time)
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError, OverflowError):
            counts.unreadable_pages += 1  # wikitext that the extractor does not stand


def _pages(lines: Iterable[tuple[bool, str]], counts: ReadCounts) -> Iterator[str]:
    """Yields the XML of each page; one that does not end, or is too large, is counted."""
    page: list[str] | None = None
    characters = 0
    for opens, line in lines:
        if opens:
            counts.unreadable_pages += page is not None
            page, characters = [], 0
        if page is None:
            continue
        page.append(line)
        characters += len(line)
        if line.rstrip().endswith(_PAGE_END):
            yield "\n".join(page)
            page = None
        elif characters > _MOST_PAGE_CHARACTERS:
            counts.unreadable_pages += 1
            page = None
    counts.unreadable_pages += page is not None


def _article_of(page: str, counts: ReadCounts) -> tuple[str, str, str] | None:
    """Returns title, wikitext and time of a page, or None where it is counted as no article."""
    try:
        element = ElementTree.fromstring(page)
    except ElementTree.ParseError:
        counts.unreadable_pages += 1
        return None
    revisions = element.findall("revision")
    revision = revisions[-1] if revisions else element
    if element.find("redirect") is not None:
        counts.redirect_pages += 1
    elif element.findtext("ns") != "0" or revision.findtext("model", "") not in _WIKITEXT:
        counts.other_pages += 1
    else:
        return (
            (element.findtext("title") or "").strip(),
            revision.findtext("text") or "",
            revision.findtext("timestamp") or "",
        )
    return None


@functools.cache
def _cleaner() -> Callable[[str, str, str], str]:
    """Returns a function of title, wikitext and time of a page that returns its text, a paragraph a line."""
    try:
        from wikiextractor import extract  # late: only dumps need it
    except ImportError:
        raise ConfigError(
            f"a MediaWiki dump needs the package wikiextractor: {how_to_install('wikipedia')}, or give"
            " the text that an extractor makes of the dump."
        ) from None
    ignored = [*extract._DEFAULT_IGNORED_TAG_PATTERNS, extract.ignoreTag("a")]  # links become their text

    def to_text(title: str, wikitext: str, time: str) -> str:
        extractor = extract.Extractor("", "", "", title, [], ignored_tag_patterns=ignored)
        namespace, colon, _ = title.partition(":")
        words = {"namespace": namespace if colon else "", "pagename": title, "fullpagename": title}
        # That of the page, in place of the clock: the same dump gives the same text.
        date, _, clock = time.partition("T")
        year, month, day, *_ = [*date.split("-"), "", "", ""]
        words |= {"currentyear": year, "currentmonth": month, "currentday": day}
        words |= {"currenthour": clock[:2], "currenttime": clock[:8]}
        for name, value in words.items():
            extractor.magicWords[name] = value
        # As it stands in the dump: the extractor takes the characters apart that were escaped once and twice.
        escaped = html.escape(wikitext)
        cleaned = extract.clean(extractor, escaped, expand_templates=True, html_safe=False)
        return "\n".join(extract.compact(cleaned, extractor=extractor))

    return to_text
