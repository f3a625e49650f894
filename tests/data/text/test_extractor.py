"""Output of wikiextractor: the same documents, whether its characters are escaped for HTML or not."""

import html
import itertools
import json

import pytest

from official.data.text import text_files
from official.data.text.documents import ReadCounts, read_documents, read_splits
from tests import programs
from tests.data.text import mediawiki_dump

PAGES = [
    ('AT&T "x" <y>', ['It is 5 < 6 & 7 > 3, "so" it\'s told.', "The entity &amp; is that of &."]),
    ("Plain", ["Nothing is here to escape.", "Another paragraph."]),
    ("Entities", ["The text &lt; is shown as it stands.", "&amp;amp; is longer, and &#772; and &foo; stay."]),
]


def form_of(pages, form: str, escape) -> str:
    """Returns pages as the tool writes them; a title is always escaped."""
    texts = []
    for number, (title, paragraphs) in enumerate(pages):
        title, text = html.escape(title, quote=True), "\n".join(map(escape, paragraphs))
        url = f"https://en.wikipedia.org/wiki?curid={number}"
        page = {"id": str(number), "revid": "7", "url": url, "title": title, "text": text}
        more = ' language="en" revision="3"' if form == "doc with more" else ""
        block = f'<doc id="{number}" url="{url}" title="{title}"{more}>\n{title}\n\n{text}\n\n</doc>\n'
        texts.append({"json": json.dumps(page) + "\n", "text": f"{text}\n\n\n"}.get(form, block))
    return "".join(texts)


def quotes_too(text: str) -> str:
    return html.escape(text).replace("&#x27;", "&#39;")


def read(path) -> list[list[str]]:
    return list(read_documents([str(path)], ReadCounts(), "never"))


@pytest.mark.parametrize("filler", [0, 300])
def test_every_form_holds_the_same_escaped_or_not_in_any_split(tmp_path, filler):
    """Beyond the beginning of a file its own document tells whether a text is escaped."""
    path, wrong = tmp_path / "wiki_00", []
    filling = [(f"T{number}", [f"Nothing to escape in {number}." * 20]) for number in range(filler)]
    pages = [*filling, *PAGES[: 2 if filler else 3]]
    expected = [" ".join(paragraphs) for _, paragraphs in pages]
    for form in ("doc", "doc with more", "json", "text"):
        for escape in (str, lambda text: html.escape(text, quote=False), quotes_too, html.escape):
            path.write_text(form_of(pages, form, escape), encoding="utf-8")
            size = path.stat().st_size
            bounds = [0, size // 3, size - 300, None] if filler else [0, None]
            splits = [text_files.Split(str(path), *ends) for ends in itertools.pairwise(bounds)]
            found = [" ".join(document) for document in read_splits(splits, "never", ReadCounts())]
            if found != expected:
                wrong.append((form, path.read_text()[:300], found[-3:]))
    assert not wrong


def test_a_line_of_attributes_without_end_takes_no_time(tmp_path):
    """A search for its title would take 20 minutes."""
    path = tmp_path / "wiki_00"
    path.write_text('<doc id="1" title="" ' + 'a="" ' * 150_000 + "\nA text.\n</doc>\n")
    assert read(path) == [["A text."]]


def test_other_files_keep_their_entities(tmp_path):
    line, wrong = "It is AT&amp;T, 5 &lt; 6 and &quot;so&quot;.", []
    other = {"id": "1", "url": "https://en.wikipedia.org/wiki/T", "title": "T", "text": line}
    for name, text in {
        "plain": f"{line}\n\n{line}\n",
        "one document": f"{line}\n{line}\n",
        "three blank lines": f"{line}\n\n\n\n{line}\n\n\n\n",
        "JSON lines": json.dumps({"title": "T", "text": line}) + "\n",
        "another data set": json.dumps(other) + "\n",
        "JSON array": json.dumps([line]),
        "WikiText": f" = T = \n\n {line} \n",
    }.items():
        (tmp_path / "file").write_text(text, encoding="utf-8")
        found = read(tmp_path / "file")
        if not found or {sentence for document in found for sentence in document} != {line}:
            wrong.append((name, found))
    assert not wrong


@mediawiki_dump.needs_extractor
def test_the_tool_s_own_output_holds_the_text_that_is_read_of_the_dump(tmp_path):
    """Its command takes the year from the clock and cannot read pages of other content models apart."""
    dump, found = tmp_path / "dump.xml", {}
    pages = mediawiki_dump.make_dump(20).replace("<model>json<", "<model>wikitext<")
    dump.write_text(pages.replace("{{CURRENTYEAR}}", ""), encoding="utf-8")
    for form, safe in itertools.product(("", "--json", "--text"), ("True", "")):
        out = tmp_path / f"out{form}{safe}"
        options = ["--processes=1", f"--html-safe={safe}", f"--output={out}", *([form] if form else [])]
        given = dump, "--no-templates", "--quiet", *options
        assert programs.run("-m", "wikiextractor.WikiExtractor", *given).returncode == 0
        written = out / "AA" / "wiki_00"
        assert ("&amp;" in written.read_text().replace("Thing &amp;", "")) == bool(safe) or form == ""
        found[form, safe] = [" ".join(document) for document in read(written)]
    expected = [" ".join(document) for document in read(dump)]
    assert len(expected) > 10 and any("3\xa0< 5 euros & more" in document for document in expected)
    assert [key for key, documents in found.items() if documents != expected] == []
