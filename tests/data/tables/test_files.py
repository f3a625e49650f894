"""Tables in files: formats, dialects, columns, and what is refused."""

import bz2
import csv
import datetime
import gzip
import importlib
import io
import json

import numpy as np
import pytest

from official.data.tables import files as tables
from official.data.tables import predictions, tags, texts
from official.data.tables.labels import Labels
from official.io.errors import ConfigError
from tests.data.text.test_corpora import write_parquet
from tests.refusals import assert_refused

LISTS = ("Sequence", "List", "LargeList")  # of features, in several versions of datasets
ROWS = [("a, b", "x"), ('say "hi"', "y"), ("two\nlines", "x"), ("tab\tin", "y"), ("é 中", "x")]


def values(table, names):
    found = []
    for batch in table.batches(names, rows=2):
        assert not batch.problems
        found += zip(*(batch.columns[name] for name in names))
    return found


def read(path, *names):
    """Returns the rows of a table, with the columns of these names: `text` and `label` by default."""
    names = names or ("text", "label")
    return values(tables.open_table(str(path), "train_file", names), names)


def write(path, content, opener=open):
    with opener(path, "wb") as file:
        file.write(content if isinstance(content, bytes) else content.encode())
    return str(path)


def delimited(rows, delimiter) -> str:
    text = io.StringIO()
    csv.writer(text, delimiter=delimiter, lineterminator="\r\n").writerows(rows)
    return text.getvalue()


def test_every_format_gives_the_same_rows(tmp_path):
    objects = [{"text": text, "label": label} for text, label in ROWS]
    comma, semicolon, tab = (delimited([("text", "label"), *ROWS], delimiter) for delimiter in ",;\t")
    paths = [
        write(tmp_path / "a.csv", comma),
        write(tmp_path / "b.csv", semicolon),
        write(tmp_path / "c.txt", b"\xef\xbb\xbf" + tab.encode()),
        write(tmp_path / "d.csv.gz", comma, gzip.open),
        write(tmp_path / "e.tsv.bz2", tab, bz2.open),
        write(tmp_path / "f.jsonl", "".join(json.dumps(row) + "\n" for row in objects)),
        write(tmp_path / "g.json", json.dumps(objects)),
        write_parquet(tmp_path / "h.parquet", dict(zip(("text", "label"), zip(*ROWS)))),
    ]
    assert [(path, found) for path in paths if (found := read(path)) != ROWS] == []
    assert read(f"{paths[0]},{tmp_path}/f.json*", "label", "text") == [row[::-1] for row in ROWS * 2]


def test_quotation_marks_of_a_plain_tsv_are_text(tmp_path):
    plain = [('"half a quote', "1"), ('he said "no"', "0"), ('"whole" and more', "1")]
    # A quotation over several sentences, a row each.
    said = [('"It began here.', "1"), ("Nothing came of it.", "0"), ('He left."', "1"), ("The end.", "0")]
    head = "text\tlabel\n"
    tried = {"a.tsv": (head, plain), "b.tsv": (head, said), "c.csv": (head, said), "d.tsv": ("", said)}
    for name, (head, rows) in tried.items():
        path = write(tmp_path / name, head + "".join(f"{a}\t{b}\n" for a, b in rows))
        assert read(path, *(() if head else ("1", "2"))) == rows, name
    path = write(tmp_path / "f.tsv", 'text\n"one\ntwo"\nthree\n')
    assert read(path, "text") == [("one\ntwo",), ("three",)]
    rows = [("one\ntwo", "1"), ("three\tlines\n\n.", "0"), ("a", "1")]
    for delimiter in ",\t":  # a field of several lines is one
        assert read(write(tmp_path / "e.csv", delimited([("text", "label"), *rows], delimiter))) == rows


def test_a_field_of_whole_rows_is_refused_wherever_it_stands(tmp_path, monkeypatch):
    monkeypatch.setattr(tables, "_SAMPLE_BYTES", 64)  # which decide on the quoting

    def read_rows(rows):
        return read(write(tmp_path / "a.tsv", "text\tlabel\n" + "fine\t1\n" * 20 + rows))

    for rows in ('"It began.\t1\n\nHe left."\t0\n', '"It began.\nHe left."\t0\n'):
        assert len(read_rows(rows)) == 21, rows
    cases = (
        ('"It began.\t1\nNothing.\t0\nHe left."\t0\n', "line 22: the quotation mark .* closes 2 rows later"),
        ('0\t"It began.\n1\tHe left."\n', "line 22: .* 1 row later"),
    )
    assert_refused(read_rows, cases)


def test_columns_by_number(tmp_path):
    path = write(tmp_path / "a.csv", delimited(ROWS, ","))
    table = tables.open_table(path, "train_file", ("1", "2"))
    assert values(table, ("1", "2")) == ROWS and not table.has_header
    pandas = write(tmp_path / "b.csv", "0,1,2\nx,a,b\n")
    lines = write(tmp_path / "c.jsonl", '{"1": "a", "2": "b"}\n')
    cases = (
        (path, ("1", "3"), "counted from 1, and no column 3"),
        (pandas, ("1", "2"), "b.csv begins with a header of the numbers 0 to 2"),
        (f"{path},{lines}", ("1", "2"), "with and without names of columns, not numbers"),
    )
    assert_refused(lambda given, wanted: tables.open_table(given, "train_file", wanted), cases)


def test_a_missing_column_shows_the_first_rows(tmp_path):
    path = write(tmp_path / "a.csv", "Text,label,other\nhello,1,2\nworld,0,3\n")
    with pytest.raises(ConfigError) as caught:
        tables.open_table(path, "train_file", ("text", "label"))
    told = str(caught.value)
    assert "no column 'text' (did you mean Text?)" in told and "3: world | 0 | 3" in told


def test_no_column_is_lost(tmp_path):
    """As of predictions, beside which all columns stand: those of late rows of JSON, and of later files."""
    lines = [{"text": "a"}] * 150 + [{"text": "b", "late": 1}]
    paths = [
        write(tmp_path / "a.jsonl", "".join(json.dumps(row) + "\n" for row in lines)),
        write(tmp_path / "b.csv", "text\nc\n"),
        write(tmp_path / "c.csv", "other,text\nx,d\n"),
        write(tmp_path / "d.csv", "text,third\ne,y\n"),
        write_parquet(tmp_path / "e.parquet", {"text": ["f"], "n": [2]}),
    ]
    for given, columns, last in (
        (paths[0], ("text", "late"), ("b", 1)),
        (",".join(paths[2:4]), ("other", "text", "third"), (None, "e", "y")),
        (f"{paths[1]},{paths[0]},{paths[4]}", ("text", "late", "n"), ("f", None, 2)),
    ):
        table = tables.open_table(given, "input_file", ["text"], all_columns=True)
        assert table.columns == columns and values(table, columns)[-1] == last, given
    whole = tables.open_table(",".join(paths[2:4]), "x")
    assert values(whole, ("other", "text")) == [("x", "d"), (None, "e")]


def test_what_is_no_table_is_refused_by_name(tmp_path):
    bad = (
        ("a.xlsx", b"PK\x03\x04", "spreadsheet"),
        ("a.csv", b"PK\x03\x04", "zip"),
        ("a.csv", b"\x89PNG" + bytes(100), "PNG"),
        ("a.csv", b"", "empty"),
        ("a.csv", "text,label\ncaf\xe9,x\n".encode("latin-1"), "not UTF-8"),
        ("a.jsonl", '{"text": "caf\xe9", "label": "x"}\n'.encode("latin-1"), "not UTF-8 text, near line 1"),
        ("a.csv", "text,label\nx,1\n".encode("utf-16"), "UTF-16"),
        ("a.csv", b'text,label\n"closed",1\n"never closed,1\nx,2\n', "quotation mark"),
        ("a.csv", b'text,label\n"a, b",1\n"so "it" is",0\nx,1\ny,0\n', "line 3: .*quotation mark"),
        ("a.csv", b'text,label\n"a, \\"b\\"",1\nx,1\ny,0\nz,0\n', "line 2: .*quotation mark"),
        ("a.json", b'{\n "text": {\n "0": "a"\n}}\n', "no JSON .* object per line"),
        ("a.jsonl", '{"text": "a", "label": 1, "label": 2}\n', "no JSON .the key 'label' occurs twice"),
        ("a.json", '[{"text": "a", "label": 1, "label": 2}]', "the key .label. occurs twice"),
    )
    cases = ((name, content, f"^(?!.*--input_files).*{told}") for name, content, told in bad)
    assert_refused(lambda name, content: read(write(tmp_path / name, content)), cases)


def test_a_line_that_would_take_all_memory_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(tables, "_MAX_LINE", 1000)
    long = "x" * 2000
    for name, content in (("a.csv", f"text\ta\n{long}\ta\n"), ("b.jsonl", f'{{"text": "{long}"}}\n')):
        path = write(tmp_path / f"{name}.gz", content, gzip.open)
        with pytest.raises(ConfigError, match="has a line of more than 1,000 characters"):
            read(path, "text")


def test_malformed_rows_are_problems_of_their_number(tmp_path):
    path = write(tmp_path / "a.csv", "text,label\n" + "fine,1\n" * 20 + "one,two,three\n\nfine,0\n")
    batches = list(tables.open_table(path, "train_file", ("text", "label")).batches())
    assert batches[0].problems == {20: "3 fields, expected 2"} and len(batches[0].columns["text"]) == 22
    path = write(tmp_path / "a.csv", "text,label\nfine,1\n\ufefftext,label\nlabel,text\n")  # joined by cat
    (batch,) = tables.open_table(f"{path},{path}", "train_file", ("text", "label")).batches()
    assert batch.problems == {1: "repeats the header"} and len(batch.columns["text"]) == 3
    path = write(tmp_path / "a.jsonl", '{"text": "x"}\n[1]\n{"text": \n')
    (batch,) = tables.open_table(path, "train_file", ("text",)).batches()
    assert list(batch.problems) == [1, 2]


def test_saved_data_sets_name_their_labels(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    folder, data = tmp_path / "saved", tmp_path / "saved" / "data.arrow"
    folder.mkdir()
    columns = pyarrow.table({"text": ["a", "b"], "label": [1, 0]})
    with pyarrow.ipc.new_stream(str(data), columns.schema) as out:
        out.write_table(columns)
    features = {"label": {"names": ["no", "yes"], "_type": "ClassLabel"}, "text": {"_type": "Value"}}
    (folder / "dataset_info.json").write_text(json.dumps({"features": features}))
    (tmp_path / "dataset_dict.json").write_text(json.dumps({"splits": ["saved"]}))

    def read_saved(content, files=({"filename": "data.arrow"},), indices=None, path=folder):
        data.write_bytes(content)
        state = {"_data_files": files, "_indices_data_files": indices}
        (folder / "state.json").write_text(json.dumps(state))
        return read(path)

    whole = data.read_bytes()
    assert read_saved(whole) == [("a", "yes"), ("b", "no")]
    pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 6144\n"
    chosen = [{"filename": "indices.arrow"}]
    cases = (
        (whole[:-20], "data.arrow is a damaged Arrow file"),
        (pointer, "data.arrow cannot be read: it is a Git LFS pointer"),
        (whole, [{"filename": "../data.arrow"}], [], "the file '../data.arrow' is not in its folder"),
        (whole, ["data.arrow"], 'expected an object with "filename", got a text'),
        (whole, [], chosen, "indices.arrow chooses the rows, and their order"),
        (whole, [], None, tmp_path, "several data sets: saved"),
    )
    assert_refused(read_saved, cases)


def test_two_columns_of_one_name_are_refused_in_parquet_too(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    columns = pyarrow.table([[1], ["a"], ["b"]], names=["id", "text", "text"])
    importlib.import_module("pyarrow.parquet").write_table(columns, str(tmp_path / "a.parquet"))
    with pytest.raises(ConfigError, match="a.parquet has two columns 'text'"):
        tables.open_table(str(tmp_path / "a.parquet"), "train_file", ("text",))


def test_lists_of_numbered_labels_have_their_names(tmp_path):
    """As in Parquet files of tagged words that datasets wrote."""
    pyarrow = pytest.importorskip("pyarrow")
    label = {"names": ["O", "B-PER"], "_type": "ClassLabel"}
    columns = pyarrow.table({"tokens": [["Anna", "."]], "ner_tags": [[1, 0]]})
    for kind in LISTS:
        features = {"ner_tags": {"feature": label, "length": -1, "_type": kind}}
        said = json.dumps({"info": {"features": features}})
        path = str(tmp_path / f"{kind}.parquet")
        told = columns.replace_schema_metadata({"huggingface": said})
        importlib.import_module("pyarrow.parquet").write_table(told, path)
        assert read(path, "tokens", "ner_tags") == [(["Anna", "."], ["B-PER", "O"])], kind
        (sentence,) = tags.read_sentences(path, "train_file", True)
        assert sentence.tags == ["B-PER", "O"]


def test_the_held_out_share_depends_on_the_text_alone():
    shares = [texts.share_of((f"text {number}",)) for number in range(2000)]
    assert 0.08 < sum(share < 0.1 for share in shares) / 2000 < 0.12
    assert texts.share_of(("a", "b")) != texts.share_of(("a b",))
    assert shares[:5] == [texts.share_of((f"text {number}",)) for number in range(5)]


def test_predictions_keep_what_is_there(tmp_path):
    columns = {"id": ["1", "2"], "label": ["a,b", None]}
    found = {"label": ["x", "y"], "probability": [0.25, 1 / 3]}
    ours = predictions.beside(columns, found, (0, 1))
    assert predictions.beside([], found, (1, None)) == {"label": ["y", None], "probability": [1 / 3, None]}
    assert list(ours) == ["predicted_label", "probability"]
    written = predictions.encode(".csv", {**columns, **ours}, with_header=True).decode()
    assert written.splitlines() == ["id,label,predicted_label,probability", '1,"a,b",x,0.25', "2,,y,0.333333"]
    lines = predictions.encode(".jsonl", {**columns, **ours}, with_header=True).decode().splitlines()
    assert json.loads(lines[1]) == {"id": "2", "label": None, "predicted_label": "y", "probability": 0.333333}
    for path, formats in (("out.xlsx", predictions.FORMATS), ("out.conll", predictions.TABLES)):
        with pytest.raises(ConfigError, match="unknown suffix"):
            predictions.check_format(path, formats=formats)
    # A choice by the name of its column, or by its number as it is shown, from 1 on.
    for choices, names in (("abc", ["c", "a"]), ((), ["3", "1"])):
        found = predictions.columns_of(Labels("choice"), np.array([[0, 1, 2], [2, 1, 0]]), True, choices)
        assert found["label"] == names and list(found)[2] == f"probability_{'1a'[bool(choices)]}"
    for names, expected in (((), {"score": [0.5]}), (("x", "y"), {"score_x": [0.5], "score_y": [2.0]})):
        logits = np.array([[0.5, 2.0][: len(names) or 1]])
        assert predictions.columns_of(Labels("number", names), logits) == expected
    # Of a third model; and numbers of the input, which are not ours to round.
    again = predictions.beside([*columns, *ours], {"label": ["z", "z"]}, (0, 1))
    assert list(again) == ["predicted_predicted_label"]
    numbers, ours = {"p": [1.25e-9, 52.520006599], "n": [1, None]}, {"score": [1 / 3, 2 / 3]}
    for ending in (".csv", ".jsonl"):
        lines = predictions.encode(ending, {**numbers, **ours}, False, ours.keys()).decode().splitlines()
        assert "1.25e-09" in lines[0] and "52.520006599" in lines[1] and "0.333333" in lines[0], ending
        assert "0.3333333" not in lines[0], ending


def test_cells_of_strangers_are_written_so_that_they_are_read_again(tmp_path):
    """A carriage return alone ends a row of CSV; JSON has no dates, UTF-8 no half characters."""
    cells = ["a\rb", "\r", "c\r\nd", "e\nf", 'g"\t,', "", " h "]
    columns = {"text": cells, "other": cells[::-1]}
    for ending in (".csv", ".tsv"):
        path = write(tmp_path / f"a{ending}", predictions.encode(ending, columns, with_header=True))
        table = tables.open_table(path, "x", ("text", "other"))
        assert values(table, ("text", "other")) == list(zip(*columns.values())), ending
    day = datetime.date(2026, 11, 27)
    odd = {"text": ["\ud83d"], "day": [day], "days": [[day]]}
    (line,) = predictions.encode(".jsonl", odd, True).decode().splitlines()
    assert json.loads(line) == {"text": "\ud83d", "day": "2026-11-27", "days": ["2026-11-27"]}
    for ending in (".csv", ".tsv", ".jsonl"):
        assert "\\ud83d" in predictions.encode(ending, odd, True).decode(), ending
    assert predictions.encode(".conll", {"tokens": [["\ud83d"]], "tags": [["O"]]}, True) == b"\\ud83d\tO\n\n"
    written = predictions.encode(".csv", {"day": [day], "days": [[day]]}, False).decode()
    assert written == '2026-11-27,"[""2026-11-27""]"\n'


def test_columns_of_parquet_keep_their_types(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    parquet = importlib.import_module("pyarrow.parquet")
    kinds = {
        "id": (pyarrow.int32(), [7, None]),
        "share": (pyarrow.float32(), [0.1, None]),
        "kind": (pyarrow.dictionary(pyarrow.int8(), pyarrow.string()), ["a", None]),
        "at": (pyarrow.timestamp("ns", "UTC"), [datetime.datetime(2026, 11, 27), None]),
        "none": (pyarrow.string(), [None, None]),
        "few": (pyarrow.list_(pyarrow.int8()), [[1, 2], None]),
    }
    given = pyarrow.table({name: pyarrow.array(cells, type=kind) for name, (kind, cells) in kinds.items()})
    path = str(tmp_path / "a.parquet")
    parquet.write_table(given, path)
    table = tables.open_table(path, "x")
    (batch,) = table.batches()
    columns = {**batch.columns, "label": ["x", "y"]}
    written = predictions.encode(".parquet", columns, True, ["label"], table.arrow_types())
    found = parquet.read_table(io.BytesIO(written))
    assert found.drop_columns(["label"]).equals(given) and found.column("label").to_pylist() == ["x", "y"]
    mixed = tables.open_table(f"{path},{write(tmp_path / 'b.jsonl', json.dumps({'id': 'seven'}))}", "x")
    columns = next(mixed.batches(["id"])).columns
    assert not mixed.arrow_types()
    with pytest.raises(ConfigError, match="the column 'id': .* has one type"):
        predictions.encode(".parquet", columns, True)
