"""Vectors of files: types, what is said beside them, going on after a kill, exact neighbours."""

import csv
import dataclasses
import json
import os
import pathlib
import sys

import numpy as np
import pytest

from official import inference
from official.checkpoint.convert import convert
from official.cli import ask
from official.cli.vectors import _queries_of as queries_of
from official.cli.vectors import run_embed, run_search
from official.data.tables.files import open_table
from official.inference import predict_file, vector_files
from official.inference.vector_files import VectorFile, embed_file, quantized, restored
from official.io.errors import ConfigError
from tests.data.text.test_corpora import write_parquet
from tests.inference import test_foreign_folders as folders
from tests.refusals import assert_refused

TEXTS = ["a cat", "twin", "the sea is blue", "", "twin", "a dog barks at night", "word " * 300, "ships"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A small model of sentence-transformers: the mean of at most 12 tokens, then length 1."""
    path = tmp_path_factory.mktemp("model")
    folders.write_pooling(path, normalize=True, max_seq_length=12)
    return folders.write(path, folders.weights(head=None), architectures=["BertModel"])


@pytest.fixture(scope="module")
def model(folder):
    return inference.load(folder)


def table_of(path, texts=TEXTS):
    with open(path, "w", newline="") as file:
        csv.writer(file).writerows([("id", "text"), *enumerate(texts)])
    return open_table(str(path), "input_file", ["text"])


def test_files_hold_the_vectors_of_the_texts(model, tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(predict_file, "PART_ROWS", 3)
    expected = model.embed(TEXTS)
    table, found = table_of(tmp_path / "t.csv"), {}
    for name in ("float32.npy", "float16.npy", "int8.npy", "binary.npy", "float16.parquet", "int8.parquet"):
        dtype = name.split(".")[0]
        said = embed_file(model, table, "text", str(tmp_path / name), dtype)
        assert (said["rows"], said["size"], said["pooling"]) == (8, 48, "mean")
        assert (said["empty_texts"], said["truncated_texts"]) == (1, 1)
        found[name] = np.concatenate(list(VectorFile(str(tmp_path / name)).blocks()))
    assert "1 row without a text" in caplog.text and "1 row longer than max_seq_length=12" in caplog.text
    np.testing.assert_allclose(np.load(tmp_path / "float32.npy"), expected, atol=1e-5)
    assert np.load(tmp_path / "float16.npy").dtype == np.float16
    own = np.load(tmp_path / "float32.npy")
    # sentence-transformers: 255 steps between the smallest and largest value, rounded down.
    lowest, steps = own.min(0), (own.max(0) - own.min(0)) / 255
    theirs = (np.clip(np.floor((own - lowest) / steps), 0, 255) - 128).astype(np.int8)
    np.testing.assert_array_equal(np.load(tmp_path / "int8.npy"), theirs)
    signs = (np.packbits(own > 0, axis=-1).astype(int) - 128).astype(np.int8)
    np.testing.assert_array_equal(np.load(tmp_path / "binary.npy"), signs)
    assert np.abs(found["int8.npy"] - own).max() <= steps.max()
    np.testing.assert_array_equal(found["int8.npy"], found["int8.parquet"])
    np.testing.assert_array_equal(found["float16.npy"], found["float16.parquet"])
    again = open_table(str(tmp_path / "int8.parquet"), "input_file", ["text"])
    assert again.columns == ("id", "text", "embedding") and "is replaced" not in caplog.text
    embed_file(model, again, "text", str(tmp_path / "again.parquet"), "float16")
    assert "its column embedding is replaced by the new vectors" in caplog.text


def test_a_job_that_was_killed_goes_on_to_the_same_bytes(model, tmp_path, monkeypatch):
    monkeypatch.setattr(predict_file, "PART_ROWS", 3)
    table, whole, killed = table_of(tmp_path / "t.csv"), tmp_path / "whole.npy", tmp_path / "killed.npy"
    embed_file(model, table, "text", str(whole), "int8")
    real, calls = vector_files.quantized, []

    def fails_at_the_second(*given):
        calls.append(given)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return real(*given)

    monkeypatch.setattr(vector_files, "quantized", fails_at_the_second)
    with pytest.raises(KeyboardInterrupt):
        embed_file(model, table, "text", str(killed), "int8")
    assert not killed.exists()
    with pytest.raises(ConfigError, match="unfinished job with another vectors"):
        embed_file(model, table, "text", str(killed), "binary")
    embed_file(model, table, "text", str(killed), "int8")
    assert len(calls) == 2 + 2 + 3  # parts two and three, then each part in steps of the ranges of all
    assert killed.read_bytes() == whole.read_bytes()
    assert json.loads(killed.with_suffix(".npy.json").read_text())["rows"] == len(TEXTS)
    with pytest.raises(ConfigError, match="exists. Give another one, or --overwrite"):
        embed_file(model, table, "text", str(killed), "int8")
    (tmp_path / "other.npy.json").write_text('{"mine": 1}')
    with pytest.raises(ConfigError, match="other.npy.json, .* exists and is another program's"):
        embed_file(model, table, "text", str(tmp_path / "other.npy"), "int8")
    assert (tmp_path / "other.npy.json").read_text() == '{"mine": 1}'


def test_the_input_is_no_output(tmp_path):
    table = table_of(tmp_path / "t.csv")
    predict = lambda rows: {"label": ["x"] * len(rows)}  # noqa: E731
    with pytest.raises(ConfigError, match="t.csv is one of --input_file, and would be replaced"):
        predict_file.predict_file(predict, table, ["text"], str(tmp_path / "t.csv"), {}, True)


def test_numbers_that_are_none_are_refused(model, monkeypatch):
    with pytest.raises(ConfigError, match="float16 cannot hold the vectors, with numbers up to 100,000"):
        quantized(np.float32([[1, -1e5]]), "float16")
    real = model.embedder.network
    broken = lambda rows: {"sequence": real(rows)["sequence"] * np.float32("nan")}  # noqa: E731
    monkeypatch.setattr(model.embedder, "network", broken)
    with pytest.raises(ConfigError, match="outputs NaN or infinite numbers"):
        model.embed(["a cat"])
    with pytest.raises(ConfigError, match="text 1 to embed is nan, expected a text"):
        model.embed(["a cat", float("nan")])


def write_vectors(path, vectors_ND, dtype="float32", **said) -> VectorFile:
    ranges = vector_files.Ranges(vectors_ND.min(0), vectors_ND.max(0))
    np.save(path, quantized(vectors_ND, dtype, ranges))
    values = {"rows": len(vectors_ND), "size": vectors_ND.shape[1], "dtype": dtype, "similarity": "cosine"}
    values |= {"model": "m", "checkpoint": "c", "input_file": "t.csv", "text_column": "text"}
    values["ranges"] = {name: value.tolist() for name, value in ranges._asdict().items()}
    pathlib.Path(f"{path}.json").write_text(json.dumps({**values, **said}))
    return VectorFile(str(path))


def test_neighbours_are_exact_and_equal_ones_by_row(tmp_path, monkeypatch):
    monkeypatch.setattr(vector_files.vectors, "BLOCK_ROWS", 100)
    generator = np.random.default_rng(0)
    vectors_ND = generator.standard_normal((1037, 24)).astype(np.float32)
    vectors_ND[[5, 99, 100, 1036]] = vectors_ND[500]
    queries_QD = np.concatenate([vectors_ND[[500]], generator.standard_normal((3, 24))]).astype(np.float32)
    for dtype in vector_files.DTYPES:
        for similarity in ("cosine", "dot"):
            file = write_vectors(tmp_path / f"{dtype}.npy", vectors_ND, dtype, similarity=similarity)
            found = file.search(queries_QD, 7)
            values_ND = np.concatenate(list(file.blocks())).astype(np.float64)
            asked_QD = queries_QD
            if dtype == "binary":
                asked_QD = restored(quantized(queries_QD, "binary"), "binary", 24)
            scores_QN = asked_QD @ values_ND.T
            if similarity == "cosine" or dtype == "binary":
                lengths_QN = np.linalg.norm(asked_QD, axis=1)[:, None] * np.linalg.norm(values_ND, axis=1)
                scores_QN = scores_QN / lengths_QN
            for neighbours, scores_N in zip(found, scores_QN):
                order = np.lexsort((np.arange(len(scores_N)), -np.round(scores_N, 5)))[:7]
                assert [one.row for one in neighbours] == order.tolist(), (dtype, similarity)
                np.testing.assert_allclose([one.score for one in neighbours], scores_N[order], atol=1e-4)
    assert [one.row for one in found[0][:5]] == [5, 99, 100, 500, 1036]
    assert [len(each) for each in file.search(queries_QD, 5000)] == [1037] * 4


def test_other_vectors_than_the_models_are_refused(model, tmp_path):
    path, vectors_ND = tmp_path / "v.npy", np.arange(4 * 48, dtype=np.float32).reshape(4, 48)
    table, ranges = table_of(tmp_path / "t.csv", ["a", "b", "c"]), {"lowest": [0.0], "highest": [1.0]}

    def made(vectors_ND=vectors_ND, **said) -> VectorFile:
        return write_vectors(path, vectors_ND, **said)

    cases = (
        (lambda: vector_files.read_rows(table, "text", {1}, 4), "has 3 rows, and there are 4 vectors"),
        (lambda: made().check_model(model), "was made by another model"),
        (lambda: made(vectors_ND[:, :24]).check_model(model), "vectors of size 24, .* has size 48"),
        (lambda: list(made(rows=5).blocks()), "says 5 vectors"),
        (lambda: made(dtype="int8", ranges=ranges), "lists of 48 numbers"),
        (lambda: made(dtype="int8", ranges={**ranges, "lowest": 5}), '"lowest" is a whole number'),
        (lambda: made(similarity="euclidean"), "similarity='euclidean' is not supported"),
    )
    assert_refused(lambda call: call(), cases)


def test_files_that_are_not_what_is_said_beside_them_are_refused(tmp_path):
    path, vectors_ND = tmp_path / "v.npy", np.arange(4 * 48, dtype=np.float32).reshape(4, 48)

    def array(values_ND: np.ndarray) -> bytes:
        np.save(path, values_ND)
        return path.read_bytes()

    def parquet(values: list) -> bytes:
        write_parquet(tmp_path / "v.parquet", {"embedding": values})
        return (tmp_path / "v.parquet").read_bytes()

    def blocks(name: str, content: bytes) -> list[np.ndarray]:
        (tmp_path / name).write_bytes(content)
        return list(VectorFile(str(tmp_path / name)).blocks())

    write_vectors(path, vectors_ND)
    whole = path.read_bytes()
    pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 6144\n"
    cases = (
        ("v.npy", array(np.asfortranarray(vectors_ND)), r"float32 \(4, 48\), column by column"),
        ("v.npy", whole.replace(b"}", b" "), "is not a NumPy file"),
        ("v.npy", whole[:-1], "the file has fewer"),
        ("v.npy", array(vectors_ND * np.nan), "says 4 vectors of float32 x 48, the file has NaN"),
        ("v.npy", pointer, "v.npy cannot be read: it is a Git LFS pointer"),
    )
    assert_refused(blocks, cases)
    os.rename(f"{path}.json", tmp_path / "v.parquet.json")
    with pytest.raises(ConfigError, match="v.npy.json, with the name of their model, is missing"):
        VectorFile(str(path))
    cases = (
        ("v.parquet", parquet(["a"] * 4), "the column embedding of string"),
        ("v.parquet", parquet([[1.0]] * 4), "has 4 values of list<.*> in 4 rows"),
        ("v.parquet", parquet(["a"])[:40], "v.parquet is a truncated or damaged Parquet file"),
        ("v.parquet", b"PAR1 and no more", "v.parquet is a truncated or damaged Parquet file"),
    )
    assert_refused(blocks, cases)


def test_texts_that_were_changed_since_are_told(model, tmp_path, monkeypatch, capsys, caplog):
    monkeypatch.setattr(ask, "load", lambda flags: model)
    for rows in (3, 8192):  # whatever the parts
        monkeypatch.setattr(predict_file, "PART_ROWS", rows)
        table = table_of(tmp_path / "t.csv")
        embed_file(model, table, "text", str(tmp_path / "v.npy"), overwrite=True)
        asked = ["bert", f"--vectors={tmp_path}/v.npy", "--query=a cat", "--top_k=1"]
        monkeypatch.setattr("sys.argv", asked)
        run_search()
        assert capsys.readouterr().out.endswith("\ta cat\n") and "its texts" not in caplog.text
    table_of(tmp_path / "t.csv", ["a dog", *TEXTS[1:]])
    with pytest.raises(ConfigError, match="t.csv: its texts are not the ones that .*v.npy was made from"):
        run_search()
    monkeypatch.setattr("sys.argv", [*asked, f"--texts={tmp_path}/t.csv"])
    run_search()
    assert "its texts are not the ones that" in caplog.text and "--dtype" not in caplog.text
    monkeypatch.setattr("sys.argv", [*sys.argv, "--dtype=bf16"])
    run_search()
    assert "v.npy was computed with --dtype=fp32, but queries with bf16" in caplog.text


def test_neighbours_are_written_to_other_tables_alone(tmp_path, monkeypatch):
    table_of(tmp_path / "t.csv", ["a cat"])
    write_vectors(tmp_path / "v.npy", np.ones((1, 24), np.float32), input_file=str(tmp_path / "t.csv"))
    for name, message in (
        ("found.conll", r"found\.conll: unknown suffix\. Allowed: \.csv, "),
        ("t.csv", "t.csv is one of --texts, and would be replaced"),
    ):
        words = [f"--vectors={tmp_path}/v.npy", "--query=cats", f"--output_file={tmp_path}/{name}"]
        monkeypatch.setattr("sys.argv", ["bert", *words, "--overwrite"])
        with pytest.raises(ConfigError, match=message):
            run_search()


def test_prompts_that_no_text_gets_are_told(model, tmp_path, monkeypatch, caplog):
    settings = dataclasses.replace(model.embedder.embedding, prompts={"query": "ask: ", "document": ""})
    monkeypatch.setattr(model.embedder, "embedding", settings)
    monkeypatch.setattr(ask, "load", lambda flags: model)
    table_of(tmp_path / "t.csv", ["a cat"])
    asked = ["bert", f"--input_file={tmp_path}/t.csv", f"--output_file={tmp_path}/v.npy", "--overwrite"]
    for more, is_told in (([], True), (["--prompt_name=query"], False), (["--prompt=ask: "], False)):
        caplog.clear()
        monkeypatch.setattr(model.embedder, "_has_told_prompts", False)
        monkeypatch.setattr("sys.argv", [*asked, "--checkpoint=m", *more])
        run_embed()
        assert ("has prompts (query) but no default" in caplog.text) == is_told, more
    model.embed("a cat")
    assert "has prompts (query)" in caplog.text
    asked = ["bert", f"--vectors={tmp_path}/v.npy", "--query=cats"]
    for prompts, is_told in (({"query": "ask: "}, False), ({}, True)):
        monkeypatch.setattr(model.embedder, "embedding", dataclasses.replace(settings, prompts=prompts))
        monkeypatch.setattr("sys.argv", asked)
        run_search()
        assert ("was made with the prompt 'ask: ', but queries have none" in caplog.text) == is_told


def test_a_converted_folder_makes_the_same_vectors(model, folder, tmp_path):
    """By way of a format that has no such files of its own: they lie beside it."""
    there = convert(folder, "google", str(tmp_path / "google"))
    convert(there["target"]["path"], "huggingface", str(tmp_path / "hf"))
    expected = model.embed(TEXTS)
    for name in ("google", "hf"):
        np.testing.assert_allclose(inference.load(str(tmp_path / name)).embed(TEXTS), expected, atol=1e-6)
    modules = json.loads((tmp_path / "hf" / "modules.json").read_text())
    kinds = [module["type"].rpartition(".")[2] for module in modules]
    assert kinds == ["Transformer", "Pooling", "Normalize"]


def test_a_query_is_a_line(tmp_path):
    path = tmp_path / "queries.txt"
    path.write_bytes("one\u2028still one\r\n\ntwo\x85\rthree\n".encode())
    assert queries_of(None, str(path)) == ["one\u2028still one", "two\x85", "three"]
    with pytest.raises(ConfigError, match="queries.CSV is a table"):
        queries_of(None, str(tmp_path / "queries.CSV"))
