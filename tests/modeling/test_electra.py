"""ELECTRA's pre-training: what the generator draws, what counts as replaced, and both models' checkpoints."""

import json

import numpy as np
import pytest
import tensorflow as tf
from safetensors.numpy import load_file, save_file

from official.checkpoint import canonical
from official.checkpoint.convert import convert
from official.checkpoint.formats import Options
from official.checkpoint.initialize import initialize
from official.config.model import BertConfig, generator_of
from official.inference import verification
from official.io.errors import ConfigError
from official.modeling import electra, objectives
from official.reporting.metrics import read_metrics
from official.tasks.pretraining import PretrainingTask
from tests.modeling.models import named
from tests.run_folders import run, state_of

MODEL = dict(family="electra", embedding_size=8)


def electra_config(make_config, **settings):
    return make_config(model=MODEL, objective="electra", **settings)


def test_a_generator_is_a_share_of_the_model():
    model = BertConfig(family="electra", embedding_size=128)
    found = []
    for share in (0.25, 1 / 3, 1.0, 0.01):
        own = generator_of(model, share)
        found.append((own.hidden_size, own.num_attention_heads, own.intermediate_size, own.embedding_size))
    assert found == [(192, 3, 768, 128), (256, 4, 1024, 128), (768, 12, 3072, 128), (64, 1, 256, 128)]


def test_words_are_drawn_with_their_probabilities():
    """By numbers of which any interval has its share, of any seed, and of any tokens around."""
    generator = np.random.default_rng(5)
    ids = generator.integers(5, 90, (4000, 8)).astype(np.int32)
    features = {"input_ids": tf.constant(ids), "input_mask": tf.ones_like(ids)}
    positions = tf.constant([[1, 6]] * len(ids))
    drawn = [electra.uniform(features, positions, tf.constant([7, step])).numpy() for step in (1, 2)]
    assert np.min(drawn) >= 0 and np.max(drawn) < 1
    for one, other in ((drawn[0], drawn[1]), (drawn[0][:, :1], drawn[0][:, 1:])):
        assert abs(np.corrcoef(one.ravel(), other.ravel())[0, 1]) < 0.05
    shares = np.histogram(drawn, bins=20, range=(0, 1))[0] / np.size(drawn)
    np.testing.assert_allclose(shares, 0.05, atol=0.006)

    logits = np.log(np.array([0.5, 0.25, 0.0, 0.25], np.float32) + 1e-30)
    words = electra.sampled(tf.constant([[logits]]), tf.constant([[0.0, 0.49, 0.51, 0.74, 0.76, 0.99]]))
    assert words.numpy().tolist() == [[0, 0, 1, 1, 3, 3]]


def test_what_is_replaced_is_what_is_not_of_the_text(make_config):
    """A word that is drawn right is none, and a slot without a prediction changes nothing."""
    task = PretrainingTask(electra_config(make_config))
    batch = {name: values.numpy() for name, values in next(iter(task.synthetic_dataset(8))).items()}
    batch["masked_lm_weights"][:, 2:] = 0
    batch["masked_lm_positions"][:, 2:] = 0
    text = batch["input_ids"].copy()
    rows = np.arange(8)[:, None]
    text[rows, batch["masked_lm_positions"][:, :2]] = batch["masked_lm_ids"][:, :2]
    logits, replaced, ids = task.build_model()(batch, dropout_seed=tf.constant([1, 2, 3, 4]))
    is_other = ids.numpy() != batch["input_ids"]
    is_asked = np.zeros_like(is_other)
    is_asked[rows, batch["masked_lm_positions"][:, :2]] = True
    assert is_other.any() and not (is_other & ~is_asked).any()

    right = tf.where(is_asked & (np.arange(8)[:, None] < 4), text, ids)  # in half of the rows all are right
    terms = objectives.pretraining_terms((logits, replaced, right), batch, "pertoken")
    labels, mask = (right.numpy() != text).astype(np.float64), batch["input_mask"]
    z = replaced.numpy().astype(np.float64)
    losses = np.log1p(np.exp(-np.abs(z))) + np.maximum(z, 0) - z * labels
    np.testing.assert_allclose(terms["rtd_loss"], [(losses * mask).sum(), mask.sum()], rtol=1e-5)
    hits = ((z > 0) == (labels > 0)) * mask
    np.testing.assert_allclose(terms["rtd_accuracy"], [hits.sum(), mask.sum()])
    assert terms.keys() == {*task.metrics}


def test_both_models_are_converted_and_begun_with(make_config, tmp_path):
    """To Hugging Face's two folders, to Google's names, and back; a generator of other sizes is refused."""
    config = electra_config(make_config, num_steps_per_epoch=2, steps_per_loop=1)
    run(config)
    for line in read_metrics(config.model_dir):
        assert line["loss"] == pytest.approx(line["mlm_loss"] + 50 * line["rtd_loss"])
    state = state_of(config.model_dir, 2)
    convert(config.model_dir, "huggingface", str(tmp_path / "theirs"))
    verify = verification.verify
    done = convert(str(tmp_path / "theirs"), "electra", str(tmp_path / "tf1"), verify=verify)
    verified = done["verification"]
    assert verified["passed"] and {"generator_masked_lm", "discriminator"} < {*verified["differences"]}
    convert(str(tmp_path / "tf1" / "theirs"), "huggingface", str(tmp_path / "back"))
    found = []
    for folder in (tmp_path / "theirs", tmp_path / "back"):
        weights = load_file(folder / "model.safetensors"), load_file(folder / "generator/model.safetensors")
        found.append([{name: values.tobytes() for name, values in each.items()} for each in weights])
        for below, ending, heads in (("", "PreTraining", 4), ("generator", "MaskedLM", 1)):
            said = json.loads((folder / below / "config.json").read_text())
            assert (said["architectures"], said["num_attention_heads"]) == ([f"ElectraFor{ending}"], heads)
    assert found[0] == found[1]
    names = set(tf.train.load_checkpoint(str(tmp_path / "tf1/theirs")).get_variable_to_shape_map())
    wanted = "electra/embeddings_project/kernel generator/encoder/layer_0/output/dense/kernel".split()
    wanted += ["generator_predictions/output_bias", "discriminator_predictions/dense_1/kernel"]
    assert {*wanted} < names

    for path in (tmp_path / "theirs", tmp_path / "tf1" / "theirs", config.model_dir):
        model = PretrainingTask(config).build_model()
        variables = named(model.variables)
        report = initialize(variables, str(path), config.model)
        assert not report.fresh and {*report.unneeded} <= {*canonical.POOLER}
        for name in report.read:
            np.testing.assert_array_equal(variables[name], state[name], err_msg=name)
    larger = PretrainingTask(electra_config(make_config, generator_share=0.5)).build_model()
    with pytest.raises(ConfigError, match="does not fit the model. .*generator/bert/encoder/layer_0"):
        initialize(named(larger.variables), str(tmp_path / "theirs"))
    weights[1]["generator_lm_head.bias"] += 1
    save_file(weights[1], folder / "generator/model.safetensors")
    ends = ({"path": str(path), "format": "huggingface"} for path in (tmp_path / "theirs", folder))
    assert not verify(*ends, Options())["passed"]
    weights[1]["electra.embeddings.word_embeddings.weight"] += 1
    save_file(weights[1], folder / "generator/model.safetensors")
    with pytest.raises(ConfigError, match="the generator has separate embeddings"):
        convert(str(folder), "electra", str(tmp_path / "untied"))
