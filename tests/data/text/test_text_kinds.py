"""What is text and what is not: files that are refused by name, lines that end in carriage returns, JSON
arrays.
"""

import gzip
import json
import os
import random
import tracemalloc

import pytest

from official.data.text import documents as documents_lib
from official.data.text import text_files
from official.data.text.documents import ReadCounts
from official.io import files
from official.io.errors import ConfigError
from tests.data.text.test_documents import plan_splits, read, write
from tests.refusals import assert_refused

TEXT = "The caf\u00e9 is open. It is na\u00efve to go.\n\nThe second document.\n" * 50


NOT_TEXT = {
    "random": (random.Random(1).randbytes(1 << 17), "holds NUL bytes: it is binary, not text. Leave it out"),
    "png": (b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR", "is a PNG picture, not text. Leave it out of --input_files"),
    "zip": (b"PK\x03\x04\x14\0\0\0", "is a zip archive. Allowed: plain text"),
    "html": (b"\xef\xbb\xbf\n<!DOCTYPE html>\n<html><p>One.</p></html>\n", r"is a web page \(HTML\)"),
    "xml": (b'<?xml version="1.0"?>\n<TEI><p>One.</p></TEI>\n', "is XML, whose mark-up is not text"),
    "tar": (b"name".ljust(257, b"\0") + b"ustar\0", "is a tar archive"),
    "late zero": (TEXT.encode() * 100 + b"A\0b.\n", "holds NUL bytes after its beginning"),
    "utf-16": (
        TEXT.encode("utf-16"),
        r"is UTF-16 text \(by its byte order mark\). .*iconv -f UTF-16 -t UTF-8",
    ),
    "utf-16-le": (TEXT.encode("utf-16-le"), r"is UTF-16LE text \(every second byte is NUL\). .*-f UTF-16LE"),
    "utf-16-be": (TEXT.encode("utf-16-be"), r"is UTF-16BE text .*iconv -f UTF-16BE"),
    "utf-32": (TEXT.encode("utf-32"), "is UTF-32 text"),
    "latin-1": (TEXT.encode("latin-1"), "is not UTF-8 text: 100 of [0-9,]+ bytes .*iconv -f WINDOWS-1252"),
}


def test_what_is_not_text_is_refused_by_name(tmp_path):
    for kind, (content, message) in NOT_TEXT.items():
        for pack in (bytes, gzip.compress):
            if kind == "zip" and pack is gzip.compress:
                message = "holds NUL bytes"
            with pytest.raises(ConfigError, match=f"/file.x {message}") as error:
                read(write(tmp_path / "file.x", pack(content)))
            assert len(str(error.value).removeprefix(str(tmp_path))) < 300
        if kind in ("png", "utf-16", "zip"):  # before any work
            with pytest.raises(ConfigError, match="/file.x is"):
                text_files.identify([write(tmp_path / "file.x", content)])


def test_tables_are_no_text(tmp_path):
    """All columns of a table would be text: ids, labels and dates. Names tell it, since its lines do not."""
    names = "a.csv", "b.TSV.gz", "csv.txt", "c.csv.txt"
    a, b, *texts = (write(tmp_path / name, b"id,text\n1,One.\n") for name in names)
    assert_refused(text_files.find_texts, [(path, f"{path} is a table, .*--text_field") for path in (a, b)])
    assert all(text_files.find_texts(path) == [path] for path in texts)


def test_identities_tell_other_content_of_the_same_size(tmp_path):
    path = tmp_path / "a"
    before = text_files.identify([write(path, "x" * 1000)])
    os.utime(path, ns=(5, 5))
    assert text_files.identify([str(path)]) == before  # a small file that was touched is the same
    for size in (1000, 1 << 20):
        seen, content = set(), bytearray(b"x" * size)
        for place in (None, 0, size // 2 + 5, size - 1):
            content = bytearray(b"x" * size)
            if place is not None:
                content[place] = ord("y")
            write(path, bytes(content))
            os.utime(path, ns=(5, 5))
            seen.add(text_files.identify([str(path)])[str(path)])
        assert len(seen) == 4
        content[size // 4] = ord("z")  # in none of the samples of a large file: the time of the change tells
        write(path, bytes(content))
        assert text_files.identify([str(path)])[str(path)] not in seen


# ------------------------------------------------------------------------------------------------------------
# Carriage returns


def test_lines_end_in_carriage_returns_where_there_is_no_line_feed(tmp_path):
    text = "He came. He left.\nOn.\n\nA dog.\nA cat.\n"
    expected = read(write(tmp_path / "a", text))[0]
    assert read(write(tmp_path / "b", text.replace("\n", "\r")))[0] == expected
    assert read(write(tmp_path / "c", gzip.compress(text.replace("\n", "\r").encode())))[0] == expected
    documents = read(write(tmp_path / "a", "One\rstill one.\nTwo.\n"), splitting="never")[0]
    assert documents == [["One\rstill one.", "Two."]]


# ------------------------------------------------------------------------------------------------------------
# JSON arrays

PAGES = [
    {"id": 1, "title": "A", "text": "A\nMr. Smith came. He left."},
    {"text": "Na\u00efve \U0001f600.", "more": [1, {"x": "]"}]},
    'Only "text". More.',
]
READ = [["Mr. Smith came.", "He left."], ["Na\u00efve \U0001f600."], ['Only "text".', "More."]]


def test_an_array_of_objects_and_texts_is_read_like_json_lines(tmp_path, monkeypatch):
    for dump in (
        json.dumps,
        lambda value: json.dumps(value, indent=2, ensure_ascii=False),
        lambda value: "\ufeff\n " + json.dumps(value, separators=(",", ":")) + "\n",
    ):
        path = write(tmp_path / "a.json", dump([*PAGES, 3.25, None, {"title": "no text"}]))
        for chunk in (7, 1 << 20):
            monkeypatch.setattr(documents_lib, "_CHUNK_BYTES", chunk)
            documents, counts = read(path)
            assert documents == READ and counts.skipped_lines == 3
            assert counts.text_bytes == counts.bytes == os.path.getsize(path)
        assert read(write(tmp_path / "b.json", dump([PAGES[2]])))[0] == READ[2:]
        assert plan_splits([path], 10) == [text_files.Split(path)]


def test_what_is_no_array_of_documents(tmp_path):
    for text in ("[]", " [ ] \n"):
        assert read(write(tmp_path / "a.json", text))[0] == []
    for text in ("[1] A note.\nMore.", '["A quotation" is here]', "[A bracket]", "[\nA line."):
        assert read(write(tmp_path / "a", text), splitting="never")[0] == [text.split("\n")]
    cases = (
        ('[{"text": "a"}, {"text": "b', 2),
        ('[{"text": "a"} {"text": "b"}]', 2),
        ('[{"text": "a"}] x', 2),
        ('[{"text": "a"},]', 2),
        ('[{"text": ' + "[" * 100_000, 1),
    )
    told = "a.json is not a whole JSON array: element {}: ".format
    assert_refused(
        lambda text: read(write(tmp_path / "a.json", text)), [(text, told(each)) for text, each in cases]
    )


def test_memory_is_bounded_for_an_array_of_24_megabytes(tmp_path):
    path = write(tmp_path / "a.json", json.dumps([{"text": "words and " * 1000}] * 2400))
    with open(path, "rb") as file:
        tracemalloc.start()
        count = sum(1 for _ in documents_lib.read_elements(file, path, ReadCounts()))
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert count == 2400 and peak < 12e6


def test_an_element_that_is_too_long_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setattr(documents_lib, "_MAX_ELEMENT_BYTES", 100)
    monkeypatch.setattr(documents_lib, "_CHUNK_BYTES", 50)
    with pytest.raises(ConfigError, match="element 2: it has more than 100 bytes"):
        read(write(tmp_path / "a.json", json.dumps(["a", "x" * 1000])))


def test_very_many_files_are_told_from_others_by_names_sizes_and_times(tmp_path, monkeypatch):
    monkeypatch.setattr(text_files, "_MAX_OPENED", 2)
    paths = [write(tmp_path / str(number), "text") for number in range(3)]
    before = text_files.identify(paths)
    assert list(before) == ["all 3 files"] and text_files.identify(paths) == before
    assert text_files.identify(paths, files.versions(paths)) == before
    seen = [before]
    for change in (
        lambda: os.utime(paths[1], ns=(1, 1)),
        lambda: write(tmp_path / "1", "texts"),
        lambda: paths.append(write(tmp_path / "3", "text")),
    ):
        change()
        seen.append(text_files.identify(paths))
        assert seen[-1] not in seen[:-1]
