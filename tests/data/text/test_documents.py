"""From files to documents: finding files, formats, compression, sentences, splits that are read in parallel,
limits.
"""

import bz2
import contextlib
import functools
import gzip
import itertools
import json
import lzma
import os
import tracemalloc

import pytest
import tensorflow as tf
from hypothesis import example, given, settings
from hypothesis import strategies as st

from official.data.text import documents as documents_lib
from official.data.text import sentences, text_files
from official.data.text.documents import ReadCounts, read_documents, read_splits
from official.data.text.read_counts import FileCounts
from official.data.text.text_files import Split, plan_tasks
from official.io import files
from official.io.errors import ConfigError
from tests.fixtures import TEST_DATA, slow
from tests.refusals import assert_refused

PACK = {"gz": gzip.compress, "bz2": bz2.compress, "xz": lzma.compress}
with contextlib.suppress(ImportError):
    from backports import zstd

    checked = {zstd.CompressionParameter.checksum_flag: 1}
    PACK["zst"] = functools.partial(zstd.compress, options=checked)


def sizes_of(paths):
    return dict(zip(paths, files.sizes(paths)))


def plan_splits(paths, split_bytes):
    return [split for task in text_files.plan_tasks(sizes_of(paths), split_bytes) for split in task]


def write(path, text) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return str(path)


def read(*paths, splitting="auto", field="text"):
    counts = ReadCounts()
    return list(read_documents(paths, counts, splitting, field)), counts


def real_files(folder) -> list[str]:
    paths = sorted(str(path) for path in (TEST_DATA / folder).glob("*") if path.is_file())
    return paths or pytest.skip(f"{TEST_DATA / folder} is not there (BERT_TEST_DATA)")


# ------------------------------------------------------------------------------------------------------------
# Finding files


def test_files_folders_and_globs_are_found_once_and_sorted(tmp_path):
    names = ("a.txt", "b.txt", "x/a[1].txt", "x/a1.txt", "x/y/d.txt", "x/y/e.json", "x/.hidden", ".git/f.txt")
    a, b, c, c1, d, e = [write(tmp_path / name, "") for name in names][:6]
    find = functools.partial(files.find_files, flag="input_files")
    assert find(f"{b}, {tmp_path}/*.txt,{tmp_path}/x/../a.txt") == [a, b]
    assert find(f"{tmp_path}/**/*.txt") == [a, b, c1, c, d]
    assert find(c) == [c]  # not taken for a glob
    assert find(str(tmp_path)) == find(f"{tmp_path}/") == [a, b, c1, c, d, e]
    assert find(str(tmp_path / "x"), in_folders="*.json") == [e]
    (tmp_path / "empty").mkdir()
    cases = (
        (f"{a},{tmp_path}/c*", r"--input_files=.*/c\* matches no file\.$"),
        (f"{tmp_path}/empty", "--input_files=.*/empty matches no file"),
        (" ,", "--input_files is empty"),
        ("ram://nowhere/*", r"--input_files=ram://nowhere/\* matches no file"),
        ("nosuch://a/b", "nosuch:// cannot be reached"),
    )
    assert_refused(find, cases)


def test_remote_files_are_found_and_read_like_local_ones(tmp_path):
    text = "".join(f"Line {number}.\n\n" for number in range(300)).encode()
    stored = {"a.txt": text, "x/b.txt.gz": gzip.compress(text), "x/y/c.bz2": bz2.compress(text)}
    stored["x/.hidden"] = b"-"
    tf.io.gfile.makedirs("ram://text/x/y")
    for name, content in stored.items():
        with tf.io.gfile.GFile(f"ram://text/{name}", "wb") as file:
            file.write(content)
    a, b, c = (f"ram://text/{name}" for name in list(stored)[:3])
    for pattern, found in ((a, [a]), ("ram://text/**/?.txt*", [a, b]), ("ram://text/x/**", [b, c])):
        assert files.find_files(pattern, "input_files") == found, pattern
    expected, counts = read(write(tmp_path / "a.txt", text))
    assert read(a) == (expected, counts) and len(expected) == 300
    assert read(b)[0] == read(c)[0] == expected
    for path in (a, c):
        assert list(read_splits(plan_splits([path], 100), "auto", ReadCounts())) == expected
    with pytest.raises(ConfigError, match="ram://text/none cannot be read"):
        read("ram://text/none")


# ------------------------------------------------------------------------------------------------------------
# Formats


def test_plain_text_has_a_sentence_per_line_and_blank_lines_between_documents(tmp_path):
    path = write(tmp_path / "a.txt", "\n\ufeffOne. Still one.\n  Two.\r\n\n\u3000\n\nThree.")
    documents, counts = read(path, write(tmp_path / "empty.txt", "\n\n"))
    assert documents == [["One. Still one.", "Two."], ["Three."]]
    size = os.path.getsize(path) + 2
    assert counts == ReadCounts(files=2, bytes=size, text_bytes=size, documents=2, sentences=3)
    path = write(tmp_path / "b.txt", "One.\n\nTwo.\n<|endoftext|>\nThree.\n\n<|endoftext|>\n")
    assert read(path)[0] == [["One.", "Two."], ["Three."]]


def test_wikiextractor_blocks_lose_their_title_and_are_split_into_sentences(tmp_path):
    text = (
        '\n<doc id="1" url="u" title="A &amp; "B"">\nA & "B"\n\nMr. Smith came. He left.\nAgain a'
        " paragraph.\n</doc>\nstray\n"
        '<doc id="2" url="u" title="Only a title">\nOnly a title\n\n</doc>\n<doc id="3" url="u"'
        ' title="C">\nC\n\nC\nWithout an end.'
    )
    documents, counts = read(write(tmp_path / "wiki_00", text))
    assert documents == [["Mr. Smith came.", "He left.", "Again a paragraph."], ["C", "Without an end."]]
    assert (counts.skipped_lines, counts.empty_documents, counts.documents, counts.sentences) == (1, 1, 2, 5)


def test_wikiextractor_json_is_a_document_per_line(tmp_path):
    pages = [
        {"id": "1", "title": "A", "text": "A\n\nMr. Smith came. He left.\nA\nÄ\ud800gain."},
        {"title": "Mr.", "text": "Mr. Smith came."},
        {"text": "No title.", "score": float("nan"), "id": 2**70},
        {"title": "None", "text": " \n"},
    ]
    bad = ['{"text": "cut o', '["text"]', '{"title": "no text"}', '{"text": 3}', "[" * 100_000]
    lines = [json.dumps(pages[0]), *bad[:2], "", *map(json.dumps, pages[1:]), *bad[2:]]
    documents, counts = read(write(tmp_path / "wiki_00", "\r\n".join(lines)))
    assert documents == [["Mr. Smith came.", "He left.", "A", "Ägain."], ["Mr. Smith came."], ["No title."]]
    assert (counts.skipped_lines, counts.empty_documents, counts.undecodable_bytes) == (5, 1, 1)


def test_wikitext_headings_of_the_first_level_begin_documents(tmp_path):
    text = (
        " \n = A = \n \n The first . The second . \n \n = = Section = = \n \n = <unk> for the next round \n ="
        " = = Deep = = = \n = 5 = = \n = B = C = \n Text of B . \n = Empty = \n"
    )
    documents, counts = read(write(tmp_path / "wiki.tokens", text))
    assert documents == [
        ["The first .", "The second .", "= <unk> for the next round", "= 5 = ="],
        ["Text of B ."],
    ]
    assert (counts.empty_documents, counts.skipped_lines) == (1, 0)


def test_undecodable_bytes_are_dropped_and_counted(tmp_path):
    good = "A good line that is long enough.\n" * 30
    bad = b"Gr\xfc\xdfe from \xc3\xa4.\n\xff\xfe\nNext.\n \n\xed\xa0\x80Last.\xc3"
    documents, counts = read(write(tmp_path / "a.txt", good.encode() + bad))
    assert documents == [[*good.splitlines(), "Gre from \u00e4.", "Next."], ["Last."]]
    assert (counts.undecodable_bytes, counts.skipped_lines) == (8, 1)


def test_lines_that_are_mostly_paragraphs_are_split_unless_forbidden(tmp_path):
    path = write(tmp_path / "a.txt", "He came. He left.\nA dog.\nA cat.\n")  # mostly sentences
    whole = [["He came. He left.", "A dog.", "A cat."]]
    assert read(path)[0] == read(path, splitting="never")[0] == whole
    assert read(path, splitting="always")[0] == [["He came.", "He left.", "A dog.", "A cat."]]
    path = write(tmp_path / "a.txt", "Heading\nHe came. He left.\nA dog. A cat. A mouse.\n")
    split = [["Heading", "He came.", "He left.", "A dog.", "A cat.", "A mouse."]]
    assert read(path)[0] == read(path, splitting="always")[0] == split
    assert read(path, splitting="never")[0] == [["Heading", "He came. He left.", "A dog. A cat. A mouse."]]
    block = write(tmp_path / "wiki_00", '<doc id="1" title="A">\nHe came. He left.\n</doc>')
    assert read(block, splitting="never")[0] == [["He came. He left."]]


def test_the_beginning_decides_how_a_file_is_read(tmp_path):
    lines, paragraphs = "A dog barks.\n" * 6000, "He came. He left. He came again.\n" * 6000
    assert len(lines) > 1 << 16
    assert len(read(write(tmp_path / "a.txt", lines + paragraphs))[0][0]) == 12000
    assert len(read(write(tmp_path / "b.txt", paragraphs + lines))[0][0]) == 24000


# ------------------------------------------------------------------------------------------------------------
# Sentences

# Ends, brackets, white space of all kinds, and words that the splitter knows.
ATOMS = [
    *'.!?,:"()[]-=\u3002\uff1f\u2026\u201d\u01c3   \t\u00a0\u200b\ufeff\u2028\u2029\x00\x85A\u4e2d\u0416i',
    *'iv Mr. U.S. e.g. pp. 12 [12] :43 The Nov. foo word, end. end." 1. (a)'.split(" "),
    "[citation needed]",
]

LONG_ATOMS = [
    "plain words of a text that nothing happens in ",
    "Capitals, Commas and (brackets) - a dash; \u00e9tudes ",
    *("x" * 60 + " ", ", , , , , , , , , ,", " - " * 12, " )" * 9 + " ", "ad loc. ", "Gov. Unfortunately "),
    *("[ citation needed ] ", ".: 123 - 456 ", ". ( xviii ) ", "\ue000", "12,5 13 ", "The ", ". ", "."),
    *("? ", " , Inc., ", "A. ", "pp. 320 "),
]
SHORT = st.lists(st.sampled_from(ATOMS), max_size=9).map("".join)
LONG = st.lists(st.sampled_from(LONG_ATOMS + ATOMS), max_size=14).map("".join)


@pytest.mark.parametrize("count", [200, slow(600)])
def test_sentences_of_many_paragraphs_are_those_of_each(count):
    @settings(max_examples=count, deadline=None, derandomize=True)
    @given(st.lists(SHORT, max_size=6) | st.lists(LONG, max_size=4))
    @example(["He left. )", "A."]).via("text ends there: split before the bracket")
    @example(["See U.S. 1.", "A."])
    @example(["a\u01c3 )", "A."])
    @example(["1.\u3002\uff1f", "A."])
    @example(['<unk> . "', "A."])
    @example(["A b. \x85\nC d.", "A.\n\n \nB."]).via("lines of white space")
    @example(["a\u2029b", "\u2029\n", "", "\u200b", "A."])
    def check(some):
        assert list(sentences.split_paragraphs(some)) == list(map(sentences.split_sentences, some))

    check()


@settings(max_examples=50)
@given(lines=st.lists(SHORT, max_size=8))
def test_a_file_that_is_not_shown_to_the_splitter_holds_no_paragraphs(lines):
    lines = [line for line in map(str.strip, lines) if line and "\n" not in line]
    found = sum(map(len, sentences.split_paragraphs(lines)))
    if sentences.hold_paragraphs(found, len(lines)):
        assert sentences._may_hold_paragraphs([lines])


# ------------------------------------------------------------------------------------------------------------
# Compression

LINES = (f"A line with the number {number}.\n" + "\n" * (number % 7 == 0) for number in range(3000))
TEXT = "".join(LINES).encode()


def test_compressed_files_are_read_by_their_content(tmp_path):
    expected, _ = read(write(tmp_path / "plain", TEXT))
    for kind, pack in PACK.items():
        streams = pack(TEXT[:1000]) + pack(b"") + pack(TEXT[1000:])
        path = write(tmp_path / f"packed-{kind}.txt", streams + bytes(8 if kind != "bz2" else 0))
        documents, counts = read(path)
        assert documents == expected
        assert (counts.bytes, counts.text_bytes, counts.files) == (os.path.getsize(path), len(TEXT), 1)
        assert kind == "bz2" or plan_splits([path], 10) == [Split(path)]
        assert read(write(tmp_path / "empty", pack(b"")))[0] == []


def test_damaged_compressed_files_are_errors(tmp_path):
    message = "^.*/a.txt is a truncated or damaged compressed file: .*[.] Fetch .*$"
    for pack in PACK.values():
        packed, second = pack(TEXT), bytearray(pack(TEXT))
        flipped = bytearray(packed)
        flipped[len(packed) // 2] ^= 0xFF
        second[3] ^= 0xFF
        cut = packed[: len(packed) // 2]
        for damaged in (packed[:-5], cut, flipped, packed + second, packed + b"garbage"):
            with pytest.raises(ConfigError, match=message):
                read(write(tmp_path / "a.txt", bytes(damaged)))


def test_files_that_cannot_be_read_are_errors(tmp_path):
    told = {f"{tmp_path}/none": "No such file", str(tmp_path): "Is a directory"}
    assert_refused(read, [(path, f"{path} cannot be read: {problem}") for path, problem in told.items()])


# ------------------------------------------------------------------------------------------------------------
# Splits

PIECES = ["Ein Satz. Noch ein Satz.", "Ä中🙂", "  ", "", "", "\u3000", "A\tb c d e f g h i j k l m n o p q"]
PIECES += [b"\xff", b"bad \xe4 bytes", "\ufeffMark", "\x0b"]
OPENERS = {
    "plain": ["", "\t", "<|endoftext|>"],
    "wikiextractor": ['<doc id="1" url="u" title="A">', '<doc id="2" title="Ä中">', "</doc>", "A"],
    "json": [
        '{"title": "A", "text": "A\\nMr. Smith came. He left.\\nAgain."}',
        '{"text": "中"}',
        '{"text": ""}',
    ],
    "wikitext": ["= A =", " = Ä中 = ", "= = B = =", "= = = = C = = = ="],
}
OPENERS["json"] += ['{"text": "c', "3"]


@st.composite
def split_files(draw):
    kind = draw(st.sampled_from(sorted(OPENERS)))
    first = ["Plain."] if kind == "plain" else OPENERS[kind][:1]
    lines = draw(st.lists(st.sampled_from(PIECES + 2 * OPENERS[kind]), max_size=12))
    end, last = draw(st.sampled_from([b"\n", b"\r\n", b"\r"])), draw(st.sampled_from([b"", b"\n"]))
    lines = draw(st.sampled_from([[], [""]])) + first + lines
    return end.join(line if isinstance(line, bytes) else line.encode() for line in lines) + last


@settings(max_examples=150, deadline=None, derandomize=True)
@given(split_files(), st.integers(1, 80), st.sampled_from(["auto", "never"]), st.booleans())
def test_splits_of_any_size_hold_the_documents_and_counts_of_the_file(
    tmp_path_factory, content, split_bytes, splitting, tight
):
    path = write(tmp_path_factory.getbasetemp() / "split.txt", content)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(text_files, "MAX_UNDECODABLE", 1.0)
        if tight:
            splitting = "never" if splitting == "never" else "always"  # pieces of lines say nothing
            patch.setattr(documents_lib, "_MAX_LINE_BYTES", 16)
            patch.setattr(documents_lib, "_MAX_CHARACTERS", 20)
        whole, whole_counts = read(path, splitting=splitting)
        patch.setattr(text_files, "_BLOCK_BYTES", split_bytes)  # lines are whole wherever a block ends
        parts, total = [], ReadCounts()
        for split in plan_splits([path], split_bytes):
            parts += read_splits([split], splitting, total)
    assert parts == whole
    found = (whole_counts.documents, whole_counts.sentences)
    of_file = FileCounts(len(content), *found, whole_counts.undecodable_bytes)
    assert total == whole_counts and total.by_file == whole_counts.by_file == {path: of_file}
    assert whole_counts.bytes == whole_counts.text_bytes == len(content)
    assert found == (len(whole), sum(map(len, whole)))


def test_tasks_are_parts_of_large_files_or_some_small_ones(tmp_path):
    paths = [
        write(tmp_path / f"{number:02}", "x" * size) for number, size in enumerate([4, 5, 2, 0, 25, 1, 9, 10])
    ]
    tasks = plan_tasks(sizes_of(paths), 10)
    sizes = [[(split.end or os.path.getsize(split.path)) - split.start for split in task] for task in tasks]
    assert sizes == [[4, 5], [2, 0, 8], [8], [9, 1], [9], [10]]
    assert plan_tasks({}, 10) == []


def test_small_files_of_a_task_are_split_together_and_counted_each(tmp_path, monkeypatch):
    kinds = [
        "He came. He left.\nA dog. A cat.\n\nNo. Yes.",
        "He came. He left.\nA dog.\nA cat.\n",
        "",
        "One.\n\n\nTwo.",
        '<doc id="1" title="T">\nT\nOne. Two.\n</doc>\n',
    ]
    paths = [write(tmp_path / f"{number:03}", kinds[number % 5]) for number in range(100)]
    alone = ReadCounts()
    expected = [document for path in paths for document in read_documents([path], alone)]
    texts, split = [], sentences.blingfire.text_to_sentences
    monkeypatch.setattr(sentences.blingfire, "text_to_sentences", lambda text: texts.append(1) or split(text))
    counts = ReadCounts()
    assert list(read_splits(plan_splits(paths, 10_000), "auto", counts)) == expected
    assert len(texts) < 50  # calls of the splitter
    monkeypatch.setattr(sentences, "_BATCH_CHARACTERS", 30)  # some files at a time, in their order
    assert list(read_splits(plan_splits(paths, 10_000), "auto", ReadCounts())) == expected
    split_alike = [["He came.", "He left.", "A dog.", "A cat."], ["No.", "Yes."]]
    assert expected[:4] == [*split_alike, ["He came. He left.", "A dog.", "A cat."], ["One."]]
    assert counts == alone and counts.by_file == alone.by_file and counts.files == 100
    assert [found.documents for found in counts.by_file.values()] == [2, 1, 0, 2, 1] * 20


@pytest.mark.parametrize(
    "folder, documents, found_sentences, empty", [("wikipedia", 152, 29561, 1), ("wikitext-2", 122, 16043, 0)]
)
def test_real_data(folder, documents, found_sentences, empty):
    paths = real_files(folder)
    whole, counts = read(*paths)
    size, made = sum(files.sizes(paths)), {"documents": documents, "sentences": found_sentences}
    files_read = {"files": len(paths), "bytes": size, "text_bytes": size}
    assert counts == ReadCounts(**files_read, **made, empty_documents=empty)
    summed, parts = ReadCounts(), []
    for split in plan_splits(paths, 300_000):
        parts += read_splits([split], "auto", summed)
    assert parts == whole and summed == counts
    paragraphs = list(itertools.chain.from_iterable(read(*paths, splitting="never")[0]))
    alone = list(map(sentences.split_sentences, paragraphs))
    assert list(sentences.split_paragraphs(paragraphs)) == alone and sum(map(len, alone)) > 2 * len(alone)


# ------------------------------------------------------------------------------------------------------------
# Limits


def test_a_document_that_is_too_long_is_cut_between_lines(tmp_path, monkeypatch):
    monkeypatch.setattr(documents_lib, "_MAX_CHARACTERS", 20)
    text = "One line.\n" * 5 + "\nOne line.\nTwo lines.\n" + "\n" + "x" * 50
    documents, counts = read(write(tmp_path / "a", text))
    cut = [["One line."] * 2, ["One line."] * 2, ["One line."]]
    assert documents == [*cut, ["One line.", "Two lines."], ["x" * 50]]
    assert (counts.cut_documents, counts.documents) == (1, 5)


def test_a_line_that_is_too_long_is_cut_at_white_space_or_between_characters(tmp_path, monkeypatch):
    monkeypatch.setattr(documents_lib, "_MAX_LINE_BYTES", 16)
    text = "One two three four five.\n" + "中" * 12 + "\n" + " " * 40 + "end\n\nNext.\n" + "x" * 16
    documents, counts = read(write(tmp_path / "a", text), splitting="never")
    found = ["".join(document).replace(" ", "") for document in documents]
    assert found == ["Onetwothreefourfive." + "中" * 12, "end", "Next." + "x" * 16]
    assert documents[0][:2] == ["One two three", "four five."]
    assert (counts.undecodable_bytes, counts.cut_lines, counts.bytes) == (0, 4, len(text.encode()))


def test_a_json_line_that_is_too_long_is_skipped(tmp_path, monkeypatch):
    monkeypatch.setattr(documents_lib, "_MAX_JSON_BYTES", 100)
    lines = [json.dumps({"text": text}) for text in ("Short.", "Long. " * 40, "Last.")]
    documents, counts = read(write(tmp_path / "a", "\n".join(lines)))
    assert documents == [["Short."], ["Last."]]
    assert (counts.skipped_lines, counts.cut_lines) == (1, 1)


@pytest.mark.parametrize("kind, streams", [slow("gz", 1), ("bz2", 48), ("xz", 1)])
def test_memory_is_bounded_for_one_line_of_48_megabytes(tmp_path, kind, streams):
    path = write(tmp_path / "a", PACK[kind](b"words and " * (4_800_000 // streams)) * streams)
    counts = ReadCounts()
    tracemalloc.start()
    for document in read_documents([path], counts, "never"):
        del document
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (counts.text_bytes, counts.documents, counts.cut_documents) == (48_000_000, 12, 1)
    assert peak < 36e6
