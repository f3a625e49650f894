"""Exports say what the model says: in this process, in one without this package, and read back as a model."""

import dataclasses
import json
import os
import sys

import numpy as np
import pytest
import tensorflow as tf

from official import inference
from official.checkpoint import registry
from official.checkpoint.convert import convert
from official.cli import checkpoints
from official.config import BertConfig, Config, ConfigError
from official.data.word_pieces.vocabulary import SPECIAL_TOKENS, Vocabulary
from official.inference import Model, source
from official.inference.rows import join
from official.serving import export, export_folders
from tests import programs
from tests.fixtures import ROOT
from tests.inference.test_graph_methods import few_characters

LETTERS = "abcdefghijklmnopqrstuvwxyz"
PIECES = [*LETTERS, *(f"##{letter}" for letter in LETTERS), *".,?!", "the", "##ing", "\u00df", "\u6c34"]
WORDS = Vocabulary((*SPECIAL_TOKENS, *PIECES), "")
SIZES = {"vocab_size": WORDS.size + 2, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
SIZES |= {"intermediate_size": 48, "max_position_embeddings": 64, "initializer_range": 0.4}
SIZES |= {"groupbert_ffn_output_groups": 2, "groupbert_conv_group_size": 16}
TEXTS = ["The fishing.", "", "Wa\u0308sser \u6c34 \u00df? \u4e00!", "singing " * 60, "a"]
ASKED = [
    ("who is fishing ?", "the man, the sea. " * 30),
    ("a", "\u6c34 Stra\u00dfe, the thing"),
    ("", "the sea"),
    ("what ?", " "),
    ("is it the thing ? " * 9, "it is the last thing, \U0001f600 a ringing one."),
]
PAIRS = [(text, TEXTS[(number + 1) % len(TEXTS)]) for number, text in enumerate(TEXTS)]
MASKED = ["the [MASK] is [MASK].", "[MASK]", "no mask", "[MASK][MASK] [mask]"]
# {signature: its inputs}
INPUTS = {
    "answer": {"question": [q for q, _ in ASKED], "context": [c for _, c in ASKED]},
    "classify": {"sentence_a": [a for a, _ in PAIRS], "sentence_b": [b for _, b in PAIRS]},
    "embed": {"text": TEXTS},
    "fill_mask": {"text": MASKED},
}
# This Python and, where BERT_TEST_OTHER_PYTHON names it, that of the other stack of TensorFlow.
PYTHONS = [sys.executable, *filter(None, [os.environ.get("BERT_TEST_OTHER_PYTHON")])]
IN_ANOTHER_PROCESS = """
import json, sys
sys.modules["official"] = None
try:
    import official
    raise SystemExit("official is there")
except ImportError:
    pass
import numpy as np, tensorflow as tf, tensorflow_text
inputs = json.load(open(sys.argv[1]))
for folder in sys.argv[3:]:
    loaded, outputs = tf.saved_model.load(folder), {}
    for name, values in inputs.items():
        if name in loaded.signatures:
            texts = {key: tf.constant(each, tf.string) for key, each in values.items()}
            given = loaded.signatures[name](**texts)
            outputs |= {f"{name}/{key}": each.numpy() for key, each in given.items()}
            again = getattr(loaded, name)(*texts.values())
            assert all((again[key].numpy() == each.numpy()).all() for key, each in given.items())
    main = loaded.signatures["serving_default"].structured_outputs
    assert any(set(main) == set(loaded.signatures[name].structured_outputs) for name in inputs
               if name in loaded.signatures)
    ids = np.array([[2, 6, 7, 3], [2, 9, 3, 0]], np.int32)
    rows = {"input_ids": ids, "input_mask": (ids > 0).astype(np.int32), "segment_ids": ids * 0}
    given = loaded.signatures["tensors"](**{key: tf.constant(each) for key, each in rows.items()})
    outputs |= {f"tensors/{key}": each.numpy() for key, each in given.items()}
    np.savez(sys.argv[2] + folder.replace("/", "_") + ".npz", **outputs)
"""


def made_up(head: str, classes: int = 3, **changed) -> source.Source:
    found = source.random_source(BertConfig(**{**SIZES, **changed}), head, classes)
    return dataclasses.replace(found, vocabulary=WORDS)


def expected(model: Model, name: str) -> dict[str, list]:
    """Returns what a signature gives, of a model."""
    if name == "answer":
        return dict(zip(("text", "score", "start", "end"), map(list, zip(*model.answer_all(ASKED)))))
    if name == "classify":
        labels = [model.classify(a, b or None) for a, b in PAIRS]
        return {key: [getattr(label, key) or 0 for label in labels] for key in ("label", "score")}
    if name == "embed":
        return {"embedding": model.embed(TEXTS)}
    found = [[] if "[MASK]" not in text else model.fill_mask(text) for text in MASKED]
    most = max(map(len, found))
    padded = [[*masks, *([[("", 0.0)] * 5] * (most - len(masks)))] for masks in found]
    return {
        "tokens": [[[word for word, _ in mask] for mask in masks] for masks in padded],
        "scores": [[[share for _, share in mask] for mask in masks] for masks in padded],
    }


def assert_same(given: np.ndarray, wanted: list, tolerance: float = 1e-5) -> None:
    if given.dtype == object:
        decoded = np.vectorize(bytes.decode, otypes=[object])(given)
        assert decoded.tolist() == np.array(wanted, object).tolist()
    else:
        np.testing.assert_allclose(given, np.array(wanted), atol=tolerance, rtol=0)


def call(loaded, name: str) -> dict[str, np.ndarray]:
    inputs = {key: tf.constant(values, tf.string) for key, values in INPUTS[name].items()}
    return {key: values.numpy() for key, values in loaded.signatures[name](**inputs).items()}


# Answers are those of tests/tasks/test_whole_runs.py.
@pytest.mark.parametrize("head", ["classify", pytest.param("fill_mask", marks=pytest.mark.slow)])
def test_what_is_exported_says_what_the_model_says(head, tmp_path, monkeypatch):
    found, folder = made_up(head, num_hidden_layers=1), str(tmp_path / "1")
    load, loads = tf.saved_model.load, []
    monkeypatch.setattr(tf.saved_model, "load", lambda path: loads.append(load(path)) or loads[-1])
    with few_characters(0x6D00):  # with all that the texts have
        written = export.export(found, folder)
    assert written.difference < 1e-5 and written.folder == folder
    assert written.signatures == (head, "embed", "tensors")
    (loaded,), model = loads, Model(found)
    wanted = {name: expected(model, name) for name in (head, "embed")}
    for name, columns in wanted.items():
        given = call(loaded, name)
        for key, values in columns.items():
            assert_same(given[key], values)
    if head != "fill_mask":
        ids = tf.constant([[2, 6, 7, 3], [2, 9, 3, 0]])
        rows = {"input_ids": ids, "input_mask": tf.cast(ids > 0, tf.int32), "segment_ids": tf.zeros_like(ids)}
        given = loaded.signatures["tensors"](**rows)
        for key, values in model.outputs(head, join([np.array([2, 6, 7, 3]), np.array([2, 9, 3])])).items():
            assert_same(given[key].numpy().reshape(-1, *values.shape[1:])[: len(values)], values)
    reloaded = inference.load(folder)
    assert reloaded.source.abilities() == [head, "embed"]
    assert reloaded.source.bert.num_attention_heads == SIZES["num_attention_heads"]
    assert expected(reloaded, head) == wanted[head]
    made = json.loads((tmp_path / "1" / "assets.extra" / "export.json").read_text())
    assert (made["method"], made["dtype"], made["format"]) == (head, "fp32", "saved_model")
    assert (tmp_path / "1" / "assets" / "vocab.txt").read_text().split("\n")[:-1] == list(WORDS.words)
    assert os.listdir(tmp_path) == ["1"]


@pytest.mark.slow
@pytest.mark.parametrize("python", PYTHONS)
def test_a_process_without_this_package(python, tmp_path):
    sources = {head: made_up(head) for head in ("answer", "classify", "fill_mask")}
    sources["group"] = made_up("fill_mask", block_type="groupbert")
    sources["score"] = made_up("classify", classes=1)
    for name, found in sources.items():
        export.export(found, str(tmp_path / name))
    (tmp_path / "inputs.json").write_text(json.dumps(INPUTS))
    (tmp_path / "program.py").write_text(IN_ANOTHER_PROCESS)
    paths = [tmp_path / name for name in ("program.py", "inputs.json", "out", *sources)]
    done = programs.call(python, *paths, cwd=tmp_path, without=["PYTHONPATH"])
    assert done.returncode == 0, done.stderr[-3000:]
    for name, found in sources.items():
        path = str(tmp_path / "out") + str(tmp_path / name).replace("/", "_") + ".npz"
        outputs = np.load(path, allow_pickle=True)
        for signature in found.abilities():
            for key, wanted in expected(Model(found), signature).items():
                if key == "label" and name == "score":
                    wanted = [""] * len(wanted)
                assert_same(outputs[f"{signature}/{key}"], wanted)
        assert any(key.startswith("tensors/") for key in outputs)


@pytest.mark.slow
@pytest.mark.parametrize("python", PYTHONS[1:])
def test_what_the_other_stack_exports_loads_here(python, tmp_path):
    program = """
import sys
from official.serving import export
from tests.serving.test_export import made_up
for head in ("answer", "classify", "fill_mask"):
    export.export(made_up(head), f"{sys.argv[1]}/{head}")
"""
    (tmp_path / "program.py").write_text(program)
    done = programs.call(python, tmp_path / "program.py", tmp_path, PYTHONPATH=str(ROOT))
    assert done.returncode == 0, done.stderr[-3000:]
    for head in ("answer", "classify", "fill_mask"):
        outputs = call(tf.saved_model.load(str(tmp_path / head)), head)
        for key, wanted in expected(Model(made_up(head)), head).items():
            assert_same(outputs[key], wanted)


@pytest.mark.slow
@pytest.mark.parametrize("dtype, share", [("bf16", 0.7), ("int8", 0.6)])
def test_smaller_types_are_smaller_and_close(dtype, share, tmp_path):
    found = made_up("classify", initializer_range=0.05)
    for each in ("fp32", dtype):
        export.export(found, str(tmp_path / each), export.Request(dtype=each))
    variables = "variables/variables.data-00000-of-00001"
    whole, short = (os.path.getsize(tmp_path / each / variables) for each in ("fp32", dtype))
    assert short < share * whole
    whole, short = (call(tf.saved_model.load(str(tmp_path / each)), "classify") for each in ("fp32", dtype))
    assert 0 < np.abs(whole["score"] - short["score"]).max() < 0.03
    assert_same(short["score"], expected(inference.load(str(tmp_path / dtype)), "classify")["score"], 0.03)


@pytest.mark.slow
def test_an_export_is_a_checkpoint(tmp_path):
    """Of every command that reads one."""
    found = made_up("answer")
    export.export(found, str(tmp_path / "1"), export.Request(dtype="int8"))
    report = convert(str(tmp_path / "1"), "google", str(tmp_path / "google"))
    assert report["target"]["path"] == str(tmp_path / "google" / "1")
    paths = str(tmp_path / "1"), report["target"]["path"]
    both = [registry.open_checkpoint(path, "PATH").to_canonical().tensors for path in paths]
    assert both[0].keys() == both[1].keys() and len(both[0]) > 30
    for name, tensor in both[0].items():
        np.testing.assert_array_equal(tensor.read(), both[1][name].read())
        atol = np.abs(found.tensors[name].read()).max() / 200
        np.testing.assert_allclose(tensor.read(), found.tensors[name].read(), atol=atol)


def test_what_computes_something_else_is_not_published(tmp_path, monkeypatch):
    other = lambda found, folder, request: os.makedirs(folder) or ["embed"], lambda *_: float("nan")  # noqa: E731
    monkeypatch.setitem(export_folders.WRITERS, "saved_model", other)
    with pytest.raises(ConfigError, match="differs from the model: outputs are up to nan apart"):
        export.export(made_up("embed"), str(tmp_path / "1"))
    assert os.listdir(tmp_path) == []


def test_a_run_of_another_length_is_exported_with_its_windows(tmp_path):
    """A model that reads the export cuts contexts as the functions in it do."""
    run = Config(task="squad", model=BertConfig(**SIZES), max_seq_length=48)
    found = dataclasses.replace(made_up("answer"), run=run, max_seq_length=48)
    export_folders.write_files(str(tmp_path), found, "onnx", "fp32", {})
    kept = json.loads((tmp_path / "config.json").read_text())
    assert (kept["max_seq_length"], kept["doc_stride"], kept["max_query_length"]) == (48, 16, 24)


@pytest.mark.slow
def test_texts_that_a_signature_refuses(tmp_path):
    found = made_up("fill_mask")
    export.export(found, str(tmp_path / "1"))
    loaded = tf.saved_model.load(str(tmp_path / "1"))
    with pytest.raises(tf.errors.InvalidArgumentError, match="Shorten the text"):
        loaded.signatures["fill_mask"](text=tf.constant(["a " * 90 + "[MASK]"]))
    none = loaded.signatures["fill_mask"](text=tf.constant(["nothing"]))
    assert none["tokens"].shape == none["scores"].shape == (1, 0, 5)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["fp32", "int8"])
@pytest.mark.parametrize("head", ["answer", "classify", "fill_mask"])
def test_onnx_in_onnx_runtime(head, dtype, tmp_path):
    for name in ("onnx", "tf2onnx", "onnxruntime"):
        pytest.importorskip(name, reason=f"{name} is not installed (pip install '.[onnxruntime]')")
    (tmp_path / "texts").write_text("".join(f"{text}\n" for text in TEXTS[:1] * 4))
    questions = [{"id": str(n), "question": q, "answers": []} for n, (q, _) in enumerate(ASKED)]
    paragraphs = {"paragraphs": [{"context": ASKED[0][1], "qas": questions}], "title": ""}
    (tmp_path / "questions").write_text(json.dumps({"version": "1.1", "data": [paragraphs]}))
    rows = str(tmp_path / ("questions" if head == "answer" else "texts")) if dtype == "int8" else None
    request = export.Request("onnx", dtype, rows)
    written = export.export(made_up(head, initializer_range=0.1), str(tmp_path / "1"), request)
    assert written.difference < (1e-4 if dtype == "fp32" else 0.5)
    assert {"model.onnx", "vocab.txt", "export.json"} <= set(os.listdir(tmp_path / "1"))
    with pytest.raises(ConfigError, match="is an ONNX export"):
        inference.load(str(tmp_path / "1"))


@pytest.mark.slow
def test_the_command(tmp_path, capsys, monkeypatch):
    export.export(made_up("answer"), str(tmp_path / "1"))
    again = str(tmp_path / "versions" / "7")
    words = ["export", f"--checkpoint={tmp_path}/1", f"--export_dir={again}", "--dtype=bf16"]
    monkeypatch.setattr(sys, "argv", words)
    checkpoints.run_export()
    line = capsys.readouterr().out
    assert line.startswith(f"Exported to {again}: answer, embed, tensors; bf16, ")
    assert "MB; outputs at most" in line
    with pytest.raises(ConfigError, match="exists, and exports"):
        checkpoints.run_export()
