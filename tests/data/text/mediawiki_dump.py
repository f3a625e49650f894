"""A small MediaWiki dump of own text, with the mark-up that real ones have."""

import html

_HEAD = """<mediawiki xmlns="http://www.mediawiki.org/xml/export-0.11/" version="0.11" xml:lang="en">
  <siteinfo>
    <sitename>Wikipedia</sitename>
    <base>https://en.wikipedia.org/wiki/Main_Page</base>
    <namespaces>
      <namespace key="0" case="first-letter" />
      <namespace key="1" case="first-letter">Talk</namespace>
      <namespace key="10" case="first-letter">Template</namespace>
    </namespaces>
  </siteinfo>
"""
_PAGE = """  <page>
    <title>{title}</title>
    <ns>{ns}</ns>
    <id>{number}</id>
{redirect}    <revision>
      <id>{number}</id>
      <timestamp>2024-05-06T07:08:09Z</timestamp>
      <contributor>
        <username>Somebody</username>
        <id>7</id>
      </contributor>
      <comment>more &amp; better</comment>
      <model>{model}</model>
      <format>text/x-wiki</format>
      <text bytes="{size}" xml:space="preserve">{text}</text>
    </revision>
  </page>
"""
_ARTICLE = """{{{{Infobox thing|name={title}|size=3 {{{{convert|3|m}}}}}}}}
[[File:Thing.jpg|thumb|A [[caption]] of it.]]
'''{title}''' is a ''thing'' about {word} &mdash; see [[{word} (x)|{word}]] and [[other]]s.<ref name="a">Cited
& counted.</ref> It costs 3&nbsp;< 5 euros & more.<!-- a comment -->

 An indented line, which stays a line.

== History ==
{{{{main|History of {title}}}}}
It was made in {year}. It was ''[[lost]]'' in [http://example.com a fire].<ref name="b"/>
{{{{CURRENTYEAR}}}} passed.

* a point
* another one with <math>x < y</math>

=== Empty ===

== Literal ==
The tag &lt;ref&gt; and <nowiki>[[no link]]</nowiki> are shown. {{|
{{| class="wikitable"
! Head
|-
| Cell || [[Cell]]
|}}
After the table it goes on. It ends here.

[[Category:Things]]
"""


def page(title: str, text: str, number: int, ns: int = 0, redirect: str = "", model: str = "wikitext") -> str:
    """Returns the XML of a page."""
    target = f'    <redirect title="{redirect}" />\n' if redirect else ""
    escaped = html.escape(text).replace("&#x27;", "'")
    values = {"title": html.escape(title), "redirect": target, "text": escaped, "size": len(text.encode())}
    return _PAGE.format(ns=ns, number=number, model=model, **values)


def make_dump(articles: int, filler: int = 0) -> str:
    """Returns a dump: of each ten pages one is a redirect, one a talk page and one no wikitext.

    Args:
      articles: pages.
      filler: sentences that are added to each.
    """
    words, pages = "alpha beta gamma delta epsilon zeta eta theta".split(), []
    for number in range(articles):
        title, word = f"Thing & {words[number % 8]}: {number}", words[number * 3 % 8]
        text = _ARTICLE.format(title=title, word=word, year=1900 + number)
        more = (
            f"Sentence {n} of {number} says {words[(n + number) % 8]} & {n * number}." for n in range(filler)
        )
        text += "\n" + " ".join(more)
        kind = number % 10
        if kind == 3:
            pages.append(page(title, f"#REDIRECT [[{word}]]", number, redirect=word))
        elif kind == 5:
            pages.append(page(f"Talk:{title}", text, number, ns=1))
        elif kind == 7:
            pages.append(page(title, '{"a": "b"}', number, model="json"))
        else:
            pages.append(page(title, text, number))
    return _HEAD + "".join(pages) + "</mediawiki>\n"
