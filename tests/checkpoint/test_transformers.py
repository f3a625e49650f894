"""What is exported works in transformers: AutoModel* finds every weight and computes the same, AutoTokenizer
makes the same tokens.

transformers and torch are no requirements of this project. BERT_TEST_TRANSFORMERS names the Python programs
of environments that have them, separated by commas; unset, this one is asked.
"""

import collections
import importlib.util
import json
import os
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

from official.checkpoint.containers import bundle
from official.checkpoint.convert import convert
from official.config import BertConfig
from official.data.word_pieces.vocabulary import SPECIAL_TOKENS, load_for_text
from official.data.word_pieces.wordpiece import WordPiece
from official.io import model_folder, vocabulary_files
from official.modeling.models import BertPretrainer, SequenceModel, SpanModel
from tests.checkpoint.tensors import of_arrays
from tests.fixtures import ROOT, TEST_DATA, TINY
from tests.modeling.models import weights_of

TEXTS = ["Paris is in France.", "The café's naïve Zürich, 中國 and don't — 3.14 %!", "élan ΑΩ", "UPPER lower"]
PYTHONS = os.environ.get("BERT_TEST_TRANSFORMERS", sys.executable).split(",")


def real_texts() -> list[str]:
    path = TEST_DATA / "wikipedia" / "wiki_01"
    lines = path.read_text(encoding="utf-8").split("\n") if path.exists() else []
    return [line for line in lines if line and max(map(len, line.split())) < 100][:400]


def write_vocabulary(folder, do_lower_case: bool) -> int:
    """Writes frequent words and all characters of the texts, as a run keeps them; returns how many."""
    text = " ".join([*TEXTS, *real_texts()])
    text = text.lower() if do_lower_case else text
    words = [word for word, _ in collections.Counter(text.split()).most_common(2000) if word.isalpha()]
    characters = sorted(set(text.replace(" ", "")))
    vocabulary = dict.fromkeys([*SPECIAL_TOKENS, *words, *characters, *(f"##{one}" for one in characters)])
    (folder / "vocab.txt").write_text("".join(f"{word}\n" for word in vocabulary), encoding="utf-8")
    file, length = vocabulary_files.read(str(folder / "vocab.txt")), TINY["max_position_embeddings"]
    settings = vocabulary_files.tokenizer_config(file, do_lower_case, length)
    (folder / "tokenizer_config.json").write_text(settings)
    return len(vocabulary)


def write_run(folder, make_model, config: BertConfig):
    """Writes what a run leaves in its folder, with random weights; returns the model."""
    model = make_model(config)
    names = ("input_ids", "input_mask", "segment_ids", "masked_lm_positions")
    model({name: np.zeros((1, 8), np.int32) for name in names})
    generator = np.random.default_rng(1)
    for variable in model.variables:
        variable.assign(generator.normal(0, 0.3, variable.shape))
    bundle.write(of_arrays(weights_of(model)), str(folder / "ckpt-7"))
    (folder / "config.json").write_text(json.dumps({"model": {**TINY, "vocab_size": config.vocab_size}}))
    return model


def run_transformers(python: str, folder, class_name: str, texts: list[str]) -> dict:
    if python == sys.executable and not all(map(importlib.util.find_spec, ("transformers", "torch"))):
        pytest.skip("needs transformers and torch (BERT_TEST_TRANSFORMERS)")
    command = [python, str(ROOT / "tests" / "transformers_program.py"), str(folder), class_name]
    kept = {**os.environ, "HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""}
    settings = {"input": json.dumps(texts), "capture_output": True, "text": True, "check": False}
    done = subprocess.run(command, env=kept, **settings)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


HEADS = {
    "squad": (SpanModel, "QuestionAnswering", ("start_logits", "end_logits")),
    "mnli": (lambda config: SequenceModel(config, 3), "SequenceClassification", ("logits",)),
    "stsb": (lambda config: SequenceModel(config, 1), "SequenceClassification", ("logits",)),
    "pretrain": (BertPretrainer, "PreTraining", ("prediction_logits", "seq_relationship_logits")),
}
LABELS = {"mnli": ("contradiction", "entailment", "neutral"), "stsb": None}


@pytest.mark.slow
@pytest.mark.parametrize("python", PYTHONS)
@pytest.mark.parametrize(
    "head, do_lower_case", [("squad", True), ("mnli", False), ("stsb", True), ("pretrain", False)]
)
def test_an_exported_run_works_in_transformers(tmp_path, python, head, do_lower_case):
    run, export = tmp_path / "run", tmp_path / "export"
    run.mkdir()
    make_model, purpose, names = HEADS[head]
    config = BertConfig(**{**TINY, "vocab_size": write_vocabulary(run, do_lower_case)})
    model = write_run(run, make_model, config)
    if head in LABELS:
        (run / model_folder.LABELS).write_text(model_folder.labels_json(LABELS[head]))
    convert(str(run), "huggingface", str(export))
    texts = [*TEXTS, *real_texts()]
    found = run_transformers(python, export, f"AutoModelFor{purpose}", texts)

    unexpected = found["loading"].pop("unexpected_keys")
    unexpected = [key for key in unexpected if head != "squad" or not key.startswith("bert.pooler.")]
    assert found["class"] == f"BertFor{purpose}" and not any([*found["loading"].values(), unexpected])
    assert found["lower_case"] == do_lower_case and found["longest"] == TINY["max_position_embeddings"]
    ids, lengths = WordPiece(load_for_text(str(export))).tokenize(texts)
    assert found["ids"] == [row.tolist() for row in np.split(ids, np.cumsum(lengths)[:-1])]
    assert_same_outputs(names, model, found)
    if head == "mnli":
        assert list(found["labels"].values()) == list(LABELS["mnli"])
        assert found["problem_type"] == "single_label_classification"
    if head == "stsb":
        assert len(found["labels"]) == 1 and found["problem_type"] == "regression"


def assert_same_outputs(names, model, found: dict) -> None:
    ids, segments, mask = (
        np.array(found["batch"][name], np.int32) for name in ("input_ids", "token_type_ids", "attention_mask")
    )
    positions = np.broadcast_to(np.arange(ids.shape[1], dtype=np.int32), ids.shape)
    batch = {"input_ids": ids, "segment_ids": segments, "input_mask": mask, "masked_lm_positions": positions}
    outputs = model({name: tf.constant(values, tf.int32) for name, values in batch.items()})
    for name, ours in zip(names, [outputs] if len(names) == 1 else outputs):
        theirs = np.array(found["outputs"][name])[:, :8]
        np.testing.assert_allclose(theirs, ours.numpy()[:, :8], atol=2e-4, rtol=1e-4, err_msg=name)
