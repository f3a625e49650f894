"""Dumps of MediaWiki: the text that wikiextractor's command makes, from any split; what is left out is
counted.
"""

import bz2

import pytest

from official.data.text import documents as documents_lib
from tests.data.text.mediawiki_dump import make_dump, needs_extractor, page
from tests.data.text.test_bzip2_blocks import read_parts
from tests.data.text.test_documents import read, write


@needs_extractor
def test_an_article_becomes_plain_sentences(tmp_path):
    documents, counts = read(write(tmp_path / "dump.xml", make_dump(10)))
    assert len(documents) == 7 == counts.documents
    first = " ".join(documents[0])
    assert 'It was made in 1900. It was "lost" in a fire. 2024 passed.' in first
    for dropped in ("Infobox", "Cited", "comment", "caption", "Cell", "a point", "Category", "[["):
        assert dropped not in first, first
    assert (counts.redirect_pages, counts.other_pages, counts.unreadable_pages) == (1, 2, 0)
    assert counts.skipped_lines == counts.empty_documents == 0


@needs_extractor
@pytest.mark.parametrize("pack", [bytes, lambda data: bz2.compress(data, 1)], ids=["xml", "bz2"])
def test_pages_belong_to_one_split_each(tmp_path, pack):
    path = write(tmp_path / "dump", pack(make_dump(60, filler=120).encode()))
    whole = read(path)
    size = whole[1].bytes
    for parts in (2, 7, 40):
        found, counts = read_parts(path, [size * number // parts for number in range(parts)], "auto")
        assert (found, counts) == whole
    assert whole[1].documents == 42 and whole[1].other_pages == 12


@needs_extractor
def test_a_long_page_is_whole(tmp_path):
    sentence = "The sentence goes on with a number of words. "
    text = sentence * 50_000  # 2.2 MB on one line
    path = write(tmp_path / "dump", "<mediawiki>\n" + page("A", text, 1) + page("B", "Short. Text.", 2))
    documents, counts = read(path)
    assert [len(document) for document in documents] == [50_000, 2]
    assert (counts.cut_documents, counts.cut_lines, counts.unreadable_pages) == (0, 0, 0)


@needs_extractor
def test_pages_that_cannot_be_read_are_counted(tmp_path, monkeypatch):
    good = page("Good", "A text. Another one.", 1)
    broken = page("Broken", "text", 2).replace("</revision>", "")
    endless = page("Endless", "text", 3).replace("</page>", "")
    path = write(tmp_path / "dump", "<mediawiki>\n" + good + broken + endless + good + endless)
    documents, counts = read(path)
    assert documents == [["A text.", "Another one."]] * 2 and counts.unreadable_pages == 3
    monkeypatch.setattr(documents_lib, "_MAX_PAGE_CHARACTERS", 500)
    path = write(tmp_path / "dump", "<mediawiki>\n" + page("Large", "text\n" * 200, 1) + good)
    counts = read(path)[1]
    assert (counts.unreadable_pages, counts.documents) == (1, 1)
    monkeypatch.undo()

    def fail(*given):
        raise IndexError

    monkeypatch.setattr(documents_lib, "_cleaner", lambda: fail)
    assert read(write(tmp_path / "one", "<mediawiki>\n" + good))[1].unreadable_pages == 1


@needs_extractor
def test_the_last_revision_counts_and_a_deleted_text_is_empty(tmp_path):
    more = "</revision>\n<revision><text>New text.</text></revision>"
    two = page("A", "Old text.", 1).replace("</revision>", more)
    deleted = page("B", "", 2).replace("></text>", " />")
    documents, counts = read(write(tmp_path / "dump", "<mediawiki>\n" + two + deleted))
    assert documents == [["New text."]] and counts.empty_documents == 1


def test_the_index_beside_a_dump_holds_no_text(tmp_path):
    lines = b"".join(b"%d:%d:Title %d\n" % (600 + n, n, n) for n in range(2000))
    path = write(tmp_path / "enwiki-pages-articles-multistream-index.txt.bz2", bz2.compress(lines))
    documents, counts = read(path)
    assert documents == [] and counts.text_bytes == len(lines)
    assert len(read(write(tmp_path / "times.txt", lines))[0]) == 1  # by another name it is text
