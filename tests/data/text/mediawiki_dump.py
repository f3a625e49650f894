"""A small MediaWiki dump of own text, with the mark-up that real ones have."""

import html
import importlib.util
import pathlib

import pytest

PARTS = pathlib.Path(__file__).parent / "dump"
HEAD, PAGE, ARTICLE = ((PARTS / name).read_text() for name in ("head.xml", "page.xml", "article.wiki"))
WORDS = "alpha beta gamma delta epsilon zeta eta theta".split()

needs_extractor = pytest.mark.skipif(
    importlib.util.find_spec("wikiextractor") is None,
    reason="wikiextractor is not installed (pip install '.[wikipedia]')",
)


def page(title: str, text: str, number: int, ns: int = 0, redirect: str = "", model: str = "wikitext") -> str:
    """Returns the XML of a page."""
    target = f'    <redirect title="{redirect}" />\n' if redirect else ""
    escaped = html.escape(text).replace("&#x27;", "'")
    values = {"title": html.escape(title), "redirect": target, "text": escaped, "size": len(text.encode())}
    return PAGE.format(ns=ns, number=number, model=model, **values)


def make_dump(articles: int, filler: int = 0) -> str:
    """Returns a dump: of each ten pages one is a redirect, one a talk page and one no wikitext.

    Args:
      articles: pages.
      filler: sentences that are added to each.
    """
    pages = []
    for number in range(articles):
        title, word = f"Thing & {WORDS[number % 8]}: {number}", WORDS[number * 3 % 8]
        text = ARTICLE.format(title=title, word=word, year=1900 + number)
        says = (f"says {WORDS[(n + number) % 8]} & {n * number}." for n in range(filler))
        text += "\n" + " ".join(f"Sentence {n} of {number} {each}" for n, each in enumerate(says))
        others = {
            3: page(title, f"#REDIRECT [[{word}]]", number, redirect=word),
            5: page(f"Talk:{title}", text, number, ns=1),
            7: page(title, '{"a": "b"}', number, model="json"),
        }
        pages.append(others.get(number % 10) or page(title, text, number))
    return HEAD + "".join(pages) + "</mediawiki>\n"
