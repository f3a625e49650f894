"""Typed text: masks, with a tiny model that knows one sentence by heart, what may be wrong, and questions."""

import io
import json
import os
import shutil
import sys
import types

import numpy as np
import pytest
import safetensors.numpy

from official import config as config_lib
from official import inference
from official.checkpoint import convert as convert_lib
from official.checkpoint.containers import bundle
from official.checkpoint.manager import CheckpointManager
from official.cli import ask
from official.inference import source
from official.io.errors import ConfigError
from official.modeling.models import BertPretrainer
from tests.fixtures import TINY

SENTENCE = "the cat sees a red house near the river".split()
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *sorted(set(SENTENCE)), "##s", "."]
SIZES = {**TINY, "vocab_size": len(WORDS), "num_hidden_layers": 1, "hidden_act": "relu"}


def knows_by_heart(model: BertPretrainer) -> None:
    """Gives a model weights with which it says, at each place of a text, the word of SENTENCE there."""
    words = np.eye(len(WORDS), SIZES["hidden_size"])
    places = np.zeros([SIZES["max_position_embeddings"], SIZES["hidden_size"]])
    places[1 : len(SENTENCE) + 1] = 8 * words[[WORDS.index(word) for word in SENTENCE]]  # after [CLS]
    weights = {"word_embeddings": words, "position_embeddings": places, "transform/dense/kernel": np.eye(32)}
    for variable in model.variables:
        name = variable.name.split(":")[0]
        known = [each for end, each in weights.items() if name.endswith(end)]
        variable.assign(known[0] if known else np.full(variable.shape, float(name.endswith("gamma"))))


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """The folder of a run that knows SENTENCE: checkpoint, config.json, vocab.txt."""
    folder = tmp_path_factory.mktemp("run")
    model = BertPretrainer(config_lib.bert_config_from_dict(SIZES, "test"))
    knows_by_heart(model)
    variables = {variable.name.split(":")[0]: variable for variable in model.variables}
    CheckpointManager(str(folder), variables, 1).save(7)
    (folder / "vocab.txt").write_text("\n".join(WORDS) + "\n")
    (folder / "config.json").write_text(json.dumps({"task": "pretrain", "vocab_file": None, "model": SIZES}))
    return folder


@pytest.fixture(scope="module")
def checkpoints(run, tmp_path_factory):
    """{name: path} of the same model in other formats."""
    folder = tmp_path_factory.mktemp("formats")
    there = {name: folder / name for name in ("google", "huggingface", "masked_lm")}
    for target in ("google", "huggingface"):
        convert_lib.convert(str(run), target, str(there[target]))
    shutil.copytree(there["huggingface"], there["masked_lm"])  # without a pooler and a next-sentence head
    path = there["masked_lm"] / "model.safetensors"
    tensors = safetensors.numpy.load_file(path)
    kept = {name: each for name, each in tensors.items() if "pooler" not in name and "seq_rel" not in name}
    safetensors.numpy.save_file(kept, path)
    return {"run": run, "prefix": run / "ckpt-7", **there}


def masked(*numbers: int) -> str:
    return " ".join("[MASK]" if number in numbers else word for number, word in enumerate(SENTENCE))


def test_a_word_that_was_learned_comes_back(checkpoints):
    for path in checkpoints.values():
        numbers = 0, 1, 5, 8
        found = inference.load(str(path)).fill_mask(masked(*numbers), top_k=3)
        for number, words in zip(numbers, found, strict=True):
            assert words[0][0] == SENTENCE[number] and words[0][1] > 0.8 and len(words) == 3, path
            assert words == sorted(words, key=lambda pair: -pair[1])


def test_each_mask_has_its_words_and_capitals_do_not_matter(run):
    model = inference.load(str(run))
    first, second = model.fill_mask(masked(1, 8).replace("sees", "SEES"), top_k=100)
    assert len(first) == len(second) == len(WORDS)
    assert sum(probability for _, probability in first) == pytest.approx(1, abs=1e-5)
    assert first[0][0] == SENTENCE[1] and second[0][0] == SENTENCE[8]
    assert len(model.fill_mask("[MASK][MASK]")) == 2 and model.fill_mask("[MASK]")


def test_a_table_may_be_a_little_longer_or_shorter_than_the_vocabulary(run, tmp_path, caplog):
    path = tmp_path / "vocab.txt"
    for words in (WORDS[:-2], [*WORDS, *(f"word{number}" for number in range(3))]):
        path.write_text("\n".join(words) + "\n")
        (found,) = inference.load(str(run), str(path)).fill_mask(masked(1) + " word1", top_k=1000)
        assert {word for word, _ in found} <= set(words) and len(found) == min(len(words), len(WORDS))
        assert ("rows stand for no word" if len(words) < len(WORDS) else "become unknown") in caplog.text
        caplog.clear()
    path.write_text("\n".join([*WORDS, *(f"word{number}" for number in range(200))]) + "\n")
    with pytest.raises(ConfigError, match="words, the model's vocab_size is"):
        inference.load(str(run), str(path))


def test_a_cased_model_is_given_its_capitals(run, tmp_path):
    folder = shutil.copytree(run, tmp_path / "copy")
    words = [word.title() if word in ("cat", "house", "river", "red", "near") else word for word in WORDS]
    (folder / "vocab.txt").write_text("\n".join(words) + "\n")
    with pytest.raises(ConfigError, match="is cased.*Give --do_lower_case=false"):
        inference.load(str(folder))
    text = " ".join(w.title() if w in ("red", "house", "near", "river") else w for w in masked(1).split())
    model = inference.load(str(folder), do_lower_case=False)
    assert model.fill_mask(text)[0][0][0] == "Cat"
    named = os.path.join(tmp_path, "words.txt")  # the vocabulary that the run was given
    os.rename(folder / "vocab.txt", named)
    values = {"task": "pretrain", "do_lower_case": False, "vocab_file": named, "model": SIZES}
    (folder / "config.json").write_text(json.dumps(values))
    assert inference.load(str(folder)).fill_mask(text)[0][0][0] == "Cat"


def test_weights_that_are_not_finite_or_there_are_refused(checkpoints, tmp_path):
    folder = shutil.copytree(checkpoints["huggingface"], tmp_path / "copy")
    tensors = safetensors.numpy.load_file(folder / "model.safetensors")
    tensors["cls.predictions.bias"][3] = np.nan
    kept = {name: tensor for name, tensor in tensors.items() if not name.startswith("cls.")}
    for values, message in (
        (tensors, "NaN or infinite numbers in cls/predictions/output_bias"),
        (kept, "has no masked-LM head .* cannot fill masks"),
    ):
        safetensors.numpy.save_file(values, folder / "model.safetensors")
        with pytest.raises(ConfigError, match=message):
            inference.load(str(folder)).prepare("fill_mask")


def typed(monkeypatch, capsys, data: bytes, *flags: str):
    """Runs the command on an input. Returns exit code, stdout and stderr."""
    monkeypatch.setattr(sys, "argv", ["fill_mask.py", *flags])
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data), encoding="utf-8"))
    code = ask.run_fill_mask()
    return code, *capsys.readouterr()


LONG = "cat " * 40 + "[MASK]"
LINES = f"{masked(1)}\n\nthe [mask]\n{LONG}\n".encode() + b"caf\xe9 [MASK]\n" + masked(5, 8).encode()


def test_lines_are_answered_and_the_wrong_ones_named(run, monkeypatch, capsys):
    code, out, err = typed(monkeypatch, capsys, LINES, f"--checkpoint={run}", "--top_k=2")
    assert code == 2 and [line.split()[0] for line in out.splitlines()] == ["cat", "house", "river"]
    assert all(len(line.split("  ")) == 2 for line in out.splitlines())
    assert [line.split(": ")[1] for line in err.splitlines()] == ["line 3", "line 4", "line 5"]
    for message in ("no [MASK] in the text", "43 word pieces", "takes at most 32. Shorten", "not UTF-8 text"):
        assert message in err


def test_json_has_an_object_for_each_text(run, monkeypatch, capsys):
    code, out, _ = typed(monkeypatch, capsys, LINES, f"--checkpoint={run}", "--json")
    found = [json.loads(line) for line in out.splitlines()]
    answered, refused = ["masks", "text"], ["error", "text"]
    assert code == 2 and [sorted(row) for row in found] == [answered, refused, refused, refused, answered]
    assert [mask[0]["word"] for mask in found[4]["masks"]] == ["house", "river"]
    assert len(found[0]["masks"][0]) == 5


def test_json_stays_json_in_an_encoding_without_the_letters(monkeypatch):
    stdout = io.TextIOWrapper(io.BytesIO(), encoding="ascii", errors="backslashreplace")
    monkeypatch.setattr(sys, "stdout", stdout)
    entities = [{"type": "LOC", "text": "caf\xe9 \U0001f600"}]
    model = types.SimpleNamespace(prepare=lambda method: None, tag=lambda text: entities)
    monkeypatch.setattr(ask, "load", lambda flags: model)
    monkeypatch.setattr(sys, "argv", ["bert tag", "--checkpoint=m", "--json"])
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"a text\n"), encoding="utf-8"))
    assert ask.run_tag() == 0
    assert json.loads(stdout.buffer.getvalue()) == entities


def test_a_line_that_never_ends_and_no_text_are_refused(run, monkeypatch, capsys):
    endless = "a line of the input has 16,777,216 characters or more"  # as that of a device
    for data, message in ((bytes(2**24 + 1), endless), (b"", "no text on stdin"), (b"\n \n", "no text on")):
        with pytest.raises(ConfigError, match=message):
            typed(monkeypatch, capsys, data, f"--checkpoint={run}")


def test_small_probabilities_are_no_zeros():
    for probability, text in ((0.99951, "1.000"), (0.4172, "0.417"), (0.001, "0.001"), (6.86e-5, "6.9e-05")):
        assert ask.shown_masks("", [[("a", probability)]], as_json=False) == f"a {text}"


def test_typed_questions_are_answered(tmp_path, monkeypatch, capsys):
    sizes = {**TINY, "num_hidden_layers": 1, "max_position_embeddings": 40}
    found = source.random_source(config_lib.bert_config_from_dict(sizes, "sizes"), "answer")
    bundle.write(found.tensors, str(tmp_path / "ckpt-0"))
    words = "\n".join(found.vocabulary.words)
    for name, text in (("config.json", json.dumps(sizes)), ("vocab.txt", words), ("text", "word7 word8")):
        (tmp_path / name).write_text(f"{text}\n")
    monkeypatch.setattr(sys, "argv", ["bert ask", f"--checkpoint={tmp_path}", f"--context={tmp_path}/text"])
    monkeypatch.setattr(sys, "stdin", io.StringIO("word7 word8?\n\nword9?\n"))
    assert ask.run_ask() == 0
    answers = capsys.readouterr().out.splitlines()
    assert len(answers) == 2 and all(0 < float(answer.split()[-1]) <= 1 for answer in answers)
