"""Corpora as other people publish them: JSON lines with another field, zstd, Parquet."""

import datetime
import io
import json
import sys

import pytest
import tensorflow as tf

from official.cli import text as text_lib
from official.data.text import documents, preparation, text_files
from official.data.text.documents import ReadCounts, read_splits
from official.io.errors import ConfigError
from tests.data.text.mediawiki_dump import make_dump
from tests.data.text.test_bzip2_blocks import read_parts
from tests.data.text.test_documents import plan_splits, write
from tests.data.text.test_documents import read as read_files
from tests.refusals import assert_refused

TEXTS = [f"Document {number}. It has a second sentence." for number in range(50)]
SENTENCES = [text.replace(". ", ".\n").split("\n") for text in TEXTS]


def read(path, field):
    return read_files(path, field=field)


# ------------------------------------------------------------------------------------------------------------
# JSON


def test_the_field_with_the_text_is_given(tmp_path):
    for field, make in (
        ("content", lambda text: {"id": 1, "content": text}),
        ("a.b", lambda text: {"a.b": text, "text": "other"}),
    ):
        pages = list(map(make, TEXTS))
        for text in (json.dumps(pages), "\n".join(map(json.dumps, pages))):
            found, counts = read(write(tmp_path / "a.json", text), field)
            assert found == SENTENCES and counts.skipped_lines == 0


def test_a_field_that_is_not_there_is_an_error_that_names_those_that_are(tmp_path):
    page = {"id": 3, "raw": {"content": "Text."}, "title": "T", "none": None}
    path = write(tmp_path / "a.jsonl", json.dumps(page) + "\n" + json.dumps({"more": "x"}))
    array = write(tmp_path / "a.json", json.dumps([{"content": "x", "n": 1}] * 3))
    assert read(path, "raw")[1].skipped_lines == 2  # it is there, and no text
    told = "{} has no field --text_field={}. Fields with text: {}[.]$".format
    cases = [(path, field, told(path, field, "title, more")) for field in ("text", "raw.content", "none")]
    assert_refused(read, [*cases, (array, "text", told(array, "text", "content"))])


def test_lines_without_the_field_among_others_are_skipped(tmp_path):
    path = write(tmp_path / "a.jsonl", '{"x": 1}\n{"text": "One."}\n{"text": null}\n[1]\n["text"]\n')
    found, counts = read(path, "text")
    assert found == [["One."]] and counts.skipped_lines == 4


def test_numbers_beside_the_text_may_be_of_any_size(tmp_path):
    """Hashes of 64 bits and more, and NaN, which Python's json writes."""
    rows = [f'{{"id": {number}, "text": "{text}"}}' for number, text in zip((2**63, 10**30, 1), TEXTS)]
    for text, count in (
        ("\n".join([*rows, f'{{"score": NaN, "best": -Infinity, "text": "{TEXTS[3]}"}}']), 4),
        (f"[{', '.join(rows)}]", 3),
    ):
        found, counts = read(write(tmp_path / "a.json", text), "text")
        assert found == SENTENCES[:count] and counts.skipped_lines == 0


def test_preparation_and_vocabularies_take_the_field(tmp_path):
    path = write(tmp_path / "a.jsonl", "\n".join(json.dumps({"content": text}) for text in TEXTS))
    job = preparation.Job(path, str(tmp_path / "out"), text_field="content")
    manifest = preparation.prepare(job)
    assert manifest["documents"] == 50 and manifest["flags"]["text_field"] == "content"
    with pytest.raises(ConfigError, match="has no field --text_field=text. Fields with text: content"):
        preparation.prepare(preparation.Job(path, str(tmp_path / "other")))
    assert len(text_lib.read_sentences(path, 1000, ReadCounts(), "content")) == 100
    for flags in (text_lib.Create, text_lib.Prepare, text_lib.Vocab):
        assert flags.parser().get_default("text_field") == "text"


# ------------------------------------------------------------------------------------------------------------
# zstd


def test_zstd_of_a_long_window_or_with_skippable_frames_is_read(tmp_path):
    """Other files of zstd are test_documents.py's."""
    zstd = pytest.importorskip("backports.zstd", reason="pip install '.[zstd]'")
    text = "\n".join(json.dumps({"text": text}) for text in TEXTS).encode()
    skippable = b"\x53\x2a\x4d\x18" + (5).to_bytes(4, "little") + b"\0abc\0"
    frames = zstd.compress(text[:100]) + zstd.compress(b"") + zstd.compress(text[100:])
    names, long_window = zstd.CompressionParameter, io.BytesIO()
    options = {names.window_log: 28, names.enable_long_distance_matching: 1}
    with zstd.ZstdFile(long_window, "w", options=options) as file:
        file.write(text)
    for packed in (long_window.getvalue(), skippable + frames + skippable):
        path = write(tmp_path / "a.jsonl.zst", packed)
        found, counts = read(path, "text")
        assert found == SENTENCES and (counts.bytes, counts.text_bytes) == (len(packed), len(text))
        assert plan_splits([path], 10) == [text_files.Split(path)] and text_files.identify([path])


# ------------------------------------------------------------------------------------------------------------
# Parquet


def write_parquet(path, columns: dict, rows_of_group: int = 7, **options) -> str:
    pyarrow = pytest.importorskip("pyarrow", reason="pyarrow is not installed (pip install '.[parquet]')")
    from pyarrow import parquet

    parquet.write_table(pyarrow.table(columns), str(path), row_group_size=rows_of_group, **options)
    return str(path)


@pytest.mark.parametrize("options", [{}, {"compression": "zstd", "use_dictionary": False}])
def test_a_row_is_a_document_and_row_groups_are_splits(tmp_path, options):
    path = write_parquet(tmp_path / "a.parquet", {"id": range(50), "text": TEXTS}, **options)
    whole, counts = read(path, "text")
    assert whole == SENTENCES
    assert (counts.documents, counts.text_bytes, counts.files) == (50, sum(map(len, TEXTS)), 1)
    splits = plan_splits([path], 40)
    assert len(splits) == 8 and text_files.identify([path])
    assert [len(list(read_splits([split], "auto", ReadCounts()))) for split in splits] == [7] * 7 + [1]
    size = counts.bytes
    for bounds in ([split.start for split in splits], [0, size // 3, size // 2, size - 1]):
        assert read_parts(path, bounds, "auto") == (whole, counts)


def test_columns_of_categories_and_rows_without_text(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    categories = pyarrow.array(TEXTS[:3] + [None, TEXTS[0]]).dictionary_encode()
    path = write_parquet(tmp_path / "a", {"c": categories, "d.e": TEXTS[:5]})
    assert read(path, "c")[0] == [*SENTENCES[:3], SENTENCES[0]] and read(path, "c")[1].skipped_lines == 1
    assert read(path, "d.e")[0] == SENTENCES[:5]


def test_a_column_that_is_not_there_is_an_error_that_names_those_that_are(tmp_path):
    when = [datetime.datetime(2024, 1, 1)]
    path = write_parquet(tmp_path / "a", {"content": ["x"], "meta": [{"title": "T", "n": 1}], "when": when})
    for field, what in (("text", "no column"), ("when", "no text, but timestamp.*, in the column")):
        message = f"/a has {what} --text_field={field}. .*: content.$"
        with pytest.raises(ConfigError, match=message):
            read(path, field)


def test_damaged_parquet_is_an_error(tmp_path):
    path = tmp_path / "a.parquet"
    write_parquet(path, {"text": TEXTS}, write_page_checksum=True, use_dictionary=False)
    good = path.read_bytes()
    flipped = bytearray(good)
    flipped[200] ^= 0xFF
    for damaged in (good[:-5], good[:100], b"PAR1", flipped):
        path.write_bytes(bytes(damaged))
        with pytest.raises(ConfigError, match="a.parquet is a truncated or damaged Parquet file: .*Fetch"):
            read(str(path), "text")


def test_parquet_of_a_store_is_read_alike(tmp_path):
    path = write_parquet(tmp_path / "a.parquet", {"text": TEXTS})
    with tf.io.gfile.GFile("ram://a.parquet", "wb") as file, open(path, "rb") as local:
        file.write(local.read())
    assert read("ram://a.parquet", "text")[0] == SENTENCES
    assert len(plan_splits(["ram://a.parquet"], 40)) == 8


def test_what_a_missing_package_would_read_says_what_to_install(tmp_path, monkeypatch):
    documents._cleaner.cache_clear()
    for names, content, message in (
        (("backports", "backports.zstd"), b"\x28\xb5\x2f\xfd rest", r"pip install '\.\[zstd\]'"),
        (("pyarrow",), b"PAR1 and more", r"a is a Parquet file, .*pip install '\.\[parquet\]'"),
        (("wikiextractor",), make_dump(1), r"a MediaWiki dump needs .* pip install '\.\[wikipedia\]'"),
    ):
        for name in names:
            monkeypatch.setitem(sys.modules, name, None)
        with pytest.raises(ConfigError, match=message):
            read(write(tmp_path / "a", content), "text")
